"""Backfill: loads views while batches continue (the hybrid of snapshot and log, in parallel).

    1  backfill: at a published batch with cut c₀, load the new operators and the views' rows from table images and
       exact scans
    2  catch-up: other batches were published meanwhile, up to cut c₁; run the changes in (c₀, c₁] through the new part
       of the dataflow, over the shared state at c₀; repeat until few changes remain
    3  catch up the remaining changes and publish, while no batch runs

A store that cannot show the past is scanned first; c₀ is then the cut of the next batch. The rows of large tables that
step 1 has read are kept on disk until step 3 is done, so that a backfill after a crash or an interruption starts with
them.

In step 2 shared operators run only to provide input for the new ones; their own runs exist already. A cut lies between
write calls, so the state after step 2 equals that of a backfill at c₁: no change is applied twice, and none is missing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from viewkeeper.capture.partition_store import PartitionStore
from viewkeeper.capture.partitions import CutMoved, TablePartition
from viewkeeper.capture.snapshot import Progress, scan_live
from viewkeeper.model.schema import Table
from viewkeeper.operators.kinds import Input, TableImage
from viewkeeper.operators.operator import Operator
from viewkeeper.plan.dataflow.dataflow import Dataflow, slot_names
from viewkeeper.runtime.executor import BatchExecutor, memory_inputs
from viewkeeper.runtime.inputs import Deferred, ImageRows, InputSource, TableScan
from viewkeeper.runtime.operator_errors import attribute_errors
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.open_state import OpenState
from viewkeeper.state.run_file import RunEntry
from viewkeeper.store.contract.store import Batch, CaptureMark

# The load plan: a backfill is a batch whose delta is the whole input.
#
# An operator is loaded by running it on its whole input with empty old state. Base tables are read whole at the
# published cut. An operator that other views maintain already is replaced by its whole output. A backfill is therefore
# a batch over a part of the dataflow: the new operators, and the stateless operators between them and those inputs.


@dataclass(frozen=True)
class LoadPlan:
    """The operators of a backfill: `new_operators` get state, `full_operators` give all output, `active` run."""

    new_operators: frozenset[str]
    full_operators: frozenset[str]
    active: frozenset[str]


def plan_load(dataflow: Dataflow, new_operators: Iterable[str], on_spark: bool) -> LoadPlan:
    """Return the part of the dataflow that a backfill of these operators runs, in its lane."""
    new = frozenset(new_operators)
    active: set[str] = set()
    full: set[str] = set()
    todo = [name for name in new if dataflow.operators[name].takes_part(on_spark)]
    while todo:
        name = todo.pop()
        if name in active or name in full:
            continue
        operator = dataflow.operators[name]
        if operator.stateful and name not in new:
            # Lookups probe an existing arrangement; any other operator with state is replaced by its whole output.
            if not operator.is_arrangement:
                full.add(name)
            continue
        active.add(name)
        todo.extend(s for s in dataflow.dependencies(operator) if dataflow.operators[s].takes_part(on_spark))
    return LoadPlan(new, frozenset(full), frozenset(active | full))


def missing_state(dataflow: Dataflow, state: OpenState) -> set[str]:
    """Return operators without state, or whose state lacks columns because a view uses more of a table than before."""
    missing = operators_without_state(dataflow, state.manifest)
    for image in (i for images in dataflow.images.values() for i in images if i.id not in missing):
        needed = {c.name for c in dataflow.image_columns[image.id]}
        if not all(needed <= columns for columns in state.column_sets(slot_names(image)[0])):
            missing.add(image.id)
    return missing


def operators_without_state(dataflow: Dataflow, manifest: Manifest) -> set[str]:
    """Return operators without state: the manifest does not list even their first arrangement."""
    missing = dataflow.slots.keys() - manifest.runs.keys()
    return {name for slot in missing if slot == slot_names(dataflow.operators[name := dataflow.slots[slot]])[0]}


def loaded_tables(dataflow: Dataflow, load: LoadPlan) -> Mapping[str, int]:
    """Return the base tables that the backfill reads, by input operator."""
    return {name: t for name in load.active if (t := dataflow.operators[name].input_table) is not None}


ScannedPartitions = Mapping[int, Sequence[TablePartition]]
"""Scanned parts of tables, by table id."""


@dataclass(frozen=True)
class LoadResult:
    """The result of a backfill at a cut: the new operators, their runs, and the deltas at the views' sinks."""

    cut: int
    new_operators: frozenset[str]
    entries: tuple[RunEntry, ...]
    deltas: Mapping[int, list[pa.Table]]
    capture_marks: Mapping[int, CaptureMark]
    """The capture mark at the cut, by table."""

    def slots(self, dataflow: Dataflow) -> frozenset[str]:
        """Return the new operators' slots, including those without rows."""
        return frozenset(
            s for name in self.new_operators if name in dataflow.operators for s in slot_names(dataflow.operators[name])
        )

    def merged_manifest(self, dataflow: Dataflow, shared_manifest: Manifest) -> Manifest:
        """Return the shared manifest at this cut, with the new operators' runs in their slots."""
        own_slots = self.slots(dataflow)
        manifest = shared_manifest.restricted_to(dataflow.slots.keys() - own_slots).with_entries(self.entries)
        # Loaded operators are listed even when they hold no rows yet, so that they count as loaded.
        return replace(manifest, runs={**dict.fromkeys(own_slots, ()), **manifest.runs})

    def has_lost_operators(self, dataflow: Dataflow, shared_manifest: Manifest) -> bool:
        """Whether an operator that was shared at the start has lost its state, since its other views were suspended."""
        return not operators_without_state(dataflow, shared_manifest) <= self.new_operators


