"""Change capture: the keys of rows written between two times, and the rows as of a cut.

Positions are times of HBase's clock. A row's state at a cut is read from cells up to the cut's time, if the table
keeps versions and deleted cells. A mapped table that keeps neither is read in its current state; then a row may
be newer than the cut, and the next window finds it again.

The written rows are found by scanning time windows (`time_windows`), or HBase pushes their keys (`push`). While
push is known to be complete, only pushed keys are read. Otherwise a window is scanned as well.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from viewkeeper.errors import Unsupported
from viewkeeper.model.delta import with_weight
from viewkeeper.model.filtered_table import Comparison, pushed_comparisons
from viewkeeper.model.schema import Table
from viewkeeper.store.contract.store import CaptureMark, ChangedKeys, ParallelMap, PendingChanges
from viewkeeper.store.contract.tables import convert_rows
from viewkeeper_hbase.cached_state import StateCache
from viewkeeper_hbase.capture import region_scan, time_windows
from viewkeeper_hbase.capture.time_windows import NO_CELLS, HBaseCaptureMark, WindowScan
from viewkeeper_hbase.layout.close_scan import ScanStatistics, read_changed_rows
from viewkeeper_hbase.layout.layout import DecodedRows, Layout
from viewkeeper_hbase.layout.layout_cache import Layouts, read_if_exists
from viewkeeper_hbase.layout.row_reader import HBaseRowReader
from viewkeeper_hbase.metadata import MetaTable
from viewkeeper_hbase.push.arrivals import Arrivals
from viewkeeper_hbase.rejected_rows import RejectedRows
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.thrift.request_encoder import TimeRange

RESCAN_AFTER = 600.0
"""Seconds. After a longer pause, a table that does not keep deleted cells is compared row by row with its table
image."""

_CLOCK_TICK = 0.0015
"""Seconds after which HBase's clock has advanced by at least a millisecond."""


