"""The Spark lane: one job a batch, whatever the number of views.

A small batch is one task (`whole`). A larger one is divided: each level is a stage (`task`), between two of which lies
a shuffle by `dest`. Before the job, the driver decides which lookups need none (`placing`), arranges the few changes
that all tasks must see, and writes down the rows of the batch where each task maps its share.

Either is a job over bytes that Spark does not look into. As rows of a DataFrame they would be copied into its format
and back at every exchange, Catalyst would plan each batch, and Spark would keep Python workers for such jobs apart from
the others, so that each would have its own plans, statements and runs.
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
"""In Spark's words when it could go on only by making a shuffle anew whose rows it takes for random."""


T = TypeVar("T")

OnError = Callable[[Operator, Exception], Exception]


@dataclass(frozen=True)
class SparkEnvironment:
    """Where jobs run, and over which state.

    `near`: all tasks run on one machine, so that each can read all of the state at no cost, and they share `memory`.
    `reach`: what each must see; Unsupported if one does not. `threads`: that a task may use which is the only one.
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
        """Tasks that run at the same time."""
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
    """Run the batch as one Spark job: what reached the sinks, and the runs that the job's tasks and the driver wrote.

    `together`: the flow with the paths of different views made together, which is run where tasks can read all that
    they look up. `names`: of the views, for Spark's pages. `targets`: views whose changes tasks resolve, if there are
    several; with `early`, some of them while others run. `told` hears how many of the job's tasks are done, and of how
    many.
    """
    parts = count_tasks(inputs, environment.task_slots, environment.spark)
    batch = _SparkBatch(
        number, dataflow, active, inputs, list(seeds), names, variant, targets or {}, parts, progress, pipelined_commit
    )
    taken = StagedFiles(StateDirectory(environment.directory))
    try:
        dataflow, results, arranged = (
            _run_single_task(environment, batch) if parts == 1 else _run_rounds(environment, batch)
        )
        if environment.reachability is not None and any(
            m[1] == STATE_UNREACHABLE for m in results
        ):  # before what came of missing rows
            raise environment.reachability.refusal(f"a task of batch {number}")
        return _collect_result(dataflow, results, on_error, batch.targets, taken, pipelined_commit).with_entries(
            arranged
        )
    except BaseException as error:
        if pipelined_commit is not None:  # what the store was given is of a batch that is not, or is run otherwise
            pipelined_commit.close()
        if isinstance(error, OperatorError):  # in the driver's part of the work
            forms = [dataflow, *([] if variant is None else [variant])]
            operator = next(f.operators[error.operator] for f in forms if error.operator in f.operators)
            raise on_error(operator, error) from error
        raise
    finally:
        taken.clear()
        if pipelined_commit is not None:
            pipelined_commit.end()


@dataclass(frozen=True)
class SparkResult:
    """What came of a batch: rows at sinks, changes of views that tasks have resolved, and runs."""

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
"""The form of the flow that was run, what came of it, and the runs that the driver wrote."""


def _run_single_task(environment: SparkEnvironment, batch: _SparkBatch) -> _JobOutput:
    number, flow, active, given = batch.number, batch.dataflow, batch.active, batch.inputs
    seeds, names, together = batch.seeds, batch.names, batch.variant
    if together is not None:
        flow, active = together, together.batch_operators
    rows = [
        (n, p) for n, g in given.items() if isinstance(g, MemoryRows) and g.count for p in [*encode_payloads(g.table)]
    ]
    others = {
        n: g.splits(environment.statements, 1, environment.memory)
        for n, g in given.items()
        if not isinstance(g, MemoryRows)
    }
    shares = {n: each for n, each in others.items() if each}
    threads = environment.threads if environment.single_machine else 1
    task = SingleTask(_task_context(environment, number, flow, active, 1, threads), shares, seeds)
    with _raise_job_errors(number):
        rdd = environment.spark.sparkContext.parallelize([rows], 1).flatMap(task)
        description = f"viewkeeper batch {number}: {views_text(names)}"
        return flow, run_job(environment.spark, description, rdd.collect, progress=batch.progress), []


def _run_rounds(environment: SparkEnvironment, batch: _SparkBatch) -> _JobOutput:
    number, flow, active, given = batch.number, batch.dataflow, batch.active, batch.inputs
    seeds, names, together = batch.seeds, batch.names, batch.variant
    manifest, near, duck, memory = (
        environment.manifest,
        environment.single_machine,
        environment.statements,
        environment.memory,
    )
    sizes = {slot: (sum(e.rows for e in runs), sum(e.length for e in runs)) for slot, runs in manifest.items()}
    forms = [(flow, active)] if together is None else [(together, together.batch_operators), (flow, active)]
    for flow, active in forms:
        placing = plan_placement(
            LocalContext(duck, flow, lambda _: Arrangement(), active, memory), given, seeds, sizes, near
        )
        given = placing.inputs
        if all(name in placing.co_located for name in placing.rounds if flow.operators[name].retires_operators):
            break
    reached = {v: t for v, t in batch.targets.items() if t.sink in placing.rounds}
    tables = {v: target.table for v, target in reached.items()}
    home = _co_located_views(batch, flow, placing, reached)
    soon = frozenset(v for v in home if home[v] and tables[v].is_stored and not placing.rounds[reached[v].sink])
    parts, reports = batch.partitions, None
    if soon and batch.pipelined_commit is not None:
        parts = count_tasks(batch.inputs, environment.task_slots, environment.spark, fine_grained=True)
        reports = batch.pipelined_commit.begin(StateDirectory(environment.directory), number, parts, soon, tables)
    arranged = _write_runs(environment.directory, number, placing.driver_runs, environment.durable)
    written: list[Path] = []
    messages: list[Message] = []
    shares: dict[tuple[str, int], InputSplit] = {}
    for name, source in placing.inputs.items():
        if near and isinstance(source, MemoryRows) and not is_driver_sized(source):
            written.append(StateDirectory(environment.directory) / f"b{number}-{secrets.token_hex(6)}.vkr")
            divided = write_splits(source.table, str(written[-1]), parts)
        else:
            divided = source.splits(duck, parts, memory)
        for index, share in enumerate(divided):
            shares[name, index] = share
            messages.append((index % parts, name, index, b""))
    messages += [m for consumer, port, delta in seeds for m in route_rows(consumer, port, delta, parts)]
    arranging = active - {e.slot.split("/")[0] for e in arranged}
    errand = _task_context(environment, number, flow, arranging, min(parts, environment.task_slots) if near else 1, 1)
    kind = (errand.dataflow_handle, [n for n, g in given.items() if g.count], sum(g.count or 0 for g in given.values()))
    later = count_later_tasks(parts, environment.task_slots, environment.dataflows.expected_bytes(*kind))
    every = StageTaskContext(
        **errand.__dict__,
        rounds=placing.rounds,
        co_located=placing.co_located,
        skew_balanced=placing.skew_balanced,
        driver_entries={e.slot: e for e in arranged},
        splits=shares,
        partitions=parts,
        later_tasks=later,
        url=environment.url,
        consolidated=placing.consolidated,
        targets=batch.targets,
        co_located_views=frozenset(home),
        report_plan=reports,
    )
    handle = environment.spark.sparkContext.broadcast(every)
    levels: list[RoundTask | UpsertTask] = [
        RoundTask(handle, errand.dataflow_handle.broadcast, level)
        for level in range(1 + max(placing.rounds.values(), default=0))
    ]
    if reached.keys() - home.keys():
        levels.append(UpsertTask(handle, errand.dataflow_handle.broadcast))
    rounds = f"{len(levels)} rounds" if len(levels) > 1 else "1 round"
    try:
        with _raise_job_errors(number):
            job = partial(_run_round_job, environment.spark, messages, levels, parts, later)
            description = f"viewkeeper batch {number}, {rounds}: {views_text(names)}"
            count = parts + later * (len(levels) - 1)
            meanwhile = (
                None if batch.pipelined_commit is None or reports is None else batch.pipelined_commit.apply_reports
            )
            results = run_job(environment.spark, description, job, count, batch.progress, meanwhile)
            environment.dataflows.observe(*kind, _busiest_round_bytes(results))
    finally:
        handle.destroy()
        for path in written:
            path.unlink(missing_ok=True)
    return flow, results, arranged


def _co_located_views(
    batch: _SparkBatch, variant: Dataflow, placement: Placement, targets: Mapping[int, ViewTarget]
) -> Mapping[int, bool]:
    """Views whose rows need not travel, found in the flow as views are written: its `form` makes the same rows."""
    begun = [n for n, g in placement.inputs.items() if not is_empty(g)]
    live = batch.dataflow.reachable([*begun, *(consumer for consumer, _, _ in batch.seeds)], batch.active)
    return co_located_views(batch.dataflow, live, placement.co_located | variant.retired, placement.inputs, targets)


def _task_context(
    environment: SparkEnvironment,
    number: int,
    dataflow: Dataflow,
    active: frozenset[str],
    concurrent_tasks: int,
    threads: int,
) -> TaskContext:
    """`beside`: tasks that share the lane's memory."""
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
    """A job that fails is a StoreError."""
    try:
        yield
    except Exception as error:
        if (ended := explain_jvm_error(error)) is not None:
            raise type(ended)(
                f"The Spark job of batch {number} failed: {ended.message}", hint=f"Nothing was published. {ended.hint}"
            ) from error
        said, advice = cause(error), "correct the cause"
        if "No module named 'viewkeeper'" in said:
            advice = "set PYSPARK_PYTHON to a Python that has viewkeeper before the Spark session is made"
        raise StoreError(
            f"The Spark job of batch {number} failed: {said}",
            hint=f"Nothing was published; {advice}, and refresh again.",
        ) from error


