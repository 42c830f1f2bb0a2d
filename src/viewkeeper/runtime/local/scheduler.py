"""The driver lane's scheduler: runs operators in this process, without a Spark job, in one or several threads.

An operator runs once, after its last source; until then deltas are buffered at its ports. Its output is then passed to
its consumers. Each edge is a task of its own unless the output is small, because a changed table has many consumers.
Views depend little on each other, so several threads usually find work; DuckDB, Arrow and numpy work without the GIL.

The input of an operator does not depend on the order of the threads: deltas at a port are sorted by the rank of their
source and by edge.
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
"""A batch with at least this many operators runs in several threads; fewer operators offer little parallel work."""
_MAX_INLINE_ROWS = 1_000
"""Outputs of at most this many rows are passed on by the thread that produced them; queueing them would cost more than
it saves."""
_COMPACTION_ROWS = 1 << 20
"""From this many buffered rows on, the rows at an aggregate's port are compacted before more are buffered."""


def has_parallel_work(active: frozenset[str]) -> bool:
    """Whether a batch with these operators is better run in several threads."""
    return len(active) >= _MIN_THREADED_OPERATORS


def run_operators(
    context: LocalContext,
    inputs: Mapping[str, InputSource],
    seeds: Iterable[PortDelta] = (),
    on_error: OnError | None = None,
    pool: DuckDBPool | None = None,
) -> dict[int, list[pa.Table]]:
    """Run every active operator once and return the deltas at each view's sink.

    With a `pool`, each of its threads runs tasks in a copy of the context. `inputs` are the outputs of input operators,
    and of operators that are replaced by their whole state.
    """
    queue = _ReadyQueue(context.dataflow, context.active, inputs, seeds)
    context.source_changes = lambda source: rows.table if isinstance(rows := inputs.get(source), MemoryRows) else None
    if pool is None:
        _run_ready_tasks(context, queue, on_error)
    else:
        queue.prioritize_longest()
        pool.run_on_each(lambda statements: _run_ready_tasks(replace(context, statements=statements), queue, on_error))
    if queue.error is not None:
        raise queue.error
    queue.order.seconds.update(context.operator_seconds)
    return queue.sink_deltas


def _run_ready_tasks(context: LocalContext, queue: _ReadyQueue, on_error: OnError | None) -> None:
    """Run ready tasks until none is left or an operator has failed."""
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
                operator_id = error.operator if isinstance(error, OperatorError) else operator.id
                reported = on_error(context.dataflow.operators[operator_id], error)
                reported.__cause__ = None if reported is error else error
                error = reported
            queue.fail(error)
        queue.add_seconds(context.operator_seconds, task.name, time.perf_counter() - started)


def _run_operator(context: LocalContext, queue: _ReadyQueue, task: _Task, operator: Operator) -> None:
    """Run an operator and pass its output to its edges.

    A small output is passed on at once. An output of several pieces is passed on piece by piece, while it is produced.
    Otherwise a task is queued for each edge.
    """
    if operator.id in queue.inputs:
        output = iter([queue.inputs[operator.id].read(context.statements, context.memory)])
    else:
        ports = queue.take_ports(operator.id)
        output = iter(context.run(operator, [ports.get(i, []) for i in range(operator.arity)]))
    pieces = queue.count_output(context, operator, output)
    first_pieces = list(islice(pieces, 2))
    edges = context.edges(operator) if first_pieces else []
    if len(first_pieces) == 1 and first_pieces[0].num_rows <= _MAX_INLINE_ROWS:
        for edge_index, edge in enumerate(edges):
            queue.deliver(
                context,
                task._replace(edge_index=edge_index),
                context.feed_edge(edge, context.edge_output(edge, first_pieces[0])),
            )
        queue.finish_operator(task)
        return
    if len(first_pieces) < 2:
        queue.finish_operator(task, first_pieces[0] if first_pieces else None, edges)
        return
    for piece in chain(_drain(first_pieces), pieces):
        for edge_index, edge in enumerate(edges):
            _feed_piece(context, queue, task._replace(edge_index=edge_index), edge, piece)
    queue.finish_operator(task)


def _feed_edge(context: LocalContext, queue: _ReadyQueue, task: _Task, edge: FeedEdge) -> None:
    """Pass an output along one edge."""
    output = context.edge_output(edge, task.output)
    has_several_pieces = not context.memory.is_one_piece(output)
    for piece in context.memory.pieces(output):
        if has_several_pieces:
            _feed_piece(context, queue, task, edge, piece)
        else:
            queue.deliver(context, task, context.feed_edge(edge, piece))
    queue.finish_edge(task)


