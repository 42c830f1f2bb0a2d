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
from viewkeeper.plan.dataflow.dataflow import Flow
from viewkeeper.runtime.context import Site
from viewkeeper.runtime.inputs import Rows, Share
from viewkeeper.runtime.operator_errors import Failed, attributed_to
from viewkeeper.runtime.spark import placement, tcp_quickack, worker_cache
from viewkeeper.runtime.spark.pipelined_commit import Reports, report
from viewkeeper.runtime.spark.placement import (
    RUNS,
    STAGED,
    Message,
    damaged,
    elsewhere,
    failed,
    first_part,
    payloads,
    routed,
    unpacked,
)
from viewkeeper.runtime.spark.staged_changes import Staging
from viewkeeper.runtime.spark.upsert_tasks import Target, by_key, resolved
from viewkeeper.runtime.spark.worker_cache import Errand
from viewkeeper.state.consolidate import consolidate
from viewkeeper.state.run import Run, arrange
from viewkeeper.state.run_file import RunEntry

Waiting = dict[str, dict[int, list[pa.Table]]]


@dataclass(frozen=True, kw_only=True)
class Job(Errand):
    """What the tasks of a divided batch know. `arranged`: changes of arrangements that the driver has written."""

    levels: Mapping[str, int]
    staying: frozenset[str]
    spread: frozenset[str]
    arranged: Mapping[str, RunEntry]
    shares: Mapping[tuple[str, int], Share]
    parts: int
    later: int
    """Tasks of every round but the first: fewer, where little comes to them."""
    url: str
    """Of the store."""
    netted: frozenset[str]
    """Sources whose shares must be consolidated with each other."""
    targets: Mapping[int, Target]
    """Views whose changes tasks resolve; those of others are left for the driver as they are."""
    at_home: frozenset[int]
    """Those of them whose changes are resolved where they come up (`resolving`); the others' travel (`sinking`)."""
    reports: Reports | None = None
    """Of views whose changes the driver takes while others are worked out."""


