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
from viewkeeper.model.threads import Threads
from viewkeeper.operators.operator import Operator
from viewkeeper.plan.dataflow.dataflow import Flow
from viewkeeper.resources.memory import Memory
from viewkeeper.resources.object_store import side_by_side
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.runtime.operator_errors import Failed, attributed_to
from viewkeeper.state.compaction import choose_merges, in_ranges
from viewkeeper.state.open_state import State, is_kept
from viewkeeper.state.run import Run
from viewkeeper.state.run_file import RunEntry, wholes, write_container

MOST_RUNS = 16
"""An arrangement with more runs makes the next batch wait for the merge that is under way."""


@dataclass(frozen=True)
class _Task:
    slot: str
    operator: Operator
    entries: tuple[RunEntry, ...]
    opening: tuple[Callable[[], Run], ...]
    """A run may have to be mapped and verified: no batch waits for that."""


@dataclass(frozen=True)
class _Done:
    """What was written, the runs of it that are at hand for the batch that lists them first, and what failed."""

    entries: list[RunEntry]
    runs: Mapping[RunEntry, Run]
    failed: list[Failed]


class Merger:
    """Merges one set of slots at a time, in the background."""

    def __init__(self, state: State, durable: bool, memory: Memory) -> None:
        self.state = state
        self._memory = memory
        self.durable = durable
        self._thread = Threads(1, thread_name_prefix="viewkeeper-merge")
        self._work: Future[_Done] | None = None
        self._tasks: Sequence[_Task] = ()
        self._file: str | None = None
        self._behind: set[str] = set()
        self._merged = 0
        self._seconds = 0.0
        self._last: list[tuple[float, float]] = []

    @cached_property
    def _duck(self) -> Duck:
        return Duck(threads=1, memory=self._memory)

    @property
    def files(self) -> frozenset[str]:
        """Files that are being written, or that no manifest lists yet, and those that are read for them."""
        if self._file is None:
            return frozenset()
        return frozenset([self._file, *(entry.file for task in self._tasks for entry in task.entries)])

    def start(self, flow: Flow, batch: int, changed: Iterable[str]) -> None:
        """Begin to merge what has too many runs, unless a merge is under way already."""
        self._behind.update(changed)
        if self._work is not None:
            return
        tasks = []
        for slot in self._behind:
            entries = self.state.manifest.runs.get(slot, ())
            operator = flow.operators.get(slot.split("/")[0])
            runs = wholes(entries)
            newest = choose_merges([sum(e.rows for e in pieces) for pieces in runs])
            if newest and operator is not None:
                merged = tuple(e for pieces in runs[-newest:] for e in pieces)
                tasks.append(_Task(slot, operator, merged, tuple(map(self.state.opening, merged))))
        self._behind.clear()
        if tasks:
            self._tasks = tasks
            self._file = f"b{batch}-m{secrets.token_hex(4)}.vkr"
            self._work = self._thread.submit(self._merge, tasks, self._file)

    def adopt(self) -> list[Failed]:
        """Put finished merges into the state's manifest; waits for one only when an arrangement has very many runs.

        Returns the operators that raised an error in theirs; their runs stay as they are. A fault of the process is
        raised, with everything as if no merge had begun."""
        if self._work is None:
            return []
        if not self._work.done() and all(
            len(r) <= MOST_RUNS or len(wholes(r)) <= MOST_RUNS for r in self.state.manifest.runs.values()
        ):
            return []
        work, tasks = self._work, self._tasks
        self._work, self._tasks, self._file = None, (), None
        try:
            written: dict[str, list[RunEntry]] = defaultdict(list)
            done = work.result()
            for entry in done.entries:
                written[entry.slot].append(entry)
        except Exception:
            # The runs that were to be merged are there and count; a later batch begins again.
            self._behind.update(task.slot for task in tasks)
            raise
        manifest = self.state.manifest
        for task in tasks:
            # A view may have been dropped or loaded anew meanwhile: then its runs are not there to be replaced.
            failed = any(f.operator == task.operator.id for f in done.failed)
            if not failed and set(task.entries) <= set(manifest.runs.get(task.slot, ())):
                manifest = manifest.replaced(task.slot, task.entries, written[task.slot])
                self.state.keep({entry: done.runs[entry] for entry in written[task.slot] if entry in done.runs})
        self.state.adopt(manifest)
        failpoints.point("merge.adopted")
        return done.failed

    def counts(self) -> dict[str, Any]:
        """How many arrangements were merged so far, in how many seconds, and when the last merges were."""
        return {"count": self._merged, "seconds": self._seconds, "last": self._last}

    def close(self) -> None:
        """Wait for the merge under way; what it wrote is collected at the next opening."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        if "_duck" in self.__dict__:
            self._duck.close()

    def _merge(self, tasks: Sequence[_Task], file: str) -> _Done:
        began, started = time.time(), time.perf_counter()
        self._duck.limit(self._memory.ducks)
        merged: dict[str, Run] = {}
        failed: list[Failed] = []
        for task in tasks:
            try:
                merged[task.slot] = _merged(self._duck, self._memory, task)
            except Failed as failure:
                failed.append(failure)
        failpoints.point("merge.write.before")
        written = write_container(self.state.directory, file, merged, fsync=self.durable) if merged else []
        failpoints.point("merge.write.after")
        took = time.perf_counter() - started
        self._merged, self._seconds = self._merged + len(tasks), self._seconds + took
        self._last = [*self._last[-15:], (began, took)]
        at_hand = {e: merged[e.slot] for e in written if is_kept(e, merged[e.slot])}
        if not self.state.directory.is_far:
            for entry in written:
                if entry not in at_hand:
                    with suppress(CorruptRun):  # the batch meets it again, and mends it
                        at_hand[entry] = self.state.checked(entry)
        return _Done(written, at_hand, failed)


def _merged(duck: Duck, memory: Memory, task: _Task) -> Run:
    slot = int(task.slot.split("/")[1])
    runs = side_by_side(lambda opened: opened(), task.opening)
    with attributed_to(task.operator.id):
        return in_ranges(runs, memory, lambda runs: task.operator.merged(duck, slot, runs))
