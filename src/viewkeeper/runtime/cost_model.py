"""Cost models of a batch: they choose the lane, the scheduler, a rebuild, and the number of rows.

The lane model chooses for `auto` the lane with the lower expected time:

    driver   floor + rows · row                    row: seconds of all of the maintainer's threads
    spark    floor + rows · row / cores + moved    row: seconds of one core; moved: rows sent to another machine

Floors and row costs are measured in batches and in backfills, and saved next to the state for the next maintainer:

    lanes.json   {"batch": {"driver": [floor, row], "spark": [floor, row]}, "load": …}

A batch of at most `_MAX_FLOOR_ROWS` rows measures the floor of its lane; one of at least `_MIN_RATE_ROWS` rows measures
the cost of a row. If Spark's row cost was never measured, the driver's is used with a factor for the exchange. The work
that the driver does for every batch is also done for a batch on Spark. Spark's floor is therefore never less than the
driver's plus a job, and one slow backfill in the driver does not send small ones to Spark. The file is only a cache: a
missing or damaged one is ignored.
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
"""Seconds for a row in the driver lane, before it is measured."""
_EXCHANGE_FACTOR = 1.5
"""Cost of a row on a Spark core relative to a driver core, before it is measured."""
_ROW_BYTES = 256
_BYTES_PER_SECOND = 200e6
"""Bytes of a row that is sent to another machine, and bytes that a machine sends in a second."""
_NEWEST_WEIGHT = 0.3
"""Weight of the newest measurement."""
_CHANGE_THRESHOLD = 0.1
"""Relative change of a rate after which the file is written again. Writing takes as long as hundreds of rows."""
_log = logging.getLogger("viewkeeper.batch")

Rates = dict[str, dict[str, list[float | None]]]
"""For batches and for backfills, by lane: [floor, seconds for a row]; None where it was not measured."""


@dataclass(frozen=True)
class LaneChoice:
    """The chosen lane, and the reason."""

    lane: str
    reason: str


def check_lane(lane: str) -> str:
    """Return the lane's name; UnknownName if there is no such lane, also when there is nothing to do."""
    if not isinstance(lane, str) or lane not in _LANES:
        raise UnknownName(f"There is no lane {lane!r}.", hint=f"Lanes: {', '.join(_LANES)}.")
    return lane


class LaneCostModel:
    """Measured costs of the lanes of one database. `threads` is the number of threads of the driver lane."""

    def __init__(self, directory: StateDirectory, cluster: Callable[[], Cluster | None], threads: int) -> None:
        self._directory = directory
        self._cluster = cluster
        self._threads = threads
        self._lock = threading.Lock()
        self._rates: Rates | None = None
        self._saved_rates: list[float | None] = []
        self._is_spark_warm = False

    def choose(self, requested: str, rows: int, work_kind: str = "batch") -> LaneChoice:
        """Choose the lane for a batch or backfill of this many rows; the choice holds for all of its work."""
        if check_lane(requested) != "auto":
            return LaneChoice(requested, "it was asked for")
        cluster = self._cluster()
        if cluster is None:
            return LaneChoice(DRIVER, "no Spark session was given or is running")
        driver, spark = (
            self._driver_seconds(rows, work_kind),
            self._spark_seconds(rows, work_kind, cluster),
        )
        lane = SPARK if spark < driver else DRIVER
        cores = f"{cluster.cores} core{'s' if cluster.cores != 1 else ''}"
        return LaneChoice(
            lane,
            f"{rows:,} rows: {driver:.2f} s expected in the driver, {spark:.2f} s on Spark with {cores}",
        )

    def observe(self, lane: str, rows: int, seconds: float, work_kind: str = "batch") -> None:
        """Record measured work. The first job of a Spark session is ignored, because its workers start in it."""
        if lane == SPARK and not self._is_spark_warm:
            self._is_spark_warm = True
            return
        cluster = self._cluster() if lane == SPARK else None
        with self._lock:
            rates = self._load_rates()
            rate = rates[work_kind][lane]
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
            has_changed = any(map(_has_changed, self._saved_rates, _flatten_rates(rates)))
            if has_changed and (rows >= _MIN_RATE_ROWS or lane == SPARK):  # only these measurements can change a choice
                self._save_rates(rates)

    def _driver_seconds(self, rows: int, work_kind: str) -> float:
        floor, row = self._lane_costs(DRIVER, work_kind)
        return floor + rows * row

    def _spark_seconds(self, rows: int, work_kind: str, cluster: Cluster) -> float:
        floor, row = self._lane_costs(SPARK, work_kind)
        moved = 0.0 if cluster.is_local else rows * _ROW_BYTES / _BYTES_PER_SECOND
        return floor + rows * row / cluster.cores + moved

    def _lane_costs(self, lane: str, work_kind: str) -> tuple[float, float]:
        with self._lock:
            rates = self._load_rates()[work_kind]
        floor, row = rates[lane]
        if lane == DRIVER:
            return _DEFAULT_FLOOR if floor is None else floor, _DEFAULT_ROW_SECONDS if row is None else row
        driver_floor, driver_row = self._lane_costs(DRIVER, work_kind)
        spark_row = driver_row * self._threads * _EXCHANGE_FACTOR if row is None else row
        return driver_floor + _DEFAULT_JOB_SECONDS if floor is None else max(
            floor, driver_floor + _MIN_JOB_SECONDS
        ), spark_row

    def _load_rates(self) -> Rates:
        if self._rates is None:
            self._rates = _read_rates(self._directory)
            self._saved_rates = _flatten_rates(self._rates)
        return self._rates

    def _save_rates(self, rates: Rates) -> None:
        path = self._directory / RATES_FILE
        try:
            temporary = path.with_name(f".{RATES_FILE}")
            temporary.write_text(json.dumps(rates))
            temporary.replace(path)
            self._directory.upload(RATES_FILE)
            self._saved_rates = _flatten_rates(rates)
        except Exception as error:  # a full disk, or an object store that cannot be reached
            _log.debug("what lanes cost was not noted: %s", error)


