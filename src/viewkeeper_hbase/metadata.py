"""What the database knows about itself: one row of the table `namespace:viewkeeper.meta`, changed by check-and-put.

    database    m:state     which batch is published, which catalog counts, and who has claimed the next batch (JSON)
                m:catalog   the head of the catalog     } JSON, compressed, behind a checksum; written in the same
                m:dN        table or view number N of it } step as the state that names them (`catalogs`)
                m:batch     the published batch         }
    lease       m:lease     who maintains (`lease`)
    clock       m:clock     a counter whose time is the server's clock
    note:NAME   m:note      what the maintainer wants others to see
    request:NAME            what another process wants of the maintainer (`mailbox`)
    reject:...  m:reject    rows that could not be read

HBase changes one row atomically and compares one column first. So all that must change together is in one row, and the
column that is compared is the state. A change whose answer is lost is settled by reading: the state lists the last
few changes by ticket.
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

from viewkeeper.errors import CorruptState, FormatTooNew, MaintainerBusy, NotADatabase
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.store import catalog_records
from viewkeeper.store.contract.store import Batch
from viewkeeper.store.redo.claim import Claim, Ledger, Standing
from viewkeeper.store.redo.delta_files import Streams
from viewkeeper_hbase.capture.time_windows import Noted
from viewkeeper_hbase.push.spool import Pushed
from viewkeeper_hbase.thrift.admin import Family
from viewkeeper_hbase.thrift.client import Client
from viewkeeper_hbase.thrift.errors import AlreadyThere, NoSuchTable, OutcomeUnknown
from viewkeeper_hbase.thrift.scan import Scan

FORMAT = 4
"""1: the whole catalog in `m:catalog`, which is read until its first change. 2: a cell for each table and view. 3: the
count of a bag's row in the cell `c:¤count`. 4: tables keep initial values and narrower types, views the names of their
texts."""

_ROW = b"database"
_STATE, _CATALOG, _BATCH = b"m:state", b"m:catalog", b"m:batch"
_DEFINED = b"m:d"
_CLOCK = b"m:clock"
_NOTE = b"m:note"
_TICKETS = 8

Cells = dict[bytes, bytes | None]
"""Columns and what is put there; None: what is there is deleted."""


@dataclass(frozen=True)
class State(Standing):
    """The value of `m:state`."""

    uuid: str = ""
    tickets: tuple[str, ...] = ()
    format: int = FORMAT

    def to_bytes(self) -> bytes:
        return json.dumps(vars(self) | {"claim": self.claim and vars(self.claim)}, separators=(",", ":")).encode()

    @staticmethod
    def from_bytes(value: bytes) -> State:
        data = json.loads(value)
        if data["format"] > FORMAT:
            raise FormatTooNew(f"The database has format {data['format']}; this version reads up to {FORMAT}.")
        claim = Claim(**data["claim"]) if data["claim"] else None
        return State(data["published"], data["catalog"], claim, data["uuid"], tuple(data["tickets"]), data["format"])


@dataclass(frozen=True)
class Past:
    """A batch of the past: the position after which it was published, by which subscribers resume, and when."""

    number: int
    position: int
    time: float


@dataclass(frozen=True)
class Published:
    """The value of `m:batch`: the published batch, with what its capture had seen of each table's last seconds
    (`windows`), the batches back to which views can be read, the oldest first, this one last, and the deltas of views
    that are not stored."""

    batch: Batch
    past: tuple[Past, ...]
    streams: Streams = field(default_factory=Streams)

    def to_json(self) -> dict[str, Any]:
        past = [[p.number, p.position, p.time] for p in self.past]
        batch = {"number": self.batch.number, "cut": self.batch.cut, "record": self.batch.record}
        seen = {
            str(t): [n.low, n.digest] if n.push is None else [n.low, n.digest, n.push.to_json()]
            for t, n in self.batch.seen.items()
            if isinstance(n, Noted)
        }
        streams = {} if self.streams == Streams() else {"streams": self.streams.to_json()}
        return {**batch, "seen": seen, "past": past, **streams}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Published:
        seen = {int(table): _noted(*noted) for table, noted in data["seen"].items()}
        batch = Batch(data["number"], data["cut"], data["record"], seen)
        streams = Streams.from_json(data["streams"]) if "streams" in data else Streams()
        return Published(batch, tuple(Past(*one) for one in data["past"]), streams)


class MetaTable(Ledger[State]):
    """The meta table of one database; its state is the ledger of its batches."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = self.place = namespace
        self.table = f"{namespace}:viewkeeper.meta"
        self._left: bytes | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    def open(self, mode: str, create: bool = False) -> State:
        """The state; with mode 'w' an empty database is made where there is none. `create`: the namespace too."""
        if create and mode == "w" and self.namespace not in self.client.tables.namespaces():
            with suppress(AlreadyThere):
                self.client.tables.create_namespace(self.namespace)
        self.client.tables.require_namespace(self.namespace)
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
        return self.state()

    def _create(self) -> None:
        try:
            self.client.tables.create(self.table, [Family(b"m", max_versions=1)])
        except (AlreadyThere, OutcomeUnknown):
            if not self.client.tables.exists(self.table):
                raise
        first = State(uuid=secrets.token_hex(16))
        self.client.claim(self.table, _ROW, _STATE, first.to_bytes())

    # -- state --------------------------------------------------------------------------------------------------------

    def state(self) -> State:
        return State.from_bytes(self._raw())

    def _raw(self) -> bytes:
        found = self.client.get(self.table, _ROW, (_STATE,))
        if not found:
            raise CorruptState(f"The table {self.table} has lost its state.", hint="Restore it from a backup.")
        return found[_STATE].value

    def move(self, change: Callable[[State], tuple[State, Cells] | None], *, left: bytes | None = None) -> State:
        """Replace the state by `change(state)`, with other cells of its row, in one step; None leaves it as it is.

        `left`: the state as this process has left it. It is tried first, without reading: if another one is there by
        now, the comparison fails. What does not change it is decided on the state as it is.
        """
        ticket = secrets.token_hex(4)
        unknown = 0
        while True:
            guessed, left = left, None
            raw = self._raw() if guessed is None else guessed
            state = State.from_bytes(raw)
            if ticket in state.tickets:  # an attempt whose answer was lost
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
            new = replace(changed[0], tickets=(ticket, *state.tickets)[:_TICKETS])
            puts = {_STATE: new.to_bytes(), **{c: v for c, v in changed[1].items() if v is not None}}
            deletes = [column for column, value in changed[1].items() if value is None]
            try:
                if self._written(raw, puts, deletes):
                    self._left = puts[_STATE]
                    return new
            except OutcomeUnknown:
                unknown += 1
                if unknown > self.client.pool.retry.times:
                    raise
                time.sleep(self.client.pool.retry.pause(unknown))

    def settle(
        self,
        change: Callable[[State], State | None],
        published: Mapping[str, Any] | None = None,
        catalog: Mapping[str, Any] | None = None,
    ) -> State:
        cells: Cells = {_BATCH: seal(published)} if published is not None else {}
        if catalog is not None:
            cells |= catalog_cells(catalog_records.Difference.from_json(catalog))

        def moved(state: State) -> tuple[State, Cells] | None:
            found = change(state)
            if found is None:
                return None
            return (found if catalog is None else replace(found, format=FORMAT)), cells

        return self.move(moved, left=self._left)

    def _written(self, expected: bytes, puts: dict[bytes, bytes], deletes: list[bytes]) -> bool:
        if deletes:
            return self.client.change_if(self.table, _ROW, _STATE, expected, puts, deletes)
        return self.client.put_if(self.table, _ROW, _STATE, expected, puts)

    # -- catalog and batch --------------------------------------------------------------------------------------------

    def catalog(self, known: Catalog) -> Catalog:
        """The catalog; only what has changed since the `known` one is read."""
        while True:
            head = self._read(_CATALOG)
            if head is None or catalog_records.is_old(head):
                return catalog_records.read(_Row({} if head is None else {_CATALOG: head}), known)
            ids = catalog_records.changed_after(head, known.version) if head["floor"] <= known.version else None
            # A row is read as it is at one moment: what the head says and what it speaks of must be of the same.
            found = self._known_cells(None if ids is None else [_CATALOG, *map(_defined, ids)])
            if ids is None or found.get(_CATALOG) == head:
                return catalog_records.read(_Row(found), known)

    def change(
        self, known: Catalog, change: Callable[[Catalog], Catalog]
    ) -> tuple[Catalog, Catalog, catalog_records.Difference | None]:
        """The catalog, what it becomes by `change`, and what is to be written for that."""
        while True:
            known = self.catalog(known)
            head = self._read(_CATALOG)
            if head is None or head["version"] == known.version:
                made = change(known)
                return known, made, catalog_records.difference(head, known, made)

    def published(self) -> Published | None:
        data = self._read(_BATCH)
        return None if data is None else Published.from_json(data)

    def whole(self, known: Catalog | None = None) -> tuple[Catalog, Published | None]:
        """Catalog and published batch of one moment: they are cells of one row."""
        catalog = Catalog() if known is None else known
        found = self._known_cells([_CATALOG, _BATCH])
        if (
            _CATALOG in found
            and not catalog_records.is_old(found[_CATALOG])
            and found[_CATALOG]["version"] != catalog.version
        ):
            found = self._known_cells(None)
        batch = Published.from_json(found[_BATCH]) if _BATCH in found else None
        return catalog_records.read(_Row(found), catalog), batch

    def _known_cells(self, columns: list[bytes] | None) -> dict[bytes, Any]:
        """These cells of the database's row, or all but the state, as JSON."""
        found = self.client.get(self.table, _ROW, columns or ()) or {}
        return {column: unseal(cell.value, column) for column, cell in found.items() if column != _STATE}

    def _read(self, column: bytes) -> Any:
        found = self.client.get(self.table, _ROW, (column,))
        return unseal(found[column].value, column) if found else None

    # -- clock and notes ----------------------------------------------------------------------------------------------

    def clock(self) -> int:
        """The server's time now, in milliseconds since 1970."""
        return self.client.tick(self.table, b"clock", _CLOCK).time

    def note(self, name: str) -> Any:
        found = self.client.get(self.table, b"note:" + name.encode(), (_NOTE,))
        return unseal(found[_NOTE].value, _NOTE) if found else None

    def put_note(self, name: str, note: Any) -> None:
        key = b"note:" + name.encode()
        if note is None:
            self.client.delete(self.table, key)
            time.sleep(0.002)  # a put in the same millisecond as a delete would stay hidden
        else:
            self.client.put(self.table, key, {_NOTE: seal(note)})

    def notes(self, prefix: str) -> dict[str, Any]:
        """The notes whose name begins with a prefix."""
        start = b"note:" + prefix.encode()
        found = {}
        for cells in self.client.scan(self.table, Scan(start=start, stop=start + b"\xff")):
            values = cells.column(_NOTE).to_pylist()
            for key, value in zip(cells.keys.to_pylist(), values, strict=True):
                if value is not None:
                    found[key[5:].decode()] = unseal(value, _NOTE)
        return found


