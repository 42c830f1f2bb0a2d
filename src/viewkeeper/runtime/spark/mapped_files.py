"""State files that a worker has mapped and others remove: who lets go of one last pays for it.

The system keeps a removed file until nobody has it open or mapped. Then it drops the file's pages, frees its blocks,
and waits for what is just being written, of it or of the file system's journal: 50 to 135 ms in tasks of 110, where a
merge had replaced eight million rows. Arrow unmaps under Python's lock, so no other thread could do that for the task.
So a file is opened here beside its mappings, and when they have gone a thread closes it: for that Python gives its lock
away.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

_OPEN_FILE_LIMIT = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
_MAX_FILES = 128 if resource.RLIM_INFINITY == _OPEN_FILE_LIMIT else min(128, _OPEN_FILE_LIMIT // 8)
"""Files that are held open at most: Spark and Arrow need theirs."""


class MappedFiles:
    """The files that this worker has mapped."""

    def __init__(self) -> None:
        self._descriptors: dict[Path, int] = {}

    def add(self, path: Path) -> None:
        """Something of this file is mapped."""
        if path not in self._descriptors and len(self._descriptors) < _MAX_FILES:
            with suppress(OSError):  # it is removed already, or too many are open: then unmapping is what it is
                self._descriptors[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def retain_only(self, paths: Collection[Path]) -> threading.Thread | None:
        """Nothing of other files is mapped any more; the thread that closes them, if there are any."""
        gone = [self._descriptors.pop(path) for path in self._descriptors.keys() - paths]
        if not gone:
            return None
        closing = threading.Thread(target=_close_all, args=(gone,), name="viewkeeper-closing", daemon=True)
        closing.start()
        return closing


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
