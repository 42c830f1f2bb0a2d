"""The Spark scheduler: runs a batch as one Spark job, whatever the number of views.

A small batch is one task (`single_task`). A larger one is divided: each round is a stage (`round_tasks`), with a
shuffle by `dest` between rounds. Before the job, the driver decides which lookups need no shuffle (`placement`),
arranges the few changes that all tasks must read, and writes the batch's rows to files from which each task maps its
split.

In both cases the job processes bytes that Spark does not interpret. As rows of a DataFrame they would be converted to
Spark's format and back at every exchange, Catalyst would plan each batch, and Spark would keep separate Python workers
for such jobs, each with dataflows, statements and runs of its own.
"""

from __future__ import annotations

import json
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import pyarrow as pa

from viewkeeper.errors import Contradiction, CorruptRun, CorruptState, Defect, StoreError
from viewkeeper.operators.operator import Operator
from viewkeeper.plan.catalyst import explain_jvm_error
from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.runtime.context import LocalContext, PortDelta
from viewkeeper.runtime.inputs import InputSource, InputSplit, MemoryRows, is_empty, write_splits
from viewkeeper.runtime.operator_errors import FailedMember, OperatorError
from viewkeeper.runtime.spark.jobs import SentDataflows, cause, run_job, views_text
from viewkeeper.runtime.spark.pipelined_commit import PipelinedCommit
from viewkeeper.runtime.spark.placement import (
    CORRUPT_STATE,
    NEW_RUNS,
    OPERATOR_ERROR,
    RECEIVED_BYTES,
    SINK_ROWS,
    STAGED_CHANGES,
    STAGED_ROWS,
    STATE_UNREACHABLE,
    Message,
    Placement,
    count_later_tasks,
    count_tasks,
    decode_payload,
    encode_payloads,
    is_driver_sized,
    plan_placement,
    route_rows,
    task_of,
)
from viewkeeper.runtime.spark.round_tasks import RoundTask, StageTaskContext
from viewkeeper.runtime.spark.sessions import ReachabilityCheck
from viewkeeper.runtime.spark.single_task import SingleTask
from viewkeeper.runtime.spark.sink_tasks import UpsertTask, collect_changes
from viewkeeper.runtime.spark.staged_changes import StagedFiles, StagedTable
from viewkeeper.runtime.spark.upsert_tasks import ViewTarget, co_located_views
from viewkeeper.runtime.spark.worker_cache import TaskContext
from viewkeeper.state.run import Arrangement
from viewkeeper.state.run_file import RunEntry, write_run_file
from viewkeeper.store.contract.store import StreamChange, ViewChange

_DAMAGE_CLASSES = {kind.__name__: kind for kind in (CorruptRun, Contradiction)}

_ATTEMPTS = 3
_ABORT_TEXT = "indeterminate output"
"""Part of Spark's message when it aborts a job rather than recompute a shuffle that it takes for random."""


T = TypeVar("T")

OnError = Callable[[Operator, Exception], Exception]


@dataclass(frozen=True)
class SparkEnvironment:
    """The session and the state of Spark jobs.

    `single_machine`: all tasks run on one machine, so that each can read all state at no cost, and they share `memory`.
    `reachability`: the check that each task can reach the state; Unsupported if one cannot. `threads`: the number of
    threads that a single task may use.
    """

    spark: Any
    dataflows: SentDataflows
    url: str
    manifest: Mapping[str, tuple[RunEntry, ...]]
    directory: str
    durable: bool
    single_machine: bool
    statements: PreparedStatements
    memory: MemoryBudget
    threads: int
    reachability: ReachabilityCheck | None = None

    @property
    def task_slots(self) -> int:
        """Number of tasks that run at the same time."""
        return max(1, int(self.spark.sparkContext.defaultParallelism))


