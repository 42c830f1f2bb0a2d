"""HBaseStore: the store contract over HBase's Thrift2 gateway.

What HBase can and cannot do shapes it: a write call is atomic for each row, not as a whole; positions are times of
HBase's clock, in milliseconds, so a call takes its position after its rows have theirs; nothing is known of a row
before it is written, so a put counts as a change.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import (
    BadValue,
    MaintainerBusy,
    ReadOnly,
    SnapshotGone,
    StoreError,
    UnknownName,
    Unsupported,
)
from viewkeeper.model.catalog import Catalog
from viewkeeper.model.delta import weighted
from viewkeeper.model.schema import Table
from viewkeeper.store.arrow import column_names, typed
from viewkeeper.store.base import Batch, Capabilities, Changed, Pending, Store, StreamChange, ViewChange, Written
from viewkeeper.store.hbase import commit, lease, sizes, windows
from viewkeeper.store.hbase.batches import TimeRange
from viewkeeper.store.hbase.client import Client
from viewkeeper.store.hbase.failures import NoSuchTable, OutcomeUnknown
from viewkeeper.store.hbase.known import CACHE, Known, Shown
from viewkeeper.store.hbase.layout import Layout, Rows, layout_of, read_cells
from viewkeeper.store.hbase.records import Cells, Records, State, catalog_cell
from viewkeeper.store.hbase.redo import Redo
from viewkeeper.store.hbase.scanning import Scan
from viewkeeper.store.hbase.url import parse, with_options
from viewkeeper.store.hbase.windows import OVERLAP, Sight

_TICK = 0.0015
"""Seconds after which HBase's clock has moved on by a millisecond."""

_COUNTED = 20.0
"""Seconds for which a large table's count is believed."""

_DEFINING = 10.0
"""Seconds that a change of the catalog waits for a batch that changes it too."""