def lanes_text(directory: StateDirectory) -> str | None:
    """Return the line of EXPLAIN about measured lanes; None if nothing was measured yet."""
    texts = []
    for lane, (floor, row) in _read_rates(directory)["batch"].items():
        parts = [f"{floor * 1e3:.0f} ms a batch"] if floor is not None else []
        parts += [f"{row * 1e6:.1f} µs a row{' and core' if lane == SPARK else ''}"] if row is not None else []
        texts += [f"{lane} {' and '.join(parts)}"] if parts else []
    if not texts:
        return None
    return f"lanes: auto takes the one that is expected to be done sooner; measured here: {'; '.join(texts)}"


def _read_rates(directory: StateDirectory) -> Rates:
    """Return the saved rates; None for each rate that was not saved."""
    rates: Rates = {kind: {DRIVER: [None, None], SPARK: [None, None]} for kind in _WORK_KINDS}
    try:
        saved = json.loads(directory.fetch(RATES_FILE, refresh=not directory.is_local).read_bytes())
        for kind, lanes in rates.items():
            for lane in lanes:
                floor, row = saved[kind][lane]
                lanes[lane] = [None if value is None else float(value) for value in (floor, row)]
    except Exception as error:
        _log.debug("no lanes were noted: %s", error)
    return rates


def _flatten_rates(rates: Rates) -> list[float | None]:
    return [n for lanes in rates.values() for rate in lanes.values() for n in rate]


def _has_changed(before: float | None, after: float | None) -> bool:
    return after is not None and (before is None or abs(after - before) > _CHANGE_THRESHOLD * before)


def _smooth(before: float | None, now: float) -> float:
    return now if before is None else before + _NEWEST_WEIGHT * (now - before)


# The scheduler model chooses one thread, several threads, or worker processes by measured times of a batch's workload
# class.
#
# With small deltas, operators are many short native calls, and Python's GIL is held between them. Each call wakes the
# threads that wait for the GIL, so a second thread changes the batch time by about ±20 %, depending on the machine and
# its other load. Worker processes have a GIL each, but repeat some of the work, and rows are sent to them.
#
# Batches are of one workload class if the same tables changed, by about as many rows, through the same variant of the
# dataflow. The first batch of a class is not measured (files are opened, statements prepared). Then each scheduler is
# tried once, and the fastest is used. A slower one is tried a second time soon; of the first two times the minimum
# counts, because disturbances only slow a batch down. Later it is tried again at longer intervals.


SEVERAL_THREADS, ONE_THREAD, SEVERAL_PROCESSES = "several threads", "one thread", "several processes"

_NEWEST_WEIGHT = 0.3
"""Weight of the newest measurement."""
_RETRY_INTERVAL = 16
"""Batches after which a slower scheduler is tried again; four times as many if it was slower by `_SLOW_FACTOR`."""
_SECOND_TRY_INTERVAL = 2
"""Batches after which a scheduler is tried for the second time."""
_SLOW_FACTOR = 1.5
_MAX_WORKLOADS = 64


@dataclass
class _WorkloadTimes:
    """Measurements of a workload class.

    `count` is the number of its batches. By scheduler: the seconds for a row, the number of the last measured batch,
    and the number of measurements.
    """

    count: int = 0
    seconds_per_row: dict[str, float] = field(default_factory=dict)
    last_tried: dict[str, int] = field(default_factory=dict)
    attempts: Counter[str] = field(default_factory=Counter)


