"""An HBase in a few lines: cells with versions and delete markers, in memory, behind a framed Thrift2 gateway.

With it everything of the HBase store runs without a JVM, and a fault can be put at any call. It does what was seen of
the real one (`tests/integration/hbase` holds both to the same expectations): rows are atomic and nothing else is; times
are milliseconds; a marker hides what is not newer; a family that keeps deleted cells shows what was there before it.
"""

from __future__ import annotations

import operator
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("thriftpy2")

from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.thrift import TProcessor
from thriftpy2.transport import TFramedTransport, TSocket, TTransportException

from viewkeeper_hbase.thrift.cells import DELETE_COLUMN, DELETE_FAMILY, PUT
from viewkeeper_hbase.thrift.connection import thrift_interface

HBASE = thrift_interface()
ALL = (0, 2**63 - 1)

Column = tuple[bytes, bytes]
Version = tuple[int, int, bytes]
"""Time, kind, value."""


class Table:
    def __init__(self, descriptor: Any) -> None:
        self.descriptor = descriptor
        self.keeps = {f.name: f.keepDeletedCells == HBASE.TKeepDeletedCells.TRUE for f in descriptor.columns}
        self.rows: dict[bytes, dict[Column, list[Version]]] = {}
        self.splits: list[bytes] = []
        """Where its regions begin."""
        self.scanned: list[Any] = []
        """The scans that it was asked for."""
        self.on_add: Callable[[bytes, int], None] | None = None
        """Told of each cell's row and time, as a write-ahead log is."""

    def add(self, row: bytes, column: Column, version: Version) -> None:
        """Cells of one time replace one another."""
        cells = self.rows.setdefault(row, {}).setdefault(column, [])
        cells[:] = sorted([version, *(c for c in cells if c[:2] != version[:2])], key=lambda c: (-c[0], -c[1]))
        if self.on_add is not None:
            self.on_add(row, version[0])

    def read(self, row: bytes, columns: list[Any] | None, span: Any, versions: int | None, raw: bool) -> list[Any]:
        low, high = (span.minStamp, span.maxStamp) if span else ALL
        cells = self.rows.get(row, {})
        found = []
        for (family, qualifier), stored in sorted(cells.items()):
            if columns and not any(c.family == family and c.qualifier in (None, qualifier) for c in columns):
                continue
            inside = [c for c in stored if low <= c[0] < high]
            if not raw:
                ends = high if self.keeps[family] else ALL[1]
                markers = [c for c in (*stored, *cells.get((family, b""), ())) if c[1] != PUT and c[0] < ends]
                family_markers = [c for c in markers if c[1] == DELETE_FAMILY or c in stored]
                hidden = max((c[0] for c in family_markers), default=-1)
                inside = [c for c in inside if c[1] == PUT and c[0] > hidden][: versions or 1]
            found += [HBASE.TColumnValue(family, qualifier, c[2], timestamp=c[0], type=c[1]) for c in inside]
        return found


