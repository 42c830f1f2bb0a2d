"""Scheduled views: recomputed at intervals by the batching strategies of the dissertation's chapter 6.

    SN    repeated snapshots: all rows are computed from the tables at one cut
    SC    repeated scans: all rows are computed from a scan of the tables while writers continue. Each row read is a
          version that was valid within the scan's span (6.2.2); nothing more is guaranteed
    ISN   incremental snapshots: the keys that changed since the last snapshot (tracking phase, MK tree) are read at
          the new cut, and the difference to the view's own images runs through the view's own state
    ISC   incremental scans: as ISN, but each key is read at its current version

Such a view has a cut of its own (for SC and ISC a span), which is published with it. Only the difference to its stored
rows is written, in one commit, so readers see whole states and subscribers see deltas.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa

from viewkeeper.capture.changed_key_ranges import MKTree
from viewkeeper.capture.snapshot import Progress
from viewkeeper.errors import Defect, SnapshotGone, Unsupported
from viewkeeper.maintain.load.backfill import ScannedPartitions, backfill, scan_live_tables
from viewkeeper.model.catalog.catalog import View
from viewkeeper.model.catalog.strategies import interval_of, strategy_of
from viewkeeper.model.delta import with_weight
from viewkeeper.model.names import WEIGHT, quoted
from viewkeeper.model.schema import Table
from viewkeeper.operators.kinds import Input, TableImage
from viewkeeper.operators.kinds.table_image import negated_image_rows
from viewkeeper.plan.dataflow.dataflow import Dataflow, slot_names
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.runtime.executor import BatchExecutor, memory_inputs
from viewkeeper.runtime.inputs import InputSource, MemoryRows
from viewkeeper.state.consolidate import consolidate
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.open_state import OpenState
from viewkeeper.state.run_file import group_pieces
from viewkeeper.store.contract.store import Store, StoreSnapshot

FULL_REMAKE_INTERVAL = 16
"""Incremental snapshots after which a full one is taken, which also replaces each arrangement's runs by one run."""

_SCAN_PARTITIONS = 8


@dataclass(frozen=True)
class RemakeResult:
    """A scheduled view's new state: the span of positions in which tables were read, delta or rows, and runs."""

    low: int
    cut: int
    deltas: list[pa.Table]
    is_full: bool
    """Whether `deltas` are all rows of the view, not the changes."""
    manifest: Manifest | None
    """The state of the view's own operators, if the strategy keeps it."""
    tracked_keys: int
    """Number of changed keys that were read."""


def remake(
    store: Store,
    dataflow: Dataflow,
    view: View,
    cut: int,
    number: int,
    manifest: Manifest | None,
    spark: Callable[[], Any],
    durable: bool,
    memory: MemoryBudget,
    progress: Progress | None = None,
) -> RemakeResult:
    """Run a view's strategy once, from its last cut to `cut`. `manifest` lists the kept state of its operators."""
    strategy = strategy_of(view)
    state = OpenState(store.state_path, manifest or Manifest())
    executor = BatchExecutor(store, state, spark, durable=durable, threads=1, memory=memory)
    try:
        runs = (
            max((len(group_pieces(entries)) for entries in manifest.runs.values()), default=0)
            if manifest is not None
            else 0
        )
        if strategy.tracks_keys and manifest is not None and view.own_cut is not None and runs < FULL_REMAKE_INTERVAL:
            # A full remake follows if the log is truncated, or the store has no before-images or snapshots.
            with suppress(SnapshotGone, Unsupported):
                return _remake_changed_keys(executor, dataflow, view, number, live=strategy.reads_live)
        keep_state = strategy.has_persistent_state
        return _remake_fully(
            executor, dataflow, view, cut, number, live=strategy.reads_live, keep_state=keep_state, progress=progress
        )
    finally:
        executor.close()


def _remake_fully(
    executor: BatchExecutor,
    dataflow: Dataflow,
    view: View,
    cut: int,
    number: int,
    *,
    live: bool,
    keep_state: bool,
    progress: Progress | None = None,
) -> RemakeResult:
    executor.state.adopt(Manifest())
    views = frozenset([view.table.id])
    inputs: dict[str, InputSource] = {}
    partitions: ScannedPartitions = {} if live else scan_live_tables(executor, dataflow, views, "driver", progress)
    low = cut = executor.store.head() if partitions else cut
    if live:
        low = executor.store.head()
        for table, columns in dataflow.used_columns.items():
            inputs[Input(table).id] = MemoryRows(
                _scan_live(executor.store, dataflow.tables[table], [c.name for c in columns])
            )
        cut = executor.store.head()
    names = {view.table.id: view.table.name}
    result = backfill(
        executor,
        dataflow,
        views,
        cut,
        number,
        names,
        "driver",
        progress,
        known_inputs=inputs,
        keep_state=keep_state,
        standalone=True,
        live_partitions=partitions,
    )
    manifest = result.merged_manifest(dataflow, Manifest()) if keep_state else None
    return RemakeResult(low, cut, list(result.deltas[view.table.id]), True, manifest, 0)


