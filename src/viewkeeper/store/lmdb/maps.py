"""One LMDB environment as the ordered maps of a store: a sub-database each.

A state is a transaction. Handles of sub-databases must be opened before it begins, because that needs a transaction,
too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa

from viewkeeper.model.schema import Table
from viewkeeper.store.contract.commits import Finding
from viewkeeper.store.lmdb import table_rows
from viewkeeper.store.lmdb.environment import FORMAT, Environment, translate_error, translate_errors
from viewkeeper.store.lmdb.shared_environments import count_users, detach
from viewkeeper.store.ordered import metadata
from viewkeeper.store.ordered.maps import Database, MapSnapshot, OrderedMap, State, TableRows
from viewkeeper.store.ordered.row_images import NO_IMAGES, RowImages

MAX_CALL_BYTES = 8 << 30
"""Maximum bytes of a write call: a transaction holds all the pages that it changes."""


class LmdbMap(OrderedMap):
    """A sub-database in a transaction.

    LMDB keeps up to 131,071 changed pages of a transaction in memory, then writes some of them and continues. A value
    longer than half a page has pages of its own, which count as one regardless of their number: a gigabyte of such
    values stays in memory until the commit.
    """

    max_inline_value = 1_800

    def __init__(self, txn: Any, db: Any) -> None:
        self._txn, self._db = txn, db

    def get(self, key: bytes) -> bytes | memoryview | None:
        found: bytes | memoryview | None = self._txn.get(key, db=self._db)
        return found

    def items(self, start: bytes) -> Iterator[tuple[bytes, bytes | memoryview]]:
        cursor = self._txn.cursor(db=self._db)
        has_items = cursor.set_range(start) if start else cursor.first()
        return iter(cursor.iternext() if has_items else ())

    def put(self, key: bytes, value: bytes, *, append: bool = False) -> None:
        self._txn.put(key, value, append=append, db=self._db)

    def delete(self, key: bytes) -> None:
        self._txn.delete(key, db=self._db)

    def delete_before(self, stop: bytes) -> None:
        cursor = self._txn.cursor(db=self._db)
        cursor.first()
        # After the last entry the key is empty, although `delete` still reports a deletion.
        while (key := cursor.key()) and key < stop:
            cursor.delete()

    def size(self) -> int:
        statistics = self._txn.stat(self._db)
        return int(
            statistics["psize"] * (statistics["branch_pages"] + statistics["leaf_pages"] + statistics["overflow_pages"])
        )


class LmdbRows(TableRows):
    """A table's sub-database in a transaction; `db` is None if nothing was ever written to it."""

    def __init__(self, txn: Any, db: Any, environment: Environment, table_id: int) -> None:
        self._txn, self._db, self._id = txn, db, table_id
        self._meta, self._path = environment.meta, environment.path

    def find(self, key: bytes) -> bytes | None:
        return None if self._db is None else table_rows.find(self._txn, self._db, key)

    def find_rows(self, keys: pa.BinaryArray) -> pa.BinaryArray:
        return NO_IMAGES.keys if self._db is None else table_rows.find_rows(self._txn, self._db, keys)

    def find_in_order(self, keys: Sequence[bytes]) -> list[bytes]:
        return [b""] * len(keys) if self._db is None else table_rows.find_in_order(self._txn, self._db, keys)

    def scan(self, start: bytes | None, stop: bytes | None, limit: int | None) -> Iterator[pa.BinaryArray]:
        if self._db is None:
            return iter(())
        return table_rows.scan(self._txn, self._db, self._meta, self._id, start, stop, limit)

    def apply(self, table: Table, keys: pa.BinaryArray, after: pa.BinaryArray) -> RowImages:
        return table_rows.apply(self._txn, self._db, self._meta, table, keys, after)

    def rewrite(self, table: Table, keys: Sequence[bytes], before: Sequence[bytes], after: Sequence[bytes]) -> None:
        table_rows.rewrite(self._txn, self._db, self._meta, table, keys, after)

    def clear(self) -> None:
        if self._db is not None:
            # Only empty the sub-database: deleting it would close its handle under other threads. `free_dropped_tables`
            # deletes it later.
            self._txn.drop(self._db, delete=False)
            table_rows.forget_long_keys(self._txn, self._meta, self._id)

    def count(self) -> int:
        if self._db is None:
            return 0
        return int(self._txn.stat(self._db)["entries"]) + table_rows.count_shared_rows(self._txn, self._meta, self._id)

    def split_points(self, range_count: int) -> list[bytes]:
        if self._db is None:
            return []
        return table_rows.split_points(self._txn, self._db, self._id, self._path / "data.mdb", range_count)


class LmdbState(State):
    """A transaction, with the handles of the tables that it uses."""

    def __init__(self, txn: Any, environment: Environment, tables: Mapping[int, Any]) -> None:
        self._txn, self._environment, self._tables = txn, environment, tables

    @property
    def meta(self) -> LmdbMap:
        return LmdbMap(self._txn, self._environment.meta)

    @property
    def log(self) -> LmdbMap:
        return LmdbMap(self._txn, self._environment.log)

    def rows(self, table_id: int) -> LmdbRows:
        return LmdbRows(self._txn, self._tables.get(table_id), self._environment, table_id)


