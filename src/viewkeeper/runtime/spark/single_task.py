"""A batch that is too small to be divided: one task, one stage, and in it the rounds as the driver runs them.

Each statement of a round costs a fraction of a millisecond however few its rows are, and each round a stage of Spark.
Divided, a batch pays both once for every task and every round; below some number of rows (`placing.ROWS_A_TASK`) that
is most of it. In one task nothing is exchanged, so all rounds are one. Where all tasks run on one machine it may use
all of the batch's threads.
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
    """The work of the one task. `shares`: rows that it fetches itself; the others come as its partition."""

    context: TaskContext
    splits: Mapping[str, Sequence[InputSplit]]
    seeds: Sequence[PortDelta]

    def __call__(self, rows: Iterable[tuple[str, bytes]]) -> Iterator[Message]:
        failpoints.hit("task.before")
        tcp_quickack.disable_delayed_acks()
        given: dict[str, InputSource] = {name: _SplitRows(each) for name, each in self.splits.items()}
        given |= _decode_inputs(rows)  # all of it, so that the worker is reused
        errand = self.context
        if errand.reachability is not None and not errand.reachability.is_reachable():
            yield state_unreachable_message()
            return
        try:
            messages = list(self._run(given))
        except _ReportedFailure as told:
            messages = [told.message]
        failpoints.hit("task.after")
        yield from messages

    def _run(self, inputs: Mapping[str, InputSource]) -> Iterator[Message]:
        errand, here = self.context, worker_cache.cache_for(self.context)
        flow = errand.dataflow_handle.load()
        several = errand.threads > 1 and has_parallel_work(errand.active)
        duck = here.pool.primary if several else here.pool.use_primary(1)
        site = LocalContext(duck, flow, partial(here.arrangement, errand), errand.active, here.memory)
        reached = run_operators(site, inputs, self.seeds, _report_failure, here.pool if several else None)
        for view, deltas in reached.items():
            for delta in deltas:
                yield from ((0, SINK_ROWS, view, p) for p in encode_payloads(delta))
        entries = here.write(errand, "0", site.new_runs)
        yield 0, NEW_RUNS, 0, json.dumps([e.to_json() for e in entries]).encode()


def _decode_inputs(rows: Iterable[tuple[str, bytes]]) -> dict[str, InputSource]:
    found: dict[str, list[pa.Table]] = defaultdict(list)
    for name, payload in rows:
        found[name].append(decode_payload(payload))
    return {name: MemoryRows(pa.concat_tables(tables)) for name, tables in found.items()}


@dataclass(frozen=True)
class _SplitRows:
    """Rows that the task fetches when they are needed."""

    pieces: Sequence[InputSplit]
    count: None = None

    def read(self, statements: PreparedStatements, memory: MemoryBudget) -> pa.Table:
        fetched = [share.fetch(statements, memory) for share in self.pieces]
        return fetched[0] if len(fetched) == 1 else pa.concat_tables(fetched)

    def splits(self, statements: PreparedStatements, task_count: int, memory: MemoryBudget) -> Sequence[InputSplit]:
        return self.pieces


class _ReportedFailure(Exception):
    """No error of the task, which would be tried again: a row's, or the state's. The driver hears of it."""

    def __init__(self, message: Message) -> None:
        self.message = message


def _report_failure(operator: Operator, error: Exception) -> Exception:
    if isinstance(error, CorruptState):
        return _ReportedFailure(corrupt_state_message(operator.id, error))
    return _ReportedFailure(operator_error_message(error)) if isinstance(error, OperatorError) else error
