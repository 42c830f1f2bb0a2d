"""A task of one round of a divided batch: runs operators on the received rows, and routes their output to other tasks.

A task writes its new runs to one run file and reports the file's entries. A file is ignored unless the report arrives
at the driver, so failed attempts do no harm. Every task reads its whole input, so that Spark reuses the Python worker.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa

from viewkeeper import failpoints
from viewkeeper.errors import CorruptState, Defect
from viewkeeper.model.names import HASH, quoted
from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.runtime.context import LocalContext
from viewkeeper.runtime.inputs import InputSplit, MemoryRows
from viewkeeper.runtime.operator_errors import OperatorError, attribute_errors
from viewkeeper.runtime.spark import placement, tcp_quickack, worker_cache
from viewkeeper.runtime.spark.pipelined_commit import ReportPlan, write_report
from viewkeeper.runtime.spark.placement import (
    NEW_RUNS,
    STAGED_ROWS,
    Message,
    corrupt_state_message,
    decode_payload,
    encode_payloads,
    first_partition,
    operator_error_message,
    route_rows,
    state_unreachable_message,
)
from viewkeeper.runtime.spark.staged_changes import StagingFile
from viewkeeper.runtime.spark.upsert_tasks import ViewTarget, route_by_key, stage_upserts
from viewkeeper.runtime.spark.worker_cache import TaskContext
from viewkeeper.state.consolidate import consolidate
from viewkeeper.state.run import Run, arrange
from viewkeeper.state.run_file import RunEntry

PortDeltas = dict[str, dict[int, list[pa.Table]]]


@dataclass(frozen=True, kw_only=True)
class StageTaskContext(TaskContext):
    """The context of all tasks of a divided batch. `driver_entries`: runs that the driver has arranged, by slot."""

    rounds: Mapping[str, int]
    co_located: frozenset[str]
    skew_balanced: frozenset[str]
    driver_entries: Mapping[str, RunEntry]
    splits: Mapping[tuple[str, int], InputSplit]
    partitions: int
    later_tasks: int
    """Number of tasks of each round after the first; fewer if they receive little."""
    url: str
    """The store's URL."""
    consolidated: frozenset[str]
    """Sources whose splits must be consolidated with each other."""
    targets: Mapping[int, ViewTarget]
    """Views whose changes tasks resolve to upserts; the driver resolves those of other views."""
    co_located_views: frozenset[int]
    """Targets whose changes are resolved in the task that computes them (`upsert_tasks`); others need an exchange
    (`sink_tasks`)."""
    report_plan: ReportPlan | None = None
    """The plan for a pipelined commit, if there is one."""


