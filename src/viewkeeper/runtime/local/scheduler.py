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
from viewkeeper.operators.chunked_execution import concat_deltas, split_by_hash_range
from viewkeeper.operators.delta_join.operator import rows_by_lookup
from viewkeeper.operators.operator import Operator
from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.resources.duckdb_pool import DuckDBPool
from viewkeeper.resources.memory import table_bytes
from viewkeeper.runtime.context import FeedEdge, LocalContext, PortDelta
from viewkeeper.runtime.inputs import InputSource, MemoryRows, is_empty
from viewkeeper.runtime.local.ready_queue import operator_order
from viewkeeper.runtime.operator_errors import OperatorError

OnError = Callable[[Operator, Exception], Exception]
_SEED = -1
_MIN_THREADED_OPERATORS = 24
"""Operators in a batch from which it is run by several threads: with fewer there is little to do side by side."""
_MAX_INLINE_ROWS = 1_000
"""Rows of an output, less than a piece, that are fed at once by who made them: to let others take them up costs more
than it gains."""
_COMPACTION_ROWS = 1 << 20
"""Rows at an aggregate's port from which they are added up before more come."""


def has_parallel_work(active: frozenset[str]) -> bool:
    """Whether a batch through so many operators is better run by several threads."""
    return len(active) >= _MIN_THREADED_OPERATORS


def run_operators(
    context: LocalContext,
    inputs: Mapping[str, InputSource],
    seeds: Iterable[PortDelta] = (),
    on_error: OnError | None = None,
    pool: DuckDBPool | None = None,
) -> dict[int, list[pa.Table]]:
    """Run every active operator once, at the site, or at sites like it, one for each thread of the crew.

    `given` holds the outputs of inputs (and of operators that stand for their whole state); the result is what reached
    each view's sink.
    """
    schedule = _ReadyQueue(context.dataflow, context.active, inputs, seeds)
    context.source_changes = lambda source: rows.table if isinstance(rows := inputs.get(source), MemoryRows) else None
    if pool is None:
        _run_ready_tasks(context, schedule, on_error)
    else:
        schedule.prioritize_longest()
        pool.run_on_each(lambda duck: _run_ready_tasks(replace(context, statements=duck), schedule, on_error))
    if schedule.error is not None:
        raise schedule.error
    schedule.order.seconds.update(context.operator_seconds)
    return schedule.sink_deltas


def _run_ready_tasks(context: LocalContext, queue: _ReadyQueue, on_error: OnError | None) -> None:
    """Run what is ready until nothing is left or an operator failed."""
    while (task := queue.next_task()) is not None:
        operator = context.dataflow.operators[task.name]
        started = time.perf_counter()
        try:
            context.progress(*queue.progress)
            if task.edge is None:
                _run_operator(context, queue, task, operator)
            else:
                _feed_edge(context, queue, task, task.edge)
        except BaseException as error:
            if on_error is not None and isinstance(error, Exception):
                failed = error.operator if isinstance(error, OperatorError) else operator.id
                found = on_error(context.dataflow.operators[failed], error)
                found.__cause__ = None if found is error else error
                error = found
            queue.fail(error)
        queue.add_seconds(context.operator_seconds, task.name, time.perf_counter() - started)


def _run_operator(context: LocalContext, queue: _ReadyQueue, task: _Task, operator: Operator) -> None:
    """The operator's output, to be fed each way. Few rows go all ways at once, and so does more than a piece, as it is
    made."""
    if operator.id in queue.inputs:
        found = iter([queue.inputs[operator.id].read(context.statements, context.memory)])
    else:
        ports = queue.take_ports(operator.id)
        found = iter(context.run(operator, [ports.get(i, []) for i in range(operator.arity)]))
    pieces = queue.count_output(context, operator, found)
    begun = list(islice(pieces, 2))
    ways = context.edges(operator) if begun else []
    if len(begun) == 1 and begun[0].num_rows <= _MAX_INLINE_ROWS:
        for way, feed in enumerate(ways):
            queue.deliver(
                context, task._replace(edge_index=way), context.feed_edge(feed, context.edge_output(feed, begun[0]))
            )
        queue.finish_operator(task)
        return
    if len(begun) < 2:
        queue.finish_operator(task, begun[0] if begun else None, ways)
        return
    for piece in chain(_drain(begun), pieces):
        for way, feed in enumerate(ways):
            _feed_piece(context, queue, task._replace(edge_index=way), feed, piece)
    queue.finish_operator(task)