def _busiest_round_bytes(messages: Iterable[Message]) -> int:
    """Bytes that came to the busiest round after the first."""
    came: dict[int, int] = defaultdict(int)
    for _, node, level, payload in messages:
        if node == RECEIVED_BYTES:
            came[level] += int(payload)
    return max(came.values(), default=0)


def _run_round_job(
    spark: Any, messages: Sequence[Message], rounds: Sequence[RoundTask | UpsertTask], partitions: int, later_tasks: int
) -> list[Message]:
    """The rounds as one job, of `parts` tasks the first and of `later` each of the others.

    Nothing counts before its end, so a job that Spark gives up is simply run again.

    It does so when an executor dies with what later rounds read and some tasks of the last round are done: whatever
    they read came from a shuffle, and Spark may not know that it would be the same again.
    """
    begun: list[list[Message]] = [[] for _ in range(partitions)]
    for message in messages:
        begun[message[0]].append(message)
    for left in reversed(range(_ATTEMPTS)):
        try:
            rdd = spark.sparkContext.parallelize(begun, partitions).flatMap(_identity)
            for number, level in enumerate(rounds):
                if number:
                    rdd = (
                        rdd.keyBy(_partition_of)
                        .partitionBy(later_tasks, partial(_task_of, partitions, later_tasks))
                        .values()
                    )
                rdd = rdd.mapPartitions(level)
            return cast(list[Message], rdd.collect())
        except Exception as error:
            if not left or _ABORT_TEXT not in str(error):
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
    reached: dict[int, list[pa.Table]] = defaultdict(list)
    changed: list[tuple[int, bytes]] = []
    entries: list[RunEntry] = []
    for _, node, port, payload in messages:
        if node == OPERATOR_ERROR:
            failed = json.loads(payload)
            members = [FailedMember(table, bytes.fromhex(key), said) for table, key, said in failed["members"]]
            told = OperatorError(failed["operator"], failed["message"], members)
            raise on_error(dataflow.operators[failed["operator"]], told)
        if node == CORRUPT_STATE:
            failed = json.loads(payload)
            damage = _DAMAGE_CLASSES.get(failed["kind"], CorruptState)(failed["message"], hint=failed["hint"])
            raise on_error(dataflow.operators[failed["operator"]], damage)
        if node == SINK_ROWS:
            reached[port].append(decode_payload(payload))
        elif node == STAGED_ROWS:
            reached[port].append(staged_files.table(StagedTable(*json.loads(payload))))
        elif node == STAGED_CHANGES:
            changed.append((port, payload))
        elif node == RECEIVED_BYTES:
            pass
        elif node == NEW_RUNS:
            entries.extend(RunEntry.from_json(e) for e in json.loads(payload))
        else:
            raise Defect(f"Nobody took {node}")
    left = changed if pipelined_commit is None else pipelined_commit.unapplied_changes(changed)
    return SparkResult(dict(reached), collect_changes(left, targets, staged_files), entries)
