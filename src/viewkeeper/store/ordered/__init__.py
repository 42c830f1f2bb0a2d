"""The reusable store: the whole contract over any ordered key-value map with atomic writes and snapshots.

    maps.py             what such a map must do: a few small protocols
    log_format.py       the change log's entries: byte layout, writing, reading, truncation
    row_images.py       changed rows as bytes, and the net delta of a range of the log
    metadata.py         catalog, holds, notes and the other records of the map `meta`
    batch_record.py     the batch record, in two parts
    write_call.py       one write call: encode, apply, log
    change_encoding.py  the changes of many small views, encoded together
    observed_writes.py  synchronous views in the transaction of a write
    tables.py           the table store
    changelog.py        the change log
    commits.py          batch commits
    snapshot.py         snapshots
    handle.py           an open database and its catalog
    lease.py            one maintainer at a time: a lock on a file
    location.py         the directory of a database
    doctor.py           the checks of `vk doctor`
    store.py            OrderedStore: all of these

`lmdb/` and `rocksdb/` are such maps. A write call is one transaction: look up the rows, drop those that do not change,
put and delete, append the changes to the log at position head + 1, write the new head. A commit does the same for the
view tables, together with the batch record, so both become visible together or not at all.
"""

from __future__ import annotations

from viewkeeper.store.ordered.store import OrderedStore

__all__ = ["OrderedStore"]
