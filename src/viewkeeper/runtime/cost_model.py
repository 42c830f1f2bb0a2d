"""Which lane `auto` takes: the one that is expected to be done sooner.

    driver   floor + rows · row                    row: seconds of all of the maintainer's threads
    spark    floor + rows · row / cores + moved    row: seconds of one core; moved: rows sent to another machine

Floors and rows are measured here, by batches and by loads, and kept beside the state for the next maintainer:

    lanes.json   {"batch": {"driver": [floor, row], "spark": [floor, row]}, "load": …}

A batch of few rows tells the floor of its lane, one of many what a row costs; of a lane that was never taken the other
one's rows are taken, with what exchanging them is known to add. What the driver does for every batch it does for one on
Spark too, so Spark's floor is never below the driver's and a job: a first load that was slow sends no small one there.
The file is no truth: one that is missing or damaged is as good as none.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import duckdb

from viewkeeper.errors import OutOfMemory, UnknownName
from viewkeeper.plan.dataflow.dataflow import Flow
from viewkeeper.resources.directory import Directory
from viewkeeper.runtime.spark.sessions import Cluster
from viewkeeper.store.contract.store import Pending, Store

FILE = "lanes.json"
DRIVER, SPARK = "driver", "spark"
_LANES = ("auto", DRIVER, SPARK)
_KINDS = ("batch", "load")

_SMALL_BATCH_ROWS = 1_000
_MANY = 20_000
_FLOOR = 0.02
_JOB = 0.38
_LEAST_JOB = 0.1
_ROW = 10e-6
"""Seconds, in the driver lane, before one is measured."""
_EXCHANGED = 1.5
"""What a row costs a core of Spark's more than one of the driver's, before it is measured."""
_WIDTH = 256
_BYTES_A_SECOND = 200e6
"""Bytes of a row that travels, and how many of those a machine sends."""
_LANE_SMOOTHING = 0.3
"""Weight of the newest measurement."""
_NEWS = 0.1
"""Of a rate: what it moves by before it is written down again. Writing takes as long as hundreds of rows."""
_log = logging.getLogger("viewkeeper.batch")

Rates = dict[str, dict[str, list[float | None]]]
"""Of batches and of loads, for each lane: its floor and what a row costs, as far as they were measured."""


@dataclass(frozen=True)
class Choice:
    """The lane that was taken, and why."""

    lane: str
    why: str


def checked_lane(asked: str) -> str:
    """What a user calls a lane; a wrong name is refused, also when there is nothing to do."""
    if not isinstance(asked, str) or asked not in _LANES:
        raise UnknownName(f"There is no lane {asked!r}.", hint=f"Lanes: {', '.join(_LANES)}.")
    return asked


class Lanes:
    """What is known of the lanes of one database. `threads`: of the driver lane."""

    def __init__(self, directory: Directory, cluster: Callable[[], Cluster | None], threads: int) -> None:
        self._directory = directory
        self._cluster = cluster
        self._threads = threads
        self._lock = threading.Lock()
        self._known: Rates | None = None
        self._written: list[float | None] = []
        self._warm = False

    def choose(self, asked: str, rows: int, kind: str = "batch") -> Choice:
        """Where so many changed or loaded rows are worked on, once for all that is done with them."""
        if checked_lane(asked) != "auto":
            return Choice(asked, "it was asked for")
        cluster = self._cluster()
        if cluster is None:
            return Choice(DRIVER, "no Spark session was given or is running")
        here, there = self._driver(rows, kind), self._spark(rows, kind, cluster)
        lane = SPARK if there < here else DRIVER
        cores = f"{cluster.cores} core{'s' if cluster.cores != 1 else ''}"
        return Choice(lane, f"{rows:,} rows: {here:.2f} s expected in the driver, {there:.2f} s on Spark with {cores}")

    def learn(self, lane: str, rows: int, seconds: float, kind: str = "batch") -> None:
        """Work that was done. The first of a Spark session is not like the others: workers start."""
        if lane == SPARK and not self._warm:
            self._warm = True
            return
        cluster = self._cluster() if lane == SPARK else None
        with self._lock:
            known = self._read()
            rate = known[kind][lane]
            if rows <= _SMALL_BATCH_ROWS:
                rate[0] = _newer(rate[0], seconds)
            elif rows >= _MANY:
                cores = 1 if cluster is None else cluster.cores
                floor = rate[0] if rate[0] is not None else {DRIVER: _FLOOR, SPARK: _FLOOR + _JOB}[lane]
                rate[1] = _newer(rate[1], max(seconds - floor, 0.1 * seconds) * cores / rows)
            is_news = any(map(_differ, self._written, _rates(known)))
            if is_news and (rows >= _MANY or lane == SPARK):  # what is written down changes a choice
                self._write(known)

    def _driver(self, rows: int, kind: str) -> float:
        floor, row = self._rate(DRIVER, kind)
        return floor + rows * row

    def _spark(self, rows: int, kind: str, cluster: Cluster) -> float:
        floor, row = self._rate(SPARK, kind)
        moved = 0.0 if cluster.is_here else rows * _WIDTH / _BYTES_A_SECOND
        return floor + rows * row / cluster.cores + moved

    def _rate(self, lane: str, kind: str) -> tuple[float, float]:
        with self._lock:
            known = self._read()[kind]
        floor, row = known[lane]
        if lane == DRIVER:
            return _FLOOR if floor is None else floor, _ROW if row is None else row
        least, here = self._rate(DRIVER, kind)
        there = here * self._threads * _EXCHANGED if row is None else row
        return least + _JOB if floor is None else max(floor, least + _LEAST_JOB), there

    def _read(self) -> Rates:
        if self._known is None:
            self._known = _noted(self._directory)
            self._written = _rates(self._known)
        return self._known

    def _write(self, known: Rates) -> None:
        path = self._directory / FILE
        try:
            fresh = path.with_name(f".{FILE}")
            fresh.write_text(json.dumps(known))
            fresh.replace(path)
            self._directory.save(FILE)
            self._written = _rates(known)
        except Exception as error:  # a full disk, a directory elsewhere that cannot be reached
            _log.debug("what lanes cost was not noted: %s", error)


def lanes_text(directory: Directory) -> str | None:
    """What EXPLAIN says; None if nothing was measured yet."""
    told = []
    for lane, (floor, row) in _noted(directory)["batch"].items():
        parts = [f"{floor * 1e3:.0f} ms a batch"] if floor is not None else []
        parts += [f"{row * 1e6:.1f} µs a row{' and core' if lane == SPARK else ''}"] if row is not None else []
        told += [f"{lane} {' and '.join(parts)}"] if parts else []
    if not told:
        return None
    return f"lanes: auto takes the one that is expected to be done sooner; measured here: {'; '.join(told)}"


def _noted(directory: Directory) -> Rates:
    """What was noted, or nothing known."""
    found: Rates = {kind: {DRIVER: [None, None], SPARK: [None, None]} for kind in _KINDS}
    try:
        said = json.loads(directory.fetch(FILE, again=not directory.is_local).read_bytes())
        for kind, lanes in found.items():
            for lane in lanes:
                floor, row = said[kind][lane]
                lanes[lane] = [None if n is None else float(n) for n in (floor, row)]
    except Exception as error:
        _log.debug("no lanes were noted: %s", error)
    return found


def _rates(known: Rates) -> list[float | None]:
    return [n for lanes in known.values() for rate in lanes.values() for n in rate]


def _differ(was: float | None, now: float | None) -> bool:
    return now is not None and (was is None or abs(now - was) > _NEWS * was)


def _newer(before: float | None, now: float) -> float:
    return now if before is None else before + _LANE_SMOOTHING * (now - before)


# Who runs a batch's operators: one thread, several, or other processes too. What took less time in batches like it.
#
# Operators of few rows are many short calls, between which Python's lock is held. Who waits for it is woken by each of
# them, so a second thread may win a fifth of the time or lose it: that depends on the machine, and on what else it
# does. Processes have a lock each, but some work is done by each of them, and rows travel.
#
# Batches are alike if the same tables changed, by about as many rows, through the same form of the flow. Of each sort
# the first does not count (files are opened, statements prepared); then each way is tried once, and the best is taken.
# A way that was slower is tried once more soon, since chance makes a batch slower and never faster: of the first two
# times the shorter counts. Then it is tried again now and then.


SEVERAL, ONE, PROCESSES = "several threads", "one thread", "several processes"

_SCHEDULER_SMOOTHING = 0.3
"""Weight of the newest measurement."""
_AGAIN = 16
"""Batches after which a way that was slower is tried again; if it took half as much again, four times as many."""
_SOON = 2
"""Batches after which a way is tried for the second time."""
_MUCH = 1.5
_MOST_SORTS = 64


@dataclass
class _Sort:
    """Batches that are alike: how many there were, the seconds for a row each way, when and how often it was taken."""

    count: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)


class Hands:
    """What is known of the batches of one stage."""

    def __init__(self) -> None:
        self._sorts: OrderedDict[Hashable, _Sort] = OrderedDict()

    def way(self, sort: Hashable, ways: Sequence[str]) -> str:
        """Which of these ways such a batch is to be run."""
        known = self._sorts.get(sort, _Sort())
        untried = [way for way in ways if way not in known.seconds]
        if untried:
            return untried[0]
        best, *others = sorted(ways, key=known.seconds.__getitem__)
        for way in others:
            is_much = known.seconds[way] > _MUCH * known.seconds[best]
            pause = 4 * _AGAIN if is_much else _AGAIN if known.times[way] > 1 else _SOON
            if known.count - known.last[way] >= pause:
                return way
        return best

    def seen(self, sort: Hashable) -> int:
        """How many such batches there were."""
        return self._sorts.get(sort, _Sort()).count

    def learn(self, sort: Hashable, way: str, rows: int, seconds: float) -> None:
        """Such a batch was run so."""
        known = self._sorts.setdefault(sort, _Sort())
        self._sorts.move_to_end(sort)
        known.count += 1
        if known.count > 1:
            now = seconds / max(1, rows)
            before = known.seconds.get(way, now)
            known.times[way] += 1
            known.seconds[way] = (
                min(before, now) if known.times[way] == 2 else before + _SCHEDULER_SMOOTHING * (now - before)
            )
            known.last[way] = known.count
        if len(self._sorts) > _MOST_SORTS:
            self._sorts.popitem(last=False)


# When a batch changes most rows, making the views anew is cheaper than maintaining them.
#
# Measured on TPC-H (docs/decisions): incremental time grows with the changed share of the rows and meets a rebuild's
# between 0.7 and 1. Tables that were loaded after their views were made are beyond it by nature.


SHARE = 0.75
_MIN_REBUILD_ROWS = 50_000


def rows_beyond(store: Store, flow: Flow, after: int, about: int) -> int | None:
    """The changed rows that wait, if they are so many that the views are better made anew; else None.

    `about`: how many wait in all tables. A store that cannot count its changes never says so.
    """
    if about < _MIN_REBUILD_ROWS or not store.capabilities.before_images:
        return None
    tables = list(flow.used)
    waiting = store.pending(after, tables).rows
    if waiting < _MIN_REBUILD_ROWS or waiting < SHARE * sum(store.count(flow.tables[t]) for t in tables):
        return None
    return waiting


def crossover_text(names: list[str]) -> str:
    """What EXPLAIN says of it."""
    return (
        f"rebuilt from the tables, not maintained, in a batch that changes {_MIN_REBUILD_ROWS:,} rows or more and "
        f"at least {SHARE:.0%} of those of all tables that views use ({', '.join(names)})"
    )


# Memory: a batch takes as many write calls as fit, and no more.
#
# What a batch needs grows with its changes: they are decoded, hashed, joined and sorted, each time as new columns. From
# the bytes that they have in the log, times `EXPANSION`, follows how many rows fit into the budget (`store.memory`);
# the rest waits for the next batch. Where memory runs out all the same (one group of millions that is recomputed), the
# batch is tried again with half as many rows, down to one write call. That one cannot be cut: if it does not fit it is
# an error, with nothing published.


EXPANSION = 16
"""Bytes of memory for each byte of the log: a guess on the safe side, which halving corrects where it is not."""

RAN_OUT = (OutOfMemory, MemoryError, duckdb.OutOfMemoryException)


def out_of_memory(where: str) -> OutOfMemory:
    return OutOfMemory(
        f"Memory ran out in {where}.",
        hint="Nothing was published. Write in smaller calls, or give the process more memory.",
    )


def fitting(waiting: Pending, memory: int) -> int | None:
    """The rows of what waits that fit; None if all do."""
    needed = waiting.size * EXPANSION
    return None if needed <= memory else max(1, waiting.rows * memory // needed)
