"""Compaction: merges runs in the background, so that an arrangement remains a short list of runs.

Runs are merged as in an LSM tree, and merging consolidates them. A background thread writes the merged run to a new
file; the next batch after that replaces the old runs by the merged one in its manifest. Until then, and after a crash,
the old runs are valid. Runs are immutable, so the thread and the batches do not interfere.
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
"""If an arrangement has more runs than this, the next batch waits for the running merge."""


@dataclass(frozen=True)
class _CompactionTask:
    slot: str
    operator: Operator
    entries: tuple[RunEntry, ...]
    openers: tuple[Callable[[], Run], ...]
    """Functions that open the runs. Mapping and verifying a run takes time, so the background thread calls them."""


@dataclass(frozen=True)
class _CompactionResult:
    """The entries that were written, those of their runs that are open for the batch which adopts them, and errors."""

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
        """Files that the running merge writes, which no manifest lists yet, and files that it reads."""
        if self._file is None:
            return frozenset()
        return frozenset([self._file, *(entry.file for task in self._tasks for entry in task.entries)])

    def start(self, dataflow: Dataflow, batch: int, changed: Iterable[str]) -> None:
        """Start merging the arrangements that have too many runs, unless a merge is running already."""
        self._changed_slots.update(changed)
        if self._future is not None:
            return
        tasks = []
        for slot in self._changed_slots:
            entries = self.state.manifest.runs.get(slot, ())
            operator = dataflow.operators.get(slot.split("/")[0])
            runs = group_pieces(entries)
            newest = choose_merges([sum(entry.rows for entry in pieces) for pieces in runs])
            if newest and operator is not None:
                selected = tuple(entry for pieces in runs[-newest:] for entry in pieces)
                tasks.append(_CompactionTask(slot, operator, selected, tuple(map(self.state.run_opener, selected))))
        self._changed_slots.clear()
        if tasks:
            self._tasks = tasks
            self._file = f"b{batch}-m{secrets.token_hex(4)}.vkr"
            self._future = self._thread.submit(self._merge, tasks, self._file)

    def adopt(self) -> list[OperatorError]:
        """Put finished merges into the state's manifest.

        Waits for a running merge only if an arrangement has more than `MAX_UNMERGED_RUNS` runs. Returns the errors of
        operators that failed to merge; their runs stay unmerged. Raises a process fault, with the manifest unchanged.
        """
        if self._future is None:
            return []
        if not self._future.done() and all(
            len(entries) <= MAX_UNMERGED_RUNS or len(group_pieces(entries)) <= MAX_UNMERGED_RUNS
            for entries in self.state.manifest.runs.values()
        ):
            return []
        future, tasks = self._future, self._tasks
        self._future, self._tasks, self._file = None, (), None
        try:
            written: dict[str, list[RunEntry]] = defaultdict(list)
            result = future.result()
            for entry in result.entries:
                written[entry.slot].append(entry)
        except Exception:
            # The unmerged runs are still valid; a later batch starts the merge again.
            self._changed_slots.update(task.slot for task in tasks)
            raise
        manifest = self.state.manifest
        for task in tasks:
            # If the view was dropped or reloaded meanwhile, the manifest no longer lists the runs to be replaced.
            failed = any(error.operator == task.operator.id for error in result.errors)
            if not failed and set(task.entries) <= set(manifest.runs.get(task.slot, ())):
                manifest = manifest.with_replaced(task.slot, task.entries, written[task.slot])
                self.state.cache_runs(
                    {entry: result.runs[entry] for entry in written[task.slot] if entry in result.runs}
                )
        self.state.adopt(manifest)
        failpoints.hit("merge.adopted")
        return result.errors

    def statistics(self) -> dict[str, Any]:
        """Return the number of merged arrangements, their total seconds, and (time, seconds) of the last merges."""
        return {"count": self._merged_count, "seconds": self._seconds, "last": self._recent_merges}

    def close(self) -> None:
        """Wait for the running merge; the next maintainer deletes the file that it wrote."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        if "_statements" in self.__dict__:
            self._statements.close()

    def _merge(self, tasks: Sequence[_CompactionTask], file: str) -> _CompactionResult:
        start_time, started = time.time(), time.perf_counter()
        self._statements.set_memory_limit(self._memory.duckdb_bytes)
        merged: dict[str, Run] = {}
        errors: list[OperatorError] = []
        for task in tasks:
            try:
                merged[task.slot] = _merge_runs(self._statements, self._memory, task)
            except OperatorError as failure:
                errors.append(failure)
        failpoints.hit("merge.write.before")
        written = write_run_file(self.state.directory, file, merged, fsync=self.durable) if merged else []
        failpoints.hit("merge.write.after")
        seconds = time.perf_counter() - started
        self._merged_count, self._seconds = self._merged_count + len(tasks), self._seconds + seconds
        self._recent_merges = [*self._recent_merges[-15:], (start_time, seconds)]
        open_runs = {e: merged[e.slot] for e in written if is_kept_in_memory(e, merged[e.slot])}
        if not self.state.directory.is_object_store:
            for entry in written:
                if entry not in open_runs:
                    with suppress(CorruptRun):  # the batch finds the damage again, and repairs it
                        open_runs[entry] = self.state.open_verified(entry)
        return _CompactionResult(written, open_runs, errors)


def _merge_runs(statements: PreparedStatements, memory: MemoryBudget, task: _CompactionTask) -> Run:
    slot = int(task.slot.split("/")[1])
    runs = run_parallel(lambda opener: opener(), task.openers)
    with attribute_errors(task.operator.id):
        return run_by_hash_ranges(runs, memory, lambda runs: task.operator.merge_runs(statements, slot, runs))
