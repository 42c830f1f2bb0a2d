"""The driver lane: the operators in this process, without a Spark job, by one or a few threads.

An operator runs once, after its last source; deltas wait at their ports in between. Its output is then fed to its
consumers, to each as a piece of work of its own, unless it is few rows: a changed table has many. Views have little to
do with each other, so two threads find work at most times: DuckDB, Arrow and numpy do theirs outside of Python's lock.
What an operator is given does not depend on which thread was first: deltas are taken in the order of their sources and
of their ways.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, NamedTuple

import pyarrow as pa

from viewkeeper.errors import Defect
from viewkeeper.operators.chunked_execution import ranges, stacked
from viewkeeper.operators.delta_join.operator import arrived
from viewkeeper.operators.operator import Operator
from viewkeeper.plan.dataflow.dataflow import Flow
from viewkeeper.resources.duckdb_pool import Crew
from viewkeeper.resources.memory import bytes_of
from viewkeeper.runtime.context import Fed, Feed, Site
from viewkeeper.runtime.inputs import Given, Rows, is_empty
from viewkeeper.runtime.local.ready_queue import order_of
from viewkeeper.runtime.operator_errors import Failed

OnError = Callable[[Operator, Exception], Exception]
_SEED = -1
_OPERATORS_FOR_MORE = 24
"""Operators in a batch from which it is run by several threads: with fewer there is little to do side by side."""
_AT_ONCE = 1_000
"""Rows of an output, less than a piece, that are fed at once by who made them: to let others take them up costs more
than it gains."""
_CROWD = 1 << 20
"""Rows at an aggregate's port from which they are added up before more come."""


def divides(active: frozenset[str]) -> bool:
    """Whether a batch through so many operators is better run by several threads."""
    return len(active) >= _OPERATORS_FOR_MORE


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
    site.changed = lambda source: rows.table if isinstance(rows := given.get(source), Rows) else None
    if crew is None:
        _work(site, schedule, on_error)
    else:
        schedule.longest_first()
        crew.each(lambda duck: _work(replace(site, duck=duck), schedule, on_error))
    if schedule.error is not None:
        raise schedule.error
    schedule.order.seconds.update(site.clock)
    return schedule.reached


def _work(site: Site, schedule: _Schedule, on_error: OnError | None) -> None:
    """Run what is ready until nothing is left or an operator failed."""
    while (task := schedule.take()) is not None:
        operator = site.flow.operators[task.name]
        started = time.perf_counter()
        try:
            site.told(*schedule.reach)
            if task.feed is None:
                _run(site, schedule, task, operator)
            else:
                _feed(site, schedule, task, task.feed)
        except BaseException as error:
            if on_error is not None and isinstance(error, Exception):
                failed = error.operator if isinstance(error, Failed) else operator.id
                found = on_error(site.flow.operators[failed], error)
                found.__cause__ = None if found is error else error
                error = found
            schedule.fail(error)
        schedule.took(site.clock, task.name, time.perf_counter() - started)


def _run(site: Site, schedule: _Schedule, task: _Task, operator: Operator) -> None:
    """The operator's output, to be fed each way. Few rows go all ways at once, and so does more than a piece, as it is
    made."""
    if operator.id in schedule.given:
        found = iter([schedule.given[operator.id].rows(site.duck, site.memory)])
    else:
        ports = schedule.ports(operator.id)
        found = iter(site.run(operator, [ports.get(i, []) for i in range(operator.arity)]))
    pieces = schedule.counted(site, operator, found)
    begun = list(islice(pieces, 2))
    ways = site.feeds(operator) if begun else []
    if len(begun) == 1 and begun[0].num_rows <= _AT_ONCE:
        for way, feed in enumerate(ways):
            schedule.bring(site, task._replace(way=way), site.fed(feed, site.leaving(feed, begun[0])))
        schedule.ran(task)
        return
    if len(begun) < 2:
        schedule.ran(task, begun[0] if begun else None, ways)
        return
    for piece in chain(_emptied(begun), pieces):
        for way, feed in enumerate(ways):
            _pass(site, schedule, task._replace(way=way), feed, piece)
    schedule.ran(task)


