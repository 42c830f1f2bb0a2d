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

from viewkeeper.capture.partition_store import Kept
from viewkeeper.capture.partitions import CutMoved, Part
from viewkeeper.capture.snapshot import Progress, scan_live
from viewkeeper.model.schema import Table
from viewkeeper.operators.kinds import Image, Input
from viewkeeper.operators.operator import Operator
from viewkeeper.plan.dataflow.dataflow import Flow, slots
from viewkeeper.runtime.executor import Stage, given_rows
from viewkeeper.runtime.inputs import Computed, Given, ImageRows, StoreScan
from viewkeeper.runtime.operator_errors import attributed_to
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.open_state import State
from viewkeeper.state.run_file import RunEntry
from viewkeeper.store.contract.store import Batch, Seen

# The first load of operators: a delta from nothing.
#
# To load an operator is to run it on the whole of its input with no old state. Inputs give whole tables at the
# published cut; operators that other views keep already stand for their whole state. So a load is a batch over a part
# of the graph: the new operators and the stateless ones between them and what is known.


@dataclass(frozen=True)
class Load:
    """What a load runs: `new` operators get state, `whole` ones give theirs, `active` take part."""

    new: frozenset[str]
    whole: frozenset[str]
    active: frozenset[str]


def plan_load(flow: Flow, new: Iterable[str], on_spark: bool) -> Load:
    """The part of the graph that a load of these operators runs through, in the lane it runs in."""
    fresh = frozenset(new)
    active: set[str] = set()
    whole: set[str] = set()
    waiting = [name for name in fresh if flow.operators[name].takes_part(on_spark)]
    while waiting:
        name = waiting.pop()
        if name in active or name in whole:
            continue
        operator = flow.operators[name]
        if operator.stateful and name not in fresh:
            # An arrangement gives its rows to lookups as it is; other state stands for the operator's whole output.
            if not operator.is_arrangement:
                whole.add(name)
            continue
        active.add(name)
        waiting.extend(s for s in flow.sources(operator) if flow.operators[s].takes_part(on_spark))
    return Load(fresh, frozenset(whole), frozenset(active | whole))


def missing_state(flow: Flow, state: State) -> set[str]:
    """Operators whose state is not there, or is too narrow: a view uses more columns of a table than before."""
    found = unlisted(flow, state.manifest)
    for image in (i for images in flow.images.values() for i in images if i.id not in found):
        wanted = {c.name for c in flow.held[image.id]}
        if not all(wanted <= columns for columns in state.columns(slots(image)[0])):
            found.add(image.id)
    return found


def unlisted(flow: Flow, manifest: Manifest) -> set[str]:
    """Operators that have no state: not even their first arrangement is listed."""
    missing = flow.slots.keys() - manifest.runs.keys()
    return {name for slot in missing if slot == slots(flow.operators[name := flow.slots[slot]])[0]}


def loaded_tables(flow: Flow, load: Load) -> Mapping[str, int]:
    """The inputs that the load reads: operator → table."""
    return {name: t for name in load.active if (t := flow.operators[name].changes_of) is not None}


Live = Mapping[int, Sequence[Part]]
"""Parts of tables, by table."""


@dataclass(frozen=True)
class Loaded:
    """New operators and views at a cut: the operators, their runs, and what reached the views' sinks."""

    cut: int
    new: frozenset[str]
    entries: tuple[RunEntry, ...]
    rows: Mapping[int, list[pa.Table]]
    seen: Mapping[int, Seen]
    """Of each table, what had been seen up to the cut."""

    def slots(self, flow: Flow) -> frozenset[str]:
        """The new operators' slots, those without rows too."""
        return frozenset(s for name in self.new if name in flow.operators for s in slots(flow.operators[name]))

    def beside(self, flow: Flow, shared: Manifest) -> Manifest:
        """The state at the cut, if `shared` is that of the other operators: runs of the new ones replace theirs."""
        mine = self.slots(flow)
        manifest = shared.only(flow.slots.keys() - mine).plus(self.entries)
        # Loaded operators are listed even when they hold no rows yet, so that they count as loaded.
        return replace(manifest, runs={**dict.fromkeys(mine, ()), **manifest.runs})

    def misses(self, flow: Flow, shared: Manifest) -> bool:
        """Whether an operator that was shared when loading began is gone: its other views were suspended."""
        return not unlisted(flow, shared) <= self.new


