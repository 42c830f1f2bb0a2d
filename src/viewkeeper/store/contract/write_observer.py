"""Views that are kept in the transaction of a write: what the store and who keeps them say to each other.

The store knows which rows a write call changes, and writes; what becomes of the views is worked out by their
operators, which lie further down the data path. So a store that has such a view to keep looks for who keeps it by name,
as it is with the stores themselves (`registry`): no writer can forget it, and who has no such view loads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Protocol, cast

import pyarrow as pa

from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.schema import Table
from viewkeeper.store.contract.commits import ViewChange

_OBSERVER = "viewkeeper.commit.write_observer", "SynchronousViews"


class WriteReads(Protocol):
    """What a write call sees of the store: as it was when the call began."""

    def find(self, table: Table, keys: pa.BinaryArray) -> pa.Table:
        """The rows of these encoded keys, each once, in any order."""

    def range(self, table: Table, start: bytes | None, stop: bytes | None, limit: int | None) -> pa.Table:
        """The rows of a key range, in key order."""


class RowReads(Protocol):
    """The same, row by row."""

    carried_state: MutableMapping[int, Any]
    """By view, what was left here in the write call before; nothing, if anybody has written since."""

    def get_row(self, table: Table, key: bytes, columns: Mapping[str, Any]) -> bytes | None:
        """The row of an encoded key, whose columns are `named`."""

    def get_rows(self, table: Table, keys: Sequence[bytes]) -> list[bytes]:
        """The row of each encoded key; empty where there is none."""

    def first_rows(self, table: Table, start: bytes | None, stop: bytes | None, limit: int) -> list[bytes]:
        """The first rows of a key range."""


class WriteObserver(Protocol):
    """May be used by any thread; a write waits for the one before it anyway."""

    def columns(self, catalog: Catalog, view: View, table: int) -> Sequence[str]:
        """The columns of a base table that a view has to know, by their names inside."""

    def apply_rows(
        self, catalog: Catalog, view: View, table: int, images: Sequence[tuple[bytes, bytes]], reads: RowReads
    ) -> list[tuple[Table, bytes, bytes]] | None:
        """What few changed rows of a base table, as they were and are (empty: none), do to a view and to its state:
        rows to put, by table and encoded key, empty ones to delete. None if only `changes` knows."""

    def apply_row_sums(
        self, catalog: Catalog, view: View, table: int, before: Sequence[bytes], after: Sequence[bytes], reads: RowReads
    ) -> list[tuple[Table, list[bytes], list[bytes], list[bytes]]] | None:
        """The same of a view of sums, with what the changed rows of its tables were; None if only the others know."""

    def apply_vector_sums(
        self, catalog: Catalog, view: View, table: int, delta: Callable[[Sequence[str]], pa.Table], reads: WriteReads
    ) -> list[tuple[Table, pa.BinaryArray, pa.BinaryArray]] | None:
        """`changes` of a view of sums without a statement, encoded: keys and rows, an empty row goes; None if only that
        knows. `delta` gives columns of the rows that went and that came, with weights, not consolidated."""

    def apply_deltas(
        self, catalog: Catalog, view: View, deltas: Mapping[int, pa.Table], reads: WriteReads
    ) -> list[ViewChange]:
        """What the consolidated changes of base tables, by id, do to a view's rows and to its state. An error is raised
        for a change that the view cannot follow."""


@cache
def write_observer() -> WriteObserver:
    """Of this process."""
    module, name = _OBSERVER
    return cast(WriteObserver, getattr(import_module(module), name)())
