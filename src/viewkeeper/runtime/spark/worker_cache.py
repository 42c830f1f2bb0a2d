"""What a Python worker keeps between tasks, so that a batch costs its rows and not its beginnings.

    flows   by a token: sent once a session, read once a worker
    crew    DuckDBs with the statements that they have prepared
    runs    state files that were mapped and verified, and small runs that tasks of this worker wrote themselves

Of state in an object store a task reads the pieces that its hashes are in. What one worker of an executor has verified
the others take as it is.

None of it is truth: a worker that has just joined makes the same of what each batch names.
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
"""Tasks for which a run stays open that none of them asked for."""
_MAX_IN_MEMORY_ROWS = 100_000
"""A run up to here is kept as it was made; a larger one is mapped when it is needed, so that it can be paged out."""

_RETAINED_MEMORY_DIVISOR = 4
"""The part of a task's memory that is kept from one to the next."""


@dataclass(frozen=True)
class DataflowHandle:
    """A flow under its token; `handle` is Spark's broadcast of it."""

    token: str
    broadcast: Any

    def load(self) -> Dataflow:
        found = _dataflows.get(self.token)
        if found is None:
            found = _dataflows[self.token] = self.broadcast.value
            if len(_dataflows) > _MAX_DATAFLOWS:
                _dataflows.popitem(last=False)
        return found


@dataclass(frozen=True, kw_only=True)
class TaskContext:
    """What every task of a batch knows, however the batch is divided."""

    dataflow_handle: DataflowHandle
    active: frozenset[str]
    manifest: Mapping[str, tuple[RunEntry, ...]]
    directory: str
    number: int
    durable: bool
    memory: int
    """Bytes that each task may take."""
    threads: int
    """That each task may use."""
    reachability: ReachabilityCheck | None = None
    """What a task must see before it begins."""


class WorkerCache:
    """One for each state directory that this process works on. On an executor it holds on to its memory."""

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
        """A task begins: runs that none has asked for in a while are let go of, since their files may be gone."""
        self.memory = self.pool.memory = MemoryBudget(memory).with_spill_directory(self.directory)
        self._task_count += 1
        self._close_runs([e for e, task in self._last_used.items() if task + _MAX_UNUSED_TASKS < self._task_count])

    def close_removed_runs(self) -> None:
        """Runs whose files were removed: what is mapped of them takes space on the disk."""
        gone = {file for file in {e.file for e in self._runs} if not (self.directory / file).exists()}
        self._close_runs([e for e in self._runs if e.file in gone])

    def _close_runs(self, entries: Sequence[RunEntry]) -> None:
        for entry in entries:
            del self._runs[entry], self._last_used[entry]
        if entries:
            self._mapped_files.retain_only({self.directory / e.file for e in self._runs})

    def arrangement(self, context: TaskContext, slot: str) -> Arrangement:
        return Arrangement(tuple(self.run(e) for e in context.manifest.get(slot, ())))

    def run(self, entry: RunEntry) -> Run:
        found = self._runs.get(entry)
        if found is None:
            find = partial(open_run, self.directory, entry, True, self._verified)
            found = self._runs[entry] = LazyRun(entry, find) if self.is_remote else find()
            if not self.is_remote:
                self._mapped_files.add(self.directory / entry.file)
        self._last_used[entry] = self._task_count
        return found

    def write(self, context: TaskContext, partition: str, runs: Mapping[str, Run]) -> list[RunEntry]:
        """One container file with these runs; its name is that of this attempt alone."""
        if not runs:
            return []
        self._create_directory()
        name = f"b{context.number}-{partition}-{secrets.token_hex(6)}.vkr"
        entries = write_run_file(self.directory, name, runs, fsync=context.durable)
        for entry in entries:  # one that was written in pieces is no piece of itself
            if entry.rows == runs[entry.slot].num_rows <= _MAX_IN_MEMORY_ROWS:
                self._runs[entry], self._last_used[entry] = runs[entry.slot], self._task_count
        return entries

    def create_staging_file(self, context: TaskContext) -> StagingFile:
        """A file for rows of views."""
        self._create_directory()
        return StagingFile(self.directory, context.number)

    def _create_directory(self) -> None:
        if not self._is_created:  # where a worker runs on another machine its copies are new
            self.directory.create()
            self._is_created = True

    def close(self) -> None:
        self.pool.close()
        self._runs.clear()
        self._mapped_files.retain_only(())


def _verified_files() -> VerificationLog | None:
    """Where the workers of an executor tell each other what they have verified: Spark's directory there, which ends
    with the application. None outside of a worker."""
    if not _is_on_executor():
        return None
    from pyspark import SparkFiles

    return VerificationLog(Path(SparkFiles.getRootDirectory()) / "viewkeeper-verified")


_dataflows: OrderedDict[str, Dataflow] = OrderedDict()
_caches: OrderedDict[str, WorkerCache] = OrderedDict()
_frozen_names: set[str] = set()
"""Those of both that were there when garbage was last looked for among everything."""


def cache_for(context: TaskContext) -> WorkerCache:
    """This process's worker for the errand."""
    found = _caches.get(context.directory)
    if found is not None and found.pool.size < context.threads:
        _caches.pop(context.directory).close()
        found = None
    if found is None:
        found = _caches[context.directory] = WorkerCache(context.directory, context.threads, context.memory)
        if len(_caches) > _MAX_DIRECTORIES:
            _caches.popitem(last=False)[1].close()
    _caches.move_to_end(context.directory)
    found.begin_task(context.memory)
    _freeze_objects()
    return found


def close_removed_runs() -> None:
    """Nothing that this process keeps is of files that are no more."""
    for each in _caches.values():
        each.close_removed_runs()


def _freeze_objects() -> None:
    """What stays is passed over when garbage is looked for. Spark has its workers do that after every task, and to look
    at all our code and plans takes longer than many a task: 45 ms."""
    there = {*_dataflows, *_caches}
    if there != _frozen_names and _is_on_executor():
        _frozen_names.clear()
        _frozen_names.update(there)
        gc.unfreeze()  # of what has gone since, circles too
        gc.collect()
        gc.freeze()


def _is_on_executor() -> bool:
    files = sys.modules.get("pyspark.core.files")  # an executor's Python has loaded it
    return files is not None and bool(files.SparkFiles._is_running_on_worker)
