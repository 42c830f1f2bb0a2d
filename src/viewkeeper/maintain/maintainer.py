"""The maintainer of a database and its components; `refresh` brings every view to the head of the log.

Publisher         owns the lease, the published batch and its state; publishes the next  commit/publisher.py
Cleanup           after a batch: compaction, log truncation, garbage collection          commit/cleanup.py
Batches           runs one batch after another                                           batches.py
Loader            backfills missing state and publishes it                               load/loader.py
StateRepair       rebuilds damaged state and state of another version                    load/repair.py
Suspender         suspends views and family members that fail on their own rows          load/suspension.py
ViewScheduler     runs scheduled views and per-call views                                strategies/scheduled.py
Definer           creates, alters and drops views                                        definitions/definer.py
StatementWarmup   prepares statements before the batch that needs them                   runtime/statement_warmup.py
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from viewkeeper import expressions
from viewkeeper.capture.partition_store import PartitionStore
from viewkeeper.commit.batch_history import BatchReport
from viewkeeper.commit.cleanup import Cleanup
from viewkeeper.commit.publisher import Publisher
from viewkeeper.errors import Contradiction, CorruptState, ViewkeeperError
from viewkeeper.maintain import exit_hooks  # noqa: F401  (importing it registers the exit hook of the process)
from viewkeeper.maintain.batches import Batches
from viewkeeper.maintain.definitions import families, synchronous_views
from viewkeeper.maintain.definitions.definer import Definer
from viewkeeper.maintain.load.loader import Loader
from viewkeeper.maintain.load.repair import StateRepair
from viewkeeper.maintain.load.suspension import Suspender
from viewkeeper.maintain.strategies.scheduled import ViewScheduler
from viewkeeper.model.catalog.strategies import strategy_of
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.resources.duckdb_pool import default_pool_size
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.process_budget import process_budget, register_maintainer, unregister_maintainer
from viewkeeper.runtime.cost_model import OUT_OF_MEMORY_ERRORS, LaneCostModel, check_lane, out_of_memory_error
from viewkeeper.runtime.error_attribution import BrokenViews, Contradicted
from viewkeeper.runtime.executor import ExecutorResources
from viewkeeper.runtime.spark.sessions import SparkProvider
from viewkeeper.runtime.statement_warmup import StatementWarmup
from viewkeeper.store.contract.store import Store


class Maintainer:
    """Maintains the views of a database; only one maintainer exists for each database.

    `retention`: seconds for which log entries are kept after the views include them, so that subscribers can resume.
    `memory`: the budget of the whole process (`resources.memory`). `threads`: threads of the driver lane; None means
    as many as there are processors, at most eight.
    """

    def __init__(
        self,
        store: Store,
        spark: SparkProvider,
        *,
        durable: bool = True,
        threads: int | None = None,
        retention: float = 0.0,
        memory: int | str | None = None,
    ) -> None:
        self.store = store
        self.on_batch: Callable[[BatchReport], None] | None = None
        budget = MemoryBudget(process_budget(memory)).with_spill_directory(StateDirectory(store.state_path))
        thread_count = default_pool_size() if threads is None else threads
        lane_costs = LaneCostModel(StateDirectory(store.state_path), spark.cluster, thread_count)
        resources = ExecutorResources(store, spark, durable, thread_count, budget, lane_costs)
        self.publisher = Publisher(store, durable=durable, memory=resources.memory)
        try:
            self.executor = resources.create_executor(self.publisher.state)
            self.cleanup = Cleanup(self.publisher, retention)
            self.loader = Loader(self.publisher, self.cleanup, resources, self.executor, self.refresh)
            self.state_repair = StateRepair(self.publisher, self.loader)
            self.batches = Batches(self.publisher, self.cleanup, self.executor, self.state_repair.rebuild)
            self.suspender = Suspender(self.publisher, self.loader, self.state_repair, self.batches.require_position)
            self.view_scheduler = ViewScheduler(self.publisher, resources, self.executor, self.loader, self.suspender)
            self.cleanup.files_in_use = self.view_scheduler.files
            self.definer = Definer(
                self.publisher,
                self.cleanup,
                self.loader,
                self.state_repair,
                self.suspender,
                self.view_scheduler,
                self.refresh,
            )
        except BaseException:
            self.publisher.close()
            raise
        register_maintainer(self)
        spark.prepare()
        self.statement_warmup = StatementWarmup(self.executor.pool, self.publisher.state.directory)
        try:
            with self.statement_warmup.pause():
                self._prepare_state()
        except BaseException:
            self.close()
            raise

    def _prepare_state(self) -> None:
        """Before the first batch, rebuild state of another version or behind a damaged batch record."""
        publisher = self.publisher
        publisher.deferred_cleanup.run_or_defer(
            "forgetting old parts of loads", PartitionStore(self.store, publisher.state.directory).delete_partitions
        )
        publisher.deferred_cleanup.run_or_defer(
            "sweeping parameters", partial(families.sweep_parameters, self.store, self.definer.members_in_creation)
        )
        fingerprint, record = publisher.state.manifest.fingerprint, publisher.batch.record
        if fingerprint != expressions.fingerprint():
            publisher.view_manifests = {}
            # Without its record the last batch's cut is unknown; the current head is used as the cut.
            has_manifest = "manifest" in record
            cut = None if has_manifest else self.store.head()
            reason = f"it was made with {fingerprint}, this is {expressions.fingerprint()}"
            self.loader.report_rebuild([reason if has_manifest else "the record of the last batch is damaged"])
            self.suspender.run_without_failing(lambda: self.state_repair.rebuild(cut), always=True)
        elif record and not publisher.dataflow.has_fingerprint(record.get("plan")):
            self.suspender.run_without_failing(self.state_repair.load_missing, always=True)

    def close(self) -> None:
        unregister_maintainer(self)
        self.statement_warmup.close()
        self.view_scheduler.close()
        with self.publisher.lock:
            self.executor.close()
            self.publisher.close()

    def refresh(self, lane: str = "auto", *, max_changes: int | None = None) -> BatchReport:
        """Bring every view to the head of the log, or `max_changes` further, in one batch.

        Damaged state, or a damaged log, is repaired first. A view that fails on its own rows is suspended and the other
        views continue (`load.suspension`).
        """
        check_lane(lane)
        with self.publisher.lock, self.statement_warmup.pause(), self.state_repair.watch_contradictions():
            try:
                report = self._refresh_to_head(lane, max_changes)
            except Contradiction:
                raise
            except CorruptState as damage:
                self.suspender.run_without_failing(partial(self.state_repair.repair_damage, damage))
                report = self._refresh_to_head(lane, max_changes)
            return report if self.publisher.deferred_cleanup.damage is None else self._repair_after(report)

    def refresh_all(self, lane: str = "auto", *, suspend: bool = True) -> BatchReport:
        """Run `refresh`, then the views with a cut of their own. Without `suspend`, a failing view raises its error."""
        with nullcontext() if suspend else self.suspender.raise_failures():
            report = self.refresh(lane)
            self.view_scheduler.run(run_all=True)
        suspended = self.suspender.take_unreported()
        return replace(report, suspended={**report.suspended, **suspended}) if suspended else report

    def _refresh_to_head(self, lane: str, max_changes: int | None) -> BatchReport:
        publisher, repairs = self.publisher, self.loader.repairs
        with self.executor.distribute_capture(lane):
            target = self.store.head() if max_changes is None else 0
            while True:
                try:
                    report = self.batches.run(lane, max_changes)
                    # If memory limits the batches, run more of them up to the log's head at the start.
                    while max_changes is None and publisher.batch.cut < target and publisher.is_behind():
                        report = self.batches.run(lane, None)
                    report = replace(report, suspended=self.suspender.take_unreported(), mended=tuple(repairs))
                    repairs.clear()
                    if self.on_batch is not None and (report.lane != "none" or report.suspended or report.mended):
                        self.on_batch(report)
                    return report
                except (BrokenViews, Contradicted) as failure:
                    self.suspender.suspend_failing(failure)
                except OUT_OF_MEMORY_ERRORS as error:
                    if not self.batches.halve():
                        raise error if isinstance(error, ViewkeeperError) else out_of_memory_error("a batch") from error

    def _repair_after(self, report: BatchReport) -> BatchReport:
        """Repair damage that cleanup found. The batch is published already, also if the repair fails."""
        deferred_cleanup, repairs = self.publisher.deferred_cleanup, self.loader.repairs
        damage, deferred_cleanup.damage = deferred_cleanup.damage, None
        if damage is not None:
            with deferred_cleanup.attempt("mending what clean-up came across"):
                self.state_repair.repair_damage(damage)
        all_repairs = (*report.mended, *repairs)
        repairs.clear()
        return replace(report, mended=all_repairs, afterwards=deferred_cleanup.failures)

    def repair(self, views: frozenset[int]) -> None:
        """Rebuild these views and all state behind them. Rows that are correct already are not written."""
        self.suspender.run_without_failing(partial(self.state_repair.repair_views, views))
        for view in self.publisher.catalog.nonstandard_views:
            if view.table.id in views and strategy_of(view).has_own_cut:
                self.view_scheduler.remake_fully(view)
            if view.table.id in views and view.synchronous_state is not None:
                synchronous_views.rebuild(self.store, view)
