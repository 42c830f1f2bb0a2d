"""Loading views beside the batches that go on: the seeds' hybrid, in parallel.

    1  at a published batch: load the new operators and the views' rows from images and exact scans, at its cut c₀
    2  meanwhile other batches were published, up to cut c₁: run (c₀, c₁] through the new part of the graph, over the
       shared state as the batch of c₀ left it; repeat until little is left
    3  the rest, and publication, while no batch runs

A store that cannot show the past is scanned first, and c₀ is the batch that comes after. What step 1 has read of large
tables is kept on disk until step 3 is done: after a crash or an interruption the next load begins with it.

Shared operators take part in step 2 only to give the new ones what they need: their own runs exist already. A cut falls
between write calls, so the state after step 2 is that of loading at c₁: nothing twice, nothing missing.
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

# The first load of operators: a delta from nothing.
#
# To load an operator is to run it on the whole of its input with no old state. Inputs give whole tables at the
# published cut; operators that other views keep already stand for their whole state. So a load is a batch over a part
# of the graph: the new operators and the stateless ones between them and what is known.


@dataclass(frozen=True)
class LoadPlan:
    """What a load runs: `new` operators get state, `whole` ones give theirs, `active` take part."""

    new_operators: frozenset[str]
    full_operators: frozenset[str]
    active: frozenset[str]


def plan_load(dataflow: Dataflow, new_operators: Iterable[str], on_spark: bool) -> LoadPlan:
    """The part of the graph that a load of these operators runs through, in the lane it runs in."""
    fresh = frozenset(new_operators)
    active: set[str] = set()
    whole: set[str] = set()
    waiting = [name for name in fresh if dataflow.operators[name].takes_part(on_spark)]
    while waiting:
        name = waiting.pop()
        if name in active or name in whole:
            continue
        operator = dataflow.operators[name]
        if operator.stateful and name not in fresh:
            # An arrangement gives its rows to lookups as it is; other state stands for the operator's whole output.
            if not operator.is_arrangement:
                whole.add(name)
            continue
        active.add(name)
        waiting.extend(s for s in dataflow.dependencies(operator) if dataflow.operators[s].takes_part(on_spark))
    return LoadPlan(fresh, frozenset(whole), frozenset(active | whole))


def missing_state(dataflow: Dataflow, state: OpenState) -> set[str]:
    """Operators whose state is not there, or is too narrow: a view uses more columns of a table than before."""
    found = operators_without_state(dataflow, state.manifest)
    for image in (i for images in dataflow.images.values() for i in images if i.id not in found):
        wanted = {c.name for c in dataflow.image_columns[image.id]}
        if not all(wanted <= columns for columns in state.column_sets(slot_names(image)[0])):
            found.add(image.id)
    return found


def operators_without_state(dataflow: Dataflow, manifest: Manifest) -> set[str]:
    """Operators that have no state: not even their first arrangement is listed."""
    missing = dataflow.slots.keys() - manifest.runs.keys()
    return {name for slot in missing if slot == slot_names(dataflow.operators[name := dataflow.slots[slot]])[0]}


def loaded_tables(dataflow: Dataflow, load: LoadPlan) -> Mapping[str, int]:
    """The inputs that the load reads: operator → table."""
    return {name: t for name in load.active if (t := dataflow.operators[name].input_table) is not None}


ScannedPartitions = Mapping[int, Sequence[TablePartition]]
"""Parts of tables, by table."""


@dataclass(frozen=True)
class LoadResult:
    """New operators and views at a cut: the operators, their runs, and what reached the views' sinks."""

    cut: int
    new_operators: frozenset[str]
    entries: tuple[RunEntry, ...]
    deltas: Mapping[int, list[pa.Table]]
    capture_marks: Mapping[int, CaptureMark]
    """Of each table, what had been seen up to the cut."""

    def slots(self, dataflow: Dataflow) -> frozenset[str]:
        """The new operators' slots, those without rows too."""
        return frozenset(
            s for name in self.new_operators if name in dataflow.operators for s in slot_names(dataflow.operators[name])
        )

    def merged_manifest(self, dataflow: Dataflow, shared_manifest: Manifest) -> Manifest:
        """The state at the cut, if `shared` is that of the other operators: runs of the new ones replace theirs."""
        mine = self.slots(dataflow)
        manifest = shared_manifest.restricted_to(dataflow.slots.keys() - mine).with_entries(self.entries)
        # Loaded operators are listed even when they hold no rows yet, so that they count as loaded.
        return replace(manifest, runs={**dict.fromkeys(mine, ()), **manifest.runs})

    def has_lost_operators(self, dataflow: Dataflow, shared_manifest: Manifest) -> bool:
        """Whether an operator that was shared when loading began is gone: its other views were suspended."""
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
    """Step 1. The stage's state is that of the published batch with this cut.

    `known`: inputs whose rows are at hand. Without `keep` only the views' rows are wanted, not the operators' state.
    `seen`: what that batch had seen of the tables. What is read must be just that: CutMoved if it is not. Unless the
    load is `alone`: then no other view shares what is read.
    `live`: parts of tables that were scanned before the cut was chosen. `kept`: where parts outlive this process.
    """
    rows = sum(executor.store.count(dataflow.tables[t]) for t in dataflow.used_columns)
    choice = executor.choose_lane(lane, rows, "load")
    chosen, started = choice.lane, time.perf_counter()
    plan = _plan_backfill(executor, dataflow, views, chosen)
    given: dict[str, InputSource] = {}
    for name, table in loaded_tables(dataflow, plan).items():
        whole = _table_source(executor, dataflow, plan.new_operators, table, cut, progress)
        if isinstance(whole, TableScan):
            whole = replace(
                whole, partitions=tuple((live_partitions or {}).get(table, ())), partition_store=partition_store
            )
        given[name] = whole
    given |= {name: rows for name, rows in (known_inputs or {}).items() if name in given}
    scanned = [rows.table for rows in given.values() if isinstance(rows, TableScan)]
    before = _match_capture_marks(
        executor, scanned, cut, {} if standalone or capture_marks is None else capture_marks, standalone
    )
    for name in plan.full_operators:
        given[name] = Deferred(partial(_full_output, executor, dataflow.operators[name]))
    only = None if keep_state else frozenset[str]()
    told = None if progress is None else partial(progress, f"working out {' and '.join(names[v] for v in views)}")
    outcome = executor.run(number, chosen, dataflow, plan.active, given, names, plan.new_operators, only, told)
    entries = tuple(outcome.entries)
    executor.observe(choice, rows, time.perf_counter() - started, "load")
    after = _match_capture_marks(executor, scanned, cut, before, standalone)
    if not standalone:
        _require_unmoved(executor, (table for table in scanned if table.id in (capture_marks or {})), cut)
    return LoadResult(cut, plan.new_operators, entries, {v: outcome.deltas.get(v, []) for v in views}, after)


