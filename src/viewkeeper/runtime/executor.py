"""Where step 2 of a batch happens: a DuckDB and an open state, over which the rounds run in either lane.

The maintainer has one stage for its batches. A view that is loaded while batches go on has a stage of its own, over
the state as it was at one published batch: runs are immutable, so the two do not meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from viewkeeper import expressions
from viewkeeper.capture.changes import Capture, is_one_call
from viewkeeper.errors import Contradiction
from viewkeeper.model.schema import Table
from viewkeeper.operators.kinds import Input
from viewkeeper.operators.operator import Operator
from viewkeeper.plan.dataflow.dataflow import Flow, slots
from viewkeeper.plan.dataflow.shared_paths import shared
from viewkeeper.plan.dataflow.sharing_hints import Wishes
from viewkeeper.resources.duckdb_pool import Crew
from viewkeeper.resources.memory import Memory
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.resources.process_budget import budget
from viewkeeper.runtime.batch_work import Driving, Outcome, Rounds
from viewkeeper.runtime.context import Fed
from viewkeeper.runtime.cost_model import DRIVER, RAN_OUT, Choice, Lanes, checked_lane, out_of_memory
from viewkeeper.runtime.error_attribution import Contradicted, broken_by
from viewkeeper.runtime.inputs import Given, LogRows, Rows
from viewkeeper.runtime.operator_errors import PROCESS_FAULTS, Failed, attributed_to
from viewkeeper.runtime.spark.placement import is_few
from viewkeeper.state.open_state import State
from viewkeeper.store.contract.store import Pending, Seen, Store

if TYPE_CHECKING:
    from viewkeeper.runtime.spark.jobs import Sent
    from viewkeeper.runtime.spark.pipelined_commit import Early
    from viewkeeper.runtime.spark.scheduler import Lane

_NO_WISHES = Wishes()


@dataclass(frozen=True)
class Resources:
    """What a database's work has: its store, Spark where that is needed, threads, and a budget of memory."""

    store: Store
    spark: Callable[[], Any]
    durable: bool
    threads: int
    memory: Memory
    lanes: Lanes

    @property
    def beside(self) -> Memory:
        """What work beside the batches may take."""
        return self.memory.divided(2)

    def stage(self, state: State, memory: Memory | None = None) -> Stage:
        return Stage(
            self.store,
            state,
            self.spark,
            durable=self.durable,
            threads=self.threads,
            memory=memory or self.memory,
            lanes=self.lanes,
        )


