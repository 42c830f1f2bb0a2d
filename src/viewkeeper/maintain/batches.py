"""Batches: bring every view to a cut of the log, one batch at a time (`commit.publisher` lists the steps)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial

import pyarrow as pa

from viewkeeper import failpoints
from viewkeeper.commit.batch_history import BatchReport
from viewkeeper.commit.cleanup import Cleanup
from viewkeeper.commit.publisher import Publisher, changed_row_count
from viewkeeper.plan.dataflow.sharing_hints import sharing_hints
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.runtime.cost_model import DRIVER, fitting_rows, rebuild_rows
from viewkeeper.runtime.error_attribution import attribute_to_view, broken_views
from viewkeeper.runtime.executor import BatchExecutor
from viewkeeper.runtime.operator_errors import OperatorError
from viewkeeper.runtime.spark.pipelined_commit import PipelinedCommit
from viewkeeper.runtime.upserts import resolve_upserts
from viewkeeper.store.contract.store import StreamChange, ViewChange

_COMPACTION = "merging runs"


class Batches:
    """Runs one batch at a time on `executor`. `rebuild` rebuilds all state at a cut, where that is cheaper."""

    def __init__(
        self, publisher: Publisher, cleanup: Cleanup, executor: BatchExecutor, rebuild: Callable[[int], None]
    ) -> None:
        self.executor = executor
        self._publisher = publisher
        self._cleanup = cleanup
        self._rebuild = rebuild
        self._batch_rows = 0
        self._row_limit: int | None = None
        self._min_cut = 0

    def run(self, lane: str, max_changes: int | None) -> BatchReport:
        """Run one batch of at most about `max_changes` rows, or none without pending changes.

        The caller holds the publisher's lock.
        """
        started = time.perf_counter()
        publisher, deferred_cleanup = self._publisher, self._publisher.deferred_cleanup
        if deferred_cleanup.damage is not None:
            damage, deferred_cleanup.damage = deferred_cleanup.damage, None
            raise damage
        publisher.reload()
        failpoints.hit("commit.1.before")
        store, before, dataflow = publisher.store, publisher.batch, publisher.dataflow
        tables = [t.id for t in publisher.catalog.tables]
        cut = store.head()  # step 1
        pending = store.pending(before.cut, tables, cut)
        if pending.calls == 0:
            return BatchReport(
                before.number, 0, "none", time.perf_counter() - started, afterwards=deferred_cleanup.failures
            )
        if (rebuilt := self._rebuild_instead(pending.rows, started)) is not None:
            return rebuilt
        limits = [
            limit
            for limit in (max_changes, self._row_limit, fitting_rows(pending, publisher.memory.total))
            if limit is not None
        ]
        self._batch_rows = min([pending.rows, *limits])
        has_more = self._batch_rows < pending.rows and not pending.is_single_call
        if has_more:
            cut = max(store.cut_after(before.cut, tables, self._batch_rows), min(self._min_cut, cut))
        failpoints.hit("commit.1.after")
        merge_errors: list[OperatorError] = []
        with deferred_cleanup.attempt(_COMPACTION):
            merge_errors = publisher.compactor.adopt()
        # An operator without views was dropped meanwhile; its failure is ignored.
        for failure in (error for error in merge_errors if dataflow.views_of(error.operator)):
            raise broken_views(dataflow, publisher.catalog.names, failure) from failure
        number = before.number + 1
        choice = self.executor.choose_lane(lane, self._batch_rows)
        chosen_lane = choice.lane
        # Step 2.
        deltas, capture_marks = self.executor.capture_inputs(
            chosen_lane, dataflow, before.cut, cut, pending, before.capture_marks
        )
        changes = sum(source.count or 0 for source in deltas.values())
        failpoints.hit("commit.2.before")
        capture_ended = time.perf_counter()
        catalog = publisher.catalog
        hints = sharing_hints(catalog)
        target_tables = {view: found.table for view, found in catalog.views_by_id.items()}
        arguments = (number, chosen_lane, dataflow, dataflow.batch_operators, deltas, catalog.names)
        with closing(PipelinedCommit(partial(store.begin_commit, number))) as pipelined_commit:
            result = self.executor.run(
                *arguments, hints=hints, target_tables=target_tables, pipelined_commit=pipelined_commit
            )
            try:
                failpoints.hit("commit.2.after")
                run_ended = time.perf_counter()
                views = [*self._resolve_changes(result.deltas), *result.changes]
            except BaseException:
                with suppress(Exception):  # wait until the runs are written; only the first error is raised
                    _ = result.entries
                raise
            entries = result.entries
            del deltas, result  # free the memory, because the store needs some for the commit
            history = publisher.history
            scheduler = self.executor.local_executor.scheduler_name if chosen_lane == DRIVER else ""
            why = f"{choice.reason}; run by {scheduler}" if scheduler else choice.reason
            history.record_start(number, changes, chosen_lane, capture_ended - started, run_ended - capture_ended, why)
            history.record_skipped(number, self.executor.local_executor.skipped)
            manifest = publisher.state.manifest.with_entries(entries)
            publisher.publish(
                number, cut, manifest, views, capture_marks=capture_marks, open_commit=pipelined_commit.open_commit
            )
            changed = pipelined_commit.applied_rows + Counter({c.table.id: changed_row_count(c) for c in views})
            rows_by_view = {catalog.display_name(view): rows for view, rows in changed.items()}
        ended = time.perf_counter()
        history.record_commit(ended - run_ended)
        history.record_operators(
            self.executor.local_executor.operator_seconds, self.executor.local_executor.output_rows
        )
        history.record_batch(
            ended - started, pending.rows, (capture_ended - started, run_ended - capture_ended, ended - run_ended)
        )
        if self._row_limit is not None:  # memory may be sufficient again
            self._row_limit = 2 * self._row_limit if 2 * self._row_limit < pending.rows else None
        self._cleanup.after_batch({e.slot for e in entries})
        self.executor.observe(choice, changes, ended - started)
        seconds = time.perf_counter() - started
        return BatchReport(
            number,
            changes,
            chosen_lane,
            seconds,
            rows_by_view,
            afterwards=deferred_cleanup.failures,
            why=why,
            more=has_more,
        )

    def require_position(self, position: int) -> None:
        """Make the next batch reach this position, even if it exceeds the limit of rows."""
        self._min_cut = position

    def halve(self) -> bool:
        """Limit the next batch to half as many rows after memory ran out; False if the batch had one row already."""
        if self._batch_rows <= 1:
            return False
        self._row_limit = self._batch_rows // 2
        return True

    def _rebuild_instead(self, rows: int, started: float) -> BatchReport | None:
        """Rebuild all state if that is cheaper than a batch of so many changes (`cost_model.rebuild_rows`).

        Not if there is a view without stored rows, whose subscribers would have to start again.
        """
        publisher = self._publisher
        changed = rebuild_rows(publisher.store, publisher.dataflow, publisher.batch.cut, rows)
        if changed is None or not all(v.table.has_rows for v in publisher.catalog.nonstandard_views):
            return None
        self._rebuild(publisher.store.head())
        seconds = time.perf_counter() - started
        publisher.history.record_batch(seconds, changed, (0.0, seconds, 0.0))
        why = "it changed most rows of the tables"
        publisher.history.record_start(publisher.batch.number, changed, "rebuild", 0.0, seconds, why)
        publisher.history.record_commit(0.0)
        return BatchReport(publisher.batch.number, changed, "rebuild", seconds, why=why)

    def _resolve_changes(self, deltas: Mapping[int, list[pa.Table]]) -> list[ViewChange | StreamChange]:
        publisher = self._publisher

        def resolve(statements: PreparedStatements, view: int) -> ViewChange | StreamChange | None:
            table = publisher.catalog.views_by_id[view].table
            with attribute_to_view(table):
                return resolve_upserts(statements, publisher.store, table, deltas[view], publisher.memory)

        return [change for change in self.executor.pool.map(resolve, list(deltas)) if change is not None]
