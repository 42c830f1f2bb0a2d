"""Where step 2 of a batch happens: a DuckDB and an open state, over which the rounds run in either lane.

The maintainer has one stage for its batches. A view that is loaded while batches go on has a stage of its own, over
the state as it was at one published batch: runs are immutable, so the two do not meet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from viewkeeper import expressions
from viewkeeper.capture.changes import ROWS_FOR_MORE, Capture, is_one_call
from viewkeeper.commit.isolation import BrokenViews, Contradicted
from viewkeeper.commit.state import State
from viewkeeper.errors import Contradiction
from viewkeeper.maintain.fitting import RAN_OUT, out_of_memory
from viewkeeper.maintain.hands import Hands
from viewkeeper.maintain.lanes import DRIVER, Choice, Lanes, checked_lane
from viewkeeper.model.schema import Table
from viewkeeper.operators.arrangement import Arrangement, Run
from viewkeeper.operators.crew import Crew
from viewkeeper.operators.duck import Duck
from viewkeeper.operators.kinds import Input
from viewkeeper.operators.operator import Operator
from viewkeeper.operators.runs import RunEntry
from viewkeeper.plan.flow import Flow, slots
from viewkeeper.plan.paths import shared
from viewkeeper.plan.wishes import Wishes
from viewkeeper.rounds.blame import NOBODYS, Failed
from viewkeeper.rounds.driver import divides as operators_divide
from viewkeeper.rounds.driver import run_in_driver
from viewkeeper.rounds.given import Given, LogRows, Rows
from viewkeeper.rounds.placing import is_few
from viewkeeper.rounds.site import Site
from viewkeeper.store.base import Pending, Seen, Store, StreamChange, ViewChange
from viewkeeper.store.budget import budget
from viewkeeper.store.memory import Memory

if TYPE_CHECKING:
    from viewkeeper.rounds.early import Early
    from viewkeeper.rounds.jobs import Sent
    from viewkeeper.rounds.spark import Lane

_ROWS_AT_ONCE = 1_000_000
"""A run of so many rows has a file of its own and is written as soon as it is made, beside the work that goes on."""


_MANY_ROWS = 200_000
"""Changes from which several threads run a batch's operators in any case: their calls are long."""
_NO_WISHES = Wishes()