def run_on_spark(
    environment: SparkEnvironment,
    number: int,
    dataflow: Dataflow,
    active: frozenset[str],
    inputs: Mapping[str, InputSource],
    seeds: Iterable[PortDelta],
    names: Sequence[str],
    on_error: OnError,
    variant: Dataflow | None = None,
    targets: Mapping[int, ViewTarget] | None = None,
    progress: Callable[[int, int], None] | None = None,
    pipelined_commit: PipelinedCommit | None = None,
) -> SparkResult:
    """Run the batch as one Spark job; return the deltas at the sinks, and the runs that tasks and driver wrote.

    `variant`: the dataflow with shared paths; it runs if tasks can read all state that it looks up. `names`: the views'
    names for Spark's pages. `targets`: views whose changes tasks resolve to upserts, if there are several tasks;
    `pipelined_commit` may apply some of them while other tasks run. `progress` is called with the number of completed
    tasks and of all tasks.
    """
    partitions = count_tasks(inputs, environment.task_slots, environment.spark)
    batch = _SparkBatch(
        number,
        dataflow,
        active,
        inputs,
        list(seeds),
        names,
        variant,
        targets or {},
        partitions,
        progress,
        pipelined_commit,
    )
    staged_files = StagedFiles(StateDirectory(environment.directory))
    try:
        dataflow, results, driver_entries = (
            _run_single_task(environment, batch) if partitions == 1 else _run_rounds(environment, batch)
        )
        # Checked first, because errors of other tasks may result from the missing rows.
        if environment.reachability is not None and any(message[1] == STATE_UNREACHABLE for message in results):
            raise environment.reachability.refusal(f"a task of batch {number}")
        return _collect_result(dataflow, results, on_error, batch.targets, staged_files, pipelined_commit).with_entries(
            driver_entries
        )
    except BaseException as error:
        if pipelined_commit is not None:  # its changes belong to a batch that failed
            pipelined_commit.close()
        if isinstance(error, OperatorError):  # raised in the driver's own work
            forms = [dataflow, *([] if variant is None else [variant])]
            operator = next(f.operators[error.operator] for f in forms if error.operator in f.operators)
            raise on_error(operator, error) from error
        raise
    finally:
        staged_files.clear()
        if pipelined_commit is not None:
            pipelined_commit.end()


@dataclass(frozen=True)
class SparkResult:
    """The result of a Spark job: deltas at sinks, changes of views that tasks have resolved, and runs."""

    deltas: Mapping[int, list[pa.Table]]
    changes: Sequence[ViewChange | StreamChange]
    entries: Sequence[RunEntry]

    def with_entries(self, entries: Sequence[RunEntry]) -> SparkResult:
        return replace(self, entries=[*entries, *self.entries])


@dataclass(frozen=True)
class _SparkBatch:
    number: int
    dataflow: Dataflow
    active: frozenset[str]
    inputs: Mapping[str, InputSource]
    seeds: Sequence[PortDelta]
    names: Sequence[str]
    variant: Dataflow | None
    targets: Mapping[int, ViewTarget]
    partitions: int
    progress: Callable[[int, int], None] | None
    pipelined_commit: PipelinedCommit | None


_JobOutput = tuple[Dataflow, list[Message], list[RunEntry]]
"""The variant of the dataflow that ran, the tasks' messages, and the runs that the driver wrote."""


def _run_single_task(environment: SparkEnvironment, batch: _SparkBatch) -> _JobOutput:
    number, dataflow, active, inputs = batch.number, batch.dataflow, batch.active, batch.inputs
    seeds, names, variant = batch.seeds, batch.names, batch.variant
    if variant is not None:
        dataflow, active = variant, variant.batch_operators
    rows = [
        (input_name, payload)
        for input_name, source in inputs.items()
        if isinstance(source, MemoryRows) and source.count
        for payload in [*encode_payloads(source.table)]
    ]
    splits_by_input = {
        input_name: source.splits(environment.statements, 1, environment.memory)
        for input_name, source in inputs.items()
        if not isinstance(source, MemoryRows)
    }
    splits = {input_name: input_splits for input_name, input_splits in splits_by_input.items() if input_splits}
    threads = environment.threads if environment.single_machine else 1
    task = SingleTask(_task_context(environment, number, dataflow, active, 1, threads), splits, seeds)
    with _raise_job_errors(number):
        rdd = environment.spark.sparkContext.parallelize([rows], 1).flatMap(task)
        description = f"viewkeeper batch {number}: {views_text(names)}"
        return dataflow, run_job(environment.spark, description, rdd.collect, progress=batch.progress), []


