"""The rows of a database in HBase: a write call is atomic for each row, not as a whole.

A call takes its position after its rows have theirs; nothing is known of a row before it is written, so a put counts as
a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import BadValue, RowAbsent, Unsupported
from viewkeeper.model.filtered_table import wanted
from viewkeeper.model.schema import Table
from viewkeeper.store.contract.commits import Capabilities, Reject, Seen, Written
from viewkeeper.store.contract.tables import Rows, column_names, first_row, typed
from viewkeeper_hbase.capture.feed import Feed
from viewkeeper_hbase.catalog_store import HBaseRecords
from viewkeeper_hbase.handle import Opened
from viewkeeper_hbase.layout import pushdown
from viewkeeper_hbase.layout.layout import Layout
from viewkeeper_hbase.layout.layout_cache import Layouts, if_there
from viewkeeper_hbase.rejected_rows import Rejects
from viewkeeper_hbase.snapshot import PinnedBatch
from viewkeeper_hbase.statistics import split_points
from viewkeeper_hbase.thrift.client import Client
from viewkeeper_hbase.thrift.errors import NoSuchTable, OutcomeUnknown

# Writes to base tables: whole rows, deletes, and some columns of one row.
#
# Cells get HBase's own times. Done again after a lost answer, the same rows with a later time are the same rows.


def write_rows(client: Client, layouts: Layouts, layout: Layout, puts: pa.Table, deletes: pa.Table) -> int:
    """Put whole rows and delete keys; how many."""
    table = layout.table
    keys, cells = layout.encode(typed(table, puts, table.arrow.names))
    dead = layout.row_keys(typed(table, deletes, [c.name for c in table.key_columns]))
    _refuse_twice(table, keys, dead)

    def write() -> None:
        if len(keys) and layout.mark is not None:
            client.put_many(layout.name, keys, cells, again=True)
        elif len(keys):
            _replace(client, layout, keys, cells)
        if len(dead):
            client.delete_many(layout.name, dead, again=True)

    if len(keys) or len(dead):
        layouts.making(layout, write)
    return len(keys) + len(dead)


def _replace(client: Client, layout: Layout, keys: pa.Array, cells: dict[bytes, pa.Array]) -> None:
    """Whole rows of a table without marks: where a column is NULL its cell must go, in the same step."""
    nulls = np.zeros(len(keys), np.int64)
    for values in cells.values():
        nulls += np.asarray(values.is_null())
    if (nulls == len(cells)).any():
        raise BadValue(
            f"A row for {layout.table.name} has no value outside its key, so {layout.name} cannot hold it.",
            hint="Give at least one column a value.",
        )
    whole = pa.array(nulls == 0)
    client.put_many(layout.name, keys.filter(whole), {c: v.filter(whole) for c, v in cells.items()}, again=True)
    for at in np.flatnonzero(nulls):  # a call for each row: HBase has no other that puts and deletes at once
        row = {column: values[int(at)].as_py() for column, values in cells.items()}
        puts = {column: value for column, value in row.items() if value is not None}
        client.change(layout.name, keys[int(at)].as_py(), puts, [c for c in row if c not in puts])


def update_row(client: Client, layout: Layout, key: pa.Table, columns: pa.Table) -> bool:
    """Change some columns of one row, in one step; False if they have these values already."""
    table = layout.table
    if key.num_rows != 1:
        raise Unsupported("HBase changes columns of one row at a time.", hint="Update the rows one by one.")
    names = column_names(table, columns.column_names)
    keyed = {column.name for column in table.key_columns}
    if fixed := [name for name in names if name in keyed]:
        raise BadValue(
            f"Column {fixed[0]} is in the key of {table.name} and cannot be updated.",
            hint="Delete the row and put a new one.",
        )
    new = layout.encode_columns(typed(table, columns.rename_columns(names), names))
    cells = {cell: values[0].as_py() for cell, values in new.items()}
    row_key = layout.row_keys(typed(table, key, [c.name for c in table.key_columns]))[0].as_py()
    puts = {cell: value for cell, value in cells.items() if value is not None}
    nulls = [cell for cell, value in cells.items() if value is None]
    while True:
        there = if_there(layout, lambda: client.get(layout.name, row_key, layout.families))
        if there is None:
            raise RowAbsent(
                f"{table.name} has no row with key {key.to_pylist()[0]}.", hint="Put the whole row instead."
            )
        since = there[layout.mark].time if layout.mark is not None and layout.mark in there else -1
        now = {column: cell.value for column, cell in there.items() if cell.time >= since}
        if all(now.get(cell) == value for cell, value in cells.items()):
            return False
        # The row is still there if one of its cells still has its value: checked in the same step.
        witness = min(now)
        with suppress(OutcomeUnknown):  # the next look tells
            if client.change_if(layout.name, row_key, witness, now[witness], puts, nulls):
                return True


def _refuse_twice(table: Table, keys: pa.Array, dead: pa.Array) -> None:
    both = pa.concat_arrays([keys.cast(pa.binary()), dead.cast(pa.binary())])
    if len(both) > 1 and pc.count_distinct(both).as_py() < len(both):
        raise BadValue(f"A write to {table.name} has the same key twice.", hint="Keep the last row of each key.")


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
        count = write_rows(self._opened.client, self._layouts, self._layouts.of(table), puts, deletes)
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
        return self._written(int(update_row(self._opened.client, self._layouts.of(table), key, columns)))

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
        return pushdown.scan_text(self._layouts.of(table), columns, wanted(table))

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
