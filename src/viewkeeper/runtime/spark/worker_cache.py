"""The worker cache: what a Spark Python worker keeps between tasks, so that a batch does not pay start-up costs again.

    dataflows   by token: broadcast once for each session, read once by each worker
    pool        DuckDB connections with their prepared statements
    runs        mapped and verified state files, and small runs that tasks of this worker wrote themselves

From state in an object store a task reads only the pieces that contain its hashes. A file that one worker of an
executor has verified is not verified again by the others.

Everything here is a cache: a new worker rebuilds it from the task context that each batch sends.
"""

from __future__ import annotations

import gc
import secrets
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from viewkeeper import expressions
from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.resources.duckdb_pool import DuckDBPool
from viewkeeper.resources.memory import MemoryBudget, retain_freed_memory
from viewkeeper.runtime.spark.mapped_files import MappedFiles
from viewkeeper.runtime.spark.sessions import ReachabilityCheck
from viewkeeper.runtime.spark.staged_changes import StagingFile
from viewkeeper.state.run import Arrangement, Run
from viewkeeper.state.run_file import LazyRun, RunEntry, VerificationLog, open_run, write_run_file

_MAX_DATAFLOWS = 8
_MAX_DIRECTORIES = 2
_MAX_UNUSED_TASKS = 16
"""Number of tasks after which an unused run is closed."""
_MAX_IN_MEMORY_ROWS = 100_000
"""A new run of at most this many rows is kept in memory; a larger one is mapped when needed, so it can be paged out."""

_RETAINED_MEMORY_DIVISOR = 4
"""Freed memory up to this fraction of a task's memory is retained for the next task."""


@dataclass(frozen=True)
class DataflowHandle:
    """A dataflow's token, and its Spark broadcast."""

    token: str
    broadcast: Any

    def load(self) -> Dataflow:
        dataflow = _dataflows.get(self.token)
        if dataflow is None:
            dataflow = _dataflows[self.token] = self.broadcast.value
            if len(_dataflows) > _MAX_DATAFLOWS:
                _dataflows.popitem(last=False)
        return dataflow


@dataclass(frozen=True, kw_only=True)
class TaskContext:
    """The context that every task of a batch receives, however the batch is divided."""

    dataflow_handle: DataflowHandle
    active: frozenset[str]
    manifest: Mapping[str, tuple[RunEntry, ...]]
    directory: str
    number: int
    durable: bool
    memory: int
    """Memory budget of each task, in bytes."""
    threads: int
    """Number of threads of each task."""
    reachability: ReachabilityCheck | None = None
    """The check that the task can reach the state, if one is needed."""


