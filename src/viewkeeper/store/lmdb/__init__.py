"""The embedded store over LMDB (`lmdb:PATH`): one environment holds table rows, the change log and the catalog.

    environment.py          one open environment: handles, transactions, durability; LMDB's errors as Viewkeeper's
    shared_environments.py  the environments that all stores of a process share
    second_environment.py   an environment that writes, opened beside one that reads
    after_fork.py           what a forked child does with its parent's environments
    writeback.py            early writeback of the pages of a large transaction
    table_rows.py           a table's sub-database: apply, find, scan; keys over 511 bytes
    btree_pages.py          split points of a table from the branch pages of its tree
    maps.py                 the environment as ordered maps, of which `ordered/` makes a store

The environment has a sub-database `t<id>` for each table (encoded key → encoded row), `log` (position, chunk → entry)
and `meta` (`ordered/metadata.py`). One write call is one LMDB transaction over all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from viewkeeper.store.lmdb.environment import MAP_SIZE
from viewkeeper.store.lmdb.maps import LmdbDatabase
from viewkeeper.store.lmdb.shared_environments import attach
from viewkeeper.store.ordered import OrderedStore
from viewkeeper.store.ordered.location import directory_of


class LmdbStore(OrderedStore):
    """A store over one LMDB environment in a directory. Its methods may be called from any thread."""

    def __init__(
        self, path: str | Path, mode: str = "w", *, durability: str = "commit", map_size: int = MAP_SIZE
    ) -> None:
        super().__init__(LmdbDatabase(attach(Path(path).expanduser(), mode, durability, map_size)), mode)


__all__ = ["LmdbStore", "open_url"]


def open_url(url: str, mode: str = "w", **options: Any) -> LmdbStore:
    """Open `lmdb:PATH`."""
    return LmdbStore(directory_of(url), mode, **options)
