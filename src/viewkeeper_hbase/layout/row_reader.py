"""Rows by key and by range: views at the published batch, base tables as they are or as of a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import SnapshotGone
from viewkeeper.model.encoding.keys import bounded, encode_keys
from viewkeeper.model.filtered_table import Comparison
from viewkeeper_hbase.cached_state import Known, Shown
from viewkeeper_hbase.layout.layout import Layout, Rows, read_cells
from viewkeeper_hbase.layout.layout_cache import if_there
from viewkeeper_hbase.layout.pushdown import joined, push
from viewkeeper_hbase.thrift.client import Cell, Client
from viewkeeper_hbase.thrift.errors import NoSuchTable
from viewkeeper_hbase.thrift.request_encoder import TimeRange
from viewkeeper_hbase.thrift.scan import Scan

T = TypeVar("T")


class Reader:
    """Reads through one client."""

    def __init__(self, client: Client, known: Known) -> None:
        self._client, self._known = client, known

    def get(self, layout: Layout, keys: pa.Array, columns: Sequence[str]) -> Rows:
        """Rows by key: a view's at the published batch, others as they are."""
        found = self._at_batch(layout, lambda span: self.rows(layout, keys, columns, span))
        return no_rows(layout, columns) if found is None else found

    def cells(self, layout: Layout, key: bytes) -> dict[bytes, Cell] | None:
        """The cells of one row, None if there are none."""
        columns = layout.asked(list(layout.places))

        def read(span: TimeRange | None) -> dict[bytes, Cell] | None:
            return if_there(layout, lambda: self._client.get(layout.name, key, columns, span=span))

        return self._at_batch(layout, read)

    def _at_batch(self, layout: Layout, read: Callable[[TimeRange | None], T]) -> T | None:
        """What `read` gives: of a view for the published batch, again if that is gone; None before the first."""
        if not layout.table.is_view:
            return read(None)
        while True:
            shown = self._known.shown()
            if not shown.number:
                return None
            found = read(shown.span)
            with suppress(SnapshotGone):
                shown.check()
                return found

    def rows(self, layout: Layout, keys: pa.Array, columns: Sequence[str], span: TimeRange | None) -> Rows:
        """The rows of these keys, from cells with times in a span."""
        return read_rows(self._client, layout, keys, columns, span)

    def scan(
        self, layout: Layout, columns: list[str], start: bytes | None, stop: bytes | None, limit: int | None
    ) -> Iterator[pa.RecordBatch]:
        """A range of keys as `model.keys` writes them: a view's at the published batch, others as they are."""
        while True:
            shown = self._known.shown() if layout.table.is_view else None
            if shown is not None and not shown.number:
                return
            handed = False
            try:
                span = None if shown is None else shown.span
                for rows in self.scan_keys(layout, columns, span, start, stop, limit, shown):
                    handed = True
                    yield rows
                return
            except SnapshotGone:
                if handed:
                    raise

    def scan_keys(
        self,
        layout: Layout,
        columns: list[str],
        span: TimeRange | None,
        start: bytes | None = None,
        stop: bytes | None = None,
        limit: int | None = None,
        shown: Shown | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """A range of keys as `model.keys` writes them, from cells with times in a span."""
        if not layout.in_key_order:
            yield from self._scan_foreign(layout, columns, span, start, stop, limit)
            return
        for found in self.scan_span(layout, columns, span, start, stop, limit, shown):
            yield batch(found.rows)

    def scan_span(
        self,
        layout: Layout,
        columns: list[str],
        span: TimeRange | None,
        start: bytes | None = None,
        stop: bytes | None = None,
        limit: int | None = None,
        shown: Shown | None = None,
        where: Sequence[Comparison] = (),
    ) -> Iterator[Rows]:
        """A range of row keys, from cells with times in a span, some rows at a time. HBase is asked to leave out those
        that do not pass `where`, as far as it can."""
        start, stop = bounded(layout.table, start, stop)
        if stop == b"":
            return
        large = limit is None and start is None and stop is None
        pushed = push(layout, where)
        wanted = Scan(
            start=max(start or b"", pushed.start),
            stop=min(s for s in (stop, pushed.stop) if s) if stop or pushed.stop else b"",
            columns=layout.asked(columns),
            span=span,
            filter=joined(pushed.filter, layout.filter(columns)),
            limit=limit,
            cache_blocks=False if large else None,
        )
        try:
            for cells in self._client.scan(layout.name, wanted):
                found = read_cells(layout, cells, columns)
                if shown is not None:
                    shown.check()
                if found.rows.num_rows or found.rejects:
                    yield found
        except NoSuchTable:
            if not layout.owned:
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
        """A table whose row keys are not ours: in HBase's own order, and a range is picked from all of it."""
        names = [*dict.fromkeys([*columns, *(c.name for c in layout.table.key_columns)])]
        left = limit
        for found in self.scan_span(layout, names, span):
            rows = found.rows
            if start is not None or stop is not None:
                keys = encode_keys(layout.table, rows)
                inside = np.ones(len(keys), bool)
                if start is not None:
                    inside &= np.asarray(pc.greater_equal(keys, start))
                if stop is not None:
                    inside &= np.asarray(pc.less(keys, stop))
                rows = rows.filter(pa.array(inside))
            rows = rows if left is None else rows.slice(0, left)
            left = None if left is None else left - rows.num_rows
            if rows.num_rows:
                yield batch(rows.select(columns))
            if left == 0:
                return


def read_rows(client: Client, layout: Layout, keys: pa.Array, columns: Sequence[str], span: TimeRange | None) -> Rows:
    """The rows of these keys, from cells with times in a span."""
    if not len(keys):
        return no_rows(layout, columns)

    def read() -> list[Rows]:
        chunks = client.get_many(layout.name, keys, layout.asked(columns), span=span)
        return [read_cells(layout, cells, columns) for cells in chunks]

    return join_rows(layout, columns, if_there(layout, read) or [])


def join_rows(layout: Layout, columns: Sequence[str], parts: Sequence[Rows]) -> Rows:
    """Rows that were read in several parts."""
    if len(parts) <= 1:
        return parts[0] if parts else no_rows(layout, columns)
    rows = pa.concat_tables([part.rows for part in parts]).combine_chunks()
    rejects = tuple(reject for part in parts for reject in part.rejects)
    return Rows(rows, pa.concat_arrays([part.keys for part in parts]), rejects)


def no_rows(layout: Layout, columns: Sequence[str]) -> Rows:
    schema = pa.schema([layout.table.arrow.field(name) for name in columns])
    return Rows(schema.empty_table(), pa.array([], pa.binary()), ())


def batch(rows: pa.Table) -> pa.RecordBatch:
    if not rows.num_columns:  # a batch without columns that still knows its rows
        return pa.RecordBatch.from_arrays([pa.nulls(rows.num_rows)], names=[""]).select([])
    return rows.combine_chunks().to_batches()[0]