class WorkerCache:
    """The cache for one state directory in this process. On an executor it retains freed memory."""

    def __init__(self, directory: str, threads: int, memory: int) -> None:
        self.directory = StateDirectory(directory)
        self.memory = MemoryBudget(memory).with_spill_directory(self.directory)
        self.pool = DuckDBPool(threads, self.memory, expressions.register_functions)
        self.is_remote = not self.directory.is_local
        self._is_created = False
        self._task_count = 0
        self._runs: dict[RunEntry, Run] = {}
        self._last_used: dict[RunEntry, int] = {}
        self._mapped_files = MappedFiles()
        self._verified = _verified_files()
        if _is_on_executor():
            retain_freed_memory(memory // _RETAINED_MEMORY_DIVISOR)

    def begin_task(self, memory: int) -> None:
        """Begin a task: set its memory budget, and close unused runs, since their files may be deleted."""
        self.memory = self.pool.memory = MemoryBudget(memory).with_spill_directory(self.directory)
        self._task_count += 1
        self._close_runs([e for e, task in self._last_used.items() if task + _MAX_UNUSED_TASKS < self._task_count])

    def close_removed_runs(self) -> None:
        """Close runs whose files were deleted, because mapped files still occupy disk space."""
        deleted_files = {file for file in {e.file for e in self._runs} if not (self.directory / file).exists()}
        self._close_runs([e for e in self._runs if e.file in deleted_files])

    def _close_runs(self, entries: Sequence[RunEntry]) -> None:
        for entry in entries:
            del self._runs[entry], self._last_used[entry]
        if entries:
            self._mapped_files.retain_only({self.directory / e.file for e in self._runs})

    def arrangement(self, context: TaskContext, slot: str) -> Arrangement:
        return Arrangement(tuple(self.run(e) for e in context.manifest.get(slot, ())))

    def run(self, entry: RunEntry) -> Run:
        run = self._runs.get(entry)
        if run is None:
            open_entry = partial(open_run, self.directory, entry, True, self._verified)
            run = self._runs[entry] = LazyRun(entry, open_entry) if self.is_remote else open_entry()
            if not self.is_remote:
                self._mapped_files.add(self.directory / entry.file)
        self._last_used[entry] = self._task_count
        return run

    def write(self, context: TaskContext, partition: str, runs: Mapping[str, Run]) -> list[RunEntry]:
        """Write the runs to one run file, whose name is unique to this attempt."""
        if not runs:
            return []
        self._create_directory()
        name = f"b{context.number}-{partition}-{secrets.token_hex(6)}.vkr"
        entries = write_run_file(self.directory, name, runs, fsync=context.durable)
        for entry in entries:  # an entry of a run that was written in pieces has fewer rows
            if entry.rows == runs[entry.slot].num_rows <= _MAX_IN_MEMORY_ROWS:
                self._runs[entry], self._last_used[entry] = runs[entry.slot], self._task_count
        return entries

    def create_staging_file(self, context: TaskContext) -> StagingFile:
        """Return a staging file for rows of views."""
        self._create_directory()
        return StagingFile(self.directory, context.number)

    def _create_directory(self) -> None:
        if not self._is_created:  # on another machine the local directory may not exist yet
            self.directory.create()
            self._is_created = True

    def close(self) -> None:
        self.pool.close()
        self._runs.clear()
        self._mapped_files.retain_only(())


def _verified_files() -> VerificationLog | None:
    """Return the log by which an executor's workers share which files are verified; None outside of a worker.

    It is in Spark's directory on the executor, which is deleted with the application.
    """
    if not _is_on_executor():
        return None
    from pyspark import SparkFiles

    return VerificationLog(Path(SparkFiles.getRootDirectory()) / "viewkeeper-verified")


_dataflows: OrderedDict[str, Dataflow] = OrderedDict()
_caches: OrderedDict[str, WorkerCache] = OrderedDict()
_frozen_names: set[str] = set()
"""Names of dataflows and caches at the last full garbage collection of Python objects."""


def cache_for(context: TaskContext) -> WorkerCache:
    """Return this process's cache for a task, and begin the task."""
    cache = _caches.get(context.directory)
    if cache is not None and cache.pool.size < context.threads:
        _caches.pop(context.directory).close()
        cache = None
    if cache is None:
        cache = _caches[context.directory] = WorkerCache(context.directory, context.threads, context.memory)
        if len(_caches) > _MAX_DIRECTORIES:
            _caches.popitem(last=False)[1].close()
    _caches.move_to_end(context.directory)
    cache.begin_task(context.memory)
    _freeze_objects()
    return cache


def close_removed_runs() -> None:
    """Close all cached runs of this process whose files were deleted."""
    for cache in _caches.values():
        cache.close_removed_runs()


def _freeze_objects() -> None:
    """Freeze long-lived objects, so that Python's garbage collector skips them.

    Spark's workers run the collector after every task; traversing all code and plans takes 45 ms, longer than many
    tasks.
    """
    current = {*_dataflows, *_caches}
    if current != _frozen_names and _is_on_executor():
        _frozen_names.clear()
        _frozen_names.update(current)
        gc.unfreeze()  # collects dropped objects too, including cycles
        gc.collect()
        gc.freeze()


def _is_on_executor() -> bool:
    files = sys.modules.get("pyspark.core.files")  # a Python worker of an executor has imported this module
    return files is not None and bool(files.SparkFiles._is_running_on_worker)
