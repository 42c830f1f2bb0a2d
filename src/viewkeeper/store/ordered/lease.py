"""The maintainer's lease: a lock on the file `maintainer.lock`, whose content names the holder.

The kernel releases the lock when the process ends in any way, so no lease is stale. While the process lives, even
stopped, no other process gets the lease. If the file is removed, the lease is lost, and its holder checks for that
before it publishes or deletes anything. A forked child closes its copy of the file at once, because the lock belongs to
the parent.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from viewkeeper.errors import MaintainerBusy, ReadOnly
from viewkeeper.store.contract.tables import LeaseStore
from viewkeeper.store.ordered.handle import StoreHandle

_FILE = "maintainer.lock"
BUSY_HINT = (
    "End it there first. Reading, writing, CREATE, ALTER and DROP work beside it; `vk run --standby` takes over."
)
_open_leases: set[FileLease] = set()


class FileLease:
    """The right to maintain the database in a directory, until it is released or the process ends."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor: int | None = descriptor
        self._path = path
        _open_leases.add(self)

    @property
    def is_lost(self) -> bool:
        """Whether the locked file has been removed or replaced, so that another process can take the lease."""
        if self._descriptor is None:
            return True
        try:
            locked, current = os.fstat(self._descriptor), self._path.stat()
        except OSError:
            return True
        return (locked.st_dev, locked.st_ino) != (current.st_dev, current.st_ino)

    def release(self) -> None:
        """Release the lease; releasing twice is no error."""
        if self._descriptor is not None:
            with suppress(OSError):  # a disk error must not keep the lock
                os.ftruncate(self._descriptor, 0)
            self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        _open_leases.discard(self)


class FileLeaseStore(LeaseStore):
    """Manages the lease of a database in a directory."""

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle
        self._lease: FileLease | None = None

    @property
    def is_lost(self) -> bool:
        """Whether this store has held the lease and another process may have it by now."""
        return self._lease is not None and self._lease.is_lost

    def acquire_lease(self) -> FileLease:
        self._handle.require_writable()
        self._lease = acquire_lease(self._handle.path)
        return self._lease

    def lease_holder(self) -> str | None:
        return lease_holder(self._handle.path)


def acquire_lease(directory: Path) -> FileLease:
    """Acquire the lease, or raise MaintainerBusy naming the holder."""
    try:
        descriptor = os.open(directory / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ReadOnly(f"The database {directory} cannot be maintained: {error.strerror}.") from error
    # `lease_holder` locks the file for an instant to test it, so a failed attempt is repeated.
    for attempt in range(4):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if attempt == 3:
                name = os.pread(descriptor, 500, 0).decode(errors="replace").strip() or "another process"
                os.close(descriptor)
                raise MaintainerBusy(
                    f"The database {directory} is maintained by {name}.",
                    hint=BUSY_HINT,
                ) from None
            time.sleep(0.005)
    since = datetime.now(UTC).isoformat(timespec="seconds")
    with suppress(OSError):  # only the lock matters; on a full disk the holder's name is missing
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode(), 0)
    return FileLease(descriptor, directory / _FILE)


def lease_holder(directory: Path) -> str | None:
    """Return the description of the current maintainer; None if there is none."""
    try:
        descriptor = os.open(directory / _FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(descriptor, 500, 0).decode(errors="replace").strip() or "another process"
    else:
        return None
    finally:
        os.close(descriptor)


def _after_fork() -> None:
    for lease in list(_open_leases):
        lease._close()


os.register_at_fork(after_in_child=_after_fork)
