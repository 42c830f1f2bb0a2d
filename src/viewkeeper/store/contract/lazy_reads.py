"""Lazy views: what a store says to who works them out when they are read.

A store has the files of the published state and a record that lists them; what a view's rows are is worked out by its
operators, which lie further down the data path. So a store that is asked for rows of such a view looks for who knows
them by name, as it does for views that writes keep (`keeping`): every reader of a store, and of a state that it has
pinned, can ask for a lazy view as for any other, and who has none loads nothing.
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
from viewkeeper.store.contract.commits import Changed, Pinned
from viewkeeper.store.contract.tables import column_names

if TYPE_CHECKING:
    from viewkeeper.store.contract.store import Store

_ANSWERS = "viewkeeper.read.lazy.cache", "answers_of"
_ATTEMPTS = 5
"""State that was merged while it was read is read again, as the next batch lists it."""

T = TypeVar("T")


class Answers(Protocol):
    """Of one open store. May be used by any thread."""

    def between(self, pinned: Pinned, table: Table, start: bytes | None, stop: bytes | None) -> pa.Table:
        """Rows of a range of encoded keys as they would be stored, in key order."""

    def row(self, pinned: Pinned, table: Table, key: bytes) -> dict[str, Any] | None:
        """One row by its encoded key, as `Store.get` gives it."""

    def of(self, pinned: Pinned, table: Table, keys: pa.Table) -> pa.Table:
        """The rows of these keys, in any order."""

    def count(self, pinned: Pinned, table: Table) -> int:
        """About how many rows have to be looked at for all of it."""


@cache
def _maker() -> Callable[[Store], Answers]:
    module, name = _ANSWERS
    return cast(Callable[["Store"], Answers], getattr(import_module(module), name))


def answered(store: Store, pinned: Pinned) -> Pinned:
    """A pinned state in which lazy views can be read as well, if there are any."""
    return _Answered(store, pinned) if any(v.table.is_lazy for v in pinned.catalog.special) else pinned


def get(store: Store, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
    return _tried(store, lambda pinned: pinned.get(table, key))


def find(store: Store, table: Table, keys: pa.Table, columns: Sequence[str] | None) -> pa.Table:
    return _tried(store, lambda pinned: pinned.find(table, keys, columns))


def scan(
    store: Store,
    table: Table,
    columns: Sequence[str] | None,
    start: bytes | None,
    stop: bytes | None,
    limit: int | None,
) -> Iterator[pa.RecordBatch]:
    how: dict[str, Any] = {"columns": columns, "start": start, "stop": stop, "limit": limit}
    return iter(_tried(store, lambda pinned: list(pinned.scan(table, **how))))


def count(store: Store, table: Table) -> int:
    return _tried(store, lambda pinned: _maker()(store).count(pinned, table))


def refuse_changes(table: Table) -> None:
    if table.is_lazy:
        raise Unsupported(
            f"{table.name} is lazy: it is worked out when it is read, so nobody knows when it changes.",
            hint="Subscribe to its base tables, or create it without the option, or with store = 'none'.",
        )


def refuse_past(table: Table) -> None:
    if table.is_lazy:
        raise Unsupported(f"{table.name} is lazy: it is worked out as the published batch has it, and as no other.")


def _tried(store: Store, read: Callable[[Pinned], T]) -> T:
    for attempt in range(_ATTEMPTS):
        pinned = store.pin()
        try:
            return read(pinned)
        except SnapshotGone:
            if attempt == _ATTEMPTS - 1:
                raise
        finally:
            pinned.close()
    raise Defect("The last attempt returns or raises.")


class _Answered(Pinned):
    """A pinned state of a store, and lazy views worked out from the batch that it has."""

    def __init__(self, store: Store, pinned: Pinned) -> None:
        self._store, self._pinned, self._closed = store, pinned, False
        self.catalog, self.batch, self.head = pinned.catalog, pinned.batch, pinned.head

    def get(self, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        if not table.is_lazy:
            return self._pinned.get(table, key)
        return self._answers().row(self._pinned, table, encode_whole_key(table, key))

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
            yield from self._pinned.scan(table, columns=columns, start=start, stop=stop, limit=limit, at_cut=at_cut)
            return
        found = self._answers().between(self._pinned, table, start, stop).select(column_names(table, columns))
        yield from (found if limit is None else found.slice(0, limit)).to_batches()

    def find(
        self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None, *, at_cut: bool = True
    ) -> pa.Table:
        if not table.is_lazy:
            return self._pinned.find(table, keys, columns, at_cut=at_cut)
        return self._answers().of(self._pinned, table, keys).select(column_names(table, columns))

    def later(self, table: Table) -> Changed | None:
        return None if table.is_lazy else self._pinned.later(table)

    def images(self, table: Table, after: int) -> list[tuple[bytes, bytes]] | None:
        return self._pinned.images(table, after)

    def size(self, table: Table, start: bytes | None, stop: bytes | None, most: int) -> int:
        if not table.is_lazy:
            return self._pinned.size(table, start, stop, most)
        return min(most, int(self._answers().between(self._pinned, table, start, stop).num_rows))

    def close(self) -> None:
        self._closed = True
        self._pinned.close()

    def _answers(self) -> Answers:
        if self._closed:
            raise SnapshotGone("The snapshot is closed.", hint="Take a new one.")
        return _maker()(self._store)
