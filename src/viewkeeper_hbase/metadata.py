"""The database's own records: one row of the table `namespace:viewkeeper.meta`, changed by check-and-put.

    database    m:state     the published batch's number, the catalog's version, the claim on the next batch (JSON)
                m:catalog   the head of the catalog     } JSON, compressed, behind a checksum; written in the same
                m:dN        table or view number N of it } step as the state (`viewkeeper.store.catalog_records`)
                m:batch     the published batch         }
    lease       m:lease     the lease's holder (`lease`)
    clock       m:clock     a counter; the time of its cell is the server's clock
    note:NAME   m:note      what the maintainer publishes for other processes
    request:NAME            what another process requests of the maintainer (`mailbox`)
    reject:...  m:reject    rows that could not be decoded

HBase changes one row atomically, after comparing one of its columns. So everything that must change together is
in one row, and the state is the compared column. When the answer to a change is lost, the state is read: it lists
the tickets of the last changes.
"""

from __future__ import annotations

import json
import secrets
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from viewkeeper.errors import CorruptState, FormatTooNew, FormatTooOld, MaintainerBusy, NotADatabase
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.store import catalog_records
from viewkeeper.store.contract.store import Batch
from viewkeeper.store.redo.claim import Claim, Ledger, LedgerState
from viewkeeper.store.redo.delta_files import DeltaFiles
from viewkeeper_hbase.capture.time_windows import HBaseCaptureMark
from viewkeeper_hbase.push.spool import PushMark
from viewkeeper_hbase.thrift.admin import ColumnFamily
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.thrift.errors import AlreadyExists, NoSuchTable, OutcomeUnknown
from viewkeeper_hbase.thrift.scan import ScanRequest

FORMAT = 5
"""Of the whole database. A database of another format is refused: its data is loaded again."""

_ROW = b"database"
_STATE, _CATALOG, _BATCH = b"m:state", b"m:catalog", b"m:batch"
_DEFINITION = b"m:d"
_CLOCK = b"m:clock"
_NOTE = b"m:note"
_MAX_TICKETS = 8

CellChanges = dict[bytes, bytes | None]
"""Columns and their new values; None deletes the cell."""


@dataclass(frozen=True)
class DatabaseState(LedgerState):
    """The value of `m:state`."""

    uuid: str = ""
    tickets: tuple[str, ...] = ()
    format: int = FORMAT

    def to_bytes(self) -> bytes:
        return json.dumps(vars(self) | {"claim": self.claim and vars(self.claim)}, separators=(",", ":")).encode()

    @staticmethod
    def from_bytes(value: bytes) -> DatabaseState:
        data = json.loads(value)
        if data["format"] > FORMAT:
            raise FormatTooNew(f"The database has format {data['format']}; this version reads up to {FORMAT}.")
        if data["format"] < FORMAT:
            raise FormatTooOld(f"The database has format {data['format']}; this version reads {FORMAT}.")
        claim = Claim(**data["claim"]) if data["claim"] else None
        return DatabaseState(
            data["published"], data["catalog"], claim, data["uuid"], tuple(data["tickets"]), data["format"]
        )


@dataclass(frozen=True)
class PastBatch:
    """An earlier batch: its number, its position, by which subscribers resume, and the time of its publication."""

    number: int
    position: int
    time: float


@dataclass(frozen=True)
class PublishedBatch:
    """The value of `m:batch`: the published batch with its capture marks (`capture.time_windows`); the batches at
    which views can still be read, the oldest first, this one last; and the delta files of views that are not
    stored."""

    batch: Batch
    readable_batches: tuple[PastBatch, ...]
    delta_files: DeltaFiles = field(default_factory=DeltaFiles)

    def to_json(self) -> dict[str, Any]:
        past = [[p.number, p.position, p.time] for p in self.readable_batches]
        batch = {"number": self.batch.number, "cut": self.batch.cut, "record": self.batch.record}
        capture_marks = {
            str(t): [n.low, n.digest] if n.push is None else [n.low, n.digest, n.push.to_json()]
            for t, n in self.batch.capture_marks.items()
            if isinstance(n, HBaseCaptureMark)
        }
        streams = {} if self.delta_files == DeltaFiles() else {"streams": self.delta_files.to_json()}
        return {**batch, "seen": capture_marks, "past": past, **streams}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PublishedBatch:
        capture_marks = {int(table): _decode_mark(*mark) for table, mark in data["seen"].items()}
        batch = Batch(data["number"], data["cut"], data["record"], capture_marks)
        streams = DeltaFiles.from_json(data["streams"]) if "streams" in data else DeltaFiles()
        return PublishedBatch(batch, tuple(PastBatch(*fields) for fields in data["past"]), streams)


