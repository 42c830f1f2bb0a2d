"""The maintainer: batches, and the views that come, change and go beside them.

A view is loaded while batches go on (`loading`), and published with its catalog entry in one batch; so is another
definition of it. Views with a strategy of their own are made anew when their interval is over (`schedule`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper import faults
from viewkeeper.commit.batches import Batches, BatchReport
from viewkeeper.commit.crossover import rows_beyond
from viewkeeper.commit.load import missing_state
from viewkeeper.commit.loading import CutMoved, Loaded, catch_up, load
from viewkeeper.commit.manifest import Manifest
from viewkeeper.commit.mending import damaged, spoiled, without
from viewkeeper.commit.schedule import due, interval_of, is_scheduled, remake
from viewkeeper.commit.sink import resolve
from viewkeeper.commit.stage import BrokenViews, Stage
from viewkeeper.commit.state import State
from viewkeeper.errors import CorruptState
from viewkeeper.model.catalog import Catalog, OwnCut, View
from viewkeeper.model.delta import weighted
from viewkeeper.model.schema import COUNT, WEIGHT, Table
from viewkeeper.plan import expressions
from viewkeeper.plan.compiler import ViewPlan
from viewkeeper.plan.flow import Flow, assemble, slots
from viewkeeper.rounds.given import Progress
from viewkeeper.store.base import Store

__all__ = ["BatchReport", "Maintainer"]

CONTRADICTION = "contradiction"
"""The store's record that state was found wrong though its checksums are right."""

MENDED = "mended"
"""The store's record of the last damage that was mended."""

_FINAL_ROWS = 20_000
"""Changed rows that a load leaves for its last step, in which no batch runs."""


