"""The reusable store: the whole contract over any ordered key-value map with atomic writes and snapshots.

    maps.py         what such a map must do: a few small protocols
    log.py          the change log's entries: byte layout, writing, reading, truncation
    records.py      catalog, batch, holds and the other records
    calls.py        one write call: encode, apply, log
    together.py     the changes of many small views, encoded at once
    net.py          what is left of a stretch of the log
    rows.py         a store's rows
    feed.py         its feed
    publishing.py   its batches
    pinned.py       one state that stays readable: snapshots
    lease.py        one maintainer at a time: a lock on a file
    examine.py      what `vk doctor` looks at
    store.py        OrderedStore: made of these

`lmdb/` and `rocksdb/` are such maps. A write call is one transaction: look up the rows as they are, drop what does not
change, put and delete, append the changes to the log at position head + 1, note the new head. A commit does the same
for the view tables, together with the batch record, so both become visible together or not at all.
"""

from __future__ import annotations

from viewkeeper.store.ordered.store import OrderedStore

__all__ = ["OrderedStore"]
