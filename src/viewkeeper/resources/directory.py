"""A directory of files that is on this machine, mounted there, or elsewhere behind a URL, with copies here.

    /path                   a local or mounted directory: the files are where they are
    s3:// gs:// hdfs:// …   what `pyarrow.fs` can open (`elsewhere`): a file is written here and copied there before it
                            counts; it, or the range that is wanted, is copied here when it is first read (`copies`),
                            and mapped from then on

Files are written once, under names of their own, and never changed. So a copy is as good as the file, whoever made it,
and what is listed nowhere is garbage (`sweeping`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

from viewkeeper.errors import StoreError
from viewkeeper.resources.file_cache import Copies, touched
from viewkeeper.resources.object_store import Elsewhere

_MADE: set[tuple[str, Path]] = set()
"""Directories elsewhere that this process has made, and where their copies are: making one takes three requests."""


def flush_directory(path: str | os.PathLike[str]) -> None:
    """Make the names of new files last: a file's own flush does not."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Directory(os.PathLike[str]):
    """`str` names it to other processes; as a path it is where its files, or their copies, are on this machine."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self._place = str(place)
        self._there = Elsewhere(self._place) if "://" in self._place else None
        self._copies = None if self._there is None else Copies(self._place, self._there.limit)
        self._here = Path(self._place) if self._copies is None else self._copies.path

    def __str__(self) -> str:
        return self._place

    def __fspath__(self) -> str:
        return str(self._here)

    def __truediv__(self, name: str) -> Path:
        return self._here / name

    def below(self, name: str) -> Directory:
        """A directory in it, opened with the same options if it is behind a URL."""
        path, mark, options = self._place.partition("?") if self._there is not None else (self._place, "", "")
        return Directory(f"{path.rstrip('/')}/{name}{mark}{options}")

    @property
    def is_local(self) -> bool:
        return self._there is None

    @property
    def is_far(self) -> bool:
        """In an object store: each request costs tens of milliseconds."""
        return self._there is not None and self._there.is_flat

    def exists(self) -> bool:
        if self._there is None:
            return self._here.is_dir()
        with self._told("looked for"):
            return self._there.exists()

    def make(self) -> None:
        try:
            self._here.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"The directory {self._here} cannot be made: {error.strerror}.",
                hint="Free space or fix the permissions.",
            ) from error
        if self._there is None or self._copies is None:
            return
        if not self.is_far or (self._place, self._here) not in _MADE:
            with self._told("made"):
                self._there.make()
            self._copies.forget_old()
            _MADE.add((self._place, self._here))

    def save(self, name: str) -> None:
        """A file that was written here now counts: elsewhere, it is there when this returns."""
        if self._there is not None:
            with self._told(f"given {name}"):
                self._there.put(name, self._here / name)

    def fetch(self, name: str, *, again: bool = False) -> Path:
        """Where the file is on this machine, or where it would be; `again`: not the copy that is there already."""
        path = self._here / name
        there = self._there
        if there is None or self._copies is None or (not again and touched(path)):
            return path
        try:
            with self._told(f"asked for {name}"):
                self._copies.make(path, lambda target: there.get(name, target))
        except FileNotFoundError:
            self._copies.forget(name)
        return path

    def fetch_range(self, name: str, offset: int, length: int, *, again: bool = False) -> tuple[Path, int]:
        """Where these bytes of a file are on this machine: in which file, and from which byte on."""
        there = self._there
        if there is None or self._copies is None:
            return self._here / name, offset
        if again:
            self._copies.forget(name)
        try:
            with self._told(f"asked for {name}"):
                return self._copies.of(name, offset, length, lambda target: there.get(name, target, offset, length))
        except FileNotFoundError:
            return self._here / name, offset

    def names(self, pattern: str, *, older: float = 0.0) -> list[str]:
        """The files, and whole copies of files, with such names; `older`: not touched for so many seconds."""
        before = time.time() - older
        found: dict[str, float] = {}
        with suppress(FileNotFoundError):
            for path in self._here.glob(pattern):
                with suppress(FileNotFoundError):
                    found[path.name] = path.stat().st_mtime
        if self._there is not None:
            with self._told("listed"):
                listed = self._there.listed()
            found |= {i.base_name: i.mtime.timestamp() for i in listed if fnmatch(i.base_name, pattern)}
        return sorted(name for name, touched in found.items() if not older or touched < before)

    def size(self, pattern: str) -> int:
        """Bytes of the files with such names."""
        if self._there is None:
            total = 0
            for path in self._here.glob(pattern):
                with suppress(FileNotFoundError):
                    total += path.stat().st_size
            return total
        with self._told("listed"):
            return sum(i.size or 0 for i in self._there.listed() if fnmatch(i.base_name, pattern))

    def remove(self, name: str) -> None:
        """Again is no error."""
        if self._there is None or self._copies is None:
            (self._here / name).unlink(missing_ok=True)
            return
        self._copies.forget(name)
        with self._told(f"rid of {name}"):
            self._there.remove(name)

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(
                f"{self._place} could not be {what}: {str(error).splitlines()[0][:300]}.",
                hint="Check that it can be reached and may be written.",
            ) from error