class SmallHBase:
    """The handler of the gateway's calls, and the gateway. `breaks`: after how many more calls it dies, and whether the
    last one is still done; until `revive` it takes no more."""

    def __init__(self) -> None:
        self.host = "127.0.0.1"
        self.namespaces = {"default"}
        self.tables: dict[bytes, Table] = {}
        self.calls = 0
        self.on_create: Callable[[str, Table], None] | None = None
        self.breaks: tuple[int, bool] | None = None
        self._lock = threading.RLock()
        self._scanners: dict[int, Iterator[list[Any]]] = {}
        self._listener = socket.create_server((self.host, 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def revive(self) -> None:
        self.breaks = None

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection = self._listener.accept()[0]
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        wire = TFramedTransport(TSocket(sock=connection))
        form = TBinaryProtocol(wire)
        processor = TProcessor(HBASE.THBaseService, self)
        with connection, suppress(TTransportException, OSError):
            while True:
                method, seqid, result, call = processor.process_in(form)
                with self._lock:
                    self.calls += 1
                    if self.breaks is not None:
                        left, done = self.breaks
                        self.breaks = (left - 1, done)
                        if left <= 0:
                            if left == 0 and done:
                                call()
                            return
                    try:
                        result.success = call()
                    except (HBASE.TIOError, HBASE.TIllegalArgument) as error:
                        processor.handle_exception(error, result)
                processor.send_result(form, method, result, seqid)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def put(self, table: bytes, tput: Any, at: int | None = None) -> None:
        now = self._now(tput.timestamp or at)
        there = self._table(table)
        for c in tput.columnValues:
            self._family(there, c.family)
            there.add(tput.row, (c.family, c.qualifier), (c.timestamp or now, PUT, c.value))

    def putMultiple(self, table: bytes, tputs: list[Any]) -> None:
        """With one time for all, as a region gives to the rows of a call that it gets together."""
        at = self._now(None)
        for one in tputs:
            self.put(table, one, at)

    def deleteSingle(self, table: bytes, tdelete: Any, at: int | None = None) -> None:
        now = self._now(tdelete.timestamp or at)
        there = self._table(table)
        for family in there.keeps if not tdelete.columns else ():
            there.add(tdelete.row, (family, b""), (now, DELETE_FAMILY, b""))
        for c in tdelete.columns or ():
            whole = tdelete.deleteType == HBASE.TDeleteType.DELETE_FAMILY
            kind = DELETE_FAMILY if whole else DELETE_COLUMN
            there.add(tdelete.row, (c.family, b"" if whole else c.qualifier), (c.timestamp or now, kind, b""))

    def deleteMultiple(self, table: bytes, tdeletes: list[Any]) -> list[Any]:
        at = self._now(None)
        for one in tdeletes:
            self.deleteSingle(table, one, at)
        return []

    def mutateRow(self, table: bytes, trowMutations: Any) -> None:
        at = self._now(None)
        for one in trowMutations.mutations:
            if one.put is not None:
                self.put(table, one.put, at)
            else:
                self.deleteSingle(table, one.deleteSingle, at)

    def checkAndPut(self, table: bytes, row: bytes, family: bytes, qualifier: bytes, value: Any, tput: Any) -> bool:
        equal = self._value(table, row, family, qualifier) == value
        if equal:
            self.put(table, tput)
        return equal

    def checkAndMutate(
        self, table: bytes, row: bytes, family: bytes, qualifier: bytes, compareOp: int, value: Any, rowMutations: Any
    ) -> bool:
        equal = self._value(table, row, family, qualifier) == value
        if equal:
            self.mutateRow(table, rowMutations)
        return equal

    def increment(self, table: bytes, tincrement: Any) -> Any:
        column, now = tincrement.columns[0], self._now(None)
        old = self._value(table, tincrement.row, column.family, column.qualifier) or bytes(8)
        new = (int.from_bytes(old, "big") + column.amount).to_bytes(8, "big")
        self._table(table).rows.setdefault(tincrement.row, {})[column.family, column.qualifier] = [(now, PUT, new)]
        cell = HBASE.TColumnValue(column.family, column.qualifier, new, timestamp=now, type=PUT)
        return HBASE.TResult(row=tincrement.row, columnValues=[cell])

    def get(self, table: bytes, tget: Any) -> Any:
        cells = self._table(table).read(tget.row, tget.columns, tget.timeRange, tget.maxVersions, False)
        return HBASE.TResult(row=tget.row if cells else None, columnValues=cells, stale=False, partial=False)

    def getMultiple(self, table: bytes, tgets: list[Any]) -> list[Any]:
        return [self.get(table, one) for one in tgets]

    # -- scans --------------------------------------------------------------------------------------------------------

    def getScannerResults(self, table: bytes, tscan: Any, numRows: int) -> list[Any]:
        rows = self._scan(table, tscan)
        return [row for _, row in zip(range(numRows), rows, strict=False)]

    def openScanner(self, table: bytes, tscan: Any) -> int:
        self._scanners[self.calls] = self._scan(table, tscan)
        return self.calls

    def getScannerRows(self, scannerId: int, numRows: int) -> list[Any]:
        if scannerId not in self._scanners:
            raise HBASE.TIllegalArgument("Invalid scanner Id")
        return [row for _, row in zip(range(numRows), self._scanners[scannerId], strict=False)]

    def closeScanner(self, scannerId: int) -> None:
        self._scanners.pop(scannerId, None)

    def _scan(self, table: bytes, tscan: Any) -> Iterator[Any]:
        there = self._table(table)
        there.scanned.append(tscan)
        raw = b"_raw_" in (tscan.attributes or {})
        keys = sorted(k for k in there.rows if k >= (tscan.startRow or b"") and k < (tscan.stopRow or b"\xff" * 9))
        pick = _filter(tscan.filterString or b"")
        left = tscan.limit or len(keys)
        for key in keys:
            cells = pick(there.read(key, tscan.columns, tscan.timeRange, tscan.maxVersions, raw))
            if cells and left:
                left -= 1
                yield HBASE.TResult(row=key, columnValues=cells, stale=False, partial=False)

    # -- tables -------------------------------------------------------------------------------------------------------

    def createTable(self, desc: Any, splitKeys: Any) -> None:
        name = desc.tableName.ns + b":" + desc.tableName.qualifier
        if desc.tableName.ns.decode() not in self.namespaces:
            raise HBASE.TIOError(f"NamespaceNotFoundException: {name!r}", False)
        if name in self.tables:
            raise HBASE.TIOError(f"TableExistsException: {name!r}", False)
        self.tables[name] = Table(desc)
        if self.on_create is not None:
            self.on_create(name.decode(), self.tables[name])

    def tableExists(self, tableName: Any) -> bool:
        return tableName.ns + b":" + tableName.qualifier in self.tables

    def isTableEnabled(self, tableName: Any) -> bool:
        return self.tableExists(tableName)

    def disableTable(self, tableName: Any) -> None: ...

    def deleteTable(self, tableName: Any) -> None:
        self._table(tableName.ns + b":" + tableName.qualifier)
        del self.tables[tableName.ns + b":" + tableName.qualifier]

    def getTableDescriptor(self, table: Any) -> Any:
        return self._table(table.ns + b":" + table.qualifier).descriptor

    def getTableNamesByNamespace(self, name: str) -> list[Any]:
        return [t.descriptor.tableName for n, t in self.tables.items() if n.startswith(name.encode() + b":")]

    def getAllRegionLocations(self, table: bytes) -> list[Any]:
        there = self._table(table)
        server = HBASE.TServerName("localhost", 1)
        infos = [
            HBASE.THRegionInfo(regionId=n, tableName=table, startKey=a, endKey=b)
            for n, (a, b) in enumerate(pairwise([b"", *there.splits, b""]))
        ]
        return [HBASE.THRegionLocation(server, info) for info in infos]

    def createNamespace(self, namespaceDesc: Any) -> None:
        self.namespaces.add(namespaceDesc.name)

    def listNamespaces(self) -> list[str]:
        return list(self.namespaces)

    def getThriftServerType(self) -> int:
        return 2

    # -- inside -------------------------------------------------------------------------------------------------------

    def _table(self, name: bytes) -> Table:
        if name not in self.tables:
            raise HBASE.TIOError(name.decode(), False)
        return self.tables[name]

    def _family(self, table: Table, name: bytes) -> None:
        if name not in table.keeps:
            raise HBASE.TIOError(f"NoSuchColumnFamilyException: {name!r}", False)

    def _value(self, table: bytes, row: bytes, family: bytes, qualifier: bytes) -> bytes | None:
        cells = self._table(table).read(row, [HBASE.TColumn(family, qualifier)], None, 1, False)
        return cells[0].value if cells else None

    def _now(self, given: int | None) -> int:
        return time.time_ns() // 1_000_000 if given is None else given


_TEST = re.compile(
    rb"SingleColumnValueFilter\('((?:[^']|'')*)', '((?:[^']|'')*)', (<=|>=|=|<|>), "
    rb"'binary:((?:[^']|'')*)', true, true\)"
)
_COMPARE = {b"=": operator.eq, b"<": operator.lt, b"<=": operator.le, b">": operator.gt, b">=": operator.ge}


def _filter(text: bytes) -> Any:
    """The few filters that the store uses: tests of rows, and after them a choice of cells."""
    rows, _, cells = text.rpartition(b") AND (FirstKeyOnly") if b"Value" in text else (b"", b"", text)
    if b"Value" in text and not rows:
        rows, cells = text, b""
    choose = _choice((b"FirstKeyOnly" if rows and cells else b"") + cells)

    def pick(found: list[Any]) -> list[Any]:
        said = _TEST.sub(lambda test: b" 1 " if _passes(found, *test.groups()) else b" 0 ", rows.removeprefix(b"("))
        said = said.replace(b"AND", b"and").replace(b"OR", b"or")
        if rows and not eval(said if said.count(b"(") == said.count(b")") else b"(" + said):
            return []
        chosen: list[Any] = choose(found)
        return chosen

    return pick


def _passes(cells: list[Any], family: bytes, qualifier: bytes, op: bytes, value: bytes) -> bool:
    names = family.replace(b"''", b"'"), qualifier.replace(b"''", b"'")
    newest = next((c.value for c in cells if (c.family, c.qualifier) == names), None)
    return newest is not None and bool(_COMPARE[op](newest, value.replace(b"''", b"'")))


def _choice(text: bytes) -> Any:
    only = re.findall(rb"'binary:((?:[^']|'')*)'", text)
    if only:
        return lambda cells: [c for i, c in enumerate(cells) if i == 0 or c.qualifier in only]
    first, bare = b"FirstKeyOnly" in text, re.search(rb"(^|\s)KeyOnly", text)

    def pick(cells: list[Any]) -> list[Any]:
        cells = cells[:1] if first else cells
        kinds = ((c, c.type) for c in cells)
        bared = [HBASE.TColumnValue(c.family, c.qualifier, b"", timestamp=c.timestamp, type=k) for c, k in kinds]
        return bared if bare else cells

    return pick
