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
from viewkeeper.model.delta import weighted
from viewkeeper.model.filtered_table import Comparison, wanted
from viewkeeper.model.schema import Table
from viewkeeper.store.contract.store import Changed, Pending, Seen, Spread
from viewkeeper.store.contract.tables import typed
from viewkeeper_hbase.cached_state import Known
from viewkeeper_hbase.capture import region_scan, time_windows
from viewkeeper_hbase.capture.time_windows import NOTHING, Look, Noted
from viewkeeper_hbase.layout.close_scan import Tried, rows_of
from viewkeeper_hbase.layout.layout import Layout, Rows
from viewkeeper_hbase.layout.layout_cache import Layouts, if_there
from viewkeeper_hbase.layout.row_reader import Reader
from viewkeeper_hbase.metadata import MetaTable
from viewkeeper_hbase.push.arrivals import Arrivals
from viewkeeper_hbase.rejected_rows import Rejects
from viewkeeper_hbase.thrift.client import Client
from viewkeeper_hbase.thrift.request_encoder import TimeRange

RESCAN = 600.0
"""Seconds. After a longer pause, a table that does not keep deleted cells is compared with its image row by row."""

_TICK = 0.0015
"""Seconds after which HBase's clock has moved on by a millisecond."""


class Feed:
    """Reads what writers did. `overlap` in milliseconds."""

    def __init__(
        self, url: str, client: Client, records: MetaTable, known: Known, layouts: Layouts, reader: Reader, overlap: int
    ) -> None:
        self._url = url
        self.spread: Spread | None = None
        """By whom the reads of capture are done; None: here."""
        self._client, self._records, self._known = client, records, known
        self._layouts, self._reader, self._overlap = layouts, reader, overlap
        self._rejects = Rejects(records)
        self._head = 0
        self._looks: dict[int, Look] = {}
        self._tried: dict[str, Tried] = {}
        self.arrivals = Arrivals()

    def head(self) -> int:
        """HBase's clock: every write call that has ended has a position up to it. Who pushes tells it for nothing."""
        told = self.arrivals.clock()
        self._head = max(self._head, self._records.clock() if told is None else told)
        return self._head

    def after_write(self) -> int:
        """The position of a write call that has just ended. HBase's clock then shows a later millisecond, so whoever
        writes next, here or elsewhere, is not hidden by a delete of this call, nor mixed with its rows."""
        ended = time.monotonic()
        position = self.head()
        time.sleep(max(0.0, _TICK - (time.monotonic() - ended)))
        return position

    # -- changes ------------------------------------------------------------------------------------------------------

    def changes(self, table: Table, columns: list[str], after: int, upto: int) -> pa.Table:
        """The difference of two states, while HBase has the versions of both; what came late is not in it."""
        layout = self._base(table)
        keys = self._look(layout, after, upto).sight(after, upto).keys
        before = self._reader.rows(layout, keys, columns, (0, after + 1)).rows
        now = self._reader.rows(layout, keys, columns, (0, upto + 1)).rows
        return pa.concat_tables([weighted(before, -1), weighted(now, 1)]).combine_chunks()

    def changed(
        self, table: Table, columns: list[str], after: int, upto: int, seen: Seen | None
    ) -> tuple[Changed, Noted]:
        layout = self._base(table)
        exact = self._layouts.is_exact(layout)
        span = (0, upto + 1) if exact else None
        told = seen if isinstance(seen, Noted) else None
        came = self.arrivals.taken(layout, told, after, upto, exact, self._head)
        if came.gap or not (exact or came.complete or upto - after <= 1000 * RESCAN):
            self._tried.pop(layout.name, None)
            low = upto - self._overlap
            look = time_windows.joined(upto, upto, []) if came.complete else self._look(layout, low, upto)
            noted = look.noted(max(low, look.after), upto)  # before rows are read
            return Changed(None, self._whole(layout, columns, span, wanted(table))), replace(noted, push=came.pushed)
        keys, noted = came.keys, Noted(upto, "")
        if not came.complete:
            found, noted = self._window(layout, after, upto, told)
            keys = pa.concat_arrays([keys, found]).unique() if len(keys) else found
        rows = self._rows(layout, keys, columns, span, after)
        key_columns, bad = layout.keys.decode(keys)
        self._rejects.note(table, keys, rows.rejects)
        changed = Changed(key_columns if not bad.any() else key_columns.filter(pa.array(~bad)), rows.rows)
        return changed, replace(noted, push=came.pushed)

    def _window(self, layout: Layout, after: int, upto: int, told: Noted | None) -> tuple[pa.Array, Noted]:
        """The keys of rows that a window shows to be written, and what is seen of its last seconds."""
        low = min(upto, after - self._overlap if told is None else told.low)
        # Usually `pending` has just looked. What has become visible since then is late, and found by the next window.
        look = self._looks.pop(layout.table.id, None)
        if look is None or not look.covers(low, upto):
            look = self._look(layout, low, upto)
        early, late = look.sight(low, after), look.sight(after, upto)
        keys = time_windows.join(early.without(told.sight or NOTHING) if told is not None else early, late)
        return keys, look.noted(max(low, upto - self._overlap), upto)

    def at(
        self, table: Table, columns: list[str], cut: int, start: bytes | None, stop: bytes | None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a range of row keys at a cut, with weights."""
        layout = self._layouts.of(table)
        span: TimeRange | None = (0, cut + 1) if self._layouts.is_exact(layout) else None
        for found in self._reader.scan_span(layout, columns, span, start, stop, where=wanted(table)):
            if found.rejects:
                self._rejects.note(table, None, found.rejects)
            if found.rows.num_rows:
                yield from weighted(found.rows, 1).to_batches()

    def find_at(self, table: Table, keys: pa.Table, columns: list[str], cut: int) -> pa.Table:
        """The rows of these keys at a cut, as `at` gives them."""
        layout = self._layouts.of(table)
        names = layout.row_keys(typed(table, keys, [c.name for c in table.key_columns]))
        span: TimeRange | None = (0, cut + 1) if self._layouts.is_exact(layout) else None
        return self._reader.rows(layout, names, columns, span).rows

    def _whole(
        self, layout: Layout, columns: list[str], span: TimeRange | None, where: Sequence[Comparison]
    ) -> pa.Table:
        parts: list[Rows] = list(self._reader.scan_span(layout, columns, span, where=where))
        self._rejects.note(layout.table, None, tuple(r for part in parts for r in part.rejects))
        schema = pa.schema([layout.table.arrow.field(name) for name in columns])
        return pa.concat_tables([schema.empty_table(), *(part.rows for part in parts)]).combine_chunks()

    def since(self, layout: Layout, cut: int, start: bytes, stop: bytes) -> Look:
        """What was written to a range of row keys after a cut."""
        found = if_there(
            layout, lambda: time_windows.scan_window(self._client, layout, cut, self.head(), start=start, stop=stop)
        )
        return found or time_windows.joined(cut, cut, [])

    # -- what waits ---------------------------------------------------------------------------------------------------

    def pending(self, after: int, tables: Sequence[int], head: int | None = None) -> Pending:
        told = self._told(after)
        now = self.head() if head is None else head
        self.arrivals.reach(now)
        rows = calls = 0
        first: int | None = None
        last: int | None = None
        unsure: list[tuple[Layout, Noted]] = []
        for table in self._tables(tables):
            layout = self._layouts.of(table)
            seen = told.get(table.id)
            waits = self.arrivals.waiting(layout, seen if isinstance(seen, Noted) else None, after, now)
            if len(waits.positions):
                rows, calls = rows + len(waits.firsts), calls + len(np.unique(waits.positions))
                low, high = int(waits.positions.min()), int(waits.positions.max())
                first, last = low if first is None else min(first, low), max(last or 0, high)
            if not waits.complete:
                unsure.append((layout, seen if isinstance(seen, Noted) else Noted(after, "")))
        looks = self._look_all([(layout, noted.low, now) for layout, noted in unsure])
        for (layout, noted), look in zip(unsure, looks, strict=True):
            self._looks[layout.table.id] = look
            early, late = look.sight(noted.low, after), look.sight(after, now)
            if early.digest() != noted.digest:
                # Something became visible late: no batch up to this cut has it.
                rows, calls, last = rows + 1, calls + 1, max(last or 0, after + 1)
                first = after + 1
            if len(late):
                rows, calls = rows + len(late), calls + len(np.unique(late.newest))
                oldest, newest = int(late.oldest.min()), int(late.newest.max())
                first = oldest if first is None else min(first, oldest)
                last = max(last or 0, newest)
        return Pending(calls, rows, None if first is None else first / 1000, first, last)

    def cut_after(self, after: int, tables: Sequence[int], rows: int) -> int:
        told, now = self._told(after), self.head()
        self.arrivals.reach(now)
        found = []
        for table in self._tables(tables):
            layout = self._layouts.of(table)
            seen = told.get(table.id)
            waits = self.arrivals.waiting(layout, seen if isinstance(seen, Noted) else None, after, now)
            found.append(waits.firsts)
            if not waits.complete:
                found.append(self._look(layout, after, now).sight(after, now).oldest)
        times = np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)
        return now if len(times) <= rows else int(times[max(rows, 1) - 1])

    def _told(self, after: int) -> Mapping[int, Seen]:
        """What the batch with this cut had seen of its tables; nothing if it is not the last one."""
        published = self._known.last
        if published is None or published.batch.cut != after:
            published = self._known.published()
        return published.batch.seen if published is not None and published.batch.cut == after else {}

    # -- the overlap --------------------------------------------------------------------------------------------------

    def watch(self, table: Table, cut: int, seen: Seen | None) -> Noted | None:
        """What can be seen now of the last seconds before a cut; None if other cells were `seen` there.

        Once the overlap is over, what turns up there is too late to be found: nobody looks at these seconds again. A
        view that is loaded just after its tables thus does not read what was loaded last once more in its first batch.
        """
        told = seen if isinstance(seen, Noted) else None
        layout = self._layouts.of(table)
        now = self.head()
        self.arrivals.reach(now)
        came = self.arrivals.late(layout, told, cut, self._layouts.is_exact(layout), now)
        if came.gap:
            return None
        if came.complete:
            return Noted(cut, "", push=came.pushed)
        low = told.low if told is not None else cut - self._overlap
        look = self._look(layout, low, cut)
        noted = look.noted(low, cut)
        if told is not None and noted.digest != told.digest:
            return None
        return replace(look.noted(cut, cut) if now - cut >= self._overlap else noted, push=came.pushed)

    def has_moved(self, table: Table, cut: int) -> bool:
        """Whether a table that is read as it is was written after a cut."""
        layout = self._layouts.of(table)
        if self._layouts.is_exact(layout):
            return False
        now = self.head()
        return len(self._look(layout, cut, now).sight(cut, now)) > 0

    def _look(self, layout: Layout, after: int, upto: int) -> Look:
        return self._look_all([(layout, after, upto)])[0]

    def _look_all(self, asked: Sequence[region_scan.Asked]) -> list[Look]:
        """The windows of several tables; where work is spread, as one."""
        if self.spread is not None:
            return region_scan.scan_regions(self.spread, self._url, self._client, asked)
        return [
            if_there(layout, partial(time_windows.scan_window, self._client, layout, after, upto))
            or time_windows.joined(after, upto, [])
            for layout, after, upto in asked
        ]

    def _rows(self, layout: Layout, keys: pa.Array, columns: list[str], span: TimeRange | None, after: int) -> Rows:
        if self.spread is None or not len(keys):
            tried = self._tried.setdefault(layout.name, Tried())
            return rows_of(self._client, layout, keys, columns, span, tried, after)
        return region_scan.rows(self.spread, self._url, self._client, layout, keys, columns, span)

    def _tables(self, ids: Sequence[int]) -> list[Table]:
        wanted = set(ids)
        catalog = self._known.defined  # where who asks usually has the numbers from
        if not wanted <= catalog.tables_by_id.keys():
            catalog = self._known.catalog()
        return [t for t in catalog.tables if t.id in wanted]

    def _base(self, table: Table) -> Layout:
        if table.is_view:
            raise Unsupported(f"HBase keeps no log of the view {table.name}.", hint="Read the view instead.")
        return self._layouts.of(table)
