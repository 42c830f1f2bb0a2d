"""A small batch as a single Spark task, which runs all operators with the driver lane's scheduler.

Each statement costs a fraction of a millisecond however few its rows are, and each round costs a Spark stage. A divided
batch pays the former for every task and every round; below `placement.ROWS_PER_TASK` rows this is most of its time. A
single task needs no exchange, so all rounds are one. If all tasks run on one machine, it may use all threads of the
batch.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from viewkeeper import failpoints
from viewkeeper.errors import CorruptState
from viewkeeper.operators.operator import Operator
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.runtime.context import LocalContext, PortDelta
from viewkeeper.runtime.inputs import InputSource, InputSplit, MemoryRows
from viewkeeper.runtime.local.scheduler import has_parallel_work, run_operators
from viewkeeper.runtime.operator_errors import OperatorError
from viewkeeper.runtime.spark import tcp_quickack, worker_cache
from viewkeeper.runtime.spark.placement import (
    NEW_RUNS,
    SINK_ROWS,
    Message,
    corrupt_state_message,
    decode_payload,
    encode_payloads,
    operator_error_message,
    state_unreachable_message,
)
from viewkeeper.runtime.spark.worker_cache import TaskContext


@dataclass(frozen=True)
class SingleTask:
    """The work of the single task. `splits`: rows that it fetches itself; other rows are its Spark partition."""

    context: TaskContext
    splits: Mapping[str, Sequence[InputSplit]]
    seeds: Sequence[PortDelta]

    def __call__(self, rows: Iterable[tuple[str, bytes]]) -> Iterator[Message]:
        failpoints.hit("task.before")
        tcp_quickack.disable_delayed_acks()
        inputs: dict[str, InputSource] = {name: _SplitRows(splits) for name, splits in self.splits.items()}
        inputs |= _decode_inputs(rows)  # reads all input, so that Spark reuses the worker
        context = self.context
        if context.reachability is not None and not context.reachability.is_reachable():
            yield state_unreachable_message()
            return
        try:
            messages = list(self._run(inputs))
        except _ReportedFailure as failure:
            messages = [failure.message]
        failpoints.hit("task.after")
        yield from messages

    def _run(self, inputs: Mapping[str, InputSource]) -> Iterator[Message]:
        context, cache = self.context, worker_cache.cache_for(self.context)
        dataflow = context.dataflow_handle.load()
        is_parallel = context.threads > 1 and has_parallel_work(context.active)
        statements = cache.pool.primary if is_parallel else cache.pool.use_primary(1)
        local_context = LocalContext(
            statements, dataflow, partial(cache.arrangement, context), context.active, cache.memory
        )
        sink_deltas = run_operators(
            local_context, inputs, self.seeds, _report_failure, cache.pool if is_parallel else None
        )
        for view, deltas in sink_deltas.items():
            for delta in deltas:
                yield from ((0, SINK_ROWS, view, payload) for payload in encode_payloads(delta))
        entries = cache.write(context, "0", local_context.new_runs)
        yield 0, NEW_RUNS, 0, json.dumps([e.to_json() for e in entries]).encode()


def _decode_inputs(rows: Iterable[tuple[str, bytes]]) -> dict[str, InputSource]:
    tables_by_input: dict[str, list[pa.Table]] = defaultdict(list)
    for name, payload in rows:
        tables_by_input[name].append(decode_payload(payload))
    return {name: MemoryRows(pa.concat_tables(tables)) for name, tables in tables_by_input.items()}


@dataclass(frozen=True)
class _SplitRows:
    """Input splits that the task fetches when an operator reads them."""

    pieces: Sequence[InputSplit]
    count: None = None

    def read(self, statements: PreparedStatements, memory: MemoryBudget) -> pa.Table:
        fetched = [split.fetch(statements, memory) for split in self.pieces]
        return fetched[0] if len(fetched) == 1 else pa.concat_tables(fetched)

    def splits(self, statements: PreparedStatements, task_count: int, memory: MemoryBudget) -> Sequence[InputSplit]:
        return self.pieces


class _ReportedFailure(Exception):
    """Raised to end the task without failing it, because Spark would retry a failed task.

    The message is returned to the driver, which raises the evaluation error or the damage that it describes.
    """

    def __init__(self, message: Message) -> None:
        self.message = message


def _report_failure(operator: Operator, error: Exception) -> Exception:
    if isinstance(error, CorruptState):
        return _ReportedFailure(corrupt_state_message(operator.id, error))
    return _ReportedFailure(operator_error_message(error)) if isinstance(error, OperatorError) else error
