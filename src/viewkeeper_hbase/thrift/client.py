"""Reading and writing rows of an HBase through its Thrift2 gateway.

What is said here about keys and columns is HBase's: a key is bytes, a column is `family:qualifier`, a cell is a value
with a time. One row is changed atomically; a call over many rows is not: when it fails, some may be written.

A `time` given to a write is the time of its cells. Then the write can be repeated without harm, and is, when the
connection fails or the server asks for it. Without one the server's clock gives the time, and a write whose reply is
lost raises OutcomeUnknown. Times of one row must grow: a value at or below the time of an earlier delete stays hidden.
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
    """A gateway, ready to use from several threads. Names are `namespace:table`."""

    def __init__(self, gateway: Gateway, *, retry: RetryPolicy | None = None) -> None:
        self.pool = GatewayPool(gateway, retry=retry)
        self.admin = HBaseAdmin(self.pool)
        self._rows_per_call: dict[str, int] = {}
        """How many rows of a table were asked for at once without a reply that was too long."""

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
        """Write if a column of the row has the expected value (None: has no value), in one step; whether it had.

        Never repeated by itself: OutcomeUnknown when the answer is lost. See `claim` for one that settles it.
        """
        family, qualifier = split_column(column)
        said = self.pool.call(
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
        return bool(said)

    def change_if(
        self,
        table: str,
        key: bytes,
        column: bytes,
        expected: bytes,
        puts: Mapping[bytes, bytes],
        deletes: Sequence[bytes],
    ) -> bool:
        """`change`, if a column of the row has the expected value, in one step; whether it had. Never repeated."""
        family, qualifier = split_column(column)
        said = self.pool.call(
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
        return bool(said)

    def increment_counter(self, table: str, key: bytes, column: bytes) -> Cell:
        """Add one to a counter that need not survive a crash: its value, and the server's clock (ms since 1970)."""
        hbase = thrift_interface()
        family, qualifier = split_column(column)
        asked = hbase.TIncrement(
            row=key,
            columns=[hbase.TColumnIncrement(family=family, qualifier=qualifier or b"", amount=1)],
            durability=hbase.TDurability.SKIP_WAL,
        )
        said = self.pool.call("increment", repeatable=True, table_name=table, table=table.encode(), tincrement=asked)
        return Cell(said.columnValues[0].value, said.columnValues[0].timestamp)

    def put_if_absent(self, table: str, key: bytes, column: bytes, value: bytes, *, time: int | None = None) -> bytes:
        """Write a value where there is none, and give the value that is there now: one's own, or who was first.

        With values that tell the claimants apart, a lost answer does no harm: the row says who won.
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
            there = self.get(table, key, (column,))
            if there:
                return there[column].value

    def get(
        self, table: str, key: bytes, columns: Sequence[bytes] = (), *, span: TimeRange | None = None
    ) -> dict[bytes, Cell] | None:
        """The newest cells of a row (in a time range), by column; None if there are none."""
        hbase = thrift_interface()
        wanted = [hbase.TColumn(family=f, qualifier=q) for f, q in map(split_column, columns)]
        time_range = hbase.TTimeRange(*span) if span else None
        asked = hbase.TGet(row=key, columns=wanted or None, timeRange=time_range)
        said = self.pool.call("get", repeatable=True, table_name=table, table=table.encode(), tget=asked)
        return {b"%s:%s" % (c.family, c.qualifier): Cell(c.value, c.timestamp) for c in said.columnValues} or None

    # -- many rows ----------------------------------------------------------------------------------------------------

    def put_rows(
        self,
        table: str,
        keys: pa.Array,
        columns: Mapping[bytes, pa.Array],
        *,
        time: int | pa.Array | None = None,
        retry_unknown: bool = False,
    ) -> None:
        """Write rows from binary arrays, one for each column; null writes no cell. One time for all, or one each.

        `again`: repeat a call whose outcome is unknown, though the server's clock then gives its cells a later time.
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
        """Delete rows, or all versions of some columns or families of them, up to a time; `again` as for puts."""
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
        """The rows of these keys, in their order; a key that is not there is a row with null for key and no cells."""
        at, asked = 0, self._rows_per_call.get(table, thrift_scan.FIRST_ROWS)
        while at < len(keys):
            for message, count in request_encoder.encode_gets(
                table.encode(), keys.slice(at, asked), columns, span, versions
            ):
                cells = self.pool.attempt(
                    _rows_call("getMultiple", message), "getMultiple", repeatable=True, table_name=table
                )
                yield cells
                at += count
            asked = thrift_scan.next_row_count(cells.rows, len(cells.frame), asked)
            self._rows_per_call[table] = min(asked, 10 * thrift_scan.FIRST_ROWS)

    def scan(self, table: str, scan: ScanRequest | None = None) -> Generator[Cells, None, None]:
        """Rows in key order; goes on after a lost scanner where it stopped."""
        return thrift_scan.scan_rows(self.pool, table, scan or ScanRequest())

    def scan_changed(
        self, table: str, span: TimeRange, *, start: bytes = b"", stop: bytes = b"", families: Sequence[bytes] = ()
    ) -> Iterator[Cells]:
        """The rows with a cell or a delete marker in the time range: keys, columns, times and kinds; no values."""
        wanted = ScanRequest(
            start=start,
            stop=stop,
            columns=tuple(families),  # HBase takes no single columns in a raw scan
            span=span,
            versions=2**31 - 1,
            raw=True,
            filter=b"KeyOnlyFilter()",
            cache_blocks=False,
        )
        return thrift_scan.scan_rows(self.pool, table, wanted)

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
        if connection.has_frames:  # else it was decoded on the way
            connection.decode(method, frame)

    return work


def _thrift_put(key: bytes, cells: Mapping[bytes, bytes], time: int | None) -> Any:
    hbase = thrift_interface()
    values = [
        hbase.TColumnValue(f, q or b"", value) for (f, q), value in ((split_column(c), v) for c, v in cells.items())
    ]
    return hbase.TPut(row=key, columnValues=values, timestamp=time)


def _thrift_deletes(key: bytes, columns: Sequence[bytes], time: int | None) -> list[Any]:
    """The deletes for a row. Whole families and single columns are deletes of different types."""
    hbase = thrift_interface()
    types = hbase.TDeleteType
    wanted = [hbase.TColumn(family=f, qualifier=q, timestamp=time) for f, q in map(split_column, columns)]
    if not wanted:
        return [hbase.TDelete(row=key, timestamp=time, deleteType=types.DELETE_COLUMNS)]
    families = [column for column in wanted if column.qualifier is None]
    single = [column for column in wanted if column.qualifier is not None]
    both = ((families, types.DELETE_FAMILY), (single, types.DELETE_COLUMNS))
    return [hbase.TDelete(row=key, columns=some, deleteType=kind) for some, kind in both if some]


def _thrift_mutations(key: bytes, puts: Mapping[bytes, bytes], deletes: Sequence[bytes], time: int | None) -> Any:
    hbase = thrift_interface()
    both = [hbase.TMutation(deleteSingle=one) for one in _thrift_deletes(key, deletes, time)] if deletes else []
    both += [hbase.TMutation(put=_thrift_put(key, puts, time))] if puts else []
    return hbase.TRowMutations(row=key, mutations=both)
