"""A directory of files that is on this machine, mounted there, or elsewhere behind a URL, with copies here.

    /path                   a local or mounted directory: the files are where they are
    s3:// gs:// hdfs:// …   what `pyarrow.fs` can open: a file is written here and copied there before it counts; it is
                            copied here when it is first read, and mapped from then on

Files are written once, under names of their own, and never changed. So a copy is as good as the file, whoever made it,
and what is listed nowhere is garbage.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from viewkeeper.errors import BadValue, StoreError

_AT_ONCE = 1 << 22
_COPY_SECONDS = 7 * 86_400.0
_HINT = "Name a directory, or a URL that pyarrow.fs opens: s3://, gs://, abfs://, hdfs://, file://."


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
        self._remote = _open(self._place) if "://" in self._place else None
        self._here = Path(self._place) if self._remote is None else copies(self._place)

    def __str__(self) -> str:
        return self._place

    def __fspath__(self) -> str:
        return str(self._here)

    def __truediv__(self, name: str) -> Path:
        return self._here / name

    def below(self, name: str) -> Directory:
        """A directory in it, opened with the same options if it is behind a URL."""
        path, mark, options = self._place.partition("?") if self._remote is not None else (self._place, "", "")
        return Directory(f"{path.rstrip('/')}/{name}{mark}{options}")

    @property
    def is_local(self) -> bool:
        return self._remote is None

    def exists(self) -> bool:
        if self._remote is None:
            return self._here.is_dir()
        with self._told("looked for"):
            return bool(self._remote[0].get_file_info(self._remote[1]).type.name == "Directory")

    def make(self) -> None:
        try:
            self._here.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"The directory {self._here} cannot be made: {error.strerror}.",
                hint="Free space or fix the permissions.",
            ) from error
        if self._remote is not None:
            with self._told("made"):
                self._remote[0].create_dir(self._remote[1], recursive=True)
            self._forget_copies()

    def save(self, name: str) -> None:
        """A file that was written here now counts: elsewhere, it is there when this returns."""
        if self._remote is None:
            return
        filesystem, path = self._remote
        with self._told(f"given {name}"), (self._here / name).open("rb") as file:
            _copy(file, filesystem.open_output_stream(f"{path}/{name}"))

    def fetch(self, name: str, *, again: bool = False) -> Path:
        """Where the file is on this machine, or where it would be; `again`: not the copy that is there already."""
        path = self._here / name
        if self._remote is None or (path.exists() and not again):
            return path
        filesystem, there = self._remote
        self._here.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = path.with_name(f".{name}.{secrets.token_hex(4)}")
        try:
            with self._told(f"asked for {name}"), filesystem.open_input_stream(f"{there}/{name}") as source:
                _copy(source, fresh.open("xb"))
            fresh.replace(path)
        except FileNotFoundError:
            path.unlink(missing_ok=True)
        finally:
            fresh.unlink(missing_ok=True)
        return path

    def names(self, pattern: str, *, older: float = 0.0) -> list[str]:
        """The files, and copies of files, with such names; `older`: not touched for so many seconds."""
        before = time.time() - older
        found: dict[str, float] = {}
        with suppress(FileNotFoundError):
            found = {p.name: p.stat().st_mtime for p in self._here.glob(pattern)}
        if self._remote is not None:
            from pyarrow import fs

            with self._told("listed"):
                listed = self._remote[0].get_file_info(fs.FileSelector(self._remote[1], allow_not_found=True))
            found |= {i.base_name: i.mtime.timestamp() for i in listed if fnmatch(i.base_name, pattern)}
        return sorted(name for name, touched in found.items() if not older or touched < before)

    def size(self, pattern: str) -> int:
        """Bytes of the files with such names."""
        if self._remote is None:
            total = 0
            for path in self._here.glob(pattern):
                with suppress(FileNotFoundError):
                    total += path.stat().st_size
            return total
        from pyarrow import fs

        with self._told("listed"):
            listed = self._remote[0].get_file_info(fs.FileSelector(self._remote[1], allow_not_found=True))
        return sum(i.size or 0 for i in listed if fnmatch(i.base_name, pattern))

    def remove(self, name: str) -> None:
        """Again is no error."""
        (self._here / name).unlink(missing_ok=True)
        if self._remote is not None:
            filesystem, path = self._remote[0], f"{self._remote[1]}/{name}"
            with suppress(FileNotFoundError), self._told(f"rid of {name}"):
                try:
                    filesystem.delete_file(path)
                except OSError:
                    # Not all say by FileNotFoundError that there was nothing to delete.
                    if filesystem.get_file_info(path).type.name != "NotFound":
                        raise

    def _forget_copies(self) -> None:
        """Old copies go: what is still needed is copied again, and what another machine has removed goes here too."""
        before = time.time() - _COPY_SECONDS
        for path in self._here.iterdir():
            with suppress(FileNotFoundError):
                if path.is_file() and path.stat().st_mtime < before:
                    path.unlink()

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


@lru_cache(maxsize=64)
def _open(place: str) -> tuple[Any, str]:
    from pyarrow import fs  # only where it is needed: loading it takes as long as starting up

    try:
        filesystem, path = fs.FileSystem.from_uri(place)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ImportError, OSError) as error:
        raise BadValue(f"{place} cannot be opened: {str(error).splitlines()[0][:300]}", hint=_HINT) from error
    return filesystem, path.rstrip("/")


def _copy(source: Any, target: Any) -> None:
    """Copy all of it, and close the target: only then is it written."""
    with target:
        while part := source.read(_AT_ONCE):
            target.write(part)


def copies(place: str) -> Path:
    """A directory of its own for the copies."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "viewkeeper" / "state" / hashlib.sha256(place.encode()).hexdigest()[:24]