def _feed_edge(context: LocalContext, queue: _ReadyQueue, task: _Task, edge: FeedEdge) -> None:
    """An output one way."""
    output = context.edge_output(edge, task.output)
    several = not context.memory.is_one_piece(output)
    for piece in context.memory.pieces(output):
        if several:
            _feed_piece(context, queue, task, edge, piece)
        else:
            queue.deliver(context, task, context.feed_edge(edge, piece))
    queue.finish_edge(task)


def _feed_piece(context: LocalContext, queue: _ReadyQueue, task: _Task, edge: FeedEdge, output: pa.Table) -> None:
    """A piece of a large output one way, and through the lookups at its end if what they read is there: they too are
    linear, so what they make of it is gone before the next piece comes."""
    for consumer, port, delta in context.feed_edge(edge, context.edge_output(edge, output)):
        operator = context.dataflow.operators[consumer]
        if operator.probed_arrangement is None or not queue.is_state_complete(operator):
            queue.deliver(context, task, [(consumer, port, delta)])
            continue
        ways = context.edges(operator)
        for piece in queue.count_output(context, operator, context.run(operator, [[delta]])):
            for way in ways:
                _feed_piece(context, queue, task, way, piece)


def _drain(tables: list[pa.Table]) -> Iterator[pa.Table]:
    """The tables, each let go of when it is handed out."""
    tables.reverse()
    while tables:
        yield tables.pop()


class _Task(NamedTuple):
    """An operator to run, or its output to be fed one way: what most of the work waits for first, then those of the
    first sources."""

    priority: float
    """Minus the seconds that the longest chain from here is expected to take."""
    rank: int
    edge_index: int
    name: str
    edge: FeedEdge | None = None
    output: Any = None


class _PortEntry(NamedTuple):
    """A delta at a port, from where, and how many bytes of memory it takes (none if it is in a file)."""

    rank: int
    edge_index: int
    size: int
    delta: Any


