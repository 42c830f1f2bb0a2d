"""HBase: base tables and views in a real HBase, over a Thrift2 client in pure Python (`hbase://host:port/namespace`).

url.py connection.py pool.py failures.py      the gateway: how it is spoken to, and what can go wrong
client.py scanning.py batches.py              rows and cells; `frames`, `walker` and `cells` read replies into Arrow
tables.py                                     namespaces, tables, regions
layout.py encodings.py rowkeys.py             how rows lie in HBase, and back
records.py lease.py known.py                  the database's own records; one maintainer; what a reader knows of them
windows.py                                    capture: what was written in a time window
commit.py                                     a batch becomes visible, by `store/redo`
sizes.py                                      counts and split points
opened.py definitions.py rows.py log.py       the parts of the store contract over these: the catalog,
publishing.py store.py                        rows, the feed, batches, the lease; HBaseStore joins them
server.py processes.py fetch.py               an HBase of one's own, for tests and trials
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from viewkeeper_hbase.store import HBaseStore


def open_url(url: str, mode: str = "w", **options: Any) -> HBaseStore:
    """Open `hbase://host:port/namespace`."""
    from viewkeeper_hbase.store import HBaseStore

    return HBaseStore(url, mode, **options)
