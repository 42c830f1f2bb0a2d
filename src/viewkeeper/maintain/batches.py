"""Batches: every view is brought to a cut of the log, one batch at a time (`commit.publisher` has the steps)."""

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
    """Runs one batch at a time on `stage`. `rebuild` makes everything anew at a cut, where that is cheaper."""

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
        """One batch, of about `max_changes` rows at most; or none if nothing waits. The lock is held."""
        started = time.perf_counter()
        publisher, afterwards = self._publisher, self._publisher.deferred_cleanup
        if afterwards.damage is not None:
            damage, afterwards.damage = afterwards.damage, None
            raise damage
        publisher.reload()
        failpoints.hit("commit.1.before")
        store, before, flow = publisher.store, publisher.batch, publisher.dataflow
        tables = [t.id for t in publisher.catalog.tables]
        cut = store.head()  # step 1
        waiting = store.pending(before.cut, tables, cut)
        if waiting.calls == 0:
            return BatchReport(before.number, 0, "none", time.perf_counter() - started, afterwards=afterwards.failures)
        if (instead := self._rebuild_instead(waiting.rows, started)) is not None:
            return instead
        limits = [
            n for n in (max_changes, self._row_limit, fitting_rows(waiting, publisher.memory.total)) if n is not None
        ]
        self._batch_rows = min([waiting.rows, *limits])
        more = self._batch_rows < waiting.rows and not waiting.is_single_call
        if more:
            cut = max(store.cut_after(before.cut, tables, self._batch_rows), min(self._min_cut, cut))
        failpoints.hit("commit.1.after")
        failed: list[OperatorError] = []
        with afterwards.attempt(_COMPACTION):
            failed = publisher.compactor.adopt()
        for failure in (f for f in failed if flow.views_of(f.operator)):  # others may have been dropped meanwhile
            raise broken_views(flow, publisher.catalog.names, failure) from failure
        number = before.number + 1
        choice = self.executor.choose_lane(lane, self._batch_rows)
        chosen = choice.lane
        deltas, seen = self.executor.capture_inputs(
            chosen, flow, before.cut, cut, waiting, before.capture_marks
        )  # step 2
        changes = sum(d.count or 0 for d in deltas.values())
        failpoints.hit("commit.2.before")
        captured = time.perf_counter()
        catalog = publisher.catalog
        asked = sharing_hints(catalog)
        resolving = {view: found.table for view, found in catalog.views_by_id.items()}
        how = (number, chosen, flow, flow.batch_operators, deltas, catalog.names)
        with closing(PipelinedCommit(partial(store.begin_commit, number))) as early:
            outcome = self.executor.run(*how, hints=asked, target_tables=resolving, pipelined_commit=early)
            try:
                failpoints.hit("commit.2.after")
                ran = time.perf_counter()
                views = [*self._resolve_changes(outcome.deltas), *outcome.changes]
            except BaseException:
                with suppress(Exception):  # nobody writes any more, and what went wrong first is told
                    _ = outcome.entries
                raise
            entries = outcome.entries
            del deltas, outcome  # the store needs memory too
            recent = publisher.history
            by = self.executor.local_executor.scheduler_name if chosen == DRIVER else ""
            why = f"{choice.reason}; run by {by}" if by else choice.reason
            recent.record_start(number, changes, chosen, captured - started, ran - captured, why)
            recent.record_skipped(number, self.executor.local_executor.skipped)
            manifest = publisher.state.manifest.with_entries(entries)
            publisher.publish(number, cut, manifest, views, capture_marks=seen, open_commit=early.open_commit)
            changed = early.applied_rows + Counter({c.table.id: changed_row_count(c) for c in views})
            told = {catalog.display_name(view): rows for view, rows in changed.items()}
        done = time.perf_counter()
        recent.record_commit(done - ran)
        recent.record_operators(self.executor.local_executor.operator_seconds, self.executor.local_executor.output_rows)
        recent.record_batch(done - started, waiting.rows, (captured - started, ran - captured, done - ran))
        if self._row_limit is not None:  # what was short may not be any more
            self._row_limit = 2 * self._row_limit if 2 * self._row_limit < waiting.rows else None
        self._cleanup.after_batch({e.slot for e in entries})
        self.executor.observe(choice, changes, done - started)
        seconds = time.perf_counter() - started
        return BatchReport(number, changes, chosen, seconds, told, afterwards=afterwards.failures, why=why, more=more)

    def require_position(self, position: int) -> None:
        """However few changes the next batch may have, it comes to this position."""
        self._min_cut = position

    def halve(self) -> bool:
        """Memory ran out: the next batch is of half as many rows. False if it was of one already."""
        if self._batch_rows <= 1:
            return False
        self._row_limit = self._batch_rows // 2
        return True

    def _rebuild_instead(self, rows: int, started: float) -> BatchReport | None:
        """Everything anew where that is cheaper than a batch of so many changes (`crossover`).

        Not under views that are not stored, whose subscribers would have to start over.
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

        def change(duck: PreparedStatements, view: int) -> ViewChange | StreamChange | None:
            table = publisher.catalog.views_by_id[view].table
            with attribute_to_view(table):
                return resolve_upserts(duck, publisher.store, table, deltas[view], publisher.memory)

        return [c for c in self.executor.pool.map(change, list(deltas)) if c is not None]
