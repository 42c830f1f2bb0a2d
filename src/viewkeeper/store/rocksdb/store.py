"""RocksStore: a store over one RocksDB database."""

from __future__ import annotations

from pathlib import Path

from viewkeeper.store.ordered import OrderedStore
from viewkeeper.store.rocksdb.database import attach


class RocksStore(OrderedStore):
    """One open database in a directory. Its methods may be called from any thread."""

    def __init__(self, path: str | Path, mode: str = "w", *, durability: str = "commit") -> None:
        super().__init__(attach(Path(path).expanduser(), mode, durability), mode)