def backfill(
    executor: BatchExecutor,
    dataflow: Dataflow,
    views: frozenset[int],
    cut: int,
    number: int,
    names: Mapping[int, str],
    lane: str = "auto",
    progress: Progress | None = None,
    *,
    capture_marks: Mapping[int, CaptureMark] | None = None,
    known_inputs: Mapping[str, InputSource] | None = None,
    keep_state: bool = True,
    standalone: bool = False,
    live_partitions: ScannedPartitions | None = None,
    partition_store: PartitionStore | None = None,
) -> LoadResult:
    """Step 1. The executor's state is that of the published batch with this cut.

    `known_inputs`: inputs whose rows are in memory. Without `keep_state` only the views' rows are computed.
    `capture_marks`: those of the published batch; raises CutMoved if the scanned tables' marks differ, unless the
    backfill is `standalone`, which means that no other view shares its operators.
    `live_partitions`: parts of tables that were scanned before the cut was chosen. `partition_store` keeps scanned
    parts on disk.
    """
    rows = sum(executor.store.count(dataflow.tables[t]) for t in dataflow.used_columns)
    choice = executor.choose_lane(lane, rows, "load")
    chosen_lane, started = choice.lane, time.perf_counter()
    plan = _plan_backfill(executor, dataflow, views, chosen_lane)
    inputs: dict[str, InputSource] = {}
    for name, table in loaded_tables(dataflow, plan).items():
        source = _table_source(executor, dataflow, plan.new_operators, table, cut, progress)
        if isinstance(source, TableScan):
            source = replace(
                source, partitions=tuple((live_partitions or {}).get(table, ())), partition_store=partition_store
            )
        inputs[name] = source
    inputs |= {name: rows for name, rows in (known_inputs or {}).items() if name in inputs}
    scanned = [rows.table for rows in inputs.values() if isinstance(rows, TableScan)]
    before = _match_capture_marks(
        executor, scanned, cut, {} if standalone or capture_marks is None else capture_marks, standalone
    )
    for name in plan.full_operators:
        inputs[name] = Deferred(partial(_full_output, executor, dataflow.operators[name]))
    keep_slots = None if keep_state else frozenset[str]()
    operator_progress = (
        None if progress is None else partial(progress, f"working out {' and '.join(names[v] for v in views)}")
    )
    result = executor.run(
        number, chosen_lane, dataflow, plan.active, inputs, names, plan.new_operators, keep_slots, operator_progress
    )
    entries = tuple(result.entries)
    executor.observe(choice, rows, time.perf_counter() - started, "load")
    after = _match_capture_marks(executor, scanned, cut, before, standalone)
    if not standalone:
        _require_unmoved(executor, (table for table in scanned if table.id in (capture_marks or {})), cut)
    return LoadResult(cut, plan.new_operators, entries, {v: result.deltas.get(v, []) for v in views}, after)


def scan_live_tables(
    executor: BatchExecutor,
    dataflow: Dataflow,
    views: frozenset[int],
    lane: str = "auto",
    progress: Progress | None = None,
    partition_store: PartitionStore | None = None,
) -> ScannedPartitions:
    """Before step 1: scan the tables that it will read, if the store cannot scan them as of a past cut."""
    store = executor.store
    if all(store.can_scan_at(table) for table in dataflow.tables.values()):
        return {}
    chosen = executor.choose_lane(lane, sum(store.count(dataflow.tables[t]) for t in dataflow.used_columns), "load")
    plan = _plan_backfill(executor, dataflow, views, chosen.lane)
    tables = loaded_tables(dataflow, plan).values()
    scans = [
        source
        for source in (_table_source(executor, dataflow, plan.new_operators, t, 0, None) for t in tables)
        if isinstance(source, TableScan)
    ]
    return {
        scan.table.id: scan_live(store, scan.table, scan.columns, progress, partition_store)
        for scan in scans
        if not store.can_scan_at(scan.table)
    }


def _plan_backfill(executor: BatchExecutor, dataflow: Dataflow, views: frozenset[int], lane: str) -> LoadPlan:
    new = missing_state(dataflow, executor.state) | {dataflow.sink(v).id for v in views}
    return plan_load(dataflow, new, lane == "spark")


