"""Secondary instances of RocksDB: reads of a database that another process writes.

A secondary instance shows the database as of its last catch-up with the writer's log files, and changes only then. So
an instance that has one reader at a time is a state: it catches up before a read and never during one. Concurrent
readers have an instance each; idle instances are kept for later reads.

An instance fills a memtable of its own from the log files and treats its entries as newer than any table file. That is
right while the log files are those with which it was opened. After the writer has flushed, the memtable may lack
entries that only a deleted log file had, and hide entries of the new table file; such an instance is replaced. The
names of the log files show whether that happened while an instance was opened or caught up.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rocksdict import AccessType, Options, Rdict

from viewkeeper.errors import StoreError
from viewkeeper.resources.fork_guard import never_release

_MAX_IDLE = 4
_ATTEMPTS = 50


@dataclass(frozen=True)
class LogFiles:
    """The names of the writer's log files, and the size of the newest one, which grows with every write."""

    names: frozenset[str]
    size: int


@dataclass(frozen=True)
class SecondaryInstance:
    """A secondary instance, its directory, and the log files before its last catch-up."""

    db: Rdict
    directory: Path
    log_files: LogFiles

    def close(self) -> None:
        with suppress(Exception):
            self.db.close()
        shutil.rmtree(self.directory, ignore_errors=True)


class SecondaryPool:
    """The secondary instances of this process for one database."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._idle: list[SecondaryInstance] = []
        self._closed = False

    def acquire(self) -> SecondaryInstance:
        """Return an instance that shows all writes before this call; `release` gives it back."""
        failure: Exception | None = None
        for attempt in range(_ATTEMPTS):
            logs = self._list_logs()
            with self._lock:
                instance = self._idle.pop() if self._idle else None
            if instance is not None and instance.log_files == logs:
                return instance
            try:
                if instance is None:
                    db, directory = self._open()
                    instance = SecondaryInstance(db, directory, logs)
                elif instance.log_files.names == logs.names:
                    instance.db.try_catch_up_with_primary()
                    instance = SecondaryInstance(instance.db, instance.directory, logs)
                if instance.log_files.names == logs.names == self._list_logs().names:
                    return instance
            except Exception as error:  # files that are deleted while they are read
                failure = error
            if instance is not None:
                instance.close()
            time.sleep(0.001 * attempt)
        raise StoreError(
            f"The files of {self._path} change faster than they can be followed: {failure or 'its log goes on'}.",
            hint="Try again, or read through the process that writes.",
        )

    def release(self, instance: SecondaryInstance) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _MAX_IDLE:
                self._idle.append(instance)
                return
        instance.close()

    def _open(self) -> tuple[Rdict, Path]:
        directory = Path(tempfile.mkdtemp(prefix="viewkeeper-rocksdb-"))
        try:
            return Rdict(
                str(self._path), Options(raw_mode=True), access_type=AccessType.secondary(str(directory))
            ), directory
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise

    def _list_logs(self) -> LogFiles:
        with os.scandir(self._path) as found:
            names = [entry.name for entry in found if entry.name.endswith(".log")]
        size = 0
        if names:
            newest = max(names, key=lambda name: int(name.partition(".")[0]))
            with suppress(FileNotFoundError):
                size = (self._path / newest).stat().st_size
        return LogFiles(frozenset(names), size)

    def abandon(self) -> None:
        """Give up the instances in a forked child. They belong to the parent, like an instance that a scan may still
        release."""
        self._lock = threading.Lock()
        never_release(self)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for instance in idle:
            instance.close()
