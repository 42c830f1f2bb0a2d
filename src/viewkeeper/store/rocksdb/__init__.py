"""The embedded store over RocksDB (`rocksdb:PATH`): one process writes, others read.

    sources.py     what is read from: RocksDB as it is, or one state of it
    maps.py        RocksDB's one ordered map, divided by prefixes: records, log, tables
    following.py   reading what another process writes: secondary instances
    database.py    an open database: transactions, snapshots, copies, and what a process shares of it
    failures.py    RocksDB's failures as ours
    store.py       RocksStore; all else of a store is `ordered/`

A write call is one WriteBatch, so it is in RocksDB's own log whole or not at all. RocksDB lets one process at a time
open a database to write; that process reads snapshots. A process that only reads follows the writer's files with an
instance of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from viewkeeper.store.ordered import OrderedStore
from viewkeeper.store.ordered.location import directory_of
from viewkeeper.store.rocksdb.database import attach

# RocksStore: a store over one RocksDB database.


class RocksStore(OrderedStore):
    """One open database in a directory. Its methods may be called from any thread."""

    def __init__(self, path: str | Path, mode: str = "w", *, durability: str = "commit") -> None:
        super().__init__(attach(Path(path).expanduser(), mode, durability), mode)


__all__ = ["RocksStore", "open_url"]


def open_url(url: str, mode: str = "w", **options: Any) -> RocksStore:
    """Open `rocksdb:PATH`."""
    return RocksStore(directory_of(url), mode, **options)
