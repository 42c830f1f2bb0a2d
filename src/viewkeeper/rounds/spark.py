"""The Spark lane: one job a batch, whatever the number of views.

Each level is a `mapInArrow` over the exchange; between levels lies a shuffle by `dest`. What travels is generic:

    dest INT     the task that owns the rows' share of the hash range
    node STRING  the operator they are for; `+slot`: fresh rows of an arrangement, carried to a later lookup;
                 `!sink`, `!runs`, `!error`, `!damaged`: on their way to the driver
    port INT
    payload      an Arrow IPC stream of a few MB, or JSON

A task writes the runs of its share to one container file and reports it; files of attempts whose report does not
arrive do not count. Every task drains its input, so that workers are reused.
"""

from __future__ import annotations

import json
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from viewkeeper import faults
from viewkeeper.errors import CorruptState, EvaluationError, StoreError
from viewkeeper.operators.arrangement import Arrangement, Run, arrange
from viewkeeper.operators.duck import Duck, spilling
from viewkeeper.operators.runs import RunEntry, open_run, write_container
from viewkeeper.plan import expressions
from viewkeeper.plan.dataflow import HASH, Operator, Sink
from viewkeeper.plan.flow import Flow
from viewkeeper.rounds.given import Given, Share
from viewkeeper.rounds.site import Fed, Site

PARTITIONS = 64
"""Virtual partitions, by the top bits of the hash; a task owns a run of them."""

PAYLOAD_ROWS = 65_536
"""Rows in one payload: a few MB, so that a shuffle block stays small."""

SCHEMA = "dest int, node string, port int, payload binary"
_ARROW = pa.schema([("dest", pa.int32()), ("node", pa.string()), ("port", pa.int32()), ("payload", pa.binary())])
Message = tuple[int, str, int, bytes]


@dataclass(frozen=True)
class Job:
    """What every task of the batch knows."""

    flow: Flow
    active: frozenset[str]
    shares: Mapping[tuple[str, int], Share]
    manifest: Mapping[str, tuple[RunEntry, ...]]
    directory: str
    number: int
    parts: int
    durable: bool


def run_on_spark(
    spark: Any,
    flow: Flow,
    active: frozenset[str],
    given: Mapping[str, Given],
    seeds: Iterable[Fed],
    manifest: Mapping[str, tuple[RunEntry, ...]],
    directory: str,
    number: int,
    durable: bool,
    duck: Duck,
    on_error: Callable[[Operator, Exception], Exception],
) -> tuple[dict[int, list[pa.Table]], list[RunEntry]]:
    """Run the batch as one Spark job: what reached the sinks, and the runs that the tasks wrote."""
    parts = min(PARTITIONS, max(1, spark.sparkContext.defaultParallelism))
    messages: list[Message] = []
    shares: dict[tuple[str, int], Share] = {}
    for name, source in given.items():
        for index, share in enumerate(source.shares(duck, parts)):
            shares[name, index] = share
            messages.append((index % parts, name, index, b""))
    messages += [m for consumer, port, delta in seeds for m in _routed(consumer, port, delta, parts)]
    job = Job(flow, active, shares, manifest, directory, number, parts, durable)
    handle = spark.sparkContext.broadcast(job)
    frame = spark.createDataFrame(pa.Table.from_batches([_batch(messages)]))
    for level in range(1 + max((flow.levels[n] for n in active), default=0)):
        frame = frame.repartitionById(parts, "dest").mapInArrow(_Level(handle, level), SCHEMA)
    try:
        results = frame.toArrow()
    except Exception as error:
        raise StoreError(
            f"The Spark job of batch {number} failed: {_cause(error)}",
            hint="Nothing was published; correct the cause and refresh again.",
        ) from error
    finally:
        handle.destroy()
    return _collected(flow, results, on_error)


def _collected(
    flow: Flow, results: pa.Table, on_error: Callable[[Operator, Exception], Exception]
) -> tuple[dict[int, list[pa.Table]], list[RunEntry]]:
    reached: dict[int, list[pa.Table]] = defaultdict(list)
    entries: list[RunEntry] = []
    for node, port, payload in zip(*(results[c].to_pylist() for c in ("node", "port", "payload")), strict=True):
        if node == "!error":
            failed = json.loads(payload)
            raise on_error(flow.operators[failed["operator"]], EvaluationError(failed["message"]))
        if node == "!damaged":
            failed = json.loads(payload)
            raise CorruptState(failed["message"], hint=failed["hint"])
        if node == "!sink":
            reached[port].append(_unpacked(payload))
        elif node == "!runs":
            entries.extend(RunEntry.from_json(e) for e in json.loads(payload))
        else:
            raise AssertionError(f"nobody took {node}")
    return dict(reached), entries


