"""The maintainer's open state: arrangements over the runs that a manifest lists, and the files they lie in."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from viewkeeper.resources.directory import StateDirectory
from viewkeeper.resources.object_store import run_parallel
from viewkeeper.resources.unlisted_files import garbage_collector
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.run import Arrangement, Run
from viewkeeper.state.run_file import RunEntry, group_pieces, open_run, write_run_file

MAX_IN_MEMORY_ROWS = 100_000


class OpenState:
    """Opens runs once and keeps them; `manifest` is what the last published batch lists (merges included)."""

    def __init__(self, directory: str, manifest: Manifest) -> None:
        self.directory = StateDirectory(directory)
        self.directory.create()
        self.manifest = manifest
        self._open_runs: dict[RunEntry, Run] = {}
        self._garbage = garbage_collector(self.directory, "b*.vkr")
        self._garbage.track(entry.file for runs in manifest.runs.values() for entry in runs)
        self._written: list[RunEntry] = []
        """Since a manifest was last adopted, which may list them or not."""

    def arrangement(self, slot: str) -> Arrangement:
        entries = self.manifest.runs.get(slot, ())
        if self.directory.is_object_store:
            run_parallel(self._run, [e for e in entries if e not in self._open_runs])
        return Arrangement(tuple(self._run(e) for e in entries))

    def column_sets(self, slot: str) -> Iterator[frozenset[str]]:
        """Those of each run. One piece of it tells, and the smallest is soonest read."""
        for pieces in group_pieces(self.manifest.runs.get(slot, ())):
            yield frozenset(self._run(min(pieces, key=lambda e: e.length)).rows.column_names)

    def row_count(self, slot: str) -> int:
        return sum(e.rows for e in self.manifest.runs.get(slot, ()))

    def byte_count(self, slot: str) -> int:
        return sum(e.length for e in self.manifest.runs.get(slot, ()))

    def write(self, batch: int, runs: Mapping[str, Run], durable: bool) -> list[RunEntry]:
        """One container file with these runs. Its name carries the batch and an attempt: it is never written twice."""
        if not runs:
            return []
        name = f"b{batch}-{secrets.token_hex(4)}.vkr"
        entries = write_run_file(self.directory, name, runs, fsync=durable)
        self.cache_runs({e: runs[e.slot] for e in entries if is_kept_in_memory(e, runs[e.slot])})
        self._written += entries
        return entries

    def cache_runs(self, runs: Mapping[RunEntry, Run]) -> None:
        """Runs that were just written, as they are or from their file, for whoever asks next."""
        self._open_runs |= runs

    def run_opener(self, entry: RunEntry) -> Callable[[], Run]:
        """How another thread comes by a run, beside the batches: it keeps what it opens to itself. A file that a batch
        has mapped may have been damaged since: a merge would give that a right checksum."""
        run = self._open_runs.get(entry)
        is_mapped = entry.rows > MAX_IN_MEMORY_ROWS and not self.directory.is_object_store
        return partial(self.open_verified, entry) if run is None or is_mapped else lambda: run

    def open_verified(self, entry: RunEntry) -> Run:
        """A run from its file, whose checksum is right."""
        return open_run(self.directory, entry, verify=True)

    def open_written(self, entry: RunEntry) -> Run:
        """A run that this process has just written, from its file: in memory it would stay."""
        return self._open_runs.get(entry) or open_run(self.directory, entry, verify=False)

    def adopt(self, manifest: Manifest) -> None:
        """The manifest was published: it is the state from now on. Costs what it changed."""
        before, self.manifest = self.manifest.runs, manifest
        for slot, runs in (*manifest.runs.items(), *((slot, ()) for slot in before.keys() - manifest.runs.keys())):
            was = before.get(slot, ())
            if was is not runs:
                self._garbage.track(entry.file for entry in runs)
                for entry in set(was).difference(runs):
                    self._open_runs.pop(entry, None)
        for entry in self._written:
            if entry not in manifest.runs.get(entry.slot, ()):
                self._open_runs.pop(entry, None)
        self._written = []

    def collect_garbage(self, keep: frozenset[str] = frozenset(), up_to_batch: int | None = None) -> int:
        """Delete files that the manifest does not name, in the background; returns how many. What fails is tried again
        by the next call, which raises if that fails too.

        `upto`: only those of batches up to this one. Later ones are of a batch that is being made, maybe by a
        successor that this process does not know of yet.
        """
        live = self.manifest.files() | keep
        return self._garbage.collect(
            lambda name: name not in live and (up_to_batch is None or _batch_number(name) <= up_to_batch)
        )

    def wait_for_collection(self) -> BaseException | None:
        """Wait until what `collect` began is done; what it failed on."""
        return self._garbage.wait()

    def _run(self, entry: RunEntry) -> Run:
        run = self._open_runs.get(entry)
        if run is None:
            run = self._open_runs[entry] = self.open_verified(entry)
        return run


def is_kept_in_memory(entry: RunEntry, run: Run) -> bool:
    """Whether a run that was just written stays in memory as it is. A large one is mapped when it is needed, so that it
    can be paged out. (One that was written in pieces is no piece of itself.)"""
    return entry.rows == run.num_rows <= MAX_IN_MEMORY_ROWS


def _batch_number(name: str) -> int:
    """The batch in a file's name."""
    number = name[1:].partition("-")[0]
    return int(number) if number.isdigit() else 0
