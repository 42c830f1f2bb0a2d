"""The embedded store: one LMDB environment holds table rows, the change log and the catalog (`lmdb:PATH`).

    environment.py   one open environment: handles, transactions, durability
    sharing.py       what a process has open, whoever opens it
    beside.py        an environment that writes beside one that reads
    forks.py         what a forked child does with its parent's
    failures.py      LMDB's failures as ours
    rows.py          a table's sub-database: apply, find, scan; keys over 511 bytes
    database.py      the environment as ordered maps; `ordered/` makes a store of them
    store.py         LmdbStore

In the environment: a sub-database `t<id>` a table (encoded key → encoded row), `log` (position, chunk → entry) and
`meta` (`ordered/records.py`). One write call is one LMDB transaction over all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from viewkeeper.store.lmdb.environment import MAP_SIZE
from viewkeeper.store.lmdb.maps import LmdbDatabase
from viewkeeper.store.lmdb.shared_environments import attach
from viewkeeper.store.ordered import OrderedStore
from viewkeeper.store.ordered.location import directory_of

# LmdbStore: a store over one LMDB environment.


class LmdbStore(OrderedStore):
    """One open database in a directory. Its methods may be called from any thread."""

    def __init__(
        self, path: str | Path, mode: str = "w", *, durability: str = "commit", map_size: int = MAP_SIZE
    ) -> None:
        super().__init__(LmdbDatabase(attach(Path(path).expanduser(), mode, durability, map_size)), mode)


__all__ = ["LmdbStore", "open_url"]


def open_url(url: str, mode: str = "w", **options: Any) -> LmdbStore:
    """Open `lmdb:PATH`."""
    return LmdbStore(directory_of(url), mode, **options)
