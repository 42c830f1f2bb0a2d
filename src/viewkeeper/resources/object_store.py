"""Files behind a URL, in few requests that run side by side.

    s3:// gs:// abfs://     an object store: a request takes tens of milliseconds, and there are no directories to make
    hdfs:// file:// …       a file system that `pyarrow.fs` can open

    cache_bytes=20GB        in the URL's options: what copies on this machine may take; the rest is pyarrow's own

A small file is one PUT: pyarrow would begin an upload in parts as soon as it opens, so it is told to wait until it has
a part. A file is read whole, or only a range of it, and a long range by several requests at once.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

import pyarrow as pa

from viewkeeper.errors import BadValue
from viewkeeper.model.threads import ThreadPool
from viewkeeper.resources.process_budget import parse_size

CACHE_OPTION = "cache_bytes"
_OBJECT_STORES = frozenset({"s3", "gs", "gcs", "abfs", "abfss"})
_HINT = "Name a directory, or a URL that pyarrow.fs opens: s3://, gs://, abfs://, hdfs://, file://."
_CHUNK_BYTES = 1 << 22
_RANGE_BYTES = 1 << 24
"""Bytes that one request reads."""
_MAX_REQUESTS = 16
"""Requests that are under way at once, of one process."""

T = TypeVar("T")
R = TypeVar("R")


class RemoteDirectory:
    """A directory behind a URL. `is_flat`: an object store; a request is slow, and a directory is only a name."""

    def __init__(self, location: str) -> None:
        address, self.cache_limit = split_cache_option(location)
        self.filesystem, self.path = _open_filesystem(address)
        self.is_object_store = address.partition("://")[0].lower() in _OBJECT_STORES

    def exists(self) -> bool:
        return bool(self.filesystem.get_file_info(self.path).type.name == "Directory")

    def create(self) -> None:
        self.filesystem.create_dir(self.path, recursive=True)

    def put(self, name: str, source: Path) -> None:
        """All of a local file, there when this returns. The directory may have gone since it was made."""
        try:
            self._put(name, source)
        except FileNotFoundError:
            if not source.exists():
                raise
            self.create()
            self._put(name, source)

    def _put(self, name: str, source: Path) -> None:
        with source.open("rb") as file, self.filesystem.open_output_stream(f"{self.path}/{name}") as target:
            while part := file.read(_CHUNK_BYTES):
                target.write(part)

    def get(self, name: str, target: Path, offset: int = 0, length: int | None = None) -> None:
        """A file, or a range of it, as a new local file. FileNotFoundError if it is not there."""
        fresh = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            with self.filesystem.open_input_file(f"{self.path}/{name}") as source, fresh.open("xb") as file:
                whole = source.size() - offset if length is None else length
                if offset + whole > source.size():  # whoever reads the copy finds it too short, and says so
                    whole = max(0, source.size() - offset)
                starts = range(0, whole, _RANGE_BYTES)

                def copied(start: int) -> None:
                    count = min(_RANGE_BYTES, whole - start)
                    os.pwrite(file.fileno(), source.read_at(count, offset + start), start)

                run_parallel(copied, starts, "ranges")
            fresh.replace(target)
        finally:
            fresh.unlink(missing_ok=True)

    def list_files(self) -> Sequence[Any]:
        """`pyarrow.fs.FileInfo` of each file in it; none if it is not there."""
        from pyarrow import fs

        return [i for i in self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True)) if i.is_file]

    def remove(self, name: str) -> None:
        """Again is no error."""
        path = f"{self.path}/{name}"
        try:
            self.filesystem.delete_file(path)
        except FileNotFoundError:
            return
        except OSError:
            # Not all say by FileNotFoundError that there was nothing to delete.
            if self.filesystem.get_file_info(path).type.name != "NotFound":
                raise


def run_parallel(work: Callable[[T], R], items: Iterable[T], pool: str = "files") -> list[R]:
    """The work on each of the things, several at once; raises what one of them raised.

    `threads`: whose. Work that itself waits for work side by side has others, or all would wait for each other.
    """
    items = list(items)
    if len(items) < 2:
        return [work(thing) for thing in items]
    return list(_thread_pool(os.getpid(), pool).map(work, items))


def run_in_background(work: Callable[[], R]) -> Future[R]:
    """The work, in the background. (Threads of their own: what is done here may itself be done side by side.)"""
    return _thread_pool(os.getpid(), "soon").submit(work)


def split_cache_option(location: str) -> tuple[str, int | None]:
    """The URL as pyarrow reads it, and how many bytes its copies may take (None: not said)."""
    address, _, options = location.partition("?")
    given = parse_qsl(options, keep_blank_values=True)
    limits = [value for key, value in given if key == CACHE_OPTION]
    if not limits:
        return location, None
    rest = urlencode([(k, v) for k, v in given if k != CACHE_OPTION], safe=":/")
    return f"{address}?{rest}" if rest else address, parse_size(limits[-1], CACHE_OPTION)


@lru_cache(maxsize=8)
def _thread_pool(process: int, _: str) -> ThreadPool:
    """Of this process: a fork has none of its parent's threads."""
    return ThreadPool(_MAX_REQUESTS, thread_name_prefix="viewkeeper-elsewhere")


@lru_cache(maxsize=64)
def _open_filesystem(address: str) -> tuple[Any, str]:
    from pyarrow import fs  # only where it is needed: loading it takes as long as starting up

    try:
        filesystem, path = fs.FileSystem.from_uri(address)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ImportError, OSError) as error:
        raise BadValue(f"{address} cannot be opened: {str(error).splitlines()[0][:300]}", hint=_HINT) from error
    if address.startswith("s3://"):
        # A URL cannot say it; what copies the file system to other processes can.
        make, (options,) = filesystem.__reduce__()
        filesystem = make({**options, "allow_delayed_open": True})
    return filesystem, path.rstrip("/")
