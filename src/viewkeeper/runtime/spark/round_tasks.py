"""One level of a divided batch in one Spark task: what has arrived is run, and sent to the tasks that own it next.

A task writes the runs of its share to one container file and reports it; files of attempts whose report does not
arrive do not count. Every task drains its input, so that workers are reused.
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
    """What the tasks of a divided batch know. `arranged`: changes of arrangements that the driver has written."""

    rounds: Mapping[str, int]
    co_located: frozenset[str]
    skew_balanced: frozenset[str]
    driver_entries: Mapping[str, RunEntry]
    splits: Mapping[tuple[str, int], InputSplit]
    partitions: int
    later_tasks: int
    """Tasks of every round but the first: fewer, where little comes to them."""
    url: str
    """Of the store."""
    consolidated: frozenset[str]
    """Sources whose shares must be consolidated with each other."""
    targets: Mapping[int, ViewTarget]
    """Views whose changes tasks resolve; those of others are left for the driver as they are."""
    co_located_views: frozenset[int]
    """Those of them whose changes are resolved where they come up (`resolving`); the others' travel (`sinking`)."""
    report_plan: ReportPlan | None = None
    """Of views whose changes the driver takes while others are worked out."""


@dataclass(frozen=True)
class RoundTask:
    """The work of one level in one task. `job`, `flow`: Spark's broadcasts; the first names the second, and which are
    sent to a task is found by the thread that sends it, in what it sends."""

    context: Any
    dataflow: Any
    round_number: int

    def __call__(self, received: Iterable[Message]) -> Iterator[Message]:
        from pyspark import TaskContext as SparkTaskContext

        failpoints.hit("task.before")
        tcp_quickack.disable_delayed_acks()
        job: StageTaskContext = self.context.value
        context = SparkTaskContext.get()
        if context is None:
            raise Defect("A level runs inside a task.")
        here = context.partitionId()
        if self.round_number:
            here = first_partition(here, job.partitions, job.later_tasks)
        waiting: PortDeltas = defaultdict(lambda: defaultdict(list))
        fetched: dict[str, list[InputSplit]] = defaultdict(list)
        met: dict[str, list[pa.Table]] = defaultdict(list)
        carried: dict[str, list[pa.Table]] = defaultdict(list)
        onward: list[Message] = []
        size = 0
        for message in received:
            _, node, port, payload = message
            if node.startswith("!"):
                onward.append(message)
                continue
            size += len(payload)
            if node.startswith("+"):
                carried[node[1:]].append(decode_payload(payload))
            elif node.startswith("="):
                met[node[1:]].append(decode_payload(payload).drop_columns([HASH]))
            elif (node, port) in job.splits:
                fetched[node].append(job.splits[node, port])
            elif job.rounds[node] > self.round_number:
                onward.append(message)
            else:
                waiting[node][port].append(decode_payload(payload))
        if self.round_number:
            onward.append(placement.received_bytes_message(self.round_number, size))
        if (
            job.reachability is not None and not job.reachability.is_reachable()
        ):  # an executor that has joined since the session began
            yield from [*onward, state_unreachable_message()]
            return
        kept = worker_cache.cache_for(job)
        old = partial(kept.arrangement, job)
        site = LocalContext(kept.pool.use_primary(1), job.dataflow_handle.load(), old, job.active, kept.memory)
        known = {slot: arrange(_concat(tables)) for slot, tables in carried.items()}
        site.carried_runs = known | {slot: kept.run(entry) for slot, entry in job.driver_entries.items()}
        staging = kept.create_staging_file(job)
        for name in [name for name in fetched if name in job.consolidated]:
            for share in fetched.pop(name):
                onward += route_changes(site, name, share.fetch(site.statements, site.memory), job.partitions)
        fetched |= {name: [MemoryRows(consolidate(site.statements, _concat(tables)))] for name, tables in met.items()}
        sunk: dict[int, list[pa.Table]] = defaultdict(list)
        onward += self._run(job, site, waiting, fetched, here, staging, sunk)
        reports = None if self.round_number else job.report_plan
        told = stage_upserts(job.url, job.targets, sunk, site.statements, site.memory, staging, here, reports)
        staging.close()
        if reports is not None:
            write_report(kept.directory, reports, here, told)
        onward += told
        onward += self._carry(job, site, {**known, **site.new_runs}, here)
        entries = kept.write(job, str(self.round_number), site.new_runs)
        if entries:
            onward.append((0, NEW_RUNS, 0, json.dumps([e.to_json() for e in entries]).encode()))
        failpoints.hit("task.after")
        yield from onward

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
        """Every operator that something arrived for. In the order of the flow: a lookup may need what another adds.

        `sunk` gets what reached views that are at home."""
        for name, operator in context.dataflow.operators.items():
            if name not in port_deltas and name not in splits:
                continue
            try:
                outputs: Iterable[pa.Table] = (
                    share.fetch(context.statements, context.memory) for share in splits.get(name, ())
                )
                if name in port_deltas:
                    ports = port_deltas.pop(name)
                    outputs = chain(outputs, context.run(operator, [ports.get(i, []) for i in range(operator.arity)]))
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
                                yield from ((partition, consumer, port, p) for p in encode_payloads(delta))
            except CorruptState as damage:
                yield corrupt_state_message(name, damage)
            except OperatorError as failure:
                yield operator_error_message(failure)

    def _carry(
        self, task_context: StageTaskContext, context: LocalContext, new_runs: Mapping[str, Run], partition: int
    ) -> Iterator[Message]:
        """Fresh rows of arrangements that lookups of later levels need."""
        for slot, run in new_runs.items():
            if self.round_number < _last_lookup_round(task_context, context.dataflow, slot.split("/")[0]):
                yield from ((partition, f"+{slot}", 0, payload) for payload in encode_payloads(run.weighted_rows))


def route_changes(context: LocalContext, name: str, rows: pa.Table, partitions: int) -> Iterator[Message]:
    """Changes on their way to the task that owns their key: equal rows that came and went meet there."""
    table = context.dataflow.operators[name].input_table
    if table is None:
        raise Defect(f"{name} gives no changes of a table.")
    keys = [k.column for k in context.dataflow.tables[table].key]
    hashes = context.statements.run(
        f"SELECT hash({', '.join(map(quoted, keys))}) AS {HASH} FROM input", input=rows.select(keys)
    )
    return route_rows(f"={name}", 0, rows.append_column(HASH, hashes[HASH]), partitions)


def _last_lookup_round(task_context: StageTaskContext, dataflow: Dataflow, arrangement: str) -> int:
    """The last level at which this batch looks the arrangement up in its fresh state."""
    operators = dataflow.operators
    return max(
        (level for n, level in task_context.rounds.items() if arrangement in operators[n].new_state_lookups), default=-1
    )


def _concat(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).combine_chunks()
