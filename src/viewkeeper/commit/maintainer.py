"""The maintainer: brings every view to a cut of the log, one batch at a time.

Steps of a batch, numbered the same in code, tests and docs:

    1  choose the cut: the log's head, or as many write calls as the batch may have
    2  run the rounds; they leave a file of runs tagged with the batch
    3  write the view changes and the batch record {number, cut, manifest}
    4  publish: where the store has atomic batches, 3 and 4 are one transaction
    5  later: merge runs, forget log entries and files that nobody needs

The batch record is the only truth. Until step 4 nothing has happened; after it, everything has.

Threads: `lock` is held for a batch and for whatever else publishes; `defining` for a change of the views, most of
which happens beside the batches (`loading`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.commit import crash
from viewkeeper.commit.loading import Loaded, catch_up, load
from viewkeeper.commit.manifest import Manifest
from viewkeeper.commit.merge import Merger
from viewkeeper.commit.recent import Recent
from viewkeeper.commit.sink import resolve
from viewkeeper.commit.stage import BrokenViews, Stage, choose_lane, given_rows, in_batches
from viewkeeper.commit.state import State
from viewkeeper.model.catalog import Catalog, Suspension, View
from viewkeeper.model.delta import weighted
from viewkeeper.model.schema import COUNT, WEIGHT, Table
from viewkeeper.plan import expressions
from viewkeeper.plan.compiler import ViewPlan
from viewkeeper.plan.flow import Flow, assemble, slots
from viewkeeper.rounds.given import Progress
from viewkeeper.store.base import Batch, Store, StreamChange, ViewChange

_FINAL_ROWS = 20_000
"""Changed rows that a load leaves for its last step, in which no batch runs."""

_TIDY_SECONDS = 0.5
"""Between two clean-ups of log and files: each is a durable write of its own."""


@dataclass(frozen=True)
class BatchReport:
    """What a refresh did. `epoch` is the published batch; `views` counts changed rows by view."""

    epoch: int
    changes: int
    lane: str
    seconds: float
    views: Mapping[str, int] = field(default_factory=dict)
    suspended: tuple[str, ...] = ()
    """Views that failed on their own rows and were suspended, if that was asked for."""


@dataclass(frozen=True)
class _Mark:
    """A published batch as a load sees it."""

    catalog: Catalog
    batch: Batch
    manifest: Manifest


class Maintainer:
    """Owns the lease, the graph of all views, and the open state. One at a time for each database.

    `retention`: seconds for which log entries are kept after the views have them, for subscribers that come back.
    """

    def __init__(
        self, store: Store, spark: Callable[[], Any], *, durable: bool = True, threads: int = 2, retention: float = 0.0
    ) -> None:
        self.store = store
        self.lock = threading.RLock()
        self.defining = threading.RLock()
        self.retention = retention
        self.suspends = False
        self.on_batch: Callable[[BatchReport], None] | None = None
        self.recent = Recent()
        self.lease = store.acquire_lease()
        try:
            self._spark, self._durable, self._threads = spark, durable, threads
            batch = store.published()
            manifest = Manifest(fingerprint=expressions.FINGERPRINT)
            if batch is not None:
                manifest = Manifest.from_json(batch.record["manifest"])
            self.batch = batch or Batch(0, store.head(), {})
            self.state = State(store.state_path, manifest)
            self.stage = Stage(store, self.state, spark, durable=durable, threads=threads)
            self._merger = Merger(self.state, durable)
            self.state.collect()
            self._loading: dict[int, int] = {}
            self._cuts: deque[tuple[float, int]] = deque([(time.monotonic(), self.batch.cut)])
            self._tidied = 0.0
            self._adopt_catalog(store.catalog())
            if manifest.fingerprint != expressions.FINGERPRINT:
                self.rebuild()
        except BaseException:
            self.lease.release()
            raise

    def close(self) -> None:
        with self.lock:
            self._merger.close()
            self.stage.close()
            self.lease.release()

    # -- batches ------------------------------------------------------------------------------------------------------

    def refresh(self, lane: str = "auto", *, max_changes: int | None = None) -> BatchReport:
        """Bring every view to the head of the log, or `max_changes` further, in one batch.

        A view that fails on its own rows stops the batch; if this maintainer `suspends`, it is taken out and the others
        go on.
        """
        stopped: list[str] = []
        with self.lock:
            while True:
                try:
                    report = replace(self._refresh(lane, max_changes), suspended=tuple(stopped))
                    if self.on_batch is not None and (report.lane != "none" or stopped):
                        self.on_batch(report)
                    return report
                except BrokenViews as broken:
                    if not self.suspends or not broken.views:
                        raise
                    stopped += self.suspend(broken.views, broken.message)

    def _refresh(self, lane: str, max_changes: int | None) -> BatchReport:
        started = time.perf_counter()
        self._follow_catalog()
        crash.point("commit.1.before")
        tables = [t.id for t in self.catalog.tables]
        cut = self.store.head()  # step 1
        waiting = self.store.pending(self.batch.cut, tables)
        if waiting.calls == 0:
            return BatchReport(self.batch.number, 0, "none", time.perf_counter() - started)
        if max_changes is not None and waiting.rows > max_changes:
            cut = self.store.cut_after(self.batch.cut, tables, max_changes)
        crash.point("commit.1.after")
        self._merger.adopt()
        number = self.batch.number + 1
        deltas = self.stage.changes(self.flow, self.batch.cut, cut)  # step 2
        changes = sum(d.num_rows for d in deltas.values())
        chosen = choose_lane(lane, changes)
        captured = time.perf_counter()
        outcome = self.stage.run(number, chosen, self.flow, in_batches(self.flow), given_rows(deltas), self._names)
        crash.point("commit.2.after")
        ran = time.perf_counter()
        views = self._resolve(outcome.reached)
        self._publish(number, cut, self.state.manifest.plus(outcome.entries), views)
        done = time.perf_counter()
        self.recent.add(done - started, waiting.rows, (captured - started, ran - captured, done - ran))
        self._tidy({e.slot for e in outcome.entries})
        changed = {c.table.name: _size(c) for c in views}
        return BatchReport(number, changes, chosen, time.perf_counter() - started, changed)

    # -- views --------------------------------------------------------------------------------------------------------

    def create(self, view: View, lane: str = "auto", progress: Progress | None = None) -> None:
        """Load a new view beside the batches that go on, and publish it together with its catalog entry."""
        self._bring_in(
            frozenset([view.table.id]), lambda c, since: c.with_view(replace(view, since=since)), lane, progress
        )

    def replace(
        self,
        old: View,
        new: View,
        users: frozenset[int],
        lane: str = "auto",
        progress: Progress | None = None,
    ) -> None:
        """Build another definition beside the old one and switch in one batch, with the views that read it.

        If it has the same table, its rows change by the difference; else the old rows go with the old view.
        """

        maintained = [v for v in self.catalog.views if v.suspended is None and v.table.id in users]

        def change(catalog: Catalog, since: int) -> Catalog:
            if new.table.id != old.table.id:
                return catalog.without(old.table.id).with_view(replace(new, since=since))
            for view in (replace(new, since=old.since), *maintained):
                catalog = catalog.replacing(_restarted(view, since))
            return catalog

        views = frozenset([new.table.id, *(v.table.id for v in maintained)])
        self._bring_in(views, change, lane, progress)
        if new.table.id != old.table.id:
            self.store.drop_rows(old.table)

    def drop(self, view: View) -> None:
        """Forget a view and the state that no other view shares."""
        with self.defining, self.lock:
            self._publish_only(lambda c: c.without(view.table.id))
            self.store.drop_rows(view.table)
            self._tidy((), now=True)

    def suspend(self, views: frozenset[int], reason: str) -> list[str]:
        """Stop maintaining these views; they keep showing this batch, and their state is freed."""
        with self.lock:
            now = Suspension(reason, self.batch.number, self.batch.cut, time.time())
            stopped = [v for v in self.catalog.views if v.table.id in views and v.suspended is None]

            def change(catalog: Catalog) -> Catalog:
                for view in stopped:
                    catalog = catalog.replacing(replace(view, suspended=now))
                return catalog

            self._publish_only(change)
            return [v.table.name for v in stopped]

    def resume(self, view: View, lane: str = "auto", progress: Progress | None = None) -> None:
        """Build a suspended view's state anew and bring its table in line with it."""

        def change(catalog: Catalog, since: int) -> Catalog:
            return catalog.replacing(_restarted(replace(view, suspended=None), since))

        self._bring_in(frozenset([view.table.id]), change, lane, progress)

    def rebuild(self) -> None:
        """Make all state anew at the published cut and bring the views' tables in line with it."""
        with self.lock:
            self.state.manifest = Manifest(fingerprint=expressions.FINGERPRINT)
            if self.flow.sinks:

                def change(catalog: Catalog, since: int) -> Catalog:
                    for view in catalog.views:
                        catalog = catalog.replacing(_restarted(view, since))
                    return catalog

                self._bring_in(frozenset(self.flow.sinks), change, "auto", None)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _flow(self, catalog: Catalog) -> Flow:
        """The graph of the views that are maintained; a suspended view is still a definition that others may use."""
        tables = {t.id: t for t in catalog.tables}
        plans = {v.table.id: ViewPlan.from_json(v.plan) for v in catalog.views}
        active = [v.table.id for v in catalog.views if v.suspended is None]
        return assemble(tables, plans, active, not self.store.capabilities.before_images)

    def _adopt_catalog(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.flow = self._flow(catalog)
        self._names = {v.table.id: v.table.name for v in catalog.views}

    def _follow_catalog(self) -> None:
        """Other processes may add tables; views change only here. A commit that failed may have happened after all."""
        batch = self.store.published()
        if batch is not None and batch.number > self.batch.number:
            self.batch = batch
            self.state.adopt(Manifest.from_json(batch.record["manifest"]))
        current = self.store.catalog()
        if current.version != self.catalog.version:
            self._adopt_catalog(current)

    def _bring_in(
        self,
        views: frozenset[int],
        change: Callable[[Catalog, int], Catalog],
        lane: str,
        progress: Progress | None,
    ) -> None:
        """Load views beside the batches that go on, catch up, and publish them with the catalog's change."""
        with self.defining:
            while not self._load(views, change, lane, progress):
                pass

    def _load(
        self,
        views: frozenset[int],
        change: Callable[[Catalog, int], Catalog],
        lane: str,
        progress: Progress | None,
    ) -> bool:
        """The numbered steps of `loading`; False if what it shared with other views is gone, and it must start over."""
        with self.lock:
            mark = self._mark()
            ticket = id(mark)
            self._loading[ticket] = mark.batch.cut  # keeps log and files
        state = State(str(self.state.directory), mark.manifest)
        stage = Stage(self.store, state, self._spark, durable=self._durable, threads=self._threads)
        try:
            changed = change(mark.catalog, 0)
            flow = self._flow(changed)
            names = {v.table.id: v.table.name for v in changed.views}
            loaded = load(stage, flow, views, mark.batch.cut, mark.batch.number + 1, names, lane, progress)  # 1
            crash.point("load.1.after")
            while True:
                state.adopt(loaded.beside(flow, mark.manifest))
                if self.store.pending(loaded.cut, list(flow.used)).rows <= _FINAL_ROWS:
                    break
                with self.lock:
                    self.refresh()
                    mark = self._mark()
                loaded = catch_up(stage, flow, loaded, mark.batch.cut, mark.batch.number + 1, names, lane)  # 2
            crash.point("load.2.after")
            with self.lock:  # 3
                mark = self._mark()
                changed = change(mark.catalog, 0)
                flow = self._flow(changed)
                if loaded.misses(flow, mark.manifest):
                    return False
                if mark.batch.cut > loaded.cut:
                    loaded = catch_up(stage, flow, loaded, mark.batch.cut, mark.batch.number + 1, names, lane)
                self._publish_loaded(loaded, flow, changed, change)
            return True
        finally:
            self._loading.pop(ticket, None)
            stage.close()

    def _mark(self) -> _Mark:
        with self.lock:
            self._follow_catalog()
            return _Mark(self.catalog, self.batch, self.state.manifest)

    def _publish_loaded(
        self, loaded: Loaded, flow: Flow, catalog: Catalog, change: Callable[[Catalog, int], Catalog]
    ) -> None:
        there = {v.table.id: v.table for v in self.catalog.views}
        changes = []
        for view in (v for v in catalog.views if v.table.id in loaded.rows and v.table.is_stored):
            rows = list(loaded.rows[view.table.id])
            if view.table.id in there:
                rows.append(self._stored(view.table))
            found = resolve(self.stage.duck, self.store, view.table, [r for r in rows if r.num_rows])
            changes.extend([found] if found else [])
        manifest = loaded.beside(flow, self.state.manifest)
        # The store calls this in its transaction: the commit's own position is the next one.
        self._publish(self.batch.number + 1, loaded.cut, manifest, changes, lambda c: change(c, self.store.head() + 1))
        self._tidy((), now=True)

    def _stored(self, table: Table) -> pa.Table:
        """What a view's table holds now, as the delta that takes it away."""
        rows = pa.Table.from_batches(list(self.store.scan(table)), table.arrow)
        names = [f"o{i}" for i in range(len(table.columns))]
        if table.is_bag:
            weights = pc.negate(rows[COUNT])
            return rows.drop_columns([COUNT]).append_column(WEIGHT, weights).rename_columns([*names, WEIGHT])
        return weighted(rows, -1).rename_columns([*names, WEIGHT])

    def _resolve(self, reached: Mapping[int, list[pa.Table]]) -> list[ViewChange | StreamChange]:
        tables = {v.table.id: v.table for v in self.catalog.views}
        found = (resolve(self.stage.duck, self.store, tables[view], deltas) for view, deltas in reached.items())
        return [change for change in found if change is not None]

    def _publish_only(self, change: Callable[[Catalog], Catalog]) -> None:
        """A batch without changes that alters the views; state that none of them needs any more is let go."""
        flow = self._flow(change(self.catalog))
        kept = frozenset(s for o in flow.stateful() for s in slots(o))
        self._publish(self.batch.number + 1, self.batch.cut, self.state.manifest.only(kept), [], change)

    def _publish(
        self,
        number: int,
        cut: int,
        manifest: Manifest,
        views: list[ViewChange | StreamChange],
        change: Callable[[Catalog], Catalog] | None = None,
    ) -> None:
        record = {"manifest": manifest.to_json(), "time": time.time(), "recent": self.recent.summary()}
        batch = Batch(number, cut, record)
        crash.point("commit.3.before")
        self.store.commit(batch, views, change)  # steps 3 and 4
        crash.point("commit.4.after")
        self.batch = batch
        self.state.adopt(manifest)
        self._cuts.append((time.monotonic(), cut))
        if change is not None:
            self._adopt_catalog(self.store.catalog())

    def _tidy(self, changed: Iterable[str], now: bool = False) -> None:
        """Step 5. Merging begins after every batch, in the background; the rest is done once in a while."""
        published = self.state.manifest.files()
        self._merger.start(self.flow, self.batch.number, changed)
        if not now and time.monotonic() - self._tidied < _TIDY_SECONDS:
            return
        crash.point("commit.5.truncate")
        self._tidied = time.monotonic()
        upto = None
        while self._cuts and self._cuts[0][0] <= self._tidied - self.retention:
            upto = self._cuts.popleft()[1]
        if upto is not None:
            self._cuts.appendleft((self._tidied - self.retention, upto))
            self.store.truncate(min([upto, *self._loading.values()]))
        if not self._loading:
            self.state.collect(keep=published | self._merger.files)


def _restarted(view: View, since: int) -> View:
    """A view whose state was made anew. What a stored one had is known, so its deltas go on; others start over."""
    return view if view.table.is_stored else replace(view, since=since)


def _size(change: ViewChange | StreamChange) -> int:
    if isinstance(change, StreamChange):
        return int(change.delta.num_rows)
    return int(change.puts.num_rows + change.deletes.num_rows)
