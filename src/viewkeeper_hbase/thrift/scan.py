"""Reading a key range, whatever happens on the way.

1. Ask for the first rows in a single call: most scans end there. Then open a scanner on the gateway.
2. When a reply is in, ask for the next rows *before* decoding it, so that gateway and client work at the same time.
3. How many rows are asked for follows their size: a reply is about `REPLY_BYTES`, whether rows are small or large.
4. A scanner that is lost (time-out, moved region, restarted gateway, broken connection) is opened anew behind the last
   whole row that was handed out: nothing is seen twice, nothing is left out. A row is always read whole.

Without a time range such a scan is not one state of the table: it sees writes that happen ahead of it.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any

from viewkeeper_hbase.thrift import reply_decoder
from viewkeeper_hbase.thrift.cells import Cells
from viewkeeper_hbase.thrift.connection import Connection, Frame, idl, reply_frame
from viewkeeper_hbase.thrift.errors import ScannerLost
from viewkeeper_hbase.thrift.pool import Pool
from viewkeeper_hbase.thrift.reply_decoder import Unreadable
from viewkeeper_hbase.thrift.request_encoder import TimeRange, split_column

REPLY_BYTES = 2 << 20
FIRST_ROWS = 200
_MOST_ROWS = 50_000


@dataclass(frozen=True)
class Scan:
    """Which rows and cells to read. Keys from `start` (included) to `stop` (excluded); empty means unbounded."""

    start: bytes = b""
    stop: bytes = b""
    columns: tuple[bytes, ...] = ()
    """`family:qualifier` or `family`; none means all."""
    span: TimeRange | None = None
    """Only cells with a time in [from, to): [0, n + 1) is the table as of n, where versions and deletes are kept."""
    versions: int | None = None
    """Cells of one column at most; HBase's default is 1."""
    raw: bool = False
    """Everything that is stored: hidden versions and delete markers too (`Cells.kind` tells). Families only."""
    filter: bytes | None = None
    """In HBase's filter language, for example b"KeyOnlyFilter()"; constants in it are bytes as they are."""
    limit: int | None = None
    cache_blocks: bool | None = None
    """False for large scans that should not push others' blocks out of the server's cache."""
    attributes: dict[bytes, bytes] = field(default_factory=dict)

    def as_thrift(self) -> Any:
        hbase = idl()
        wanted = [hbase.TColumn(family=f, qualifier=q) for f, q in map(split_column, self.columns)]
        return hbase.TScan(
            startRow=self.start or None,
            stopRow=self.stop or None,
            columns=wanted or None,
            maxVersions=self.versions,
            timeRange=hbase.TTimeRange(*self.span) if self.span else None,
            filterString=self.filter,
            attributes={**self.attributes, **({b"_raw_": b"\xff"} if self.raw else {})} or None,
            cacheBlocks=self.cache_blocks,
            limit=self.limit,
        )


def scan(pool: Pool, table: str, wanted: Scan) -> Generator[Cells, None, None]:
    """The rows of a scan, in key order, up to some thousand at a time."""
    if (wanted.stop and wanted.start >= wanted.stop) or wanted.limit == 0:
        return
    first = min(FIRST_ROWS, wanted.limit or FIRST_ROWS)
    cells = pool.attempt(lambda c: _at_once(c, table, wanted, first), "scan", repeatable=True, of_table=table)
    rows = fitting(cells.rows, len(cells.frame), first)
    failed, wanted_more = 0, True
    if cells.rows:
        yield cells
        wanted = _behind(wanted, cells)
    if cells.rows < first or wanted.limit == 0:
        return
    while True:
        try:
            with pool.connection() as connection:
                scanner = _Scanner(connection, table, wanted, rows)
                while (more := scanner.next()) is not None:
                    failed = 0
                    wanted, rows = _behind(wanted, more), scanner.rows
                    try:
                        yield more
                    except GeneratorExit:
                        wanted_more = False
                        scanner.close()
                        return
                return
        except Exception as error:
            if not wanted_more:  # HBase ends a scanner that nobody asks by itself
                return
            _weigh(pool, error, table, failed)
            time.sleep(pool.retry.pause(failed))
            failed += 1


def _behind(wanted: Scan, seen: Cells) -> Scan:
    """What is left of a scan after these rows."""
    left = None if wanted.limit is None else wanted.limit - seen.rows
    return replace(wanted, start=seen.keys[-1].as_py() + b"\0", limit=left)


def _weigh(pool: Pool, error: Exception, table: str, failed: int) -> None:
    try:
        pool.weigh(error, "scan", failed, repeatable=True, of_table=table)
    except ScannerLost:
        if failed >= pool.retry.times:
            raise


def fitting(rows: int, size: int, asked: int) -> int:
    """How many rows to ask for after a reply of this size; growing slowly, as the next rows may be larger."""
    return max(1, min(_MOST_ROWS, asked * 8, REPLY_BYTES * rows // size)) if rows else asked


def _at_once(connection: Connection, table: str, wanted: Scan, rows: int) -> Cells:
    """The first rows in a single call, which is all that most scans need."""
    asked = wanted.as_thrift()
    asked.caching = rows
    return ask(connection, "getScannerResults", table=table.encode(), tscan=asked, numRows=rows)


def ask(connection: Connection, method: str, **arguments: Any) -> Cells:
    """A call whose answer is a list of rows."""
    if connection.gives_frames:
        return read(connection, method, connection.receive(connection.send(connection.message(method, **arguments))))
    return read(connection, method, reply_frame(method, connection.call(method, **arguments)))


def read(connection: Connection, method: str, frame: Frame) -> Cells:
    """The rows in a reply; an exception in it is raised."""
    cells = reply_decoder.decode(frame)
    if cells is None:
        connection.decode(method, frame)
        raise Unreadable(f"The reply to {method} holds neither rows nor an exception.")
    return cells


class _Scanner:
    """A scanner on the gateway, one request ahead of its reader."""

    def __init__(self, connection: Connection, table: str, wanted: Scan, rows: int) -> None:
        self._connection = connection
        self._id = connection.call("openScanner", table=table.encode(), tscan=wanted.as_thrift())
        self._asked = 0
        self._deadline = 0.0
        self.rows = rows
        """How many to ask for next."""
        self._ask()

    def next(self) -> Cells | None:
        """The next rows, or None at the end (the scanner is closed then)."""
        if not self._asked:
            self.close()
            return None
        asked, self._asked = self._asked, 0
        if not self._connection.gives_frames:
            cells = ask(self._connection, "getScannerRows", scannerId=self._id, numRows=asked)
            self._asked = asked if cells.rows == asked else 0
        else:
            frame = self._connection.receive(self._deadline)
            count = reply_decoder.count_results(frame)
            if count == asked:
                self.rows = fitting(count, len(frame), asked)
                self._ask()
            cells = read(self._connection, "getScannerRows", frame)
        if not cells.rows:
            self.close()
            return None
        return cells

    def close(self) -> None:
        """Free the scanner on the gateway, reading the reply that may still be under way."""
        if self._asked and self._connection.gives_frames:
            self._connection.receive(self._deadline)
        self._asked = 0
        self._connection.call("closeScanner", scannerId=self._id)

    def _ask(self) -> None:
        self._asked = self.rows
        if self._connection.gives_frames:
            self._deadline = self._connection.send(
                self._connection.message("getScannerRows", scannerId=self._id, numRows=self.rows)
            )
