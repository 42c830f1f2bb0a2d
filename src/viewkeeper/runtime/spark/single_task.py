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
from viewkeeper.resources.memory import Memory
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.runtime.context import Fed, Site
from viewkeeper.runtime.inputs import Given, Rows, Share
from viewkeeper.runtime.local.scheduler import divides, run_in_driver
from viewkeeper.runtime.operator_errors import Failed
from viewkeeper.runtime.spark import tcp_quickack, worker_cache
from viewkeeper.runtime.spark.placement import RUNS, SINK, Message, damaged, elsewhere, failed, payloads, unpacked
from viewkeeper.runtime.spark.worker_cache import Errand


@dataclass(frozen=True)
class Whole:
    """The work of the one task. `shares`: rows that it fetches itself; the others come as its partition."""

    errand: Errand
    shares: Mapping[str, Sequence[Share]]
    seeds: Sequence[Fed]

    def __call__(self, rows: Iterable[tuple[str, bytes]]) -> Iterator[Message]:
        failpoints.point("task.before")
        tcp_quickack.prompt()
        given: dict[str, Given] = {name: _Fetched(each) for name, each in self.shares.items()}
        given |= _arrived(rows)  # all of it, so that the worker is reused
        errand = self.errand
        if errand.reach is not None and not errand.reach.sees():
            yield elsewhere()
            return
        try:
            messages = list(self._run(given))
        except _Told as told:
            messages = [told.message]
        failpoints.point("task.after")
        yield from messages

    def _run(self, given: Mapping[str, Given]) -> Iterator[Message]:
        errand, here = self.errand, worker_cache.at(self.errand)
        flow = errand.plan.flow()
        several = errand.threads > 1 and divides(errand.active)
        duck = here.crew.first if several else here.crew.alone(1)
        site = Site(duck, flow, partial(here.arrangement, errand), errand.active, here.memory)
        reached = run_in_driver(site, given, self.seeds, _told, here.crew if several else None)
        for view, deltas in reached.items():
            for delta in deltas:
                yield from ((0, SINK, view, p) for p in payloads(delta))
        entries = here.write(errand, "0", site.added)
        yield 0, RUNS, 0, json.dumps([e.to_json() for e in entries]).encode()


def _arrived(rows: Iterable[tuple[str, bytes]]) -> dict[str, Given]:
    found: dict[str, list[pa.Table]] = defaultdict(list)
    for name, payload in rows:
        found[name].append(unpacked(payload))
    return {name: Rows(pa.concat_tables(tables)) for name, tables in found.items()}


@dataclass(frozen=True)
class _Fetched:
    """Rows that the task fetches when they are needed."""

    each: Sequence[Share]
    count: None = None

    def rows(self, duck: Duck, memory: Memory) -> pa.Table:
        fetched = [share.fetch(duck, memory) for share in self.each]
        return fetched[0] if len(fetched) == 1 else pa.concat_tables(fetched)

    def shares(self, duck: Duck, parts: int, memory: Memory) -> Sequence[Share]:
        return self.each


class _Told(Exception):
    """No error of the task, which would be tried again: a row's, or the state's. The driver hears of it."""

    def __init__(self, message: Message) -> None:
        self.message = message


def _told(operator: Operator, error: Exception) -> Exception:
    if isinstance(error, CorruptState):
        return _Told(damaged(operator.id, error))
    return _Told(failed(error)) if isinstance(error, Failed) else error
