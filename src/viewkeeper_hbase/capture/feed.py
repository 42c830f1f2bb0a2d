"""The change feed: what was written between two times, and the rows as they were then.

Positions are HBase's clock. A row's state at a cut is read from cells up to the cut's time, where the table keeps
versions and deleted cells; a table of others that does not is read as it is. Then a row may be newer than the cut, and
is found again by the next window.

Which rows were written is found by scanning time windows (`windows`), or is pushed by HBase (`push`). While it is known
that all has come, what was pushed is all there is to read. While it is not, a window is scanned as well.
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
"""Seconds. After a longer pause, a table that does not keep deleted cells is compared with its image row by row."""

_CLOCK_TICK = 0.0015
"""Seconds after which HBase's clock has moved on by a millisecond."""


class ChangeCapture:
    """Reads what writers did. `overlap` in milliseconds."""

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
        """By whom the reads of capture are done; None: here."""
        self._client, self._meta_table, self._state_cache = client, meta_table, state_cache
        self._layouts, self._reader, self._overlap = layouts, reader, overlap
        self._rejected_rows = RejectedRows(meta_table)
        self._head = 0
        self._window_scans: dict[int, WindowScan] = {}
        self._scan_statistics: dict[str, ScanStatistics] = {}
        self.arrivals = Arrivals()

    def head(self) -> int:
        """HBase's clock: every write call that has ended has a position up to it. Who pushes tells it for nothing."""
        told = self.arrivals.clock()
        self._head = max(self._head, self._meta_table.read_clock() if told is None else told)
        return self._head

    def after_write(self) -> int:
        """The position of a write call that has just ended. HBase's clock then shows a later millisecond, so whoever
        writes next, here or elsewhere, is not hidden by a delete of this call, nor mixed with its rows."""
        ended = time.monotonic()
        position = self.head()
        time.sleep(max(0.0, _CLOCK_TICK - (time.monotonic() - ended)))
        return position

    # -- changes ------------------------------------------------------------------------------------------------------

    def changes(self, table: Table, columns: list[str], after: int, up_to: int) -> pa.Table:
        """The difference of two states, while HBase has the versions of both; what came late is not in it."""
        layout = self._base_layout(table)
        keys = self._scan_window(layout, after, up_to).cells_between(after, up_to).keys
        before = self._reader.read_rows(layout, keys, columns, (0, after + 1)).rows
        now = self._reader.read_rows(layout, keys, columns, (0, up_to + 1)).rows
        return pa.concat_tables([with_weight(before, -1), with_weight(now, 1)]).combine_chunks()

    def changed_keys(
        self, table: Table, columns: list[str], after: int, up_to: int, capture_mark: CaptureMark | None
    ) -> tuple[ChangedKeys, HBaseCaptureMark]:
        layout = self._base_layout(table)
        exact = self._layouts.has_past_versions(layout)
        span = (0, up_to + 1) if exact else None
        told = capture_mark if isinstance(capture_mark, HBaseCaptureMark) else None
        came = self.arrivals.take(layout, told, after, up_to, exact, self._head)
        if came.has_gap or not (exact or came.is_complete or up_to - after <= 1000 * RESCAN_AFTER):
            self._scan_statistics.pop(layout.name, None)
            low = up_to - self._overlap
            look = (
                time_windows.concat_scans(up_to, up_to, [])
                if came.is_complete
                else self._scan_window(layout, low, up_to)
            )
            noted = look.mark_at(max(low, look.after), up_to)  # before rows are read
            return ChangedKeys(None, self._scan_table(layout, columns, span, pushed_comparisons(table))), replace(
                noted, push=came.push_mark
            )
        keys, noted = came.keys, HBaseCaptureMark(up_to, "")
        if not came.is_complete:
            found, noted = self._window_keys(layout, after, up_to, told)
            keys = pa.concat_arrays([keys, found]).unique() if len(keys) else found
        rows = self._read_rows(layout, keys, columns, span, after)
        key_columns, bad = layout.row_key_encoding.decode(keys)
        self._rejected_rows.record(table, keys, rows.rejected)
        changed = ChangedKeys(key_columns if not bad.any() else key_columns.filter(pa.array(~bad)), rows.rows)
        return changed, replace(noted, push=came.push_mark)

    def _window_keys(
        self, layout: Layout, after: int, up_to: int, capture_mark: HBaseCaptureMark | None
    ) -> tuple[pa.Array, HBaseCaptureMark]:
        """The keys of rows that a window shows to be written, and what is seen of its last seconds."""
        low = min(up_to, after - self._overlap if capture_mark is None else capture_mark.low)
        # Usually `pending` has just looked. What has become visible since then is late, and found by the next window.
        look = self._window_scans.pop(layout.table.id, None)
        if look is None or not look.covers(low, up_to):
            look = self._scan_window(layout, low, up_to)
        early, late = look.cells_between(low, after), look.cells_between(after, up_to)
        keys = time_windows.union_keys(
            early.without_seen(capture_mark.cells or NO_CELLS) if capture_mark is not None else early, late
        )
        return keys, look.mark_at(max(low, up_to - self._overlap), up_to)

    def scan_at(
        self, table: Table, columns: list[str], cut: int, start: bytes | None, stop: bytes | None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a range of row keys at a cut, with weights."""
        layout = self._layouts.layout_of(table)
        span: TimeRange | None = (0, cut + 1) if self._layouts.has_past_versions(layout) else None
        for found in self._reader.scan_row_keys(layout, columns, span, start, stop, where=pushed_comparisons(table)):
            if found.rejected:
                self._rejected_rows.record(table, None, found.rejected)
            if found.rows.num_rows:
                yield from with_weight(found.rows, 1).to_batches()

    def find_at(self, table: Table, keys: pa.Table, columns: list[str], cut: int) -> pa.Table:
        """The rows of these keys at a cut, as `at` gives them."""
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
        """What was written to a range of row keys after a cut."""
        found = read_if_exists(
            layout, lambda: time_windows.scan_window(self._client, layout, cut, self.head(), start=start, stop=stop)
        )
        return found or time_windows.concat_scans(cut, cut, [])

    # -- what waits ---------------------------------------------------------------------------------------------------

    def pending(self, after: int, tables: Sequence[int], head: int | None = None) -> PendingChanges:
        told = self._published_marks(after)
        now = self.head() if head is None else head
        self.arrivals.check_completeness(now)
        rows = calls = 0
        first: int | None = None
        last: int | None = None
        unsure: list[tuple[Layout, HBaseCaptureMark]] = []
        for table in self._tables_by_id(tables):
            layout = self._layouts.layout_of(table)
            seen = told.get(table.id)
            waits = self.arrivals.pending(layout, seen if isinstance(seen, HBaseCaptureMark) else None, after, now)
            if len(waits.positions):
                rows, calls = rows + len(waits.first_positions), calls + len(np.unique(waits.positions))
                low, high = int(waits.positions.min()), int(waits.positions.max())
                first, last = low if first is None else min(first, low), max(last or 0, high)
            if not waits.is_complete:
                unsure.append((layout, seen if isinstance(seen, HBaseCaptureMark) else HBaseCaptureMark(after, "")))
        looks = self._scan_windows([(layout, noted.low, now) for layout, noted in unsure])
        for (layout, noted), look in zip(unsure, looks, strict=True):
            self._window_scans[layout.table.id] = look
            early, late = look.cells_between(noted.low, after), look.cells_between(after, now)
            if early.digest() != noted.digest:
                # Something became visible late: no batch up to this cut has it.
                rows, calls, last = rows + 1, calls + 1, max(last or 0, after + 1)
                first = after + 1
            if len(late):
                rows, calls = rows + len(late), calls + len(np.unique(late.newest))
                oldest, newest = int(late.oldest.min()), int(late.newest.max())
                first = oldest if first is None else min(first, oldest)
                last = max(last or 0, newest)
        return PendingChanges(calls, rows, None if first is None else first / 1000, first, last)

    def cut_after(self, after: int, tables: Sequence[int], rows: int) -> int:
        told, now = self._published_marks(after), self.head()
        self.arrivals.check_completeness(now)
        found = []
        for table in self._tables_by_id(tables):
            layout = self._layouts.layout_of(table)
            seen = told.get(table.id)
            waits = self.arrivals.pending(layout, seen if isinstance(seen, HBaseCaptureMark) else None, after, now)
            found.append(waits.first_positions)
            if not waits.is_complete:
                found.append(self._scan_window(layout, after, now).cells_between(after, now).oldest)
        times = np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)
        return now if len(times) <= rows else int(times[max(rows, 1) - 1])

    def _published_marks(self, after: int) -> Mapping[int, CaptureMark]:
        """What the batch with this cut had seen of its tables; nothing if it is not the last one."""
        published = self._state_cache.cached_batch
        if published is None or published.batch.cut != after:
            published = self._state_cache.published_batch()
        return published.batch.capture_marks if published is not None and published.batch.cut == after else {}

    # -- the overlap --------------------------------------------------------------------------------------------------

    def capture_mark(self, table: Table, cut: int, expected: CaptureMark | None) -> HBaseCaptureMark | None:
        """What can be seen now of the last seconds before a cut; None if other cells were `seen` there.

        Once the overlap is over, what turns up there is too late to be found: nobody looks at these seconds again. A
        view that is loaded just after its tables thus does not read what was loaded last once more in its first batch.
        """
        told = expected if isinstance(expected, HBaseCaptureMark) else None
        layout = self._layouts.layout_of(table)
        now = self.head()
        self.arrivals.check_completeness(now)
        came = self.arrivals.check_load(layout, told, cut, self._layouts.has_past_versions(layout), now)
        if came.has_gap:
            return None
        if came.is_complete:
            return HBaseCaptureMark(cut, "", push=came.push_mark)
        low = told.low if told is not None else cut - self._overlap
        look = self._scan_window(layout, low, cut)
        noted = look.mark_at(low, cut)
        if told is not None and noted.digest != told.digest:
            return None
        return replace(look.mark_at(cut, cut) if now - cut >= self._overlap else noted, push=came.push_mark)

    def has_moved(self, table: Table, cut: int) -> bool:
        """Whether a table that is read as it is was written after a cut."""
        layout = self._layouts.layout_of(table)
        if self._layouts.has_past_versions(layout):
            return False
        now = self.head()
        return len(self._scan_window(layout, cut, now).cells_between(cut, now)) > 0

    def _scan_window(self, layout: Layout, after: int, up_to: int) -> WindowScan:
        return self._scan_windows([(layout, after, up_to)])[0]

    def _scan_windows(self, requests: Sequence[region_scan.WindowRequest]) -> list[WindowScan]:
        """The windows of several tables; where work is spread, as one."""
        if self.parallel_map is not None:
            return region_scan.scan_windows(self.parallel_map, self._url, self._client, requests)
        return [
            read_if_exists(layout, partial(time_windows.scan_window, self._client, layout, after, upto))
            or time_windows.concat_scans(after, upto, [])
            for layout, after, upto in requests
        ]

    def _read_rows(
        self, layout: Layout, keys: pa.Array, columns: list[str], span: TimeRange | None, after: int
    ) -> DecodedRows:
        if self.parallel_map is None or not len(keys):
            tried = self._scan_statistics.setdefault(layout.name, ScanStatistics())
            return read_changed_rows(self._client, layout, keys, columns, span, tried, after)
        return region_scan.read_rows_by_region(self.parallel_map, self._url, self._client, layout, keys, columns, span)

    def _tables_by_id(self, ids: Sequence[int]) -> list[Table]:
        wanted = set(ids)
        catalog = self._state_cache.cached_catalog  # where who asks usually has the numbers from
        if not wanted <= catalog.tables_by_id.keys():
            catalog = self._state_cache.catalog()
        return [t for t in catalog.tables if t.id in wanted]

    def _base_layout(self, table: Table) -> Layout:
        if table.is_view:
            raise Unsupported(f"HBase keeps no log of the view {table.name}.", hint="Read the view instead.")
        return self._layouts.layout_of(table)
