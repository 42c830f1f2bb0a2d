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
from viewkeeper.plan.catalyst import explained
from viewkeeper.plan.dataflow.dataflow import Flow
from viewkeeper.resources.directory import Directory
from viewkeeper.resources.memory import Memory
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.runtime.context import Fed, Site
from viewkeeper.runtime.inputs import Given, Rows, Share, filed, is_empty
from viewkeeper.runtime.operator_errors import Blamed, Failed
from viewkeeper.runtime.spark.jobs import Sent, cause, run_job, views_text
from viewkeeper.runtime.spark.pipelined_commit import Early
from viewkeeper.runtime.spark.placement import (
    ARRIVED,
    CHANGED,
    DAMAGED,
    ELSEWHERE,
    ERROR,
    RUNS,
    SINK,
    STAGED,
    Message,
    Placing,
    is_few,
    later_tasks,
    payloads,
    place,
    routed,
    task_of,
    tasks,
    unpacked,
)
from viewkeeper.runtime.spark.round_tasks import Job, Level
from viewkeeper.runtime.spark.sessions import Reach
from viewkeeper.runtime.spark.single_task import Whole
from viewkeeper.runtime.spark.sink_tasks import Sinking, changes_of
from viewkeeper.runtime.spark.staged_changes import Staged, Taken
from viewkeeper.runtime.spark.upsert_tasks import Target, at_home
from viewkeeper.runtime.spark.worker_cache import Errand
from viewkeeper.state.run import Arrangement
from viewkeeper.state.run_file import RunEntry, write_container
from viewkeeper.store.contract.store import StreamChange, ViewChange

_DAMAGE = {kind.__name__: kind for kind in (CorruptRun, Contradiction)}

_ATTEMPTS = 3
_GIVEN_UP = "indeterminate output"
"""In Spark's words when it could go on only by making a shuffle anew whose rows it takes for random."""


T = TypeVar("T")

OnError = Callable[[Operator, Exception], Exception]


@dataclass(frozen=True)
class Lane:
    """Where jobs run, and over which state.

    `near`: all tasks run on one machine, so that each can read all of the state at no cost, and they share `memory`.
    `reach`: what each must see; Unsupported if one does not. `threads`: that a task may use which is the only one.
    """

    spark: Any
    sent: Sent
    url: str
    manifest: Mapping[str, tuple[RunEntry, ...]]
    directory: str
    durable: bool
    near: bool
    duck: Duck
    memory: Memory
    threads: int
    reach: Reach | None = None

    @property
    def slots(self) -> int:
        """Tasks that run at the same time."""
        return max(1, int(self.spark.sparkContext.defaultParallelism))


def run_on_spark(
    lane: Lane,
    number: int,
    flow: Flow,
    active: frozenset[str],
    given: Mapping[str, Given],
    seeds: Iterable[Fed],
    names: Sequence[str],
    on_error: OnError,
    together: Flow | None = None,
    targets: Mapping[int, Target] | None = None,
    told: Callable[[int, int], None] | None = None,
    early: Early | None = None,
) -> Ran:
    """Run the batch as one Spark job: what reached the sinks, and the runs that the job's tasks and the driver wrote.

    `together`: the flow with the paths of different views made together, which is run where tasks can read all that
    they look up. `names`: of the views, for Spark's pages. `targets`: views whose changes tasks resolve, if there are
    several; with `early`, some of them while others run. `told` hears how many of the job's tasks are done, and of how
    many.
    """
    parts = tasks(given, lane.slots, lane.spark)
    batch = _Batch(number, flow, active, given, list(seeds), names, together, targets or {}, parts, told, early)
    taken = Taken(Directory(lane.directory))
    try:
        flow, results, arranged = _undivided(lane, batch) if parts == 1 else _divided(lane, batch)
        if lane.reach is not None and any(m[1] == ELSEWHERE for m in results):  # before what came of missing rows
            raise lane.reach.refusal(f"a task of batch {number}")
        return _collected(flow, results, on_error, batch.targets, taken, early).plus(arranged)
    except BaseException as error:
        if early is not None:  # what the store was given is of a batch that is not, or is run otherwise
            early.close()
        if isinstance(error, Failed):  # in the driver's part of the work
            forms = [flow, *([] if together is None else [together])]
            operator = next(f.operators[error.operator] for f in forms if error.operator in f.operators)
            raise on_error(operator, error) from error
        raise
    finally:
        taken.clear()
        if early is not None:
            early.end()


@dataclass(frozen=True)
class Ran:
    """What came of a batch: rows at sinks, changes of views that tasks have resolved, and runs."""

    reached: Mapping[int, list[pa.Table]]
    changes: Sequence[ViewChange | StreamChange]
    entries: Sequence[RunEntry]

    def plus(self, entries: Sequence[RunEntry]) -> Ran:
        return replace(self, entries=[*entries, *self.entries])


