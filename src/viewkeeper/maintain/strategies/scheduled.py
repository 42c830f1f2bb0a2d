"""Views that run at intervals or from call to call, each at a cut of its own, beside the batches of the others.

Those with a strategy that repeats (`schedule`) are made anew when their interval is over; those that show every write
call's state (`alone`) are stepped from one call to the next.
"""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from viewkeeper import failpoints
from viewkeeper.capture.snapshot import Progress
from viewkeeper.commit.publisher import Mark, Publisher
from viewkeeper.errors import CorruptState, SnapshotGone
from viewkeeper.maintain.definitions.catalog_changes import refuse_altered
from viewkeeper.maintain.load.loader import Loader
from viewkeeper.maintain.load.suspension import Suspender
from viewkeeper.maintain.strategies.per_call import Alone
from viewkeeper.maintain.strategies.remake import Remade, due, remake
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.catalog.strategies import interval_of, strategy_of
from viewkeeper.model.catalog.view import OwnCut
from viewkeeper.plan.dataflow import cache
from viewkeeper.runtime.error_attribution import own_rows
from viewkeeper.runtime.executor import Resources, Stage
from viewkeeper.runtime.upserts import resolve
from viewkeeper.state.manifest import Manifest
from viewkeeper.syntax.view_text import settle_names

_MOMENT = 0.05
"""Seconds for which views are brought from call to call before the batches have their turn, or their cut is moved."""