@dataclass(frozen=True)
class Outcome:
    """What the rounds of a batch left: deltas at the sinks, and the runs they wrote."""

    reached: Mapping[int, list[pa.Table]]
    written: Callable[[], list[RunEntry]]
    """The runs, when they are in their files."""
    changes: Sequence[ViewChange | StreamChange] = ()
    """Of views whose deltas tasks have resolved already."""

    @cached_property
    def entries(self) -> list[RunEntry]:
        return self.written()


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
        self._hands = Hands()
        self._sent: Sent | None = None
        self.clock: Mapping[str, float] = {}
        """Seconds of the last run in the driver lane, by operator."""
        self.made: Mapping[str, int] = {}
        """Rows that it gave, by operator."""
        self.skipped: Mapping[str, int] = {}
        """Rows that its lookups did not make, since they lead nowhere."""

    def close(self) -> None:
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
            from viewkeeper.rounds.jobs import spread_on

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
            return self._run(number, lane, flow, None, *rest)
        changed = {flow.operators[name].changes_of for name, g in given.items() if g.count != 0}
        together = shared(flow, frozenset(t for t in changed if t is not None), wishes)
        try:
            return self._run(number, lane, flow, together, *rest)
        except _Together:
            return self._run(number, lane, flow, None, *rest)

    def _run(
        self,
        number: int,
        lane: str,
        flow: Flow,
        together: Flow | None,
        active: frozenset[str],
        given: Mapping[str, Given],
        names: Mapping[int, str],
        new: frozenset[str],
        only: frozenset[str] | None,
        told: Callable[[int, int], None] | None,
        resolving: Mapping[int, Table],
        early: Early | None,
    ) -> Outcome:
        hidden = frozenset(s for name in new for s in slots(flow.operators[name]))
        seeds = [(name, *fed) for name in new for fed in flow.operators[name].seed(self.duck)]
        fail = partial(_failure, flow, names)
        if lane == "spark":
            from viewkeeper.rounds.resolving import Target
            from viewkeeper.rounds.spark import run_on_spark

            stopped = [names.get(view, "a new view") for view in flow.views]
            targets = {v: Target(table, flow.sink(v).id) for v, table in resolving.items() if v in flow.views}
            how = (number, flow, active, given, seeds, stopped, fail, together, targets, told, early)
            ran = run_on_spark(self._on_spark(hidden), *how)
            entries = [e for e in ran.entries if only is None or e.slot in only]
            return Outcome(ran.reached, lambda: entries, ran.changes)
        # A first load and a batch of many rows keep all cores busy inside DuckDB, unless there is a table to sort and
        # to write beside that; a batch of many operators has many short statements.
        rows = sum(g.table.num_rows for g in given.values() if isinstance(g, Rows))
        small = not new and rows < ROWS_FOR_MORE
        if new:
            divides = _sorts(flow, active & new)
        else:
            divides = operators_divide(active) or (rows >= _ROWS_AT_ONCE and _arranges(flow, active, given))
        changed = frozenset(name for name, found in given.items() if found.count != 0)
        sort = (changed, together is not None, rows.bit_length())
        several = divides and (bool(new) or rows >= _MANY_ROWS or self._hands.several(sort))
        duck = self.crew.together()[0] if divides else self.crew.alone(1 if small else None)
        written: dict[str, list[RunEntry]] = {}

        def keep(slot: str, run: Run) -> Run:
            if run.num_rows < _ROWS_AT_ONCE or (only is not None and slot not in only):
                return run
            written[slot] = self.state.write(number, {slot: run}, self.durable)
            # Behind a URL a long run is written in pieces; whoever goes on with it has it as it is.
            return self.state.mapped(written[slot][0]) if len(written[slot]) == 1 else run

        if together is not None:
            flow, active = together, together.in_batches
        site = Site(duck, flow, partial(self._old, hidden), active, self.memory, keep)
        if told is not None:
            site.told = told
        started = time.perf_counter()
        reached = run_in_driver(site, given, seeds, fail, self.crew if several else None)
        if divides:
            self._hands.learn(sort, several, rows, time.perf_counter() - started)
        self.clock, self.made, self.skipped = _told(flow, site.clock), site.made, site.skipped
        left = {s: run for s, run in site.added.items() if s not in written and (only is None or s in only)}
        write = partial(self.state.write, number, left, self.durable)
        rest = self.crew.beside(write) if left and divides and not small else partial(list, write())
        return Outcome(reached, lambda: [*chain.from_iterable(written.values()), *rest()])

    def _on_spark(self, hidden: frozenset[str]) -> Lane:
        from viewkeeper.rounds.jobs import Sent
        from viewkeeper.rounds.reach import all_near, reach_of
        from viewkeeper.rounds.spark import Lane

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

    def _old(self, hidden: frozenset[str], slot: str) -> Arrangement:
        return Arrangement(()) if slot in hidden else self.state.arrangement(slot)


class _Together(Exception):
    """What is done for several views at once failed."""


def _told(flow: Flow, clock: Mapping[str, float]) -> Mapping[str, float]:
    """Seconds by operator: those of one that stands for others are theirs, in equal parts."""
    found = {name: seconds for name, seconds in clock.items() if not flow.operators[name].together}
    for name in clock.keys() - found.keys():
        others = flow.operators[name].stands_for
        for other in others:
            found[other] = found.get(other, 0.0) + clock[name] / len(others)
    return found


def _sorts(flow: Flow, names: frozenset[str]) -> bool:
    """Whether a load has tables to arrange, and no join that keeps all cores busy by itself."""
    loaded = [flow.operators[name] for name in names]
    return any(o.arranges is not None for o in loaded) and not any(o.only_loads for o in loaded)


def _arranges(flow: Flow, names: frozenset[str], given: Mapping[str, Given]) -> bool:
    """Whether a table that has changes is arranged by one of these."""
    changed = {flow.operators[name].changes_of for name, rows in given.items() if rows.count != 0}
    arranged = {flow.operators[name].arranges for name in names}
    return bool((arranged & changed) - {None})


def given_rows(deltas: Mapping[str, pa.Table]) -> dict[str, Given]:
    return {name: Rows(delta) for name, delta in deltas.items()}


def _failure(flow: Flow, names: Mapping[int, str], operator: Operator, error: Exception) -> Exception:
    """An expression's error or a contradiction, naming the views it stops; anything else as it is."""
    if operator.together and not isinstance(error, NOBODYS):
        return _Together()
    views = flow.views_of(operator.id)
    stopped = ", ".join(sorted(names.get(v, "the new view") for v in views))
    if isinstance(error, RAN_OUT):
        return out_of_memory(f"the {operator.kind} of {stopped}")
    if isinstance(error, Contradiction):
        return Contradicted(views, f"{stopped}: {error.message}")
    found = expressions.error_code(error)
    members = error.members if isinstance(error, Failed) else ()
    return error if found is None else BrokenViews(views, f"{stopped}: {found.message}", members)