def catch_up(
    executor: BatchExecutor,
    dataflow: Dataflow,
    result: LoadResult,
    batch: Batch,
    names: Mapping[int, str],
    lane: str = "auto",
) -> LoadResult:
    """Step 2: advance to the cut of a later batch.

    The executor's state is `result.merged_manifest` over the shared state at `result.cut`. Raises CutMoved if the
    tables' capture marks differ from that batch's, or if the rows read may be newer than its cut: after the next batch,
    which brings these changes to all views, the caller repeats this step.
    """
    upstream = dataflow.upstream([*(dataflow.sink(v).id for v in result.deltas), *result.new_operators])
    tables = [t for t in dataflow.used_columns if Input(t).id in upstream]
    deltas, capture_marks = executor.capture.read_changes(dataflow, result.cut, batch.cut, result.capture_marks, tables)
    shared = [dataflow.tables[t] for t in tables if t in batch.capture_marks]
    capture_marks |= _match_capture_marks(executor, shared, batch.cut, batch.capture_marks, standalone=False)
    _require_unmoved(executor, shared, batch.cut)
    chosen_lane = executor.choose_lane(lane, sum(d.num_rows for d in deltas.values())).lane
    active = dataflow.batch_operators & upstream
    new_result = executor.run(
        batch.number + 1, chosen_lane, dataflow, active, memory_inputs(deltas), names, keep_slots=result.slots(dataflow)
    )
    rows = {v: [*before, *new_result.deltas.get(v, [])] for v, before in result.deltas.items()}
    return LoadResult(batch.cut, result.new_operators, (*result.entries, *new_result.entries), rows, capture_marks)


def regenerate_rows(
    executor: BatchExecutor,
    dataflow: Dataflow,
    view: int,
    cut: int,
    names: Mapping[int, str],
    progress: Progress | None = None,
) -> list[pa.Table]:
    """Compute a view's rows from the state behind it, without keeping new state; for views that are not stored."""
    plan = plan_load(dataflow, {dataflow.sink(view).id}, False)
    inputs: dict[str, InputSource] = {}
    for name, table in loaded_tables(dataflow, plan).items():
        inputs[name] = _table_source(executor, dataflow, frozenset(), table, cut, progress)
    for name in plan.full_operators:
        inputs[name] = Deferred(partial(_full_output, executor, dataflow.operators[name]))
    result = executor.run(0, "driver", dataflow, plan.active, inputs, names, keep_slots=frozenset())
    return list(result.deltas.get(view, ()))


def _full_output(executor: BatchExecutor, operator: Operator) -> pa.Table:
    """Return the whole output of an operator that other views maintain already."""
    with attribute_errors(operator.id):
        return operator.full(executor.statements, [executor.state.arrangement(slot) for slot in slot_names(operator)])


def throttle(progress: Progress | None, rows_per_second: float) -> Progress:
    """Return a progress callback that sleeps, so that scans read at most `rows_per_second`."""
    start_times: dict[str, float] = {}
    resumed_rows: dict[str, int] = {}

    def report(step_text: str, done: int, expected: int) -> None:
        step, _, table = step_text.partition(" ")
        if step == "resuming":  # these rows were scanned before
            resumed_rows[table] = done
        started = start_times.setdefault(table, time.monotonic())
        scanned = done - resumed_rows.get(table, 0)
        time.sleep(max(0.0, scanned / rows_per_second - (time.monotonic() - started)))
        if progress is not None:
            progress(step_text, done, expected)

    return report


def _match_capture_marks(
    executor: BatchExecutor, tables: Iterable[Table], cut: int, expected: Mapping[int, CaptureMark], standalone: bool
) -> dict[int, CaptureMark]:
    """Return the tables' marks at a cut; raises CutMoved if one differs from `expected`, unless `standalone`."""
    marks = dict(expected)
    for table in tables:
        mark = executor.store.capture_mark(table, cut, marks.get(table.id))
        if mark is not None:
            marks[table.id] = mark
        elif not standalone:
            raise CutMoved
    return marks


def _require_unmoved(executor: BatchExecutor, shared_tables: Iterable[Table], cut: int) -> None:
    """Raise CutMoved if rows read from tables that other views share may be newer than the cut.

    The other views contain the rows at the cut, and the backfilled state must agree with theirs.
    """
    if any(executor.store.has_moved(table, cut) for table in shared_tables):
        raise CutMoved


def _table_source(
    executor: BatchExecutor,
    dataflow: Dataflow,
    new_operators: frozenset[str],
    table_id: int,
    cut: int,
    progress: Progress | None,
) -> InputSource:
    """Return a base table at the cut: from an image that has all columns, else by a scan of the store."""
    columns = tuple(c.name for c in dataflow.used_columns[table_id])
    images = [image for image in dataflow.images.get(table_id, ()) if image.id not in new_operators]
    # The image by primary key is dropped when another arrangement replaces it; until then it can be read.
    primary = TableImage(table_id, tuple(k.column for k in dataflow.tables[table_id].key))
    for image in [*images, primary]:
        slot = slot_names(image)[0]
        runs = executor.state.arrangement(slot).runs
        if slot in executor.state.manifest.runs and all(set(columns) <= set(r.rows.column_names) for r in runs):
            return ImageRows(str(executor.state.directory), executor.state.manifest.runs[slot], columns)
    return TableScan(executor.store, dataflow.tables[table_id], columns, cut, progress)
