"""The rows of changed keys: one by one, or by a scan where they lie close together.

A get costs HBase and its gateway as much as `WORTH` rows of a scan. So where at least one in so many rows is wanted,
the range is scanned and the others are left out. How close the keys lie nobody knows beforehand, so it is tried: keys
are sorted, a scan begins at the first of them, and goes on for as long as its replies have enough that is wanted. Where
they have not, the next keys are read one by one, twice as many each time before it is tried again; a table remembers
that from batch to batch.

    a scan's reply up to row r      settles all keys up to r: a key that it does not have is not there
    the end of a scan               settles all keys of its range

HBase runs a get as a scan of one row: both see the same cells of a row, and each row as it was at one moment.

A row that was **put whole after the last cut** has no older cell in it: its mark is newer, and what is older than the
mark is not part of the row (`layout`). So where many rows of a range changed, cells of times after the cut are asked
for first. HBase opens no file that has none of these, and does not pass by the versions of before. What hides a cell
of such a time is a marker of at least that time, which is in the span too. Rows that have no mark in it (a column was
written, the row deleted, a cell dated back) are read from all their cells then.

Such a scan goes past rows that did not change and tells nothing of them. So it is made where an earlier scan has told
how many there are: at most so many, and the keys that changed since, lie there.
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
"""Rows of a scan for which one get is given."""

_MAX_ROWS_PER_CHANGE = 10
"""Rows that a scan may go past for one that changed, and tells nothing of."""

_MIN_KEYS_TO_SCAN = 50
"""Keys for which a try may cost more than it brings."""

_FIRST_BACKOFF, _MAX_BACKOFF = 500, 64_000
"""Keys that are read otherwise before it is tried again: at first, and at most."""


@dataclass
class AdaptiveBackoff:
    """How a way to read went: for how many keys it is not tried, and for how many if it fails the next time."""

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
    """What was learned of a table: how scanning went, and asking for new cells only; and that at most so many rows lie
    in a range of keys, by the scans that went through it."""

    dense_scans: AdaptiveBackoff = field(default_factory=AdaptiveBackoff)
    new_cell_scans: AdaptiveBackoff = field(default_factory=AdaptiveBackoff)
    start: bytes = b""
    stop: bytes = b""
    max_rows: int = 0

    def record_scan(self, start: bytes, stop: bytes, rows: int) -> None:
        apart = not self.max_rows or stop < self.start or self.stop < start
        if apart or (start <= self.start and self.stop <= stop):
            self.start, self.stop, self.max_rows = start, stop, rows
        elif start < self.start or self.stop < stop:
            self.start, self.stop, self.max_rows = min(start, self.start), max(stop, self.stop), self.max_rows + rows

    def is_range_dense(self, keys: pa.Array) -> bool:
        """These (ascending) have changed, some may be new: whether few others lie between them."""
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
    """The rows of these keys, each once and in no order, from cells with times in a span, which begins with 0. `after`:
    the cut that they changed after."""
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
    many, put_whole = statistics.is_range_dense(keys), layout.mark_column is not None and not layout.table.is_view
    if many and put_whole and span is not None and after is not None:
        if statistics.new_cell_scans.keys_to_skip:
            statistics.new_cell_scans.skip(len(keys))
        else:
            left = len(keys)
            settled = []
            for found in _scan_new_rows(client, layout, keys, columns, (after + 1, span[1])):
                settled += [found.keys, pa.array([key for key, _ in found.rejected], pa.binary())]
                yield found
            if settled:
                keys = keys.filter(pc.invert(pc.is_in(keys, value_set=pa.concat_arrays(settled))))
            if 2 * len(keys) > left:
                statistics.new_cell_scans.record_failure()
            else:
                statistics.new_cell_scans.record_success()
    yield from _scan_or_get(client, layout, keys, columns, span, statistics)


def _scan_new_rows(
    client: HBaseClient, layout: Layout, keys: pa.Array, columns: Sequence[str], span: TimeRange
) -> Iterator[DecodedRows]:
    """Those of the rows that were put whole within a span, from its cells."""
    stop = keys[-1].as_py() + b"\0"
    wanted = ScanRequest(start=keys[0].as_py(), stop=stop, columns=layout.cells_to_read(columns), span=span)
    for cells in client.scan(layout.name, wanted):
        marked = cells.keys.filter(pa.array(cells.newest_cells(layout.mark_column or b"") >= 0))
        both = marked.filter(pc.is_in(marked, value_set=keys))
        yield filter_rows(decode_rows(layout, cells, columns), both)


def _scan_or_get(
    client: HBaseClient,
    layout: Layout,
    keys: pa.Array,
    columns: Sequence[str],
    span: TimeRange | None,
    statistics: ScanStatistics,
) -> Iterator[DecodedRows]:
    """The rows of keys (ascending), from all cells of a span."""
    at, close = 0, statistics.dense_scans
    while at < len(keys):
        if close.keys_to_skip or len(keys) - at < _MIN_KEYS_TO_SCAN:
            count = min(max(close.keys_to_skip, _MIN_KEYS_TO_SCAN), len(keys) - at)
            close.skip(count)
            yield read_rows(client, layout, keys.slice(at, count), columns, span)
            at += count
            continue
        start, stop, seen = keys[at].as_py(), keys[-1].as_py(), 0
        wanted = ScanRequest(start=start, stop=stop + b"\0", columns=layout.cells_to_read(columns), span=span)
        with closing(client.scan(layout.name, wanted)) as replies:
            for cells in replies:
                upto = bisect_right(keys, cells.keys[-1].as_py(), lo=at, key=lambda key: key.as_py())
                yield filter_rows(decode_rows(layout, cells, columns), keys.slice(at, upto - at))
                settled, at, seen = upto - at, upto, seen + cells.rows
                if SCAN_ROWS_PER_GET * settled < cells.rows:
                    close.record_failure()
                    break
                close.record_success()
            else:
                statistics.record_scan(start, stop, seen)
                return


def filter_rows(rows: DecodedRows, keys: pa.Array) -> DecodedRows:
    """Those of the rows that have these keys."""
    which = pc.is_in(rows.keys, value_set=keys)
    if not pc.all(which, min_count=0).as_py():
        rows = DecodedRows(rows.rows.filter(which), rows.keys.filter(which), rows.rejected)
    if rows.rejected:
        wanted = set(keys.to_pylist())
        rows = DecodedRows(rows.rows, rows.keys, tuple(reject for reject in rows.rejected if reject[0] in wanted))
    return rows