class _ReadyQueue:
    """What waits where, and what is ready: all sources have run. Shared by the threads under one lock."""

    def __init__(
        self, dataflow: Dataflow, active: frozenset[str], inputs: Mapping[str, InputSource], seeds: Iterable[PortDelta]
    ) -> None:
        self.inputs = inputs
        self.sink_deltas: dict[int, list[pa.Table]] = {}
        self.error: BaseException | None = None
        self._condition = threading.Condition()
        self._dataflow = dataflow
        seeds = list(seeds)
        begun = (name for name, rows in inputs.items() if not is_empty(rows))
        self.order = operator_order(dataflow, active, frozenset([*begun, *(consumer for consumer, _, _ in seeds)]))
        self._ranks, self._successors, self._missing_sources = (
            self.order.ranks,
            self.order.successors,
            dict(self.order.source_counts),
        )
        self._chain_seconds: Mapping[str, float] = {}
        self._pending: dict[str, dict[int, list[_PortEntry]]] = defaultdict(lambda: defaultdict(list))
        self._ready: list[_Task] = []
        self._open_edges: Counter[tuple[str, str]] = Counter()
        """Ways from a source to a consumer that are still to go."""
        self._running = 0
        self._buffered_bytes = 0
        """Bytes of the rows that wait at ports, and are in memory."""
        self._compacted_rows: dict[tuple[str, int], int] = {}
        """Rows that were left at an aggregate's port when they were last added up."""
        self._done: set[str] = set()
        for consumer, port, delta in seeds:
            self._pending[consumer][port].append(_PortEntry(_SEED, 0, 0, delta))
        for name in [n for n, count in self._missing_sources.items() if not count]:  # releasing one may release others
            self._release(name)

    def prioritize_longest(self) -> None:
        """Several threads will work: whatever begins the longest chain of operators, by the last such batch, goes
        first, so that none is left for one thread in the end."""
        self._chain_seconds = self.order.chain_seconds()
        self._ready = [task._replace(priority=self._priority(task.name)) for task in self._ready]
        heapq.heapify(self._ready)

    def _priority(self, name: str) -> float:
        return -self._chain_seconds.get(name, 0.0)

    def next_task(self) -> _Task | None:
        """The next piece of work, waiting for one if need be; None when all is done."""
        with self._condition:
            while self.error is None and not self._ready and self._running:
                self._condition.wait()
            if self.error is not None or not self._ready:
                return None
            self._running += 1
            return heapq.heappop(self._ready)

    @property
    def progress(self) -> tuple[int, int]:
        """How many operators have run, and of how many."""
        return len(self._done), len(self._ranks)

    def take_ports(self, name: str) -> dict[int, list[pa.Table]]:
        """What arrived at an operator's ports, in the order of the sources."""
        found = self._pending.pop(name, {})
        with self._condition:
            self._buffered_bytes -= sum(a.size for arrived in found.values() for a in arrived)
        return {port: [a.delta for a in sorted(arrived, key=lambda a: a[:2])] for port, arrived in found.items()}

    def is_state_complete(self, operator: Operator) -> bool:
        """Whether all that it looks up is in its fresh state."""
        return all(a in self._done or a not in self._ranks for a in operator.new_state_lookups)

    def deliver(self, context: LocalContext, task: _Task, outputs: Iterable[PortDelta]) -> None:
        """Deltas to ports, where they wait: beyond what may wait in memory, in a file."""
        for consumer, port, delta in outputs:
            size = table_bytes(delta)
            if not context.memory.can_buffer(self._buffered_bytes + size):
                delta, size = context.memory.spill(delta), 0
            operator = self._dataflow.operators[consumer]
            with self._condition:
                arrived = self._pending[consumer][port]
                arrived.append(_PortEntry(task.rank, task.edge_index, size, delta))
                self._buffered_bytes += size
                rows = sum(int(a.delta.num_rows) for a in arrived)
                crowded = rows > max(_COMPACTION_ROWS, 2 * self._compacted_rows.get((consumer, port), 0))
                if not crowded or not operator.can_compact:
                    continue
                self._pending[consumer][port] = []  # taken at once: another thread may be bringing rows to this port
                self._buffered_bytes -= sum(a.size for a in arrived)
            self._compact(context, operator, port, arrived)

    def _compact(self, context: LocalContext, operator: Operator, port: int, entries: Sequence[_PortEntry]) -> None:
        """Add up what waited at a port: groups come again in every piece of a large output."""
        parts = (part for [part] in split_by_hash_range(context, [[a.delta for a in entries]]) if part is not None)
        whole = concat_deltas([context.memory.spill(context.compact(operator, port, [part])) for part in parts])
        with self._condition:
            self._pending[operator.id][port].append(_PortEntry(*min(a[:2] for a in entries), 0, whole))
            self._compacted_rows[operator.id, port] = int(whole.num_rows)

    def finish_operator(self, task: _Task, output: pa.Table | None = None, edges: Sequence[FeedEdge] = ()) -> None:
        """The operator has run. Consumers that are not fed by it may go on; the others when they are fed."""
        with self._condition:
            for way, feed in enumerate(edges):
                self._open_edges[task.name, feed[0]] += 1
                heapq.heappush(self._ready, _Task(self._priority(feed[0]), task.rank, way, task.name, feed, output))
            self._finish(task.name)
            self._running -= 1
            self._condition.notify_all()

    def finish_edge(self, task: _Task) -> None:
        """The output has gone one way."""
        if task.edge is None:
            raise Defect(f"{task.name} has gone no way.")
        with self._condition:
            self._open_edges[task.name, task.edge[0]] -= 1
            self._complete_source(task.name, task.edge[0])
            self._running -= 1
            self._condition.notify_all()

    def count_output(self, context: LocalContext, operator: Operator, pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """The pieces of an operator's output that hold rows, which are counted as they go by."""
        with self._condition:
            context.output_rows.setdefault(operator.id, 0)
            context.operator_seconds.setdefault(
                operator.id, 0.0
            )  # where it runs within its source's task, the time is the source's
        for piece in pieces:
            if piece.num_rows:
                with self._condition:
                    context.output_rows[operator.id] += int(piece.num_rows)
                    for source, rows in rows_by_lookup(piece).items():
                        context.output_rows[source] = context.output_rows.get(source, 0) + rows
                context.progress(*self.progress)
                yield piece

    def add_seconds(self, operator_seconds: dict[str, float], name: str, seconds: float) -> None:
        with self._condition:
            operator_seconds[name] = operator_seconds.get(name, 0.0) + seconds

    def fail(self, error: BaseException) -> None:
        with self._condition:
            self.error = self.error or error
            self._running -= 1
            self._condition.notify_all()

    def _finish(self, name: str) -> None:
        self._done.add(name)
        for consumer in self._successors.get(name, ()):
            self._complete_source(name, consumer)

    def _complete_source(self, source: str, consumer: str) -> None:
        """One source less to wait for, unless it still feeds the consumer."""
        if self._open_edges[source, consumer]:
            return
        self._missing_sources[consumer] -= 1
        if not self._missing_sources[consumer]:
            self._release(consumer)

    def _release(self, name: str) -> None:
        """All sources have run: ready if anything came of them, else done."""
        operator = self._dataflow.operators[name]
        if operator.output_view is not None:
            if name in self._pending:
                self.sink_deltas[operator.output_view] = self.take_ports(name).get(0, [])
        elif name in self._pending or name in self.inputs:
            heapq.heappush(self._ready, _Task(self._priority(name), self._ranks[name], -1, name))
            return
        self._finish(name)
