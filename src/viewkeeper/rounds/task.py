"""One level of a batch in one Spark task, and what travels between tasks:

    dest INT     the task that owns the rows' share of the hash range
    node STRING  the operator they are for; `+slot`: fresh rows of an arrangement, carried to a later lookup;
                 `!sink`, `!runs`, `!error`, `!damaged`, `!elsewhere`: on their way to the driver
    port INT
    payload      an Arrow IPC stream of a few MB, or JSON

A task writes the runs of its share to one container file and reports it; files of attempts whose report does not
arrive do not count. Every task drains its input, so that workers are reused.
"""

from __future__ import annotations

import json
import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from viewkeeper import expressions, faults
from viewkeeper.errors import CorruptState, Defect
from viewkeeper.model.names import HASH
from viewkeeper.operators.arrangement import Arrangement, Run, arrange
from viewkeeper.operators.duck import Duck
from viewkeeper.operators.runs import RunEntry, open_run, write_container
from viewkeeper.plan.flow import Flow
from viewkeeper.rounds.blame import Failed
from viewkeeper.rounds.given import Share
from viewkeeper.rounds.reach import Reach, machine
from viewkeeper.rounds.site import Site
from viewkeeper.store.files import Directory
from viewkeeper.store.memory import Memory

PARTITIONS = 64
"""Virtual partitions, by the top bits of the hash; a task owns a run of them."""

PAYLOAD_ROWS = 65_536
"""Rows in one payload: a few MB, so that a shuffle block stays small."""

SCHEMA = "dest int, node string, port int, payload binary"
_ARROW = pa.schema([("dest", pa.int32()), ("node", pa.string()), ("port", pa.int32()), ("payload", pa.binary())])
Message = tuple[int, str, int, bytes]
Waiting = dict[str, dict[int, list[pa.Table]]]


@dataclass(frozen=True)
class Job:
    """What every task of the batch knows. `arranged`: changes of arrangements that the driver has written already."""

    flow: Flow
    active: frozenset[str]
    levels: Mapping[str, int]
    staying: frozenset[str]
    arranged: Mapping[str, RunEntry]
    shares: Mapping[tuple[str, int], Share]
    manifest: Mapping[str, tuple[RunEntry, ...]]
    directory: str
    number: int
    parts: int
    durable: bool
    memory: int
    """Of each task."""
    reach: Reach | None = None
    """What a task must see before it begins."""


@dataclass(frozen=True)
class Level:
    """The work of one level in one task."""

    job: Any
    level: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        faults.point("task.before")
        job: Job = self.job.value
        context = TaskContext.get()
        if context is None:
            raise Defect("A level runs inside a task.")
        here = context.partitionId()
        waiting: Waiting = defaultdict(lambda: defaultdict(list))
        fetched: dict[str, list[Share]] = defaultdict(list)
        carried: dict[str, list[pa.Table]] = defaultdict(list)
        onward: list[Message] = []
        for batch in batches:
            for dest, node, port, payload in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                if node.startswith("!"):
                    onward.append((dest, node, port, payload))
                elif node.startswith("+"):
                    carried[node[1:]].append(unpacked(payload))
                elif job.levels[node] > self.level:
                    onward.append((dest, node, port, payload))
                elif (node, port) in job.shares:
                    fetched[node].append(job.shares[node, port])
                else:
                    waiting[node][port].append(unpacked(payload))
        if job.reach is not None and not job.reach.sees():  # an executor that has joined since the session began
            yield as_batch([*onward, (0, "!elsewhere", 0, machine().encode())])
            return
        memory = Memory(job.memory).beside(Directory(job.directory))
        site = Site(_duck(job.directory, job.memory), job.flow, lambda slot: _old(job, slot), job.active, memory)
        known = {slot: arrange(_joined(tables)) for slot, tables in carried.items()}
        site.carried = known | {slot: _open(job.directory, entry) for slot, entry in job.arranged.items()}
        onward += self._run(job, site, waiting, fetched, here)
        onward += self._carry(job, {**known, **site.added}, here)
        if site.added:
            onward.append((0, "!runs", 0, _written(job, self.level, site.added)))
        faults.point("task.after")
        if onward:
            yield as_batch(onward)

    def _run(
        self, job: Job, site: Site, waiting: Waiting, fetched: Mapping[str, Sequence[Share]], here: int
    ) -> Iterator[Message]:
        """Every operator that something arrived for. In the order of the flow: a lookup may need what another adds."""
        for name, operator in job.flow.operators.items():
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
                            view = job.flow.operators[consumer].shows
                            if view is not None:
                                yield from ((0, "!sink", view, p) for p in _payloads(delta))
                            elif consumer not in job.staying:
                                yield from routed(consumer, port, delta, job.parts)
                            elif job.levels[consumer] == self.level:
                                waiting[consumer][port].append(delta)
                            else:
                                yield from ((here, consumer, port, p) for p in _payloads(delta))
            except CorruptState as damage:  # no error of the task: to try again would not help
                yield 0, "!damaged", 0, json.dumps(_damage(damage, name)).encode()
            except Failed as failed:
                told = {"operator": failed.operator, "message": failed.message}
                yield 0, "!error", 0, json.dumps(told).encode()

    def _carry(self, job: Job, fresh: Mapping[str, Run], here: int) -> Iterator[Message]:
        """Fresh rows of arrangements that lookups of later levels need."""
        for slot, run in fresh.items():
            if self.level < _last_lookup(job, slot.split("/")[0]):
                yield from ((here, f"+{slot}", 0, payload) for payload in _payloads(run.weighted))


