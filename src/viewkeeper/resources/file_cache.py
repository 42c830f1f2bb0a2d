"""A cache on this machine of remote files: a copy is made on first read and evicted when the cache is full.

    b7-1f.vkr            a whole file: written locally and uploaded, or read as a whole
    b7-1f.vkr@64+9000    a range of it: 9,000 bytes from byte 64 on

Files never change, so a copy is equivalent to the file. Copies are evicted by the time of their last use, over all
processes of this machine; a mapped copy stays readable for the process that has mapped it.
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
"""A copy that was not used for this long is evicted in any case: another machine may have removed its file."""

_DISK_FRACTION = 5
"""Without an explicit limit, copies take at most this fraction (1/n) of the disk."""
_MIN_AGE_SECONDS = 60.0
"""A younger copy is not evicted: it may be a new file that is not uploaded yet."""
_RESCAN_BYTES = 64 << 20
"""Bytes that may be added before the directory is scanned again."""


class FileCache:
    """The copies of one remote directory. `limit` is in bytes; None means a fraction of the disk."""

    def __init__(self, location: str, limit: int | None) -> None:
        self.path = cache_directory(location)
        self._limit = limit
        self._added_bytes: int | None = None

    def find_or_fetch(self, name: str, offset: int, length: int, fetch: Callable[[Path], None]) -> tuple[Path, int]:
        """Return the local file that has this range of `name`, and the range's offset in it; `fetch` makes a missing
        copy of the range."""
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
        """Remove all copies of a file: the file was removed, or the copies are damaged."""
        (self.path / name).unlink(missing_ok=True)
        for path in self.path.glob(f"{name}@*"):
            path.unlink(missing_ok=True)

    def evict_unused(self) -> None:
        latest = time.time() - MAX_UNUSED_SECONDS
        for path, _, opened in self._entries():
            if opened < latest:
                path.unlink(missing_ok=True)

    def _make_room(self, added: int) -> None:
        if self._added_bytes is not None and self._added_bytes + added < min(_RESCAN_BYTES, self._max_bytes() // 8):
            self._added_bytes += added
            return
        self._added_bytes = 0
        entries = sorted(self._entries(), key=lambda entry: entry[2])
        excess = sum(size for _, size, _ in entries) - self._max_bytes()
        latest = time.time() - _MIN_AGE_SECONDS
        for path, size, opened in entries:
            if excess <= 0 or opened > latest:
                return
            path.unlink(missing_ok=True)
            excess -= size

    def _max_bytes(self) -> int:
        return shutil.disk_usage(self.path).total // _DISK_FRACTION if self._limit is None else self._limit

    def _entries(self) -> Iterator[tuple[Path, int, float]]:
        """Yield each copy with its size and the time of its last use."""
        with suppress(FileNotFoundError):
            for path in self.path.iterdir():
                with suppress(FileNotFoundError):
                    status = path.stat()
                    if path.is_file() and not path.name.startswith("."):
                        yield path, status.st_size, status.st_mtime


def mark_used(path: Path) -> bool:
    """Mark the copy as used now; return whether it exists."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    except PermissionError:  # the copy belongs to another user; it can be read nevertheless
        return path.exists()
    return True


def cache_directory(location: str) -> Path:
    """Return the cache directory of a URL. The cache option is ignored, so it does not select another directory."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "viewkeeper" / "state" / hashlib.sha256(split_cache_option(location)[0].encode()).hexdigest()[:24]