def _remake_changed_keys(
    executor: BatchExecutor, dataflow: Dataflow, view: View, number: int, *, live: bool
) -> RemakeResult:
    if view.own_cut is None:
        raise Defect(f"{view.table.name} has no cut to go on from.")
    store, statements = executor.store, executor.statements
    snapshot = store.open_snapshot()
    try:
        low = snapshot.head if live else snapshot.batch.cut
        # Track changes from the start of the last span on: a row read within it may be older than its end.
        trees = {
            table: _track_changed_keys(store, statements, dataflow.tables[table], view.own_cut.low, low)
            for table in dataflow.used_columns
        }
        deltas: dict[str, pa.Table] = {}
        for table_id, tree in trees.items():  # also of unchanged tables, because operators wait for all inputs
            columns = [c.name for c in dataflow.used_columns[table_id]]
            old = _known_rows(executor, dataflow.tables[table_id], tree, columns)
            new = with_weight(_read_tracked_rows(store, None if live else snapshot, tree, columns), 1)
            changes = pa.concat_tables([new, old.cast(new.schema)]).combine_chunks()
            deltas[Input(table_id).id] = consolidate(statements, changes)
        cut = store.head() if live else low
    finally:
        snapshot.close()
    names = {view.table.id: view.table.name}
    result = executor.run(number, "driver", dataflow, dataflow.batch_operators, memory_inputs(deltas), names)
    manifest = executor.state.manifest.with_entries(result.entries)
    deltas_at_sink = list(result.deltas.get(view.table.id, ()))
    return RemakeResult(low, cut, deltas_at_sink, False, manifest, sum(tree.key_count for tree in trees.values()))


def _track_changed_keys(store: Store, statements: PreparedStatements, table: Table, after: int, cut: int) -> MKTree:
    """Tracking phase: collect the keys that the log names in an MK tree."""
    tree = MKTree.for_table(table)
    names = [c.name for c in table.key_columns]
    changed = store.changes(table, names, after, cut)
    if changed.num_rows:
        column_list = ", ".join(quoted(n) for n in names)
        tree.insert(statements.run(f"SELECT DISTINCT {column_list} FROM input", input=changed.drop_columns([WEIGHT])))
    return tree


def _read_tracked_rows(store: Store, snapshot: StoreSnapshot | None, tree: MKTree, columns: list[str]) -> pa.Table:
    """Read the rows of the tracked keys at the snapshot's cut; without a snapshot, the current rows."""
    exact = snapshot is not None
    reads: list[Callable[[StoreSnapshot], pa.Table]] = [
        partial(_scan_range, tree.table, start, stop, exact) for start, stop in tree.ranges()
    ]
    reads.append(partial(_find_keys, tree.table, tree.single_keys(), exact))
    return pa.concat_tables([_read_piece(store, snapshot, read) for read in reads]).select(columns).combine_chunks()


def _read_piece(store: Store, snapshot: StoreSnapshot | None, read: Callable[[StoreSnapshot], pa.Table]) -> pa.Table:
    if snapshot is not None:
        return read(snapshot)
    current = store.open_snapshot()
    try:
        return read(current)
    finally:
        current.close()


def _scan_range(table: Table, start: bytes, stop: bytes, at_cut: bool, snapshot: StoreSnapshot) -> pa.Table:
    batches = snapshot.scan(table, start=start, stop=stop + b"\0", at_cut=at_cut)
    return pa.Table.from_batches(list(batches), table.arrow)


def _find_keys(table: Table, keys: pa.Table, at_cut: bool, snapshot: StoreSnapshot) -> pa.Table:
    return snapshot.find(table, keys, at_cut=at_cut)


def _known_rows(executor: BatchExecutor, table: Table, tree: MKTree, columns: list[str]) -> pa.Table:
    """Return the rows of the tracked keys in the view's own image, as a delta that deletes them."""
    image = TableImage(table.id, tuple(k.column for k in table.key))
    return negated_image_rows(
        executor.statements, executor.state.arrangement(slot_names(image)[0]), table, columns, tree.all_keys()
    )


def _scan_live(store: Store, table: Table, columns: list[str]) -> pa.Table:
    """Scan a table by key ranges, each at its current state."""
    bounds: list[bytes | None] = [None, *store.split_points(table, _SCAN_PARTITIONS), None]
    pieces = []
    for start, stop in pairwise(bounds):
        batches = list(store.scan(table, columns, start=start, stop=stop))
        pieces.extend(batches)
    schema = pa.schema([table.arrow.field(c) for c in columns])
    return with_weight(pa.Table.from_batches(pieces, schema).combine_chunks(), 1)


def due_views(views: Iterable[View], now: float | None = None) -> list[View]:
    """Return the scheduled views whose interval has passed, or whose last time is in the future (clock set back)."""
    moment = time.time() if now is None else now
    return [
        view
        for view in views
        if strategy_of(view).is_scheduled
        and view.suspended is None
        and (view.own_cut is None or not view.own_cut.time <= moment < view.own_cut.time + interval_of(view))
    ]
