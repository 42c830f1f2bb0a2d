"""Reads rows by key and by range: views at the published batch, base tables in their current state or as of a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import SnapshotGone
from viewkeeper.model.encoding.keys import encode_keys, restrict_to_prefix
from viewkeeper.model.filtered_table import Comparison
from viewkeeper_hbase.cached_state import ReadableBatch, StateCache
from viewkeeper_hbase.layout.layout import DecodedRows, Layout, decode_rows
from viewkeeper_hbase.layout.layout_cache import read_if_exists
from viewkeeper_hbase.layout.pushdown import combine_filters, push_down
from viewkeeper_hbase.thrift.client import Cell, HBaseClient
from viewkeeper_hbase.thrift.errors import NoSuchTable
from viewkeeper_hbase.thrift.request_encoder import TimeRange
from viewkeeper_hbase.thrift.scan import ScanRequest

T = TypeVar("T")


class HBaseRowReader:
    """Reads rows through one client."""

    def __init__(self, client: HBaseClient, state_cache: StateCache) -> None:
        self._client, self._state_cache = client, state_cache

    def get(self, layout: Layout, keys: pa.Array, columns: Sequence[str]) -> DecodedRows:
        """Return rows by key: a view's at the published batch, a base table's in their current state."""
        found = self._read_at_batch(layout, lambda span: self.read_rows(layout, keys, columns, span))
        return empty_rows(layout, columns) if found is None else found

    def read_cells(self, layout: Layout, key: bytes) -> dict[bytes, Cell] | None:
        """Return the cells of one row, None if there are none."""
        columns = layout.cells_to_read(list(layout.column_cells))

        def read(span: TimeRange | None) -> dict[bytes, Cell] | None:
            return read_if_exists(layout, lambda: self._client.get(layout.name, key, columns, span=span))

        return self._read_at_batch(layout, read)

    def _read_at_batch(self, layout: Layout, read: Callable[[TimeRange | None], T]) -> T | None:
        """Call `read` with the time range of the published batch, for a view. Repeat it if the batch is no longer
        readable. Return None before the first batch."""
        if not layout.table.is_view:
            return read(None)
        while True:
            batch = self._state_cache.readable_batch()
            if not batch.number:
                return None
            found = read(batch.time_range)
            with suppress(SnapshotGone):
                batch.check_readable()
                return found

    def read_rows(self, layout: Layout, keys: pa.Array, columns: Sequence[str], span: TimeRange | None) -> DecodedRows:
        """Return the rows of these keys, from cells with times in a span."""
        return read_rows(self._client, layout, keys, columns, span)

    def scan(
        self, layout: Layout, columns: list[str], start: bytes | None, stop: bytes | None, limit: int | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield a range of keys in the order of `model.encoding.keys`: a view at the published batch, a base table
        in its current state."""
        while True:
            batch = self._state_cache.readable_batch() if layout.table.is_view else None
            if batch is not None and not batch.number:
                return
            has_yielded = False
            try:
                span = None if batch is None else batch.time_range
                for rows in self.scan_keys(layout, columns, span, start, stop, limit, batch):
                    has_yielded = True
                    yield rows
                return
            except SnapshotGone:
                if has_yielded:
                    raise

    def scan_keys(
        self,
        layout: Layout,
        columns: list[str],
        span: TimeRange | None,
        start: bytes | None = None,
        stop: bytes | None = None,
        limit: int | None = None,
        readable_batch: ReadableBatch | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield a range of keys in the order of `model.encoding.keys`, from cells with times in a span."""
        if not layout.is_in_key_order:
            yield from self._scan_foreign(layout, columns, span, start, stop, limit)
            return
        for found in self.scan_row_keys(layout, columns, span, start, stop, limit, readable_batch):
            yield to_record_batch(found.rows)

    def scan_row_keys(
        self,
        layout: Layout,
        columns: list[str],
        span: TimeRange | None,
        start: bytes | None = None,
        stop: bytes | None = None,
        limit: int | None = None,
        readable_batch: ReadableBatch | None = None,
        where: Sequence[Comparison] = (),
    ) -> Iterator[DecodedRows]:
        """Yield a range of row keys in chunks, from cells with times in a span. Rows that do not satisfy `where` are
        dropped as far as HBase's scanner can evaluate it."""
        start, stop = restrict_to_prefix(layout.table, start, stop)
        if stop == b"":
            return
        is_full_scan = limit is None and start is None and stop is None
        pushed = push_down(layout, where)
        request = ScanRequest(
            start=max(start or b"", pushed.start),
            stop=min(s for s in (stop, pushed.stop) if s) if stop or pushed.stop else b"",
            columns=layout.cells_to_read(columns),
            span=span,
            filter=combine_filters(pushed.filter, layout.scan_filter(columns)),
            limit=limit,
            cache_blocks=False if is_full_scan else None,
        )
        try:
            for cells in self._client.scan(layout.name, request):
                found = decode_rows(layout, cells, columns)
                if readable_batch is not None:
                    readable_batch.check_readable()
                if found.rows.num_rows or found.rejected:
                    yield found
        except NoSuchTable:
            if not layout.is_owned:
                raise

    def _scan_foreign(
        self,
        layout: Layout,
        columns: list[str],
        span: TimeRange | None,
        start: bytes | None,
        stop: bytes | None,
        limit: int | None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield a table with another row key encoding, in HBase's order. A range is filtered from the whole table."""
        names = [*dict.fromkeys([*columns, *(c.name for c in layout.table.key_columns)])]
        remaining = limit
        for found in self.scan_row_keys(layout, names, span):
            rows = found.rows
            if start is not None or stop is not None:
                keys = encode_keys(layout.table, rows)
                inside = np.ones(len(keys), bool)
                if start is not None:
                    inside &= np.asarray(pc.greater_equal(keys, start))
                if stop is not None:
                    inside &= np.asarray(pc.less(keys, stop))
                rows = rows.filter(pa.array(inside))
            rows = rows if remaining is None else rows.slice(0, remaining)
            remaining = None if remaining is None else remaining - rows.num_rows
            if rows.num_rows:
                yield to_record_batch(rows.select(columns))
            if remaining == 0:
                return


def read_rows(
    client: HBaseClient, layout: Layout, keys: pa.Array, columns: Sequence[str], span: TimeRange | None
) -> DecodedRows:
    """Return the rows of these keys, from cells with times in a span."""
    if not len(keys):
        return empty_rows(layout, columns)

    def read() -> list[DecodedRows]:
        chunks = client.get_rows(layout.name, keys, layout.cells_to_read(columns), span=span)
        return [decode_rows(layout, cells, columns) for cells in chunks]

    return join_rows(layout, columns, read_if_exists(layout, read) or [])


def join_rows(layout: Layout, columns: Sequence[str], parts: Sequence[DecodedRows]) -> DecodedRows:
    """Concatenate rows that were read in parts."""
    if len(parts) <= 1:
        return parts[0] if parts else empty_rows(layout, columns)
    rows = pa.concat_tables([part.rows for part in parts]).combine_chunks()
    rejects = tuple(reject for part in parts for reject in part.rejected)
    return DecodedRows(rows, pa.concat_arrays([part.keys for part in parts]), rejects)


def empty_rows(layout: Layout, columns: Sequence[str]) -> DecodedRows:
    schema = pa.schema([layout.table.arrow.field(name) for name in columns])
    return DecodedRows(schema.empty_table(), pa.array([], pa.binary()), ())


def to_record_batch(rows: pa.Table) -> pa.RecordBatch:
    if not rows.num_columns:  # a batch without columns that still has a row count
        return pa.RecordBatch.from_arrays([pa.nulls(rows.num_rows)], names=[""]).select([])
    return rows.combine_chunks().to_batches()[0]
