"""Reading what another process writes: secondary instances of RocksDB.

A secondary instance shows the database as it was when it last caught up with the writer's log files, and changes only
then. So one that is read by one reader at a time is a state: it catches up before a read and not during it. Readers
that overlap have an instance each; some are kept for the next.

An instance fills a memory of its own from the log files, and takes what is there for newer than any table file. That
holds while the log files are those with which it was opened. When the writer has flushed, its memory may lack what only
the log that is gone had, and hide what the new table file has; such an instance is given up for a new one. Whether that
happened while an instance was opened or caught up, the names of the log files tell afterwards.
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
    """The writer's log files, and the size of the newest: every write is in it, so it differs after one."""

    names: frozenset[str]
    size: int


@dataclass(frozen=True)
class SecondaryInstance:
    """An instance, its directory, and what the log files were before it last looked at them."""

    db: Rdict
    directory: Path
    log_files: LogFiles

    def close(self) -> None:
        with suppress(Exception):
            self.db.close()
        shutil.rmtree(self.directory, ignore_errors=True)


class SecondaryPool:
    """The instances of this process for one database."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._idle: list[SecondaryInstance] = []
        self._closed = False

    def acquire(self) -> SecondaryInstance:
        """An instance that shows all that was written before this call; `give` it back."""
        failure: Exception | None = None
        for attempt in range(_ATTEMPTS):
            now = self._list_logs()
            with self._lock:
                one = self._idle.pop() if self._idle else None
            if one is not None and one.log_files == now:
                return one
            try:
                if one is None:
                    db, place = self._open()
                    one = SecondaryInstance(db, place, now)
                elif one.log_files.names == now.names:
                    one.db.try_catch_up_with_primary()
                    one = SecondaryInstance(one.db, one.directory, now)
                if one.log_files.names == now.names == self._list_logs().names:
                    return one
            except Exception as error:  # files that go while they are read
                failure = error
            if one is not None:
                one.close()
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
        place = Path(tempfile.mkdtemp(prefix="viewkeeper-rocksdb-"))
        try:
            return Rdict(str(self._path), Options(raw_mode=True), access_type=AccessType.secondary(str(place))), place
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
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
        """In a forked child: these are the parent's, and so is the one that a scan may still give back."""
        self._lock = threading.Lock()
        never_release(self)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for one in idle:
            one.close()