def _feed(site: Site, schedule: _Schedule, task: _Task, feed: Feed) -> None:
    """An output one way."""
    output = site.leaving(feed, task.output)
    several = not site.memory.is_one(output)
    for piece in site.memory.pieces(output):
        if several:
            _pass(site, schedule, task, feed, piece)
        else:
            schedule.bring(site, task, site.fed(feed, piece))
    schedule.fed(task)


def _pass(site: Site, schedule: _Schedule, task: _Task, feed: Feed, output: pa.Table) -> None:
    """A piece of a large output one way, and through the lookups at its end if what they read is there: they too are
    linear, so what they make of it is gone before the next piece comes."""
    for consumer, port, delta in site.fed(feed, site.leaving(feed, output)):
        operator = site.flow.operators[consumer]
        if operator.probes is None or not schedule.is_there(operator):
            schedule.bring(site, task, [(consumer, port, delta)])
            continue
        ways = site.feeds(operator)
        for piece in schedule.counted(site, operator, site.run(operator, [[delta]])):
            for way in ways:
                _pass(site, schedule, task, way, piece)


def _emptied(tables: list[pa.Table]) -> Iterator[pa.Table]:
    """The tables, each let go of when it is handed out."""
    tables.reverse()
    while tables:
        yield tables.pop()


class _Task(NamedTuple):
    """An operator to run, or its output to be fed one way: what most of the work waits for first, then those of the
    first sources."""

    before: float
    """Minus the seconds that the longest chain from here is expected to take."""
    place: int
    way: int
    name: str
    feed: Feed | None = None
    output: Any = None


class _Arrived(NamedTuple):
    """A delta at a port, from where, and how many bytes of memory it takes (none if it is in a file)."""

    place: int
    way: int
    size: int
    delta: Any


