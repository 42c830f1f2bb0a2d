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
from viewkeeper.plan.dataflow.dataflow import Flow
from viewkeeper.resources.directory import Directory
from viewkeeper.resources.duckdb_pool import Crew
from viewkeeper.resources.memory import Memory, hold_on
from viewkeeper.runtime.spark.mapped_files import Mapped
from viewkeeper.runtime.spark.sessions import Reach
from viewkeeper.runtime.spark.staged_changes import Staging
from viewkeeper.state.run import Arrangement, Run
from viewkeeper.state.run_file import Closed, RunEntry, Verified, open_run, write_container

_FLOWS = 8
_DIRECTORIES = 2
_UNUSED = 16
"""Tasks for which a run stays open that none of them asked for."""
_KEPT_ROWS = 100_000
"""A run up to here is kept as it was made; a larger one is mapped when it is needed, so that it can be paged out."""

_HELD = 4
"""The part of a task's memory that is kept from one to the next."""


@dataclass(frozen=True)
class Plan:
    """A flow under its token; `handle` is Spark's broadcast of it."""

    token: str
    handle: Any

    def flow(self) -> Flow:
        found = _flows.get(self.token)
        if found is None:
            found = _flows[self.token] = self.handle.value
            if len(_flows) > _FLOWS:
                _flows.popitem(last=False)
        return found


@dataclass(frozen=True, kw_only=True)
class Errand:
    """What every task of a batch knows, however the batch is divided."""

    plan: Plan
    active: frozenset[str]
    manifest: Mapping[str, tuple[RunEntry, ...]]
    directory: str
    number: int
    durable: bool
    memory: int
    """Bytes that each task may take."""
    threads: int
    """That each task may use."""
    reach: Reach | None = None
    """What a task must see before it begins."""


class Worker:
    """One for each state directory that this process works on. On an executor it holds on to its memory."""

    def __init__(self, directory: str, threads: int, memory: int) -> None:
        self.directory = Directory(directory)
        self.memory = Memory(memory).beside(self.directory)
        self.crew = Crew(threads, self.memory, expressions.setup)
        self.is_elsewhere = not self.directory.is_local
        self._made = False
        self._tasks = 0
        self._runs: dict[RunEntry, Run] = {}
        self._used: dict[RunEntry, int] = {}
        self._mapped = Mapped()
        self._verified = _verified()
        if _on_executor():
            hold_on(memory // _HELD)

    def begin(self, memory: int) -> None:
        """A task begins: runs that none has asked for in a while are let go of, since their files may be gone."""
        self.memory = self.crew.memory = Memory(memory).beside(self.directory)
        self._tasks += 1
        self._let_go([e for e, task in self._used.items() if task + _UNUSED < self._tasks])

    def let_go_of_removed(self) -> None:
        """Runs whose files were removed: what is mapped of them takes space on the disk."""
        gone = {file for file in {e.file for e in self._runs} if not (self.directory / file).exists()}
        self._let_go([e for e in self._runs if e.file in gone])

    def _let_go(self, entries: Sequence[RunEntry]) -> None:
        for entry in entries:
            del self._runs[entry], self._used[entry]
        if entries:
            self._mapped.keep_only({self.directory / e.file for e in self._runs})

    def arrangement(self, errand: Errand, slot: str) -> Arrangement:
        return Arrangement(tuple(self.run(e) for e in errand.manifest.get(slot, ())))

    def run(self, entry: RunEntry) -> Run:
        found = self._runs.get(entry)
        if found is None:
            find = partial(open_run, self.directory, entry, True, self._verified)
            found = self._runs[entry] = Closed(entry, find) if self.is_elsewhere else find()
            if not self.is_elsewhere:
                self._mapped.keep(self.directory / entry.file)
        self._used[entry] = self._tasks
        return found

    def write(self, errand: Errand, part: str, runs: Mapping[str, Run]) -> list[RunEntry]:
        """One container file with these runs; its name is that of this attempt alone."""
        if not runs:
            return []
        self._make()
        name = f"b{errand.number}-{part}-{secrets.token_hex(6)}.vkr"
        entries = write_container(self.directory, name, runs, fsync=errand.durable)
        for entry in entries:  # one that was written in pieces is no piece of itself
            if entry.rows == runs[entry.slot].num_rows <= _KEPT_ROWS:
                self._runs[entry], self._used[entry] = runs[entry.slot], self._tasks
        return entries

    def staging(self, errand: Errand) -> Staging:
        """A file for rows of views."""
        self._make()
        return Staging(self.directory, errand.number)

    def _make(self) -> None:
        if not self._made:  # where a worker runs on another machine its copies are new
            self.directory.make()
            self._made = True

    def close(self) -> None:
        self.crew.close()
        self._runs.clear()
        self._mapped.keep_only(())


def _verified() -> Verified | None:
    """Where the workers of an executor tell each other what they have verified: Spark's directory there, which ends
    with the application. None outside of a worker."""
    if not _on_executor():
        return None
    from pyspark import SparkFiles

    return Verified(Path(SparkFiles.getRootDirectory()) / "viewkeeper-verified")


_flows: OrderedDict[str, Flow] = OrderedDict()
_workers: OrderedDict[str, Worker] = OrderedDict()
_settled: set[str] = set()
"""Those of both that were there when garbage was last looked for among everything."""


def at(errand: Errand) -> Worker:
    """This process's worker for the errand."""
    found = _workers.get(errand.directory)
    if found is not None and found.crew.size < errand.threads:
        _workers.pop(errand.directory).close()
        found = None
    if found is None:
        found = _workers[errand.directory] = Worker(errand.directory, errand.threads, errand.memory)
        if len(_workers) > _DIRECTORIES:
            _workers.popitem(last=False)[1].close()
    _workers.move_to_end(errand.directory)
    found.begin(errand.memory)
    _settle()
    return found


def let_go_of_removed() -> None:
    """Nothing that this process keeps is of files that are no more."""
    for each in _workers.values():
        each.let_go_of_removed()


def _settle() -> None:
    """What stays is passed over when garbage is looked for. Spark has its workers do that after every task, and to look
    at all our code and plans takes longer than many a task: 45 ms."""
    there = {*_flows, *_workers}
    if there != _settled and _on_executor():
        _settled.clear()
        _settled.update(there)
        gc.unfreeze()  # of what has gone since, circles too
        gc.collect()
        gc.freeze()


def _on_executor() -> bool:
    files = sys.modules.get("pyspark.core.files")  # an executor's Python has loaded it
    return files is not None and bool(files.SparkFiles._is_running_on_worker)
