"""Open state of the maintainer: arrangements over the mapped runs that a manifest lists, and the run files
themselves."""

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
    """Opens each run once and caches it. `manifest` is the last published manifest, compactions included."""

    def __init__(self, directory: str, manifest: Manifest) -> None:
        self.directory = StateDirectory(directory)
        self.directory.create()
        self.manifest = manifest
        self._open_runs: dict[RunEntry, Run] = {}
        self._garbage = garbage_collector(self.directory, "b*.vkr")
        self._garbage.track(entry.file for runs in manifest.runs.values() for entry in runs)
        self._written: list[RunEntry] = []
        """Entries written since the last `adopt`. The next manifest may list them or not."""

    def arrangement(self, slot: str) -> Arrangement:
        entries = self.manifest.runs.get(slot, ())
        if self.directory.is_object_store:
            run_parallel(self._run, [e for e in entries if e not in self._open_runs])
        return Arrangement(tuple(self._run(e) for e in entries))

    def column_sets(self, slot: str) -> Iterator[frozenset[str]]:
        """Yield the column names of each run. All pieces of a run have the same columns, so the smallest piece is
        read."""
        for pieces in group_pieces(self.manifest.runs.get(slot, ())):
            yield frozenset(self._run(min(pieces, key=lambda e: e.length)).rows.column_names)

    def row_count(self, slot: str) -> int:
        return sum(e.rows for e in self.manifest.runs.get(slot, ()))

    def byte_count(self, slot: str) -> int:
        return sum(e.length for e in self.manifest.runs.get(slot, ()))

    def write(self, batch: int, runs: Mapping[str, Run], durable: bool) -> list[RunEntry]:
        """Write one run file with these runs. Its name contains the batch number and a random token, so no file name is
        ever written twice."""
        if not runs:
            return []
        name = f"b{batch}-{secrets.token_hex(4)}.vkr"
        entries = write_run_file(self.directory, name, runs, fsync=durable)
        self.cache_runs({e: runs[e.slot] for e in entries if is_kept_in_memory(e, runs[e.slot])})
        self._written += entries
        return entries

    def cache_runs(self, runs: Mapping[RunEntry, Run]) -> None:
        """Cache runs that were just written, in memory or mapped, for the next lookups."""
        self._open_runs |= runs

    def run_opener(self, entry: RunEntry) -> Callable[[], Run]:
        """Return a function that opens a run for another thread, such as the compactor's.

        The function does not add the run to the cache. A large local run is opened and verified again even if a batch
        has mapped it: the file may have been damaged since, and the merged run would carry a valid checksum over
        damaged rows.
        """
        run = self._open_runs.get(entry)
        is_mapped = entry.rows > MAX_IN_MEMORY_ROWS and not self.directory.is_object_store
        return partial(self.open_verified, entry) if run is None or is_mapped else lambda: run

    def open_verified(self, entry: RunEntry) -> Run:
        """Open a run from its file and verify its checksum."""
        return open_run(self.directory, entry, verify=True)

    def open_written(self, entry: RunEntry) -> Run:
        """Open a run that this process has just written. It is not added to the cache, because it would stay in
        memory."""
        return self._open_runs.get(entry) or open_run(self.directory, entry, verify=False)

    def adopt(self, manifest: Manifest) -> None:
        """Make a published manifest the current state. The cost is proportional to the difference from the previous
        one."""
        before, self.manifest = self.manifest.runs, manifest
        for slot, runs in (*manifest.runs.items(), *((slot, ()) for slot in before.keys() - manifest.runs.keys())):
            old_runs = before.get(slot, ())
            if old_runs is not runs:
                self._garbage.track(entry.file for entry in runs)
                for entry in set(old_runs).difference(runs):
                    self._open_runs.pop(entry, None)
        for entry in self._written:
            if entry not in manifest.runs.get(entry.slot, ()):
                self._open_runs.pop(entry, None)
        self._written = []

    def collect_garbage(self, keep: frozenset[str] = frozenset(), up_to_batch: int | None = None) -> int:
        """Delete files that the manifest does not name, in the background, and return their number. A deletion that
        fails is retried by the next call, which raises if it fails again.

        `up_to_batch`: delete only files of batches up to this number. Files of later batches belong to a batch in
        progress, possibly one of a successor that this process does not know of yet.
        """
        live = self.manifest.files() | keep
        return self._garbage.collect(
            lambda name: name not in live and (up_to_batch is None or _batch_number(name) <= up_to_batch)
        )

    def wait_for_collection(self) -> BaseException | None:
        """Wait for the deletions that `collect_garbage` began and return their error, if any."""
        return self._garbage.wait()

    def _run(self, entry: RunEntry) -> Run:
        run = self._open_runs.get(entry)
        if run is None:
            run = self._open_runs[entry] = self.open_verified(entry)
        return run


def is_kept_in_memory(entry: RunEntry, run: Run) -> bool:
    """Return whether a run that was just written stays in memory. A large run is mapped when it is first read, so that
    it can be paged out. A run that was written in pieces is not kept: no piece's entry stands for the whole run."""
    return entry.rows == run.num_rows <= MAX_IN_MEMORY_ROWS


def _batch_number(name: str) -> int:
    """Return the batch number in the name of a run file."""
    number = name[1:].partition("-")[0]
    return int(number) if number.isdigit() else 0