class _Schedule:
    """What waits where, and what is ready: all sources have run. Shared by the threads under one lock."""

    def __init__(self, flow: Flow, active: frozenset[str], given: Mapping[str, Given], seeds: Iterable[Fed]) -> None:
        self.given = given
        self.reached: dict[int, list[pa.Table]] = {}
        self.error: BaseException | None = None
        self._changed = threading.Condition()
        self._flow = flow
        seeds = list(seeds)
        begun = (name for name, rows in given.items() if not is_empty(rows))
        self.order = order_of(flow, active, frozenset([*begun, *(consumer for consumer, _, _ in seeds)]))
        self._place, self._after, self._missing = self.order.place, self.order.after, dict(self.order.missing)
        self._chains: Mapping[str, float] = {}
        self._waiting: dict[str, dict[int, list[_Arrived]]] = defaultdict(lambda: defaultdict(list))
        self._ready: list[_Task] = []
        self._ways: Counter[tuple[str, str]] = Counter()
        """Ways from a source to a consumer that are still to go."""
        self._running = 0
        self._held = 0
        """Bytes of the rows that wait at ports, and are in memory."""
        self._compacted: dict[tuple[str, int], int] = {}
        """Rows that were left at an aggregate's port when they were last added up."""
        self._done: set[str] = set()
        for consumer, port, delta in seeds:
            self._waiting[consumer][port].append(_Arrived(_SEED, 0, 0, delta))
        for name in [n for n, count in self._missing.items() if not count]:  # releasing one may release others
            self._release(name)

    def longest_first(self) -> None:
        """Several threads will work: whatever begins the longest chain of operators, by the last such batch, goes
        first, so that none is left for one thread in the end."""
        self._chains = self.order.chains()
        self._ready = [task._replace(before=self._before(task.name)) for task in self._ready]
        heapq.heapify(self._ready)

    def _before(self, name: str) -> float:
        return -self._chains.get(name, 0.0)

    def take(self) -> _Task | None:
        """The next piece of work, waiting for one if need be; None when all is done."""
        with self._changed:
            while self.error is None and not self._ready and self._running:
                self._changed.wait()
            if self.error is not None or not self._ready:
                return None
            self._running += 1
            return heapq.heappop(self._ready)

    @property
    def reach(self) -> tuple[int, int]:
        """How many operators have run, and of how many."""
        return len(self._done), len(self._place)

    def ports(self, name: str) -> dict[int, list[pa.Table]]:
        """What arrived at an operator's ports, in the order of the sources."""
        found = self._waiting.pop(name, {})
        with self._changed:
            self._held -= sum(a.size for arrived in found.values() for a in arrived)
        return {port: [a.delta for a in sorted(arrived, key=lambda a: a[:2])] for port, arrived in found.items()}

    def is_there(self, operator: Operator) -> bool:
        """Whether all that it looks up is in its fresh state."""
        return all(a in self._done or a not in self._place for a in operator.looked_up)

    def bring(self, site: Site, task: _Task, outputs: Iterable[Fed]) -> None:
        """Deltas to ports, where they wait: beyond what may wait in memory, in a file."""
        for consumer, port, delta in outputs:
            size = bytes_of(delta)
            if not site.memory.holds(self._held + size):
                delta, size = site.memory.aside(delta), 0
            operator = self._flow.operators[consumer]
            with self._changed:
                arrived = self._waiting[consumer][port]
                arrived.append(_Arrived(task.place, task.way, size, delta))
                self._held += size
                rows = sum(int(a.delta.num_rows) for a in arrived)
                crowded = rows > max(_CROWD, 2 * self._compacted.get((consumer, port), 0))
                if not crowded or not operator.compacts:
                    continue
                self._waiting[consumer][port] = []  # taken at once: another thread may be bringing rows to this port
                self._held -= sum(a.size for a in arrived)
            self._compact(site, operator, port, arrived)

    def _compact(self, site: Site, operator: Operator, port: int, found: Sequence[_Arrived]) -> None:
        """Add up what waited at a port: groups come again in every piece of a large output."""
        parts = (part for [part] in ranges(site, [[a.delta for a in found]]) if part is not None)
        whole = stacked([site.memory.aside(site.compacted(operator, port, [part])) for part in parts])
        with self._changed:
            self._waiting[operator.id][port].append(_Arrived(*min(a[:2] for a in found), 0, whole))
            self._compacted[operator.id, port] = int(whole.num_rows)

    def ran(self, task: _Task, output: pa.Table | None = None, feeds: Sequence[Feed] = ()) -> None:
        """The operator has run. Consumers that are not fed by it may go on; the others when they are fed."""
        with self._changed:
            for way, feed in enumerate(feeds):
                self._ways[task.name, feed[0]] += 1
                heapq.heappush(self._ready, _Task(self._before(feed[0]), task.place, way, task.name, feed, output))
            self._finish(task.name)
            self._running -= 1
            self._changed.notify_all()

    def fed(self, task: _Task) -> None:
        """The output has gone one way."""
        if task.feed is None:
            raise Defect(f"{task.name} has gone no way.")
        with self._changed:
            self._ways[task.name, task.feed[0]] -= 1
            self._reach(task.name, task.feed[0])
            self._running -= 1
            self._changed.notify_all()

    def counted(self, site: Site, operator: Operator, pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """The pieces of an operator's output that hold rows, which are counted as they go by."""
        with self._changed:
            site.made.setdefault(operator.id, 0)
            site.clock.setdefault(operator.id, 0.0)  # where it runs within its source's task, the time is the source's
        for piece in pieces:
            if piece.num_rows:
                with self._changed:
                    site.made[operator.id] += int(piece.num_rows)
                    for source, rows in arrived(piece).items():
                        site.made[source] = site.made.get(source, 0) + rows
                site.told(*self.reach)
                yield piece

    def took(self, clock: dict[str, float], name: str, seconds: float) -> None:
        with self._changed:
            clock[name] = clock.get(name, 0.0) + seconds

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self.error = self.error or error
            self._running -= 1
            self._changed.notify_all()

    def _finish(self, name: str) -> None:
        self._done.add(name)
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
        if operator.shows is not None:
            if name in self._waiting:
                self.reached[operator.shows] = self.ports(name).get(0, [])
        elif name in self._waiting or name in self.given:
            heapq.heappush(self._ready, _Task(self._before(name), self._place[name], -1, name))
            return
        self._finish(name)
