"""What an ordered key-value map must do to be a store: the border between `ordered/` and the maps beneath it.

    Database      opens states: `read` for a while, `pin` until it is closed, `write` to change it, atomically
      └─ State    one state of everything
           ├─ meta, log    an OrderedMap each
           └─ rows(id)     the TableRows of a table: encoded key → encoded row

Inside `write` a state is what was there before; what the block writes is seen when it has ended. Who needs to know what
it has put itself remembers it. (LMDB shows it at once, and nothing relies on that.)
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
    """The longest value, about, that shares a page with others, where a transaction can put changed pages aside but no
    longer value; None where it makes no difference."""

    def get(self, key: bytes) -> bytes | memoryview | None: ...

    def items(self, start: bytes) -> Iterator[tuple[bytes, bytes | memoryview]]:
        """From a key on; a value is valid while its state is open."""

    def put(self, key: bytes, value: bytes, *, append: bool = False) -> None:
        """`last`: the key is known to come after all others."""

    def delete(self, key: bytes) -> None:
        """Of an absent key: nothing."""

    def delete_before(self, stop: bytes) -> None:
        """All keys below this one."""

    def size(self) -> int | None:
        """Bytes on disk, about; None where nobody knows."""


class TableRows(Protocol):
    """The rows of one table. Keys and rows are bytes here; an empty row is none."""

    def find(self, key: bytes) -> bytes | None: ...

    def find_rows(self, keys: pa.BinaryArray) -> pa.BinaryArray:
        """The rows of those keys that are there, in no order."""

    def find_in_order(self, keys: Sequence[bytes]) -> list[bytes]:
        """The row of each key; empty where there is none."""

    def scan(self, start: bytes | None, stop: bytes | None, limit: int | None) -> Iterator[pa.BinaryArray]:
        """The rows of a key range in key order, some at a time."""

    def apply(self, table: Table, keys: pa.BinaryArray, after: pa.BinaryArray) -> RowImages:
        """Make each key's row `after` (empty: delete it); the rows that really changed, by key. Keys are unique."""

    def rewrite(self, table: Table, keys: Sequence[bytes], before: Sequence[bytes], after: Sequence[bytes]) -> None:
        """The same for who knows what is there. All of these rows change."""

    def clear(self) -> None:
        """Delete all rows."""

    def count(self) -> int: ...

    def split_points(self, range_count: int) -> list[bytes]:
        """Keys that cut the table into `parts` ranges of similar size."""


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
        """While something is read from it: the map's failures are ours."""

    def close(self) -> None: ...


class Database(Protocol):
    """One open database in a directory. May be used from any thread."""

    scheme: str
    path: Path
    uuid: str
    format: int
    max_call_bytes: int
    """Bytes of a write call."""

    def read(self, tables: Sequence[int] = (), *, only_log: bool = False) -> AbstractContextManager[State]:
        """A state to read these tables, `meta` and `log`; `only_log`: values need not be copied out of it."""

    def write(self, tables: Sequence[int] = (), size: int = 0) -> AbstractContextManager[State]:
        """A state to write, which happens whole at the end of the block unless that raises. One at a time.

        `size`: bytes of the rows that are about to change, about.
        """

    def open_snapshot(self) -> MapSnapshot: ...

    def get(self, table_id: int, key: bytes) -> bytes | None:
        """One row as it is now: the short way."""

    def read_counter(self, name: bytes) -> int:
        """One number of `meta` as it is now; every read asks for some."""
        with self.read() as state:
            return int.from_bytes(state.meta.get(name) or b"", "big")

    def free_dropped_tables(self) -> None:
        """Free what dropped tables have left, when nobody else in this process has the database open."""

    def examine(self) -> Iterator[Finding]:
        """What the map beneath says of itself."""

    def used_bytes(self) -> int:
        """Bytes that the database has on disk."""

    def copy_to(self, directory: Path) -> None: ...

    def sync(self) -> None:
        """Flush everything to disk, whatever the durability."""

    def detach(self) -> None:
        """This store is done with it."""
