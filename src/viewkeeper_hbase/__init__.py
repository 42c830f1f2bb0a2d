"""HBase store: base tables and views in an HBase cluster, at `hbase://host:port/namespace`.

The package implements the store contract of `viewkeeper.store`. Its Thrift2 client is pure Python. A tour, from
the network upwards:

    thrift/      the client: `connection` frames one TCP connection, `pool` keeps idle ones and retries calls,
                 `request_encoder` and `reply_decoder` are the wire format, `cells` is a reply as Arrow arrays,
                 `scan` reads key ranges and resumes after failures, `admin` manages tables, `errors` are types
                 that say what a caller may repeat, `client` joins them; `task_clients` is for worker processes
    layout/      rows as cells, and back: `layout` and `mapping` (tables of other programs) name the cells,
                 `value_encodings` encodes values, `layout_cache` keeps layouts, `row_reader`, `point_read` and
                 `close_scan` read rows, `pushdown` makes scanner filters of comparisons

    url.py, handle.py           the parsed URL; the connection and caches of an open database
    metadata.py                 the database's own records, in one row that is changed by check-and-put
    cached_state.py             what a process remembers of these records
    store.py                    HBaseStore, which joins the parts of the store contract:
    catalog_store.py              the catalog, and notes
    tables.py, snapshot.py        rows: writes, reads, and reads of one state
    commits.py, commit_steps.py   batches are claimed, written and published (with `viewkeeper.store.redo`)
    lease.py                      one maintainer at a time
    mailbox.py, log_holds.py      requests to the maintainer; promises to keep changes
    statistics.py               row counts and split points
    rejected_rows.py            notes on rows that cannot be decoded
    doctor.py                   the checks of `vk doctor`

    capture/     changes of base tables: `time_windows` scans for new cells, `region_scan` does so with one task per
                 region, `feed` reads the changed rows, `view_history` the deltas of past batches, `changelog` joins
                 them
    push/        changed row keys that HBase sends from its write-ahead log (its docstring has the figure)
    devserver/   an HBase on this machine, for tests and trials
    cli.py, push_cli.py         the commands `vk hbase` and `vk hbase push`

HBase changes only single rows atomically, and its clock gives positions. Everything else follows from these two
facts: a write call is atomic for each row, capture scans overlapping time windows, and a batch becomes visible by
one change of the row that `metadata` keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from viewkeeper_hbase.store import HBaseStore


def open_url(url: str, mode: str = "w", **options: Any) -> HBaseStore:
    """Open `hbase://host:port/namespace`."""
    from viewkeeper_hbase.store import HBaseStore

    return HBaseStore(url, mode, **options)
