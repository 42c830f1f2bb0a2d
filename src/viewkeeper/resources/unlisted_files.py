"""Garbage goes: files of a directory that nothing lists.

Where listing is cheap, what is there is listed every time. In an object store a listing is a request, so there what
this process knows of is looked at (what it wrote, what its manifests named), all that is there only now and then: files
of attempts that died wait until then. What goes is decided at once, and is removed in the background: in an object
store that is three requests a file, and a local file of a gigabyte keeps its file system busy for a tenth of a second.
A removal that failed is tried again by the next sweep itself, which says so if it fails again.
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
"""Removals that failed before and are waited for. Where none may be made at all, there will be thousands."""


class GarbageCollector:
    """Of the files of a directory whose names have a pattern."""

    def __init__(self, directory: StateDirectory, pattern: str) -> None:
        self._directory = directory
        self._pattern = pattern
        self._file_names: set[str] = set()
        self._listed_at = float("-inf")
        self._removing: dict[str, Future[None]] = {}
        self._failed: set[str] = set()
        self._process = os.getpid()

    def track(self, names: Iterable[str]) -> None:
        """These exist, and may become garbage."""
        if self._directory.is_object_store:
            self._file_names.update(names)

    def collect(self, is_garbage: Callable[[str], bool]) -> int:
        """How many are removed, from now on. Raises what goes on failing that an earlier sweep began."""
        self._reap_removals()
        if not self._directory.is_object_store:
            self._file_names = set(self._directory.list_names(self._pattern)) - self._removing.keys()
        elif time.monotonic() - self._listed_at > _LISTING_INTERVAL:
            self._file_names.update(self._directory.list_names(self._pattern))
            self._listed_at = time.monotonic()
        gone = {name for name in self._file_names if is_garbage(name)}
        again = sorted(gone & self._failed)[:_MAX_RETRIES]
        fresh = gone.difference(again)
        self._removing |= {name: run_in_background(partial(self._directory.remove, name)) for name in fresh}
        self._file_names -= fresh
        self._failed -= fresh
        run_parallel(self._directory.remove, again)
        self._file_names.difference_update(again)
        self._failed.difference_update(again)
        return len(gone)

    def wait(self) -> BaseException | None:
        """For what is being removed; what that failed on. (A fork has none of its parent's threads, for which it would
        wait.)"""
        if self._process != os.getpid():
            return None
        removing = wait(list(self._removing.values())).done
        return next((error for removed in removing if (error := removed.exception()) is not None), None)

    def _reap_removals(self) -> None:
        """Forget the removals that have ended; those that failed are to be done again."""
        ended = {name: removing for name, removing in self._removing.items() if removing.done()}
        failed = {name for name, removing in ended.items() if removing.exception() is not None}
        self._removing = {name: removing for name, removing in self._removing.items() if name not in ended}
        self._file_names |= failed
        self._failed |= failed


def garbage_collector(directory: StateDirectory, pattern: str) -> GarbageCollector:
    """The one of this process."""
    return _cached_collector(str(directory), pattern, (os.fspath(directory), os.getpid()))


@lru_cache(maxsize=256)
def _cached_collector(location: str, pattern: str, cache_key: object) -> GarbageCollector:
    """`of`: where it lies on this machine, and whose it is: a fork has one of its own."""
    return GarbageCollector(StateDirectory(location), pattern)
