"""The loader: what the views lack is loaded, for the first time, again, or in place of what is damaged.

The numbered steps are those of `loading`, beside the batches that go on or under the lock that stops them: from a state
that lacks something to a published batch that has it.
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
"""Changed rows that a load leaves for its last step, in which no batch runs."""

_MAX_ATTEMPTS = 3
"""A table that cannot be read as of a cut and is written all the time never stands still: after so many attempts to
find it as the other views have seen it, all views are made anew from one look at it."""


class Loader:
    """Loads what is missing and publishes it.

    `stage` is the one of the batches, for whatever happens while none runs; `refresh` runs one.
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
        """Why state was made anew, since the last report."""
        self._publisher = publisher
        self._cleanup = cleanup
        self._resources = resources
        self._executor = executor
        self._refresh = refresh

    def report_rebuild(self, reasons: Sequence[str]) -> None:
        """State is about to be made anew: in the log, the next report, and for status and doctor."""
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
        """Load what `base` lacks and these views, and publish them. The lock is held: no batch goes on meanwhile."""

        def change(catalog: Catalog, since: int) -> Catalog:
            for view in (v for v in catalog.nonstandard_views if v.table.id in views and not v.table.has_rows):
                catalog = catalog.with_replaced_view(restart_view(view, since))
            return catalog

        if not all(self._publisher.store.can_scan_at(table) for table in self._publisher.dataflow.tables.values()):
            # Nobody can say what was there at the published cut: all views come to a later one together.
            base_manifest, views = (
                Manifest(fingerprint=expressions.fingerprint()),
                frozenset(self._publisher.dataflow.views),
            )
        self.load(views, change, "auto", None, base_manifest=base_manifest, cut=cut)

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
        """The numbered steps of `loading`; False if it must start over: what it shared with other views is gone, or
        they have not seen all that it read.

        `base`: the state to load beside, other than the published one, and `cut` where; the caller holds the lock.
        """
        for _ in range(_MAX_ATTEMPTS if base_manifest is None else 1):
            with suppress(CutMoved), self._publisher.retain_checkpoint() as mark:
                return self._load_from(mark, views, update_catalog, lane, progress, base_manifest, cut)
            if base_manifest is None:
                self._refresh()
        # What the other views have seen cannot be read again: all of them come to what is there, together.
        with self._publisher.lock:
            self.report_rebuild(["what the other views had seen of the tables cannot be read again"])
            every = frozenset(self._publisher.dataflow_of(update_catalog(self._publisher.catalog, 0)).views)
            nothing = Manifest(fingerprint=expressions.fingerprint())
            return self.load(every, update_catalog, lane, progress, base_manifest=nothing, cut=cut)

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
        stage = self._resources.create_executor(state, memory)
        kept = PartitionStore(self._publisher.store, state.directory) if base_manifest is None else None
        try:
            changed = update_catalog(checkpoint.catalog, 0)
            flow = self._publisher.dataflow_of(changed)
            live = scan_live_tables(stage, flow, views, lane, progress, kept)
            if live and (base_manifest is None or base_manifest is published):
                # The next batch sees all that was found: its cut is one to which that can be brought.
                with self._publisher.lock:
                    self._refresh()
                    checkpoint = self._publisher.checkpoint()
                state.adopt(checkpoint.manifest)
                changed = update_catalog(checkpoint.catalog, 0)
                flow = self._publisher.dataflow_of(changed)
            elif live:
                cut = self._publisher.store.head()
            names = changed.names
            at, number, alone = (
                cut or checkpoint.batch.cut,
                checkpoint.batch.number + 1,
                base_manifest is not None and not base_manifest.runs,
            )
            loaded = backfill(  # 1
                stage,
                flow,
                views,
                at,
                number,
                names,
                lane,
                progress,
                capture_marks=checkpoint.batch.capture_marks,
                standalone=alone,
                live_partitions=live,
                partition_store=kept,
            )
            failpoints.hit("load.1.after")
            while True:
                state.adopt(loaded.merged_manifest(flow, checkpoint.manifest))
                if (
                    base_manifest is not None
                    or self._publisher.store.pending(loaded.cut, list(flow.used_columns)).rows <= _FINAL_ROWS
                ):
                    break
                checkpoint, loaded = self._catch_up(stage, flow, loaded, names, lane)  # 2
            failpoints.hit("load.2.after")
            with self._publisher.lock:  # 3
                for attempt in range(_MAX_ATTEMPTS):
                    checkpoint = self._publisher.checkpoint() if base_manifest is None else checkpoint
                    changed = update_catalog(checkpoint.catalog, 0)
                    flow = self._publisher.dataflow_of(changed)
                    if loaded.has_lost_operators(flow, checkpoint.manifest):
                        return False
                    try:
                        if checkpoint.batch.cut > loaded.cut:
                            loaded = catch_up(stage, flow, loaded, checkpoint.batch, names, lane)
                        break
                    except CutMoved:
                        if attempt == _MAX_ATTEMPTS - 1:
                            raise
                        self._refresh()
                self._publish_result(loaded, flow, changed, checkpoint.manifest, update_catalog)
            if kept is not None:
                self._publisher.deferred_cleanup.run_or_defer(
                    "forgetting parts of a load", lambda: kept.delete_partitions(frozenset(flow.used_columns))
                )
            return True
        finally:
            with self._publisher.deferred_cleanup.attempt("closing a load"):
                stage.close()
                if kept is not None:
                    kept.close()

    def _catch_up(
        self, executor: BatchExecutor, dataflow: Dataflow, result: LoadResult, names: Mapping[int, str], lane: str
    ) -> tuple[Checkpoint, LoadResult]:
        """Step 2, to a batch that has seen all that can be seen up to its cut."""
        for _ in range(_MAX_ATTEMPTS):
            with self._publisher.lock:
                self._refresh()
                mark = self._publisher.checkpoint()
            with suppress(CutMoved):
                return mark, catch_up(executor, dataflow, result, mark.batch, names, lane)
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
                left = [r for r in rows if r.num_rows]
                found = resolve_upserts(
                    self._executor.statements, self._publisher.store, view.table, left, self._resources.memory
                )
            changes.extend([found] if found else [])
        manifest = result.merged_manifest(dataflow, shared_manifest)

        def changed(catalog: Catalog) -> Catalog:
            """The store calls this in its transaction: the commit's own position is the next one."""
            return update_catalog(catalog, self._publisher.store.head() + 1)

        self._publisher.publish(
            self._publisher.batch.number + 1, result.cut, manifest, changes, changed, result.capture_marks
        )
        self._cleanup.after_batch((), force=True)

    def stored_retraction(self, table: Table) -> pa.Table:
        """What a view's table holds now, as the delta that takes it away."""
        rows = self._resources.memory.collect(self._publisher.store.scan(table), table.arrow)
        names = [f"o{i}" for i in range(len(table.columns))]
        if table.is_bag:
            weights = pc.negate(rows[COUNT])
            return rows.drop_columns([COUNT]).append_column(WEIGHT, weights).rename_columns([*names, WEIGHT])
        return with_weight(rows, -1).rename_columns([*names, WEIGHT])


def restart_view(view: View, since: int) -> View:
    """A view whose state was made anew. What a stored one had is known, so its deltas go on; others start over."""
    return view if view.table.has_rows else replace(view, complete_since=since)
