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
from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.runtime.spark.sessions import Cluster
from viewkeeper.store.contract.store import PendingChanges, Store

RATES_FILE = "lanes.json"
DRIVER, SPARK = "driver", "spark"
_LANES = ("auto", DRIVER, SPARK)
_WORK_KINDS = ("batch", "load")

_MAX_FLOOR_ROWS = 1_000
_MIN_RATE_ROWS = 20_000
_DEFAULT_FLOOR = 0.02
_DEFAULT_JOB_SECONDS = 0.38
_MIN_JOB_SECONDS = 0.1
_DEFAULT_ROW_SECONDS = 10e-6
"""Seconds, in the driver lane, before one is measured."""
_EXCHANGE_FACTOR = 1.5
"""What a row costs a core of Spark's more than one of the driver's, before it is measured."""
_ROW_BYTES = 256
_BYTES_PER_SECOND = 200e6
"""Bytes of a row that travels, and how many of those a machine sends."""
_NEWEST_WEIGHT = 0.3
"""Weight of the newest measurement."""
_CHANGE_THRESHOLD = 0.1
"""Of a rate: what it moves by before it is written down again. Writing takes as long as hundreds of rows."""
_log = logging.getLogger("viewkeeper.batch")

Rates = dict[str, dict[str, list[float | None]]]
"""Of batches and of loads, for each lane: its floor and what a row costs, as far as they were measured."""


@dataclass(frozen=True)
class LaneChoice:
    """The lane that was taken, and why."""

    lane: str
    reason: str


def check_lane(lane: str) -> str:
    """What a user calls a lane; a wrong name is refused, also when there is nothing to do."""
    if not isinstance(lane, str) or lane not in _LANES:
        raise UnknownName(f"There is no lane {lane!r}.", hint=f"Lanes: {', '.join(_LANES)}.")
    return lane


class LaneCostModel:
    """What is known of the lanes of one database. `threads`: of the driver lane."""

    def __init__(self, directory: StateDirectory, cluster: Callable[[], Cluster | None], threads: int) -> None:
        self._directory = directory
        self._cluster = cluster
        self._threads = threads
        self._lock = threading.Lock()
        self._rates: Rates | None = None
        self._saved_rates: list[float | None] = []
        self._is_spark_warm = False

    def choose(self, requested: str, rows: int, work_kind: str = "batch") -> LaneChoice:
        """Where so many changed or loaded rows are worked on, once for all that is done with them."""
        if check_lane(requested) != "auto":
            return LaneChoice(requested, "it was asked for")
        cluster = self._cluster()
        if cluster is None:
            return LaneChoice(DRIVER, "no Spark session was given or is running")
        here, there = self._driver_seconds(rows, work_kind), self._spark_seconds(rows, work_kind, cluster)
        lane = SPARK if there < here else DRIVER
        cores = f"{cluster.cores} core{'s' if cluster.cores != 1 else ''}"
        return LaneChoice(
            lane, f"{rows:,} rows: {here:.2f} s expected in the driver, {there:.2f} s on Spark with {cores}"
        )

    def observe(self, lane: str, rows: int, seconds: float, work_kind: str = "batch") -> None:
        """Work that was done. The first of a Spark session is not like the others: workers start."""
        if lane == SPARK and not self._is_spark_warm:
            self._is_spark_warm = True
            return
        cluster = self._cluster() if lane == SPARK else None
        with self._lock:
            known = self._load_rates()
            rate = known[work_kind][lane]
            if rows <= _MAX_FLOOR_ROWS:
                rate[0] = _smooth(rate[0], seconds)
            elif rows >= _MIN_RATE_ROWS:
                cores = 1 if cluster is None else cluster.cores
                floor = (
                    rate[0]
                    if rate[0] is not None
                    else {DRIVER: _DEFAULT_FLOOR, SPARK: _DEFAULT_FLOOR + _DEFAULT_JOB_SECONDS}[lane]
                )
                rate[1] = _smooth(rate[1], max(seconds - floor, 0.1 * seconds) * cores / rows)
            is_news = any(map(_has_changed, self._saved_rates, _flatten_rates(known)))
            if is_news and (rows >= _MIN_RATE_ROWS or lane == SPARK):  # what is written down changes a choice
                self._save_rates(known)

    def _driver_seconds(self, rows: int, work_kind: str) -> float:
        floor, row = self._lane_costs(DRIVER, work_kind)
        return floor + rows * row

    def _spark_seconds(self, rows: int, work_kind: str, cluster: Cluster) -> float:
        floor, row = self._lane_costs(SPARK, work_kind)
        moved = 0.0 if cluster.is_local else rows * _ROW_BYTES / _BYTES_PER_SECOND
        return floor + rows * row / cluster.cores + moved

    def _lane_costs(self, lane: str, work_kind: str) -> tuple[float, float]:
        with self._lock:
            known = self._load_rates()[work_kind]
        floor, row = known[lane]
        if lane == DRIVER:
            return _DEFAULT_FLOOR if floor is None else floor, _DEFAULT_ROW_SECONDS if row is None else row
        least, here = self._lane_costs(DRIVER, work_kind)
        there = here * self._threads * _EXCHANGE_FACTOR if row is None else row
        return least + _DEFAULT_JOB_SECONDS if floor is None else max(floor, least + _MIN_JOB_SECONDS), there

    def _load_rates(self) -> Rates:
        if self._rates is None:
            self._rates = _read_rates(self._directory)
            self._saved_rates = _flatten_rates(self._rates)
        return self._rates

    def _save_rates(self, rates: Rates) -> None:
        path = self._directory / RATES_FILE
        try:
            fresh = path.with_name(f".{RATES_FILE}")
            fresh.write_text(json.dumps(rates))
            fresh.replace(path)
            self._directory.upload(RATES_FILE)
            self._saved_rates = _flatten_rates(rates)
        except Exception as error:  # a full disk, a directory elsewhere that cannot be reached
            _log.debug("what lanes cost was not noted: %s", error)


