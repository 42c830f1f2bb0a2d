"""Two environments of one database in one process: one that only reads, and one that writes.

LMDB forbids this for two reasons. First, a process that opens a database which no process has open resets its reader
table, and LMDB detects that with a file lock, which the kernel never refuses to the process that holds it. Second, a
process that closes a database releases the process's locks and its slots in that table. So the second environment is
opened behind a lock of another kind on the same byte of the lock file, one that also conflicts within the process (an
open file description lock): LMDB then takes the first environment for another process. The lock file and both
environments stay open until both can be closed (`shared_environments`).
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import lmdb._envid

from viewkeeper.errors import ReadOnly, StoreError

FileIdentity = tuple[int, int]
"""Device and inode of a database's data file."""

_open_counts: dict[FileIdentity, int] = {}
"""Number of environments of each database that this process has open."""

_fence_descriptors: dict[FileIdentity, int] = {}
_FLOCK = struct.Struct("hhqqi4x")


def register_open(files: FileIdentity) -> None:
    _open_counts[files] = _open_counts.get(files, 0) + 1


@contextmanager
def open_beside(path: Path, files: FileIdentity | None) -> Iterator[None]:
    """Open an environment inside the block, beside one that this process may have open."""
    if files is None or not _open_counts.get(files):
        yield
        return
    if files not in _fence_descriptors:
        _fence_descriptors[files] = _lock_fence(path)
    with allow_second_open(path):
        try:
            yield
        except BaseException:
            # The failed attempt has closed the lock file, which released the first environment's locks.
            _relock(_fence_descriptors[files])
            raise


@contextmanager
def allow_second_open(path: Path) -> Iterator[None]:
    """Let py-lmdb open files that it counts as open in this process. It normally refuses this to protect their
    locks."""
    guard = getattr(lmdb, "_envid", None)
    if guard is None:
        raise StoreError(f"The database {path} is open in this process already.", hint="Close it first.")
    identify, guard.env_keys = guard.env_keys, lambda path, subdir: ()
    try:
        yield
    finally:
        guard.env_keys = identify


def _lock_fence(path: Path) -> int:
    command = getattr(fcntl, "F_OFD_SETLK", None)
    if command is None:
        raise StoreError(
            f"The database {path} is open with mode='r' in this process.", hint="Open it with mode='w' first."
        )
    if not os.access(path / "data.mdb", os.W_OK):
        raise ReadOnly(f"The database {path} cannot be written.", hint="Check its permissions and its disk.")
    descriptor = os.open(path / "lock.mdb", os.O_RDWR | os.O_CLOEXEC)
    fcntl.fcntl(descriptor, command, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0))
    return descriptor


def _relock(descriptor: int) -> None:
    """Take LMDB's own locks: one for an open database, and one that shows that the process with this number is
    alive."""
    for kind, byte in ((fcntl.F_RDLCK, 0), (fcntl.F_WRLCK, os.getpid())):
        fcntl.fcntl(descriptor, fcntl.F_SETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))


def release_fence(files: FileIdentity) -> None:
    """Forget a database whose environments are all closed. Closing the lock file then releases no lock that is
    needed."""
    _open_counts.pop(files, None)
    if (descriptor := _fence_descriptors.pop(files, None)) is not None:
        os.close(descriptor)


def release_all_fences() -> None:
    """Release all fences in a forked child, which has none of the parent's locks and no environment open."""
    for files in {*_open_counts, *_fence_descriptors}:
        release_fence(files)
