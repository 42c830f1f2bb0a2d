"""LATEST without waiting: a reader computes what the next batch will publish for a view of one table.

    view now  =  view at the published batch  +  its operators over the log since the batch's cut

The operators and their state are the maintainer's. State files are immutable, and the log, the batch record and the
view's rows are read in one snapshot of the store, so any process can run the operators; the result is what the next
batch publishes if it ends at the same position. Nothing is written, and no maintainer is needed. Readers do this for
views of a single table, whose operators need little besides the changed rows, while few enough changes are pending;
for other views they wait for a batch (`freshness`). An overlay is cached until the log's head or the batch changes.

For a member of a view family, the family's operators run as if it had no other member (`MemberRestriction`).
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

# A family restricted to one member: the inputs, the state and the results of its operators.
#
#     family(D, P)  =  Σ over members p:  family(D, {p})
#
# The family is linear in its members, so the rows of one member are what the same operators compute over its
# parameters alone. The cost depends on the changed rows, not on the number of other members.


StateLookup = Callable[[str], Arrangement]


@dataclass(frozen=True)
class MemberRestriction:
    """A member: its table, and its parameters as a row of the parameter table."""

    table: Table
    parameters: Table
    row: pa.Table

    @staticmethod
    def for_member(catalog: Catalog, member: View) -> MemberRestriction:
        parameters = catalog.tables_by_id[catalog.maintained_view(member).parameter_table_id]
        return MemberRestriction(member.table, parameters, parameter_rows(parameters, [member]))

    def restrict_state(self, dataflow: Dataflow, active: frozenset[str], state: StateLookup) -> StateLookup:
        """The state lookup in which slots with members' rows show this member only."""
        operators = map(dataflow.operators.__getitem__, active)
        member_slots = {slot_names(o)[o.members_slot] for o in operators if o.members_slot is not None}

        def restricted(slot: str) -> Arrangement:
            whole = state(slot)
            if slot not in member_slots:
                return whole
            return Arrangement(
                tuple(
                    Run(self._filter_rows(run.rows, [f"p{i}" for i in self._parameter_indexes])) for run in whole.runs
                )
            )

        return restricted

    def restrict_changes(self, inputs: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """The changes of tables; those of the parameter table restricted to this member."""
        name, names = Input(self.parameters.id).id, [k.column for k in self.parameters.key]
        return {source: self._filter_rows(rows, names) if source == name else rows for source, rows in inputs.items()}

    def restrict_view_change(self, change: ViewChange) -> ViewChange:
        """This member's part of a family's change, in the columns of the member's table."""
        parts = []
        for rows, columns in (
            (change.puts, [f.name for f in self.table.arrow]),
            (change.deletes, [k.column for k in self.table.key]),
        ):
            keys = encode_keys(change.table, rows)
            belongs = pc.starts_with(keys, self.table.key_prefix) if len(keys) else pa.array([], pa.bool_())
            parts.append(rows.filter(belongs).select(columns))
        return ViewChange(self.table, *parts)

    @property
    def _parameter_indexes(self) -> range:
        return range(self.row.num_columns)

    def _filter_rows(self, rows: pa.Table, names: list[str]) -> pa.Table:
        """Rows with the member's parameters in these columns; other members with equal values may be among them."""
        for index, name in zip(self._parameter_indexes, names, strict=True):
            rows = rows.filter(pc.equal(rows.column(name), self.row.column(index)[0]))
        return rows


MAX_PENDING_ROWS = 100_000
"""Maximum number of pending changed rows of an overlay; with more, the read waits for a batch."""


@dataclass(frozen=True)
class BatchOverlay:
    """Effect of the pending changes on a view: the changed keys, and the new rows of those that still exist."""

    change: ViewChange | None
    row_index: Mapping[bytes, int]
    """By encoded key, the index of its row in `change.puts`; −1: the row is deleted."""

    def get(self, snapshot: StoreSnapshot, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        """One row by its whole key, as `Store.get` returns it."""
        index = self.row_index.get(encode_whole_key(table, key)) if self.row_index else None
        if index is None or self.change is None:
            return snapshot.get(table, key)
        if index < 0:
            return None
        row = self.change.puts.slice(index, 1)
        found: dict[str, Any] = row.cast(_external_stored_schema(table)).to_pylist()[0]
        return found

    def changed_keys(self) -> ChangedKeys | None:
        """The change in the form of `ReadState.view_overlay`."""
        if self.change is None:
            return None
        names = self.change.deletes.column_names
        return ChangedKeys(pa.concat_tables([self.change.deletes, self.change.puts.select(names)]), self.change.puts)


def _external_stored_schema(table: Table) -> pa.Schema:
    external = {f.name: f for f in table.external_schema}
    return pa.schema([external.get(f.name, f) for f in table.arrow])


EMPTY_OVERLAY = BatchOverlay(None, {})


class OverlayCache:
    """The overlays of one open database. Any thread may call it; one overlay is computed at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._executor: BatchExecutor | None = None
        self._overlays: dict[int, tuple[tuple[int, int, int], BatchOverlay]] = {}
        self._supported: dict[str, tuple[int, bool]] = {}
        self._row_overlays: dict[int, tuple[tuple[int, int], RowOverlay]] = {}

    def can_overlay(self, catalog: Catalog, name: str) -> bool:
        """Whether a view can be read with an overlay, so that a LATEST read need not wait."""
        cached = self._supported.get(name)
        if cached is not None and cached[0] == catalog.version:
            return cached[1]
        view, can = catalog.find(name), self._store.capabilities
        found = isinstance(view, View) and can.snapshot_scan and can.before_images and view.table.is_stored
        if isinstance(view, View) and found and view.suspended is None and view.own_cut is None:
            maintained = catalog.maintained_view(view)
            found = (
                len(
                    cache.maintained_dataflow(self._store, catalog).views[maintained.table.id].tables.keys()
                    - {maintained.parameter_table_id}
                )
                == 1
            )
        else:
            found = False
        self._supported[name] = (catalog.version, found)
        return found

    def row_overlay(self, snapshot: StoreSnapshot, view: View) -> RowOverlayVersion | None:
        """The row overlay of a view at the snapshot, for reads by key; None if it is not available."""
        if "manifest" not in snapshot.batch.record:
            return None
        version = (snapshot.batch.number, snapshot.catalog.version)
        with self._lock:
            cached = self._row_overlays.get(view.table.id)
            if cached is None or cached[0] != version:
                if cached is not None and cached[0] > version:
                    return None  # the snapshot is older than the state that other reads have used since
                state = partial(self._published_arrangement, snapshot.batch)
                cached = self._row_overlays[view.table.id] = (
                    version,
                    RowOverlay(snapshot.catalog, view, snapshot, state),
                )
            try:
                return cached[1].catch_up(snapshot)
            except (FileNotFoundError, CorruptState):  # compaction has removed a file
                return None

    def _published_arrangement(self, batch: Batch, slot: str) -> tuple[Arrangement, PreparedStatements]:
        executor = self._executor_at(Manifest.from_json(batch.record["manifest"]))
        return executor.state.arrangement(slot), executor.pool.use_primary(1)

    def batch_overlay(self, snapshot: StoreSnapshot, view: View) -> BatchOverlay | None:
        """The overlay of a view at the snapshot; None if too many changes are pending, or its state is gone."""
        version = (snapshot.batch.number, snapshot.head, snapshot.catalog.version)
        cached = self._overlays.get(view.table.id)
        if cached is not None and cached[0] == version:
            return cached[1]
        with self._lock:
            try:
                found = self._compute_overlay(snapshot, view)
            except (FileNotFoundError, CorruptState, SnapshotGone):  # compacted or truncated since
                return None
            if found is not None:
                self._overlays[view.table.id] = (version, found)
        return found

    def reopen_view(self, name: str) -> OverlaidView | None:
        """Open a view for a LATEST read by key, if an earlier read could do so."""
        return open_overlaid_view(self._store, self, None, name, LATEST, None, by_key=True)

    def close(self) -> None:
        with self._lock:
            if self._executor is not None:
                self._executor.close()
            self._executor, self._overlays, self._row_overlays = None, {}, {}

    def _compute_overlay(self, snapshot: StoreSnapshot, view: View) -> BatchOverlay | None:
        if "manifest" not in snapshot.batch.record:
            return None
        dataflow = cache.maintained_dataflow(self._store, snapshot.catalog)
        maintained = snapshot.catalog.maintained_view(view)
        cut, tables = snapshot.batch.cut, list(dataflow.views[maintained.table.id].tables)
        pending = self._store.pending(cut, tables)
        if pending.rows > MAX_PENDING_ROWS:
            return None
        executor = self._executor_at(Manifest.from_json(snapshot.batch.record["manifest"]))
        statements = executor.pool.use_primary(1)
        inputs, _ = executor.capture.read_changes(dataflow, cut, snapshot.head, {}, tables, pending)
        active = frozenset(dataflow.batch_operators & dataflow.upstream([dataflow.sink(maintained.table.id).id]))
        member = MemberRestriction.for_member(snapshot.catalog, view) if view.is_member else None
        old = (
            executor.state.arrangement
            if member is None
            else member.restrict_state(dataflow, active, executor.state.arrangement)
        )
        context = LocalContext(statements, dataflow, old, active, executor.memory)
        deltas = run_operators(
            context, memory_inputs(inputs if member is None else member.restrict_changes(inputs))
        ).get(maintained.table.id, [])
        change = resolve_upserts(statements, _SnapshotRowCounts(snapshot), maintained.table, deltas, executor.memory)
        if not isinstance(change, ViewChange):
            return EMPTY_OVERLAY
        change = change if member is None else member.restrict_view_change(change)
        row_index = dict.fromkeys(encode_keys(view.table, change.deletes).to_pylist(), -1)
        row_index |= {key: index for index, key in enumerate(encode_keys(view.table, change.puts).to_pylist())}
        return BatchOverlay(change, row_index)

    def _executor_at(self, manifest: Manifest) -> BatchExecutor:
        if self._executor is None:
            state = OpenState(self._store.state_path, manifest)
            self._executor = BatchExecutor(self._store, state, refuse_spark, durable=False, threads=1)
        elif self._executor.state.manifest != manifest:
            self._executor.state.adopt(manifest)
        return self._executor


class OverlaidView:
    """One view with its overlay, in a snapshot. It can be read once."""

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
            overlays = {} if changed is None else {self._view.table.id: changed}
            state = SnapshotState(self._store, self._snapshot, at_cut=True, overlays=overlays)
            return fetch(state, replace(request, table=self._view.table))
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
    """A view with every finished write call, without waiting; None if the published batch is new enough, or the read
    must wait for one. `catalog`: the current one; None if an earlier read could open the view so. `by_key`: the caller
    reads one row."""
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
    snapshot = store.open_snapshot()
    try:
        view = snapshot.catalog.find(name)
        if (
            isinstance(view, View)
            and not view.table.is_changed_by_writes
            and overlays.can_overlay(snapshot.catalog, name)
        ):
            use_row_overlay = by_key and not view.is_member
            overlay = (overlays.row_overlay(snapshot, view) if use_row_overlay else None) or overlays.batch_overlay(
                snapshot, view
            )
            if overlay is not None:
                found, snapshot = OverlaidView(store, snapshot, view, overlay), None  # type: ignore[assignment]
                return found
        return None
    finally:
        if snapshot is not None:
            snapshot.close()


class _SnapshotRowCounts:
    """Row lookups in a snapshot, for the upsert resolution of bags."""

    def __init__(self, snapshot: StoreSnapshot) -> None:
        self._snapshot = snapshot

    def get_rows(self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        return self._snapshot.find(table, keys, columns)
