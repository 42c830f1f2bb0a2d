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
from viewkeeper.commit.publisher import Checkpoint, Publisher
from viewkeeper.errors import CorruptState, SnapshotGone
from viewkeeper.maintain.definitions.catalog_changes import refuse_altered
from viewkeeper.maintain.load.loader import Loader
from viewkeeper.maintain.load.suspension import Suspender
from viewkeeper.maintain.strategies.per_call import PerCallView
from viewkeeper.maintain.strategies.remake import RemakeResult, due_views, remake
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.catalog.strategies import interval_of, strategy_of
from viewkeeper.model.catalog.view import OwnCut
from viewkeeper.plan.dataflow import cache
from viewkeeper.runtime.error_attribution import attribute_to_view
from viewkeeper.runtime.executor import BatchExecutor, ExecutorResources
from viewkeeper.runtime.upserts import resolve_upserts
from viewkeeper.state.manifest import Manifest
from viewkeeper.syntax.view_text import drop_current_names

_STEP_SECONDS = 0.05
"""Seconds for which views are brought from call to call before the batches have their turn, or their cut is moved."""


class ViewScheduler:
    """Runs such views; `stage` is that of the batches, for what is published under their lock."""

    def __init__(
        self,
        publisher: Publisher,
        resources: ExecutorResources,
        executor: BatchExecutor,
        loader: Loader,
        suspender: Suspender,
    ) -> None:
        self._publisher = publisher
        self._resources = resources
        self._executor = executor
        self._loader = loader
        self._suspender = suspender
        self._step_lock = threading.RLock()
        self._per_call_views: dict[int, PerCallView] = {}
        self._last_checked: dict[int, float] = {}

    def run(self, run_all: bool = False) -> int:
        """Run the strategies of the views whose interval is over, or `now` of all that changed; how many ran.

        Views that show every call's state go on from call to call: `now` to the published cut, else for a moment.
        """
        steps = self._step_views(run_all)
        if not any(strategy_of(v).is_scheduled for v in self._publisher.catalog.nonstandard_views):
            return steps
        return steps + self._run_scheduled(run_all)

    def _run_scheduled(self, run_all: bool) -> int:
        if not self._publisher.definition_lock.acquire(blocking=run_all):
            return 0  # a view is being defined: batches must not wait for it, and intervals can
        try:
            return self._run_due(run_all)
        finally:
            self._publisher.definition_lock.release()

    def _run_due(self, run_all: bool) -> int:
        done = 0
        for view in due_views(self._publisher.catalog.nonstandard_views, float("inf") if run_all else None):
            if not run_all and time.monotonic() < self._last_checked.get(view.table.id, 0.0) + interval_of(view):
                continue
            self._last_checked[view.table.id] = time.monotonic()
            tables = [t.id for t in self._publisher.catalog.tables]
            if view.own_cut is None or self._publisher.store.pending(view.own_cut.low, tables).calls:
                self._suspender.run_without_failing(partial(self._remake_unless_suspended, view))
                done += 1
        return done

    def _step_views(self, run_all: bool) -> int:
        """Step the views that run from call to call; how many steps were taken. Batches go on beside it."""
        done, until = 0, time.monotonic() + _STEP_SECONDS
        for view in self._publisher.catalog.nonstandard_views:
            while strategy_of(view).is_per_call and (run_all or time.monotonic() < until):
                if not self._suspender.run_without_failing(partial(self._step_view, view.table.id, run_all)):
                    break
                done += 1
        return done

    def _step_view(self, view_id: int, run_all: bool) -> bool:
        """Bring one such view to the next call; whether there was one."""
        with self._step_lock, self._publisher.retain_checkpoint() as mark:
            view = mark.catalog.views_by_id.get(view_id)
            if (
                view is None
                or view.suspended is not None
                or (view.own_cut is not None and view.own_cut.cut >= mark.batch.cut)
            ):
                return False
            known = self._publisher.view_manifests.get(view_id)
            if view.own_cut is None or known is None:
                self.run_strategy(view)
                return True
            try:
                made = self._per_call_view(view, known, mark).step(view, mark.batch.cut, mark.batch.number + 1)
            except (CorruptState, SnapshotGone) as gone:  # its own files, or the log, which may have been cut
                self._loader.report_rebuild([gone.message])
                self._publisher.view_manifests = {
                    v: m for v, m in self._publisher.view_manifests.items() if v != view_id
                }
                self.run_strategy(view)
                return True
            stepped = made is not None
            if made is None:
                if not run_all and time.time() < view.own_cut.time + _STEP_SECONDS:
                    return False
                made = RemakeResult(mark.batch.cut, mark.batch.cut, [], False, known, 0)
            failpoints.hit("remake.after")
            with self._publisher.lock:
                current = self._publisher.view(view_id)
                if current is not None and current.suspended is None and current.own_cut == view.own_cut:
                    self._publish_result(current, made, is_new=False)
                    if stepped:
                        with self._publisher.deferred_cleanup.attempt("beginning to merge"):
                            self._per_call_views[view_id].adopt_published(made, self._publisher.batch.number)
            return made.cut < mark.batch.cut

    def remake_fully(self, view: View, progress: Progress | None = None) -> None:
        """Make a view that runs alone from its tables, whatever is known of it."""
        with self._publisher.definition_lock, self._step_lock:
            self._publisher.view_manifests = {
                v: m for v, m in self._publisher.view_manifests.items() if v != view.table.id
            }
            self.run_strategy(view, progress=progress)

    def _remake_unless_suspended(self, view: View) -> None:
        """Unless it has been suspended meanwhile."""
        now = self._publisher.view(view.table.id)
        if now is not None and now.suspended is None:
            self.run_strategy(view)

    def run_strategy(self, view: View, is_new: bool = False, progress: Progress | None = None) -> None:
        """Run a view's strategy once. While one that is new is loaded, those that are there go on from call to call."""
        with nullcontext() if is_new else self._step_lock, self._publisher.retain_checkpoint() as mark:
            self._close_per_call_view(view.table.id)
            flow = cache.separate_dataflow(mark.catalog, view)
            known = self._publisher.view_manifests.get(view.table.id)
            cut, number = mark.batch.cut, mark.batch.number + 1
            resources = self._resources
            how = (resources.spark, resources.durable, resources.background_memory, progress)
            try:
                made = remake(self._publisher.store, flow, view, cut, number, known, *how)
            except CorruptState as damage:  # of its own files, or of the log: it is made from the tables then
                self._loader.report_rebuild([damage.message])
                made = remake(self._publisher.store, flow, view, cut, number, None, *how)
            failpoints.hit("remake.after")
            with self._publisher.lock:
                if is_new or self._publisher.view(view.table.id) is not None:
                    self._publish_result(view, made, is_new)

    def _per_call_view(self, view: View, manifest: Manifest, checkpoint: Checkpoint) -> PerCallView:
        found = self._per_call_views.get(view.table.id)
        if found is None:
            flow = cache.separate_dataflow(checkpoint.catalog, view)
            resources = self._resources
            found = PerCallView(
                resources.store, flow, manifest, resources.spark, resources.durable, resources.background_memory
            )
            self._per_call_views[view.table.id] = found
        return found

    def _close_per_call_view(self, view_id: int) -> None:
        if (found := self._per_call_views.pop(view_id, None)) is not None:
            found.close()

    def files(self) -> frozenset[str]:
        """Of the open views' state: what must not be collected."""
        return frozenset().union(*(alone.files for alone in list(self._per_call_views.values())))

    def close(self) -> None:
        with self._step_lock:
            for view_id in list(self._per_call_views):
                self._close_per_call_view(view_id)

    def _publish_result(self, view: View, result: RemakeResult, is_new: bool) -> None:
        """Publish a view that runs alone, at its own cut; the others stay where they are."""
        rows = [r for r in result.deltas if r.num_rows]
        starts_over = result.is_full and not view.table.is_stored  # what it shows has no rows to compare with
        if starts_over:
            rows = []
        elif result.is_full and not is_new:
            rows.append(self._loader.stored_retraction(view.table))
        with attribute_to_view(view.table):
            left = [r for r in rows if r.num_rows]
            found = resolve_upserts(
                self._executor.statements, self._publisher.store, view.table, left, self._resources.memory
            )
        before = self._publisher.view_manifests
        self._publisher.view_manifests = {
            **self._publisher.view_manifests,
            view.table.id: result.manifest or Manifest(),
        }
        at = OwnCut(self._publisher.batch.number + 1, result.low, result.cut, time.time())

        def change(catalog: Catalog) -> Catalog:
            if is_new:
                refuse_altered(catalog, view)
                listed = drop_current_names(catalog, view)
                return catalog.with_view(replace(listed, own_cut=at, complete_since=self._publisher.store.head() + 1))
            since = self._publisher.store.head() + 1 if starts_over else view.complete_since
            now = catalog.views_by_id[view.table.id]  # another process may have renamed it
            return catalog.with_replaced_view(replace(now, own_cut=at, complete_since=since, suspended=view.suspended))

        changes = [found] if found is not None else []
        batch, manifest = self._publisher.batch, self._publisher.state.manifest
        try:
            self._publisher.publish(batch.number + 1, batch.cut, manifest, changes, change)
        except BaseException:
            self._publisher.view_manifests = before
            raise
