"""Reads of lazy views: the interface between a store and the component that computes a lazy view's rows.

The store has the files of the published state and the record that lists them; the view's operators, a higher layer,
compute the rows. So the store imports the lazy reader by name when the first lazy view is read. Every reader of a store
or of a snapshot can read a lazy view like any other view, and a process that reads no lazy view does not import the
reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import pyarrow as pa

from viewkeeper.errors import Defect, SnapshotGone, Unsupported
from viewkeeper.model.encoding.keys import encode_whole_key
from viewkeeper.model.schema import Table
from viewkeeper.store.contract.commits import ChangedKeys, StoreSnapshot
from viewkeeper.store.contract.tables import column_names

if TYPE_CHECKING:
    from viewkeeper.store.contract.store import Store

_LAZY_READER = "viewkeeper.read.lazy.cache", "lazy_view_cache"
_ATTEMPTS = 5
"""Attempts of a read: if a compaction removes the state during a read, it is repeated on the next batch's state."""

T = TypeVar("T")


class LazyReader(Protocol):
    """Computes rows of lazy views of one open store. Thread-safe."""

    def read_range(self, snapshot: StoreSnapshot, table: Table, start: bytes | None, stop: bytes | None) -> pa.Table:
        """Return the rows in a range of encoded keys as they would be stored, in key order."""

    def get_row(self, snapshot: StoreSnapshot, table: Table, key: bytes) -> dict[str, Any] | None:
        """Return one row by its encoded key, in the form of `Store.get`."""

    def find_rows(self, snapshot: StoreSnapshot, table: Table, keys: pa.Table) -> pa.Table:
        """Return the rows of these keys, in any order."""

    def estimate_rows(self, snapshot: StoreSnapshot, table: Table) -> int:
        """Estimate how many rows must be read to compute the whole view."""


@cache
def _lazy_reader_factory() -> Callable[[Store], LazyReader]:
    module, name = _LAZY_READER
    return cast(Callable[["Store"], LazyReader], getattr(import_module(module), name))


def with_lazy_views(store: Store, snapshot: StoreSnapshot) -> StoreSnapshot:
    """Return the snapshot, extended so that lazy views can be read in it, if the catalog has any."""
    return (
        _LazySnapshot(store, snapshot) if any(v.table.is_lazy for v in snapshot.catalog.nonstandard_views) else snapshot
    )


def get(store: Store, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
    return _read_with_retry(store, lambda snapshot: snapshot.get(table, key))


def find(store: Store, table: Table, keys: pa.Table, columns: Sequence[str] | None) -> pa.Table:
    return _read_with_retry(store, lambda snapshot: snapshot.find(table, keys, columns))


def scan(
    store: Store,
    table: Table,
    columns: Sequence[str] | None,
    start: bytes | None,
    stop: bytes | None,
    limit: int | None,
) -> Iterator[pa.RecordBatch]:
    options: dict[str, Any] = {"columns": columns, "start": start, "stop": stop, "limit": limit}
    return iter(_read_with_retry(store, lambda snapshot: list(snapshot.scan(table, **options))))


def count(store: Store, table: Table) -> int:
    return _read_with_retry(store, lambda snapshot: _lazy_reader_factory()(store).estimate_rows(snapshot, table))


def check_has_changes(table: Table) -> None:
    if table.is_lazy:
        raise Unsupported(
            f"{table.name} is lazy: it is worked out when it is read, so nobody knows when it changes.",
            hint="Subscribe to its base tables, or create it without the option, or with store = 'none'.",
        )


def check_has_past(table: Table) -> None:
    if table.is_lazy:
        raise Unsupported(f"{table.name} is lazy: it is worked out as the published batch has it, and as no other.")


def _read_with_retry(store: Store, read: Callable[[StoreSnapshot], T]) -> T:
    for attempt in range(_ATTEMPTS):
        snapshot = store.open_snapshot()
        try:
            return read(snapshot)
        except SnapshotGone:
            if attempt == _ATTEMPTS - 1:
                raise
        finally:
            snapshot.close()
    raise Defect("The last attempt returns or raises.")


class _LazySnapshot(StoreSnapshot):
    """A store's snapshot that computes lazy views from the batch of the snapshot."""

    def __init__(self, store: Store, snapshot: StoreSnapshot) -> None:
        self._store, self._snapshot, self._is_closed = store, snapshot, False
        self.catalog, self.batch, self.head = snapshot.catalog, snapshot.batch, snapshot.head

    def get(self, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        if not table.is_lazy:
            return self._snapshot.get(table, key)
        return self._lazy_reader().get_row(self._snapshot, table, encode_whole_key(table, key))

    def scan(
        self,
        table: Table,
        *,
        columns: Sequence[str] | None = None,
        start: bytes | None = None,
        stop: bytes | None = None,
        limit: int | None = None,
        at_cut: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        if not table.is_lazy:
            yield from self._snapshot.scan(table, columns=columns, start=start, stop=stop, limit=limit, at_cut=at_cut)
            return
        found = self._lazy_reader().read_range(self._snapshot, table, start, stop).select(column_names(table, columns))
        yield from (found if limit is None else found.slice(0, limit)).to_batches()

    def find(
        self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None, *, at_cut: bool = True
    ) -> pa.Table:
        if not table.is_lazy:
            return self._snapshot.find(table, keys, columns, at_cut=at_cut)
        return self._lazy_reader().find_rows(self._snapshot, table, keys).select(column_names(table, columns))

    def changed_since_cut(self, table: Table) -> ChangedKeys | None:
        return None if table.is_lazy else self._snapshot.changed_since_cut(table)

    def row_images(self, table: Table, after: int) -> list[tuple[bytes, bytes]] | None:
        return self._snapshot.row_images(table, after)

    def size(self, table: Table, start: bytes | None, stop: bytes | None, limit: int) -> int:
        if not table.is_lazy:
            return self._snapshot.size(table, start, stop, limit)
        return min(limit, int(self._lazy_reader().read_range(self._snapshot, table, start, stop).num_rows))

    def close(self) -> None:
        self._is_closed = True
        self._snapshot.close()

    def _lazy_reader(self) -> LazyReader:
        if self._is_closed:
            raise SnapshotGone("The snapshot is closed.", hint="Take a new one.")
        return _lazy_reader_factory()(self._store)
