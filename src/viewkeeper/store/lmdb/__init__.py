"""The embedded store: one LMDB environment holds table rows, the change log and the catalog (`lmdb:PATH`).

    environment.py   one open environment: handles, transactions, durability
    sharing.py       what a process has open, whoever opens it
    beside.py        an environment that writes beside one that reads
    forks.py         what a forked child does with its parent's
    failures.py      LMDB's failures as ours
    rows.py          a table's sub-database: apply, find, scan; keys over 511 bytes
    records.py       catalog, batch, holds and the other records of `meta`
    log.py           the change log's entries: byte layout, writing, reading, truncation
    calls.py         one write call: encode, apply, log
    pinned.py        one state that stays readable: snapshots
    lease.py         one maintainer at a time: a lock on a file
    store.py         LmdbStore: the contract of `store/base.py` over these

In the environment: a sub-database `t<id>` a table (encoded key → encoded row), `log` (position, chunk → entry) and
`meta` (`records.py`). One write call is one LMDB transaction over all of them.
"""

from __future__ import annotations

from typing import Any

from viewkeeper.errors import BadValue
from viewkeeper.store.lmdb.store import LmdbStore

__all__ = ["LmdbStore", "open_url"]


def open_url(url: str, mode: str = "w", **options: Any) -> LmdbStore:
    """Open `lmdb:PATH`."""
    path = url.partition(":")[2]
    if not path.strip("/"):
        raise BadValue(f"{url!r} names no directory.", hint="Write for example 'lmdb:./shop'.")
    return LmdbStore(path, mode, **options)
