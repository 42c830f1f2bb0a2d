"""A state directory: on this machine, mounted there, or remote behind a URL with a local cache.

    /path                   a local or mounted directory: its files are used in place
    s3:// gs:// hdfs:// …   what `pyarrow.fs` can open (`object_store`): a file is written locally and uploaded before
                            it counts; the file, or the requested range of it, is copied here on its first read
                            (`file_cache`) and mapped from then on

Files are written once, under unique names, and never changed. So a copy is equivalent to the file, whichever process
made it, and a file that no manifest lists is garbage (`unlisted_files`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

from viewkeeper.errors import StoreError
from viewkeeper.resources.file_cache import FileCache, mark_used
from viewkeeper.resources.object_store import RemoteDirectory

_CREATED: set[tuple[str, Path]] = set()
"""Remote directories that this process has created, with their cache paths: a creation takes three requests."""


def flush_directory(path: str | os.PathLike[str]) -> None:
    """Make the names of new files durable: flushing a file does not flush its directory entry."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class StateDirectory(os.PathLike[str]):
    """`str` gives the location, which other processes can open; as a path it is the local directory with the files or
    their copies."""

    def __init__(self, location: str | os.PathLike[str]) -> None:
        self._location = str(location)
        self._remote = RemoteDirectory(self._location) if "://" in self._location else None
        self._cache = None if self._remote is None else FileCache(self._location, self._remote.cache_limit)
        self._local_path = Path(self._location) if self._cache is None else self._cache.path

    def __str__(self) -> str:
        return self._location

    def __fspath__(self) -> str:
        return str(self._local_path)

    def __truediv__(self, name: str) -> Path:
        return self._local_path / name

    def subdirectory(self, name: str) -> StateDirectory:
        """Return a directory inside this one, opened with the same options if it is behind a URL."""
        path, mark, options = self._location.partition("?") if self._remote is not None else (self._location, "", "")
        return StateDirectory(f"{path.rstrip('/')}/{name}{mark}{options}")

    @property
    def is_local(self) -> bool:
        return self._remote is None

    @property
    def is_object_store(self) -> bool:
        """Whether the files are in an object store, where each request costs tens of milliseconds."""
        return self._remote is not None and self._remote.is_object_store

    def exists(self) -> bool:
        if self._remote is None:
            return self._local_path.is_dir()
        with self._report_errors("looked for"):
            return self._remote.exists()

    def create(self) -> None:
        try:
            self._local_path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"The directory {self._local_path} cannot be made: {error.strerror}.",
                hint="Free space or fix the permissions.",
            ) from error
        if self._remote is None or self._cache is None:
            return
        if not self.is_object_store or (self._location, self._local_path) not in _CREATED:
            with self._report_errors("made"):
                self._remote.create()
            self._cache.evict_unused()
            _CREATED.add((self._location, self._local_path))

    def upload(self, name: str) -> None:
        """Publish a file that was written locally. When this returns, a remote directory has it."""
        if self._remote is not None:
            with self._report_errors(f"given {name}"):
                self._remote.put(name, self._local_path / name)

    def fetch(self, name: str, *, refresh: bool = False) -> Path:
        """Return the file's local path, which may not exist. `refresh` copies a remote file again."""
        path = self._local_path / name
        remote = self._remote
        if remote is None or self._cache is None or (not refresh and mark_used(path)):
            return path
        try:
            with self._report_errors(f"asked for {name}"):
                self._cache.add(path, lambda target: remote.get(name, target))
        except FileNotFoundError:
            self._cache.evict(name)
        return path

    def fetch_range(self, name: str, offset: int, length: int, *, refresh: bool = False) -> tuple[Path, int]:
        """Return the local file that has these bytes of a file, and their offset in it."""
        remote = self._remote
        if remote is None or self._cache is None:
            return self._local_path / name, offset
        if refresh:
            self._cache.evict(name)
        try:
            with self._report_errors(f"asked for {name}"):
                return self._cache.find_or_fetch(
                    name, offset, length, lambda target: remote.get(name, target, offset, length)
                )
        except FileNotFoundError:
            return self._local_path / name, offset

    def list_names(self, pattern: str, *, min_age: float = 0.0) -> list[str]:
        """Return the names of files and of whole copies that match; `min_age` is the minimum time in seconds
        since a file was written or used."""
        latest = time.time() - min_age
        mtimes: dict[str, float] = {}
        with suppress(FileNotFoundError):
            for path in self._local_path.glob(pattern):
                with suppress(FileNotFoundError):
                    mtimes[path.name] = path.stat().st_mtime
        if self._remote is not None:
            with self._report_errors("listed"):
                infos = self._remote.list_files()
            mtimes |= {i.base_name: i.mtime.timestamp() for i in infos if fnmatch(i.base_name, pattern)}
        return sorted(name for name, touched in mtimes.items() if not min_age or touched < latest)

    def total_bytes(self, pattern: str) -> int:
        """Return the total size of the files whose names match."""
        if self._remote is None:
            total = 0
            for path in self._local_path.glob(pattern):
                with suppress(FileNotFoundError):
                    total += path.stat().st_size
            return total
        with self._report_errors("listed"):
            return sum(i.size or 0 for i in self._remote.list_files() if fnmatch(i.base_name, pattern))

    def remove(self, name: str) -> None:
        """Remove a file; removing it a second time is no error."""
        if self._remote is None or self._cache is None:
            (self._local_path / name).unlink(missing_ok=True)
            return
        self._cache.evict(name)
        with self._report_errors(f"rid of {name}"):
            self._remote.remove(name)

    @contextmanager
    def _report_errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(
                f"{self._location} could not be {action}: {str(error).splitlines()[0][:300]}.",
                hint="Check that it can be reached and may be written.",
            ) from error
