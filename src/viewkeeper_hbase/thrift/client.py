"""The client: reads and writes rows of an HBase through its Thrift2 gateway.

Keys and columns are HBase's: a key is bytes, a column is `family:qualifier`, a cell is a value with a time.
Changes of one row are atomic. A call with several rows is not: when it fails, some of them may be written.

The `time` of a write is the time of its cells. A write with a time can be repeated without harm, and the client
does so when the connection fails or the server requests it. Without one the server's clock gives the time, and a
write whose reply is lost raises OutcomeUnknown. Times of one row must increase: a value at or below the time of
an earlier delete stays hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from viewkeeper_hbase.thrift import request_encoder
from viewkeeper_hbase.thrift import scan as thrift_scan
from viewkeeper_hbase.thrift.admin import HBaseAdmin
from viewkeeper_hbase.thrift.cells import Cells
from viewkeeper_hbase.thrift.connection import Connection, Gateway, thrift_interface
from viewkeeper_hbase.thrift.errors import OutcomeUnknown
from viewkeeper_hbase.thrift.pool import GatewayPool, RetryPolicy
from viewkeeper_hbase.thrift.request_encoder import TimeRange, split_column
from viewkeeper_hbase.thrift.scan import ScanRequest


class Cell(NamedTuple):
    """A value and its time."""

    value: bytes
    time: int


class HBaseClient:
    """A client of one gateway. It may be used from several threads. Names are `namespace:table`."""

    def __init__(self, gateway: Gateway, *, retry: RetryPolicy | None = None) -> None:
        self.pool = GatewayPool(gateway, retry=retry)
        self.admin = HBaseAdmin(self.pool)
        self._rows_per_call: dict[str, int] = {}
        """For each table, the number of rows that the next get requests, learned from the sizes of replies."""

    def check_gateway(self) -> None:
        """Raise unless an HBase Thrift2 gateway answers now."""
        self.pool.check_gateway()

    def close(self) -> None:
        self.pool.close()

    def __enter__(self) -> HBaseClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- one row ------------------------------------------------------------------------------------------------------

    def put(self, table: str, key: bytes, cells: Mapping[bytes, bytes], *, time: int | None = None) -> None:
        """Write some columns of a row, atomically."""
        self.pool.call(
            "put",
            repeatable=time is not None,
            table_name=table,
            table=table.encode(),
            tput=_thrift_put(key, cells, time),
        )

    def delete(self, table: str, key: bytes, columns: Sequence[bytes] = (), *, time: int | None = None) -> None:
        """Delete a row, or all versions of some columns or families, up to a time, atomically."""
        deletes = _thrift_deletes(key, columns, time)
        if len(deletes) > 1:
            self.change(table, key, {}, columns, time=time)
            return
        self.pool.call(
            "deleteSingle", repeatable=time is not None, table_name=table, table=table.encode(), tdelete=deletes[0]
        )

    def change(
        self, table: str, key: bytes, puts: Mapping[bytes, bytes], deletes: Sequence[bytes], *, time: int | None = None
    ) -> None:
        """Write some columns of a row and delete others, atomically."""
        self.pool.call(
            "mutateRow",
            repeatable=time is not None,
            table_name=table,
            table=table.encode(),
            trowMutations=_thrift_mutations(key, puts, deletes, time),
        )

    def put_if(
        self,
        table: str,
        key: bytes,
        column: bytes,
        expected: bytes | None,
        cells: Mapping[bytes, bytes],
        *,
        time: int | None = None,
    ) -> bool:
        """Write if a column of the row has the expected value (None: has no value), atomically; return whether it
        did.

        The call is never repeated: OutcomeUnknown is raised when the answer is lost. `put_if_absent` settles that
        case.
        """
        family, qualifier = split_column(column)
        was_written = self.pool.call(
            "checkAndPut",
            repeatable=False,
            table_name=table,
            table=table.encode(),
            row=key,
            family=family,
            qualifier=qualifier or b"",
            value=expected,
            tput=_thrift_put(key, cells, time),
        )
        return bool(was_written)

    def change_if(
        self,
        table: str,
        key: bytes,
        column: bytes,
        expected: bytes,
        puts: Mapping[bytes, bytes],
        deletes: Sequence[bytes],
    ) -> bool:
        """Do `change` if a column of the row has the expected value, atomically; return whether it did. Never
        repeated."""
        family, qualifier = split_column(column)
        was_written = self.pool.call(
            "checkAndMutate",
            repeatable=False,
            table_name=table,
            table=table.encode(),
            row=key,
            family=family,
            qualifier=qualifier or b"",
            compareOp=thrift_interface().TCompareOp.EQUAL,
            value=expected,
            rowMutations=_thrift_mutations(key, puts, deletes, None),
        )
        return bool(was_written)

    def increment_counter(self, table: str, key: bytes, column: bytes) -> Cell:
        """Increment a counter without writing the WAL; return its value and the server's clock (ms since 1970)."""
        hbase = thrift_interface()
        family, qualifier = split_column(column)
        request = hbase.TIncrement(
            row=key,
            columns=[hbase.TColumnIncrement(family=family, qualifier=qualifier or b"", amount=1)],
            durability=hbase.TDurability.SKIP_WAL,
        )
        result = self.pool.call(
            "increment", repeatable=True, table_name=table, table=table.encode(), tincrement=request
        )
        return Cell(result.columnValues[0].value, result.columnValues[0].timestamp)

    def put_if_absent(self, table: str, key: bytes, column: bytes, value: bytes, *, time: int | None = None) -> bytes:
        """Write a value if the column has none; return the value that it has now: this one, or an earlier writer's.

        If every writer's value is distinct, a lost answer does no harm: the row says which writer was first.
        """
        failed = 0
        while True:
            try:
                if self.put_if(table, key, column, None, {column: value}, time=time):
                    return value
            except OutcomeUnknown:
                failed += 1
                if failed > self.pool.retry.max_retries:
                    raise
            stored = self.get(table, key, (column,))
            if stored:
                return stored[column].value

    def get(
        self, table: str, key: bytes, columns: Sequence[bytes] = (), *, span: TimeRange | None = None
    ) -> dict[bytes, Cell] | None:
        """Return the newest cells of a row (in a time range), by column; None if there are none."""
        hbase = thrift_interface()
        thrift_columns = [hbase.TColumn(family=f, qualifier=q) for f, q in map(split_column, columns)]
        time_range = hbase.TTimeRange(*span) if span else None
        request = hbase.TGet(row=key, columns=thrift_columns or None, timeRange=time_range)
        result = self.pool.call("get", repeatable=True, table_name=table, table=table.encode(), tget=request)
        return {b"%s:%s" % (c.family, c.qualifier): Cell(c.value, c.timestamp) for c in result.columnValues} or None

    # -- batches of rows ----------------------------------------------------------------------------------------------

    def put_rows(
        self,
        table: str,
        keys: pa.Array,
        columns: Mapping[bytes, pa.Array],
        *,
        time: int | pa.Array | None = None,
        retry_unknown: bool = False,
    ) -> None:
        """Write rows from binary arrays, one for each column; null writes no cell. `time` is one for all rows, or
        one each.

        With `retry_unknown`, a call whose outcome is unknown is repeated, even if the server's clock then gives
        its cells a later time.
        """
        self._write(
            "putMultiple",
            table,
            request_encoder.encode_puts(table.encode(), keys, columns, time),
            repeatable=retry_unknown or time is not None,
        )

    def delete_rows(
        self,
        table: str,
        keys: pa.Array,
        columns: Sequence[bytes] = (),
        *,
        time: int | pa.Array | None = None,
        retry_unknown: bool = False,
    ) -> None:
        """Delete rows, or all versions of some columns or families, up to a time. `retry_unknown` is as in
        `put_rows`."""
        self._write(
            "deleteMultiple",
            table,
            request_encoder.encode_deletes(table.encode(), keys, columns, time),
            repeatable=retry_unknown or time is not None,
        )

    def get_rows(
        self,
        table: str,
        keys: pa.Array,
        columns: Sequence[bytes] = (),
        *,
        span: TimeRange | None = None,
        versions: int | None = None,
    ) -> Iterator[Cells]:
        """Yield the rows of these keys, in their order; a key that does not exist is a row with a null key and no
        cells."""
        at, row_count = 0, self._rows_per_call.get(table, thrift_scan.FIRST_ROWS)
        while at < len(keys):
            for message, count in request_encoder.encode_gets(
                table.encode(), keys.slice(at, row_count), columns, span, versions
            ):
                cells = self.pool.attempt(
                    _rows_call("getMultiple", message), "getMultiple", repeatable=True, table_name=table
                )
                yield cells
                at += count
            row_count = thrift_scan.next_row_count(cells.rows, len(cells.frame), row_count)
            self._rows_per_call[table] = min(row_count, 10 * thrift_scan.FIRST_ROWS)

    def scan(self, table: str, scan: ScanRequest | None = None) -> Generator[Cells, None, None]:
        """Yield rows in key order; if the scanner is lost, a new one resumes behind the last row."""
        return thrift_scan.scan_rows(self.pool, table, scan or ScanRequest())

    def scan_changed(
        self, table: str, span: TimeRange, *, start: bytes = b"", stop: bytes = b"", families: Sequence[bytes] = ()
    ) -> Iterator[Cells]:
        """Yield the rows with a cell or delete marker in the time range: keys, columns, times and kinds; no values."""
        request = ScanRequest(
            start=start,
            stop=stop,
            columns=tuple(families),  # HBase allows no single columns in a raw scan
            span=span,
            versions=2**31 - 1,
            raw=True,
            filter=b"KeyOnlyFilter()",
            cache_blocks=False,
        )
        return thrift_scan.scan_rows(self.pool, table, request)

    def _write(self, method: str, table: str, messages: Iterable[tuple[bytes, int]], *, repeatable: bool) -> None:
        for message, _ in messages:
            self.pool.attempt(_write_call(method, message), method, repeatable=repeatable, table_name=table)