class ChangeCapture:
    """Finds and reads the changes of base tables. `overlap` is in milliseconds."""

    def __init__(
        self,
        url: str,
        client: HBaseClient,
        meta_table: MetaTable,
        state_cache: StateCache,
        layouts: Layouts,
        reader: HBaseRowReader,
        overlap: int,
    ) -> None:
        self._url = url
        self.parallel_map: ParallelMap | None = None
        """Runs the reads of capture as tasks in other processes; None reads in this process."""
        self._client, self._meta_table, self._state_cache = client, meta_table, state_cache
        self._layouts, self._reader, self._overlap = layouts, reader, overlap
        self._rejected_rows = RejectedRows(meta_table)
        self._head = 0
        self._window_scans: dict[int, WindowScan] = {}
        self._scan_statistics: dict[str, ScanStatistics] = {}
        self.arrivals = Arrivals()

    def head(self) -> int:
        """Return HBase's clock: every completed write call has a position up to it. Connected region servers report
        the clock with their WAL lengths, so with push no counter of the meta table is incremented."""
        clock = self.arrivals.clock()
        self._head = max(self._head, self._meta_table.read_clock() if clock is None else clock)
        return self._head

    def after_write(self) -> int:
        """Return the position of a write call that has just ended. On return HBase's clock shows a later
        millisecond, so the next write of any process is neither hidden by a delete of this call nor mixed with
        its rows."""
        ended = time.monotonic()
        position = self.head()
        time.sleep(max(0.0, _CLOCK_TICK - (time.monotonic() - ended)))
        return position

    # -- changes ------------------------------------------------------------------------------------------------------

    def changes(self, table: Table, columns: list[str], after: int, up_to: int) -> pa.Table:
        """Return the difference of two states, while HBase has the versions of both. It lacks late writes."""
        layout = self._base_layout(table)
        keys = self._scan_window(layout, after, up_to).cells_between(after, up_to).keys
        before = self._reader.read_rows(layout, keys, columns, (0, after + 1)).rows
        current = self._reader.read_rows(layout, keys, columns, (0, up_to + 1)).rows
        return pa.concat_tables([with_weight(before, -1), with_weight(current, 1)]).combine_chunks()

    def changed_keys(
        self, table: Table, columns: list[str], after: int, up_to: int, capture_mark: CaptureMark | None
    ) -> tuple[ChangedKeys, HBaseCaptureMark]:
        layout = self._base_layout(table)
        has_past = self._layouts.has_past_versions(layout)
        time_range = (0, up_to + 1) if has_past else None
        mark = capture_mark if isinstance(capture_mark, HBaseCaptureMark) else None
        arrived = self.arrivals.take(layout, mark, after, up_to, has_past, self._head)
        if arrived.has_gap or not (has_past or arrived.is_complete or up_to - after <= 1000 * RESCAN_AFTER):
            self._scan_statistics.pop(layout.name, None)
            low = up_to - self._overlap
            scan = (
                time_windows.concat_scans(up_to, up_to, [])
                if arrived.is_complete
                else self._scan_window(layout, low, up_to)
            )
            new_mark = scan.mark_at(max(low, scan.after), up_to)  # the mark is taken before rows are read
            return ChangedKeys(None, self._scan_table(layout, columns, time_range, pushed_comparisons(table))), replace(
                new_mark, push=arrived.push_mark
            )
        keys, new_mark = arrived.keys, HBaseCaptureMark(up_to, "")
        if not arrived.is_complete:
            found, new_mark = self._window_keys(layout, after, up_to, mark)
            keys = pa.concat_arrays([keys, found]).unique() if len(keys) else found
        rows = self._read_rows(layout, keys, columns, time_range, after)
        key_columns, malformed = layout.row_key_encoding.decode(keys)
        self._rejected_rows.record(table, keys, rows.rejected)
        changed = ChangedKeys(
            key_columns if not malformed.any() else key_columns.filter(pa.array(~malformed)), rows.rows
        )
        return changed, replace(new_mark, push=arrived.push_mark)

    def _window_keys(
        self, layout: Layout, after: int, up_to: int, capture_mark: HBaseCaptureMark | None
    ) -> tuple[pa.Array, HBaseCaptureMark]:
        """Return the keys of rows that a window shows to be written, and the capture mark of its last seconds."""
        low = min(up_to, after - self._overlap if capture_mark is None else capture_mark.low)
        # Usually `pending` has just scanned this window. What became visible after that scan is a late write for the
        # next window.
        scan = self._window_scans.pop(layout.table.id, None)
        if scan is None or not scan.covers(low, up_to):
            scan = self._scan_window(layout, low, up_to)
        overlap, window = scan.cells_between(low, after), scan.cells_between(after, up_to)
        keys = time_windows.union_keys(
            overlap.without_seen(capture_mark.cells or NO_CELLS) if capture_mark is not None else overlap, window
        )
        return keys, scan.mark_at(max(low, up_to - self._overlap), up_to)

    def scan_at(
        self, table: Table, columns: list[str], cut: int, start: bytes | None, stop: bytes | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range of row keys at a cut, with weights."""
        layout = self._layouts.layout_of(table)
        span: TimeRange | None = (0, cut + 1) if self._layouts.has_past_versions(layout) else None
        for found in self._reader.scan_row_keys(layout, columns, span, start, stop, where=pushed_comparisons(table)):
            if found.rejected:
                self._rejected_rows.record(table, None, found.rejected)
            if found.rows.num_rows:
                yield from with_weight(found.rows, 1).to_batches()

    def find_at(self, table: Table, keys: pa.Table, columns: list[str], cut: int) -> pa.Table:
        """Return the rows of these keys at a cut."""
        layout = self._layouts.layout_of(table)
        names = layout.encode_row_keys(convert_rows(table, keys, [c.name for c in table.key_columns]))
        span: TimeRange | None = (0, cut + 1) if self._layouts.has_past_versions(layout) else None
        return self._reader.read_rows(layout, names, columns, span).rows

    def _scan_table(
        self, layout: Layout, columns: list[str], span: TimeRange | None, where: Sequence[Comparison]
    ) -> pa.Table:
        parts: list[DecodedRows] = list(self._reader.scan_row_keys(layout, columns, span, where=where))
        self._rejected_rows.record(layout.table, None, tuple(r for part in parts for r in part.rejected))
        schema = pa.schema([layout.table.arrow.field(name) for name in columns])
        return pa.concat_tables([schema.empty_table(), *(part.rows for part in parts)]).combine_chunks()

    def scan_since(self, layout: Layout, cut: int, start: bytes, stop: bytes) -> WindowScan:
        """Scan a range of row keys for cells written after a cut."""
        found = read_if_exists(
            layout, lambda: time_windows.scan_window(self._client, layout, cut, self.head(), start=start, stop=stop)
        )
        return found or time_windows.concat_scans(cut, cut, [])

    # -- pending changes ----------------------------------------------------------------------------------------------

    def pending(self, after: int, tables: Sequence[int], head: int | None = None) -> PendingChanges:
        marks = self._published_marks(after)
        now = self.head() if head is None else head
        self.arrivals.check_completeness(now)
        rows = calls = 0
        first: int | None = None
        last: int | None = None
        incomplete: list[tuple[Layout, HBaseCaptureMark]] = []
        for table in self._tables_by_id(tables):
            layout = self._layouts.layout_of(table)
            mark = marks.get(table.id)
            pushed = self.arrivals.pending(layout, mark if isinstance(mark, HBaseCaptureMark) else None, after, now)
            if len(pushed.positions):
                rows, calls = rows + len(pushed.first_positions), calls + len(np.unique(pushed.positions))
                low, high = int(pushed.positions.min()), int(pushed.positions.max())
                first, last = low if first is None else min(first, low), max(last or 0, high)
            if not pushed.is_complete:
                incomplete.append((layout, mark if isinstance(mark, HBaseCaptureMark) else HBaseCaptureMark(after, "")))
        scans = self._scan_windows([(layout, overlap_mark.low, now) for layout, overlap_mark in incomplete])
        for (layout, overlap_mark), scan in zip(incomplete, scans, strict=True):
            self._window_scans[layout.table.id] = scan
            overlap, window = scan.cells_between(overlap_mark.low, after), scan.cells_between(after, now)
            if overlap.digest() != overlap_mark.digest:
                # Cells became visible late: no batch up to this cut contains them.
                rows, calls, last = rows + 1, calls + 1, max(last or 0, after + 1)
                first = after + 1
            if len(window):
                rows, calls = rows + len(window), calls + len(np.unique(window.newest))
                oldest, newest = int(window.oldest.min()), int(window.newest.max())
                first = oldest if first is None else min(first, oldest)
                last = max(last or 0, newest)
        return PendingChanges(calls, rows, None if first is None else first / 1000, first, last)

    def cut_after(self, after: int, tables: Sequence[int], rows: int) -> int:
        marks, now = self._published_marks(after), self.head()
        self.arrivals.check_completeness(now)
        positions = []
        for table in self._tables_by_id(tables):
            layout = self._layouts.layout_of(table)
            mark = marks.get(table.id)
            pushed = self.arrivals.pending(layout, mark if isinstance(mark, HBaseCaptureMark) else None, after, now)
            positions.append(pushed.first_positions)
            if not pushed.is_complete:
                positions.append(self._scan_window(layout, after, now).cells_between(after, now).oldest)
        times = np.sort(np.concatenate(positions)) if positions else np.empty(0, np.int64)
        return now if len(times) <= rows else int(times[max(rows, 1) - 1])

    def _published_marks(self, after: int) -> Mapping[int, CaptureMark]:
        """Return the capture marks of the published batch if its cut is `after`, else none."""
        published = self._state_cache.cached_batch
        if published is None or published.batch.cut != after:
            published = self._state_cache.published_batch()
        return published.batch.capture_marks if published is not None and published.batch.cut == after else {}

    # -- the overlap --------------------------------------------------------------------------------------------------

    def capture_mark(self, table: Table, cut: int, expected: CaptureMark | None) -> HBaseCaptureMark | None:
        """Return the capture mark of the last seconds before a cut; None if it differs from `expected`.

        After the overlap has passed, the mark is that of the cut itself: cells that turn up there later are too
        late to be captured, and no window includes these seconds again. So the first batch of a view that is
        loaded just after its tables does not read the last loaded rows a second time.
        """
        expected_mark = expected if isinstance(expected, HBaseCaptureMark) else None
        layout = self._layouts.layout_of(table)
        now = self.head()
        self.arrivals.check_completeness(now)
        arrived = self.arrivals.check_load(layout, expected_mark, cut, self._layouts.has_past_versions(layout), now)
        if arrived.has_gap:
            return None
        if arrived.is_complete:
            return HBaseCaptureMark(cut, "", push=arrived.push_mark)
        low = expected_mark.low if expected_mark is not None else cut - self._overlap
        scan = self._scan_window(layout, low, cut)
        mark = scan.mark_at(low, cut)
        if expected_mark is not None and mark.digest != expected_mark.digest:
            return None
        return replace(scan.mark_at(cut, cut) if now - cut >= self._overlap else mark, push=arrived.push_mark)

    def has_moved(self, table: Table, cut: int) -> bool:
        """Return whether a table without past versions was written after a cut."""
        layout = self._layouts.layout_of(table)
        if self._layouts.has_past_versions(layout):
            return False
        now = self.head()
        return len(self._scan_window(layout, cut, now).cells_between(cut, now)) > 0

    def _scan_window(self, layout: Layout, after: int, up_to: int) -> WindowScan:
        return self._scan_windows([(layout, after, up_to)])[0]

    def _scan_windows(self, requests: Sequence[region_scan.WindowRequest]) -> list[WindowScan]:
        """Scan the windows of several tables; with `parallel_map`, as one set of tasks."""
        if self.parallel_map is not None:
            return region_scan.scan_windows(self.parallel_map, self._url, self._client, requests)
        return [
            read_if_exists(layout, partial(time_windows.scan_window, self._client, layout, after, window_end))
            or time_windows.concat_scans(after, window_end, [])
            for layout, after, window_end in requests
        ]

    def _read_rows(
        self, layout: Layout, keys: pa.Array, columns: list[str], span: TimeRange | None, after: int
    ) -> DecodedRows:
        if self.parallel_map is None or not len(keys):
            statistics = self._scan_statistics.setdefault(layout.name, ScanStatistics())
            return read_changed_rows(self._client, layout, keys, columns, span, statistics, after)
        return region_scan.read_rows_by_region(self.parallel_map, self._url, self._client, layout, keys, columns, span)

    def _tables_by_id(self, ids: Sequence[int]) -> list[Table]:
        id_set = set(ids)
        catalog = self._state_cache.cached_catalog  # the caller usually has the ids from this catalog
        if not id_set <= catalog.tables_by_id.keys():
            catalog = self._state_cache.catalog()
        return [t for t in catalog.tables if t.id in id_set]

    def _base_layout(self, table: Table) -> Layout:
        if table.is_view:
            raise Unsupported(f"HBase keeps no log of the view {table.name}.", hint="Read the view instead.")
        return self._layouts.layout_of(table)
