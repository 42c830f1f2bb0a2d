"""Scans a key range, and resumes after failures.

1. The first rows are requested in a single call, with which most scans end. Then a scanner is opened on the gateway.
2. When a reply has arrived, the next rows are requested *before* it is decoded, so that gateway and client work at the
   same time.
3. The number of rows requested follows their size: a reply has about `REPLY_BYTES`, whether rows are small or large.
4. A scanner that is lost (timeout, moved region, restarted gateway, broken connection) is replaced by one that begins
   behind the last whole row that was yielded: no row is returned twice or left out. Rows are always read whole.

Without a time range such a scan does not read one state of the table: it sees writes to the part not yet scanned.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any

from viewkeeper_hbase.thrift import reply_decoder
from viewkeeper_hbase.thrift.cells import Cells
from viewkeeper_hbase.thrift.connection import Connection, Frame, reply_frame, thrift_interface
from viewkeeper_hbase.thrift.errors import ScannerLost
from viewkeeper_hbase.thrift.pool import GatewayPool
from viewkeeper_hbase.thrift.reply_decoder import UnreadableReply
from viewkeeper_hbase.thrift.request_encoder import TimeRange, split_column

REPLY_BYTES = 2 << 20
FIRST_ROWS = 200
_MAX_ROWS = 50_000


@dataclass(frozen=True)
class ScanRequest:
    """Which rows and cells to read: keys from `start` (inclusive) to `stop` (exclusive); empty means unbounded."""

    start: bytes = b""
    stop: bytes = b""
    columns: tuple[bytes, ...] = ()
    """`family:qualifier` or `family`; an empty tuple means all."""
    span: TimeRange | None = None
    """Only cells with a time in [from, to): [0, n + 1) is the table as of n, if it keeps versions and deleted cells."""
    versions: int | None = None
    """Maximum number of cells of one column; HBase's default is 1."""
    raw: bool = False
    """Everything that is stored: hidden versions and delete markers too (see `Cells.kind`). Families only."""
    filter: bytes | None = None
    """In HBase's filter language, for example b"KeyOnlyFilter()"; constants in it are raw bytes."""
    limit: int | None = None
    cache_blocks: bool | None = None
    """False for large scans that should not evict other blocks from the server's cache."""
    attributes: dict[bytes, bytes] = field(default_factory=dict)

    def to_thrift(self) -> Any:
        hbase = thrift_interface()
        thrift_columns = [hbase.TColumn(family=f, qualifier=q) for f, q in map(split_column, self.columns)]
        return hbase.TScan(
            startRow=self.start or None,
            stopRow=self.stop or None,
            columns=thrift_columns or None,
            maxVersions=self.versions,
            timeRange=hbase.TTimeRange(*self.span) if self.span else None,
            filterString=self.filter,
            attributes={**self.attributes, **({b"_raw_": b"\xff"} if self.raw else {})} or None,
            cacheBlocks=self.cache_blocks,
            limit=self.limit,
        )


def scan_rows(pool: GatewayPool, table: str, request: ScanRequest) -> Generator[Cells, None, None]:
    """Yield the rows of a scan, in key order, in chunks of up to `_MAX_ROWS`."""
    if (request.stop and request.start >= request.stop) or request.limit == 0:
        return
    first = min(FIRST_ROWS, request.limit or FIRST_ROWS)
    cells = pool.attempt(lambda c: _first_rows(c, table, request, first), "scan", repeatable=True, table_name=table)
    rows = next_row_count(cells.rows, len(cells.frame), first)
    failed, wanted_more = 0, True
    if cells.rows:
        yield cells
        request = _remaining_scan(request, cells)
    if cells.rows < first or request.limit == 0:
        return
    while True:
        try:
            with pool.connection() as connection:
                scanner = _Scanner(connection, table, request, rows)
                while (next_cells := scanner.next()) is not None:
                    failed = 0
                    request, rows = _remaining_scan(request, next_cells), scanner.rows
                    try:
                        yield next_cells
                    except GeneratorExit:
                        wanted_more = False
                        scanner.close()
                        return
                return
        except Exception as error:
            if not wanted_more:  # HBase closes an abandoned scanner itself
                return
            _raise_unless_retryable(pool, error, table, failed)
            time.sleep(pool.retry.pause(failed))
            failed += 1


