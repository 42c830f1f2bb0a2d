"""LmdbStore: a store over one LMDB environment."""

from __future__ import annotations

from pathlib import Path

from viewkeeper.store.lmdb.database import LmdbDatabase
from viewkeeper.store.lmdb.environment import MAP_SIZE
from viewkeeper.store.lmdb.sharing import attach
from viewkeeper.store.ordered import OrderedStore


class LmdbStore(OrderedStore):
    """One open database in a directory. Its methods may be called from any thread."""

    def __init__(
        self, path: str | Path, mode: str = "w", *, durability: str = "commit", map_size: int = MAP_SIZE
    ) -> None:
        super().__init__(LmdbDatabase(attach(Path(path).expanduser(), mode, durability, map_size)), mode)