def load(
    stage: Stage,
    flow: Flow,
    views: frozenset[int],
    cut: int,
    number: int,
    names: Mapping[int, str],
    lane: str = "auto",
    progress: Progress | None = None,
    *,
    seen: Mapping[int, Seen] | None = None,
    known: Mapping[str, Given] | None = None,
    keep: bool = True,
    alone: bool = False,
    live: Live | None = None,
    kept: Kept | None = None,
) -> Loaded:
    """Step 1. The stage's state is that of the published batch with this cut.

    `known`: inputs whose rows are at hand. Without `keep` only the views' rows are wanted, not the operators' state.
    `seen`: what that batch had seen of the tables. What is read must be just that: CutMoved if it is not. Unless the
    load is `alone`: then no other view shares what is read.
    `live`: parts of tables that were scanned before the cut was chosen. `kept`: where parts outlive this process.
    """
    rows = sum(stage.store.count(flow.tables[t]) for t in flow.used)
    choice = stage.choose(lane, rows, "load")
    chosen, started = choice.lane, time.perf_counter()
    plan = _plan(stage, flow, views, chosen)
    given: dict[str, Given] = {}
    for name, table in loaded_tables(flow, plan).items():
        whole = _whole_table(stage, flow, plan.new, table, cut, progress)
        if isinstance(whole, StoreScan):
            whole = replace(whole, parts=tuple((live or {}).get(table, ())), kept=kept)
        given[name] = whole
    given |= {name: rows for name, rows in (known or {}).items() if name in given}
    scanned = [rows.table for rows in given.values() if isinstance(rows, StoreScan)]
    before = _watched(stage, scanned, cut, {} if alone or seen is None else seen, alone)
    for name in plan.whole:
        given[name] = Computed(partial(_full, stage, flow.operators[name]))
    only = None if keep else frozenset[str]()
    told = None if progress is None else partial(progress, f"working out {' and '.join(names[v] for v in views)}")
    outcome = stage.run(number, chosen, flow, plan.active, given, names, plan.new, only, told)
    entries = tuple(outcome.entries)
    stage.learn(choice, rows, time.perf_counter() - started, "load")
    after = _watched(stage, scanned, cut, before, alone)
    if not alone:
        _unmoved(stage, (table for table in scanned if table.id in (seen or {})), cut)
    return Loaded(cut, plan.new, entries, {v: outcome.reached.get(v, []) for v in views}, after)


def scan_first(
    stage: Stage,
    flow: Flow,
    views: frozenset[int],
    lane: str = "auto",
    progress: Progress | None = None,
    kept: Kept | None = None,
) -> Live:
    """Before step 1: the tables that it will read and whose past the store cannot show, as they are found."""
    store = stage.store
    if all(store.shows_past(table) for table in flow.tables.values()):
        return {}
    chosen = stage.choose(lane, sum(store.count(flow.tables[t]) for t in flow.used), "load")
    plan = _plan(stage, flow, views, chosen.lane)
    tables = loaded_tables(flow, plan).values()
    scans = [g for g in (_whole_table(stage, flow, plan.new, t, 0, None) for t in tables) if isinstance(g, StoreScan)]
    return {
        scan.table.id: scan_live(store, scan.table, scan.columns, progress, kept)
        for scan in scans
        if not store.shows_past(scan.table)
    }


def _plan(stage: Stage, flow: Flow, views: frozenset[int], lane: str) -> Load:
    new = missing_state(flow, stage.state) | {flow.sink(v).id for v in views}
    return plan_load(flow, new, lane == "spark")