def _remaining_scan(request: ScanRequest, cells: Cells) -> ScanRequest:
    """Return the rest of a scan after these rows."""
    limit = None if request.limit is None else request.limit - cells.rows
    return replace(request, start=cells.keys[-1].as_py() + b"\0", limit=limit)


def _raise_unless_retryable(pool: GatewayPool, error: Exception, table: str, failed: int) -> None:
    try:
        pool.raise_unless_retryable(error, "scan", failed, repeatable=True, table_name=table)
    except ScannerLost:
        if failed >= pool.retry.max_retries:
            raise


def next_row_count(rows: int, size: int, requested: int) -> int:
    """Return how many rows to request after a reply of this size. It grows slowly, as the next rows may be larger."""
    return max(1, min(_MAX_ROWS, requested * 8, REPLY_BYTES * rows // size)) if rows else requested


def _first_rows(connection: Connection, table: str, request: ScanRequest, rows: int) -> Cells:
    """Read the first rows in a single call, which suffices for most scans."""
    thrift_scan = request.to_thrift()
    thrift_scan.caching = rows
    return call_for_rows(connection, "getScannerResults", table=table.encode(), tscan=thrift_scan, numRows=rows)


def call_for_rows(connection: Connection, method: str, **arguments: Any) -> Cells:
    """Do a call that returns a list of rows."""
    if connection.has_frames:
        return decode_rows(
            connection, method, connection.receive(connection.send(connection.encode_call(method, **arguments)))
        )
    return decode_rows(connection, method, reply_frame(method, connection.call(method, **arguments)))


def decode_rows(connection: Connection, method: str, frame: Frame) -> Cells:
    """Decode the rows of a reply; raise the exception in it, if any."""
    cells = reply_decoder.decode_frame(frame)
    if cells is None:
        connection.decode(method, frame)
        raise UnreadableReply(f"The reply to {method} holds neither rows nor an exception.")
    return cells


class _Scanner:
    """A scanner on the gateway, whose next request is sent before its reader needs it."""

    def __init__(self, connection: Connection, table: str, request: ScanRequest, rows: int) -> None:
        self._connection = connection
        self._id = connection.call("openScanner", table=table.encode(), tscan=request.to_thrift())
        self._requested_rows = 0
        self._deadline = 0.0
        self.rows = rows
        """Number of rows of the next request."""
        self._request_rows()

    def next(self) -> Cells | None:
        """Return the next rows; None at the end, where the scanner is closed."""
        if not self._requested_rows:
            self.close()
            return None
        requested, self._requested_rows = self._requested_rows, 0
        if not self._connection.has_frames:
            cells = call_for_rows(self._connection, "getScannerRows", scannerId=self._id, numRows=requested)
            self._requested_rows = requested if cells.rows == requested else 0
        else:
            frame = self._connection.receive(self._deadline)
            count = reply_decoder.count_results(frame)
            if count == requested:
                self.rows = next_row_count(count, len(frame), requested)
                self._request_rows()
            cells = decode_rows(self._connection, "getScannerRows", frame)
        if not cells.rows:
            self.close()
            return None
        return cells

    def close(self) -> None:
        """Free the scanner on the gateway, after receiving the outstanding reply."""
        if self._requested_rows and self._connection.has_frames:
            self._connection.receive(self._deadline)
        self._requested_rows = 0
        self._connection.call("closeScanner", scannerId=self._id)

    def _request_rows(self) -> None:
        self._requested_rows = self.rows
        if self._connection.has_frames:
            self._deadline = self._connection.send(
                self._connection.encode_call("getScannerRows", scannerId=self._id, numRows=self.rows)
            )
