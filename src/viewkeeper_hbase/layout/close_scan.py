"""Reads the rows of changed keys: by gets, or by a scan where the keys are dense.

A get costs HBase and its gateway as much as `SCAN_ROWS_PER_GET` rows of a scan. So a range in which at least one
in so many rows is requested is scanned, and the other rows are dropped. The density of the keys is not known
beforehand, so the reader tries: keys are sorted, and a scan begins at the first of them and continues as long as
its replies contain enough requested rows. If a reply does not, the next keys are read by gets, and their number
doubles before each further try; a table's statistics keep this back-off from batch to batch.

    a scan's reply up to row r      settles all keys up to r: a key that it does not contain does not exist
    the end of a scan               settles all keys of its range

HBase executes a get as a scan of one row: both see the same cells of a row, and each row as of one moment.

**Rows put whole after the last cut** have no older cells: their mark is newer, and cells older than the mark are
not part of the row (`layout`). So if many rows of a range changed, a scan first reads only cells with times after
the cut. HBase then opens no file without such cells, and does not pass over older versions. What hides a cell of
such a time is a delete marker of at least that time, which is in the time range too. Rows without a mark in the
range (a column was written, the row was deleted, a cell was backdated) are then read from all their cells.

Such a scan passes over unchanged rows without returning them, so its cost is unknown to the client. It is used
only if an earlier scan has counted the rows of the range: there are at most that many, plus the keys changed
since.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper_hbase.layout.layout import DecodedRows, Layout, decode_rows
from viewkeeper_hbase.layout.layout_cache import read_if_exists
from viewkeeper_hbase.layout.row_reader import join_rows, read_rows
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.thrift.request_encoder import TimeRange
from viewkeeper_hbase.thrift.scan import ScanRequest

SCAN_ROWS_PER_GET = 4
"""Rows of a scan that cost as much as one get."""

_MAX_ROWS_PER_CHANGE = 10
"""Rows per changed key up to which a range is scanned for new cells only."""

_MIN_KEYS_TO_SCAN = 50
"""Below this number of keys, trying a scan may cost more than it saves."""

_FIRST_BACKOFF, _MAX_BACKOFF = 500, 64_000
"""Keys that are read in another way before the next try: initially, and at most."""


@dataclass
class AdaptiveBackoff:
    """The back-off of one way to read: the number of keys for which it is not tried, and that number after its next
    failure."""

    keys_to_skip: int = 0
    next_backoff: int = _FIRST_BACKOFF

    def record_failure(self) -> None:
        self.keys_to_skip, self.next_backoff = self.next_backoff, min(2 * self.next_backoff, _MAX_BACKOFF)

    def record_success(self) -> None:
        self.next_backoff = _FIRST_BACKOFF

    def skip(self, keys: int) -> None:
        self.keys_to_skip = max(0, self.keys_to_skip - keys)


@dataclass
class ScanStatistics:
    """What earlier reads showed of a table: the success of dense scans and of scans for new cells only, and an upper
    bound of the number of rows in the scanned key range."""

    dense_scans: AdaptiveBackoff = field(default_factory=AdaptiveBackoff)
    new_cell_scans: AdaptiveBackoff = field(default_factory=AdaptiveBackoff)
    start: bytes = b""
    stop: bytes = b""
    max_rows: int = 0

    def record_scan(self, start: bytes, stop: bytes, rows: int) -> None:
        disjoint = not self.max_rows or stop < self.start or self.stop < start
        if disjoint or (start <= self.start and self.stop <= stop):
            self.start, self.stop, self.max_rows = start, stop, rows
        elif start < self.start or self.stop < stop:
            self.start, self.stop, self.max_rows = min(start, self.start), max(stop, self.stop), self.max_rows + rows

    def is_range_dense(self, keys: pa.Array) -> bool:
        """Return whether there are few other rows between these changed keys (ascending, some possibly new)."""
        self.max_rows += len(keys) if self.max_rows else 0
        within = self.start <= keys[0].as_py() and keys[-1].as_py() <= self.stop
        return bool(self.max_rows) and within and self.max_rows <= _MAX_ROWS_PER_CHANGE * len(keys)


def read_changed_rows(
    client: HBaseClient,
    layout: Layout,
    keys: pa.Array,
    columns: Sequence[str],
    span: TimeRange | None,
    statistics: ScanStatistics,
    after: int | None = None,
) -> DecodedRows:
    """Return the rows of these keys, each once and in no order, from cells with times in a span that begins with 0.
    `after` is the cut after which they changed."""
    if len(keys) < _MIN_KEYS_TO_SCAN:
        statistics.max_rows += len(keys) if statistics.max_rows else 0
        return read_rows(client, layout, keys, columns, span)
    keys = keys.sort()
    found = read_if_exists(
        layout, lambda: list(_read_adaptively(client, layout, keys, columns, span, statistics, after))
    )
    return join_rows(layout, columns, found or [])


def _read_adaptively(
    client: HBaseClient,
    layout: Layout,
    keys: pa.Array,
    columns: Sequence[str],
    span: TimeRange | None,
    statistics: ScanStatistics,
    after: int | None,
) -> Iterator[DecodedRows]:
    is_dense, has_marks = statistics.is_range_dense(keys), layout.mark_column is not None and not layout.table.is_view
    if is_dense and has_marks and span is not None and after is not None:
        if statistics.new_cell_scans.keys_to_skip:
            statistics.new_cell_scans.skip(len(keys))
        else:
            requested_count = len(keys)
            settled = []
            for found in _scan_new_rows(client, layout, keys, columns, (after + 1, span[1])):
                settled += [found.keys, pa.array([key for key, _ in found.rejected], pa.binary())]
                yield found
            if settled:
                keys = keys.filter(pc.invert(pc.is_in(keys, value_set=pa.concat_arrays(settled))))
            if 2 * len(keys) > requested_count:
                statistics.new_cell_scans.record_failure()
            else:
                statistics.new_cell_scans.record_success()
    yield from _scan_or_get(client, layout, keys, columns, span, statistics)


def _scan_new_rows(
    client: HBaseClient, layout: Layout, keys: pa.Array, columns: Sequence[str], span: TimeRange
) -> Iterator[DecodedRows]:
    """Yield those of the rows that were put whole within a span, from its cells."""
    stop = keys[-1].as_py() + b"\0"
    request = ScanRequest(start=keys[0].as_py(), stop=stop, columns=layout.cells_to_read(columns), span=span)
    for cells in client.scan(layout.name, request):
        marked = cells.keys.filter(pa.array(cells.newest_cells(layout.mark_column or b"") >= 0))
        changed = marked.filter(pc.is_in(marked, value_set=keys))
        yield filter_rows(decode_rows(layout, cells, columns), changed)


def _scan_or_get(
    client: HBaseClient,
    layout: Layout,
    keys: pa.Array,
    columns: Sequence[str],
    span: TimeRange | None,
    statistics: ScanStatistics,
) -> Iterator[DecodedRows]:
    """Yield the rows of keys (ascending), from all cells of a span."""
    at, dense_scans = 0, statistics.dense_scans
    while at < len(keys):
        if dense_scans.keys_to_skip or len(keys) - at < _MIN_KEYS_TO_SCAN:
            count = min(max(dense_scans.keys_to_skip, _MIN_KEYS_TO_SCAN), len(keys) - at)
            dense_scans.skip(count)
            yield read_rows(client, layout, keys.slice(at, count), columns, span)
            at += count
            continue
        start, stop, row_count = keys[at].as_py(), keys[-1].as_py(), 0
        request = ScanRequest(start=start, stop=stop + b"\0", columns=layout.cells_to_read(columns), span=span)
        with closing(client.scan(layout.name, request)) as replies:
            for cells in replies:
                stop_index = bisect_right(keys, cells.keys[-1].as_py(), lo=at, key=lambda key: key.as_py())
                yield filter_rows(decode_rows(layout, cells, columns), keys.slice(at, stop_index - at))
                settled, at, row_count = stop_index - at, stop_index, row_count + cells.rows
                if SCAN_ROWS_PER_GET * settled < cells.rows:
                    dense_scans.record_failure()
                    break
                dense_scans.record_success()
            else:
                statistics.record_scan(start, stop, row_count)
                return


def filter_rows(rows: DecodedRows, keys: pa.Array) -> DecodedRows:
    """Return those of the rows that have these keys."""
    which = pc.is_in(rows.keys, value_set=keys)
    if not pc.all(which, min_count=0).as_py():
        rows = DecodedRows(rows.rows.filter(which), rows.keys.filter(which), rows.rejected)
    if rows.rejected:
        key_set = set(keys.to_pylist())
        rows = DecodedRows(rows.rows, rows.keys, tuple(reject for reject in rows.rejected if reject[0] in key_set))
    return rows