class SchedulerCostModel:
    """Measured times of one executor's batches, by workload class and scheduler."""

    def __init__(self) -> None:
        self._workloads: OrderedDict[Hashable, _WorkloadTimes] = OrderedDict()

    def choose(self, workload: Hashable, schedulers: Sequence[str]) -> str:
        """Choose one of the schedulers for a batch of the workload class."""
        times = self._workloads.get(workload, _WorkloadTimes())
        untried = [scheduler for scheduler in schedulers if scheduler not in times.seconds_per_row]
        if untried:
            return untried[0]
        best, *slower = sorted(schedulers, key=times.seconds_per_row.__getitem__)
        for scheduler in slower:
            is_much_slower = times.seconds_per_row[scheduler] > _SLOW_FACTOR * times.seconds_per_row[best]
            interval = (
                4 * _RETRY_INTERVAL
                if is_much_slower
                else _RETRY_INTERVAL
                if times.attempts[scheduler] > 1
                else _SECOND_TRY_INTERVAL
            )
            if times.count - times.last_tried[scheduler] >= interval:
                return scheduler
        return best

    def batch_count(self, workload: Hashable) -> int:
        """Return the number of batches of the workload class so far."""
        return self._workloads.get(workload, _WorkloadTimes()).count

    def observe(self, workload: Hashable, scheduler: str, rows: int, seconds: float) -> None:
        """Record the time of a batch of the workload class."""
        times = self._workloads.setdefault(workload, _WorkloadTimes())
        self._workloads.move_to_end(workload)
        times.count += 1
        if times.count > 1:
            measured = seconds / max(1, rows)
            before = times.seconds_per_row.get(scheduler, measured)
            times.attempts[scheduler] += 1
            times.seconds_per_row[scheduler] = (
                min(before, measured)
                if times.attempts[scheduler] == 2
                else before + _NEWEST_WEIGHT * (measured - before)
            )
            times.last_tried[scheduler] = times.count
        if len(self._workloads) > _MAX_WORKLOADS:
            self._workloads.popitem(last=False)


# When a batch changes most rows, rebuilding the views is cheaper than maintaining them.
#
# Measured on TPC-H (docs/decisions): incremental time grows with the changed share of the rows and reaches a rebuild's
# time at a share between 0.7 and 1. Tables that are loaded after their views were created always exceed that share.


REBUILD_SHARE = 0.75
_MIN_REBUILD_ROWS = 50_000


def rebuild_rows(store: Store, dataflow: Dataflow, after: int, pending_rows: int) -> int | None:
    """Return the number of pending changed rows if rebuilding the views is cheaper than maintaining them, else None.

    `pending_rows` counts the pending changes of all tables. The result is always None for a store without
    before-images, which cannot count its changes.
    """
    if pending_rows < _MIN_REBUILD_ROWS or not store.capabilities.before_images:
        return None
    tables = list(dataflow.used_columns)
    changed_rows = store.pending(after, tables).rows
    if changed_rows < _MIN_REBUILD_ROWS or changed_rows < REBUILD_SHARE * sum(
        store.count(dataflow.tables[table]) for table in tables
    ):
        return None
    return changed_rows


def rebuild_note(names: list[str]) -> str:
    """Return the line of EXPLAIN about rebuilding."""
    return (
        f"rebuilt from the tables, not maintained, in a batch that changes {_MIN_REBUILD_ROWS:,} rows or more and "
        f"at least {REBUILD_SHARE:.0%} of those of all tables that views use ({', '.join(names)})"
    )


# Memory: a batch takes at most as many write calls as fit into the memory budget.
#
# The memory of a batch grows with its changes: they are decoded, hashed, joined and sorted, each time into new columns.
# Their bytes in the log times `MEMORY_EXPANSION` determine how many rows fit into the budget (`resources.memory`); the
# other calls wait for the next batch. If memory runs out nevertheless (for example when a group of millions of rows is
# recomputed), the batch is repeated with half as many rows, down to one write call. A single call cannot be divided: if
# it does not fit, the batch fails with an error and nothing is published.


MEMORY_EXPANSION = 16
"""Bytes of memory for each byte of the log: a conservative guess; where it is too low, halving corrects it."""

OUT_OF_MEMORY_ERRORS = (OutOfMemory, MemoryError, duckdb.OutOfMemoryException)


def out_of_memory_error(place: str) -> OutOfMemory:
    return OutOfMemory(
        f"Memory ran out in {place}.",
        hint="Nothing was published. Write in smaller calls, or give the process more memory.",
    )


def fitting_rows(pending: PendingChanges, memory: int) -> int | None:
    """Return how many of the pending rows fit into `memory` bytes; None if all do."""
    needed = pending.size * MEMORY_EXPANSION
    return None if needed <= memory else max(1, pending.rows * memory // needed)
