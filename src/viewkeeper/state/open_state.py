"""The maintainer's open state: arrangements over the runs that a manifest lists, and the files they lie in."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from viewkeeper.resources.directory import Directory
from viewkeeper.resources.object_store import side_by_side
from viewkeeper.resources.unlisted_files import sweep
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.run import Arrangement, Run
from viewkeeper.state.run_file import RunEntry, open_run, wholes, write_container

KEPT_ROWS = 100_000


class State:
    """Opens runs once and keeps them; `manifest` is what the last published batch lists (merges included)."""

    def __init__(self, directory: str, manifest: Manifest) -> None:
        self.directory = Directory(directory)
        self.directory.make()
        self.manifest = manifest
        self._open: dict[RunEntry, Run] = {}
        self._sweep = sweep(self.directory, "b*.vkr")
        self._sweep.know(entry.file for runs in manifest.runs.values() for entry in runs)
        self._written: list[RunEntry] = []
        """Since a manifest was last adopted, which may list them or not."""

    def arrangement(self, slot: str) -> Arrangement:
        entries = self.manifest.runs.get(slot, ())
        if self.directory.is_far:
            side_by_side(self._run, [e for e in entries if e not in self._open])
        return Arrangement(tuple(self._run(e) for e in entries))

    def columns(self, slot: str) -> Iterator[frozenset[str]]:
        """Those of each run. One piece of it tells, and the smallest is soonest read."""
        for pieces in wholes(self.manifest.runs.get(slot, ())):
            yield frozenset(self._run(min(pieces, key=lambda e: e.length)).rows.column_names)

    def rows(self, slot: str) -> int:
        return sum(e.rows for e in self.manifest.runs.get(slot, ()))

    def bytes(self, slot: str) -> int:
        return sum(e.length for e in self.manifest.runs.get(slot, ()))

    def write(self, batch: int, runs: Mapping[str, Run], durable: bool) -> list[RunEntry]:
        """One container file with these runs. Its name carries the batch and an attempt: it is never written twice."""
        if not runs:
            return []
        name = f"b{batch}-{secrets.token_hex(4)}.vkr"
        entries = write_container(self.directory, name, runs, fsync=durable)
        self.keep({e: runs[e.slot] for e in entries if is_kept(e, runs[e.slot])})
        self._written += entries
        return entries

    def keep(self, runs: Mapping[RunEntry, Run]) -> None:
        """Runs that were just written, as they are or from their file, for whoever asks next."""
        self._open |= runs

    def opening(self, entry: RunEntry) -> Callable[[], Run]:
        """How another thread comes by a run, beside the batches: it keeps what it opens to itself. A file that a batch
        has mapped may have been damaged since: a merge would give that a right checksum."""
        run = self._open.get(entry)
        is_mapped = entry.rows > KEPT_ROWS and not self.directory.is_far
        return partial(self.checked, entry) if run is None or is_mapped else lambda: run

    def checked(self, entry: RunEntry) -> Run:
        """A run from its file, whose checksum is right."""
        return open_run(self.directory, entry, verify=True)

    def mapped(self, entry: RunEntry) -> Run:
        """A run that this process has just written, from its file: in memory it would stay."""
        return self._open.get(entry) or open_run(self.directory, entry, verify=False)

    def adopt(self, manifest: Manifest) -> None:
        """The manifest was published: it is the state from now on. Costs what it changed."""
        before, self.manifest = self.manifest.runs, manifest
        for slot, runs in (*manifest.runs.items(), *((slot, ()) for slot in before.keys() - manifest.runs.keys())):
            was = before.get(slot, ())
            if was is not runs:
                self._sweep.know(entry.file for entry in runs)
                for entry in set(was).difference(runs):
                    self._open.pop(entry, None)
        for entry in self._written:
            if entry not in manifest.runs.get(entry.slot, ()):
                self._open.pop(entry, None)
        self._written = []

    def collect(self, keep: frozenset[str] = frozenset(), upto: int | None = None) -> int:
        """Delete files that the manifest does not name, in the background; returns how many. What fails is tried again
        by the next call, which raises if that fails too.

        `upto`: only those of batches up to this one. Later ones are of a batch that is being made, maybe by a
        successor that this process does not know of yet.
        """
        live = self.manifest.files() | keep
        return self._sweep.remove(lambda name: name not in live and (upto is None or _batch(name) <= upto))

    def collected(self) -> BaseException | None:
        """Wait until what `collect` began is done; what it failed on."""
        return self._sweep.wait()

    def _run(self, entry: RunEntry) -> Run:
        run = self._open.get(entry)
        if run is None:
            run = self._open[entry] = self.checked(entry)
        return run


def is_kept(entry: RunEntry, run: Run) -> bool:
    """Whether a run that was just written stays in memory as it is. A large one is mapped when it is needed, so that it
    can be paged out. (One that was written in pieces is no piece of itself.)"""
    return entry.rows == run.num_rows <= KEPT_ROWS


def _batch(name: str) -> int:
    """The batch in a file's name."""
    number = name[1:].partition("-")[0]
    return int(number) if number.isdigit() else 0