class MetaTable(Ledger[DatabaseState]):
    """The meta table of one database. Its state is the ledger of the batches."""

    def __init__(self, client: HBaseClient, namespace: str) -> None:
        self.client = client
        self.namespace = self.location = namespace
        self.table = f"{namespace}:viewkeeper.meta"
        self._last_written: bytes | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    def open(self, mode: str, create: bool = False) -> DatabaseState:
        """Return the state. Mode 'w' creates an empty database where none exists; `create` also creates the
        namespace."""
        if create and mode == "w" and self.namespace not in self.client.admin.list_namespaces():
            with suppress(AlreadyExists):
                self.client.admin.create_namespace(self.namespace)
        self.client.admin.require_namespace(self.namespace)
        try:
            found = self.client.get(self.table, _ROW, (_STATE,))
        except NoSuchTable:
            found = None
        if found is None and mode == "r":
            raise NotADatabase(
                f"The namespace {self.namespace} of HBase at {self.client.pool.gateway.address} holds no database.",
                hint="Make one: vk init, or open it with mode='w'.",
            )
        if found is None:
            self._create()
        return self.read_state()

    def _create(self) -> None:
        try:
            self.client.admin.create(self.table, [ColumnFamily(b"m", max_versions=1)])
        except (AlreadyExists, OutcomeUnknown):
            if not self.client.admin.exists(self.table):
                raise
        first = DatabaseState(uuid=secrets.token_hex(16))
        self.client.put_if_absent(self.table, _ROW, _STATE, first.to_bytes())

    # -- state --------------------------------------------------------------------------------------------------------

    def read_state(self) -> DatabaseState:
        return DatabaseState.from_bytes(self._read_state())

    def _read_state(self) -> bytes:
        found = self.client.get(self.table, _ROW, (_STATE,))
        if not found:
            raise CorruptState(f"The table {self.table} has lost its state.", hint="Restore it from a backup.")
        return found[_STATE].value

    def change_state(
        self,
        change: Callable[[DatabaseState], tuple[DatabaseState, CellChanges] | None],
        *,
        expected: bytes | None = None,
    ) -> DatabaseState:
        """Replace the state by `change(state)`, with other cells of its row, in one step. A change of None writes
        nothing.

        `expected` is the state that this process wrote last. It is tried first, without reading: if another
        process has changed the state since, the comparison fails and the state is read. A `change` that returns
        None or raises is decided on the state that was read.
        """
        ticket = secrets.token_hex(4)
        unknown = 0
        while True:
            guessed, expected = expected, None
            raw = self._read_state() if guessed is None else guessed
            state = DatabaseState.from_bytes(raw)
            if ticket in state.tickets:  # an earlier attempt succeeded but its answer was lost
                return state
            try:
                changed = change(state)
            except MaintainerBusy:
                if guessed is None:
                    raise
                continue
            if changed is None:
                if guessed is None:
                    return state
                continue
            new = replace(changed[0], tickets=(ticket, *state.tickets)[:_MAX_TICKETS])
            puts = {_STATE: new.to_bytes(), **{c: v for c, v in changed[1].items() if v is not None}}
            deletes = [column for column, value in changed[1].items() if value is None]
            try:
                if self._compare_and_write(raw, puts, deletes):
                    self._last_written = puts[_STATE]
                    return new
            except OutcomeUnknown:
                unknown += 1
                if unknown > self.client.pool.retry.max_retries:
                    raise
                time.sleep(self.client.pool.retry.pause(unknown))

    def replace_state(
        self,
        change: Callable[[DatabaseState], DatabaseState | None],
        batch_record: Mapping[str, Any] | None = None,
        catalog_changes: Mapping[str, Any] | None = None,
    ) -> DatabaseState:
        cells: CellChanges = {_BATCH: encode_record(batch_record)} if batch_record is not None else {}
        if catalog_changes is not None:
            cells |= encode_catalog_changes(catalog_records.CatalogDifference.from_json(catalog_changes))

        def change_and_cells(state: DatabaseState) -> tuple[DatabaseState, CellChanges] | None:
            changed = change(state)
            if changed is None:
                return None
            return (changed if catalog_changes is None else replace(changed, format=FORMAT)), cells

        return self.change_state(change_and_cells, expected=self._last_written)

    def _compare_and_write(self, expected: bytes, puts: dict[bytes, bytes], deletes: list[bytes]) -> bool:
        if deletes:
            return self.client.change_if(self.table, _ROW, _STATE, expected, puts, deletes)
        return self.client.put_if(self.table, _ROW, _STATE, expected, puts)

    # -- catalog and batch --------------------------------------------------------------------------------------------

    def read_catalog(self, cached: Catalog) -> Catalog:
        """Return the catalog; only definitions changed since `cached` are read."""
        while True:
            head = self._read(_CATALOG)
            if head is None or catalog_records.is_whole_catalog(head):
                return catalog_records.read_catalog(_DatabaseRow({} if head is None else {_CATALOG: head}), cached)
            ids = catalog_records.ids_changed_after(head, cached.version) if head["floor"] <= cached.version else None
            # A read of a row is consistent in itself: the head and the definitions that it lists must come from the
            # same state.
            found = self._read_cells(None if ids is None else [_CATALOG, *map(_definition_column, ids)])
            if ids is None or found.get(_CATALOG) == head:
                return catalog_records.read_catalog(_DatabaseRow(found), cached)

    def plan_catalog_change(
        self, cached: Catalog, change: Callable[[Catalog], Catalog]
    ) -> tuple[Catalog, Catalog, catalog_records.CatalogDifference | None]:
        """Return the catalog, the result of `change`, and the difference to write."""
        while True:
            cached = self.read_catalog(cached)
            head = self._read(_CATALOG)
            if head is None or head["version"] == cached.version:
                changed = change(cached)
                return cached, changed, catalog_records.diff_catalogs(head, cached, changed)

    def read_published_batch(self) -> PublishedBatch | None:
        data = self._read(_BATCH)
        return None if data is None else PublishedBatch.from_json(data)

    def read_consistent(self, cached: Catalog | None = None) -> tuple[Catalog, PublishedBatch | None]:
        """Return the catalog and the published batch of the same state: they are cells of one row."""
        catalog = Catalog() if cached is None else cached
        found = self._read_cells([_CATALOG, _BATCH])
        if (
            _CATALOG in found
            and not catalog_records.is_whole_catalog(found[_CATALOG])
            and found[_CATALOG]["version"] != catalog.version
        ):
            found = self._read_cells(None)
        batch = PublishedBatch.from_json(found[_BATCH]) if _BATCH in found else None
        return catalog_records.read_catalog(_DatabaseRow(found), catalog), batch

    def _read_cells(self, columns: list[bytes] | None) -> dict[bytes, Any]:
        """Return these cells of the database's row, decoded; None reads all but the state."""
        found = self.client.get(self.table, _ROW, columns or ()) or {}
        return {column: decode_record(cell.value, column) for column, cell in found.items() if column != _STATE}

    def _read(self, column: bytes) -> Any:
        found = self.client.get(self.table, _ROW, (column,))
        return decode_record(found[column].value, column) if found else None

    # -- clock and notes ----------------------------------------------------------------------------------------------

    def read_clock(self) -> int:
        """Return the server's time in milliseconds since 1970."""
        return self.client.increment_counter(self.table, b"clock", _CLOCK).time

    def read_note(self, name: str) -> Any:
        found = self.client.get(self.table, b"note:" + name.encode(), (_NOTE,))
        return decode_record(found[_NOTE].value, _NOTE) if found else None

    def put_note(self, name: str, note: Any) -> None:
        key = b"note:" + name.encode()
        if note is None:
            self.client.delete(self.table, key)
            time.sleep(0.002)  # a put in the same millisecond as a delete would stay hidden
        else:
            self.client.put(self.table, key, {_NOTE: encode_record(note)})

    def read_notes(self, prefix: str) -> dict[str, Any]:
        """Return the notes whose names begin with `prefix`."""
        start = b"note:" + prefix.encode()
        found = {}
        for cells in self.client.scan(self.table, ScanRequest(start=start, stop=start + b"\xff")):
            values = cells.column(_NOTE).to_pylist()
            for key, value in zip(cells.keys.to_pylist(), values, strict=True):
                if value is not None:
                    found[key[5:].decode()] = decode_record(value, _NOTE)
        return found