def catch_up(
    stage: Stage, flow: Flow, loaded: Loaded, batch: Batch, names: Mapping[int, str], lane: str = "auto"
) -> Loaded:
    """Step 2: to the cut of a later batch. The stage's state is `loaded.beside` the shared state at `loaded.cut`.

    CutMoved if more can be seen of the tables by now than that batch had: the next one brings it to all views, and this
    step is done again. So it is if what was read of them may be newer than that batch's cut.
    """
    behind = flow.behind([*(flow.sink(v).id for v in loaded.rows), *loaded.new])
    tables = [t for t in flow.used if Input(t).id in behind]
    deltas, seen = stage.capture.changes(flow, loaded.cut, batch.cut, loaded.seen, tables)
    shared = [flow.tables[t] for t in tables if t in batch.seen]
    seen |= _watched(stage, shared, batch.cut, batch.seen, alone=False)
    _unmoved(stage, shared, batch.cut)
    chosen = stage.choose(lane, sum(d.num_rows for d in deltas.values())).lane
    active = flow.in_batches & behind
    outcome = stage.run(batch.number + 1, chosen, flow, active, given_rows(deltas), names, only=loaded.slots(flow))
    rows = {v: [*before, *outcome.reached.get(v, [])] for v, before in loaded.rows.items()}
    return Loaded(batch.cut, loaded.new, (*loaded.entries, *outcome.entries), rows, seen)


def regenerate(
    stage: Stage, flow: Flow, view: int, cut: int, names: Mapping[int, str], progress: Progress | None = None
) -> list[pa.Table]:
    """A view's rows from the state behind it, nothing kept: what a view that is not stored gives on request."""
    plan = plan_load(flow, {flow.sink(view).id}, False)
    given: dict[str, Given] = {}
    for name, table in loaded_tables(flow, plan).items():
        given[name] = _whole_table(stage, flow, frozenset(), table, cut, progress)
    for name in plan.whole:
        given[name] = Computed(partial(_full, stage, flow.operators[name]))
    outcome = stage.run(0, "driver", flow, plan.active, given, names, only=frozenset())
    return list(outcome.reached.get(view, ()))


def _full(stage: Stage, operator: Operator) -> pa.Table:
    """The whole output of an operator that other views keep already."""
    with attributed_to(operator.id):
        return operator.full(stage.duck, [stage.state.arrangement(slot) for slot in slots(operator)])


def throttled(progress: Progress | None, rows_per_second: float) -> Progress:
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


def _watched(stage: Stage, tables: Iterable[Table], cut: int, seen: Mapping[int, Seen], alone: bool) -> dict[int, Seen]:
    """What can be seen of the tables up to a cut, if that is what was `seen`, or does not matter; else CutMoved."""
    found = dict(seen)
    for table in tables:
        now = stage.store.watch(table, cut, found.get(table.id))
        if now is not None:
            found[table.id] = now
        elif not alone:
            raise CutMoved
    return found


def _unmoved(stage: Stage, shared: Iterable[Table], cut: int) -> None:
    """CutMoved if what was read of tables that other views read too may be newer than the cut: those views have the
    rows of the cut, and what is loaded here would be taken for what they have."""
    if any(stage.store.has_moved(table, cut) for table in shared):
        raise CutMoved


def _whole_table(
    stage: Stage, flow: Flow, new: frozenset[str], table_id: int, cut: int, progress: Progress | None
) -> Given:
    """A base table at the cut: an image of it if that is wide enough, else a scan of the store."""
    columns = tuple(c.name for c in flow.used[table_id])
    kept = [image for image in flow.images.get(table_id, ()) if image.id not in new]
    # The image by primary key is given up when another arrangement takes its place: until then it is there to read.
    primary = Image(table_id, tuple(k.column for k in flow.tables[table_id].key))
    for image in [*kept, primary]:
        slot = slots(image)[0]
        runs = stage.state.arrangement(slot).runs
        if slot in stage.state.manifest.runs and all(set(columns) <= set(r.rows.column_names) for r in runs):
            return ImageRows(str(stage.state.directory), stage.state.manifest.runs[slot], columns)
    return StoreScan(stage.store, flow.tables[table_id], columns, cut, progress)
