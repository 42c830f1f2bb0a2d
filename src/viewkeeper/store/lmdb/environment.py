"""One LMDB environment per process and path, whoever opens it; its transactions; its errors.

LMDB must not be opened twice in a process (closing one would drop the other's locks), so stores share environments from
a registry that counts references. An environment does not survive a fork: in the child it is opened again at first
use, and the parent's is left alone.

What a crash may lose, by `durability`:

    commit   nothing that was acknowledged: every commit flushes data, then the page that makes it valid
    group    the data is flushed, that last page is not: a crash of the machine may undo the last commits, never
             damage the database; a crash of the process loses nothing
    none     nothing is flushed before close or `sync`: a crash of the machine may lose all commits since then, and
             may damage the database on a file system that reorders writes; a crash of the process loses nothing
"""

from __future__ import annotations

import errno
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from viewkeeper.errors import BadValue, FormatTooNew, NotADatabase, ReadOnly, StoreError, ViewkeeperError

FORMAT = 1
"""Of the whole database; a higher number is refused."""

MAP_SIZE = 1 << 40
"""Address space, not disk: growing it later would need every transaction closed."""

MAX_TABLES = 16_384
"""Sub-databases open at once. LMDB touches so many bytes a write transaction: 3 µs here."""

MAX_READERS = 1024

DURABILITIES: dict[str, dict[str, bool]] = {
    "commit": {"sync": True, "metasync": True},
    "group": {"sync": True, "metasync": False},
    "none": {"sync": False, "metasync": False},
}


