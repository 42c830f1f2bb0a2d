"""The maintainer: batches, and the views that come, change and go beside them.

A view is loaded while batches go on (`loading`), and published with its catalog entry in one batch; so is another
definition of it. Views with a strategy of their own are made anew when their interval is over (`schedule`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from viewkeeper import faults
from viewkeeper.capture.kept import Kept
from viewkeeper.capture.snapshot import Progress
from viewkeeper.commit.alone import Alone
from viewkeeper.commit.batches import Mark
from viewkeeper.commit.bringing import CONTRADICTION, Bringing, restarted
from viewkeeper.commit.crossover import rows_beyond
from viewkeeper.commit.definitions import refuse_altered
from viewkeeper.commit.isolation import own_rows
from viewkeeper.commit.manifest import Manifest
from viewkeeper.commit.mending import spoiled, without
from viewkeeper.commit.report import BatchReport
from viewkeeper.commit.schedule import Remade, due, remake
from viewkeeper.commit.sink import resolve
from viewkeeper.errors import Contradiction, CorruptState, SnapshotGone
from viewkeeper.model.catalog import Catalog, OwnCut, View
from viewkeeper.model.strategies import interval_of, is_complete, is_scheduled
from viewkeeper.plan import expressions
from viewkeeper.plan.compiler import ViewPlan
from viewkeeper.plan.flow import Flow, assemble
from viewkeeper.store.base import Store

_MOMENT = 0.05
"""Seconds for which views are brought from call to call before the batches have their turn, or their cut is moved."""

__all__ = ["CONTRADICTION", "BatchReport", "Maintainer"]


class Maintainer(Bringing):
    """Adds the life of views: create, replace, drop, resume, and strategies that run at intervals."""

    def __init__(
        self,
        store: Store,
        spark: Callable[[], Any],
        *,
        durable: bool = True,
        threads: int = 2,
        retention: float = 0.0,
        memory: int | str | None = None,
    ) -> None:
        self._stepping = threading.RLock()
        self._alone: dict[int, Alone] = {}
        super().__init__(store, spark, durable=durable, threads=threads, retention=retention, memory=memory)
        try:
            self.afterwards.owe("forgetting old parts of loads", Kept(store, self.state.directory).forget)
            if self.state.manifest.fingerprint != expressions.fingerprint():
                self._sets = {}
                # Without its record nobody knows which cut the last batch had: the tables as they are now are one.
                made = self.state.manifest.fingerprint
                known = "manifest" in self.batch.record
                cut = None if known else store.head()
                why = f"it was made with {made}, this is {expressions.fingerprint()}"
                self._tell([why if known else "the record of the last batch is damaged"])
                self.going_on(lambda: self.rebuild(cut), always=True)
            elif self.batch.record and self.batch.record.get("plan") != self.flow.fingerprint:
                self.going_on(self._adapt, always=True)
        except BaseException:
            self.close()
            raise

    def refresh(self, lane: str = "auto", *, max_changes: int | None = None) -> BatchReport:
        """`Batches.refresh`, after mending if state or log are damaged."""
        with self.lock, self._noting_contradictions():
            try:
                report = super().refresh(lane, max_changes=max_changes)
            except Contradiction:
                raise
            except CorruptState as damage:
                self.going_on(partial(self.mend, damage))
                report = super().refresh(lane, max_changes=max_changes)
            return report if self.afterwards.damage is None else self._mended_after(report)

    def _mended_after(self, report: BatchReport) -> BatchReport:
        """Damage that clean-up came across: it is made good at once, and the batch is published whether it can be."""
        damage, self.afterwards.damage = self.afterwards.damage, None
        if damage is not None:
            with self.afterwards.of("mending what clean-up came across"):
                self.mend(damage)
        mended = (*report.mended, *self.mended)
        self.mended.clear()
        return replace(report, mended=mended, afterwards=self.afterwards.failed)

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
        self.recent.begun(self.batch.number, changed, "rebuild", 0.0, seconds)
        self.recent.committed(0.0)
        return BatchReport(self.batch.number, changed, "rebuild", seconds)

    def create(self, view: View, lane: str = "auto", progress: Progress | None = None) -> None:
        """Load a new view beside the batches that go on, and publish it together with its catalog entry."""
        if self.runs_alone(view):
            self._remake(view, is_new=True, progress=progress)
            return

        def change(catalog: Catalog, since: int) -> Catalog:
            refuse_altered(catalog, view)
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

        active = [v for v in self.catalog.views if v.suspended is None and v.table.id in users]
        maintained = [v for v in active if not self.runs_alone(v)]

        def change(catalog: Catalog, since: int) -> Catalog:
            refuse_altered(catalog, new)
            if new.table.id != old.table.id:
                return catalog.without(old.table.id).with_view(replace(new, since=since))
            for view in (replace(new, since=old.since), *maintained):
                catalog = catalog.replacing(restarted(view, since))
            return catalog

        views = frozenset([new.table.id, *(v.table.id for v in maintained)])
        self._bring_in(views, change, lane, progress)
        if new.table.id != old.table.id:
            self.afterwards.drop(old.table, "view.published")
        for view in active:
            if self.runs_alone(view):  # what it was made from is another view now
                self.remake_whole(view)

    def drop(self, view: View) -> None:
        """Forget a view and the state that no other view shares."""
        with self.defining, self.lock:
            self._publish_only(lambda c: c.without(view.table.id))
            self.afterwards.drop(view.table, "view.dropped")
            self._tidy((), now=True)

    def resume(self, view: View, lane: str = "auto", progress: Progress | None = None) -> None:
        """Build a suspended view's state anew and bring its table in line with it."""

        if self.runs_alone(view):
            self.remake_whole(replace(view, suspended=None), progress)
            return

        def change(catalog: Catalog, since: int) -> Catalog:
            return catalog.replacing(restarted(replace(view, suspended=None), since))

        self._bring_in(frozenset([view.table.id]), change, lane, progress)

    def remake(self, now: bool = False) -> int:
        """Run the strategies of the views whose interval is over, or `now` of all that changed; how many ran.

        Views that show every call's state go on from call to call: `now` to the published cut, else for a moment.
        """
        steps = self._follow_calls(now)
        if not any(is_scheduled(v) for v in self.catalog.views):
            return steps
        return steps + self._remake_scheduled(now)

    def _remake_scheduled(self, now: bool) -> int:
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
                self.going_on(partial(self._remake_active, view))
                done += 1
        return done

    def _follow_calls(self, now: bool) -> int:
        """Step the views that run from call to call; how many steps were taken. Batches go on beside it."""
        done, until = 0, time.monotonic() + _MOMENT
        for view in self.catalog.views:
            while self.runs_alone(view) and is_complete(view) and (now or time.monotonic() < until):
                if not self.going_on(partial(self._follow_call, view.table.id, now)):
                    break
                done += 1
        return done

    def _follow_call(self, view_id: int, now: bool) -> bool:
        """Bring one such view to the next call; whether there was one."""
        with self._stepping, self._keeping() as mark:
            view = next((v for v in mark.catalog.views if v.table.id == view_id and v.suspended is None), None)
            if view is None or (view.at is not None and view.at.cut >= mark.batch.cut):
                return False
            known = self._sets.get(view_id)
            if view.at is None or known is None:
                self._remake(view)
                return True
            try:
                made = self._alone_of(view, known, mark).step(view, mark.batch.cut, mark.batch.number + 1)
            except (CorruptState, SnapshotGone) as gone:  # its own files, or the log, which may have been cut
                self._tell([gone.message])
                self._sets = {v: m for v, m in self._sets.items() if v != view_id}
                self._remake(view)
                return True
            stepped = made is not None
            if made is None:
                if not now and time.time() < view.at.time + _MOMENT:
                    return False
                made = Remade(mark.batch.cut, mark.batch.cut, [], False, known, 0)
            faults.point("remake.after")
            with self.lock:
                current = next((v for v in self.catalog.views if v.table.id == view_id), None)
                if current is not None and current.suspended is None and current.at == view.at:
                    self._publish_remade(current, made, is_new=False)
                    if stepped:
                        with self.afterwards.of("beginning to merge"):
                            self._alone[view_id].published(made, self.batch.number)
            return made.cut < mark.batch.cut

    def _alone_of(self, view: View, known: Manifest, mark: Mark) -> Alone:
        found = self._alone.get(view.table.id)
        if found is None:
            flow = self._flow_of(view, mark)
            found = Alone(self.store, flow, known, self._spark, self._durable, self.beside)
            self._alone[view.table.id] = found
        return found

    def _forget_alone(self, view_id: int) -> None:
        if (found := self._alone.pop(view_id, None)) is not None:
            found.close()

    def _files_of_others(self) -> frozenset[str]:
        return frozenset().union(*(alone.files for alone in list(self._alone.values())))

    def close(self) -> None:
        with self._stepping:
            for view_id in list(self._alone):
                self._forget_alone(view_id)
        super().close()

    def remake_whole(self, view: View, progress: Progress | None = None) -> None:
        """Make a view that runs alone from its tables, whatever is known of it."""
        with self.defining, self._stepping:
            self._sets = {v: m for v, m in self._sets.items() if v != view.table.id}
            self._remake(view, progress=progress)

    def _flow_of(self, view: View, mark: Mark) -> Flow:
        plans = {v.table.id: ViewPlan.from_json(v.plan) for v in (*mark.catalog.views, view)}
        return assemble({t.id: t for t in mark.catalog.tables}, plans, [view.table.id], True)

    def _remake_active(self, view: View) -> None:
        """Unless it has been suspended meanwhile."""
        if any(v.table.id == view.table.id and v.suspended is None for v in self.catalog.views):
            self._remake(view)

    def _remake(self, view: View, is_new: bool = False, progress: Progress | None = None) -> None:
        """Run a view's strategy once. While one that is new is loaded, those that are there go on from call to call."""
        with nullcontext() if is_new else self._stepping, self._keeping() as mark:
            self._forget_alone(view.table.id)
            flow = self._flow_of(view, mark)
            known = self._sets.get(view.table.id)
            cut, number = mark.batch.cut, mark.batch.number + 1
            how = (self._spark, self._durable, self.beside, progress)
            try:
                made = remake(self.store, flow, view, cut, number, known, *how)
            except CorruptState as damage:  # of its own files, or of the log: it is made from the tables then
                self._tell([damage.message])
                made = remake(self.store, flow, view, cut, number, None, *how)
            faults.point("remake.after")
            with self.lock:
                if is_new or any(v.table.id == view.table.id for v in self.catalog.views):
                    self._publish_remade(view, made, is_new)

    def _publish_remade(self, view: View, made: Remade, is_new: bool) -> None:
        """Publish a view that runs alone, at its own cut; the others stay where they are."""
        rows = [r for r in made.rows if r.num_rows]
        starts_over = made.whole and not view.table.is_stored  # what it shows has no rows to compare with
        if starts_over:
            rows = []
        elif made.whole and not is_new:
            rows.append(self._stored(view.table))
        with own_rows(view.table):
            left = [r for r in rows if r.num_rows]
            found = resolve(self.stage.duck, self.store, view.table, left, self.memory)
        before = self._sets
        self._sets = {**self._sets, view.table.id: made.manifest or Manifest()}
        at = OwnCut(self.batch.number + 1, made.low, made.cut, time.time())

        def change(catalog: Catalog) -> Catalog:
            if is_new:
                refuse_altered(catalog, view)
                return catalog.with_view(replace(view, at=at, since=self.store.head() + 1))
            since = self.store.head() + 1 if starts_over else view.since
            now = next(v for v in catalog.views if v.table.id == view.table.id)  # another process may have renamed it
            return catalog.replacing(replace(now, at=at, since=since, suspended=view.suspended))

        changes = [found] if found is not None else []
        try:
            self._publish(self.batch.number + 1, self.batch.cut, self.state.manifest, changes, change)
        except BaseException:
            self._sets = before
            raise

    def repair(self, views: frozenset[int]) -> None:
        """Make these views anew, with all state behind them and whatever else was computed from it.

        Rows that are right already are not written.
        """
        with self.lock:
            self._follow_catalog()
            sinks = [self.flow.sinks[v].id for v in views if v in self.flow.sinks]
            operators, others = spoiled(self.flow, self.flow.behind(sinks))
            self._anew(without(self.state.manifest, self.flow, operators), others | (views & set(self.flow.sinks)))
        for view in (v for v in self.catalog.views if v.table.id in views and self.runs_alone(v)):
            self.remake_whole(view)