def _run_rounds(environment: SparkEnvironment, batch: _SparkBatch) -> _JobOutput:
    number, dataflow, active, inputs = batch.number, batch.dataflow, batch.active, batch.inputs
    seeds, names, variant = batch.seeds, batch.names, batch.variant
    manifest, single_machine, statements, memory = (
        environment.manifest,
        environment.single_machine,
        environment.statements,
        environment.memory,
    )
    sizes = {slot: (sum(e.rows for e in runs), sum(e.length for e in runs)) for slot, runs in manifest.items()}
    forms = [(dataflow, active)] if variant is None else [(variant, variant.batch_operators), (dataflow, active)]
    for dataflow, active in forms:
        placement = plan_placement(
            LocalContext(statements, dataflow, lambda _: Arrangement(), active, memory),
            inputs,
            seeds,
            sizes,
            single_machine,
        )
        inputs = placement.inputs
        if all(name in placement.co_located for name in placement.rounds if dataflow.operators[name].retires_operators):
            break
    targets = {v: t for v, t in batch.targets.items() if t.sink in placement.rounds}
    tables = {v: target.table for v, target in targets.items()}
    co_located = _co_located_views(batch, dataflow, placement, targets)
    pipelined_views = frozenset(
        v for v in co_located if co_located[v] and tables[v].is_stored and not placement.rounds[targets[v].sink]
    )
    partitions, reports = batch.partitions, None
    if pipelined_views and batch.pipelined_commit is not None:
        partitions = count_tasks(batch.inputs, environment.task_slots, environment.spark, fine_grained=True)
        reports = batch.pipelined_commit.begin(
            StateDirectory(environment.directory), number, partitions, pipelined_views, tables
        )
    driver_entries = _write_runs(environment.directory, number, placement.driver_runs, environment.durable)
    split_files: list[Path] = []
    messages: list[Message] = []
    splits: dict[tuple[str, int], InputSplit] = {}
    for name, source in placement.inputs.items():
        if single_machine and isinstance(source, MemoryRows) and not is_driver_sized(source):
            split_files.append(StateDirectory(environment.directory) / f"b{number}-{secrets.token_hex(6)}.vkr")
            source_splits = write_splits(source.table, str(split_files[-1]), partitions)
        else:
            source_splits = source.splits(statements, partitions, memory)
        for index, split in enumerate(source_splits):
            splits[name, index] = split
            messages.append((index % partitions, name, index, b""))
    messages += [m for consumer, port, delta in seeds for m in route_rows(consumer, port, delta, partitions)]
    active_in_tasks = active - {e.slot.split("/")[0] for e in driver_entries}
    task_context = _task_context(
        environment,
        number,
        dataflow,
        active_in_tasks,
        min(partitions, environment.task_slots) if single_machine else 1,
        1,
    )
    workload = (
        task_context.dataflow_handle,
        [n for n, g in inputs.items() if g.count],
        sum(g.count or 0 for g in inputs.values()),
    )
    later_tasks = count_later_tasks(partitions, environment.task_slots, environment.dataflows.expected_bytes(*workload))
    stage_context = StageTaskContext(
        **task_context.__dict__,
        rounds=placement.rounds,
        co_located=placement.co_located,
        skew_balanced=placement.skew_balanced,
        driver_entries={e.slot: e for e in driver_entries},
        splits=splits,
        partitions=partitions,
        later_tasks=later_tasks,
        url=environment.url,
        consolidated=placement.consolidated,
        targets=batch.targets,
        co_located_views=frozenset(co_located),
        report_plan=reports,
    )
    handle = environment.spark.sparkContext.broadcast(stage_context)
    round_tasks: list[RoundTask | UpsertTask] = [
        RoundTask(handle, task_context.dataflow_handle.broadcast, round_number)
        for round_number in range(1 + max(placement.rounds.values(), default=0))
    ]
    if targets.keys() - co_located.keys():
        round_tasks.append(UpsertTask(handle, task_context.dataflow_handle.broadcast))
    rounds = f"{len(round_tasks)} rounds" if len(round_tasks) > 1 else "1 round"
    try:
        with _raise_job_errors(number):
            job = partial(_run_round_job, environment.spark, messages, round_tasks, partitions, later_tasks)
            description = f"viewkeeper batch {number}, {rounds}: {views_text(names)}"
            task_count = partitions + later_tasks * (len(round_tasks) - 1)
            concurrent_work = (
                None if batch.pipelined_commit is None or reports is None else batch.pipelined_commit.apply_reports
            )
            results = run_job(environment.spark, description, job, task_count, batch.progress, concurrent_work)
            environment.dataflows.observe(*workload, _busiest_round_bytes(results))
    finally:
        handle.destroy()
        for path in split_files:
            path.unlink(missing_ok=True)
    return dataflow, results, driver_entries


def _co_located_views(
    batch: _SparkBatch, variant: Dataflow, placement: Placement, targets: Mapping[int, ViewTarget]
) -> Mapping[int, bool]:
    """Return the views whose rows need no exchange. The unshared dataflow decides; the variant has the same rows."""
    starting = [name for name, source in placement.inputs.items() if not is_empty(source)]
    live = batch.dataflow.reachable([*starting, *(consumer for consumer, _, _ in batch.seeds)], batch.active)
    return co_located_views(batch.dataflow, live, placement.co_located | variant.retired, placement.inputs, targets)


def _task_context(
    environment: SparkEnvironment,
    number: int,
    dataflow: Dataflow,
    active: frozenset[str],
    concurrent_tasks: int,
    threads: int,
) -> TaskContext:
    """Return the context of a batch's tasks; `concurrent_tasks` of them share the lane's memory."""
    return TaskContext(
        dataflow_handle=environment.dataflows.dataflow_handle(environment.spark, dataflow),
        active=active,
        manifest=environment.manifest,
        directory=environment.directory,
        number=number,
        durable=environment.durable,
        memory=environment.memory.divide(concurrent_tasks).total,
        threads=threads,
        reachability=environment.reachability,
    )


