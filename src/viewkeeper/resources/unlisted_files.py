"""Garbage collection of a directory's files that no manifest lists.

A local directory is listed on every collection. In an object store a listing is a request, so a collection checks the
files that this process knows (those that it wrote and those that its manifests named), and lists the directory only
once in a while: files of attempts that died wait until then. What to remove is decided at once; the removal runs in the
background, because it takes three requests a file in an object store, and because removing a local file of a gigabyte
keeps its file system busy for a tenth of a second. The next collection repeats a failed removal itself, and raises if
it fails again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from functools import lru_cache, partial

from viewkeeper.resources.directory import StateDirectory
from viewkeeper.resources.object_store import run_in_background, run_parallel

_LISTING_INTERVAL = 600.0
_MAX_RETRIES = 16
"""Maximum number of failed removals that one collection repeats and waits for. Without the permission to remove files
there would be thousands."""


class GarbageCollector:
    """Garbage collection of a directory's files whose names match a pattern."""

    def __init__(self, directory: StateDirectory, pattern: str) -> None:
        self._directory = directory
        self._pattern = pattern
        self._file_names: set[str] = set()
        self._listed_at = float("-inf")
        self._removing: dict[str, Future[None]] = {}
        self._failed: set[str] = set()
        self._process = os.getpid()

    def track(self, names: Iterable[str]) -> None:
        """Add files that exist and may become garbage."""
        if self._directory.is_object_store:
            self._file_names.update(names)

    def collect(self, is_garbage: Callable[[str], bool]) -> int:
        """Start the removal of garbage and return the number of files. Raise the error of a removal that failed in an
        earlier collection and fails again."""
        self._reap_removals()
        if not self._directory.is_object_store:
            self._file_names = set(self._directory.list_names(self._pattern)) - self._removing.keys()
        elif time.monotonic() - self._listed_at > _LISTING_INTERVAL:
            self._file_names.update(self._directory.list_names(self._pattern))
            self._listed_at = time.monotonic()
        garbage = {name for name in self._file_names if is_garbage(name)}
        retried = sorted(garbage & self._failed)[:_MAX_RETRIES]
        fresh = garbage.difference(retried)
        self._removing |= {name: run_in_background(partial(self._directory.remove, name)) for name in fresh}
        self._file_names -= fresh
        self._failed -= fresh
        run_parallel(self._directory.remove, retried)
        self._file_names.difference_update(retried)
        self._failed.difference_update(retried)
        return len(garbage)

    def wait(self) -> BaseException | None:
        """Wait for the pending removals and return the first error. (A fork returns at once: it has none of its
        parent's threads, for which it would wait.)"""
        if self._process != os.getpid():
            return None
        removing = wait(list(self._removing.values())).done
        return next((error for removed in removing if (error := removed.exception()) is not None), None)

    def _reap_removals(self) -> None:
        """Forget the removals that have ended, and schedule the failed ones for another attempt."""
        finished = {name: removing for name, removing in self._removing.items() if removing.done()}
        failed = {name for name, removing in finished.items() if removing.exception() is not None}
        self._removing = {name: removing for name, removing in self._removing.items() if name not in finished}
        self._file_names |= failed
        self._failed |= failed


def garbage_collector(directory: StateDirectory, pattern: str) -> GarbageCollector:
    """Return this process's collector of the directory and pattern."""
    return _cached_collector(str(directory), pattern, (os.fspath(directory), os.getpid()))


@lru_cache(maxsize=256)
def _cached_collector(location: str, pattern: str, cache_key: object) -> GarbageCollector:
    """Return the cached collector. `cache_key` has the local path and the process id: a fork has its own collector."""
    return GarbageCollector(StateDirectory(location), pattern)