def scan_live_tables(
    executor: BatchExecutor,
    dataflow: Dataflow,
    views: frozenset[int],
    lane: str = "auto",
    progress: Progress | None = None,
    partition_store: PartitionStore | None = None,
) -> ScannedPartitions:
    """Before step 1: the tables that it will read and whose past the store cannot show, as they are found."""
    store = executor.store
    if all(store.can_scan_at(table) for table in dataflow.tables.values()):
        return {}
    chosen = executor.choose_lane(lane, sum(store.count(dataflow.tables[t]) for t in dataflow.used_columns), "load")
    plan = _plan_backfill(executor, dataflow, views, chosen.lane)
    tables = loaded_tables(dataflow, plan).values()
    scans = [
        g
        for g in (_table_source(executor, dataflow, plan.new_operators, t, 0, None) for t in tables)
        if isinstance(g, TableScan)
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
    """Step 2: to the cut of a later batch. The stage's state is `loaded.beside` the shared state at `loaded.cut`.

    CutMoved if more can be seen of the tables by now than that batch had: the next one brings it to all views, and this
    step is done again. So it is if what was read of them may be newer than that batch's cut.
    """
    behind = dataflow.upstream([*(dataflow.sink(v).id for v in result.deltas), *result.new_operators])
    tables = [t for t in dataflow.used_columns if Input(t).id in behind]
    deltas, seen = executor.capture.read_changes(dataflow, result.cut, batch.cut, result.capture_marks, tables)
    shared = [dataflow.tables[t] for t in tables if t in batch.capture_marks]
    seen |= _match_capture_marks(executor, shared, batch.cut, batch.capture_marks, standalone=False)
    _require_unmoved(executor, shared, batch.cut)
    chosen = executor.choose_lane(lane, sum(d.num_rows for d in deltas.values())).lane
    active = dataflow.batch_operators & behind
    outcome = executor.run(
        batch.number + 1, chosen, dataflow, active, memory_inputs(deltas), names, keep_slots=result.slots(dataflow)
    )
    rows = {v: [*before, *outcome.deltas.get(v, [])] for v, before in result.deltas.items()}
    return LoadResult(batch.cut, result.new_operators, (*result.entries, *outcome.entries), rows, seen)


def regenerate_rows(
    executor: BatchExecutor,
    dataflow: Dataflow,
    view: int,
    cut: int,
    names: Mapping[int, str],
    progress: Progress | None = None,
) -> list[pa.Table]:
    """A view's rows from the state behind it, nothing kept: what a view that is not stored gives on request."""
    plan = plan_load(dataflow, {dataflow.sink(view).id}, False)
    given: dict[str, InputSource] = {}
    for name, table in loaded_tables(dataflow, plan).items():
        given[name] = _table_source(executor, dataflow, frozenset(), table, cut, progress)
    for name in plan.full_operators:
        given[name] = Deferred(partial(_full_output, executor, dataflow.operators[name]))
    outcome = executor.run(0, "driver", dataflow, plan.active, given, names, keep_slots=frozenset())
    return list(outcome.deltas.get(view, ()))


def _full_output(executor: BatchExecutor, operator: Operator) -> pa.Table:
    """The whole output of an operator that other views keep already."""
    with attribute_errors(operator.id):
        return operator.full(executor.statements, [executor.state.arrangement(slot) for slot in slot_names(operator)])


def throttle(progress: Progress | None, rows_per_second: float) -> Progress:
    """A progress report that waits, so that scans go no faster than this."""
    begun: dict[str, float] = {}
    kept: dict[str, int] = {}

    def report(what: str, done: int, expected: int) -> None:
        step, _, table = what.partition(" ")
        if step == "resuming":  # these rows were scanned before
            kept[table] = done
        started = begun.setdefault(table, time.monotonic())
        scanned = done - kept.get(table, 0)
        time.sleep(max(0.0, scanned / rows_per_second - (time.monotonic() - started)))
        if progress is not None:
            progress(what, done, expected)

    return report


def _match_capture_marks(
    executor: BatchExecutor, tables: Iterable[Table], cut: int, expected: Mapping[int, CaptureMark], standalone: bool
) -> dict[int, CaptureMark]:
    """What can be seen of the tables up to a cut, if that is what was `seen`, or does not matter; else CutMoved."""
    found = dict(expected)
    for table in tables:
        now = executor.store.capture_mark(table, cut, found.get(table.id))
        if now is not None:
            found[table.id] = now
        elif not standalone:
            raise CutMoved
    return found


def _require_unmoved(executor: BatchExecutor, shared_tables: Iterable[Table], cut: int) -> None:
    """CutMoved if what was read of tables that other views read too may be newer than the cut: those views have the
    rows of the cut, and what is loaded here would be taken for what they have."""
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
    """A base table at the cut: an image of it if that is wide enough, else a scan of the store."""
    columns = tuple(c.name for c in dataflow.used_columns[table_id])
    kept = [image for image in dataflow.images.get(table_id, ()) if image.id not in new_operators]
    # The image by primary key is given up when another arrangement takes its place: until then it is there to read.
    primary = TableImage(table_id, tuple(k.column for k in dataflow.tables[table_id].key))
    for image in [*kept, primary]:
        slot = slot_names(image)[0]
        runs = executor.state.arrangement(slot).runs
        if slot in executor.state.manifest.runs and all(set(columns) <= set(r.rows.column_names) for r in runs):
            return ImageRows(str(executor.state.directory), executor.state.manifest.runs[slot], columns)
    return TableScan(executor.store, dataflow.tables[table_id], columns, cut, progress)
