"""HBase store: base tables and views in an HBase cluster, over a Thrift2 client in pure Python. A URL is
`hbase://host:port/namespace`.

The package implements the store contract of `viewkeeper.store`. A tour, from the network upwards:

    thrift/      the client. `connection` frames one TCP connection, `pool` keeps idle ones and retries,
                 `request_encoder` and `reply_decoder` are the wire format, `cells` is a reply as Arrow arrays,
                 `scan` reads ranges with several scanners, `admin` manages tables, `client` joins them
    layout/      rows as cells and back. `layout` and `mapping` name cells, `value_encodings` encodes values,
                 `row_reader`, `point_read` and `close_scan` read rows, `pushdown` filters them in HBase
    url.py, handle.py       a parsed URL; what the parts of an open database share
    metadata.py             the database's own records in one row, changed by check-and-put
    cached_state.py         what a process knows of those records
    catalog_store.py, tables.py, snapshot.py, commits.py, lease.py, mailbox.py, log_holds.py
                            the parts of the store contract; `store.HBaseStore` joins them
    commit_steps.py         how a claimed batch is written to its tables (with `viewkeeper.store.redo`)
    statistics.py, rejected_rows.py, doctor.py
                            row counts and split points; notes on unreadable rows; `vk doctor`
    capture/     changes of base tables by time windows of raw scans, and the change log made of them
    push/        changes that HBase sends from its write-ahead log, through the replication endpoint (Java)
    devserver/   an HBase on this machine, for tests and trials
    cli.py, push_cli.py     the commands `vk hbase` and `vk hbase push`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from viewkeeper_hbase.store import HBaseStore


def open_url(url: str, mode: str = "w", **options: Any) -> HBaseStore:
    """Open `hbase://host:port/namespace`."""
    from viewkeeper_hbase.store import HBaseStore

    return HBaseStore(url, mode, **options)