@contextmanager
def _raise_job_errors(number: int) -> Iterator[None]:
    """Raise a failed job as a StoreError."""
    try:
        yield
    except Exception as error:
        if (session_error := explain_jvm_error(error)) is not None:
            raise type(session_error)(
                f"The Spark job of batch {number} failed: {session_error.message}",
                hint=f"Nothing was published. {session_error.hint}",
            ) from error
        text, advice = cause(error), "correct the cause"
        if "No module named 'viewkeeper'" in text:
            advice = "set PYSPARK_PYTHON to a Python that has viewkeeper before the Spark session is made"
        raise StoreError(
            f"The Spark job of batch {number} failed: {text}",
            hint=f"Nothing was published; {advice}, and refresh again.",
        ) from error


def _busiest_round_bytes(messages: Iterable[Message]) -> int:
    """Return the bytes that the busiest round after the first has received."""
    received: dict[int, int] = defaultdict(int)
    for _, node, round_number, payload in messages:
        if node == RECEIVED_BYTES:
            received[round_number] += int(payload)
    return max(received.values(), default=0)


def _run_round_job(
    spark: Any, messages: Sequence[Message], rounds: Sequence[RoundTask | UpsertTask], partitions: int, later_tasks: int
) -> list[Message]:
    """Run the rounds as one job, with `partitions` tasks in the first round and `later_tasks` in each other one.

    Nothing takes effect before the job's end, so a job that Spark aborts is run again.

    Spark aborts it if an executor dies with shuffle data that later rounds need, after some tasks of the last round are
    done: Spark does not know that recomputing the shuffle would give the same rows.
    """
    first_messages: list[list[Message]] = [[] for _ in range(partitions)]
    for message in messages:
        first_messages[message[0]].append(message)
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            rdd = spark.sparkContext.parallelize(first_messages, partitions).flatMap(_identity)
            for number, round_task in enumerate(rounds):
                if number:
                    rdd = (
                        rdd.keyBy(_partition_of)
                        .partitionBy(later_tasks, partial(_task_of, partitions, later_tasks))
                        .values()
                    )
                rdd = rdd.mapPartitions(round_task)
            return cast(list[Message], rdd.collect())
        except Exception as error:
            if not attempts_left or _ABORT_TEXT not in str(error):
                raise
    raise Defect("The last attempt returns or raises")


def _identity(value: T) -> T:
    return value


def _partition_of(message: Message) -> int:
    return message[0]


def _task_of(partitions: int, tasks: int, partition: int) -> int:
    return task_of(partition, partitions, tasks)


def _write_runs(directory: str, number: int, runs: Mapping[str, Any], durable: bool) -> list[RunEntry]:
    if not runs:
        return []
    return write_run_file(directory, f"b{number}-{secrets.token_hex(6)}.vkr", runs, fsync=durable)


def _collect_result(
    dataflow: Dataflow,
    messages: Iterable[Message],
    on_error: OnError,
    targets: Mapping[int, ViewTarget],
    staged_files: StagedFiles,
    pipelined_commit: PipelinedCommit | None = None,
) -> SparkResult:
    deltas: dict[int, list[pa.Table]] = defaultdict(list)
    changed: list[tuple[int, bytes]] = []
    entries: list[RunEntry] = []
    for _, node, port, payload in messages:
        if node == OPERATOR_ERROR:
            content = json.loads(payload)
            members = [FailedMember(table, bytes.fromhex(key), text) for table, key, text in content["members"]]
            error = OperatorError(content["operator"], content["message"], members)
            raise on_error(dataflow.operators[content["operator"]], error)
        if node == CORRUPT_STATE:
            content = json.loads(payload)
            damage = _DAMAGE_CLASSES.get(content["kind"], CorruptState)(content["message"], hint=content["hint"])
            raise on_error(dataflow.operators[content["operator"]], damage)
        if node == SINK_ROWS:
            deltas[port].append(decode_payload(payload))
        elif node == STAGED_ROWS:
            deltas[port].append(staged_files.table(StagedTable(*json.loads(payload))))
        elif node == STAGED_CHANGES:
            changed.append((port, payload))
        elif node == RECEIVED_BYTES:
            pass
        elif node == NEW_RUNS:
            entries.extend(RunEntry.from_json(e) for e in json.loads(payload))
        else:
            raise Defect(f"Nobody took {node}")
    remaining = changed if pipelined_commit is None else pipelined_commit.unapplied_changes(changed)
    return SparkResult(dict(deltas), collect_changes(remaining, targets, staged_files), entries)