class Stage:
    """Runs rounds over `state`. `spark` gives the session when the Spark lane needs it; `memory` is its budget."""

    def __init__(
        self,
        store: Store,
        state: State,
        spark: Callable[[], Any],
        *,
        durable: bool = True,
        threads: int,
        memory: Memory | None = None,
        lanes: Lanes | None = None,
    ) -> None:
        self.store = store
        self.state = state
        self.spark = spark
        self.durable = durable
        self.memory = (memory or Memory(budget())).beside(state.directory)
        self.crew = Crew(threads, self.memory, expressions.setup)
        self.capture = Capture(store, self.crew, self.memory, state.arrangement)
        self._lanes = lanes
        self.driving = Driving(state, self.crew, self.memory, durable)
        self._sent: Sent | None = None

    def close(self) -> None:
        self.driving.close()
        self.crew.close()
        self.memory.leave()

    @property
    def duck(self) -> Duck:
        return self.crew.first

    def choose(self, asked: str, rows: int, kind: str = "batch") -> Choice:
        """The lane for so many changed or loaded rows."""
        if self._lanes is not None:
            return self._lanes.choose(asked, rows, kind)
        return Choice(DRIVER if checked_lane(asked) == "auto" else asked, "it works beside the batches")

    def learn(self, choice: Choice, rows: int, seconds: float, kind: str = "batch") -> None:
        """What was chosen took so long."""
        if self._lanes is not None:
            self._lanes.learn(choice.lane, rows, seconds, kind)

    @contextmanager
    def capturing(self, lane: str) -> Iterator[None]:
        """In the Spark lane the reads of capture are a Spark stage too, where the store can divide them."""
        if lane == "spark" and not self.store.capabilities.before_images:
            from viewkeeper.runtime.spark.jobs import spread_on

            self.store.work_by(spread_on(self.spark()))
        try:
            yield
        finally:
            self.store.work_by(None)

    def captured(
        self, lane: str, flow: Flow, after: int, upto: int, all_waiting: Pending, seen: Mapping[int, Seen]
    ) -> tuple[dict[str, Given], dict[int, Seen]]:
        """What happened to each table: in the driver, or, if that is much, where the lane's tasks run.

        `all_waiting`: what waits for all tables. `seen`: what had been seen up to `after`; given back: up to `upto`.
        """
        left = {}
        if lane == "spark" and self.store.divides_log and self.store.capabilities.before_images:
            for table, columns in flow.used.items():
                waiting = all_waiting.of(table) or self.store.pending(after, [table])
                names = tuple(c.name for c in columns)
                several = not is_one_call(waiting, upto)
                found = LogRows(self.store.url, flow.tables[table], names, after, upto, waiting.rows, several)
                if waiting.calls and not is_few(found):
                    left[table] = found
        here = [t for t in flow.used if t not in left]
        deltas, now = self.capture.changes(flow, after, upto, seen, here, all_waiting)
        return given_rows(deltas) | {Input(t).id: found for t, found in left.items()}, now

    def run(
        self,
        number: int,
        lane: str,
        flow: Flow,
        active: frozenset[str],
        given: Mapping[str, Given],
        names: Mapping[int, str],
        new: frozenset[str] = frozenset(),
        only: frozenset[str] | None = None,
        told: Callable[[int, int], None] | None = None,
        wishes: Wishes = _NO_WISHES,
        resolving: Mapping[int, Table] | None = None,
        early: Early | None = None,
    ) -> Outcome:
        """Step 2. `new` operators have no state yet; with `only`, runs of other slots than these are not kept.

        `told` hears how many operators have run, or tasks on Spark, and of how many. In a batch the paths of different
        views are made together, as far as these wish it. If that fails, each is made alone: then it is known whose
        error it is. `resolving`: tables of views whose deltas become puts and deletes in the lane's tasks, if it has
        several, some of them `early`.
        """
        rest = (active, given, names, new, only, told, resolving or {}, early)
        if new or active != flow.in_batches:
            return self._run(number, lane, flow, None, wishes, *rest)
        changed = {flow.operators[name].changes_of for name, g in given.items() if g.count != 0}
        together = shared(flow, frozenset(t for t in changed if t is not None), wishes)
        try:
            return self._run(number, lane, flow, together, wishes, *rest)
        except _Together:
            return self._run(number, lane, flow, None, wishes, *rest)

    def _run(
        self,
        number: int,
        lane: str,
        flow: Flow,
        together: Flow | None,
        wishes: Wishes,
        active: frozenset[str],
        given: Mapping[str, Given],
        names: Mapping[int, str],
        new: frozenset[str],
        only: frozenset[str] | None,
        told: Callable[[int, int], None] | None,
        resolving: Mapping[int, Table],
        early: Early | None,
    ) -> Outcome:
        fail = partial(_failure, flow, names)
        seeds = self._seeds(flow, new, fail)
        if lane == "spark":
            from viewkeeper.plan.catalyst import alive
            from viewkeeper.runtime.spark.scheduler import run_on_spark
            from viewkeeper.runtime.spark.upsert_tasks import Target

            stopped = [names.get(view, "a new view") for view in flow.views]
            targets = {v: Target(table, flow.sink(v).id) for v, table in resolving.items() if v in flow.views}
            how = (number, flow, active, given, seeds, stopped, fail, together, targets, told, early)
            with alive():
                ran = run_on_spark(self._on_spark(flow, new), *how)
            entries = [e for e in ran.entries if only is None or e.slot in only]
            return Outcome(ran.reached, lambda: entries, ran.changes)
        return self.driving.run(Rounds(number, flow, together, wishes, active, given, new, only, seeds, fail, told))

    def _seeds(self, flow: Flow, new: frozenset[str], fail: Callable[[Operator, Exception], Exception]) -> list[Fed]:
        """What operators are given at their first load, whatever their input."""
        found: list[Fed] = []
        for operator in (flow.operators[name] for name in new):
            try:
                with attributed_to(operator.id):
                    found += [(operator.id, *fed) for fed in operator.seed(self.duck)]
            except Failed as failed:
                raise fail(operator, failed) from failed
        return found

    def _on_spark(self, flow: Flow, new: frozenset[str]) -> Lane:
        from viewkeeper.runtime.spark.jobs import Sent
        from viewkeeper.runtime.spark.scheduler import Lane
        from viewkeeper.runtime.spark.sessions import all_near, reach_of

        hidden = frozenset(s for name in new for s in slots(flow.operators[name]))
        session = self.spark()
        if self._sent is None:
            self._sent = Sent()
        return Lane(
            session,
            self._sent,
            self.store.url,
            {s: r for s, r in self.state.manifest.runs.items() if s not in hidden},
            str(self.state.directory),
            self.durable,
            all_near(session, self.store),
            self.duck,
            self.memory,
            self.crew.size,
            reach_of(session, self.store),
        )


class _Together(Exception):
    """What is done for several views at once failed."""


def given_rows(deltas: Mapping[str, pa.Table]) -> dict[str, Given]:
    return {name: Rows(delta) for name, delta in deltas.items()}


def _failure(flow: Flow, names: Mapping[int, str], operator: Operator, error: Exception) -> Exception:
    """An operator's error or a contradiction, naming the views it stops; a fault of the process as it is."""
    if operator.together and not isinstance(error, PROCESS_FAULTS):
        return _Together()
    if isinstance(error, Failed):
        return broken_by(flow, names, error)
    views = flow.views_of(operator.id)
    stopped = ", ".join(sorted(names.get(v, "the new view") for v in views))
    if isinstance(error, RAN_OUT):
        return out_of_memory(f"the {operator.kind} of {stopped}")
    return Contradicted(views, f"{stopped}: {error.message}") if isinstance(error, Contradiction) else error
