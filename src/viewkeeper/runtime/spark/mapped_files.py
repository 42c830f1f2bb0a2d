"""Mapped state files: keeps descriptors of the files that a worker has mapped, so that a thread can close them last.

The operating system keeps a deleted file until its last descriptor or mapping is closed. Closing then drops the file's
pages, frees its blocks, and waits for pending writes to it or to the file system's journal: 50 to 135 ms in tasks of
110 ms, after a compaction had replaced eight million rows. Arrow unmaps while it holds the GIL, so no other thread
could do this for the task. Therefore a worker also opens each mapped file; when the mappings are gone, a thread closes
the descriptor, and Python releases the GIL for that.
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
"""Maximum number of open files: Spark and Arrow need descriptors too."""


class MappedFiles:
    """The files that this worker has mapped."""

    def __init__(self) -> None:
        self._descriptors: dict[Path, int] = {}

    def add(self, path: Path) -> None:
        """Record that this file is mapped."""
        if path not in self._descriptors and len(self._descriptors) < _MAX_FILES:
            with suppress(OSError):  # deleted already, or too many open files: unmapping is then slow
                self._descriptors[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def retain_only(self, paths: Collection[Path]) -> threading.Thread | None:
        """Close all other files, which are no longer mapped; return the thread that does so, if there are any."""
        unused = [self._descriptors.pop(path) for path in self._descriptors.keys() - paths]
        if not unused:
            return None
        closing = threading.Thread(target=_close_all, args=(unused,), name="viewkeeper-closing", daemon=True)
        closing.start()
        return closing


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
