"""LATEST without waiting: a view of one table as the batch that is due will publish it.

    view now  =  view at the published batch  +  what its operators make of the log since the batch's cut

The operators and their state are the maintainer's; the state is immutable files; and the log, the batch record and the
view's rows are read in one state of the store. So any process can run them, and what it gets is what the next batch
publishes if it ends there. Nothing is written, and nobody has to maintain. It is done for views of a single table,
whose operators need little beside the changed rows, while not too much waits; other views wait for their batch
(`levels`). What was worked out is kept until the log or the batch goes on.

Of a member of a family the family's operators run, as if it had no other member (`one_member`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import CorruptState, Defect, SnapshotGone
from viewkeeper.maintain.definitions.families import parameter_rows
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.catalog.view import View
from viewkeeper.model.encoding.keys import encode_keys, encode_whole_key
from viewkeeper.model.schema import Table
from viewkeeper.operators.kinds.input import Input
from viewkeeper.operators.operator import slot_names
from viewkeeper.plan.dataflow import cache
from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.read.access.path import RowRequest
from viewkeeper.read.access.scan import fetch
from viewkeeper.read.freshness import LATEST, AfterTokens, Level, has_position, position_of
from viewkeeper.read.lazy.evaluate import refuse_spark
from viewkeeper.read.row_overlay import RowOverlay, RowOverlayVersion
from viewkeeper.read.rows import check_key
from viewkeeper.read.state import SnapshotState
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.runtime.context import LocalContext
from viewkeeper.runtime.executor import BatchExecutor, memory_inputs
from viewkeeper.runtime.local.scheduler import run_operators
from viewkeeper.runtime.upserts import resolve_upserts
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.open_state import OpenState
from viewkeeper.state.run import Arrangement, Run
from viewkeeper.store.contract.commits import Batch, ChangedKeys, StoreSnapshot, ViewChange
from viewkeeper.store.contract.store import Store

# A family as if it had one member: what its operators are given, and what comes of it, restricted to that member.
#
#     family(D, P)  =  Σ over members p:  family(D, {p})
#
# The family is linear in its members, so the rows of one are those that the same operators give over its parameters
# alone. It costs what the changed rows cost, however many other members there are.


StateLookup = Callable[[str], Arrangement]


@dataclass(frozen=True)
class MemberRestriction:
    """A member: its table, and the parameters it has, as a row of their table."""

    table: Table
    parameters: Table
    row: pa.Table

    @staticmethod
    def for_member(catalog: Catalog, member: View) -> MemberRestriction:
        parameters = catalog.tables_by_id[catalog.maintained_view(member).parameter_table_id]
        return MemberRestriction(member.table, parameters, parameter_rows(parameters, [member]))

    def restrict_state(self, dataflow: Dataflow, active: frozenset[str], state: StateLookup) -> StateLookup:
        """The state of operators that make members' rows, with this one for all of them."""
        operators = map(dataflow.operators.__getitem__, active)
        found = {slot_names(o)[o.members_slot] for o in operators if o.members_slot is not None}

        def restricted(slot: str) -> Arrangement:
            whole = state(slot)
            if slot not in found:
                return whole
            return Arrangement(
                tuple(
                    Run(self._filter_rows(run.rows, [f"p{i}" for i in self._parameter_indexes])) for run in whole.runs
                )
            )

        return restricted

    def restrict_changes(self, inputs: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """Changes of tables, those of parameters being of this member's only."""
        name, names = Input(self.parameters.id).id, [k.column for k in self.parameters.key]
        return {source: self._filter_rows(rows, names) if source == name else rows for source, rows in inputs.items()}

    def restrict_view_change(self, change: ViewChange) -> ViewChange:
        """What of a family's change is this member's, as its own table has it."""
        parts = []
        for rows, columns in (
            (change.puts, [f.name for f in self.table.arrow]),
            (change.deletes, [k.column for k in self.table.key]),
        ):
            keys = encode_keys(change.table, rows)
            mine = pc.starts_with(keys, self.table.key_prefix) if len(keys) else pa.array([], pa.bool_())
            parts.append(rows.filter(mine).select(columns))
        return ViewChange(self.table, *parts)

    @property
    def _parameter_indexes(self) -> range:
        return range(self.row.num_columns)

    def _filter_rows(self, rows: pa.Table, names: list[str]) -> pa.Table:
        """Rows with these values in these columns; there may be some of members that compare equal."""
        for place, name in zip(self._parameter_indexes, names, strict=True):
            rows = rows.filter(pc.equal(rows.column(name), self.row.column(place)[0]))
        return rows


MAX_PENDING_ROWS = 100_000
"""Changed rows that may wait; with more, a batch is waited for."""


@dataclass(frozen=True)
class BatchOverlay:
    """What a view has ahead of its published batch: the keys that change, and the rows of those that are there."""

    change: ViewChange | None
    row_index: Mapping[bytes, int]
    """By encoded key, the place of its row; −1: it goes."""

    def get(self, snapshot: StoreSnapshot, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        """One row by its whole key, as `Store.get` gives it."""
        place = self.row_index.get(encode_whole_key(table, key)) if self.row_index else None
        if place is None or self.change is None:
            return snapshot.get(table, key)
        if place < 0:
            return None
        row = self.change.puts.slice(place, 1)
        found: dict[str, Any] = row.cast(_external_stored_schema(table)).to_pylist()[0]
        return found

    def changed_keys(self) -> ChangedKeys | None:
        """The same, as `Pinned.later` says it of a table."""
        if self.change is None:
            return None
        names = self.change.deletes.column_names
        return ChangedKeys(pa.concat_tables([self.change.deletes, self.change.puts.select(names)]), self.change.puts)


def _external_stored_schema(table: Table) -> pa.Schema:
    outside = {f.name: f for f in table.external_schema}
    return pa.schema([outside.get(f.name, f) for f in table.arrow])


EMPTY_OVERLAY = BatchOverlay(None, {})


class OverlayCache:
    """Of one open database. May be used from any thread; what is worked out is worked out by one at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._executor: BatchExecutor | None = None
        self._overlays: dict[int, tuple[tuple[int, int, int], BatchOverlay]] = {}
        self._supported: dict[str, tuple[int, bool]] = {}
        self._row_overlays: dict[int, tuple[tuple[int, int], RowOverlay]] = {}

    def can_overlay(self, catalog: Catalog, name: str) -> bool:
        """Whether a view is one that need not wait."""
        known = self._supported.get(name)
        if known is not None and known[0] == catalog.version:
            return known[1]
        view, can = catalog.find(name), self._store.capabilities
        found = isinstance(view, View) and can.snapshot_scan and can.before_images and view.table.is_stored
        if isinstance(view, View) and found and view.suspended is None and view.own_cut is None:
            kept = catalog.maintained_view(view)
            found = (
                len(
                    cache.maintained_dataflow(self._store, catalog).views[kept.table.id].tables.keys()
                    - {kept.parameter_table_id}
                )
                == 1
            )
        else:
            found = False
        self._supported[name] = (catalog.version, found)
        return found

    def row_overlay(self, snapshot: StoreSnapshot, view: View) -> RowOverlayVersion | None:
        """A view as few changes after its batch have left it, for reads by key; None if it is not done so."""
        if "manifest" not in snapshot.batch.record:
            return None
        at = (snapshot.batch.number, snapshot.catalog.version)
        with self._lock:
            known = self._row_overlays.get(view.table.id)
            if known is None or known[0] != at:
                if known is not None and known[0] > at:
                    return None  # a state before the one that others have read since
                state = partial(self._published_arrangement, snapshot.batch)
                known = self._row_overlays[view.table.id] = (at, RowOverlay(snapshot.catalog, view, snapshot, state))
            try:
                return known[1].catch_up(snapshot)
            except (FileNotFoundError, CorruptState):  # merged since
                return None

    def _published_arrangement(self, batch: Batch, slot: str) -> tuple[Arrangement, PreparedStatements]:
        stage = self._executor_at(Manifest.from_json(batch.record["manifest"]))
        return stage.state.arrangement(slot), stage.pool.use_primary(1)

    def batch_overlay(self, snapshot: StoreSnapshot, view: View) -> BatchOverlay | None:
        """What a view has ahead of the batch in a pinned state; None if too much waits, or its state is gone."""
        at = (snapshot.batch.number, snapshot.head, snapshot.catalog.version)
        known = self._overlays.get(view.table.id)
        if known is not None and known[0] == at:
            return known[1]
        with self._lock:
            try:
                found = self._compute_overlay(snapshot, view)
            except (FileNotFoundError, CorruptState, SnapshotGone):  # merged or truncated since
                return None
            if found is not None:
                self._overlays[view.table.id] = (at, found)
        return found

    def reopen_view(self, name: str) -> OverlaidView | None:
        """`latest` by key, of a view that could be read so before."""
        return open_overlaid_view(self._store, self, None, name, LATEST, None, by_key=True)

    def close(self) -> None:
        with self._lock:
            if self._executor is not None:
                self._executor.close()
            self._executor, self._overlays, self._row_overlays = None, {}, {}

    def _compute_overlay(self, snapshot: StoreSnapshot, view: View) -> BatchOverlay | None:
        if "manifest" not in snapshot.batch.record:
            return None
        flow = cache.maintained_dataflow(self._store, snapshot.catalog)
        kept = snapshot.catalog.maintained_view(view)
        cut, tables = snapshot.batch.cut, list(flow.views[kept.table.id].tables)
        waiting = self._store.pending(cut, tables)
        if waiting.rows > MAX_PENDING_ROWS:
            return None
        stage = self._executor_at(Manifest.from_json(snapshot.batch.record["manifest"]))
        duck = stage.pool.use_primary(1)
        given, _ = stage.capture.read_changes(flow, cut, snapshot.head, {}, tables, waiting)
        active = frozenset(flow.batch_operators & flow.upstream([flow.sink(kept.table.id).id]))
        one = MemberRestriction.for_member(snapshot.catalog, view) if view.is_member else None
        old = stage.state.arrangement if one is None else one.restrict_state(flow, active, stage.state.arrangement)
        site = LocalContext(duck, flow, old, active, stage.memory)
        reached = run_operators(site, memory_inputs(given if one is None else one.restrict_changes(given))).get(
            kept.table.id, []
        )
        change = resolve_upserts(duck, _SnapshotRowCounts(snapshot), kept.table, reached, stage.memory)
        if not isinstance(change, ViewChange):
            return EMPTY_OVERLAY
        change = change if one is None else one.restrict_view_change(change)
        places = dict.fromkeys(encode_keys(view.table, change.deletes).to_pylist(), -1)
        places |= {key: place for place, key in enumerate(encode_keys(view.table, change.puts).to_pylist())}
        return BatchOverlay(change, places)

    def _executor_at(self, manifest: Manifest) -> BatchExecutor:
        if self._executor is None:
            state = OpenState(self._store.state_path, manifest)
            self._executor = BatchExecutor(self._store, state, refuse_spark, durable=False, threads=1)
        elif self._executor.state.manifest != manifest:
            self._executor.state.adopt(manifest)
        return self._executor


class OverlaidView:
    """One view with what it has ahead, in a pinned state. It can be read once."""

    def __init__(
        self, store: Store, snapshot: StoreSnapshot, view: View, overlay: BatchOverlay | RowOverlayVersion
    ) -> None:
        self._store, self._snapshot, self._view, self._overlay = store, snapshot, view, overlay
        self.table, self.epoch = view.table, snapshot.batch.number
        self.position = (
            max(snapshot.head, overlay.position) if isinstance(overlay, RowOverlayVersion) else snapshot.head
        )

    def close(self) -> None:
        self._snapshot.close()

    def get(self, key: Any) -> dict[str, Any] | None:
        try:
            whole = check_key(self.table, key)
            if isinstance(self._overlay, RowOverlayVersion):
                return self._overlay.get(self._snapshot, whole)
            return self._overlay.get(self._snapshot, self._view.table, whole)
        finally:
            self._snapshot.close()

    def read(self, request: RowRequest) -> pa.Table:
        try:
            if isinstance(self._overlay, RowOverlayVersion):
                raise Defect("What was looked up by key is not read as a whole.")
            changed = self._overlay.changed_keys()
            ahead = {} if changed is None else {self._view.table.id: changed}
            source = SnapshotState(self._store, self._snapshot, at_cut=True, overlays=ahead)
            return fetch(source, replace(request, table=self._view.table))
        finally:
            self._snapshot.close()


def open_overlaid_view(
    store: Store,
    overlays: OverlayCache,
    catalog: Catalog | None,
    name: str,
    level: Level,
    after: AfterTokens,
    *,
    by_key: bool = False,
) -> OverlaidView | None:
    """A view with every write call that has ended, without waiting; None if the published batch is new enough, or it
    has to be waited for. `catalog`: as it is now; None if the view could be read so before. `by_key`: one row is asked
    for."""
    if catalog is not None and not overlays.can_overlay(catalog, name):
        return None
    position = position_of(store, after)
    if (
        level is not LATEST
        and catalog is not None
        and position is not None
        and has_position(store, catalog, name, position)
    ):
        return None
    pinned = store.open_snapshot()
    try:
        view = pinned.catalog.find(name)
        if (
            isinstance(view, View)
            and not view.table.is_changed_by_writes
            and overlays.can_overlay(pinned.catalog, name)
        ):
            runs = by_key and not view.is_member
            ahead = (overlays.row_overlay(pinned, view) if runs else None) or overlays.batch_overlay(pinned, view)
            if ahead is not None:
                found, pinned = OverlaidView(store, pinned, view, ahead), None  # type: ignore[assignment]
                return found
        return None
    finally:
        if pinned is not None:
            pinned.close()


class _SnapshotRowCounts:
    """A pinned state for who counts a bag's rows."""

    def __init__(self, snapshot: StoreSnapshot) -> None:
        self._snapshot = snapshot

    def get_rows(self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        return self._snapshot.find(table, keys, columns)