def _damage(damage: CorruptState, operator: str) -> dict[str, Any]:
    told = {"kind": type(damage).__name__, "message": damage.message, "hint": damage.hint}
    return told | {"operator": operator}


def _last_lookup(job: Job, arrangement: str) -> int:
    """The last level at which this batch looks the arrangement up in its fresh state."""
    operators = job.flow.operators
    return max((level for n, level in job.levels.items() if arrangement in operators[n].looked_up), default=-1)


def routed(consumer: str, port: int, delta: pa.Table, parts: int) -> Iterator[Message]:
    """The rows split by the task that owns their hash; no rows at all (a seed) go to the owner of 0."""
    hashes = delta[HASH].to_numpy()
    dest = (hashes >> np.uint64(58)).astype(np.int64) * parts // PARTITIONS
    order = np.argsort(dest, kind="stable")
    edges = np.searchsorted(dest[order], np.arange(parts + 1))
    rows = delta.take(pa.array(order)) if parts > 1 else delta
    for part, (low, high) in enumerate(pairwise(edges)):
        if high > low or (part == 0 and not len(hashes)):
            yield from ((part, consumer, port, p) for p in _payloads(rows.slice(low, high - low)))


def _payloads(table: pa.Table) -> Iterator[bytes]:
    for at in range(0, max(table.num_rows, 1), PAYLOAD_ROWS):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(at, PAYLOAD_ROWS).combine_chunks())
        yield sink.getvalue().to_pybytes()


def unpacked(payload: bytes) -> pa.Table:
    return pa.ipc.open_stream(payload).read_all()


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).combine_chunks()


def as_batch(messages: Sequence[Message]) -> pa.RecordBatch:
    columns = list(zip(*messages, strict=True)) or [(), (), (), ()]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, _ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def _written(job: Job, level: int, added: Mapping[str, Run]) -> bytes:
    directory = Directory(job.directory)
    directory.make()  # where a worker runs on another machine its copies are new
    name = f"b{job.number}-{level}-{secrets.token_hex(6)}.vkr"
    entries = write_container(directory, name, added, fsync=job.durable)
    return json.dumps([e.to_json() for e in entries]).encode()


@lru_cache(maxsize=1)
def _duck(directory: str, memory: int) -> Duck:
    """One DuckDB for each Python worker, kept while the worker is reused."""
    return Duck(expressions.setup, threads=1, memory=Memory(memory).beside(Directory(directory)))


def _old(job: Job, slot: str) -> Arrangement:
    return Arrangement(tuple(_open(job.directory, e) for e in job.manifest.get(slot, ())))


@lru_cache(maxsize=4096)
def _open(directory: str, entry: RunEntry) -> Run:
    return open_run(directory, entry, verify=True)