@dataclass(frozen=True)
class Level:
    """The work of one level in one task. `job`, `flow`: Spark's broadcasts; the first names the second, and which are
    sent to a task is found by the thread that sends it, in what it sends."""

    job: Any
    flow: Any
    level: int

    def __call__(self, arrived: Iterable[Message]) -> Iterator[Message]:
        from pyspark import TaskContext

        failpoints.point("task.before")
        tcp_quickack.prompt()
        job: Job = self.job.value
        context = TaskContext.get()
        if context is None:
            raise Defect("A level runs inside a task.")
        here = context.partitionId()
        if self.level:
            here = first_part(here, job.parts, job.later)
        waiting: Waiting = defaultdict(lambda: defaultdict(list))
        fetched: dict[str, list[Share]] = defaultdict(list)
        met: dict[str, list[pa.Table]] = defaultdict(list)
        carried: dict[str, list[pa.Table]] = defaultdict(list)
        onward: list[Message] = []
        size = 0
        for message in arrived:
            _, node, port, payload = message
            if node.startswith("!"):
                onward.append(message)
                continue
            size += len(payload)
            if node.startswith("+"):
                carried[node[1:]].append(unpacked(payload))
            elif node.startswith("="):
                met[node[1:]].append(unpacked(payload).drop_columns([HASH]))
            elif (node, port) in job.shares:
                fetched[node].append(job.shares[node, port])
            elif job.levels[node] > self.level:
                onward.append(message)
            else:
                waiting[node][port].append(unpacked(payload))
        if self.level:
            onward.append(placement.arrived(self.level, size))
        if job.reach is not None and not job.reach.sees():  # an executor that has joined since the session began
            yield from [*onward, elsewhere()]
            return
        kept = worker_cache.at(job)
        old = partial(kept.arrangement, job)
        site = Site(kept.crew.alone(1), job.plan.flow(), old, job.active, kept.memory)
        known = {slot: arrange(_joined(tables)) for slot, tables in carried.items()}
        site.carried = known | {slot: kept.run(entry) for slot, entry in job.arranged.items()}
        staging = kept.staging(job)
        for name in [name for name in fetched if name in job.netted]:
            for share in fetched.pop(name):
                onward += by_row(site, name, share.fetch(site.duck, site.memory), job.parts)
        fetched |= {name: [Rows(consolidate(site.duck, _joined(tables)))] for name, tables in met.items()}
        sunk: dict[int, list[pa.Table]] = defaultdict(list)
        onward += self._run(job, site, waiting, fetched, here, staging, sunk)
        reports = None if self.level else job.reports
        told = resolved(job.url, job.targets, sunk, site.duck, site.memory, staging, here, reports)
        staging.close()
        if reports is not None:
            report(kept.directory, reports, here, told)
        onward += told
        onward += self._carry(job, site, {**known, **site.added}, here)
        entries = kept.write(job, str(self.level), site.added)
        if entries:
            onward.append((0, RUNS, 0, json.dumps([e.to_json() for e in entries]).encode()))
        failpoints.point("task.after")
        yield from onward

    def _run(
        self,
        job: Job,
        site: Site,
        waiting: Waiting,
        fetched: Mapping[str, Sequence[Share]],
        here: int,
        staging: Staging,
        sunk: Mapping[int, list[pa.Table]],
    ) -> Iterator[Message]:
        """Every operator that something arrived for. In the order of the flow: a lookup may need what another adds.

        `sunk` gets what reached views that are at home."""
        for name, operator in site.flow.operators.items():
            if name not in waiting and name not in fetched:
                continue
            try:
                outputs: Iterable[pa.Table] = (share.fetch(site.duck, site.memory) for share in fetched.get(name, ()))
                if name in waiting:
                    ports = waiting.pop(name)
                    outputs = chain(outputs, site.run(operator, [ports.get(i, []) for i in range(operator.arity)]))
                for output in outputs:
                    if output.num_rows:
                        for consumer, port, delta in site.feed(operator, output):
                            view = site.flow.operators[consumer].shows
                            if view is not None and view in job.at_home:
                                sunk[view].append(delta)
                            elif view is not None and view in job.targets:
                                with attributed_to(consumer):
                                    yield from by_key(site.duck, job.targets[view], delta, job.parts)
                            elif view is not None:
                                yield 0, STAGED, view, json.dumps(staging.add(delta)).encode()
                            elif consumer not in job.staying:
                                yield from routed(consumer, port, delta, job.parts, consumer in job.spread)
                            elif job.levels[consumer] == self.level:
                                waiting[consumer][port].append(delta)
                            else:
                                yield from ((here, consumer, port, p) for p in payloads(delta))
            except CorruptState as damage:
                yield damaged(name, damage)
            except Failed as failure:
                yield failed(failure)

    def _carry(self, job: Job, site: Site, fresh: Mapping[str, Run], here: int) -> Iterator[Message]:
        """Fresh rows of arrangements that lookups of later levels need."""
        for slot, run in fresh.items():
            if self.level < _last_lookup(job, site.flow, slot.split("/")[0]):
                yield from ((here, f"+{slot}", 0, payload) for payload in payloads(run.weighted))


def by_row(site: Site, name: str, rows: pa.Table, parts: int) -> Iterator[Message]:
    """Changes on their way to the task that owns their key: equal rows that came and went meet there."""
    table = site.flow.operators[name].changes_of
    if table is None:
        raise Defect(f"{name} gives no changes of a table.")
    keys = [k.column for k in site.flow.tables[table].key]
    hashes = site.duck.run(f"SELECT hash({', '.join(map(quoted, keys))}) AS {HASH} FROM input", input=rows.select(keys))
    return routed(f"={name}", 0, rows.append_column(HASH, hashes[HASH]), parts)


def _last_lookup(job: Job, flow: Flow, arrangement: str) -> int:
    """The last level at which this batch looks the arrangement up in its fresh state."""
    operators = flow.operators
    return max((level for n, level in job.levels.items() if arrangement in operators[n].looked_up), default=-1)


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).combine_chunks()