class HBaseStore(Store):
    """One open database in a namespace. Its methods may be called from any thread."""

    look_pause = 0.1
    capabilities = Capabilities(
        change_feed=True, atomic_batch=False, snapshot_scan=False, before_images=False, cell_versions=True
    )

    def __init__(self, url: str, mode: str = "w", **options: Any) -> None:
        place = parse(url, options)
        if mode not in ("w", "r"):
            raise BadValue(f"There is no mode {mode!r}.", hint="Modes: 'w' and 'r'.")
        self.url = with_options(url, options)
        self._mode, self._namespace = mode, place.namespace
        self._client = Client(place.gateway, retry=place.retry)
        self._closed = False
        try:
            self._client.greet()
            self._records = Records(self._client, place.namespace)
            state = self._records.open(mode)
        except BaseException:
            self._client.close()
            raise
        self.uuid = state.uuid
        self.state_path = place.state or str(_state_home() / self.uuid)
        self._redos = Path(self.state_path) / "redo"
        self._known = Known(self._records, state, CACHE if place.cache is None else place.cache)
        self._overlap = int(1000 * (OVERLAP if place.overlap is None else place.overlap))
        self._lease_span = lease.SPAN if place.lease is None else place.lease
        self._owner = f"process {os.getpid()} on {socket.gethostname()} ({secrets.token_hex(4)})"
        self._lease: lease.RowLease | None = None
        self._committing = threading.Lock()
        self._unfinished = False
        self._head = 0
        self._layouts: dict[int, tuple[Table, Layout]] = {}
        self._sizes: dict[int, tuple[float, sizes.Size]] = {}
        self._sights: dict[int, tuple[int, Sight]] = {}
        self._digests: dict[tuple[int, int], str] = {}

    # -- catalog ------------------------------------------------------------------------------------------------------

    def catalog(self) -> Catalog:
        self._live()
        return self._known.catalog()

    def change_catalog(self, change: Callable[[Catalog], Catalog]) -> Catalog:
        self._writable()
        until = time.monotonic() + _DEFINING
        made: list[Catalog] = []

        def moved(state: State) -> tuple[State, Cells] | None:
            made.clear()
            current = self._records.catalog() if state.catalog else Catalog()
            changed = change(current)
            self._refuse_unstored(changed)
            made.append(changed)
            if changed == current:
                return None
            if state.claim is not None and state.claim.defines:
                made.clear()
                return None
            return replace(state, catalog=changed.version), catalog_cell(changed)

        while True:
            before = self._known.catalog(now=True)
            state = self._records.move(moved)
            self._known.learn(state)
            if made:
                break
            if time.monotonic() > until:
                raise MaintainerBusy(
                    f"A view of {self._namespace} is being published by {state.claim and state.claim.owner}.",
                    hint="Try again when it is done.",
                )
            time.sleep(0.05)
        known = {t.id for t in before.tables}
        for table in (t for t in made[0].tables if t.id not in known):
            self._ensure(self._layout(table))
        return self._known.catalog(now=True)

    def drop_rows(self, table: Table) -> None:
        self._writable()
        layout = self._layout(table)
        if layout.owned:
            with suppress(NoSuchTable):
                self._client.tables.drop(layout.name)
        self._layouts.pop(table.id, None)
        self._sizes.pop(table.id, None)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def write(self, table: Table, puts: pa.Table, deletes: pa.Table) -> Written:
        self._writable()
        layout = self._layout(table)
        rows = typed(table, puts, table.arrow.names)
        gone = typed(table, deletes, [c.name for c in table.key_columns])
        keys, cells = layout.encode(rows)
        dead = layout.row_keys(gone)
        _refuse_twice(table, keys, dead)
        if not len(keys) and not len(dead):
            return Written(self.head(), 0, atomic=False)
        self._with_table(layout, lambda: self._write(layout, keys, cells, dead))
        self._sizes.pop(table.id, None)
        return Written(self._after_write(), len(keys) + len(dead), atomic=False)

    def _write(self, layout: Layout, keys: pa.Array, cells: dict[bytes, pa.Array], dead: pa.Array) -> None:
        # Done again after a lost answer: the same rows with a later time are the same rows.
        if len(keys):
            self._client.put_many(layout.name, keys, cells, again=True)
        if len(dead):
            self._client.delete_many(layout.name, dead, again=True)

    def update(self, table: Table, key: pa.Table, columns: pa.Table) -> Written:
        self._writable()
        names = column_names(table, columns.column_names)
        keyed = {column.name for column in table.key_columns}
        if fixed := [name for name in names if name in keyed]:
            raise BadValue(
                f"Column {fixed[0]} is in the key of {table.name} and cannot be updated.",
                hint="Delete the row and put a new one.",
            )
        layout = self._layout(table)
        new = typed(table, columns.rename_columns(names), names)
        cells = {name: values[0].as_py() for name, values in layout.encode_columns(new).items()}
        row_key = layout.row_keys(typed(table, key, [c.name for c in table.key_columns]))[0].as_py()
        puts = {cell: value for cell, value in cells.items() if value is not None}
        nulls = [cell for cell, value in cells.items() if value is None]
        while True:
            there = self._absent_is_none(layout, lambda: self._client.get(layout.name, row_key, layout.families))
            if there is None:
                raise UnknownName(
                    f"{table.name} has no row with key {key.to_pylist()[0]}.", hint="Put the whole row instead."
                )
            since = there[layout.mark].time if layout.mark is not None and layout.mark in there else -1
            now = {column: cell.value for column, cell in there.items() if cell.time >= since}
            if all(now.get(cell) == value for cell, value in cells.items()):
                return Written(self.head(), 0, atomic=False)
            # The row is still there if one of its cells still has its value: checked in the same step.
            witness = next(iter(sorted(now)))
            with suppress(OutcomeUnknown):  # the next look tells
                if self._client.change_if(layout.name, row_key, witness, now[witness], puts, nulls):
                    return Written(self._after_write(), 1, atomic=False)

    def get(self, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        self._live()
        layout = self._layout(table)
        keys = pa.array([layout.keys.encode_one(key)], pa.binary())
        found = self._get(layout, keys, table.arrow.names)
        if not found.rows.num_rows:
            return None
        outside = pa.schema([*table.outside, *table.arrow.remove_metadata()][: len(table.outside)])
        rows = found.rows
        visible = rows.select(outside.names).cast(outside)
        row: dict[str, Any] = visible.to_pylist()[0]
        return row | {name: rows[name][0].as_py() for name in rows.column_names if name not in row}

    def get_many(self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        self._live()
        layout = self._layout(table)
        wanted = column_names(table, columns)
        names = layout.row_keys(typed(table, keys, [c.name for c in table.key_columns]))
        return self._get(layout, names, wanted).rows

    def _get(self, layout: Layout, keys: pa.Array, columns: Sequence[str]) -> Rows:
        """Rows by key: a view's at the published batch, others as they are."""
        while True:
            shown = self._known.shown() if layout.table.is_view else None
            if shown is not None and not shown.number:
                return _no_rows(layout, columns)
            found = self._rows_of(layout, keys, columns, None if shown is None else shown.span)
            if shown is not None:
                try:
                    shown.check()
                except SnapshotGone:
                    continue
            return found

    def _rows_of(self, layout: Layout, keys: pa.Array, columns: Sequence[str], span: TimeRange | None) -> Rows:
        if not len(keys):
            return _no_rows(layout, columns)

        def read() -> list[Rows]:
            chunks = self._client.get_many(layout.name, keys, layout.asked(columns), span=span)
            return [read_cells(layout, cells, columns) for cells in chunks]

        parts: list[Rows] | None = self._absent_is_none(layout, read)
        if parts is None:
            return _no_rows(layout, columns)
        rejects = tuple(reject for part in parts for reject in part.rejects)
        if len(parts) == 1:
            return parts[0]
        rows = pa.concat_tables([part.rows for part in parts]).combine_chunks()
        return Rows(rows, pa.concat_arrays([part.keys for part in parts]), rejects)

    def scan(
        self,
        table: Table,
        columns: Sequence[str] | None = None,
        *,
        start: bytes | None = None,
        stop: bytes | None = None,
        limit: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        self._live()
        return self._scan(self._layout(table), column_names(table, columns), start, stop, limit)

    def _scan(
        self, layout: Layout, columns: list[str], start: bytes | None, stop: bytes | None, limit: int | None
    ) -> Iterator[pa.RecordBatch]:
        while True:
            shown = self._known.shown() if layout.table.is_view else None
            if shown is not None and not shown.number:
                return
            handed = False
            try:
                for batch in self._scan_span(layout, columns, shown.span if shown else None, start, stop, limit, shown):
                    handed = True
                    yield batch
                return
            except SnapshotGone:
                if handed:
                    raise

    def _scan_span(
        self,
        layout: Layout,
        columns: list[str],
        span: TimeRange | None,
        start: bytes | None,
        stop: bytes | None,
        limit: int | None = None,
        shown: Shown | None = None,
    ) -> Iterator[pa.RecordBatch]:
        if stop == b"":
            return
        large = limit is None and start is None and stop is None
        wanted = Scan(
            start=start or b"",
            stop=stop or b"",
            columns=layout.asked(columns),
            span=span,
            limit=limit,
            cache_blocks=False if large else None,
        )
        try:
            for cells in self._client.scan(layout.name, wanted):
                found = read_cells(layout, cells, columns)
                if shown is not None:
                    shown.check()
                if found.rows.num_rows:
                    yield _batch(found.rows)
        except NoSuchTable:
            if not layout.owned:
                raise

    def scan_at(
        self, table: Table, columns: Sequence[str], cut: int, *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[pa.RecordBatch]:
        self._live()
        layout = self._layout(table)
        wanted = column_names(table, columns)
        self._note_sight(layout, cut)
        for batch in self._scan_span(layout, wanted, (0, cut + 1), start, stop):
            yield from weighted(pa.Table.from_batches([batch]), 1).to_batches()

    def split_points(self, table: Table, parts: int) -> list[bytes]:
        self._live()
        return sizes.split_points(self._size(table), parts)

    def count(self, table: Table) -> int:
        self._live()
        return self._size(table).rows

    def _size(self, table: Table) -> sizes.Size:
        known = self._sizes.get(table.id)
        if known is not None and time.monotonic() - known[0] < _COUNTED and known[1].rows > 10_000:
            return known[1]
        layout = self._layout(table)
        shown = self._known.shown() if table.is_view else None
        if shown is not None and not shown.number:
            return sizes.Size(0, ())
        found = sizes.measure(self._client, layout, shown.span if shown else None)
        self._sizes[table.id] = (time.monotonic(), found)
        return found

    # -- feed ---------------------------------------------------------------------------------------------------------

    def head(self) -> int:
        """HBase's clock: every write call that has ended has a position up to it."""
        self._live()
        self._head = max(self._head, self._records.clock())
        return self._head

    def changes(self, table: Table, columns: Sequence[str], after: int, upto: int) -> pa.Table:
        """The difference of two states, while HBase has the versions of both; what came late is not in it."""
        self._live()
        _refuse_view(table)
        layout = self._layout(table)
        wanted = column_names(table, columns)
        keys = self._seen(layout, after, upto, after)[1].keys
        before = self._rows_of(layout, keys, wanted, (0, after + 1)).rows
        now = self._rows_of(layout, keys, wanted, (0, upto + 1)).rows
        return pa.concat_tables([weighted(before, -1), weighted(now, 1)]).combine_chunks()

    def changed(self, table: Table, columns: Sequence[str], after: int, upto: int) -> Changed:
        self._live()
        _refuse_view(table)
        layout = self._layout(table)
        wanted = column_names(table, columns)
        low = min(after, upto) - self._overlap
        early, late = self._seen(layout, low, upto, after)
        cut, known = self._sights.get(table.id, (-1, windows.NOTHING))
        fresh = early.without(known) if cut == after else early
        keys = windows.join(fresh, late)
        self._note_sight(layout, upto)
        rows = self._rows_of(layout, keys, wanted, (0, upto + 1))
        key_columns, bad = layout.keys.decode(keys)
        return Changed(key_columns if not bad.any() else key_columns.filter(pa.array(~bad)), rows.rows)

    def pending(self, after: int, tables: Sequence[int]) -> Pending:
        self._live()
        batch, seen = self._known.batch()
        digests = seen if batch is not None and batch.cut == after else {}
        now = self.head()
        rows = calls = 0
        first: int | None = None
        last: int | None = None
        for table in self._tables(tables):
            digest = digests.get(str(table.id))
            low = after if digest is None else after - self._overlap
            early, late = self._seen(self._layout(table), low, now, after)
            if digest is not None and early.digest() != digest:
                rows, calls = rows + 1, calls + 1
                first = after if first is None else min(first, after)
                last = max(last or 0, after)
            if len(late):
                rows += len(late)
                calls += len(np.unique(late.newest))
                oldest, newest = int(late.oldest.min()), int(late.newest.max())
                first = oldest if first is None else min(first, oldest)
                last = max(last or 0, newest)
        return Pending(calls, rows, None if first is None else first / 1000, first, last)

    def cut_after(self, after: int, tables: Sequence[int], rows: int) -> int:
        now = self.head()
        found = [self._seen(self._layout(t), after, now, after)[1].oldest for t in self._tables(tables)]
        times = np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)
        return now if len(times) <= rows else int(times[max(rows, 1) - 1])

    def truncate(self, upto: int) -> None:
        """HBase forgets old versions by itself."""
        self._writable()

    def _seen(self, layout: Layout, after: int, upto: int, split: int) -> tuple[Sight, Sight]:
        found = self._absent_is_none(layout, lambda: windows.look(self._client, layout, after, upto, split))
        return found or (windows.NOTHING, windows.NOTHING)

    def _note_sight(self, layout: Layout, cut: int) -> None:
        """Remember which cells of the last seconds before a cut can be seen now, before rows are read."""
        sight = self._seen(layout, cut - self._overlap, cut, cut)[0]
        self._sights[layout.table.id] = (cut, sight)
        self._digests[layout.table.id, cut] = sight.digest()

    def _tables(self, ids: Sequence[int]) -> list[Table]:
        wanted = set(ids)
        return [t for t in self._known.catalog().tables if t.id in wanted]

    # -- batches ------------------------------------------------------------------------------------------------------

    def published(self) -> Batch | None:
        self._live()
        if self._unfinished and self._committing.acquire(blocking=False):
            try:
                self._finish_own()
            finally:
                self._committing.release()
        return self._known.batch()[0]

    def commit(
        self,
        batch: Batch,
        changes: Sequence[ViewChange | StreamChange],
        change_catalog: Callable[[Catalog], Catalog] | None = None,
    ) -> None:
        self._writable()
        with self._committing:
            self._finish_own()
            self._commit(batch, changes, change_catalog)

    def _commit(
        self,
        batch: Batch,
        changes: Sequence[ViewChange | StreamChange],
        change_catalog: Callable[[Catalog], Catalog] | None,
    ) -> None:
        if self._lease is not None and self._lease.lost:
            raise MaintainerBusy(
                f"The lease on {self._namespace} ran out and another process has taken it.", hint="Open it again."
            )
        commit.check_turn(self._records, self._known.state(now=True), batch.number)
        stored = [change for change in changes if isinstance(change, ViewChange)]
        tables = tuple(commit.table_redo(self._client, self._layout(c.table), c) for c in stored)
        before, noted = self._known.batch()
        seen = dict(commit.carried(noted, before.cut, batch.cut)) if before is not None else {}
        seen |= {str(table): digest for (table, cut), digest in self._digests.items() if cut == batch.cut}
        claimed = None
        while claimed is None:
            current = self._known.catalog(now=True)
            changed = None if change_catalog is None else change_catalog(current)
            if changed is not None:
                self._refuse_unstored(changed)
            catalog = None if changed is None or changed == current else changed.to_json()
            redo = Redo(batch, catalog, seen, tables)
            claimed = commit.claim(self._records, self._redos, redo, self._owner, current.version)
        self._unfinished = True
        commit.finish(self._records, self._redos, claimed)
        self._unfinished = False
        self._known.learn(None)
        self._digests = {key: digest for key, digest in self._digests.items() if key[1] >= batch.cut}
        for change in stored:
            self._sizes.pop(change.table.id, None)

    def _finish_own(self) -> None:
        """A batch that this process claimed and could not finish: it has been decided, so it is finished first."""
        state = self._known.state(now=True)
        if state.claim is not None and state.claim.owner == self._owner:
            commit.finish(self._records, self._redos, state.claim)
            self._known.learn(None)
        self._unfinished = False

    # -- life ---------------------------------------------------------------------------------------------------------

    def acquire_lease(self) -> lease.RowLease:
        self._writable()
        held = lease.acquire(self._records, self._lease_span)
        try:
            claimed = self._known.state(now=True).claim
            if claimed is not None:  # whoever held the lease before could not finish
                commit.finish(self._records, self._redos, claimed)
                self._known.learn(None)
        except BaseException:
            held.release()
            raise
        self._lease = held
        return held

    def lease_holder(self) -> str | None:
        self._live()
        return lease.holder(self._records)

    def note(self, name: str) -> Mapping[str, Any] | None:
        self._live()
        found: Mapping[str, Any] | None = self._records.note(name)
        return found

    def put_note(self, name: str, note: Mapping[str, Any] | None) -> None:
        self._writable()
        self._records.put_note(name, note)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._client.close()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        if self._closed:
            raise StoreError(f"The database {self.url} is closed.", hint="Open it again.")

    def _writable(self) -> None:
        self._live()
        if self._mode == "r":
            raise ReadOnly(f"The database {self.url} was opened with mode='r'.", hint="Open it with mode='w'.")

    def _layout(self, table: Table) -> Layout:
        known = self._layouts.get(table.id)
        if known is None or (known[0] is not table and known[0] != table):
            known = self._layouts[table.id] = (table, layout_of(self._namespace, table))
        return known[1]

    def _ensure(self, layout: Layout) -> None:
        if layout.owned and not self._client.tables.exists(layout.name):
            commit.create(self._client, layout.name, layout.family())

    def _with_table(self, layout: Layout, work: Callable[[], None]) -> None:
        """Write to a table, which is made if it is ours and not there."""
        try:
            work()
        except NoSuchTable:
            if not layout.owned:
                raise
            self._ensure(layout)
            work()

    def _absent_is_none(self, layout: Layout, work: Callable[[], Any]) -> Any:
        """Read from a table; one of ours that was never made is empty."""
        try:
            return work()
        except NoSuchTable:
            if not layout.owned:
                raise
            return None

    def _after_write(self) -> int:
        """The position of a write call that has just ended. HBase's clock then shows a later millisecond, so whoever
        writes next, here or elsewhere, is not hidden by a delete of this call, nor mixed with its rows."""
        ended = time.monotonic()
        position = self.head()
        time.sleep(max(0.0, _TICK - (time.monotonic() - ended)))
        return position

    def _refuse_unstored(self, catalog: Catalog) -> None:
        if unstored := [v.table.name for v in catalog.views if not v.table.is_stored]:
            raise Unsupported(
                f"{unstored[0]} WITH (store = 'none') would only stream its changes, and HBase keeps no log of views.",
                hint="Store the view.",
            )


def _state_home() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "viewkeeper"


def _refuse_twice(table: Table, keys: pa.Array, dead: pa.Array) -> None:
    both = pa.concat_arrays([keys.cast(pa.binary()), dead.cast(pa.binary())])
    if len(both) > 1 and pc.count_distinct(both).as_py() < len(both):
        raise BadValue(f"A write to {table.name} has the same key twice.", hint="Keep the last row of each key.")


def _refuse_view(table: Table) -> None:
    if table.is_view:
        raise Unsupported(f"HBase keeps no log of the view {table.name}.", hint="Read the view instead.")


def _no_rows(layout: Layout, columns: Sequence[str]) -> Rows:
    schema = pa.schema([layout.table.arrow.field(name) for name in columns])
    return Rows(schema.empty_table(), pa.array([], pa.binary()), ())


def _batch(rows: pa.Table) -> pa.RecordBatch:
    if not rows.num_columns:  # a batch without columns that still knows its rows
        return pa.RecordBatch.from_arrays([pa.nulls(rows.num_rows)], names=[""]).select([])
    return rows.combine_chunks().to_batches()[0]
