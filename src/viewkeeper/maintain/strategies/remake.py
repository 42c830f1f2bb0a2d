"""Views that are made anew at intervals: the batching strategies of the dissertation's chapter 6.

    SN    repeated snapshots: everything is computed from the tables as they were at one cut
    SC    repeated scans: … from the tables as a scan finds them while writers go on. Each row is a version that was
          valid within the scan's span (6.2.2); nothing more is promised
    ISN   incremental snapshots: the keys that changed since the last one (tracking phase, MK tree) are read at the new
          cut, and the difference to what is known of them runs through the view's own state
    ISC   incremental scans: the same, each key as it is found

Such a view has a cut of its own (for SC and ISC a span), published with it. What is written to its table is the
difference to what is there, in one commit, so readers see whole states and subscribers see deltas.
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
"""Incremental snapshots after which a full one is taken, which also makes one run of each arrangement's many."""

_SCAN_PARTITIONS = 8


@dataclass(frozen=True)
class RemakeResult:
    """A scheduled view's new state: the span of positions in which it was read, its delta or rows, its runs."""

    low: int
    cut: int
    deltas: list[pa.Table]
    is_full: bool
    """Whether `rows` are all rows, not a delta."""
    manifest: Manifest | None
    """The view's own operators, if they are kept."""
    tracked_keys: int
    """Keys that were read again."""


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
    """Run a view's strategy once, from its last cut to this one. `known`: what was kept of its operators."""
    strategy = strategy_of(view)
    state = OpenState(store.state_path, manifest or Manifest())
    stage = BatchExecutor(store, state, spark, durable=durable, threads=1, memory=memory)
    try:
        runs = max((len(group_pieces(r)) for r in manifest.runs.values()), default=0) if manifest is not None else 0
        if strategy.tracks_keys and manifest is not None and view.own_cut is not None and runs < FULL_REMAKE_INTERVAL:
            # The log does not reach back, or has no images to compare with, or the store no state to pin: a full one.
            with suppress(SnapshotGone, Unsupported):
                return _remake_changed_keys(stage, dataflow, view, number, live=strategy.reads_live)
        keep = strategy.has_persistent_state
        return _remake_fully(
            stage, dataflow, view, cut, number, live=strategy.reads_live, keep_state=keep, progress=progress
        )
    finally:
        stage.close()


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
    given: dict[str, InputSource] = {}
    parts: ScannedPartitions = {} if live else scan_live_tables(executor, dataflow, views, "driver", progress)
    low = cut = executor.store.head() if parts else cut
    if live:
        low = executor.store.head()
        for table, columns in dataflow.used_columns.items():
            given[Input(table).id] = MemoryRows(
                _scan_live(executor.store, dataflow.tables[table], [c.name for c in columns])
            )
        cut = executor.store.head()
    names = {view.table.id: view.table.name}
    loaded = backfill(
        executor,
        dataflow,
        views,
        cut,
        number,
        names,
        "driver",
        progress,
        known_inputs=given,
        keep_state=keep_state,
        standalone=True,
        live_partitions=parts,
    )
    manifest = loaded.merged_manifest(dataflow, Manifest()) if keep_state else None
    return RemakeResult(low, cut, list(loaded.deltas[view.table.id]), True, manifest, 0)


def _remake_changed_keys(
    executor: BatchExecutor, dataflow: Dataflow, view: View, number: int, *, live: bool
) -> RemakeResult:
    if view.own_cut is None:
        raise Defect(f"{view.table.name} has no cut to go on from.")
    store, duck = executor.store, executor.statements
    pinned = store.open_snapshot()
    try:
        low = pinned.head if live else pinned.batch.cut
        # What changed from the start of the last span on: a version that was read in it may be older than its end.
        trees = {
            t: _track_changed_keys(store, duck, dataflow.tables[t], view.own_cut.low, low)
            for t in dataflow.used_columns
        }
        deltas: dict[str, pa.Table] = {}
        for table_id, tree in trees.items():  # of a table that did not change too: others wait for its delta
            columns = [c.name for c in dataflow.used_columns[table_id]]
            old = _known_rows(executor, dataflow.tables[table_id], tree, columns)
            new = with_weight(_read_tracked_rows(store, None if live else pinned, tree, columns), 1)
            both = pa.concat_tables([new, old.cast(new.schema)]).combine_chunks()
            deltas[Input(table_id).id] = consolidate(duck, both)
        cut = store.head() if live else low
    finally:
        pinned.close()
    names = {view.table.id: view.table.name}
    outcome = executor.run(number, "driver", dataflow, dataflow.batch_operators, memory_inputs(deltas), names)
    manifest = executor.state.manifest.with_entries(outcome.entries)
    reached = list(outcome.deltas.get(view.table.id, ()))
    return RemakeResult(low, cut, reached, False, manifest, sum(tree.key_count for tree in trees.values()))


