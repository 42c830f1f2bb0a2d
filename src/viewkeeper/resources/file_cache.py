"""Copies on this machine of files that are elsewhere: made when they are first read, forgotten when they are too many.

    b7-1f.vkr            a whole file: written here and saved there, or read as a whole
    b7-1f.vkr@64+9000    a range of it, from byte 64 on

Files never change, so a copy is as good as the file. Which ones go is decided by when they were last opened, over all
processes of this machine; one that is mapped stays readable to who has mapped it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from viewkeeper.resources.object_store import split_cache_option

MAX_UNUSED_SECONDS = 7 * 86_400.0
"""A copy that nobody opened for so long goes in any case: its file may have been removed by another machine."""

_DISK_FRACTION = 5
"""Without a limit of their own, copies take up to this part of the disk."""
_MIN_AGE_SECONDS = 60.0
"""What was written just now may not have been saved yet."""
_RESCAN_BYTES = 64 << 20
"""So much may be added before the directory is looked through again."""


class FileCache:
    """The copies of one directory. `limit`: bytes; None: a part of the disk."""

    def __init__(self, location: str, limit: int | None) -> None:
        self.path = cache_directory(location)
        self._limit = limit
        self._added_bytes: int | None = None

    def find_or_fetch(self, name: str, offset: int, length: int, fetch: Callable[[Path], None]) -> tuple[Path, int]:
        """Where this range of a file lies here, and from which byte on; `read` makes a copy if there is none."""
        whole, part = self.path / name, self.path / f"{name}@{offset}+{length}"
        for path, start in ((whole, offset), (part, 0)):
            if mark_used(path):
                return path, start
        self.add(part, fetch)
        return part, 0

    def add(self, path: Path, fetch: Callable[[Path], None]) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        fetch(path)
        with suppress(FileNotFoundError):
            self._make_room(path.stat().st_size)

    def evict(self, name: str) -> None:
        """The file is gone, or its copies are damaged."""
        (self.path / name).unlink(missing_ok=True)
        for path in self.path.glob(f"{name}@*"):
            path.unlink(missing_ok=True)

    def evict_unused(self) -> None:
        before = time.time() - MAX_UNUSED_SECONDS
        for path, _, opened in self._entries():
            if opened < before:
                path.unlink(missing_ok=True)

    def _make_room(self, added: int) -> None:
        if self._added_bytes is not None and self._added_bytes + added < min(_RESCAN_BYTES, self._max_bytes() // 8):
            self._added_bytes += added
            return
        self._added_bytes = 0
        found = sorted(self._entries(), key=lambda one: one[2])
        excess = sum(size for _, size, _ in found) - self._max_bytes()
        before = time.time() - _MIN_AGE_SECONDS
        for path, size, opened in found:
            if excess <= 0 or opened > before:
                return
            path.unlink(missing_ok=True)
            excess -= size

    def _max_bytes(self) -> int:
        return shutil.disk_usage(self.path).total // _DISK_FRACTION if self._limit is None else self._limit

    def _entries(self) -> Iterator[tuple[Path, int, float]]:
        """Each copy, its size, and when it was last opened."""
        with suppress(FileNotFoundError):
            for path in self.path.iterdir():
                with suppress(FileNotFoundError):
                    about = path.stat()
                    if path.is_file() and not path.name.startswith("."):
                        yield path, about.st_size, about.st_mtime


def mark_used(path: Path) -> bool:
    """Whether the copy is there; from now on it was opened just now."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    except PermissionError:  # another user's: it can be read all the same
        return path.exists()
    return True


def cache_directory(location: str) -> Path:
    """A directory of its own for the copies of what is behind a URL; options of ours do not make it another one."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "viewkeeper" / "state" / hashlib.sha256(split_cache_option(location)[0].encode()).hexdigest()[:24]
