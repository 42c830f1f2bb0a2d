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
from viewkeeper.commit.cleanup import Tidying
from viewkeeper.commit.publisher import Publisher, size_of
from viewkeeper.plan.dataflow.sharing_hints import wishes
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.runtime.cost_model import DRIVER, fitting, rows_beyond
from viewkeeper.runtime.error_attribution import broken_by, own_rows
from viewkeeper.runtime.executor import Stage
from viewkeeper.runtime.operator_errors import Failed
from viewkeeper.runtime.spark.pipelined_commit import Early
from viewkeeper.runtime.upserts import resolve
from viewkeeper.store.contract.store import StreamChange, ViewChange

_MERGING = "merging runs"


class Batches:
    """Runs one batch at a time on `stage`. `rebuild` makes everything anew at a cut, where that is cheaper."""

    def __init__(self, publisher: Publisher, tidying: Tidying, stage: Stage, rebuild: Callable[[int], None]) -> None:
        self.stage = stage
        self._publisher = publisher
        self._tidying = tidying
        self._rebuild = rebuild
        self._tried = 0
        self._fits: int | None = None
        self._least = 0

    def run(self, lane: str, max_changes: int | None) -> BatchReport:
        """One batch, of about `max_changes` rows at most; or none if nothing waits. The lock is held."""
        started = time.perf_counter()
        publisher, afterwards = self._publisher, self._publisher.afterwards
        if afterwards.damage is not None:
            damage, afterwards.damage = afterwards.damage, None
            raise damage
        publisher.follow()
        failpoints.point("commit.1.before")
        store, before, flow = publisher.store, publisher.batch, publisher.flow
        tables = [t.id for t in publisher.catalog.tables]
        cut = store.head()  # step 1
        waiting = store.pending(before.cut, tables, cut)
        if waiting.calls == 0:
            return BatchReport(before.number, 0, "none", time.perf_counter() - started, afterwards=afterwards.failed)
        if (instead := self._made_anew(waiting.rows, started)) is not None:
            return instead
        limits = [n for n in (max_changes, self._fits, fitting(waiting, publisher.memory.total)) if n is not None]
        self._tried = min([waiting.rows, *limits])
        more = self._tried < waiting.rows and not waiting.is_one_call
        if more:
            cut = max(store.cut_after(before.cut, tables, self._tried), min(self._least, cut))
        failpoints.point("commit.1.after")
        failed: list[Failed] = []
        with afterwards.of(_MERGING):
            failed = publisher.merger.adopt()
        for failure in (f for f in failed if flow.views_of(f.operator)):  # others may have been dropped meanwhile
            raise broken_by(flow, publisher.catalog.names, failure) from failure
        number = before.number + 1
        choice = self.stage.choose(lane, self._tried)
        chosen = choice.lane
        deltas, seen = self.stage.captured(chosen, flow, before.cut, cut, waiting, before.seen)  # step 2
        changes = sum(d.count or 0 for d in deltas.values())
        failpoints.point("commit.2.before")
        captured = time.perf_counter()
        catalog = publisher.catalog
        asked = wishes(catalog)
        resolving = {view: found.table for view, found in catalog.views_by_id.items()}
        how = (number, chosen, flow, flow.in_batches, deltas, catalog.names)
        with closing(Early(partial(store.begin, number))) as early:
            outcome = self.stage.run(*how, wishes=asked, resolving=resolving, early=early)
            try:
                failpoints.point("commit.2.after")
                ran = time.perf_counter()
                views = [*self._resolve(outcome.reached), *outcome.changes]
            except BaseException:
                with suppress(Exception):  # nobody writes any more, and what went wrong first is told
                    _ = outcome.entries
                raise
            entries = outcome.entries
            del deltas, outcome  # the store needs memory too
            recent = publisher.recent
            by = self.stage.driving.way if chosen == DRIVER else ""
            why = f"{choice.why}; run by {by}" if by else choice.why
            recent.begun(number, changes, chosen, captured - started, ran - captured, why)
            recent.looked_ahead(number, self.stage.driving.skipped)
            manifest = publisher.state.manifest.plus(entries)
            publisher.publish(number, cut, manifest, views, seen=seen, begun=early.begun)
            changed = early.rows + Counter({c.table.id: size_of(c) for c in views})
            told = {catalog.called(view): rows for view, rows in changed.items()}
        done = time.perf_counter()
        recent.committed(done - ran)
        recent.timed(self.stage.driving.clock, self.stage.driving.made)
        recent.add(done - started, waiting.rows, (captured - started, ran - captured, done - ran))
        if self._fits is not None:  # what was short may not be any more
            self._fits = 2 * self._fits if 2 * self._fits < waiting.rows else None
        self._tidying.after({e.slot for e in entries})
        self.stage.learn(choice, changes, done - started)
        seconds = time.perf_counter() - started
        return BatchReport(number, changes, chosen, seconds, told, afterwards=afterwards.failed, why=why, more=more)

    def reach(self, position: int) -> None:
        """However few changes the next batch may have, it comes to this position."""
        self._least = position

    def halve(self) -> bool:
        """Memory ran out: the next batch is of half as many rows. False if it was of one already."""
        if self._tried <= 1:
            return False
        self._fits = self._tried // 2
        return True

    def _made_anew(self, rows: int, started: float) -> BatchReport | None:
        """Everything anew where that is cheaper than a batch of so many changes (`crossover`).

        Not under views that are not stored, whose subscribers would have to start over.
        """
        publisher = self._publisher
        changed = rows_beyond(publisher.store, publisher.flow, publisher.batch.cut, rows)
        if changed is None or not all(v.table.has_rows for v in publisher.catalog.special):
            return None
        self._rebuild(publisher.store.head())
        seconds = time.perf_counter() - started
        publisher.recent.add(seconds, changed, (0.0, seconds, 0.0))
        why = "it changed most rows of the tables"
        publisher.recent.begun(publisher.batch.number, changed, "rebuild", 0.0, seconds, why)
        publisher.recent.committed(0.0)
        return BatchReport(publisher.batch.number, changed, "rebuild", seconds, why=why)

    def _resolve(self, reached: Mapping[int, list[pa.Table]]) -> list[ViewChange | StreamChange]:
        publisher = self._publisher

        def change(duck: Duck, view: int) -> ViewChange | StreamChange | None:
            table = publisher.catalog.views_by_id[view].table
            with own_rows(table):
                return resolve(duck, publisher.store, table, reached[view], publisher.memory)

        return [c for c in self.stage.crew.map(change, list(reached)) if c is not None]