@dataclass(frozen=True)
class RoundTask:
    """The work of one round in one task.

    `context` and `dataflow` are Spark broadcasts. The first refers to the second, but Spark sends a task only those
    broadcasts that it finds when it serialises the task itself, so both are fields.
    """

    context: Any
    dataflow: Any
    round_number: int

    def __call__(self, received: Iterable[Message]) -> Iterator[Message]:
        from pyspark import TaskContext as SparkTaskContext

        failpoints.hit("task.before")
        tcp_quickack.disable_delayed_acks()
        stage_context: StageTaskContext = self.context.value
        spark_context = SparkTaskContext.get()
        if spark_context is None:
            raise Defect("A level runs inside a task.")
        partition = spark_context.partitionId()
        if self.round_number:
            partition = first_partition(partition, stage_context.partitions, stage_context.later_tasks)
        port_deltas: PortDeltas = defaultdict(lambda: defaultdict(list))
        fetched: dict[str, list[InputSplit]] = defaultdict(list)
        changes_to_consolidate: dict[str, list[pa.Table]] = defaultdict(list)
        carried: dict[str, list[pa.Table]] = defaultdict(list)
        output: list[Message] = []
        size = 0
        for message in received:
            _, node, port, payload = message
            if node.startswith("!"):
                output.append(message)
                continue
            size += len(payload)
            if node.startswith("+"):
                carried[node[1:]].append(decode_payload(payload))
            elif node.startswith("="):
                changes_to_consolidate[node[1:]].append(decode_payload(payload).drop_columns([HASH]))
            elif (node, port) in stage_context.splits:
                fetched[node].append(stage_context.splits[node, port])
            elif stage_context.rounds[node] > self.round_number:
                output.append(message)
            else:
                port_deltas[node][port].append(decode_payload(payload))
        if self.round_number:
            output.append(placement.received_bytes_message(self.round_number, size))
        # The executor may have joined after the session was checked.
        if stage_context.reachability is not None and not stage_context.reachability.is_reachable():
            yield from [*output, state_unreachable_message()]
            return
        cache = worker_cache.cache_for(stage_context)
        old = partial(cache.arrangement, stage_context)
        local_context = LocalContext(
            cache.pool.use_primary(1), stage_context.dataflow_handle.load(), old, stage_context.active, cache.memory
        )
        carried_runs = {slot: arrange(_concat(tables)) for slot, tables in carried.items()}
        local_context.carried_runs = carried_runs | {
            slot: cache.run(entry) for slot, entry in stage_context.driver_entries.items()
        }
        staging = cache.create_staging_file(stage_context)
        for name in [name for name in fetched if name in stage_context.consolidated]:
            for split in fetched.pop(name):
                output += route_changes(
                    local_context,
                    name,
                    split.fetch(local_context.statements, local_context.memory),
                    stage_context.partitions,
                )
        fetched |= {
            name: [MemoryRows(consolidate(local_context.statements, _concat(tables)))]
            for name, tables in changes_to_consolidate.items()
        }
        sink_deltas: dict[int, list[pa.Table]] = defaultdict(list)
        output += self._run(stage_context, local_context, port_deltas, fetched, partition, staging, sink_deltas)
        reports = None if self.round_number else stage_context.report_plan
        staged = stage_upserts(
            stage_context.url,
            stage_context.targets,
            sink_deltas,
            local_context.statements,
            local_context.memory,
            staging,
            partition,
            reports,
        )
        staging.close()
        if reports is not None:
            write_report(cache.directory, reports, partition, staged)
        output += staged
        output += self._carry(stage_context, local_context, {**carried_runs, **local_context.new_runs}, partition)
        entries = cache.write(stage_context, str(self.round_number), local_context.new_runs)
        if entries:
            output.append((0, NEW_RUNS, 0, json.dumps([e.to_json() for e in entries]).encode()))
        failpoints.hit("task.after")
        yield from output

    def _run(
        self,
        task_context: StageTaskContext,
        context: LocalContext,
        port_deltas: PortDeltas,
        splits: Mapping[str, Sequence[InputSplit]],
        partition: int,
        staging_file: StagingFile,
        sink_deltas: Mapping[int, list[pa.Table]],
    ) -> Iterator[Message]:
        """Run every operator with input, in the order of the dataflow: a lookup may need what another operator adds.

        Deltas of co-located views are added to `sink_deltas`.
        """
        for name, operator in context.dataflow.operators.items():
            if name not in port_deltas and name not in splits:
                continue
            try:
                outputs: Iterable[pa.Table] = (
                    split.fetch(context.statements, context.memory) for split in splits.get(name, ())
                )
                if name in port_deltas:
                    ports = port_deltas.pop(name)
                    outputs = chain(
                        outputs,
                        context.run(operator, [ports.get(port_index, []) for port_index in range(operator.arity)]),
                    )
                for output in outputs:
                    if output.num_rows:
                        for consumer, port, delta in context.feed_consumers(operator, output):
                            view = context.dataflow.operators[consumer].output_view
                            if view is not None and view in task_context.co_located_views:
                                sink_deltas[view].append(delta)
                            elif view is not None and view in task_context.targets:
                                with attribute_errors(consumer):
                                    yield from route_by_key(
                                        context.statements, task_context.targets[view], delta, task_context.partitions
                                    )
                            elif view is not None:
                                yield 0, STAGED_ROWS, view, json.dumps(staging_file.add(delta)).encode()
                            elif consumer not in task_context.co_located:
                                yield from route_rows(
                                    consumer,
                                    port,
                                    delta,
                                    task_context.partitions,
                                    consumer in task_context.skew_balanced,
                                )
                            elif task_context.rounds[consumer] == self.round_number:
                                port_deltas[consumer][port].append(delta)
                            else:
                                yield from ((partition, consumer, port, payload) for payload in encode_payloads(delta))
            except CorruptState as damage:
                yield corrupt_state_message(name, damage)
            except OperatorError as failure:
                yield operator_error_message(failure)

    def _carry(
        self, task_context: StageTaskContext, context: LocalContext, new_runs: Mapping[str, Run], partition: int
    ) -> Iterator[Message]:
        """Yield the new rows of arrangements that lookups of later rounds need."""
        for slot, run in new_runs.items():
            if self.round_number < _last_lookup_round(task_context, context.dataflow, slot.split("/")[0]):
                yield from ((partition, f"+{slot}", 0, payload) for payload in encode_payloads(run.weighted_rows))


def route_changes(context: LocalContext, name: str, rows: pa.Table, partitions: int) -> Iterator[Message]:
    """Route changes to the task that owns their key, which consolidates rows that were inserted and deleted again."""
    table = context.dataflow.operators[name].input_table
    if table is None:
        raise Defect(f"{name} gives no changes of a table.")
    keys = [k.column for k in context.dataflow.tables[table].key]
    hashes = context.statements.run(
        f"SELECT hash({', '.join(map(quoted, keys))}) AS {HASH} FROM input", input=rows.select(keys)
    )
    return route_rows(f"={name}", 0, rows.append_column(HASH, hashes[HASH]), partitions)


def _last_lookup_round(task_context: StageTaskContext, dataflow: Dataflow, arrangement: str) -> int:
    """Return the last round in which this batch looks up the arrangement in new state; −1 if none."""
    operators = dataflow.operators
    return max(
        (
            round_number
            for name, round_number in task_context.rounds.items()
            if arrangement in operators[name].new_state_lookups
        ),
        default=-1,
    )


def _concat(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).combine_chunks()
