"""The maintainer of a database, made of parts; `refresh` brings every view to the head of the log.

Publisher   the lease, the published batch and its state; how the next takes its place    commit/publisher.py
Tidying     what comes after a batch: merging, cutting the log, removing files            commit/cleanup.py
Batches     one batch after the other                                                     batches.py
Loader      state that is missing is loaded and published                                 loader.py
Mender      state that is damaged, or another version's, is made anew                     mending.py
Suspender   views that fail on their own rows are taken out              suspending.py, of a family: expelling.py
Scheduler   views that run at intervals or from call to call                              scheduler.py
Definer     views that come, change and go                                                definer.py
Preparing   statements, ahead of the batch that needs them                                preparing.py
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from viewkeeper import expressions
from viewkeeper.capture.partition_store import Kept
from viewkeeper.commit.batch_history import BatchReport
from viewkeeper.commit.cleanup import Tidying
from viewkeeper.commit.publisher import Publisher
from viewkeeper.errors import Contradiction, CorruptState, ViewkeeperError
from viewkeeper.maintain.batches import Batches
from viewkeeper.maintain.definitions import families, synchronous_views
from viewkeeper.maintain.definitions.definer import Definer
from viewkeeper.maintain.load.loader import Loader
from viewkeeper.maintain.load.repair import Mender
from viewkeeper.maintain.load.suspension import Suspender
from viewkeeper.maintain.strategies.scheduled import Scheduler
from viewkeeper.model.catalog.strategies import strategy_of
from viewkeeper.resources.directory import Directory
from viewkeeper.resources.duckdb_pool import usual_size
from viewkeeper.resources.memory import Memory
from viewkeeper.resources.process_budget import begin_maintaining, budget, end_maintaining
from viewkeeper.runtime.cost_model import RAN_OUT, Lanes, checked_lane, out_of_memory
from viewkeeper.runtime.error_attribution import BrokenViews, Contradicted
from viewkeeper.runtime.executor import Resources
from viewkeeper.runtime.spark.sessions import Spark
from viewkeeper.runtime.statement_warmup import Preparing
from viewkeeper.store.contract.store import Store


class Maintainer:
    """One at a time for each database.

    `retention`: seconds for which log entries are kept after the views have them, for subscribers that come back.
    `memory`: what all of it may take (`store.memory`). `threads`: of the driver lane; None: as many as there are
    processors, up to eight.
    """

    def __init__(
        self,
        store: Store,
        spark: Spark,
        *,
        durable: bool = True,
        threads: int | None = None,
        retention: float = 0.0,
        memory: int | str | None = None,
    ) -> None:
        self.store = store
        self.on_batch: Callable[[BatchReport], None] | None = None
        whole = Memory(budget(memory)).beside(Directory(store.state_path))
        size = usual_size() if threads is None else threads
        lanes = Lanes(Directory(store.state_path), spark.cluster, size)
        resources = Resources(store, spark, durable, size, whole, lanes)
        self.publisher = Publisher(store, durable=durable, memory=resources.memory)
        try:
            self.stage = resources.stage(self.publisher.state)
            self.tidying = Tidying(self.publisher, retention)
            self.loader = Loader(self.publisher, self.tidying, resources, self.stage, self.refresh)
            self.mender = Mender(self.publisher, self.loader)
            self.batches = Batches(self.publisher, self.tidying, self.stage, self.mender.rebuild)
            self.suspender = Suspender(self.publisher, self.loader, self.mender, self.batches.reach)
            self.scheduler = Scheduler(self.publisher, resources, self.stage, self.loader, self.suspender)
            self.tidying.in_use = self.scheduler.files
            self.definer = Definer(
                self.publisher,
                self.tidying,
                self.loader,
                self.mender,
                self.suspender,
                self.scheduler,
                self.refresh,
            )
        except BaseException:
            self.publisher.close()
            raise
        begin_maintaining(self)
        spark.ready()
        self.preparing = Preparing(self.stage.crew, self.publisher.state.directory)
        try:
            with self.preparing.aside():
                self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        """State of another version, or of a record that is damaged, is made anew before the first batch."""
        publisher = self.publisher
        publisher.afterwards.owe("forgetting old parts of loads", Kept(self.store, publisher.state.directory).forget)
        publisher.afterwards.owe("sweeping parameters", partial(families.swept, self.store, self.definer.making))
        made, record = publisher.state.manifest.fingerprint, publisher.batch.record
        if made != expressions.fingerprint():
            publisher.sets = {}
            # Without its record nobody knows which cut the last batch had: the tables as they are now are one.
            known = "manifest" in record
            cut = None if known else self.store.head()
            why = f"it was made with {made}, this is {expressions.fingerprint()}"
            self.loader.tell([why if known else "the record of the last batch is damaged"])
            self.suspender.going_on(lambda: self.mender.rebuild(cut), always=True)
        elif record and not publisher.flow.has(record.get("plan")):
            self.suspender.going_on(self.mender.adapt, always=True)

    def close(self) -> None:
        end_maintaining(self)
        self.preparing.close()
        self.scheduler.close()
        with self.publisher.lock:
            self.stage.close()
            self.publisher.close()

    def refresh(self, lane: str = "auto", *, max_changes: int | None = None) -> BatchReport:
        """Bring every view to the head of the log, or `max_changes` further, in one batch.

        State or log that are damaged are mended first. A view that fails on its own rows is taken out and the others go
        on (`suspending`).
        """
        checked_lane(lane)
        with self.publisher.lock, self.preparing.aside(), self.mender.noting_contradictions():
            try:
                report = self._to_head(lane, max_changes)
            except Contradiction:
                raise
            except CorruptState as damage:
                self.suspender.going_on(partial(self.mender.mend, damage))
                report = self._to_head(lane, max_changes)
            return report if self.publisher.afterwards.damage is None else self._mended_after(report)

    def refresh_all(self, lane: str = "auto", *, suspend: bool = True) -> BatchReport:
        """`refresh`, then the views with a cut of their own. Without `suspend` a view that fails fails it all."""
        with nullcontext() if suspend else self.suspender.refusing():
            report = self.refresh(lane)
            self.scheduler.run(now=True)
        late = self.suspender.told()
        return replace(report, suspended={**report.suspended, **late}) if late else report

    def _to_head(self, lane: str, max_changes: int | None) -> BatchReport:
        publisher, mended = self.publisher, self.loader.mended
        with self.stage.capturing(lane):
            target = self.store.head() if max_changes is None else 0
            while True:
                try:
                    report = self.batches.run(lane, max_changes)
                    # Batches that do not fit into memory at once: on to where the log was.
                    while max_changes is None and publisher.batch.cut < target and publisher.behind():
                        report = self.batches.run(lane, None)
                    report = replace(report, suspended=self.suspender.told(), mended=tuple(mended))
                    mended.clear()
                    if self.on_batch is not None and (report.lane != "none" or report.suspended or report.mended):
                        self.on_batch(report)
                    return report
                except (BrokenViews, Contradicted) as broken:
                    self.suspender.take_out(broken)
                except RAN_OUT as short:
                    if not self.batches.halve():
                        raise short if isinstance(short, ViewkeeperError) else out_of_memory("a batch") from short

    def _mended_after(self, report: BatchReport) -> BatchReport:
        """Damage that clean-up came across: it is made good at once, and the batch is published whether it can be."""
        afterwards, mended = self.publisher.afterwards, self.loader.mended
        damage, afterwards.damage = afterwards.damage, None
        if damage is not None:
            with afterwards.of("mending what clean-up came across"):
                self.mender.mend(damage)
        told = (*report.mended, *mended)
        mended.clear()
        return replace(report, mended=told, afterwards=afterwards.failed)

    def repair(self, views: frozenset[int]) -> None:
        """Make these views anew, with all state behind them. Rows that are right already are not written."""
        self.suspender.going_on(partial(self.mender.repair, views))
        for view in self.publisher.catalog.special:
            if view.table.id in views and strategy_of(view).runs_alone:
                self.scheduler.make_whole(view)
            if view.table.id in views and view.sync is not None:
                synchronous_views.make_anew(self.store, view)
