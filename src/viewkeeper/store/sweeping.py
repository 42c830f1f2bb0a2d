"""Garbage goes: files of a directory that nothing lists.

Where listing is cheap, what is there is listed every time. In an object store a listing is a request and a removal is
three, so there what this process knows of is looked at (what it wrote, what its manifests named), all that is there
only now and then: files of attempts that died wait until then. Removals run in the background; one that failed is
said by the next sweep, and tried again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import lru_cache, partial

from viewkeeper.store.elsewhere import side_by_side, soon
from viewkeeper.store.files import Directory

_LISTED_SECONDS = 600.0


class Sweep:
    """Of the files of a directory whose names have a pattern."""

    def __init__(self, directory: Directory, pattern: str) -> None:
        self._directory = directory
        self._pattern = pattern
        self._known: set[str] = set()
        self._listed = float("-inf")
        self._removing: dict[str, Future[None]] = {}

    def know(self, names: Iterable[str]) -> None:
        """These exist, and may become garbage."""
        if self._directory.is_far:
            self._known.update(names)

    def remove(self, is_garbage: Callable[[str], bool]) -> int:
        """How many are being removed."""
        if not self._directory.is_far:
            gone = [name for name in self._directory.names(self._pattern) if is_garbage(name)]
            side_by_side(self._directory.remove, gone)
            return len(gone)
        failed = self._ended()
        if time.monotonic() - self._listed > _LISTED_SECONDS:
            self._known.update(self._directory.names(self._pattern))
            self._listed = time.monotonic()
        gone = [name for name in self._known if is_garbage(name)]
        self._known.difference_update(gone)
        self._removing |= {name: soon(partial(self._directory.remove, name)) for name in gone}
        if failed is not None:
            raise failed
        return len(gone)

    def wait(self) -> None:
        """For what is being removed."""
        for removing in self._removing.values():
            removing.exception()

    def _ended(self) -> BaseException | None:
        """Forget the removals that have ended. One that failed is to be done again, and is what is returned."""
        ended = {name: removing for name, removing in self._removing.items() if removing.done()}
        failed = {name: error for name, removing in ended.items() if (error := removing.exception()) is not None}
        self._removing = {name: removing for name, removing in self._removing.items() if name not in ended}
        self._known.update(failed)
        return next(iter(failed.values()), None)


def sweep(directory: Directory, pattern: str) -> Sweep:
    """The one of this process."""
    return _sweep(str(directory), os.fspath(directory), pattern)


@lru_cache(maxsize=256)
def _sweep(place: str, _: str, pattern: str) -> Sweep:
    return Sweep(Directory(place), pattern)
