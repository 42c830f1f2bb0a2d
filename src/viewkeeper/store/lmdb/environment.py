"""One open LMDB environment: its handles, its transactions, and how it is opened and created.

What a crash may lose, by `durability`:

    commit   nothing that was acknowledged: every commit flushes data, then the page that makes it valid
    group    the data is flushed, that last page is not: a crash of the machine may undo the last commits, never
             damage the database; a crash of the process loses nothing
    none     nothing is flushed before close or `sync`: a crash of the machine may lose all commits since then, and
             may damage the database on a file system that reorders writes; a crash of the process loses nothing
"""

from __future__ import annotations

import errno
import threading
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import lmdb

from viewkeeper.errors import FormatTooNew, FormatTooOld, OutOfMemory, ReadOnly, StoreError, TooLarge, ViewkeeperError
from viewkeeper.resources.directory import flush_directory
from viewkeeper.store.lmdb import after_fork, second_environment
from viewkeeper.store.lmdb.writeback import MIN_WRITEBACK_BYTES, start_writeback
from viewkeeper.store.ordered.location import not_a_database

# LMDB's errors as Viewkeeper's: each names the database and says what to do.


def is_permission_error(error: lmdb.Error) -> bool:
    return isinstance(error, lmdb.ReadonlyError) or error.code in (errno.EACCES, errno.EROFS, errno.EPERM)