def _feed_piece(context: LocalContext, queue: _ReadyQueue, task: _Task, edge: FeedEdge, output: pa.Table) -> None:
    """Pass a piece of a large output along one edge, and through the following lookups if their state is complete.

    Lookups are linear, so the result of a piece can be passed on before the next piece is produced.
    """
    for consumer, port, delta in context.feed_edge(edge, context.edge_output(edge, output)):
        operator = context.dataflow.operators[consumer]
        if operator.probed_arrangement is None or not queue.is_state_complete(operator):
            queue.deliver(context, task, [(consumer, port, delta)])
            continue
        edges = context.edges(operator)
        for piece in queue.count_output(context, operator, context.run(operator, [[delta]])):
            for next_edge in edges:
                _feed_piece(context, queue, task, next_edge, piece)


def _drain(tables: list[pa.Table]) -> Iterator[pa.Table]:
    """Yield the tables, and release each of them when it is yielded."""
    tables.reverse()
    while tables:
        yield tables.pop()


class _Task(NamedTuple):
    """An operator to run, or its output to be passed along one edge.

    Tasks are ordered by priority (the start of the longest chain first), then by the rank of the source.
    """

    priority: float
    """The negative of the seconds that the longest chain from this operator on is expected to take."""
    rank: int
    edge_index: int
    name: str
    edge: FeedEdge | None = None
    output: Any = None


class _PortEntry(NamedTuple):
    """A delta at a port, with the rank and edge of its source, and its bytes in memory (0 if it is in a file)."""

    rank: int
    edge_index: int
    size: int
    delta: Any


