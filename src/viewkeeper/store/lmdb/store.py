"""LmdbStore: the store contract over one LMDB environment.

A write call is one transaction: look up the rows as they are, drop what does not change, put and delete, append the
changes to the log at position head + 1, note the new head. A commit does the same for the view tables, together with
the batch record (steps 3 and 4 of the protocol), so both become visible together or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa

from viewkeeper import faults
from viewkeeper.errors import BadValue, MaintainerBusy, TooLarge, UnknownName
from viewkeeper.model.catalog import Catalog
from viewkeeper.model.codec import WrittenLater, decode_row, decode_rows, encode_rows
from viewkeeper.model.delta import weighted
from viewkeeper.model.keys import encode_keys, encode_whole_key
from viewkeeper.model.schema import Table
from viewkeeper.store.arrow import column_names, typed
from viewkeeper.store.base import Batch, Capabilities, Finding, StreamChange, ViewChange, Written
from viewkeeper.store.lmdb import lease, log, records, rows
from viewkeeper.store.lmdb.calls import Call, delta, encoded, stream
from viewkeeper.store.lmdb.environment import MAP_SIZE, Environment
from viewkeeper.store.lmdb.examine import examine
from viewkeeper.store.lmdb.failures import translate, translated
from viewkeeper.store.lmdb.feed import LmdbFeed
from viewkeeper.store.lmdb.sharing import attach, detach, in_use
from viewkeeper.store.lost import when_lost

LARGEST_CALL = 8 << 30
"""Bytes of a write call: a transaction holds all the pages it changes."""

_READY_ROWS = 1 << 20


class LmdbStore(LmdbFeed):
    """One open database in a directory. Its methods may be called from any thread."""

    one_machine = True
    divides_log = True
    capabilities = Capabilities(
        change_feed=True, atomic_batch=True, snapshot_scan=True, before_images=True, cell_versions=False
    )

    def __init__(
        self, path: str | Path, mode: str = "w", *, durability: str = "commit", map_size: int = MAP_SIZE
    ) -> None:
        self._environment = attach(Path(path).expanduser(), mode, durability, map_size)
        self._open = True
        self._mode = mode
        self._path = self._environment.path
        self.url = f"lmdb:{self._path}"
        self.uuid = self._environment.uuid
        self.state_path = str(self._path / "state")
        self._catalog = Catalog()
        self._batch: Batch | None = None
        self._lease: lease.FileLease | None = None
        self._lost = when_lost(self, detach, self._environment)
        if mode == "w" and in_use(self._environment) == 1:
            records.purge(self._environment)

    # -- catalog ------------------------------------------------------------------------------------------------------

    def catalog(self) -> Catalog:
        environment = self._live()
        with environment.read() as txn:
            if records.catalog_version(txn, environment.meta) != self._catalog.version:
                self._catalog = records.read_catalog(txn, environment.meta)
        return self._catalog

    def change_catalog(self, change: Callable[[Catalog], Catalog]) -> Catalog:
        environment = self._writable()
        with environment.write() as txn:
            changed = records.change_catalog(txn, environment.meta, change)
        self._catalog = changed
        return changed

    def drop_rows(self, table: Table) -> None:
        environment = self._writable()
        db = environment.table(table.id)
        if db is not None:
            with environment.write() as txn:
                # Emptied only: deleting a sub-database closes its handle under other threads. `purge` does it later.
                txn.drop(db, delete=False)
                rows.forget_long_keys(txn, environment.meta, table.id)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def write(self, table: Table, puts: pa.Table, deletes: pa.Table) -> Written:
        return self._write(table, puts, deletes, None)

    def write_once(self, table: Table, puts: pa.Table, deletes: pa.Table, writer: str, number: int) -> Written:
        return self._write(table, puts, deletes, (f"once:{writer}", number))

    def _write(self, table: Table, puts: pa.Table, deletes: pa.Table, once: tuple[str, int] | None) -> Written:
        environment = self._writable()
        if puts.nbytes + deletes.nbytes > LARGEST_CALL:
            raise TooLarge(
                f"A write call to {table.name} has {(puts.nbytes + deletes.nbytes) / 1e9:.1f} GB,"
                f" {LARGEST_CALL / 1e9:.0f} GB is the limit.",
                hint="Write it in several calls: each is a transaction.",
            )
        db = environment.table(table.id, create=True)
        slices = encoded(table, puts, deletes)
        first = next(slices, None)  # before the transaction: other writers wait only while rows are put
        faults.point("write.before")
        with environment.write() as txn:
            call = Call(txn, environment)
            if once is not None:
                noted = records.read_note(txn, environment.meta, once[0])
                if noted is not None and noted["number"] >= once[1]:
                    return call.finish()
                records.put_note(txn, environment.meta, once[0], {"number": once[1]})
            while first is not None:
                call.apply(table, db, *first)
                first = next(slices, None)
            faults.point("write.middle")
            return call.finish()

    def update(self, table: Table, key: pa.Table, columns: pa.Table) -> Written:
        environment = self._writable()
        names = column_names(table, columns.column_names)
        keyed = {column.name for column in table.key_columns}
        if fixed := [name for name in names if name in keyed]:
            raise BadValue(
                f"Column {fixed[0]} is in the key of {table.name} and cannot be updated.",
                hint="Delete the row and put a new one.",
            )
        new = dict(zip(names, typed(table, columns.rename_columns(names), names).columns, strict=True))
        keys = encode_keys(table, typed(table, key, [column.name for column in table.key_columns]))
        db = environment.table(table.id, create=True)
        with environment.write() as txn:
            # As it is now: a column that another process has just added keeps its value.
            table = next((t for t in self._shown(txn).tables if t.id == table.id), table)
            old = [rows.find(txn, db, name) for name in keys.to_pylist()]
            if None in old:
                raise UnknownName(
                    f"{table.name} has no row with key {key.slice(old.index(None), 1).to_pylist()[0]}.",
                    hint="Put the whole row instead.",
                )
            row = decode_rows(table, pa.array(old, pa.binary()))
            row = pa.table({name: new.get(name, row.column(name)) for name in row.column_names}, schema=table.arrow)
            after = encode_rows(table, row)
            rows.refuse_large(table, row, keys, after)
            call = Call(txn, environment)
            call.apply(table, db, keys, after)
            return call.finish()

    def get(self, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        environment = self._live()
        name = encode_whole_key(table, key)
        db = environment.table(table.id)
        if db is None:
            return None
        try:
            txn = environment.handle.begin(db=db)
            try:
                value = txn.get(name) if len(name) <= rows.LONGEST_KEY else rows.find(txn, db, name)
            finally:
                txn.abort()
        except lmdb.Error as error:
            raise translate(error, self._path) from error
        if value is None:
            return None
        try:
            return decode_row(table, value)
        except WrittenLater:
            return decode_row(self.catalog().reading(table), value)

    def get_many(self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        environment = self._live()
        wanted = column_names(table, columns)
        names = encode_keys(table, typed(table, keys, [column.name for column in table.key_columns]))
        db = environment.table(table.id)
        if db is None:
            return decode_rows(table, pa.array([], pa.binary()), wanted)
        with environment.read() as txn:
            table = self._shown(txn).reading(table)
            found = rows.find_many(txn, db, names)
        return decode_rows(table, found, wanted)

    def scan(
        self,
        table: Table,
        columns: Sequence[str] | None = None,
        *,
        start: bytes | None = None,
        stop: bytes | None = None,
        limit: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        environment = self._live()
        wanted = column_names(table, columns)
        return self._scan(environment, table, wanted, start, stop, limit)

    def _scan(
        self,
        environment: Environment,
        table: Table,
        wanted: list[str],
        start: bytes | None,
        stop: bytes | None,
        limit: int | None,
    ) -> Iterator[pa.RecordBatch]:
        db = environment.table(table.id)
        if db is None:
            return
        with environment.read() as txn:
            table = self._shown(txn).reading(table)
            for values in rows.scan(txn, db, environment.meta, table.id, start, stop, limit):
                yield from decode_rows(table, values, wanted).to_batches()

    def scan_at(
        self, table: Table, columns: Sequence[str], cut: int, *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[pa.RecordBatch]:
        environment = self._live()
        return self._scan_at(environment, table, column_names(table, columns), cut, start, stop)

    def _scan_at(
        self,
        environment: Environment,
        table: Table,
        wanted: list[str],
        cut: int,
        start: bytes | None,
        stop: bytes | None,
    ) -> Iterator[pa.RecordBatch]:
        db = environment.table(table.id)
        # One transaction shows the rows and the log alike: what the log says came after the cut is undone.
        with environment.read() as txn:
            self._check_kept(txn, cut)
            table = self._shown(txn).reading(table)
            head = records.read_number(txn, environment.meta, records.HEAD)
            later = log.entries(txn, environment.log, cut, head, [table.id])
            undone = [delta(table, log.within(images, start, stop), wanted, -1) for images in log.gather(later)]
            if db is not None:
                for values in rows.scan(txn, db, environment.meta, table.id, start, stop, None):
                    yield from weighted(decode_rows(table, values, wanted), 1).to_batches()
        for part in undone:
            yield from part.to_batches()

    def split_points(self, table: Table, parts: int) -> list[bytes]:
        environment = self._live()
        db = environment.table(table.id)
        if db is None or parts < 2:
            return []
        with environment.read() as txn:
            return rows.split_points(txn, db, parts)

    def count(self, table: Table) -> int:
        environment = self._live()
        db = environment.table(table.id)
        if db is None:
            return 0
        with environment.read() as txn:
            return int(txn.stat(db)["entries"]) + rows.shared_buckets(txn, environment.meta, table.id)

    # -- batches ------------------------------------------------------------------------------------------------------

    def published(self) -> Batch | None:
        environment = self._live()
        with environment.read() as txn:
            number = records.read_number(txn, environment.meta, records.BATCH_NUMBER)
            if number and (self._batch is None or self._batch.number != number):
                self._batch = records.read_batch(txn, environment.meta)
        return self._batch

    def salvaged(self) -> Batch:
        environment = self._live()
        with environment.read() as txn:
            number = records.read_number(txn, environment.meta, records.BATCH_NUMBER)
            self._batch = Batch(number, records.read_number(txn, environment.meta, records.FLOOR), {})
        return self._batch

    def commit(
        self,
        batch: Batch,
        changes: Sequence[ViewChange | StreamChange],
        change_catalog: Callable[[Catalog], Catalog] | None = None,
    ) -> None:
        environment = self._writable()
        streams = [(change.table, stream(change)) for change in changes if isinstance(change, StreamChange)]
        stored = [change for change in changes if isinstance(change, ViewChange)]
        opened = [(change, environment.table(change.table.id, create=True)) for change in stored]
        pieces: Iterable[Any] = (
            (change.table, db, keys, after)
            for change, db in opened
            for keys, after in encoded(change.table, change.puts, change.deletes)
        )
        if sum(change.puts.num_rows + change.deletes.num_rows for change in stored) <= _READY_ROWS:
            pieces = list(pieces)  # before the transaction: writers wait only while rows are put
        record = records.encoded_batch(batch)
        with environment.write() as txn:
            published = records.read_number(txn, environment.meta, records.BATCH_NUMBER)
            if batch.number != published + 1 or (self._lease is not None and self._lease.lost):
                raise MaintainerBusy(
                    f"Batch {batch.number} cannot follow batch {published}, which is published: another process"
                    f" maintains {self._path}.",
                    hint="Open the database again.",
                )
            # Step 3: the view changes, their log entries and the batch record. Step 4, publishing, is LMDB's commit.
            call = Call(txn, environment)
            for table, db, keys, after in pieces:
                call.apply(table, db, keys, after)
            for table, images in streams:
                call.append(table, images)
            faults.point("commit.3.middle")
            call.finish(always=change_catalog is not None)
            if change_catalog is not None:
                records.change_catalog(txn, environment.meta, change_catalog)
            records.put_batch(txn, environment.meta, batch.number, record)
            faults.point("commit.4.before")

    # -- life ---------------------------------------------------------------------------------------------------------

    def acquire_lease(self) -> lease.FileLease:
        self._writable()
        self._lease = lease.acquire(self._path)
        return self._lease

    def lease_holder(self) -> str | None:
        """Who maintains the database now; None if nobody does."""
        return lease.holder(self._path)

    def note(self, name: str) -> Mapping[str, Any] | None:
        environment = self._live()
        with environment.read() as txn:
            found: Mapping[str, Any] | None = records.read_note(txn, environment.meta, name)
        return found

    def put_note(self, name: str, note: Mapping[str, Any] | None) -> None:
        environment = self._writable()
        with environment.write() as txn:
            records.put_note(txn, environment.meta, name, note)

    def examine(self) -> Iterator[Finding]:
        return examine(self._live(), self.state_path)

    def copy_to(self, directory: Path) -> None:
        environment = self._live()
        with translated(environment.path):
            environment.handle.copy(str(directory), compact=True)
        (directory / "data.mdb").chmod(0o600)

    def renew_identity(self) -> None:
        environment = self._writable()
        with environment.write() as txn:
            environment.uuid = self.uuid = records.renew_uuid(txn, environment.meta)

    def sync(self) -> None:
        """Flush every commit to disk, for durability 'group' and 'none'."""
        self._writable().sync()

    def close(self) -> None:
        if self._open:
            self._open = False
            if self._lost.detach() is not None:
                detach(self._environment)
