"""Snapshots: many reads of tables and views, all at one batch.

Views show the batch that was published when the snapshot was opened. Base tables show their rows at that batch's cut,
even if they were written since. The store keeps the state while the snapshot is open, which costs space, so a snapshot
ends by itself after `max_age` seconds; reads then raise SnapshotGone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import pyarrow as pa

from viewkeeper.errors import BadValue, SnapshotGone
from viewkeeper.model.catalog.catalog import View
from viewkeeper.model.intake import arguments
from viewkeeper.model.schema import Table
from viewkeeper.model.token import Token
from viewkeeper.read.access.path import RowRequest
from viewkeeper.read.access.scan import stream
from viewkeeper.read.rows import check_key, python_rows, scan_range, to_visible_rows
from viewkeeper.read.state import ReadState, SnapshotState
from viewkeeper.read.suspension import mark_suspended_rows, suspension_error
from viewkeeper.resources.fork_guard import owned
from viewkeeper.store.contract.store import Store, StoreSnapshot

MAX_AGE = 60.0
"""Seconds after which a snapshot ends by itself."""


class Snapshot:
    """One state of the database. Use it as a context manager, or call `close`.

    `mixed`: also read suspended views, which show an older batch than the others, and views with a cut of their own.
    `build_request` checks the arguments of `scan`.
    """

    def __init__(
        self, store: Store, build_request: Callable[..., RowRequest], *, max_age: float = MAX_AGE, mixed: bool = False
    ) -> None:
        max_age = arguments.check_seconds(max_age, "A snapshot's max_age", positive=True)
        self._store = store
        self._build_request = build_request
        self._mixed = mixed
        self._max_age = max_age
        self._expired = False
        self._snapshot: StoreSnapshot = store.open_snapshot()
        self.epoch: int = self._snapshot.batch.number
        self.token = Token(store.uuid, self._snapshot.batch.cut)
        self._timer = threading.Timer(max_age, self._expire)
        self._timer.daemon = True
        self._timer.start()
        owned(self, f"The snapshot of batch {self.epoch} was taken")

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the state. Closing twice is fine."""
        self._timer.cancel()
        self._snapshot.close()

    def span(self, name: str) -> tuple[int, int]:
        """The positions that a table or view shows: the cut twice, or for strategies SC and ISC the first and the
        last."""
        found = self._snapshot.catalog.find(name)
        if isinstance(found, View) and found.suspended is not None:
            return found.suspended.cut, found.suspended.cut
        if isinstance(found, View) and found.own_cut is not None:
            return found.own_cut.low, found.own_cut.cut
        return self.token.position, self.token.position

    def get(self, name: str, key: Any) -> dict[str, Any] | None:
        """The row of a table or view with this key; None if there is none."""
        table = self._table(name)
        return self._snapshot.get(table, check_key(table, key))

    def scan(
        self,
        name: str,
        prefix: Any = None,
        start: Any = None,
        stop: Any = None,
        limit: int | None = None,
        *,
        where: str | Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        order_by: Sequence[str] | str | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Rows in key order: by a key prefix, or from `start` (included) to `stop` (excluded).

        `where`, `columns` and `order_by` as in `Database.scan`.
        """
        table = self._table(name)
        bounds = scan_range(table, prefix, start, stop, limit)
        if where is None and columns is None and order_by is None:
            return self._scan_range(table, *bounds, limit)
        return self._scan_request(self._build_request(table, where, columns, order_by, limit, bounds))

    def read(self, name: str, *, keys: tuple[bytes | None, bytes | None] = (None, None)) -> pa.Table:
        """All rows of a table or view in key order, or those of a range of encoded keys."""
        table = self._table(name, stored=False)
        if not table.has_rows:
            from viewkeeper.read.lazy.evaluate import regenerate_view

            return regenerate_view(self._store, self._snapshot, table)
        try:
            rows = pa.Table.from_batches(list(self._snapshot.scan(table, start=keys[0], stop=keys[1])), table.arrow)
            return mark_suspended_rows(to_visible_rows(table, rows), [self._snapshot.catalog.find(name)])
        except SnapshotGone as gone:
            raise self._gone_error(gone) from None

    def source(self, names: Sequence[str]) -> ReadState:
        """This state for reads by any access path. Raises if one of these tables and views cannot be read in it."""
        for name in names:
            self._table(name)
        return SnapshotState(self._store, self._snapshot, at_cut=True)

    def _scan_request(self, request: RowRequest) -> Iterator[dict[str, Any]]:
        try:
            for piece in stream(self.source([]), request):
                yield from python_rows(request.table, piece)
        except SnapshotGone as gone:
            raise self._gone_error(gone) from None

    def _scan_range(
        self, table: Table, low: bytes | None, high: bytes | None, limit: int | None
    ) -> Iterator[dict[str, Any]]:
        remaining = limit
        try:
            for batch in self._snapshot.scan(table, start=low, stop=high, limit=limit):
                rows = to_visible_rows(table, pa.Table.from_batches([batch]))
                rows = rows if remaining is None else rows.slice(0, remaining)
                remaining = None if remaining is None else remaining - rows.num_rows
                yield from rows.to_pylist()
        except SnapshotGone as gone:
            raise self._gone_error(gone) from None

    def _table(self, name: str, stored: bool = True) -> Table:
        if self._expired:
            raise self._gone_error()
        found = self._snapshot.catalog.find(name)
        table = self._snapshot.catalog.table(name)
        if stored and not table.has_rows:
            raise BadValue(f"{name} is not stored, so it has no rows by key.", hint=f"Use read({name!r}).")
        if isinstance(found, View) and found.suspended is not None and not self._mixed:
            raise suspension_error(name, found.suspended, "A snapshot with mixed=True reads its old rows.")
        if isinstance(found, View) and found.own_cut is not None and not self._mixed:
            own_cut = found.own_cut
            if own_cut.low < own_cut.cut or own_cut.cut != self.token.position:
                span = (
                    f"position {own_cut.cut}"
                    if own_cut.low == own_cut.cut
                    else f"positions {own_cut.low} to {own_cut.cut}"
                )
                raise BadValue(
                    f"{name} has a cut of its own: it shows {span}, the snapshot position {self.token.position}.",
                    hint="Read it without a snapshot, or take snapshot(mixed=True).",
                )
        return table

    def _expire(self) -> None:
        self._expired = True
        self._snapshot.close()

    def _gone_error(self, cause: SnapshotGone | None = None) -> SnapshotGone:
        if self._expired:
            return SnapshotGone(
                f"The snapshot of batch {self.epoch} ended after {self._max_age:g} s.",
                hint="Take a new one, with a longer max_age= if the reads take longer.",
            )
        return cause or SnapshotGone("The snapshot is closed.", hint="Take a new one.")