class Maintainer(Batches):
    """Adds the life of views: create, replace, drop, resume, and strategies that run at intervals."""

    def __init__(
        self,
        store: Store,
        spark: Callable[[], Any],
        *,
        durable: bool = True,
        threads: int = 2,
        retention: float = 0.0,
        memory: int | None = None,
    ) -> None:
        super().__init__(store, spark, durable=durable, threads=threads, retention=retention, memory=memory)
        try:
            if self.state.manifest.fingerprint != expressions.fingerprint():
                self._sets = {}
                # Without its record nobody knows which cut the last batch had: the tables as they are now are one.
                self.rebuild(None if "manifest" in self.batch.record else store.head())
            elif self.batch.record.get("plan", self.flow.fingerprint) != self.flow.fingerprint:
                self._adapt()
        except BaseException:
            self.close()
            raise

    def refresh(self, lane: str = "auto", *, max_changes: int | None = None) -> BatchReport:
        """`Batches.refresh`, after mending if state or log are damaged."""
        with self.lock:
            try:
                return super().refresh(lane, max_changes=max_changes)
            except CorruptState as damage:
                mended = self.mend(damage)
                return replace(super().refresh(lane, max_changes=max_changes), mended=mended)
            except AssertionError as broken:  # operators assert what only wrong state can violate
                self._check_lease()  # or state that another process has changed meanwhile
                self.store.put_note(CONTRADICTION, {"time": time.time(), "error": str(broken)})
                raise CorruptState(
                    f"The state of the views contradicts itself ({broken}); nothing was published.",
                    hint="Run vk audit --repair: it makes anew what is wrong.",
                ) from broken

    def _made_anew(self, rows: int, started: float) -> BatchReport | None:
        """Everything anew where that is cheaper (`crossover`).

        Not where each write call's state must show, nor under views that are not stored, whose subscribers would have
        to start over.
        """
        changed = rows_beyond(self.store, self.flow, self.batch.cut, rows)
        if changed is None or self._complete or not all(v.table.is_stored for v in self.catalog.views):
            return None
        self.rebuild(self.store.head())
        seconds = time.perf_counter() - started
        self.recent.add(seconds, changed, (0.0, seconds, 0.0))
        return BatchReport(self.batch.number, changed, "rebuild", seconds)

    def create(self, view: View, lane: str = "auto", progress: Progress | None = None) -> None:
        """Load a new view beside the batches that go on, and publish it together with its catalog entry."""
        if is_scheduled(view):
            self._remake(view, is_new=True)
            return

        def change(catalog: Catalog, since: int) -> Catalog:
            return catalog.with_view(replace(view, since=since))

        self._bring_in(frozenset([view.table.id]), change, lane, progress)

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
            faults.point("view.published")
            self.store.drop_rows(old.table)

    def drop(self, view: View) -> None:
        """Forget a view and the state that no other view shares."""
        with self.defining, self.lock:
            self._publish_only(lambda c: c.without(view.table.id))
            faults.point("view.dropped")
            self.store.drop_rows(view.table)
            self._tidy((), now=True)

    def resume(self, view: View, lane: str = "auto", progress: Progress | None = None) -> None:
        """Build a suspended view's state anew and bring its table in line with it."""

        if is_scheduled(view):
            self._remake(replace(view, suspended=None))
            return

        def change(catalog: Catalog, since: int) -> Catalog:
            return catalog.replacing(_restarted(replace(view, suspended=None), since))

        self._bring_in(frozenset([view.table.id]), change, lane, progress)

    def remake(self, now: bool = False) -> int:
        """Run the strategies of the views whose interval is over, or `now` of all that changed; how many ran."""
        if not any(is_scheduled(v) for v in self.catalog.views):
            return 0
        if not self.defining.acquire(blocking=now):
            return 0  # a view is being defined: batches must not wait for it, and intervals can
        try:
            return self._remake_due(now)
        finally:
            self.defining.release()

    def _remake_due(self, now: bool) -> int:
        done = 0
        for view in due(self.catalog.views, float("inf") if now else None):
            if not now and time.monotonic() < self._looked.get(view.table.id, 0.0) + interval_of(view):
                continue
            self._looked[view.table.id] = time.monotonic()
            tables = [t.id for t in self.catalog.tables]
            if view.at is None or self.store.pending(view.at.low, tables).calls:
                try:
                    self._remake(view)
                except BrokenViews as broken:
                    if not self.suspends:
                        raise
                    self.suspend(broken.views, broken.message)
                done += 1
        return done

    def _remake(self, view: View, is_new: bool = False) -> None:
        with self.defining:
            with self.lock:
                mark = self._mark()
                ticket = id(mark)
                self._loading[ticket] = mark.batch.cut
            try:
                plans = {v.table.id: ViewPlan.from_json(v.plan) for v in (*mark.catalog.views, view)}
                tables = {t.id: t for t in mark.catalog.tables}
                flow = assemble(tables, plans, [view.table.id], True)
                known = self._sets.get(view.table.id)
                cut, number = mark.batch.cut, mark.batch.number + 1
                try:
                    made = remake(self.store, flow, view, cut, number, known, self._spark, self._durable)
                except CorruptState:  # of its own files, or of the log: it is made from the tables then
                    made = remake(self.store, flow, view, cut, number, None, self._spark, self._durable)
                faults.point("remake.after")
                with self.lock:
                    rows = [r for r in made.rows if r.num_rows]
                    if made.whole and not is_new:
                        rows.append(self._stored(view.table))
                    found = resolve(self.stage.duck, self.store, view.table, [r for r in rows if r.num_rows])
                    self._sets = {**self._sets, view.table.id: made.manifest or Manifest()}
                    at = OwnCut(self.batch.number + 1, made.low, made.cut, time.time())

                    def change(catalog: Catalog) -> Catalog:
                        if is_new:
                            return catalog.with_view(replace(view, at=at, since=self.store.head() + 1))
                        return catalog.replacing(replace(view, at=at))

                    changes = [found] if found is not None else []
                    self._publish(self.batch.number + 1, self.batch.cut, self.state.manifest, changes, change)
            finally:
                self._loading.pop(ticket, None)

    def rebuild(self, cut: int | None = None) -> None:
        """Make all state anew, at the published cut or a later one, and bring the views' tables in line with it."""
        with self.lock:
            self._anew(Manifest(fingerprint=expressions.fingerprint()), frozenset(self.flow.sinks), cut)
            if self.store.note(CONTRADICTION) is not None:
                self.store.put_note(CONTRADICTION, None)

    def _adapt(self) -> None:
        """Load the state of operators that have none: this version makes others of the views than the one before."""
        with self.lock:
            missing = [o.id for o in self.flow.stateful() if slots(o)[0] not in self.state.manifest.runs]
            operators, views = spoiled(self.flow, missing)
            kept = frozenset(s for o in self.flow.stateful() if o.id not in operators for s in slots(o))
            self._anew(self.state.manifest.only(kept), views)

    def mend(self, damage: CorruptState) -> tuple[str, ...]:
        """Make anew what is damaged (`mending`); the files or log positions that were."""
        with self.lock:
            found = damaged(self.state)
            faults.point("mend.before")
            try:
                if not found:
                    raise damage
                operators, views = spoiled(self.flow, [e.slot.split("/")[0] for e in found])
                self._anew(without(self.state.manifest, self.flow, operators), views)
            except CorruptState as log_too:
                damage = log_too
                self.rebuild(self.store.head())
            faults.point("mend.after")
            messages = tuple(dict.fromkeys(d.message for d in found.values())) or (damage.message,)
            self.store.put_note(MENDED, {"time": time.time(), "damage": list(messages)})
            return messages

    def repair(self, views: frozenset[int]) -> None:
        """Make these views anew, with all state behind them and whatever else was computed from it.

        Rows that are right already are not written.
        """
        with self.lock:
            self._follow_catalog()
            sinks = [self.flow.sinks[v].id for v in views if v in self.flow.sinks]
            operators, others = spoiled(self.flow, self.flow.behind(sinks))
            self._anew(without(self.state.manifest, self.flow, operators), others | (views & set(self.flow.sinks)))
        for view in (v for v in self.catalog.views if v.table.id in views and is_scheduled(v)):
            with self.defining:
                self._sets = {v: m for v, m in self._sets.items() if v != view.table.id}
                self._remake(view)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _publish_only(self, change: Callable[[Catalog], Catalog]) -> None:
        """Without some view another arrangement may have to serve as a table's image, which is then loaded first."""
        try:
            missing = missing_state(self._flow(change(self.catalog)), self.state)
        except CorruptState as damage:
            self.mend(damage)
            missing = missing_state(self._flow(change(self.catalog)), self.state)
        if missing:
            self._load(frozenset(), lambda catalog, _: change(catalog), "auto", None, base=self.state.manifest)
        else:
            super()._publish_only(change)

    def _anew(self, base: Manifest, views: frozenset[int], cut: int | None = None) -> None:
        """Load what `base` lacks and these views, and publish them. The lock is held: no batch goes on meanwhile."""

        def change(catalog: Catalog, since: int) -> Catalog:
            for view in (v for v in catalog.views if v.table.id in views and not v.table.is_stored):
                catalog = catalog.replacing(_restarted(view, since))
            return catalog

        self._load(views, change, "auto", None, base=base, cut=cut)

    def _bring_in(
        self,
        views: frozenset[int],
        change: Callable[[Catalog, int], Catalog],
        lane: str,
        progress: Progress | None,
    ) -> None:
        """Load views beside the batches that go on, catch up, and publish them with the catalog's change."""
        with self.defining:
            done = False
            while not done:
                try:
                    done = self._load(views, change, lane, progress)
                except CorruptState as damage:
                    self.mend(damage)
                    done = self._load(views, change, lane, progress)

    def _load(
        self,
        views: frozenset[int],
        change: Callable[[Catalog, int], Catalog],
        lane: str,
        progress: Progress | None,
        *,
        base: Manifest | None = None,
        cut: int | None = None,
    ) -> bool:
        """The numbered steps of `loading`; False if it must start over: what it shared with other views is gone, or
        they have not seen all that it read.

        `base`: the state to load beside, other than the published one, and `cut` where; the caller holds the lock.
        """
        with self.lock:
            mark = self._mark()
            if base is not None:
                mark = replace(mark, manifest=base)
            ticket = id(mark)
            self._loading[ticket] = mark.batch.cut  # keeps log and files
        state = State(str(self.state.directory), mark.manifest)
        stage = Stage(self.store, state, self._spark, durable=self._durable, threads=self._threads)
        try:
            changed = change(mark.catalog, 0)
            flow = self._flow(changed)
            names = {v.table.id: v.table.name for v in changed.views}
            at, number = cut or mark.batch.cut, mark.batch.number + 1
            try:
                loaded = load(stage, flow, views, at, number, names, lane, progress, alone=base is not None)  # 1
            except CutMoved:
                self.refresh()
                return False
            faults.point("load.1.after")
            while True:
                state.adopt(loaded.beside(flow, mark.manifest))
                if base is not None or self.store.pending(loaded.cut, list(flow.used)).rows <= _FINAL_ROWS:
                    break
                with self.lock:
                    self.refresh()
                    mark = self._mark()
                loaded = catch_up(stage, flow, loaded, mark.batch.cut, mark.batch.number + 1, names, lane)  # 2
            faults.point("load.2.after")
            with self.lock:  # 3
                mark = self._mark() if base is None else mark
                changed = change(mark.catalog, 0)
                flow = self._flow(changed)
                if loaded.misses(flow, mark.manifest):
                    return False
                if mark.batch.cut > loaded.cut:
                    loaded = catch_up(stage, flow, loaded, mark.batch.cut, mark.batch.number + 1, names, lane)
                self._publish_loaded(loaded, flow, changed, mark.manifest, change)
            return True
        finally:
            self._loading.pop(ticket, None)
            stage.close()

    def _publish_loaded(
        self,
        loaded: Loaded,
        flow: Flow,
        catalog: Catalog,
        shared: Manifest,
        change: Callable[[Catalog, int], Catalog],
    ) -> None:
        there = {v.table.id: v.table for v in self.catalog.views}
        changes = []
        for view in (v for v in catalog.views if v.table.id in loaded.rows and v.table.is_stored):
            rows = list(loaded.rows[view.table.id])
            if view.table.id in there:
                rows.append(self._stored(view.table))
            found = resolve(self.stage.duck, self.store, view.table, [r for r in rows if r.num_rows])
            changes.extend([found] if found else [])
        manifest = loaded.beside(flow, shared)
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


def _restarted(view: View, since: int) -> View:
    """A view whose state was made anew. What a stored one had is known, so its deltas go on; others start over."""
    return view if view.table.is_stored else replace(view, since=since)
