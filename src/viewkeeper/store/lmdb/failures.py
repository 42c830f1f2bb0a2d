"""LMDB's failures as Viewkeeper's errors: what happened to which database, and what to do."""

from __future__ import annotations

import errno
from contextlib import AbstractContextManager
from pathlib import Path

import lmdb

from viewkeeper.errors import OutOfMemory, ReadOnly, StoreError, TooLarge, ViewkeeperError
from viewkeeper.store.ordered.places import not_a_database


def is_denied(error: lmdb.Error) -> bool:
    return isinstance(error, lmdb.ReadonlyError) or error.code in (errno.EACCES, errno.EROFS, errno.EPERM)


class translated(AbstractContextManager[None]):
    """LMDB's errors as ours."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, lmdb.Error):
            raise translate(error, self._path) from error


def translate(error: lmdb.Error, path: Path) -> ViewkeeperError:
    """The error to raise for one of LMDB's."""
    if is_denied(error):
        return ReadOnly(f"The database {path} cannot be written: {error}.", hint="Check its permissions and its disk.")
    if isinstance(error, lmdb.MapFullError):
        return StoreError(f"The database {path} has reached its map size.", hint="Open it with a larger map_size=.")
    if isinstance(error, lmdb.DiskError) or error.code == errno.ENOSPC:
        return StoreError(f"The disk of {path} is full; nothing was written.", hint="Free some space and try again.")
    if isinstance(error, lmdb.TxnFullError):
        return TooLarge(f"A write call to {path} changes too many pages at once.", hint="Write it in several calls.")
    if isinstance(error, lmdb.MemoryError):
        return OutOfMemory(
            f"Memory ran out in the database {path}; nothing was written.",
            hint="Give the process more memory or smaller batches; if it does not open at all, a smaller map_size=.",
        )
    if isinstance(error, lmdb.ReadersFullError):
        return StoreError(f"Too many reads of {path} are going on.", hint="Close some readers.")
    if isinstance(error, lmdb.PanicError):
        return StoreError(f"A write to {path} failed half-way and LMDB stopped.", hint="Close it and open it again.")
    if isinstance(error, lmdb.InvalidError | lmdb.VersionMismatchError):
        return not_a_database(path, "its data file is not LMDB's, or is damaged")
    return StoreError(f"The database {path} failed: {error}.")