class translate_errors(AbstractContextManager[None]):
    """Context in which LMDB's errors are raised as Viewkeeper's."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, lmdb.Error):
            raise translate_error(error, self._path) from error


def translate_error(error: lmdb.Error, path: Path) -> ViewkeeperError:
    """Return the error to raise for an error of LMDB."""
    if is_permission_error(error):
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


FORMAT = 6
"""Format of the whole database. A database of another format is refused: its data must be loaded again."""

MAP_SIZE = 1 << 40
"""Address space, not disk space: increasing it later would require closing every transaction."""

MAX_TABLES = 16_384
"""Maximum number of open sub-databases. LMDB touches this many bytes in each write transaction: 3 µs."""

MAX_READERS = 1024

DURABILITIES: dict[str, dict[str, bool]] = {
    "commit": {"sync": True, "metasync": True},
    "group": {"sync": True, "metasync": False},
    "none": {"sync": False, "metasync": False},
}


class Environment:
    """One open environment, shared by the stores of this process with the same path (`shared_environments`)."""

    def __init__(self, path: Path, durability: str, map_size: int, *, writable: bool) -> None:
        self.path = path
        self.durability = durability
        self.map_size = map_size
        self.references = 0
        self.writable = writable
        self.uuid = ""
        self._writing = threading.local()
        self._handle_lock = threading.Lock()
        self.file_identity = (0, 0)
        self.siblings: list[Environment] = [self]
        """The environments of this process with the same files."""
        self._handle: Any = None
        self._tables: dict[int, Any] = {}
        self.meta: Any = None
        self.log: Any = None

    # -- handles ------------------------------------------------------------------------------------------------------

    @property
    def handle(self) -> Any:
        """The open LMDB environment."""
        if self._handle is None:
            raise StoreError(f"The database {self.path} is closed.", hint="Open it again.")
        return self._handle

    def table(self, table_id: int, *, create: bool = False) -> Any:
        """Return the sub-database of a table, or None if it has never been written. Must be called before a transaction
        begins."""
        opened_before = self._tables.get(table_id)
        if opened_before is not None and self._handle is not None:
            return opened_before
        handle = self.handle
        with self._handle_lock, translate_errors(self.path):
            opened = self._open_sub_database(handle, b"t%d" % table_id, create=create)
            if opened is not None:
                self._tables[table_id] = opened
            return opened

    def open_tables(self) -> dict[int, Any]:
        """Return the open sub-databases."""
        return dict(self._tables) if self._handle is not None else {}

    def _open_sub_database(self, handle: Any, name: bytes, *, create: bool = False) -> Any:
        """Return a sub-database's handle.

        Unless the environment is read-only, py-lmdb keeps the handle only if it is opened in a write transaction. The
        method passes a transaction of its own: the one that `open_db` would begin blocks every thread of the process
        while it waits.
        """
        if not self.writable:
            try:
                return handle.open_db(name, create=False)
            except lmdb.NotFoundError:
                return None
        with handle.begin() as txn:
            exists = txn.cursor().set_key(name)
        if not exists and not create:
            return None
        self._check_not_writing()
        with handle.begin(write=True) as txn:
            return handle.open_db(name, txn=txn, create=create)

    def close_table(self, table_id: int) -> None:
        """Forget the handle of a sub-database that was deleted."""
        self._tables.pop(table_id, None)

    # -- transactions -------------------------------------------------------------------------------------------------

    @contextmanager
    def read(self, *, buffers: bool = False) -> Iterator[Any]:
        """Open a read transaction: one state of the whole environment."""
        with translate_errors(self.path):
            handle = self.handle
            txn = handle.begin(buffers=buffers)
            try:
                yield txn
            finally:
                if self._handle is handle:  # in a child forked meanwhile, the transaction is the parent's
                    txn.abort()

    @contextmanager
    def write(self, size: int = 0) -> Iterator[Any]:
        """Open a write transaction, committed at the end of the block unless it raises. LMDB runs one at a time.

        `size`: approximate bytes of the rows that will change.
        """
        self._check_not_writing()
        is_large = size >= MIN_WRITEBACK_BYTES and self.durability != "none"
        with translate_errors(self.path), start_writeback(self.path / "data.mdb") if is_large else nullcontext():
            handle = self.handle
            txn = handle.begin(write=True)
            self._writing.now = True
            try:
                yield txn
                txn.commit()
            except BaseException:
                if self._handle is handle:
                    txn.abort()
                raise
            finally:
                self._writing.now = False
            # A killed reader would keep LMDB from reusing old pages. The transaction is committed already, so errors do
            # not matter.
            with suppress(lmdb.Error):
                handle.reader_check()

    def _check_not_writing(self) -> None:
        if getattr(self._writing, "now", False):
            raise StoreError(
                f"A write to {self.path} was started inside another write of the same thread.",
                hint="Do not write to the database from a catalog change.",
            )

    def sync(self) -> None:
        """Flush everything to disk, regardless of the durability."""
        with translate_errors(self.path):
            self.handle.sync(True)

    # -- life cycle ---------------------------------------------------------------------------------------------------

    def open(self, *, create: bool = False) -> None:
        """Open the files, for writing if `writable`; with `create`, create the database if needed."""
        options: dict[str, Any] = {
            "map_size": self.map_size,
            "max_dbs": MAX_TABLES,
            "max_readers": MAX_READERS,
            "max_spare_txns": 1,
            "create": False,
            "mode": 0o700,
            "readonly": not self.writable,
        }
        if self.writable:
            options.update(DURABILITIES[self.durability])
        with translate_errors(self.path):
            try:
                with (
                    second_environment.open_beside(self.path, _find_identity(self.path)),
                    after_fork.allow_parent_open(self.path),
                ):
                    handle = lmdb.open(str(self.path), **options)
            except lmdb.Error as error:
                if self.writable or not is_permission_error(error):
                    raise
                raise StoreError(
                    f"The database {self.path} cannot be read: {error}.",
                    hint="A reader needs to read data.mdb and to write lock.mdb, where it registers itself.",
                ) from error
            try:
                if create:
                    self._create(handle)
                meta, log = self._open_sub_database(handle, b"meta"), self._open_sub_database(handle, b"log")
                if meta is None or log is None:
                    raise not_a_database(self.path, "it is an LMDB environment of another program")
                self._check_format(handle, meta)
            except BaseException:
                handle.close()
                raise
        self.file_identity = _read_identity(self.path)
        second_environment.register_open(self.file_identity)
        self._handle, self.meta, self.log = handle, meta, log

    def _check_format(self, handle: Any, meta: Any) -> None:
        with handle.begin(db=meta) as txn:
            format_text, name = txn.get(b"format"), txn.get(b"uuid")
        if format_text is None or not format_text.isdigit() or name is None:
            raise not_a_database(self.path, "it is an LMDB environment of another program")
        if int(format_text) > FORMAT:
            raise FormatTooNew(
                f"The database {self.path} has format {int(format_text)}, this version reads up to {FORMAT}."
            )
        if int(format_text) < FORMAT:
            raise FormatTooOld(f"The database {self.path} has format {int(format_text)}, this version reads {FORMAT}.")
        self.uuid = name.decode()

    def _create(self, handle: Any) -> None:
        """Create the database in an empty environment, in one transaction, unless another process was faster."""
        if handle.stat()["entries"]:
            return
        with handle.begin(write=True) as txn:
            if not txn.stat()["entries"]:
                meta = handle.open_db(b"meta", txn=txn)
                handle.open_db(b"log", txn=txn)
                txn.put(b"format", b"%d" % FORMAT, db=meta)
                txn.put(b"uuid", uuid.uuid4().hex.encode(), db=meta)
        flush_directory(self.path)
        with suppress(OSError):  # the parent directory may not be readable
            flush_directory(self.path.parent)

    def is_current(self) -> bool:
        """Return whether the path still leads to these files, and not to files that replaced them."""
        try:
            return self.file_identity == _read_identity(self.path)
        except OSError:
            return False

    def close(self) -> None:
        if self._handle is not None:
            if self.writable and self.durability != "commit":
                self.sync()
            self._handle.close()
            self._handle = None
        self._tables.clear()

    def abandon(self) -> None:
        """Give up the parent's environment in a forked child without touching it."""
        if self._handle is not None:
            after_fork.keep_parent_handle(self.path, self._handle)
        self._handle = None
        self._tables.clear()


def _find_identity(path: Path) -> second_environment.FileIdentity | None:
    try:
        return _read_identity(path)
    except OSError:
        return None


def _read_identity(path: Path) -> second_environment.FileIdentity:
    status = (path / "data.mdb").stat()
    return status.st_dev, status.st_ino
