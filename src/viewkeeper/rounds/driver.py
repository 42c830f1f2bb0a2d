"""The driver lane: the operators in this process, without a Spark job, by one or a few threads.

An operator runs once, after its last source; deltas wait at their ports in between. Its output is then fed to its
consumers, to each as a piece of work of its own: a changed table has many. Views have little to do with each other, so
two threads find work at most times: DuckDB, Arrow and numpy do theirs outside of Python's lock. What an operator is
given does not depend on which thread was first: deltas are taken in the order of their sources and of their ways.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from viewkeeper.errors import Defect
from viewkeeper.operators.crew import Crew
from viewkeeper.plan.dataflow import Image, Input, Operator, Sink
from viewkeeper.plan.flow import Flow
from viewkeeper.rounds.blame import Failed
from viewkeeper.rounds.given import Given
from viewkeeper.rounds.site import Fed, Feed, Site

OnError = Callable[[Operator, Exception], Exception]
_SEED = -1


def run_in_driver(
    site: Site,
    given: Mapping[str, Given],
    seeds: Iterable[Fed] = (),
    on_error: OnError | None = None,
    crew: Crew | None = None,
) -> dict[int, list[pa.Table]]:
    """Run every active operator once, at the site, or at sites like it, one for each thread of the crew.

    `given` holds the outputs of inputs (and of operators that stand for their whole state); the result is what reached
    each view's sink.
    """
    schedule = _Schedule(site.flow, site.active, given, seeds)
    if crew is None:
        _work(site, schedule, on_error)
    else:
        crew.each(lambda duck: _work(replace(site, duck=duck), schedule, on_error))
    if schedule.error is not None:
        raise schedule.error
    return schedule.reached


def _work(site: Site, schedule: _Schedule, on_error: OnError | None) -> None:
    """Run what is ready until nothing is left or an operator failed."""
    while (task := schedule.take()) is not None:
        operator = site.flow.operators[task.name]
        started = time.perf_counter()
        try:
            if task.feed is None:
                output, feeds = _ran(site, operator, schedule)
                site.made[task.name] = 0 if output is None else output.num_rows
                schedule.ran(task, output, feeds)
            else:
                schedule.fed(task, site.fed(task.feed, task.output))
        except BaseException as error:
            if on_error is not None and isinstance(error, Exception):
                failed = error.operator if isinstance(error, Failed) else operator.id
                found = on_error(site.flow.operators[failed], error)
                found.__cause__ = None if found is error else error
                error = found
            schedule.fail(error)
        schedule.took(site.clock, task.name, time.perf_counter() - started)


def _ran(site: Site, operator: Operator, schedule: _Schedule) -> tuple[pa.Table | None, list[Feed]]:
    """The operator's output, if there is any, and the ways that it takes."""
    if operator.id in schedule.given:
        output: pa.Table | None = schedule.given[operator.id].rows(site.duck)
    else:
        ports = schedule.ports(operator.id)
        output = site.run(operator, [ports.get(i, []) for i in range(operator.arity)])
    return output, site.feeds(operator) if output is not None and output.num_rows else []


class _Task(NamedTuple):
    """An operator to run, or its output to be fed one way. Those of the first sources come first."""

    place: int
    way: int
    name: str
    feed: Feed | None = None
    output: pa.Table | None = None


