"""The driver lane: the operators in this process, without a Spark job, by one or a few threads.

An operator runs once, after its last source; deltas wait at their ports in between. Views have little to do with each
other, so two threads find work at most times: DuckDB, Arrow and numpy do theirs outside of Python's lock. What an
operator is given does not depend on which thread was first: deltas are taken in the order of their sources.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from viewkeeper.operators.crew import Crew
from viewkeeper.plan.dataflow import Image, Input, Operator, Sink
from viewkeeper.plan.flow import Flow
from viewkeeper.rounds.given import Given
from viewkeeper.rounds.site import Fed, Site

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
    while (name := schedule.take()) is not None:
        operator = site.flow.operators[name]
        started = time.perf_counter()
        try:
            schedule.done(name, list(_outputs(site, operator, schedule)))
        except BaseException as error:
            if on_error is not None and isinstance(error, Exception):
                failed = operator if site.feeding is None else site.flow.operators[site.feeding]
                found = on_error(failed, error)
                found.__cause__ = None if found is error else error
                error = found
            schedule.fail(error)
        site.clock[name] = time.perf_counter() - started


def _outputs(site: Site, operator: Operator, schedule: _Schedule) -> Iterator[Fed]:
    if operator.id in schedule.given:
        output: pa.Table | None = schedule.given[operator.id].rows(site.duck)
    else:
        ports = schedule.ports(operator.id)
        output = site.run(operator, [ports.get(i, []) for i in range(operator.arity)])
    if output is not None and output.num_rows:
        yield from site.feed(operator, output)


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
        self._waiting: dict[str, dict[int, list[tuple[int, pa.Table]]]] = defaultdict(lambda: defaultdict(list))
        self._ready: list[tuple[int, str]] = []
        self._running = 0
        for consumer, port, delta in seeds:
            self._waiting[consumer][port].append((_SEED, delta))
        for name in [n for n, count in self._missing.items() if not count]:  # releasing one may release others
            self._release(name)

    def take(self) -> str | None:
        """The next operator to run, waiting for one if need be; None when all is done."""
        with self._changed:
            while self.error is None and not self._ready and self._running:
                self._changed.wait()
            if self.error is not None or not self._ready:
                return None
            self._running += 1
            return heapq.heappop(self._ready)[1]

    def ports(self, name: str) -> dict[int, list[pa.Table]]:
        """What arrived at an operator's ports, in the order of the sources."""
        found = self._waiting.pop(name, {})
        return {port: [d for _, d in sorted(deltas, key=lambda d: d[0])] for port, deltas in found.items()}

    def done(self, name: str, outputs: Sequence[Fed]) -> None:
        with self._changed:
            for consumer, port, delta in outputs:
                self._waiting[consumer][port].append((self._place[name], delta))
            self._running -= 1
            self._finish(name)
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self.error = self.error or error
            self._running -= 1
            self._changed.notify_all()

    def _finish(self, name: str) -> None:
        for consumer in self._after.get(name, ()):
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
            heapq.heappush(self._ready, (self._place[name], name))
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