def _decode_mark(low: int, digest: str, push: list[Any] | None = None) -> HBaseCaptureMark:
    return HBaseCaptureMark(low, digest, push=None if push is None else PushMark.from_json(push))


class _DatabaseRow:
    """The cells of the database's row from one read (`catalog_records.CatalogRecords`)."""

    def __init__(self, cells: Mapping[bytes, Any]) -> None:
        self._cells = cells

    def head(self) -> Any:
        return self._cells.get(_CATALOG)

    def definition(self, number: int) -> Any:
        return self._cells.get(_definition_column(number))

    def definitions(self) -> Iterator[Any]:
        return (data for column, data in self._cells.items() if column.startswith(_DEFINITION))


def _definition_column(number: int) -> bytes:
    return _DEFINITION + b"%d" % number


def encode_catalog_changes(difference: catalog_records.CatalogDifference) -> CellChanges:
    cells: CellChanges = {_CATALOG: encode_record(difference.head)}
    return cells | {
        _definition_column(i): None if data is None else encode_record(data)
        for i, data in difference.definitions.items()
    }


def encode_record(data: Any) -> bytes:
    text = zlib.compress(json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode(), 1)
    return zlib.crc32(text).to_bytes(4, "big") + text


def decode_record(value: bytes, name: bytes) -> Any:
    if zlib.crc32(value[4:]) != int.from_bytes(value[:4], "big"):
        raise CorruptState(f"The record {name.decode()!r} of the database is damaged: its checksum is wrong.")
    return json.loads(zlib.decompress(value[4:]))
