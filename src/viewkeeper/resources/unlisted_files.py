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

from viewkeeper.resources.directory import Directory
from viewkeeper.resources.object_store import side_by_side, soon

_LISTED_SECONDS = 600.0
_TRIED = 16
"""Removals that failed before and are waited for. Where none may be made at all, there will be thousands."""


class Sweep:
    """Of the files of a directory whose names have a pattern."""

    def __init__(self, directory: Directory, pattern: str) -> None:
        self._directory = directory
        self._pattern = pattern
        self._known: set[str] = set()
        self._listed = float("-inf")
        self._removing: dict[str, Future[None]] = {}
        self._failed: set[str] = set()
        self._process = os.getpid()

    def know(self, names: Iterable[str]) -> None:
        """These exist, and may become garbage."""
        if self._directory.is_far:
            self._known.update(names)

    def remove(self, is_garbage: Callable[[str], bool]) -> int:
        """How many are removed, from now on. Raises what goes on failing that an earlier sweep began."""
        self._ended()
        if not self._directory.is_far:
            self._known = set(self._directory.names(self._pattern)) - self._removing.keys()
        elif time.monotonic() - self._listed > _LISTED_SECONDS:
            self._known.update(self._directory.names(self._pattern))
            self._listed = time.monotonic()
        gone = {name for name in self._known if is_garbage(name)}
        again = sorted(gone & self._failed)[:_TRIED]
        fresh = gone.difference(again)
        self._removing |= {name: soon(partial(self._directory.remove, name)) for name in fresh}
        self._known -= fresh
        self._failed -= fresh
        side_by_side(self._directory.remove, again)
        self._known.difference_update(again)
        self._failed.difference_update(again)
        return len(gone)

    def wait(self) -> BaseException | None:
        """For what is being removed; what that failed on. (A fork has none of its parent's threads, for which it would
        wait.)"""
        if self._process != os.getpid():
            return None
        removing = wait(list(self._removing.values())).done
        return next((error for removed in removing if (error := removed.exception()) is not None), None)

    def _ended(self) -> None:
        """Forget the removals that have ended; those that failed are to be done again."""
        ended = {name: removing for name, removing in self._removing.items() if removing.done()}
        failed = {name for name, removing in ended.items() if removing.exception() is not None}
        self._removing = {name: removing for name, removing in self._removing.items() if name not in ended}
        self._known |= failed
        self._failed |= failed


def sweep(directory: Directory, pattern: str) -> Sweep:
    """The one of this process."""
    return _sweep(str(directory), pattern, (os.fspath(directory), os.getpid()))


@lru_cache(maxsize=256)
def _sweep(place: str, pattern: str, of: object) -> Sweep:
    """`of`: where it lies on this machine, and whose it is: a fork has one of its own."""
    return Sweep(Directory(place), pattern)