def lanes_text(directory: StateDirectory) -> str | None:
    """What EXPLAIN says; None if nothing was measured yet."""
    told = []
    for lane, (floor, row) in _read_rates(directory)["batch"].items():
        parts = [f"{floor * 1e3:.0f} ms a batch"] if floor is not None else []
        parts += [f"{row * 1e6:.1f} µs a row{' and core' if lane == SPARK else ''}"] if row is not None else []
        told += [f"{lane} {' and '.join(parts)}"] if parts else []
    if not told:
        return None
    return f"lanes: auto takes the one that is expected to be done sooner; measured here: {'; '.join(told)}"


def _read_rates(directory: StateDirectory) -> Rates:
    """What was noted, or nothing known."""
    found: Rates = {kind: {DRIVER: [None, None], SPARK: [None, None]} for kind in _WORK_KINDS}
    try:
        said = json.loads(directory.fetch(RATES_FILE, refresh=not directory.is_local).read_bytes())
        for kind, lanes in found.items():
            for lane in lanes:
                floor, row = said[kind][lane]
                lanes[lane] = [None if n is None else float(n) for n in (floor, row)]
    except Exception as error:
        _log.debug("no lanes were noted: %s", error)
    return found


def _flatten_rates(rates: Rates) -> list[float | None]:
    return [n for lanes in rates.values() for rate in lanes.values() for n in rate]


def _has_changed(before: float | None, after: float | None) -> bool:
    return after is not None and (before is None or abs(after - before) > _CHANGE_THRESHOLD * before)


def _smooth(before: float | None, now: float) -> float:
    return now if before is None else before + _NEWEST_WEIGHT * (now - before)


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


SEVERAL_THREADS, ONE_THREAD, SEVERAL_PROCESSES = "several threads", "one thread", "several processes"

_NEWEST_WEIGHT = 0.3
"""Weight of the newest measurement."""
_RETRY_INTERVAL = 16
"""Batches after which a way that was slower is tried again; if it took half as much again, four times as many."""
_SECOND_TRY_INTERVAL = 2
"""Batches after which a way is tried for the second time."""
_SLOW_FACTOR = 1.5
_MAX_WORKLOADS = 64


@dataclass
class _WorkloadTimes:
    """Batches that are alike: how many there were, the seconds for a row each way, when and how often it was taken."""

    count: int = 0
    seconds_per_row: dict[str, float] = field(default_factory=dict)
    last_tried: dict[str, int] = field(default_factory=dict)
    attempts: Counter[str] = field(default_factory=Counter)


