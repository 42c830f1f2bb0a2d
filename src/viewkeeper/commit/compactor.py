"""Merging (elsewhere compaction): an arrangement stays a short list of runs, off the critical path.

Runs merge like an LSM tree, and merging consolidates. A merge is a manifest change: the merged run is written beside
the old ones by a thread of its own, and a later batch lists it in their place. Until then, and after a crash, the old
runs count. Runs are immutable, so the thread and the batches do not meet.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from viewkeeper import failpoints
from viewkeeper.errors import CorruptRun
from viewkeeper.model.threads import ThreadPool
from viewkeeper.operators.operator import Operator
from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.object_store import run_parallel
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.runtime.operator_errors import OperatorError, attribute_errors
from viewkeeper.state.compaction import choose_merges, run_by_hash_ranges
from viewkeeper.state.open_state import OpenState, is_kept_in_memory
from viewkeeper.state.run import Run
from viewkeeper.state.run_file import RunEntry, group_pieces, write_run_file

MAX_UNMERGED_RUNS = 16
"""An arrangement with more runs makes the next batch wait for the merge that is under way."""


@dataclass(frozen=True)
class _CompactionTask:
    slot: str
    operator: Operator
    entries: tuple[RunEntry, ...]
    openers: tuple[Callable[[], Run], ...]
    """A run may have to be mapped and verified: no batch waits for that."""


@dataclass(frozen=True)
class _CompactionResult:
    """What was written, the runs of it that are at hand for the batch that lists them first, and what failed."""

    entries: list[RunEntry]
    runs: Mapping[RunEntry, Run]
    errors: list[OperatorError]


class Compactor:
    """Merges one set of slots at a time, in the background."""

    def __init__(self, state: OpenState, durable: bool, memory: MemoryBudget) -> None:
        self.state = state
        self._memory = memory
        self.durable = durable
        self._thread = ThreadPool(1, thread_name_prefix="viewkeeper-merge")
        self._future: Future[_CompactionResult] | None = None
        self._tasks: Sequence[_CompactionTask] = ()
        self._file: str | None = None
        self._changed_slots: set[str] = set()
        self._merged_count = 0
        self._seconds = 0.0
        self._recent_merges: list[tuple[float, float]] = []

    @cached_property
    def _statements(self) -> PreparedStatements:
        return PreparedStatements(threads=1, memory=self._memory)

    @property
    def files(self) -> frozenset[str]:
        """Files that are being written, or that no manifest lists yet, and those that are read for them."""
        if self._file is None:
            return frozenset()
        return frozenset([self._file, *(entry.file for task in self._tasks for entry in task.entries)])

    def start(self, dataflow: Dataflow, batch: int, changed: Iterable[str]) -> None:
        """Begin to merge what has too many runs, unless a merge is under way already."""
        self._changed_slots.update(changed)
        if self._future is not None:
            return
        tasks = []
        for slot in self._changed_slots:
            entries = self.state.manifest.runs.get(slot, ())
            operator = dataflow.operators.get(slot.split("/")[0])
            runs = group_pieces(entries)
            newest = choose_merges([sum(e.rows for e in pieces) for pieces in runs])
            if newest and operator is not None:
                merged = tuple(e for pieces in runs[-newest:] for e in pieces)
                tasks.append(_CompactionTask(slot, operator, merged, tuple(map(self.state.run_opener, merged))))
        self._changed_slots.clear()
        if tasks:
            self._tasks = tasks
            self._file = f"b{batch}-m{secrets.token_hex(4)}.vkr"
            self._future = self._thread.submit(self._merge, tasks, self._file)

    def adopt(self) -> list[OperatorError]:
        """Put finished merges into the state's manifest; waits for one only when an arrangement has very many runs.

        Returns the operators that raised an error in theirs; their runs stay as they are. A fault of the process is
        raised, with everything as if no merge had begun."""
        if self._future is None:
            return []
        if not self._future.done() and all(
            len(r) <= MAX_UNMERGED_RUNS or len(group_pieces(r)) <= MAX_UNMERGED_RUNS
            for r in self.state.manifest.runs.values()
        ):
            return []
        work, tasks = self._future, self._tasks
        self._future, self._tasks, self._file = None, (), None
        try:
            written: dict[str, list[RunEntry]] = defaultdict(list)
            done = work.result()
            for entry in done.entries:
                written[entry.slot].append(entry)
        except Exception:
            # The runs that were to be merged are there and count; a later batch begins again.
            self._changed_slots.update(task.slot for task in tasks)
            raise
        manifest = self.state.manifest
        for task in tasks:
            # A view may have been dropped or loaded anew meanwhile: then its runs are not there to be replaced.
            failed = any(f.operator == task.operator.id for f in done.errors)
            if not failed and set(task.entries) <= set(manifest.runs.get(task.slot, ())):
                manifest = manifest.with_replaced(task.slot, task.entries, written[task.slot])
                self.state.cache_runs({entry: done.runs[entry] for entry in written[task.slot] if entry in done.runs})
        self.state.adopt(manifest)
        failpoints.hit("merge.adopted")
        return done.errors

    def statistics(self) -> dict[str, Any]:
        """How many arrangements were merged so far, in how many seconds, and when the last merges were."""
        return {"count": self._merged_count, "seconds": self._seconds, "last": self._recent_merges}

    def close(self) -> None:
        """Wait for the merge under way; what it wrote is collected at the next opening."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        if "_statements" in self.__dict__:
            self._statements.close()

    def _merge(self, tasks: Sequence[_CompactionTask], file: str) -> _CompactionResult:
        began, started = time.time(), time.perf_counter()
        self._statements.set_memory_limit(self._memory.duckdb_bytes)
        merged: dict[str, Run] = {}
        failed: list[OperatorError] = []
        for task in tasks:
            try:
                merged[task.slot] = _merge_runs(self._statements, self._memory, task)
            except OperatorError as failure:
                failed.append(failure)
        failpoints.hit("merge.write.before")
        written = write_run_file(self.state.directory, file, merged, fsync=self.durable) if merged else []
        failpoints.hit("merge.write.after")
        took = time.perf_counter() - started
        self._merged_count, self._seconds = self._merged_count + len(tasks), self._seconds + took
        self._recent_merges = [*self._recent_merges[-15:], (began, took)]
        at_hand = {e: merged[e.slot] for e in written if is_kept_in_memory(e, merged[e.slot])}
        if not self.state.directory.is_object_store:
            for entry in written:
                if entry not in at_hand:
                    with suppress(CorruptRun):  # the batch meets it again, and mends it
                        at_hand[entry] = self.state.open_verified(entry)
        return _CompactionResult(written, at_hand, failed)


def _merge_runs(statements: PreparedStatements, memory: MemoryBudget, task: _CompactionTask) -> Run:
    slot = int(task.slot.split("/")[1])
    runs = run_parallel(lambda opened: opened(), task.openers)
    with attribute_errors(task.operator.id):
        return run_by_hash_ranges(runs, memory, lambda runs: task.operator.merge_runs(statements, slot, runs))
