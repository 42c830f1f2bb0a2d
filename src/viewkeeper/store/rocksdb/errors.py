"""RocksDB's errors as Viewkeeper's. The binding has one exception class, whose text begins with RocksDB's status."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from viewkeeper.errors import CorruptState, ReadOnly, StoreError, ViewkeeperError

_KEY_NOT_FOUND = "key not found"


def is_absent(error: Exception) -> bool:
    """Return whether the error means that a snapshot does not have the key."""
    return str(error) == _KEY_NOT_FOUND


def is_locked(error: Exception) -> bool:
    text = str(error)
    return "lock hold by current process" in text or "While lock file" in text


def is_locked_elsewhere(error: BaseException | None) -> bool:
    """Return whether another process has the database open for writing."""
    return "While lock file" in str(error) and "current process" not in str(error)


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (ViewkeeperError, GeneratorExit, StopIteration):
        raise
    except Exception as error:
        if type(error) is not Exception and type(error).__name__ != "DbClosedError":
            raise
        raise translate_error(error, path) from error


def translate_error(error: Exception, path: Path) -> ViewkeeperError:
    """Return the error to raise for an error of RocksDB."""
    text = str(error)
    if is_locked(error):
        return StoreError(
            f"The database {path} is open to be written in another process, and RocksDB has one writer.",
            hint="Read it here (vk get, vk scan; mode='r'), or write through that process: vk serve there,"
            " --db http://HOST:PORT here.",
        )
    if "No space left on device" in text:
        return StoreError(f"The disk of {path} is full; nothing was written.", hint="Free some space and try again.")
    if "Permission denied" in text or "Read-only file system" in text:
        return ReadOnly(f"The database {path} cannot be written: {text}.", hint="Check its permissions and its disk.")
    if text.startswith("Corruption"):
        return CorruptState(f"The database {path} is damaged: {text}.", hint="Restore it from a backup.")
    return StoreError(f"The database {path} failed: {text}.")