def _noted(low: int, digest: str, push: list[Any] | None = None) -> Noted:
    return Noted(low, digest, push=None if push is None else Pushed.from_json(push))


class _Row:
    """Cells of the database's row, read at one moment (`catalogs.Kept`)."""

    def __init__(self, cells: Mapping[bytes, Any]) -> None:
        self._cells = cells

    def head(self) -> Any:
        return self._cells.get(_CATALOG)

    def definition(self, number: int) -> Any:
        return self._cells.get(_defined(number))

    def definitions(self) -> Iterator[Any]:
        return (data for column, data in self._cells.items() if column.startswith(_DEFINED))


def _defined(number: int) -> bytes:
    return _DEFINED + b"%d" % number


def catalog_cells(written: catalog_records.Difference) -> Cells:
    cells: Cells = {_CATALOG: seal(written.head)}
    return cells | {_defined(i): None if data is None else seal(data) for i, data in written.definitions.items()}


def seal(data: Any) -> bytes:
    text = zlib.compress(json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode(), 1)
    return zlib.crc32(text).to_bytes(4, "big") + text


def unseal(value: bytes, name: bytes) -> Any:
    if zlib.crc32(value[4:]) != int.from_bytes(value[:4], "big"):
        raise CorruptState(f"The record {name.decode()!r} of the database is damaged: its checksum is wrong.")
    return json.loads(zlib.decompress(value[4:]))