@dataclass(frozen=True)
class _Batch:
    number: int
    flow: Flow
    active: frozenset[str]
    given: Mapping[str, Given]
    seeds: Sequence[Fed]
    names: Sequence[str]
    together: Flow | None
    targets: Mapping[int, Target]
    parts: int
    told: Callable[[int, int], None] | None
    early: Early | None


_Ran = tuple[Flow, list[Message], list[RunEntry]]
"""The form of the flow that was run, what came of it, and the runs that the driver wrote."""


def _undivided(lane: Lane, batch: _Batch) -> _Ran:
    number, flow, active, given = batch.number, batch.flow, batch.active, batch.given
    seeds, names, together = batch.seeds, batch.names, batch.together
    if together is not None:
        flow, active = together, together.in_batches
    rows = [(n, p) for n, g in given.items() if isinstance(g, Rows) and g.count for p in [*payloads(g.table)]]
    others = {n: g.shares(lane.duck, 1, lane.memory) for n, g in given.items() if not isinstance(g, Rows)}
    shares = {n: each for n, each in others.items() if each}
    threads = lane.threads if lane.near else 1
    task = Whole(_errand(lane, number, flow, active, 1, threads), shares, seeds)
    with _told(number):
        rdd = lane.spark.sparkContext.parallelize([rows], 1).flatMap(task)
        description = f"viewkeeper batch {number}: {views_text(names)}"
        return flow, run_job(lane.spark, description, rdd.collect, told=batch.told), []


def _divided(lane: Lane, batch: _Batch) -> _Ran:
    number, flow, active, given = batch.number, batch.flow, batch.active, batch.given
    seeds, names, together = batch.seeds, batch.names, batch.together
    manifest, near, duck, memory = lane.manifest, lane.near, lane.duck, lane.memory
    sizes = {slot: (sum(e.rows for e in runs), sum(e.length for e in runs)) for slot, runs in manifest.items()}
    forms = [(flow, active)] if together is None else [(together, together.in_batches), (flow, active)]
    for flow, active in forms:
        placing = place(Site(duck, flow, lambda _: Arrangement(), active, memory), given, seeds, sizes, near)
        given = placing.given
        if all(name in placing.staying for name in placing.levels if flow.operators[name].together):
            break
    reached = {v: t for v, t in batch.targets.items() if t.sink in placing.levels}
    tables = {v: target.table for v, target in reached.items()}
    home = _at_home(batch, flow, placing, reached)
    soon = frozenset(v for v in home if home[v] and tables[v].is_stored and not placing.levels[reached[v].sink])
    parts, reports = batch.parts, None
    if soon and batch.early is not None:
        parts = tasks(batch.given, lane.slots, lane.spark, finely=True)
        reports = batch.early.expect(Directory(lane.directory), number, parts, soon, tables)
    arranged = _written(lane.directory, number, placing.arranged, lane.durable)
    written: list[Path] = []
    messages: list[Message] = []
    shares: dict[tuple[str, int], Share] = {}
    for name, source in placing.given.items():
        if near and isinstance(source, Rows) and not is_few(source):
            written.append(Directory(lane.directory) / f"b{number}-{secrets.token_hex(6)}.vkr")
            divided = filed(source.table, str(written[-1]), parts)
        else:
            divided = source.shares(duck, parts, memory)
        for index, share in enumerate(divided):
            shares[name, index] = share
            messages.append((index % parts, name, index, b""))
    messages += [m for consumer, port, delta in seeds for m in routed(consumer, port, delta, parts)]
    arranging = active - {e.slot.split("/")[0] for e in arranged}
    errand = _errand(lane, number, flow, arranging, min(parts, lane.slots) if near else 1, 1)
    kind = (errand.plan, [n for n, g in given.items() if g.count], sum(g.count or 0 for g in given.values()))
    later = later_tasks(parts, lane.slots, lane.sent.came(*kind))
    every = Job(
        **errand.__dict__,
        levels=placing.levels,
        staying=placing.staying,
        spread=placing.spread,
        arranged={e.slot: e for e in arranged},
        shares=shares,
        parts=parts,
        later=later,
        url=lane.url,
        netted=placing.netted,
        targets=batch.targets,
        at_home=frozenset(home),
        reports=reports,
    )
    handle = lane.spark.sparkContext.broadcast(every)
    levels: list[Level | Sinking] = [
        Level(handle, errand.plan.handle, level) for level in range(1 + max(placing.levels.values(), default=0))
    ]
    if reached.keys() - home.keys():
        levels.append(Sinking(handle, errand.plan.handle))
    rounds = f"{len(levels)} rounds" if len(levels) > 1 else "1 round"
    try:
        with _told(number):
            job = partial(_results, lane.spark, messages, levels, parts, later)
            description = f"viewkeeper batch {number}, {rounds}: {views_text(names)}"
            count = parts + later * (len(levels) - 1)
            meanwhile = None if batch.early is None or reports is None else batch.early.watch
            results = run_job(lane.spark, description, job, count, batch.told, meanwhile)
            lane.sent.learn(*kind, _busiest(results))
    finally:
        handle.destroy()
        for path in written:
            path.unlink(missing_ok=True)
    return flow, results, arranged