def _cause(error: Exception) -> str:
    """What a task said last: the line that a traceback ends with, not Spark's own account of it."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line.startswith("viewkeeper.errors.") or "Error:" in line[:80]]
    return (told or [line for line in lines if line] or [type(error).__name__])[-1][:500]


@dataclass(frozen=True)
class _Level:
    """The work of one level in one task."""

    job: Any
    level: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        faults.point("task.before")
        job: Job = self.job.value
        waiting: dict[str, dict[int, list[pa.Table]]] = defaultdict(lambda: defaultdict(list))
        fetched: dict[str, list[Share]] = defaultdict(list)
        carried: dict[str, list[pa.Table]] = defaultdict(list)
        onward: list[Message] = []
        here = 0
        for batch in batches:
            for dest, node, port, payload in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                here = dest if not node.startswith("!") else here
                if node.startswith("!"):
                    onward.append((dest, node, port, payload))
                elif node.startswith("+"):
                    carried[node[1:]].append(_unpacked(payload))
                elif (node, port) in job.shares and job.flow.levels[node] == self.level:
                    fetched[node].append(job.shares[node, port])
                elif job.flow.levels[node] > self.level:
                    onward.append((dest, node, port, payload))
                else:
                    waiting[node][port].append(_unpacked(payload))
        site = Site(_duck(job.directory), job.flow, lambda slot: _old(job, slot), job.active)
        site.carried = {slot: arrange(_joined(tables)) for slot, tables in carried.items()}
        onward += self._run(job, site, waiting, fetched)
        onward += self._carry(job, site, here)
        if site.added:
            onward.append((0, "!runs", 0, _written(job, self.level, site.added)))
        faults.point("task.after")
        if onward:
            yield _batch(onward)

    def _run(
        self,
        job: Job,
        site: Site,
        waiting: Mapping[str, Mapping[int, Sequence[pa.Table]]],
        fetched: Mapping[str, Sequence[Share]],
    ) -> Iterator[Message]:
        flow = job.flow
        # A lookup of a later operator of this level may need what an earlier one adds: the flow's order has that.
        local: dict[str, dict[int, list[pa.Table]]] = {
            n: {p: list(t) for p, t in w.items()} for n, w in waiting.items()
        }
        for name, operator in flow.operators.items():
            if name not in local and name not in fetched:
                continue
            try:
                outputs = [share.fetch(site.duck) for share in fetched.get(name, ())]
                if name in local:
                    ports = local.pop(name)
                    output = site.run(operator, [ports.get(i, []) for i in range(operator.arity)])
                    outputs += [] if output is None else [output]
                for output in outputs:
                    if output.num_rows:
                        for consumer, port, delta in site.feed(operator, output):
                            target = flow.operators[consumer]
                            if isinstance(target, Sink):
                                yield from ((0, "!sink", target.view, p) for p in _payloads(delta))
                            else:
                                yield from _routed(consumer, port, delta, job.parts)
            except CorruptState as damage:  # no error of the task: to try again would not help
                yield 0, "!damaged", 0, json.dumps({"message": damage.message, "hint": damage.hint}).encode()
            except Exception as error:
                found = expressions.error_code(error)
                if found is None:
                    raise
                yield 0, "!error", 0, json.dumps({"operator": site.feeding or name, "message": found.message}).encode()

    def _carry(self, job: Job, site: Site, here: int) -> Iterator[Message]:
        """Fresh rows of arrangements that lookups of later levels need."""
        for slot, run in {**site.carried, **site.added}.items():
            if self.level < _last_lookup(job, slot.split("/")[0]):
                yield from ((here, f"+{slot}", 0, payload) for payload in _payloads(run.weighted))


def _last_lookup(job: Job, arrangement: str) -> int:
    """The last level at which this batch looks the arrangement up in its fresh state."""
    levels = [
        job.flow.levels[n] for n, o in job.flow.operators.items() if n in job.active and arrangement in o.looked_up
    ]
    return max(levels, default=-1)


def _routed(consumer: str, port: int, delta: pa.Table, parts: int) -> Iterator[Message]:
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


def _unpacked(payload: bytes) -> pa.Table:
    return pa.ipc.open_stream(payload).read_all()


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).combine_chunks()


def _batch(messages: Sequence[Message]) -> pa.RecordBatch:
    columns = list(zip(*messages, strict=True)) or [(), (), (), ()]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, _ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def _written(job: Job, level: int, added: Mapping[str, Run]) -> bytes:
    path = Path(job.directory) / f"b{job.number}-{level}-{secrets.token_hex(6)}.vkr"
    entries = write_container(path, added, fsync=job.durable)
    return json.dumps([e.to_json() for e in entries]).encode()


@lru_cache(maxsize=1)
def _duck(directory: str) -> Duck:
    """One DuckDB for each Python worker, kept while the worker is reused."""
    return Duck(threads=1, setup=spilling(directory, expressions.setup))


def _old(job: Job, slot: str) -> Arrangement:
    return Arrangement(tuple(_open(job.directory, e) for e in job.manifest.get(slot, ())))


@lru_cache(maxsize=4096)
def _open(directory: str, entry: RunEntry) -> Run:
    return open_run(directory, entry, verify=True)
