"""Files behind a URL, accessed with few and parallel requests.

    s3:// gs:// abfs://     an object store: a request takes tens of milliseconds, and directories are not created
    hdfs:// file:// …       a file system that `pyarrow.fs` can open

    cache_bytes=20GB        option of the URL: the limit of the copies on this machine; pyarrow reads the other options

A small file is one PUT: pyarrow would start a multipart upload on opening, so its `allow_delayed_open` option is set. A
file is read whole or by a range, and a long range with several requests at once.
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
"""Maximum number of concurrent requests of one process and pool."""

T = TypeVar("T")
R = TypeVar("R")


class RemoteDirectory:
    """A directory behind a URL. With `is_object_store`, a request is slow, and a directory is only a name prefix."""

    def __init__(self, location: str) -> None:
        address, self.cache_limit = split_cache_option(location)
        self.filesystem, self.path = _open_filesystem(address)
        self.is_object_store = address.partition("://")[0].lower() in _OBJECT_STORES

    def exists(self) -> bool:
        return bool(self.filesystem.get_file_info(self.path).type.name == "Directory")

    def create(self) -> None:
        self.filesystem.create_dir(self.path, recursive=True)

    def put(self, name: str, source: Path) -> None:
        """Upload a local file; it is complete when this returns. A directory removed since its creation is created
        again."""
        try:
            self._put(name, source)
        except FileNotFoundError:
            if not source.exists():
                raise
            self.create()
            self._put(name, source)

    def _put(self, name: str, source: Path) -> None:
        with source.open("rb") as file, self.filesystem.open_output_stream(f"{self.path}/{name}") as target:
            while chunk := file.read(_CHUNK_BYTES):
                target.write(chunk)

    def get(self, name: str, target: Path, offset: int = 0, length: int | None = None) -> None:
        """Copy a file, or a range of it, into a new local file. Raise FileNotFoundError if the file does not exist."""
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            with self.filesystem.open_input_file(f"{self.path}/{name}") as source, temporary.open("xb") as file:
                size = source.size() - offset if length is None else length
                if offset + size > source.size():  # the reader of the copy reports that it is too short
                    size = max(0, source.size() - offset)
                starts = range(0, size, _RANGE_BYTES)

                def copy_range(start: int) -> None:
                    count = min(_RANGE_BYTES, size - start)
                    os.pwrite(file.fileno(), source.read_at(count, offset + start), start)

                run_parallel(copy_range, starts, "ranges")
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def list_files(self) -> Sequence[Any]:
        """Return the `pyarrow.fs.FileInfo` of each file in the directory; none if the directory does not exist."""
        from pyarrow import fs

        return [i for i in self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True)) if i.is_file]

    def remove(self, name: str) -> None:
        """Remove a file; removing it a second time is no error."""
        path = f"{self.path}/{name}"
        try:
            self.filesystem.delete_file(path)
        except FileNotFoundError:
            return
        except OSError:
            # Some file systems raise another error than FileNotFoundError for a missing file.
            if self.filesystem.get_file_info(path).type.name != "NotFound":
                raise


def run_parallel(work: Callable[[T], R], items: Iterable[T], pool: str = "files") -> list[R]:
    """Apply `work` to the items in parallel, and return the results in order; raise the first error.

    `pool` names the thread pool. Work that itself waits for parallel work needs another pool, or a pool's threads would
    all wait for each other.
    """
    items = list(items)
    if len(items) < 2:
        return [work(item) for item in items]
    return list(_thread_pool(os.getpid(), pool).map(work, items))


def run_in_background(work: Callable[[], R]) -> Future[R]:
    """Start `work` in a background thread. These threads have their own pool, since `work` may call `run_parallel`."""
    return _thread_pool(os.getpid(), "soon").submit(work)


def split_cache_option(location: str) -> tuple[str, int | None]:
    """Return the URL without the cache option, as pyarrow reads it, and the cache limit in bytes (None: not set)."""
    address, _, options = location.partition("?")
    pairs = parse_qsl(options, keep_blank_values=True)
    limits = [value for key, value in pairs if key == CACHE_OPTION]
    if not limits:
        return location, None
    rest = urlencode([(k, v) for k, v in pairs if k != CACHE_OPTION], safe=":/")
    return f"{address}?{rest}" if rest else address, parse_size(limits[-1], CACHE_OPTION)


@lru_cache(maxsize=8)
def _thread_pool(process: int, _: str) -> ThreadPool:
    """Return the pool of a process: a fork has none of its parent's threads."""
    return ThreadPool(_MAX_REQUESTS, thread_name_prefix="viewkeeper-elsewhere")


@lru_cache(maxsize=64)
def _open_filesystem(address: str) -> tuple[Any, str]:
    from pyarrow import fs  # imported here because loading it takes as long as the program's start

    try:
        filesystem, path = fs.FileSystem.from_uri(address)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ImportError, OSError) as error:
        raise BadValue(f"{address} cannot be opened: {str(error).splitlines()[0][:300]}", hint=_HINT) from error
    if address.startswith("s3://"):
        # The URL has no such option, but the arguments by which a file system is serialised do.
        constructor, (options,) = filesystem.__reduce__()
        filesystem = constructor({**options, "allow_delayed_open": True})
    return filesystem, path.rstrip("/")