class Environment:
    """One open environment, shared by every store of this process with its path."""

    def __init__(self, path: Path, durability: str, map_size: int) -> None:
        self.path = path
        self.durability = durability
        self.map_size = map_size
        self.references = 0
        self.writable = True
        self.uuid = ""
        self._writing: int | None = None
        self._opening = threading.Lock()
        self._handle: Any = None
        self._tables: dict[int, Any] = {}
        self._meta: Any = None
        self._log: Any = None

    # -- handles ------------------------------------------------------------------------------------------------------

    @property
    def handle(self) -> Any:
        """The LMDB environment; opened again if this process is the child of the one that opened it."""
        if self._handle is None:
            if self.references <= 0:
                raise StoreError(f"The database {self.path} is closed.", hint="Open it again.")
            with self._opening:
                if self._handle is None:
                    self.open(create=False)
        return self._handle

    @property
    def meta(self) -> Any:
        self.handle  # noqa: B018 - opens it after a fork
        return self._meta

    @property
    def log(self) -> Any:
        self.handle  # noqa: B018 - opens it after a fork
        return self._log

    def table(self, table_id: int, *, create: bool = False) -> Any:
        """The sub-database of a table, None if it has never been written. Call it before a transaction begins."""
        known = self._tables.get(table_id)
        if known is not None and self._handle is not None:
            return known
        handle = self.handle
        with self._opening:
            opened = self._open_existing(handle, b"t%d" % table_id)
            if opened is None and create:
                self._check_not_writing()
                with translated(self.path):
                    opened = handle.open_db(b"t%d" % table_id)
            if opened is not None:
                self._tables[table_id] = opened
            return opened

    def _open_existing(self, handle: Any, name: bytes) -> Any:
        # In a read transaction, which a writer does not block; committed, else the handle dies with it.
        with translated(self.path):
            txn = handle.begin()
            try:
                opened = handle.open_db(name, txn=txn, create=False)
            except lmdb.NotFoundError:
                txn.abort()
                return None
            except BaseException:
                txn.abort()
                raise
            txn.commit()
            return opened

    def close_table(self, table_id: int) -> None:
        """Forget the handle of a sub-database that was deleted."""
        self._tables.pop(table_id, None)

    # -- transactions -------------------------------------------------------------------------------------------------

    @contextmanager
    def read(self, *, buffers: bool = False) -> Iterator[Any]:
        """A read transaction: one state of the whole environment."""
        with translated(self.path):
            txn = self.handle.begin(buffers=buffers)
            try:
                yield txn
            finally:
                txn.abort()

    @contextmanager
    def write(self) -> Iterator[Any]:
        """A write transaction, committed at the end of the block unless it raises. LMDB runs one at a time."""
        self._check_not_writing()
        with translated(self.path):
            txn = self.handle.begin(write=True)
            self._writing = threading.get_ident()
            try:
                yield txn
                txn.commit()
            except BaseException:
                txn.abort()
                raise
            finally:
                self._writing = None
            # A reader that was killed would keep old pages from being used again.
            self.handle.reader_check()

    def _check_not_writing(self) -> None:
        if self._writing == threading.get_ident():
            raise StoreError(
                f"A write to {self.path} was started inside another write of the same thread.",
                hint="Do not write to the database from a catalog change.",
            )

    def sync(self) -> None:
        """Flush everything to disk, whatever the durability."""
        with translated(self.path):
            self.handle.sync(True)

    # -- life ---------------------------------------------------------------------------------------------------------

    def open(self, *, create: bool) -> None:
        """Open the files; with `create`, make the database if there is none."""
        options: dict[str, Any] = {
            "map_size": self.map_size,
            "max_dbs": MAX_TABLES,
            "max_readers": MAX_READERS,
            "max_spare_txns": 1,
            "create": False,
        }
        with translated(self.path):
            try:
                handle = lmdb.open(str(self.path), mode=0o700, **options, **DURABILITIES[self.durability])
                self.writable = True
            except lmdb.Error as error:
                if create or not _is_denied(error):
                    raise
                handle = lmdb.open(str(self.path), readonly=True, **options)
                self.writable = False
        try:
            self._check_format(handle, create=create)
            self._meta = self._open_existing(handle, b"meta")
            self._log = self._open_existing(handle, b"log")
        except BaseException:
            handle.close()
            raise
        self._handle = handle

    def _check_format(self, handle: Any, *, create: bool) -> None:
        meta = self._open_existing(handle, b"meta")
        if meta is None and create:
            with translated(self.path):
                if handle.stat()["entries"]:
                    raise _not_a_database(self.path, "it is an LMDB environment of another program")
                meta, log = handle.open_db(b"meta"), handle.open_db(b"log")
                with handle.begin(write=True, db=meta) as txn:
                    if txn.get(b"format") is None:
                        txn.put(b"uuid", uuid.uuid4().hex.encode())
                        txn.put(b"format", b"%d" % FORMAT)
                del log
        if meta is None:
            raise _not_a_database(self.path, "it is not a Viewkeeper database")
        with translated(self.path), handle.begin(db=meta) as txn:
            found, name = txn.get(b"format"), txn.get(b"uuid")
        if found is None or not found.isdigit() or name is None:
            raise _not_a_database(self.path, "it is an LMDB environment of another program")
        if int(found) > FORMAT:
            raise FormatTooNew(f"The database {self.path} has format {int(found)}, this version reads up to {FORMAT}.")
        self.uuid = name.decode()

    def close(self) -> None:
        if self._handle is not None:
            if self.writable and self.durability != "commit":
                self.sync()
            self._handle.close()
            self._handle = None
        self._tables.clear()

    def forget(self) -> None:
        """In a forked child: let go of the parent's environment without touching it."""
        if self._handle is not None:
            _inherited.append((self._handle, self._meta, self._log, dict(self._tables)))
        self._handle = None
        self._tables.clear()
        self._writing = None
        self._opening = threading.Lock()


# -- the registry -----------------------------------------------------------------------------------------------------

_registry: dict[Path, Environment] = {}
_registry_lock = threading.Lock()
_inherited: list[Any] = []


