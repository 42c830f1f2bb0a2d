"""An open RocksDB database, shared by the stores of this process with the same path.

What a crash may lose, by `durability`:

    commit        nothing that was acknowledged: every write is flushed
    group, none   a crash of the machine may undo the last writes, never damage the database; a crash of the process
                  loses nothing
"""

from __future__ import annotations

import gc
import os
import threading
import time
import uuid
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from rocksdict import Checkpoint, Options, Rdict, WriteBatch, WriteOptions

from viewkeeper.errors import BadValue, FormatTooNew, FormatTooOld, MaintainerBusy, StoreError
from viewkeeper.resources.directory import flush_directory
from viewkeeper.resources.fork_guard import exit_without_cleanup, module_lock, never_release
from viewkeeper.store.contract.commits import Finding
from viewkeeper.store.ordered import lease
from viewkeeper.store.ordered.location import check_directory, not_a_database
from viewkeeper.store.ordered.maps import Database, MapSnapshot
from viewkeeper.store.rocksdb.errors import is_locked_elsewhere, translate_error, translate_errors
from viewkeeper.store.rocksdb.maps import META, LiveReader, RocksMap, RocksState, SnapshotReader, table_prefix
from viewkeeper.store.rocksdb.secondary import SecondaryPool

FORMAT = 4
"""Format of the whole database. A database of another format is refused: its data must be loaded again."""

MAX_CALL_BYTES = 1 << 30
"""Maximum bytes of a write call: a WriteBatch is in memory as a whole, and again in RocksDB's memtable."""

DURABILITIES = ("commit", "group", "none")
_LOCK_TIMEOUT = 2.0

_registry: dict[Path, RocksDatabase] = {}
_open_databases: weakref.WeakSet[RocksDatabase] = weakref.WeakSet()
_registry_lock = module_lock()
_parent_paths: set[Path] = set()
"""Databases that the parent process had open: RocksDB assumes that this process has them open."""


def attach(path: Path, mode: str, durability: str) -> RocksDatabase:
    """Return the database at a path, opened if this process has not opened it yet; `detach` gives it back."""
    if mode not in ("r", "w"):
        raise BadValue(f"mode={mode!r} is unknown.", hint="Use mode='w' (the default) or mode='r'.")
    if durability not in DURABILITIES:
        raise BadValue(f"durability={durability!r} is unknown.", hint=f"Use one of {', '.join(DURABILITIES)}.")
    check_directory(path, mode, "CURRENT")
    path = path.resolve()
    with _registry_lock:
        database = _registry.get(path)
        if database is None or not database.is_current():
            database = RocksDatabase(path, durability)
        if mode == "w":
            try:
                database.open_to_write(durability)
            except StoreError as error:
                # The maintainer's process has the database open for writing. This process reads, and sends its catalog
                # changes to the maintainer (`store.mailbox`).
                if not is_locked_elsewhere(error.__cause__) or lease.lease_holder(path) is None:
                    raise
        database.check_format()
        _registry[path] = database
        _open_databases.add(database)
        database.references += 1
        return database


