"""The rows of a database in HBase: a write call is atomic for each row, not as a whole.

A call takes its position after its rows have theirs; nothing is known of a row before it is written, so a put counts as
a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from viewkeeper.model.schema import Table
from viewkeeper.model.selection import wanted
from viewkeeper.store.arrow import column_names, first_row, typed
from viewkeeper.store.hbase import pushing, writing
from viewkeeper.store.hbase.definitions import HBaseRecords
from viewkeeper.store.hbase.failures import NoSuchTable
from viewkeeper.store.hbase.feed import Feed
from viewkeeper.store.hbase.opened import Opened
from viewkeeper.store.hbase.pinned import PinnedBatch
from viewkeeper.store.hbase.rejects import Rejects
from viewkeeper.store.hbase.sizes import split_points
from viewkeeper.store.protocols import Rows
from viewkeeper.store.terms import Capabilities, Reject, Seen, Written

CAPABILITIES = Capabilities(
    change_feed=True, atomic_batch=False, snapshot_scan=False, before_images=False, cell_versions=True
)


class HBaseRows(Rows):
    """Base tables as they are, views at the published batch."""

    capabilities = CAPABILITIES

    def __init__(self, opened: Opened, records: HBaseRecords, feed: Feed) -> None:
        self.url = opened.url
        self._opened, self._records, self._feed = opened, records, feed
        self._layouts, self._reader, self._sizes = opened.layouts, opened.reader, opened.sizes

    def drop_rows(self, table: Table) -> None:
        self._opened.writable()
        layout = self._layouts.of(table)
        if layout.owned:
            with suppress(NoSuchTable):
                self._opened.there.discard(layout.name)
                self._opened.client.tables.drop(layout.name)
        self._layouts.forget(table)
        self._sizes.forget(table)

    # -- writes -------------------------------------------------------------------------------------------------------

    def write(self, table: Table, puts: pa.Table, deletes: pa.Table) -> Written:
        self._opened.writable()
        count = writing.write_rows(self._opened.client, self._layouts, self._layouts.of(table), puts, deletes)
        self._sizes.forget(table)
        return self._written(count)

    def write_once(self, table: Table, puts: pa.Table, deletes: pa.Table, writer: str, number: int) -> Written:
        noted = self._records.note(f"once:{writer}")
        if noted is not None and noted["number"] >= number:
            return self._written(0)
        written = self.write(table, puts, deletes)
        self._records.put_note(f"once:{writer}", {"number": number})
        return written

    def update(self, table: Table, key: pa.Table, columns: pa.Table) -> Written:
        self._opened.writable()
        return self._written(int(writing.update_row(self._opened.client, self._layouts.of(table), key, columns)))

    def _written(self, count: int) -> Written:
        return Written(self._feed.after_write() if count else self._feed.head(), count, atomic=False)

    # -- reads --------------------------------------------------------------------------------------------------------

    def get(self, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        self._opened.live()
        layout = self._layouts.of(table)
        name = layout.keys.encode_one(key)
        point = self._layouts.point(layout)
        if point is not None:
            cells = self._reader.cells(layout, name)
            if cells is None:
                return None
            found = point.row(key, cells)
            if found is not None:
                return found
        keys = pa.array([name], pa.binary())
        return first_row(table, self._reader.get(layout, keys, table.arrow.names).rows)

    def get_many(self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        self._opened.live()
        layout = self._layouts.of(table)
        names = layout.row_keys(typed(table, keys, [c.name for c in table.key_columns]))
        return self._reader.get(layout, names, column_names(table, columns)).rows

    def scan(
        self,
        table: Table,
        columns: Sequence[str] | None = None,
        *,
        start: bytes | None = None,
        stop: bytes | None = None,
        limit: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        self._opened.live()
        return self._reader.scan(self._layouts.of(table), column_names(table, columns), start, stop, limit)

    def count(self, table: Table) -> int:
        self._opened.live()
        return self._sizes.of(table).rows

    def rejects(self, table: Table) -> list[Reject]:
        self._opened.live()
        return Rejects(self._opened.records).listed(table)

    # -- reads at a cut -----------------------------------------------------------------------------------------------

    def scan_at(
        self, table: Table, columns: Sequence[str], cut: int, *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[pa.RecordBatch]:
        self._opened.live()
        return self._feed.at(table, column_names(table, columns), cut, start, stop)

    def scan_text(self, table: Table, columns: Sequence[str]) -> str:
        return pushing.scan_text(self._layouts.of(table), columns, wanted(table))

    def find_at(self, table: Table, keys: pa.Table, columns: Sequence[str], cut: int) -> pa.Table:
        self._opened.live()
        return self._feed.find_at(table, keys, column_names(table, columns), cut)

    def watch(self, table: Table, cut: int, seen: Seen | None = None) -> Seen | None:
        self._opened.live()
        return self._feed.watch(table, cut, seen)

    def has_moved(self, table: Table, cut: int) -> bool:
        return self._feed.has_moved(table, cut)

    def pin(self) -> PinnedBatch:
        self._opened.live()
        return PinnedBatch(self._opened.records, self._opened.known, self._layouts, self._reader, self._feed)

    # -- ranges of keys -----------------------------------------------------------------------------------------------

    def range_keys(self, table: Table, rows: pa.Table) -> pa.Array:
        return self._layouts.of(table).row_keys(rows)

    def in_key_order(self, table: Table) -> bool:
        return self._layouts.of(table).in_key_order

    def split_points(self, table: Table, parts: int) -> list[bytes]:
        self._opened.live()
        return split_points(self._sizes.of(table), parts)