def attach(path: Path, mode: str, durability: str, map_size: int) -> Environment:
    """The environment at a path, opened if this process has not opened it; `detach` gives it back."""
    if mode not in ("r", "w"):
        raise BadValue(f"mode={mode!r} is unknown.", hint="Use mode='w' (the default) or mode='r'.")
    if durability not in DURABILITIES:
        raise BadValue(f"durability={durability!r} is unknown.", hint=f"Use one of {', '.join(DURABILITIES)}.")
    _check_place(path, mode)
    path = path.resolve()
    with _registry_lock:
        environment = _registry.get(path)
        if environment is None:
            environment = Environment(path, durability, map_size)
            environment.references = 1
            environment.open(create=mode == "w")
            _registry[path] = environment
        else:
            if mode == "w" and environment.durability != durability:
                raise StoreError(
                    f"The database {path} is open in this process with durability={environment.durability!r}.",
                    hint="Close it first, or use the same durability.",
                )
            environment.references += 1
    if mode == "w" and not environment.writable:
        detach(environment)
        raise ReadOnly(f"The database {path} cannot be written here.", hint="Open it with mode='r'.")
    return environment


def detach(environment: Environment) -> None:
    """Close the environment when nobody else in this process uses it."""
    with _registry_lock:
        environment.references -= 1
        if environment.references == 0:
            _registry.pop(environment.path, None)
            environment.close()


def _after_fork() -> None:
    global _registry_lock
    _registry_lock = threading.Lock()
    for environment in _registry.values():
        environment.forget()


os.register_at_fork(after_in_child=_after_fork)


def _check_place(path: Path, mode: str) -> None:
    """The path is a database, or a place where one can be made."""
    try:
        if path.exists() and not path.is_dir():
            raise _not_a_database(path, "it is a file")
        has_data = (path / "data.mdb").exists()
        if mode == "r":
            if not has_data:
                raise _not_a_database(path, "there is no database there")
            return
        if has_data:
            return
        if path.is_dir() and any(path.iterdir()):
            raise _not_a_database(path, "the directory holds other files")
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
        if not os.access(path, os.W_OK | os.X_OK):
            raise ReadOnly(f"The directory {path} cannot be written.", hint="Check its permissions.")
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise ReadOnly(f"The path {path} cannot be written: {error.strerror}.", hint="Choose another.") from error
        raise StoreError(f"The path {path} cannot be used: {error.strerror}.") from error


def _not_a_database(path: Path, why: str) -> NotADatabase:
    return NotADatabase(
        f"{path} is not a Viewkeeper database: {why}.",
        hint="Give the directory of a database, or with mode='w' an empty or absent one.",
    )


# -- errors -----------------------------------------------------------------------------------------------------------


def _is_denied(error: lmdb.Error) -> bool:
    return isinstance(error, lmdb.ReadonlyError) or error.code in (errno.EACCES, errno.EROFS, errno.EPERM)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """LMDB's errors as ours."""
    try:
        yield
    except lmdb.Error as error:
        raise translate(error, path) from error


def translate(error: lmdb.Error, path: Path) -> ViewkeeperError:
    """The error to raise for one of LMDB's."""
    if _is_denied(error):
        return ReadOnly(f"The database {path} cannot be written: {error}.", hint="Check its permissions and its disk.")
    if isinstance(error, lmdb.MapFullError):
        return StoreError(f"The database {path} has reached its map size.", hint="Open it with a larger map_size=.")
    if isinstance(error, lmdb.DiskError) or error.code == errno.ENOSPC:
        return StoreError(f"The disk of {path} is full; nothing was written.", hint="Free some space and try again.")
    if isinstance(error, lmdb.MemoryError):
        return StoreError(
            f"The database {path} could not be mapped into memory.", hint="Open it with a smaller map_size=."
        )
    if isinstance(error, lmdb.ReadersFullError):
        return StoreError(f"More than {MAX_READERS} reads of {path} are going on.", hint="Close some readers.")
    if isinstance(error, lmdb.InvalidError | lmdb.VersionMismatchError):
        return _not_a_database(path, "its data file is not LMDB's, or is damaged")
    return StoreError(f"The database {path} failed: {error}.")