class RocksDatabase(Database):
    """A database that this process writes (`_db`), or that it follows."""

    scheme = "rocksdb"
    format = FORMAT
    max_call_bytes = MAX_CALL_BYTES

    def __init__(self, path: Path, durability: str) -> None:
        self.path = path
        self.uuid = ""
        self.references = 0
        self._durability = durability
        self._db: Rdict | None = None
        self._followers = SecondaryPool(path)
        self._lock = threading.Lock()
        self._writing = threading.local()
        self._identity = _read_identity(path)

    # -- transactions -------------------------------------------------------------------------------------------------

    @contextmanager
    def read(self, tables: Sequence[int] = (), *, only_log: bool = False) -> Iterator[RocksState]:
        with translate_errors(self.path):
            db = self._db
            if db is not None:
                yield RocksState(SnapshotReader(db))
                return
            follower = self._followers.acquire()
            try:
                yield RocksState(LiveReader(follower.db))
            finally:
                self._followers.release(follower)

    @contextmanager
    def write(self, tables: Sequence[int] = (), size: int = 0) -> Iterator[RocksState]:
        if getattr(self._writing, "now", False):
            raise StoreError(
                f"A write to {self.path} was started inside another write of the same thread.",
                hint="Do not write to the database from a catalog change.",
            )
        with translate_errors(self.path), self._lock:
            db = self._require_writer()
            batch = WriteBatch(raw_mode=True)
            self._writing.now = True
            try:
                yield RocksState(LiveReader(db), batch)
            finally:
                self._writing.now = False
            db.write(batch, write_opt=self._write_options())

    def open_snapshot(self) -> RocksSnapshot:
        return RocksSnapshot(self)

    def get(self, table_id: int, key: bytes) -> bytes | None:
        return self._get(table_prefix(table_id) + key)

    def read_counter(self, name: bytes) -> int:
        return int.from_bytes(self._get(META + name) or b"", "big")

    def _get(self, name: bytes) -> bytes | None:
        with translate_errors(self.path):
            db = self._db
            if db is not None:
                found: bytes | None = db.get(name)
                return found
        with self.read() as state:
            return state.source.get(name)

    def _require_writer(self) -> Rdict:
        if self._db is not None:
            return self._db
        if self.references == 0:
            raise StoreError(f"The database {self.path} is closed.", hint="Open it again.")
        until = time.monotonic() + _LOCK_TIMEOUT
        while True:
            try:
                return self.open_to_write(self._durability)
            except StoreError as error:
                holder = lease.lease_holder(self.path)
                if holder is not None and f"process {os.getpid()} " not in holder:
                    raise MaintainerBusy(
                        f"The database {self.path} is written by {holder}, and RocksDB has one writer.",
                        hint="Write through that process (vk serve), or end it. CREATE, ALTER and DROP work beside it.",
                    ) from error
                if not is_locked_elsewhere(error.__cause__) or time.monotonic() > until:
                    raise
                time.sleep(0.05)  # the former maintainer is about to close the database

    def _write_options(self) -> WriteOptions:
        options = WriteOptions()
        options.sync = self._durability == "commit"
        return options

    def free_dropped_tables(self) -> None:
        """Do nothing: the rows of a dropped table are deleted already, and compaction frees their space."""

    # -- the whole database -------------------------------------------------------------------------------------------

    def examine(self) -> Iterator[Finding]:
        if self._db is None:
            yield Finding("writer", True, "this process reads; it follows the files of the one that writes")
            return
        errors = self._db.property_int_value("rocksdb.background-errors") or 0
        advice = "Look into the file LOG of the database; free space, or restore a backup." if errors else ""
        yield Finding("compaction", not errors, f"{errors} errors in the background" if errors else "no errors", advice)

    def used_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.path.glob("*") if file.is_file())

    def copy_to(self, directory: Path) -> None:
        """Create a checkpoint. It needs a writer: this process, or no other writer at the moment."""
        with translate_errors(self.path):
            db = self._db if self._db is not None else _open_for_writing(self.path)
            try:
                directory.rmdir()
                Checkpoint(db).create_checkpoint(str(directory))
            finally:
                if db is not self._db:
                    db.close()
        for file in (directory, *directory.iterdir()):
            file.chmod(0o700 if file.is_dir() else 0o600)

    def sync(self) -> None:
        with translate_errors(self.path):
            self._require_writer().flush_wal(True)

    # -- life cycle ---------------------------------------------------------------------------------------------------

    def open_to_write(self, durability: str) -> Rdict:
        if self._db is not None:
            if self._durability != durability:
                raise StoreError(
                    f"The database {self.path} is open in this process with durability={self._durability!r}.",
                    hint="Close it first, or use the same durability.",
                )
            return self._db
        self._durability = durability
        with translate_errors(self.path):
            db = _open_for_writing(self.path, create=True)
            try:
                meta = RocksMap(LiveReader(db), None, b"m")
                format_text = meta.get(b"format")
                if format_text is None:
                    if next(iter(db.keys()), None) is not None:
                        raise not_a_database(self.path, "it is a RocksDB of another program")
                    self._put(db, {b"mformat": b"%d" % FORMAT, b"muuid": uuid.uuid4().hex.encode()})
                    flush_directory(self.path)
            except BaseException:
                db.close()
                raise
        self._db = db
        self._identity = _read_identity(self.path)
        return db

    @staticmethod
    def _put(db: Rdict, records: dict[bytes, bytes]) -> None:
        batch = WriteBatch(raw_mode=True)
        for name, value in records.items():
            batch.put(name, value)
        options = WriteOptions()
        options.sync = True
        db.write(batch, write_opt=options)

    def check_format(self) -> None:
        with self.read() as state:
            format_text, name = state.meta.get(b"format"), state.meta.get(b"uuid")
        if format_text is None or not format_text.isdigit() or name is None:
            raise not_a_database(self.path, "it is a RocksDB of another program")
        if int(format_text) > FORMAT:
            raise FormatTooNew(
                f"The database {self.path} has format {int(format_text)}, this version reads up to {FORMAT}."
            )
        if int(format_text) < FORMAT:
            raise FormatTooOld(f"The database {self.path} has format {int(format_text)}, this version reads {FORMAT}.")
        self.uuid = bytes(name).decode()

    def is_current(self) -> bool:
        """Return whether the path still leads to these files, and not to files that replaced them."""
        return self._identity == _read_identity(self.path)

    def detach(self) -> None:
        with _registry_lock:
            self.references -= 1
            if self.references > 0:
                return
            if _registry.get(self.path) is self:
                del _registry[self.path]
            db, self._db = self._db, None
            self._followers.close()
        if db is not None:
            with translate_errors(self.path):
                if self._durability != "commit":
                    db.flush_wal(True)
                db.close()

    def abandon(self) -> None:
        """Give up the parent's instances in a forked child without touching them."""
        if self._db is not None:
            _parent_paths.add(self.path)
            never_release(self._db)
        self._db = None
        self._followers.abandon()


class RocksSnapshot(RocksState, MapSnapshot):
    """A snapshot, or a secondary instance that does not catch up while it is used."""

    def __init__(self, database: RocksDatabase) -> None:
        self._database = database
        self._read_context = database.read()
        super().__init__(self._read_context.__enter__().source)

    def translate_errors(self) -> AbstractContextManager[None]:
        return translate_errors(self._database.path)

    def close(self) -> None:
        self._read_context.__exit__(None, None, None)
        del self.source  # RocksDB keeps a snapshot while a reference to it exists


def _open_for_writing(path: Path, *, create: bool = False) -> Rdict:
    """Open the database for writing. A snapshot that is still held keeps the previous instance open for a moment."""
    options = Options(raw_mode=True)
    options.create_if_missing(create)
    options.set_keep_log_file_num(4)
    until = time.monotonic() + _LOCK_TIMEOUT
    while True:
        try:
            return Rdict(str(path), options)
        except Exception as error:
            if "lock hold by current process" not in str(error) or path in _parent_paths or time.monotonic() > until:
                raise translate_error(error, path) from error
            gc.collect()
            time.sleep(0.01)


def _read_identity(path: Path) -> tuple[int, int] | None:
    try:
        status = (path / "IDENTITY").stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _after_fork() -> None:
    if _open_databases:
        exit_without_cleanup()
    for database in _open_databases:
        database.abandon()
    _registry.clear()
    _open_databases.clear()


os.register_at_fork(after_in_child=_after_fork)