class SchedulerCostModel:
    """What is known of the batches of one stage."""

    def __init__(self) -> None:
        self._workloads: OrderedDict[Hashable, _WorkloadTimes] = OrderedDict()

    def choose(self, workload: Hashable, schedulers: Sequence[str]) -> str:
        """Which of these ways such a batch is to be run."""
        known = self._workloads.get(workload, _WorkloadTimes())
        untried = [way for way in schedulers if way not in known.seconds_per_row]
        if untried:
            return untried[0]
        best, *others = sorted(schedulers, key=known.seconds_per_row.__getitem__)
        for way in others:
            is_much = known.seconds_per_row[way] > _SLOW_FACTOR * known.seconds_per_row[best]
            pause = (
                4 * _RETRY_INTERVAL if is_much else _RETRY_INTERVAL if known.attempts[way] > 1 else _SECOND_TRY_INTERVAL
            )
            if known.count - known.last_tried[way] >= pause:
                return way
        return best

    def batch_count(self, workload: Hashable) -> int:
        """How many such batches there were."""
        return self._workloads.get(workload, _WorkloadTimes()).count

    def observe(self, workload: Hashable, scheduler: str, rows: int, seconds: float) -> None:
        """Such a batch was run so."""
        known = self._workloads.setdefault(workload, _WorkloadTimes())
        self._workloads.move_to_end(workload)
        known.count += 1
        if known.count > 1:
            now = seconds / max(1, rows)
            before = known.seconds_per_row.get(scheduler, now)
            known.attempts[scheduler] += 1
            known.seconds_per_row[scheduler] = (
                min(before, now) if known.attempts[scheduler] == 2 else before + _NEWEST_WEIGHT * (now - before)
            )
            known.last_tried[scheduler] = known.count
        if len(self._workloads) > _MAX_WORKLOADS:
            self._workloads.popitem(last=False)


# When a batch changes most rows, making the views anew is cheaper than maintaining them.
#
# Measured on TPC-H (docs/decisions): incremental time grows with the changed share of the rows and meets a rebuild's
# between 0.7 and 1. Tables that were loaded after their views were made are beyond it by nature.


REBUILD_SHARE = 0.75
_MIN_REBUILD_ROWS = 50_000


def rebuild_rows(store: Store, dataflow: Dataflow, after: int, pending_rows: int) -> int | None:
    """The changed rows that wait, if they are so many that the views are better made anew; else None.

    `about`: how many wait in all tables. A store that cannot count its changes never says so.
    """
    if pending_rows < _MIN_REBUILD_ROWS or not store.capabilities.before_images:
        return None
    tables = list(dataflow.used_columns)
    waiting = store.pending(after, tables).rows
    if waiting < _MIN_REBUILD_ROWS or waiting < REBUILD_SHARE * sum(store.count(dataflow.tables[t]) for t in tables):
        return None
    return waiting


def rebuild_note(names: list[str]) -> str:
    """What EXPLAIN says of it."""
    return (
        f"rebuilt from the tables, not maintained, in a batch that changes {_MIN_REBUILD_ROWS:,} rows or more and "
        f"at least {REBUILD_SHARE:.0%} of those of all tables that views use ({', '.join(names)})"
    )


# Memory: a batch takes as many write calls as fit, and no more.
#
# What a batch needs grows with its changes: they are decoded, hashed, joined and sorted, each time as new columns. From
# the bytes that they have in the log, times `EXPANSION`, follows how many rows fit into the budget (`store.memory`);
# the rest waits for the next batch. Where memory runs out all the same (one group of millions that is recomputed), the
# batch is tried again with half as many rows, down to one write call. That one cannot be cut: if it does not fit it is
# an error, with nothing published.


MEMORY_EXPANSION = 16
"""Bytes of memory for each byte of the log: a guess on the safe side, which halving corrects where it is not."""

OUT_OF_MEMORY_ERRORS = (OutOfMemory, MemoryError, duckdb.OutOfMemoryException)


def out_of_memory_error(place: str) -> OutOfMemory:
    return OutOfMemory(
        f"Memory ran out in {place}.",
        hint="Nothing was published. Write in smaller calls, or give the process more memory.",
    )


def fitting_rows(pending: PendingChanges, memory: int) -> int | None:
    """The rows of what waits that fit; None if all do."""
    needed = pending.size * MEMORY_EXPANSION
    return None if needed <= memory else max(1, pending.rows * memory // needed)