def _rows_call(method: str, message: bytes) -> Callable[[Connection], Cells]:
    def work(connection: Connection) -> Cells:
        return thrift_scan.decode_rows(connection, method, connection.exchange(method, message))

    return work


def _write_call(method: str, message: bytes) -> Callable[[Connection], None]:
    def work(connection: Connection) -> None:
        frame = connection.exchange(method, message)
        if connection.has_frames:  # otherwise `exchange` has decoded the reply already
            connection.decode(method, frame)

    return work


def _thrift_put(key: bytes, cells: Mapping[bytes, bytes], time: int | None) -> Any:
    hbase = thrift_interface()
    values = [
        hbase.TColumnValue(f, q or b"", value) for (f, q), value in ((split_column(c), v) for c, v in cells.items())
    ]
    return hbase.TPut(row=key, columnValues=values, timestamp=time)


def _thrift_deletes(key: bytes, columns: Sequence[bytes], time: int | None) -> list[Any]:
    """Return the deletes for a row. Whole families and single columns need deletes of different types."""
    hbase = thrift_interface()
    types = hbase.TDeleteType
    thrift_columns = [hbase.TColumn(family=f, qualifier=q, timestamp=time) for f, q in map(split_column, columns)]
    if not thrift_columns:
        return [hbase.TDelete(row=key, timestamp=time, deleteType=types.DELETE_COLUMNS)]
    families = [column for column in thrift_columns if column.qualifier is None]
    single = [column for column in thrift_columns if column.qualifier is not None]
    groups = ((families, types.DELETE_FAMILY), (single, types.DELETE_COLUMNS))
    return [hbase.TDelete(row=key, columns=group, deleteType=kind) for group, kind in groups if group]


def _thrift_mutations(key: bytes, puts: Mapping[bytes, bytes], deletes: Sequence[bytes], time: int | None) -> Any:
    hbase = thrift_interface()
    mutations = (
        [hbase.TMutation(deleteSingle=delete) for delete in _thrift_deletes(key, deletes, time)] if deletes else []
    )
    mutations += [hbase.TMutation(put=_thrift_put(key, puts, time))] if puts else []
    return hbase.TRowMutations(row=key, mutations=mutations)
