"""Write observer: the interface between a store and the code that maintains synchronous views in a write's transaction.

The store knows which rows a write call changes, and writes them; the views' operators, a higher layer, compute what
becomes of the views. So a store whose catalog lists a synchronous view imports the observer by name (as `registry` does
with stores): no writer can bypass it, and a process without synchronous views does not import it.
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
    """What a write call reads of the store: the state at the beginning of the call."""

    def find(self, table: Table, keys: pa.BinaryArray) -> pa.Table:
        """Return the rows of these encoded keys, each once, in any order."""

    def range(self, table: Table, start: bytes | None, stop: bytes | None, limit: int | None) -> pa.Table:
        """Return the rows of a key range, in key order."""


class RowReads(Protocol):
    """The same state, read row by row."""

    carried_state: MutableMapping[int, Any]
    """State that the observer kept in the previous write call, by view; empty if any other write has happened since."""

    def get_row(self, table: Table, key: bytes, columns: Mapping[str, Any]) -> bytes | None:
        """Return the row of an encoded key. `columns` has the key's columns by name."""

    def get_rows(self, table: Table, keys: Sequence[bytes]) -> list[bytes]:
        """Return the row of each encoded key; empty if there is none."""

    def first_rows(self, table: Table, start: bytes | None, stop: bytes | None, limit: int) -> list[bytes]:
        """Return the first rows of a key range."""


class WriteObserver(Protocol):
    """Maintains synchronous views. Thread-safe, although writes are serialized anyway."""

    def columns(self, catalog: Catalog, view: View, table: int) -> Sequence[str]:
        """Return the columns of a base table that a view reads, by their internal names."""

    def apply_rows(
        self, catalog: Catalog, view: View, table: int, images: Sequence[tuple[bytes, bytes]], reads: RowReads
    ) -> list[tuple[Table, bytes, bytes]] | None:
        """Compute from row images, row at a time, how a base table's changes affect a view and its state.

        Return the rows to put, by table and encoded key; an empty row is a delete. Return None if the change needs
        `apply_deltas`. `images` has (before, after) of each changed row; an empty image means no row.
        """

    def apply_row_sums(
        self, catalog: Catalog, view: View, table: int, before: Sequence[bytes], after: Sequence[bytes], reads: RowReads
    ) -> list[tuple[Table, list[bytes], list[bytes], list[bytes]]] | None:
        """Compute the same for a view of sums. Return None if the change needs another method."""

    def apply_vector_sums(
        self, catalog: Catalog, view: View, table: int, delta: Callable[[Sequence[str]], pa.Table], reads: WriteReads
    ) -> list[tuple[Table, pa.BinaryArray, pa.BinaryArray]] | None:
        """Compute the changes of a view of sums without a statement, encoded as keys and rows; an empty row is a
        delete.

        Return None if the change needs `apply_deltas`. `delta` returns columns of the deleted and inserted rows, with
        weights, not consolidated.
        """

    def apply_deltas(
        self, catalog: Catalog, view: View, deltas: Mapping[int, pa.Table], reads: WriteReads
    ) -> list[ViewChange]:
        """Compute how the consolidated changes of base tables, by id, affect a view's rows and its state. Raise an
        error for a change that the view cannot follow."""


@cache
def write_observer() -> WriteObserver:
    """Return the write observer of this process."""
    module, name = _OBSERVER
    return cast(WriteObserver, getattr(import_module(module), name)())
