"""The view scheduler: runs scheduled and per-call views, each at a cut of its own, separately from the batches.

A scheduled view is remade when its interval has passed (`remake`). A per-call view is stepped from one write call to
the next (`per_call`).
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
"""Seconds for which per-call views are stepped before the next batch may run."""


class ViewScheduler:
    """Runs scheduled and per-call views. `executor` is that of the batches, used under the publisher's lock."""

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
        """Run the views that are due, and return how many ran.

        Scheduled views run when their interval has passed, or, with `run_all`, if their tables changed. Per-call views
        are stepped for a short time, or, with `run_all`, up to the published cut.
        """
        steps = self._step_views(run_all)
        if not any(strategy_of(v).is_scheduled for v in self._publisher.catalog.nonstandard_views):
            return steps
        return steps + self._run_scheduled(run_all)

    def _run_scheduled(self, run_all: bool) -> int:
        if not self._publisher.definition_lock.acquire(blocking=run_all):
            return 0  # a definition is running: the batches' thread must not wait for it, but scheduled views can
        try:
            return self._run_due(run_all)
        finally:
            self._publisher.definition_lock.release()

    def _run_due(self, run_all: bool) -> int:
        run_count = 0
        for view in due_views(self._publisher.catalog.nonstandard_views, float("inf") if run_all else None):
            if not run_all and time.monotonic() < self._last_checked.get(view.table.id, 0.0) + interval_of(view):
                continue
            self._last_checked[view.table.id] = time.monotonic()
            tables = [t.id for t in self._publisher.catalog.tables]
            if view.own_cut is None or self._publisher.store.pending(view.own_cut.low, tables).calls:
                self._suspender.run_without_failing(partial(self._remake_unless_suspended, view))
                run_count += 1
        return run_count

    def _step_views(self, run_all: bool) -> int:
        """Step the per-call views, and return the number of steps. Batches may run at the same time."""
        steps, deadline = 0, time.monotonic() + _STEP_SECONDS
        for view in self._publisher.catalog.nonstandard_views:
            while strategy_of(view).is_per_call and (run_all or time.monotonic() < deadline):
                if not self._suspender.run_without_failing(partial(self._step_view, view.table.id, run_all)):
                    break
                steps += 1
        return steps

    def _step_view(self, view_id: int, run_all: bool) -> bool:
        """Step one per-call view; return whether there may be more calls."""
        with self._step_lock, self._publisher.retain_checkpoint() as checkpoint:
            view = checkpoint.catalog.views_by_id.get(view_id)
            if (
                view is None
                or view.suspended is not None
                or (view.own_cut is not None and view.own_cut.cut >= checkpoint.batch.cut)
            ):
                return False
            manifest = self._publisher.view_manifests.get(view_id)
            if view.own_cut is None or manifest is None:
                self.run_strategy(view)
                return True
            try:
                result = self._per_call_view(view, manifest, checkpoint).step(
                    view, checkpoint.batch.cut, checkpoint.batch.number + 1
                )
            except (CorruptState, SnapshotGone) as failure:  # its files are damaged, or the log is truncated
                self._loader.report_rebuild([failure.message])
                self._publisher.view_manifests = {
                    other_id: view_manifest
                    for other_id, view_manifest in self._publisher.view_manifests.items()
                    if other_id != view_id
                }
                self.run_strategy(view)
                return True
            stepped = result is not None
            if result is None:
                if not run_all and time.time() < view.own_cut.time + _STEP_SECONDS:
                    return False
                result = RemakeResult(checkpoint.batch.cut, checkpoint.batch.cut, [], False, manifest, 0)
            failpoints.hit("remake.after")
            with self._publisher.lock:
                current = self._publisher.view(view_id)
                if current is not None and current.suspended is None and current.own_cut == view.own_cut:
                    self._publish_result(current, result, is_new=False)
                    if stepped:
                        with self._publisher.deferred_cleanup.attempt("beginning to merge"):
                            self._per_call_views[view_id].adopt_published(result, self._publisher.batch.number)
            return result.cut < checkpoint.batch.cut

    def remake_fully(self, view: View, progress: Progress | None = None) -> None:
        """Remake a view with its own cut from its tables, ignoring its kept state."""
        with self._publisher.definition_lock, self._step_lock:
            self._publisher.view_manifests = {
                v: m for v, m in self._publisher.view_manifests.items() if v != view.table.id
            }
            self.run_strategy(view, progress=progress)

    def _remake_unless_suspended(self, view: View) -> None:
        """Run the view's strategy, unless the view was dropped or suspended meanwhile."""
        current = self._publisher.view(view.table.id)
        if current is not None and current.suspended is None:
            self.run_strategy(view)

    def run_strategy(self, view: View, is_new: bool = False, progress: Progress | None = None) -> None:
        """Run a view's strategy once. While a new view is loaded, existing per-call views continue."""
        with nullcontext() if is_new else self._step_lock, self._publisher.retain_checkpoint() as checkpoint:
            self._close_per_call_view(view.table.id)
            dataflow = cache.separate_dataflow(checkpoint.catalog, view)
            manifest = self._publisher.view_manifests.get(view.table.id)
            cut, number = checkpoint.batch.cut, checkpoint.batch.number + 1
            resources = self._resources
            options = (resources.spark, resources.durable, resources.background_memory, progress)
            try:
                result = remake(self._publisher.store, dataflow, view, cut, number, manifest, *options)
            except CorruptState as damage:  # its files or the log are damaged: remake it from the tables
                self._loader.report_rebuild([damage.message])
                result = remake(self._publisher.store, dataflow, view, cut, number, None, *options)
            failpoints.hit("remake.after")
            with self._publisher.lock:
                if is_new or self._publisher.view(view.table.id) is not None:
                    self._publish_result(view, result, is_new)

    def _per_call_view(self, view: View, manifest: Manifest, checkpoint: Checkpoint) -> PerCallView:
        per_call_view = self._per_call_views.get(view.table.id)
        if per_call_view is None:
            dataflow = cache.separate_dataflow(checkpoint.catalog, view)
            resources = self._resources
            per_call_view = PerCallView(
                resources.store, dataflow, manifest, resources.spark, resources.durable, resources.background_memory
            )
            self._per_call_views[view.table.id] = per_call_view
        return per_call_view

    def _close_per_call_view(self, view_id: int) -> None:
        if (per_call_view := self._per_call_views.pop(view_id, None)) is not None:
            per_call_view.close()

    def files(self) -> frozenset[str]:
        """Return the state files of the open per-call views, which garbage collection must keep."""
        return frozenset().union(*(per_call_view.files for per_call_view in list(self._per_call_views.values())))

    def close(self) -> None:
        with self._step_lock:
            for view_id in list(self._per_call_views):
                self._close_per_call_view(view_id)

    def _publish_result(self, view: View, result: RemakeResult, is_new: bool) -> None:
        """Publish a view at its own cut; the cut of the other views does not change."""
        rows = [r for r in result.deltas if r.num_rows]
        # Without stored rows, no difference can be computed.
        starts_over = result.is_full and not view.table.is_stored
        if starts_over:
            rows = []
        elif result.is_full and not is_new:
            rows.append(self._loader.stored_retraction(view.table))
        with attribute_to_view(view.table):
            nonempty = [r for r in rows if r.num_rows]
            resolved = resolve_upserts(
                self._executor.statements, self._publisher.store, view.table, nonempty, self._resources.memory
            )
        old_manifests = self._publisher.view_manifests
        self._publisher.view_manifests = {
            **self._publisher.view_manifests,
            view.table.id: result.manifest or Manifest(),
        }
        own_cut = OwnCut(self._publisher.batch.number + 1, result.low, result.cut, time.time())

        def update_catalog(catalog: Catalog) -> Catalog:
            if is_new:
                refuse_altered(catalog, view)
                new_view = drop_current_names(catalog, view)
                return catalog.with_view(
                    replace(new_view, own_cut=own_cut, complete_since=self._publisher.store.head() + 1)
                )
            complete_since = self._publisher.store.head() + 1 if starts_over else view.complete_since
            current = catalog.views_by_id[view.table.id]  # another process may have renamed it
            return catalog.with_replaced_view(
                replace(current, own_cut=own_cut, complete_since=complete_since, suspended=view.suspended)
            )

        changes = [resolved] if resolved is not None else []
        batch, manifest = self._publisher.batch, self._publisher.state.manifest
        try:
            self._publisher.publish(batch.number + 1, batch.cut, manifest, changes, update_catalog)
        except BaseException:
            self._publisher.view_manifests = old_manifests
            raise