class LmdbSnapshot(LmdbState, MapSnapshot):
    """A read transaction that is kept open. The cost: LMDB cannot reuse pages of this state meanwhile."""

    def __init__(self, environment: Environment) -> None:
        self._handle: Any = None
        super().__init__(None, environment, environment.open_tables())
        with translate_errors(environment.path):
            while not self._begin():
                self.close()

    def _begin(self) -> bool:
        """Begin the transaction. Return False if it shows a table whose handle is not open: the handle must be opened
        first."""
        environment = self._environment
        self._handle = environment.handle
        self._txn = self._handle.begin()
        try:
            table_ids = [int(n[1:]) for n in self._txn.cursor().iternext(values=False) if _is_table_name(n)]
        except BaseException:
            self.close()
            raise
        missing = [i for i in table_ids if i not in self._tables]
        if missing:
            self.close()
            self._tables = {**self._tables, **{i: environment.table(i) for i in missing}}
        return not missing

    def translate_errors(self) -> AbstractContextManager[None]:
        return translate_errors(self._environment.path)

    def close(self) -> None:
        txn, self._txn = self._txn, None
        # With another handle, the transaction belongs to the parent of a forked child.
        if txn is not None and self._environment._handle is self._handle:
            txn.abort()


class LmdbDatabase(Database):
    """An environment, as one store uses it."""

    scheme = "lmdb"
    format = FORMAT
    max_call_bytes = MAX_CALL_BYTES

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.path = environment.path

    @property
    def uuid(self) -> str:
        return self._environment.uuid

    @uuid.setter
    def uuid(self, name: str) -> None:
        self._environment.uuid = name

    @contextmanager
    def read(self, tables: Sequence[int] = (), *, only_log: bool = False) -> Iterator[LmdbState]:
        environment = self._environment
        opened = {table: environment.table(table) for table in tables}
        with environment.read(buffers=only_log) as txn:
            yield LmdbState(txn, environment, opened)

    @contextmanager
    def write(self, tables: Sequence[int] = (), size: int = 0) -> Iterator[LmdbState]:
        environment = self._environment
        opened = {table: environment.table(table, create=True) for table in tables}
        with environment.write(size) as txn:
            yield LmdbState(txn, environment, opened)

    def open_snapshot(self) -> LmdbSnapshot:
        return LmdbSnapshot(self._environment)

    def get(self, table_id: int, key: bytes) -> bytes | None:
        environment = self._environment
        db = environment.table(table_id)
        if db is None:
            return None
        try:
            txn = environment.handle.begin(db=db)
            try:
                value: bytes | None = (
                    txn.get(key) if len(key) <= table_rows.MAX_PLAIN_KEY else table_rows.find(txn, db, key)
                )
            finally:
                txn.abort()
        except lmdb.Error as error:
            raise translate_error(error, self.path) from error
        return value

    def read_counter(self, name: bytes) -> int:
        environment = self._environment
        try:
            txn = environment.handle.begin(db=environment.meta)
            try:
                found = txn.get(name, b"")
            finally:
                txn.abort()
        except lmdb.Error as error:
            raise translate_error(error, self.path) from error
        return int.from_bytes(found, "big")

    def free_dropped_tables(self) -> None:
        """Delete the sub-databases of dropped tables when a database is opened, if no handles to them are open."""
        environment = self._environment
        if count_users(environment) > 1:
            return
        with environment.read() as txn:
            catalog = metadata.read_catalog(LmdbMap(txn, environment.meta))
            table_ids = [int(name[1:]) for name in txn.cursor().iternext(values=False) if _is_table_name(name)]
        alive = catalog.stored_table_ids
        # An id that no catalog entry has had yet may be in use: a commit may be about to assign it.
        for number in table_ids:
            if number < catalog.next_id and number not in alive:
                db = environment.table(number)
                with environment.write() as txn:
                    txn.drop(db, delete=True)
                environment.close_table(number)

    def examine(self) -> Iterator[Finding]:
        environment = self._environment
        size = environment.handle.info()["map_size"]
        is_full = self.used_bytes() > 0.9 * size
        advice = "Open it with a larger map_size=." if is_full else ""
        yield Finding("map size", not is_full, f"{self.used_bytes() / size:.1%} of {size / 1e9:.0f} GB", advice)
        stale = environment.handle.reader_check() if environment.writable else 0
        text = f"{stale} readers that ended without a word were forgotten" if stale else "none is stale"
        yield Finding("readers", True, text)

    def used_bytes(self) -> int:
        handle = self._environment.handle
        return int((handle.info()["last_pgno"] + 1) * handle.stat()["psize"])

    def copy_to(self, directory: Path) -> None:
        with translate_errors(self.path):
            self._environment.handle.copy(str(directory), compact=True)
        (directory / "data.mdb").chmod(0o600)

    def sync(self) -> None:
        self._environment.sync()

    def detach(self) -> None:
        detach(self._environment)


def _is_table_name(name: bytes) -> bool:
    return name[:1] == b"t" and name[1:].isdigit()
