"""The loader: backfills state that the views lack, for new views, in a rebuild, or in place of damaged state.

The numbered steps are those of `backfill`. They run while batches continue, or under the publisher's lock, which stops
batches; the result is a published batch that has the missing state.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper import expressions, failpoints
from viewkeeper.capture.partition_store import PartitionStore
from viewkeeper.capture.partitions import CutMoved
from viewkeeper.capture.snapshot import Progress
from viewkeeper.commit.batch_history import REPAIR_NOTE
from viewkeeper.commit.cleanup import Cleanup
from viewkeeper.commit.publisher import Checkpoint, Publisher
from viewkeeper.maintain.load.backfill import LoadResult, backfill, catch_up, scan_live_tables
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.delta import with_weight
from viewkeeper.model.schema import COUNT, WEIGHT, Table
from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.runtime.error_attribution import attribute_to_view
from viewkeeper.runtime.executor import BatchExecutor, ExecutorResources
from viewkeeper.runtime.upserts import resolve_upserts
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.open_state import OpenState

_log = logging.getLogger("viewkeeper")

_FINAL_ROWS = 20_000
"""Pending rows from which on step 2 is repeated; fewer are left for step 3, during which no batch runs."""

_MAX_ATTEMPTS = 3
"""Attempts to read tables as of a cut that the other views have. A table that cannot be read as of a past cut and is
written all the time may never match; after these attempts, all views are rebuilt from a single scan."""


class Loader:
    """Backfills missing state and publishes it.

    `executor` is that of the batches, used while no batch runs; `refresh` runs a batch.
    """

    def __init__(
        self,
        publisher: Publisher,
        cleanup: Cleanup,
        resources: ExecutorResources,
        executor: BatchExecutor,
        refresh: Callable[[], object],
    ) -> None:
        self.repairs: list[str] = []
        """Reasons for rebuilding state since the last report."""
        self._publisher = publisher
        self._cleanup = cleanup
        self._resources = resources
        self._executor = executor
        self._refresh = refresh

    def report_rebuild(self, reasons: Sequence[str]) -> None:
        """Record a rebuild in the log, in the next report, and in the note for status and doctor."""
        for reason in reasons:
            _log.warning("%s: state is made anew: %s", self._publisher.store.url, reason)
        self.repairs += reasons
        self._publisher.deferred_cleanup.run_or_defer(
            "noting what was mended", partial(self._note_repair, list(reasons))
        )

    def _note_repair(self, reasons: list[str]) -> None:
        before = self._publisher.store.note(REPAIR_NOTE) or {}
        note = {"time": time.time(), "damage": reasons, "count": before.get("count", 0) + 1}
        self._publisher.store.put_note(REPAIR_NOTE, note)

    def rebuild(self, base_manifest: Manifest, views: frozenset[int], cut: int | None = None) -> None:
        """Load these views and all state that `base_manifest` lacks, and publish it. The caller holds the lock."""

        def restart_views(catalog: Catalog, since: int) -> Catalog:
            for view in (v for v in catalog.nonstandard_views if v.table.id in views and not v.table.has_rows):
                catalog = catalog.with_replaced_view(restart_view(view, since))
            return catalog

        if not all(self._publisher.store.can_scan_at(table) for table in self._publisher.dataflow.tables.values()):
            # The tables at the published cut cannot be read any more: all views are loaded at a later cut.
            base_manifest, views = (
                Manifest(fingerprint=expressions.fingerprint()),
                frozenset(self._publisher.dataflow.views),
            )
        self.load(views, restart_views, "auto", None, base_manifest=base_manifest, cut=cut)

    def load(
        self,
        views: frozenset[int],
        update_catalog: Callable[[Catalog, int], Catalog],
        lane: str,
        progress: Progress | None,
        *,
        base_manifest: Manifest | None = None,
        cut: int | None = None,
    ) -> bool:
        """Run the numbered steps of `backfill`; False if the caller must start again because shared state was lost.

        `base_manifest`: the state to extend, if it is not the published one, and `cut` its cut; the caller then holds
        the lock.
        """
        for _ in range(_MAX_ATTEMPTS if base_manifest is None else 1):
            with suppress(CutMoved), self._publisher.retain_checkpoint() as checkpoint:
                return self._load_from(checkpoint, views, update_catalog, lane, progress, base_manifest, cut)
            if base_manifest is None:
                self._refresh()
        # The tables at the other views' cut cannot be read again: all views are loaded at the current state.
        with self._publisher.lock:
            self.report_rebuild(["what the other views had seen of the tables cannot be read again"])
            all_views = frozenset(self._publisher.dataflow_of(update_catalog(self._publisher.catalog, 0)).views)
            empty = Manifest(fingerprint=expressions.fingerprint())
            return self.load(all_views, update_catalog, lane, progress, base_manifest=empty, cut=cut)

    def _load_from(
        self,
        checkpoint: Checkpoint,
        views: frozenset[int],
        update_catalog: Callable[[Catalog, int], Catalog],
        lane: str,
        progress: Progress | None,
        base_manifest: Manifest | None,
        cut: int | None,
    ) -> bool:
        published = checkpoint.manifest
        if base_manifest is not None:
            checkpoint = replace(checkpoint, manifest=base_manifest)
        state = OpenState(str(self._publisher.state.directory), checkpoint.manifest)
        memory = self._resources.memory if base_manifest is not None else self._resources.background_memory
        executor = self._resources.create_executor(state, memory)
        partition_store = PartitionStore(self._publisher.store, state.directory) if base_manifest is None else None
        try:
            catalog = update_catalog(checkpoint.catalog, 0)
            dataflow = self._publisher.dataflow_of(catalog)
            live_partitions = scan_live_tables(executor, dataflow, views, lane, progress, partition_store)
            if live_partitions and (base_manifest is None or base_manifest is published):
                # The next batch includes all scanned rows, so the scanned parts can be brought to its cut.
                with self._publisher.lock:
                    self._refresh()
                    checkpoint = self._publisher.checkpoint()
                state.adopt(checkpoint.manifest)
                catalog = update_catalog(checkpoint.catalog, 0)
                dataflow = self._publisher.dataflow_of(catalog)
            elif live_partitions:
                cut = self._publisher.store.head()
            names = catalog.names
            load_cut, number, is_standalone = (
                cut or checkpoint.batch.cut,
                checkpoint.batch.number + 1,
                base_manifest is not None and not base_manifest.runs,
            )
            result = backfill(  # 1
                executor,
                dataflow,
                views,
                load_cut,
                number,
                names,
                lane,
                progress,
                capture_marks=checkpoint.batch.capture_marks,
                standalone=is_standalone,
                live_partitions=live_partitions,
                partition_store=partition_store,
            )
            failpoints.hit("load.1.after")
            while True:
                state.adopt(result.merged_manifest(dataflow, checkpoint.manifest))
                if (
                    base_manifest is not None
                    or self._publisher.store.pending(result.cut, list(dataflow.used_columns)).rows <= _FINAL_ROWS
                ):
                    break
                checkpoint, result = self._catch_up(executor, dataflow, result, names, lane)  # 2
            failpoints.hit("load.2.after")
            with self._publisher.lock:  # 3
                for attempt in range(_MAX_ATTEMPTS):
                    checkpoint = self._publisher.checkpoint() if base_manifest is None else checkpoint
                    catalog = update_catalog(checkpoint.catalog, 0)
                    dataflow = self._publisher.dataflow_of(catalog)
                    if result.has_lost_operators(dataflow, checkpoint.manifest):
                        return False
                    try:
                        if checkpoint.batch.cut > result.cut:
                            result = catch_up(executor, dataflow, result, checkpoint.batch, names, lane)
                        break
                    except CutMoved:
                        if attempt == _MAX_ATTEMPTS - 1:
                            raise
                        self._refresh()
                self._publish_result(result, dataflow, catalog, checkpoint.manifest, update_catalog)
            if partition_store is not None:
                self._publisher.deferred_cleanup.run_or_defer(
                    "forgetting parts of a load",
                    lambda: partition_store.delete_partitions(frozenset(dataflow.used_columns)),
                )
            return True
        finally:
            with self._publisher.deferred_cleanup.attempt("closing a load"):
                executor.close()
                if partition_store is not None:
                    partition_store.close()

    def _catch_up(
        self, executor: BatchExecutor, dataflow: Dataflow, result: LoadResult, names: Mapping[int, str], lane: str
    ) -> tuple[Checkpoint, LoadResult]:
        """Step 2: run a batch and catch up to its cut; repeated if the tables change meanwhile."""
        for _ in range(_MAX_ATTEMPTS):
            with self._publisher.lock:
                self._refresh()
                checkpoint = self._publisher.checkpoint()
            with suppress(CutMoved):
                return checkpoint, catch_up(executor, dataflow, result, checkpoint.batch, names, lane)
        raise CutMoved

    def _publish_result(
        self,
        result: LoadResult,
        dataflow: Dataflow,
        catalog: Catalog,
        shared_manifest: Manifest,
        update_catalog: Callable[[Catalog, int], Catalog],
    ) -> None:
        changes = []
        for view in (v for v in map(catalog.views_by_id.get, result.deltas) if v is not None and v.table.is_stored):
            rows = list(result.deltas[view.table.id])
            if self._publisher.view(view.table.id) is not None:
                rows.append(self.stored_retraction(view.table))
            with attribute_to_view(view.table):
                nonempty = [r for r in rows if r.num_rows]
                change = resolve_upserts(
                    self._executor.statements, self._publisher.store, view.table, nonempty, self._resources.memory
                )
            changes.extend([change] if change else [])
        manifest = result.merged_manifest(dataflow, shared_manifest)

        def update_at_next_position(catalog: Catalog) -> Catalog:
            """Called by the store in its transaction; the commit's own position is head + 1."""
            return update_catalog(catalog, self._publisher.store.head() + 1)

        self._publisher.publish(
            self._publisher.batch.number + 1,
            result.cut,
            manifest,
            changes,
            update_at_next_position,
            result.capture_marks,
        )
        self._cleanup.after_batch((), force=True)

    def stored_retraction(self, table: Table) -> pa.Table:
        """Return the delta that deletes all current rows of a view's table."""
        rows = self._resources.memory.collect(self._publisher.store.scan(table), table.arrow)
        names = [f"o{i}" for i in range(len(table.columns))]
        if table.is_bag:
            weights = pc.negate(rows[COUNT])
            return rows.drop_columns([COUNT]).append_column(WEIGHT, weights).rename_columns([*names, WEIGHT])
        return with_weight(rows, -1).rename_columns([*names, WEIGHT])


def restart_view(view: View, since: int) -> View:
    """Return a view whose state was rebuilt. A view without stored rows is complete only since the rebuild.

    The old rows of a stored view are known, so its subscribers receive a delta; subscribers of other views start again.
    """
    return view if view.table.has_rows else replace(view, complete_since=since)
