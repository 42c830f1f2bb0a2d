"""What an ordered key-value map must do to be a store: the interface between `ordered/` and the maps beneath it.

    Database      opens states: `read` for a block, `open_snapshot` until it is closed, `write` for an atomic change
      └─ State    one state of the whole database
           ├─ meta, log    an OrderedMap each
           └─ rows(id)     the TableRows of a table: encoded key → encoded row

Inside `write`, a state shows the database before the block; its writes become visible when the block has ended. Code
that needs its own writes must keep them. (LMDB shows them at once, but no code relies on that.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from viewkeeper.model.schema import Table
from viewkeeper.store.contract.commits import Finding
from viewkeeper.store.ordered.row_images import RowImages


class OrderedMap(Protocol):
    """Bytes by key, in key order."""

    max_inline_value: int | None = None
    """Approximate length of the longest value that shares a page with other values, if a transaction of this map can
    write such pages early but must keep longer values in memory. None if the length makes no difference."""

    def get(self, key: bytes) -> bytes | memoryview | None: ...

    def items(self, start: bytes) -> Iterator[tuple[bytes, bytes | memoryview]]:
        """Yield the items from a key on; a value is valid while its state is open."""

    def put(self, key: bytes, value: bytes, *, append: bool = False) -> None:
        """Put a value. `append`: the key is known to follow all others."""

    def delete(self, key: bytes) -> None:
        """Delete a key; an absent key is no error."""

    def delete_before(self, stop: bytes) -> None:
        """Delete all keys below `stop`."""

    def size(self) -> int | None:
        """Return the approximate number of bytes on disk; None if it is not known."""


class TableRows(Protocol):
    """The rows of one table. Keys and rows are bytes; an empty row means no row."""

    def find(self, key: bytes) -> bytes | None: ...

    def find_rows(self, keys: pa.BinaryArray) -> pa.BinaryArray:
        """Return the existing rows of these keys, in any order."""

    def find_in_order(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return the row of each key; empty if there is none."""

    def scan(self, start: bytes | None, stop: bytes | None, limit: int | None) -> Iterator[pa.BinaryArray]:
        """Yield the rows of a key range in key order, in batches."""

    def apply(self, table: Table, keys: pa.BinaryArray, after: pa.BinaryArray) -> RowImages:
        """Set the row of each key to `after` (empty: delete it) and return the rows that really changed, by key. Keys
        are unique."""

    def rewrite(self, table: Table, keys: Sequence[bytes], before: Sequence[bytes], after: Sequence[bytes]) -> None:
        """Do the same if the rows before are known; all of these rows must change."""

    def clear(self) -> None:
        """Delete all rows."""

    def count(self) -> int: ...

    def split_points(self, range_count: int) -> list[bytes]:
        """Return keys that split the table into `range_count` ranges of similar size."""


class State(Protocol):
    """One state of the whole database."""

    @property
    def meta(self) -> OrderedMap: ...

    @property
    def log(self) -> OrderedMap: ...

    def rows(self, table_id: int) -> TableRows: ...


class MapSnapshot(State, Protocol):
    """A state that stays readable until it is closed."""

    def translate_errors(self) -> AbstractContextManager[None]:
        """Return a context in which errors of the map are raised as Viewkeeper's errors."""

    def close(self) -> None: ...


class Database(Protocol):
    """One open database in a directory. Thread-safe."""

    scheme: str
    path: Path
    uuid: str
    format: int
    max_call_bytes: int
    """Maximum size of a write call in bytes."""

    def read(self, tables: Sequence[int] = (), *, only_log: bool = False) -> AbstractContextManager[State]:
        """Return a state to read these tables, `meta` and `log`. `only_log`: values need not be copied out of the
        state."""

    def write(self, tables: Sequence[int] = (), size: int = 0) -> AbstractContextManager[State]:
        """Return a state to write, committed atomically at the end of the block unless the block raises. Only one is
        open at a time.

        `size`: approximate bytes of the rows that will change.
        """

    def open_snapshot(self) -> MapSnapshot: ...

    def get(self, table_id: int, key: bytes) -> bytes | None:
        """Return one current row, without the overhead of a state."""

    def read_counter(self, name: bytes) -> int:
        """Return the current value of a number in `meta`; every read needs some."""
        with self.read() as state:
            return int.from_bytes(state.meta.get(name) or b"", "big")

    def free_dropped_tables(self) -> None:
        """Free the space of dropped tables, if no other handle in this process has the database open."""

    def examine(self) -> Iterator[Finding]:
        """Yield the findings of the underlying map."""

    def used_bytes(self) -> int:
        """Return the bytes that the database uses on disk."""

    def copy_to(self, directory: Path) -> None: ...

    def sync(self) -> None:
        """Flush everything to disk, regardless of the durability."""

    def detach(self) -> None:
        """Release this store's use of the database."""