class _Schedule:
    """What waits where, and what is ready: all sources have run. Shared by the threads under one lock."""

    def __init__(self, flow: Flow, active: frozenset[str], given: Mapping[str, Given], seeds: Iterable[Fed]) -> None:
        self.given = given
        self.reached: dict[int, list[pa.Table]] = {}
        self.error: BaseException | None = None
        self._changed = threading.Condition()
        self._flow = flow
        order = _order(flow, active)
        self._place, self._after, self._missing = order.place, order.after, dict(order.missing)
        self._waiting: dict[str, dict[int, list[tuple[int, int, pa.Table]]]] = defaultdict(lambda: defaultdict(list))
        self._ready: list[_Task] = []
        self._ways: Counter[tuple[str, str]] = Counter()
        """Ways from a source to a consumer that are still to go."""
        self._running = 0
        for consumer, port, delta in seeds:
            self._waiting[consumer][port].append((_SEED, 0, delta))
        for name in [n for n, count in self._missing.items() if not count]:  # releasing one may release others
            self._release(name)

    def take(self) -> _Task | None:
        """The next piece of work, waiting for one if need be; None when all is done."""
        with self._changed:
            while self.error is None and not self._ready and self._running:
                self._changed.wait()
            if self.error is not None or not self._ready:
                return None
            self._running += 1
            return heapq.heappop(self._ready)

    def ports(self, name: str) -> dict[int, list[pa.Table]]:
        """What arrived at an operator's ports, in the order of the sources."""
        found = self._waiting.pop(name, {})
        return {port: [d for *_, d in sorted(deltas, key=lambda d: d[:2])] for port, deltas in found.items()}

    def ran(self, task: _Task, output: pa.Table | None, feeds: Sequence[Feed]) -> None:
        """The operator has run. Consumers that are not fed by it may go on; the others when they are fed."""
        with self._changed:
            for way, feed in enumerate(feeds):
                self._ways[task.name, feed[0]] += 1
                heapq.heappush(self._ready, _Task(task.place, way, task.name, feed, output))
            self._finish(task.name)
            self._running -= 1
            self._changed.notify_all()

    def fed(self, task: _Task, outputs: Sequence[Fed]) -> None:
        """The output has gone one way."""
        if task.feed is None:
            raise Defect(f"{task.name} has gone no way.")
        with self._changed:
            for consumer, port, delta in outputs:
                self._waiting[consumer][port].append((task.place, task.way, delta))
            self._ways[task.name, task.feed[0]] -= 1
            self._reach(task.name, task.feed[0])
            self._running -= 1
            self._changed.notify_all()

    def took(self, clock: dict[str, float], name: str, seconds: float) -> None:
        with self._changed:
            clock[name] = clock.get(name, 0.0) + seconds

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self.error = self.error or error
            self._running -= 1
            self._changed.notify_all()

    def _finish(self, name: str) -> None:
        for consumer in self._after.get(name, ()):
            self._reach(name, consumer)

    def _reach(self, source: str, consumer: str) -> None:
        """One source less to wait for, unless it still feeds the consumer."""
        if self._ways[source, consumer]:
            return
        self._missing[consumer] -= 1
        if not self._missing[consumer]:
            self._release(consumer)

    def _release(self, name: str) -> None:
        """All sources have run: ready if anything came of them, else done."""
        operator = self._flow.operators[name]
        if isinstance(operator, Sink):
            if name in self._waiting:
                self.reached[operator.view] = self.ports(name).get(0, [])
        elif name in self._waiting or name in self.given:
            heapq.heappush(self._ready, _Task(self._place[name], -1, name))
            return
        self._finish(name)


@dataclass(frozen=True)
class _Order:
    """Each operator's place, how many sources it waits for, and who waits for it."""

    place: Mapping[str, int]
    missing: Mapping[str, int]
    after: Mapping[str, Sequence[str]]


def _order(flow: Flow, active: frozenset[str]) -> _Order:
    """Worked out once for a flow: batches differ only in their rows."""
    found: _Order | None = flow.orders.get(active)
    if found is None:
        place = {name: i for i, name in enumerate(n for n in flow.operators if n in active)}
        missing: dict[str, int] = {}
        after: dict[str, list[str]] = defaultdict(list)
        for name in place:
            sources = {s for s in _sources(flow.operators[name]) if s in place}
            missing[name] = len(sources)
            for source in sources:
                after[source].append(name)
        found = flow.orders[active] = _Order(place, missing, after)
    return found


def _sources(operator: Operator) -> Iterator[str]:
    """What must have run: what feeds it, and what it looks up in the state of this batch."""
    yield from (s.source for s in operator.segments())
    yield from operator.looked_up
    if isinstance(operator, Image):
        yield Input(operator.table).id