def _track_changed_keys(store: Store, statements: PreparedStatements, table: Table, after: int, cut: int) -> MKTree:
    """The tracking phase: the keys that the log names."""
    tree = MKTree.for_table(table)
    names = [c.name for c in table.key_columns]
    changed = store.changes(table, names, after, cut)
    if changed.num_rows:
        listed = ", ".join(quoted(n) for n in names)
        tree.insert(statements.run(f"SELECT DISTINCT {listed} FROM input", input=changed.drop_columns([WEIGHT])))
    return tree


def _read_tracked_rows(store: Store, snapshot: StoreSnapshot | None, tree: MKTree, columns: list[str]) -> pa.Table:
    """The rows of the tracked keys: all at the pinned batch's cut, or without one each piece as it is found."""
    exact = snapshot is not None
    reads: list[Callable[[StoreSnapshot], pa.Table]] = [
        partial(_scan_range, tree.table, start, stop, exact) for start, stop in tree.ranges()
    ]
    reads.append(partial(_find_keys, tree.table, tree.single_keys(), exact))
    return pa.concat_tables([_read_piece(store, snapshot, read) for read in reads]).select(columns).combine_chunks()


def _read_piece(store: Store, snapshot: StoreSnapshot | None, read: Callable[[StoreSnapshot], pa.Table]) -> pa.Table:
    if snapshot is not None:
        return read(snapshot)
    state = store.open_snapshot()
    try:
        return read(state)
    finally:
        state.close()


def _scan_range(table: Table, start: bytes, stop: bytes, at_cut: bool, snapshot: StoreSnapshot) -> pa.Table:
    found = snapshot.scan(table, start=start, stop=stop + b"\0", at_cut=at_cut)
    return pa.Table.from_batches(list(found), table.arrow)


def _find_keys(table: Table, keys: pa.Table, at_cut: bool, snapshot: StoreSnapshot) -> pa.Table:
    return snapshot.find(table, keys, at_cut=at_cut)


def _known_rows(executor: BatchExecutor, table: Table, tree: MKTree, columns: list[str]) -> pa.Table:
    """What the view's own image knows of the tracked keys, as the delta that takes it away."""
    image = TableImage(table.id, tuple(k.column for k in table.key))
    return negated_image_rows(
        executor.statements, executor.state.arrangement(slot_names(image)[0]), table, columns, tree.all_keys()
    )


def _scan_live(store: Store, table: Table, columns: list[str]) -> pa.Table:
    """A table by key ranges, each as it is when its turn comes."""
    edges: list[bytes | None] = [None, *store.split_points(table, _SCAN_PARTITIONS), None]
    pieces = []
    for start, stop in pairwise(edges):
        batches = list(store.scan(table, columns, start=start, stop=stop))
        pieces.extend(batches)
    schema = pa.schema([table.arrow.field(c) for c in columns])
    return with_weight(pa.Table.from_batches(pieces, schema).combine_chunks(), 1)


def due_views(views: Iterable[View], now: float | None = None) -> list[View]:
    """The scheduled views whose interval is over; a clock that was put back ends it too."""
    moment = time.time() if now is None else now
    return [
        v
        for v in views
        if strategy_of(v).is_scheduled
        and v.suspended is None
        and (v.own_cut is None or not v.own_cut.time <= moment < v.own_cut.time + interval_of(v))
    ]