class _ReadyQueue:
    """Deltas buffered at ports, and ready tasks, whose sources have run. Threads share it under a lock."""

    def __init__(
        self, dataflow: Dataflow, active: frozenset[str], inputs: Mapping[str, InputSource], seeds: Iterable[PortDelta]
    ) -> None:
        self.inputs = inputs
        self.sink_deltas: dict[int, list[pa.Table]] = {}
        self.error: BaseException | None = None
        self._condition = threading.Condition()
        self._dataflow = dataflow
        seeds = list(seeds)
        starting = (name for name, rows in inputs.items() if not is_empty(rows))
        self.order = operator_order(dataflow, active, frozenset([*starting, *(consumer for consumer, _, _ in seeds)]))
        self._ranks, self._successors, self._missing_sources = (
            self.order.ranks,
            self.order.successors,
            dict(self.order.source_counts),
        )
        self._chain_seconds: Mapping[str, float] = {}
        self._pending: dict[str, dict[int, list[_PortEntry]]] = defaultdict(lambda: defaultdict(list))
        self._ready: list[_Task] = []
        self._open_edges: Counter[tuple[str, str]] = Counter()
        """Number of edges from a source to a consumer that are not finished."""
        self._running = 0
        self._buffered_bytes = 0
        """Bytes of the rows that are buffered at ports in memory."""
        self._compacted_rows: dict[tuple[str, int], int] = {}
        """Rows at an aggregate's port after its last compaction."""
        self._done: set[str] = set()
        for consumer, port, delta in seeds:
            self._pending[consumer][port].append(_PortEntry(_SEED, 0, 0, delta))
        # A copy, because releasing one operator may release others.
        for name in [operator_id for operator_id, count in self._missing_sources.items() if not count]:
            self._release(name)

    def prioritize_longest(self) -> None:
        """Order ready tasks by the longest chain that they begin, as measured in the last such batch.

        Several threads then do not end with a single chain that only one of them can run.
        """
        self._chain_seconds = self.order.chain_seconds()
        self._ready = [task._replace(priority=self._priority(task.name)) for task in self._ready]
        heapq.heapify(self._ready)

    def _priority(self, name: str) -> float:
        return -self._chain_seconds.get(name, 0.0)

    def next_task(self) -> _Task | None:
        """Return the next task, waiting until one is ready; None when all tasks are done or one has failed."""
        with self._condition:
            while self.error is None and not self._ready and self._running:
                self._condition.wait()
            if self.error is not None or not self._ready:
                return None
            self._running += 1
            return heapq.heappop(self._ready)

    @property
    def progress(self) -> tuple[int, int]:
        """The number of operators that have run, and the number of all."""
        return len(self._done), len(self._ranks)

    def take_ports(self, name: str) -> dict[int, list[pa.Table]]:
        """Remove and return the deltas at an operator's ports, in the order of their sources."""
        ports = self._pending.pop(name, {})
        with self._condition:
            self._buffered_bytes -= sum(entry.size for entries in ports.values() for entry in entries)
        return {
            port: [entry.delta for entry in sorted(entries, key=lambda entry: entry[:2])]
            for port, entries in ports.items()
        }

    def is_state_complete(self, operator: Operator) -> bool:
        """Whether the new state of all arrangements that the operator looks up is complete."""
        return all(
            arrangement in self._done or arrangement not in self._ranks for arrangement in operator.new_state_lookups
        )

    def deliver(self, context: LocalContext, task: _Task, outputs: Iterable[PortDelta]) -> None:
        """Buffer deltas at ports; beyond the memory limit they are spilled to files."""
        for consumer, port, delta in outputs:
            size = table_bytes(delta)
            if not context.memory.can_buffer(self._buffered_bytes + size):
                delta, size = context.memory.spill(delta), 0
            operator = self._dataflow.operators[consumer]
            with self._condition:
                entries = self._pending[consumer][port]
                entries.append(_PortEntry(task.rank, task.edge_index, size, delta))
                self._buffered_bytes += size
                rows = sum(int(entry.delta.num_rows) for entry in entries)
                has_grown = rows > max(_COMPACTION_ROWS, 2 * self._compacted_rows.get((consumer, port), 0))
                if not has_grown or not operator.can_compact:
                    continue
                self._pending[consumer][
                    port
                ] = []  # removed under the lock: another thread may deliver rows to this port
                self._buffered_bytes -= sum(entry.size for entry in entries)
            self._compact(context, operator, port, entries)

    def _compact(self, context: LocalContext, operator: Operator, port: int, entries: Sequence[_PortEntry]) -> None:
        """Compact the rows at a port: each piece of a large output contains the same groups again."""
        parts = (
            part for [part] in split_by_hash_range(context, [[entry.delta for entry in entries]]) if part is not None
        )
        compacted = concat_deltas([context.memory.spill(context.compact(operator, port, [part])) for part in parts])
        with self._condition:
            self._pending[operator.id][port].append(_PortEntry(*min(entry[:2] for entry in entries), 0, compacted))
            self._compacted_rows[operator.id, port] = int(compacted.num_rows)

    def finish_operator(self, task: _Task, output: pa.Table | None = None, edges: Sequence[FeedEdge] = ()) -> None:
        """Mark the operator as done and queue its edges; their consumers wait until the edges are finished."""
        with self._condition:
            for edge_index, edge in enumerate(edges):
                self._open_edges[task.name, edge[0]] += 1
                heapq.heappush(
                    self._ready, _Task(self._priority(edge[0]), task.rank, edge_index, task.name, edge, output)
                )
            self._finish(task.name)
            self._running -= 1
            self._condition.notify_all()

    def finish_edge(self, task: _Task) -> None:
        """Mark one edge of an output as finished."""
        if task.edge is None:
            raise Defect(f"{task.name} has gone no way.")
        with self._condition:
            self._open_edges[task.name, task.edge[0]] -= 1
            self._complete_source(task.name, task.edge[0])
            self._running -= 1
            self._condition.notify_all()

    def count_output(self, context: LocalContext, operator: Operator, pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yield the nonempty pieces of an operator's output, and count their rows."""
        with self._condition:
            context.output_rows.setdefault(operator.id, 0)
            # An operator that runs within its source's task has no time of its own: it counts for the source.
            context.operator_seconds.setdefault(operator.id, 0.0)
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
        """Count a source of the consumer as complete if all edges between them are; release it after the last."""
        if self._open_edges[source, consumer]:
            return
        self._missing_sources[consumer] -= 1
        if not self._missing_sources[consumer]:
            self._release(consumer)

    def _release(self, name: str) -> None:
        """Queue an operator whose sources have all run, if it has input; otherwise mark it as done."""
        operator = self._dataflow.operators[name]
        if operator.output_view is not None:
            if name in self._pending:
                self.sink_deltas[operator.output_view] = self.take_ports(name).get(0, [])
        elif name in self._pending or name in self.inputs:
            heapq.heappush(self._ready, _Task(self._priority(name), self._ranks[name], -1, name))
            return
        self._finish(name)