class Scheduler:
    """Runs such views; `stage` is that of the batches, for what is published under their lock."""

    def __init__(
        self, publisher: Publisher, resources: Resources, stage: Stage, loader: Loader, suspender: Suspender
    ) -> None:
        self._publisher = publisher
        self._resources = resources
        self._stage = stage
        self._loader = loader
        self._suspender = suspender
        self._stepping = threading.RLock()
        self._alone: dict[int, Alone] = {}
        self._looked: dict[int, float] = {}

    def run(self, now: bool = False) -> int:
        """Run the strategies of the views whose interval is over, or `now` of all that changed; how many ran.

        Views that show every call's state go on from call to call: `now` to the published cut, else for a moment.
        """
        steps = self._follow_calls(now)
        if not any(strategy_of(v).is_scheduled for v in self._publisher.catalog.special):
            return steps
        return steps + self._run_scheduled(now)

    def _run_scheduled(self, now: bool) -> int:
        if not self._publisher.defining.acquire(blocking=now):
            return 0  # a view is being defined: batches must not wait for it, and intervals can
        try:
            return self._run_due(now)
        finally:
            self._publisher.defining.release()

    def _run_due(self, now: bool) -> int:
        done = 0
        for view in due(self._publisher.catalog.special, float("inf") if now else None):
            if not now and time.monotonic() < self._looked.get(view.table.id, 0.0) + interval_of(view):
                continue
            self._looked[view.table.id] = time.monotonic()
            tables = [t.id for t in self._publisher.catalog.tables]
            if view.at is None or self._publisher.store.pending(view.at.low, tables).calls:
                self._suspender.going_on(partial(self._make_active, view))
                done += 1
        return done

    def _follow_calls(self, now: bool) -> int:
        """Step the views that run from call to call; how many steps were taken. Batches go on beside it."""
        done, until = 0, time.monotonic() + _MOMENT
        for view in self._publisher.catalog.special:
            while strategy_of(view).is_complete and (now or time.monotonic() < until):
                if not self._suspender.going_on(partial(self._follow_call, view.table.id, now)):
                    break
                done += 1
        return done

    def _follow_call(self, view_id: int, now: bool) -> bool:
        """Bring one such view to the next call; whether there was one."""
        with self._stepping, self._publisher.keeping() as mark:
            view = mark.catalog.views_by_id.get(view_id)
            if view is None or view.suspended is not None or (view.at is not None and view.at.cut >= mark.batch.cut):
                return False
            known = self._publisher.sets.get(view_id)
            if view.at is None or known is None:
                self.make(view)
                return True
            try:
                made = self._alone_of(view, known, mark).step(view, mark.batch.cut, mark.batch.number + 1)
            except (CorruptState, SnapshotGone) as gone:  # its own files, or the log, which may have been cut
                self._loader.tell([gone.message])
                self._publisher.sets = {v: m for v, m in self._publisher.sets.items() if v != view_id}
                self.make(view)
                return True
            stepped = made is not None
            if made is None:
                if not now and time.time() < view.at.time + _MOMENT:
                    return False
                made = Remade(mark.batch.cut, mark.batch.cut, [], False, known, 0)
            failpoints.point("remake.after")
            with self._publisher.lock:
                current = self._publisher.view(view_id)
                if current is not None and current.suspended is None and current.at == view.at:
                    self._publish_remade(current, made, is_new=False)
                    if stepped:
                        with self._publisher.afterwards.of("beginning to merge"):
                            self._alone[view_id].published(made, self._publisher.batch.number)
            return made.cut < mark.batch.cut

    def make_whole(self, view: View, progress: Progress | None = None) -> None:
        """Make a view that runs alone from its tables, whatever is known of it."""
        with self._publisher.defining, self._stepping:
            self._publisher.sets = {v: m for v, m in self._publisher.sets.items() if v != view.table.id}
            self.make(view, progress=progress)

    def _make_active(self, view: View) -> None:
        """Unless it has been suspended meanwhile."""
        now = self._publisher.view(view.table.id)
        if now is not None and now.suspended is None:
            self.make(view)

    def make(self, view: View, is_new: bool = False, progress: Progress | None = None) -> None:
        """Run a view's strategy once. While one that is new is loaded, those that are there go on from call to call."""
        with nullcontext() if is_new else self._stepping, self._publisher.keeping() as mark:
            self._forget_alone(view.table.id)
            flow = cache.alone(mark.catalog, view)
            known = self._publisher.sets.get(view.table.id)
            cut, number = mark.batch.cut, mark.batch.number + 1
            resources = self._resources
            how = (resources.spark, resources.durable, resources.beside, progress)
            try:
                made = remake(self._publisher.store, flow, view, cut, number, known, *how)
            except CorruptState as damage:  # of its own files, or of the log: it is made from the tables then
                self._loader.tell([damage.message])
                made = remake(self._publisher.store, flow, view, cut, number, None, *how)
            failpoints.point("remake.after")
            with self._publisher.lock:
                if is_new or self._publisher.view(view.table.id) is not None:
                    self._publish_remade(view, made, is_new)

    def _alone_of(self, view: View, known: Manifest, mark: Mark) -> Alone:
        found = self._alone.get(view.table.id)
        if found is None:
            flow = cache.alone(mark.catalog, view)
            resources = self._resources
            found = Alone(resources.store, flow, known, resources.spark, resources.durable, resources.beside)
            self._alone[view.table.id] = found
        return found

    def _forget_alone(self, view_id: int) -> None:
        if (found := self._alone.pop(view_id, None)) is not None:
            found.close()

    def files(self) -> frozenset[str]:
        """Of the open views' state: what must not be collected."""
        return frozenset().union(*(alone.files for alone in list(self._alone.values())))

    def close(self) -> None:
        with self._stepping:
            for view_id in list(self._alone):
                self._forget_alone(view_id)

    def _publish_remade(self, view: View, made: Remade, is_new: bool) -> None:
        """Publish a view that runs alone, at its own cut; the others stay where they are."""
        rows = [r for r in made.rows if r.num_rows]
        starts_over = made.whole and not view.table.is_stored  # what it shows has no rows to compare with
        if starts_over:
            rows = []
        elif made.whole and not is_new:
            rows.append(self._loader.stored(view.table))
        with own_rows(view.table):
            left = [r for r in rows if r.num_rows]
            found = resolve(self._stage.duck, self._publisher.store, view.table, left, self._resources.memory)
        before = self._publisher.sets
        self._publisher.sets = {**self._publisher.sets, view.table.id: made.manifest or Manifest()}
        at = OwnCut(self._publisher.batch.number + 1, made.low, made.cut, time.time())

        def change(catalog: Catalog) -> Catalog:
            if is_new:
                refuse_altered(catalog, view)
                listed = settle_names(catalog, view)
                return catalog.with_view(replace(listed, at=at, since=self._publisher.store.head() + 1))
            since = self._publisher.store.head() + 1 if starts_over else view.since
            now = catalog.views_by_id[view.table.id]  # another process may have renamed it
            return catalog.replacing(replace(now, at=at, since=since, suspended=view.suspended))

        changes = [found] if found is not None else []
        batch, manifest = self._publisher.batch, self._publisher.state.manifest
        try:
            self._publisher.publish(batch.number + 1, batch.cut, manifest, changes, change)
        except BaseException:
            self._publisher.sets = before
            raise
