"""The embedded store over RocksDB (`rocksdb:PATH`): one process writes, other processes read.

    maps.py        RocksDB's one ordered map, divided by prefixes: records, log, tables; and readers of one state
    secondary.py   secondary instances, which read what another process writes
    database.py    an open database: transactions, snapshots, copies, and the databases that a process shares
    errors.py      RocksDB's errors as Viewkeeper's

Everything else of the store is `ordered/`. A write call is one WriteBatch, so it is in RocksDB's own log completely or
not at all. RocksDB lets only one process at a time open a database for writing; that process reads snapshots. A process
that only reads follows the writer's files with a secondary instance.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from viewkeeper.store.ordered import OrderedStore
from viewkeeper.store.ordered.location import directory_of
from viewkeeper.store.rocksdb.database import attach


class RocksStore(OrderedStore):
    """A store over one RocksDB database in a directory. Its methods may be called from any thread."""

    def __init__(self, path: str | Path, mode: str = "w", *, durability: str = "commit") -> None:
        super().__init__(attach(Path(path).expanduser(), mode, durability), mode)


__all__ = ["RocksStore", "open_url"]


def open_url(url: str, mode: str = "w", **options: Any) -> RocksStore:
    """Open `rocksdb:PATH`."""
    return RocksStore(directory_of(url), mode, **options)