def _at_home(batch: _Batch, form: Flow, placing: Placing, targets: Mapping[int, Target]) -> Mapping[int, bool]:
    """Views whose rows need not travel, found in the flow as views are written: its `form` makes the same rows."""
    begun = [n for n, g in placing.given.items() if not is_empty(g)]
    live = batch.flow.reached([*begun, *(consumer for consumer, _, _ in batch.seeds)], batch.active)
    return at_home(batch.flow, live, placing.staying | form.folded, placing.given, targets)


def _errand(lane: Lane, number: int, flow: Flow, active: frozenset[str], beside: int, threads: int) -> Errand:
    """`beside`: tasks that share the lane's memory."""
    return Errand(
        plan=lane.sent.plan(lane.spark, flow),
        active=active,
        manifest=lane.manifest,
        directory=lane.directory,
        number=number,
        durable=lane.durable,
        memory=lane.memory.divided(beside).total,
        threads=threads,
        reach=lane.reach,
    )


@contextmanager
def _told(number: int) -> Iterator[None]:
    """A job that fails is a StoreError."""
    try:
        yield
    except Exception as error:
        if (ended := explained(error)) is not None:
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


def _busiest(results: Iterable[Message]) -> int:
    """Bytes that came to the busiest round after the first."""
    came: dict[int, int] = defaultdict(int)
    for _, node, level, payload in results:
        if node == ARRIVED:
            came[level] += int(payload)
    return max(came.values(), default=0)


def _results(
    spark: Any, messages: Sequence[Message], levels: Sequence[Level | Sinking], parts: int, later: int
) -> list[Message]:
    """The rounds as one job, of `parts` tasks the first and of `later` each of the others.

    Nothing counts before its end, so a job that Spark gives up is simply run again.

    It does so when an executor dies with what later rounds read and some tasks of the last round are done: whatever
    they read came from a shuffle, and Spark may not know that it would be the same again.
    """
    begun: list[list[Message]] = [[] for _ in range(parts)]
    for message in messages:
        begun[message[0]].append(message)
    for left in reversed(range(_ATTEMPTS)):
        try:
            rdd = spark.sparkContext.parallelize(begun, parts).flatMap(_as_they_are)
            for number, level in enumerate(levels):
                if number:
                    rdd = rdd.keyBy(_dest).partitionBy(later, partial(_task_of, parts, later)).values()
                rdd = rdd.mapPartitions(level)
            return cast(list[Message], rdd.collect())
        except Exception as error:
            if not left or _GIVEN_UP not in str(error):
                raise
    raise Defect("The last attempt returns or raises")


def _as_they_are(thing: T) -> T:
    return thing


def _dest(message: Message) -> int:
    return message[0]


def _task_of(parts: int, tasks: int, dest: int) -> int:
    return task_of(dest, parts, tasks)


def _written(directory: str, number: int, runs: Mapping[str, Any], durable: bool) -> list[RunEntry]:
    if not runs:
        return []
    return write_container(directory, f"b{number}-{secrets.token_hex(6)}.vkr", runs, fsync=durable)


def _collected(
    flow: Flow,
    results: Iterable[Message],
    on_error: OnError,
    targets: Mapping[int, Target],
    taken: Taken,
    early: Early | None = None,
) -> Ran:
    reached: dict[int, list[pa.Table]] = defaultdict(list)
    changed: list[tuple[int, bytes]] = []
    entries: list[RunEntry] = []
    for _, node, port, payload in results:
        if node == ERROR:
            failed = json.loads(payload)
            members = [Blamed(table, bytes.fromhex(key), said) for table, key, said in failed["members"]]
            told = Failed(failed["operator"], failed["message"], members)
            raise on_error(flow.operators[failed["operator"]], told)
        if node == DAMAGED:
            failed = json.loads(payload)
            damage = _DAMAGE.get(failed["kind"], CorruptState)(failed["message"], hint=failed["hint"])
            raise on_error(flow.operators[failed["operator"]], damage)
        if node == SINK:
            reached[port].append(unpacked(payload))
        elif node == STAGED:
            reached[port].append(taken.table(Staged(*json.loads(payload))))
        elif node == CHANGED:
            changed.append((port, payload))
        elif node == ARRIVED:
            pass
        elif node == RUNS:
            entries.extend(RunEntry.from_json(e) for e in json.loads(payload))
        else:
            raise Defect(f"Nobody took {node}")
    left = changed if early is None else early.left(changed)
    return Ran(dict(reached), changes_of(left, targets, taken), entries)
