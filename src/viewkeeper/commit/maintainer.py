"""The maintainer: brings every view to a cut of the log, one batch at a time.

Steps of a batch, numbered the same in code, tests and docs:

    1  choose the cut: the log's head
    2  run the rounds; they leave a file of runs tagged with the batch
    3  write the view changes and the batch record {number, cut, manifest}
    4  publish: where the store has atomic batches, 3 and 4 are one transaction
    5  later: merge runs, forget log entries and files that nobody needs

The batch record is the only truth. Until step 4 nothing has happened; after it, everything has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from viewkeeper.commit import crash
from viewkeeper.commit.load import loaded_tables, missing_state, plan_load
from viewkeeper.commit.manifest import Manifest
from viewkeeper.commit.merge import merge_runs
from viewkeeper.commit.sink import resolve
from viewkeeper.commit.state import State
from viewkeeper.errors import UnknownName
from viewkeeper.model.catalog import Catalog, View
from viewkeeper.model.delta import weighted
from viewkeeper.model.schema import COUNT, WEIGHT
from viewkeeper.operators.consolidate import consolidate
from viewkeeper.operators.duck import Duck
from viewkeeper.operators.runs import RunEntry
from viewkeeper.plan import expressions
from viewkeeper.plan.compiler import ViewPlan
from viewkeeper.plan.dataflow import Input, Operator
from viewkeeper.plan.flow import Flow, assemble, slots
from viewkeeper.rounds.driver import run_in_driver
from viewkeeper.rounds.given import Computed, Given, ImageRows, Progress, Rows, StoreScan
from viewkeeper.rounds.site import Site, full, seed
from viewkeeper.store.base import Batch, Store, ViewChange

SPARK_ROWS = 4_000_000
"""Changed or loaded rows from which `auto` takes the Spark lane: below, a job costs more than it saves."""


@dataclass(frozen=True)
class BatchReport:
    """What a refresh did. `epoch` is the published batch; `views` counts changed rows by view."""

    epoch: int
    changes: int
    lane: str
    seconds: float
    views: Mapping[str, int] = field(default_factory=dict)


@dataclass
class Outcome:
    """What the rounds of a batch left: deltas at the sinks, and the runs they wrote."""

    reached: Mapping[int, list[pa.Table]]
    entries: list[RunEntry]


class Maintainer:
    """Owns the lease, the graph of all views, and the open state. One at a time for each database."""

    def __init__(self, store: Store, spark: Callable[[], Any], *, durable: bool = True, threads: int = 2) -> None:
        self.store = store
        self.lease = store.acquire_lease()
        try:
            self.duck = Duck(threads=threads, setup=expressions.setup)
            self._spark = spark
            self._durable = durable
            self.clock: Mapping[str, float] = {}
            batch = store.published()
            manifest = Manifest(fingerprint=expressions.FINGERPRINT)
            if batch is not None:
                manifest = Manifest.from_json(batch.record["manifest"])
            self.batch = batch or Batch(0, store.head(), {})
            self.state = State(store.state_path, manifest)
            self.state.collect()
            self._adopt_catalog(store.catalog())
            if manifest.fingerprint != expressions.FINGERPRINT:
                self.rebuild()
        except BaseException:
            self.lease.release()
            raise

    def close(self) -> None:
        self.duck.close()
        self.lease.release()

    # -- batches ------------------------------------------------------------------------------------------------------

    def refresh(self, lane: str = "auto") -> BatchReport:
        """Bring every view to the head of the log, in one batch."""
        started = time.perf_counter()
        self._follow_catalog()
        crash.point("commit.1.before")
        cut = self.store.head()  # step 1
        used = list(self.flow.used)
        waiting = self.store.pending(self.batch.cut, [t.id for t in self.catalog.tables])
        if waiting.calls == 0:
            return BatchReport(self.batch.number, 0, "none", time.perf_counter() - started)
        crash.point("commit.1.after")
        number = self.batch.number + 1
        deltas = {Input(table).id: self._changes(table, cut) for table in used}  # step 2
        changes = sum(d.num_rows for d in deltas.values())
        chosen = _lane(lane, changes)
        active = frozenset(n for n, o in self.flow.operators.items() if o.kind != "bulkjoin")
        outcome = self._run(number, chosen, self.flow, active, {n: Rows(d) for n, d in deltas.items()})
        crash.point("commit.2.after")
        views = self._resolve(outcome.reached)
        manifest = self.state.manifest.plus(outcome.entries)
        self._publish(number, cut, manifest, views)
        self._tidy({e.slot for e in outcome.entries})
        names = {v.table.id: v.table.name for v in self.catalog.views}
        changed = {names[c.table.id]: c.puts.num_rows + c.deletes.num_rows for c in views}
        return BatchReport(number, changes, chosen, time.perf_counter() - started, changed)

    def create(self, view: View, lane: str = "auto", progress: Progress | None = None) -> None:
        """Load a new view at the published cut and publish it together with its catalog entry."""
        flow = self._flow(self.catalog.with_view(view))
        self._load(flow, frozenset([view.table.id]), lane, progress, lambda c: c.with_view(view))

    def drop(self, view: View) -> None:
        """Forget a view and the state that no other view shares."""
        flow = self._flow(self.catalog.without(view.table.id))
        kept = frozenset(s for o in flow.stateful() for s in slots(o))
        number = self.batch.number + 1
        self._publish(number, self.batch.cut, self.state.manifest.only(kept), [], lambda c: c.without(view.table.id))
        self.store.drop_rows(view.table)
        self._tidy(())

    def rebuild(self) -> None:
        """Make all state anew at the published cut and bring the views' tables in line with it."""
        self.state.manifest = Manifest(fingerprint=expressions.FINGERPRINT)
        if self.flow.sinks:
            self._load(self.flow, frozenset(self.flow.sinks), "auto", None, None)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _flow(self, catalog: Catalog) -> Flow:
        tables = {t.id: t for t in catalog.tables}
        plans = {v.table.id: ViewPlan.from_json(v.plan) for v in catalog.views}
        return assemble(tables, plans, plans, not self.store.capabilities.before_images)

    def _adopt_catalog(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.flow = self._flow(catalog)

    def _follow_catalog(self) -> None:
        """Other processes may add tables; views change only here."""
        current = self.store.catalog()
        if current.version != self.catalog.version:
            self._adopt_catalog(current)

    def _changes(self, table_id: int, cut: int) -> pa.Table:
        table = self.flow.tables[table_id]
        columns = [c.name for c in self.flow.used[table_id]]
        return consolidate(self.duck, self.store.changes(table, columns, self.batch.cut, cut))

    def _run(
        self,
        number: int,
        lane: str,
        flow: Flow,
        active: frozenset[str],
        given: Mapping[str, Given],
        new: frozenset[str] = frozenset(),
    ) -> Outcome:
        """Step 2 in either lane."""
        hidden = frozenset(s for name in new for s in slots(flow.operators[name]))
        seeds = [fed for name in new for fed in seed(self.duck, flow.operators[name])]
        fail = partial(self._failure, flow)
        if lane == "spark":
            from viewkeeper.rounds.spark import run_on_spark

            manifest = {s: r for s, r in self.state.manifest.runs.items() if s not in hidden}
            directory = str(self.state.directory)
            reached, entries = run_on_spark(
                self._spark(), flow, active, given, seeds, manifest, directory, number, self._durable, self.duck, fail
            )
            return Outcome(reached, entries)
        site = Site(self.duck, flow, partial(self._old, hidden), active)
        reached = run_in_driver(site, given, seeds, fail)
        self.clock = site.clock
        return Outcome(reached, self.state.write(number, site.added, self._durable))

    def _old(self, hidden: frozenset[str], slot: str) -> Any:
        from viewkeeper.operators.arrangement import Arrangement

        return Arrangement(()) if slot in hidden else self.state.arrangement(slot)

    def _load(
        self,
        flow: Flow,
        views: frozenset[int],
        lane: str,
        progress: Progress | None,
        change: Callable[[Catalog], Catalog] | None,
    ) -> None:
        new = missing_state(flow, self.state) | {flow.sinks[v].id for v in views}
        sizes = {t: self.store.count(flow.tables[t]) for t in flow.used}
        chosen = _lane(lane, sum(sizes.values()))
        load = plan_load(flow, new, chosen == "spark")
        columns = {t: [c.name for c in flow.used[t]] for t in flow.used}
        given: dict[str, Given] = {}
        for name, table in loaded_tables(flow, load).items():
            given[name] = self._whole_table(flow, load.new, table, columns[table], progress)
        site = Site(self.duck, flow, self.state.arrangement, load.active)
        for name in load.whole:
            given[name] = Computed(partial(full, site, flow.operators[name]))
        number = self.batch.number + 1
        outcome = self._run(number, chosen, flow, load.active, given, load.new)
        existing = {v.table.id: v.table for v in self.catalog.views}
        tables = existing | {v.table.id: v.table for v in (change(self.catalog) if change else self.catalog).views}
        changes = []
        for view in views:
            reached = list(outcome.reached.get(view, ()))
            if view in existing:
                reached.append(self._stored(existing[view].id))
            found = resolve(self.duck, self.store, tables[view], [r for r in reached if r.num_rows])
            changes.extend([found] if found else [])
        kept = frozenset(s for o in flow.stateful() if o.id not in load.new for s in slots(o))
        manifest = self.state.manifest.only(kept).plus(outcome.entries)
        manifest = _with_empty(manifest, flow, load.new)
        self._publish(number, self.batch.cut, manifest, changes, change)
        self._tidy(())

    def _stored(self, view: int) -> pa.Table:
        """What a view's table holds now, as the delta that takes it away."""
        table = next(v.table for v in self.catalog.views if v.table.id == view)
        batches = list(self.store.scan(table))
        rows = pa.Table.from_batches(batches, table.arrow)
        names = [f"o{i}" for i in range(len(table.columns))]
        if table.is_bag:
            weights = pa.array([-c for c in rows[COUNT].to_pylist()], pa.int64())
            return rows.drop_columns([COUNT]).append_column(WEIGHT, weights).rename_columns([*names, WEIGHT])
        return weighted(rows, -1).rename_columns([*names, WEIGHT])

    def _whole_table(
        self, flow: Flow, new: frozenset[str], table_id: int, columns: list[str], progress: Progress | None
    ) -> Given:
        """A base table at the published cut: its image if that is wide enough, else a scan of the store."""
        table = flow.tables[table_id]
        for image in flow.images.get(table_id, ()):
            if image.id not in new:
                entries = self.state.manifest.runs[slots(image)[0]]
                return ImageRows(str(self.state.directory), entries, tuple(columns))
        return StoreScan(self.store, table, tuple(columns), self.batch.cut, progress)

    def _resolve(self, reached: Mapping[int, list[pa.Table]]) -> list[ViewChange]:
        tables = {v.table.id: v.table for v in self.catalog.views}
        found = (resolve(self.duck, self.store, tables[view], deltas) for view, deltas in reached.items())
        return [change for change in found if change is not None]

    def _publish(
        self,
        number: int,
        cut: int,
        manifest: Manifest,
        views: list[ViewChange],
        change: Callable[[Catalog], Catalog] | None = None,
    ) -> None:
        batch = Batch(number, cut, {"manifest": manifest.to_json(), "time": time.time()})
        crash.point("commit.3.before")
        self.store.commit(batch, views, change)  # steps 3 and 4
        crash.point("commit.4.after")
        self.batch = batch
        self.state.adopt(manifest)
        if change is not None:
            self._adopt_catalog(self.store.catalog())

    def _tidy(self, changed: Iterable[str]) -> None:
        """Step 5."""
        published = self.state.manifest.files()
        merge_runs(self.duck, self.flow, self.state, self.batch.number, changed, self._durable)
        crash.point("commit.5.truncate")
        self.store.truncate(self.batch.cut)
        self.state.collect(keep=published)

    def _failure(self, flow: Flow, operator: Operator, error: Exception) -> Exception:
        """An expression's error, naming the views it stops; anything else as it is."""
        found = expressions.error_code(error)
        if found is None:
            return error
        names = {v.table.id: v.table.name for v in self.catalog.views}
        stopped = sorted(names.get(v, "the new view") for v in flow.views_of.get(operator.id, ()))
        return type(found)(f"{', '.join(stopped)}: {found.message}")


def _lane(asked: str, rows: int) -> str:
    if asked not in ("auto", "driver", "spark"):
        raise UnknownName(f"There is no lane {asked!r}.", hint="Lanes: auto, driver, spark.")
    if asked != "auto":
        return asked
    return "spark" if rows >= SPARK_ROWS else "driver"


def _with_empty(manifest: Manifest, flow: Flow, new: frozenset[str]) -> Manifest:
    """Loaded operators are listed even when they hold no rows yet, so that they count as loaded."""
    runs: dict[str, tuple[RunEntry, ...]] = dict(manifest.runs)
    for name in new:
        for slot in slots(flow.operators[name]):
            runs.setdefault(slot, ())
    return replace(manifest, runs=runs)
