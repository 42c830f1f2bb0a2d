"""The rows of a database in HBase: writes, reads, and reads at a cut.

A write call is atomic for each row, not as a whole, and takes its position after its rows have got their times.
Rows are not read before they are written, so every put counts as a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import BadValue, RowAbsent, Unsupported
from viewkeeper.model.filtered_table import pushed_comparisons
from viewkeeper.model.schema import Table
from viewkeeper.store.contract.commits import Capabilities, CaptureMark, RejectedRow, WriteResult
from viewkeeper.store.contract.tables import TableStore, column_names, convert_rows, first_row
from viewkeeper_hbase.capture.feed import ChangeCapture
from viewkeeper_hbase.catalog_store import HBaseCatalogStore
from viewkeeper_hbase.handle import HBaseHandle
from viewkeeper_hbase.layout import pushdown
from viewkeeper_hbase.layout.layout import Layout
from viewkeeper_hbase.layout.layout_cache import Layouts, read_if_exists
from viewkeeper_hbase.rejected_rows import RejectedRows
from viewkeeper_hbase.snapshot import HBaseSnapshot
from viewkeeper_hbase.statistics import choose_split_points
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.thrift.errors import NoSuchTable, OutcomeUnknown

# Writes to base tables: whole rows, deletes, and some columns of one row.
#
# HBase assigns the times of the cells. A write that is repeated after a lost answer stores the same rows with a later
# time.


def write_rows(client: HBaseClient, layouts: Layouts, layout: Layout, puts: pa.Table, deletes: pa.Table) -> int:
    """Put whole rows and delete keys; return the number of both."""
    table = layout.table
    keys, cells = layout.encode(convert_rows(table, puts, table.arrow.names))
    deleted_keys = layout.encode_row_keys(convert_rows(table, deletes, [c.name for c in table.key_columns]))
    _check_unique_keys(table, keys, deleted_keys)

    def write() -> None:
        if len(keys) and layout.mark_column is not None:
            client.put_rows(layout.name, keys, cells, retry_unknown=True)
        elif len(keys):
            _replace_rows(client, layout, keys, cells)
        if len(deleted_keys):
            client.delete_rows(layout.name, deleted_keys, retry_unknown=True)

    if len(keys) or len(deleted_keys):
        layouts.write_creating_table(layout, write)
    return len(keys) + len(deleted_keys)


def _replace_rows(client: HBaseClient, layout: Layout, keys: pa.Array, cells: dict[bytes, pa.Array]) -> None:
    """Put whole rows of a table without row markers. The cell of a NULL column must be deleted in the same atomic
    step."""
    nulls = np.zeros(len(keys), np.int64)
    for values in cells.values():
        nulls += np.asarray(values.is_null())
    if (nulls == len(cells)).any():
        raise BadValue(
            f"A row for {layout.table.name} has no value outside its key, so {layout.name} cannot hold it.",
            hint="Give at least one column a value.",
        )
    without_nulls = pa.array(nulls == 0)
    client.put_rows(
        layout.name,
        keys.filter(without_nulls),
        {c: v.filter(without_nulls) for c, v in cells.items()},
        retry_unknown=True,
    )
    for at in np.flatnonzero(nulls):  # one call per row: no other call of HBase puts and deletes atomically
        row = {column: values[int(at)].as_py() for column, values in cells.items()}
        puts = {column: value for column, value in row.items() if value is not None}
        client.change(layout.name, keys[int(at)].as_py(), puts, [c for c in row if c not in puts])


def update_row(client: HBaseClient, layout: Layout, key: pa.Table, columns: pa.Table) -> bool:
    """Change some columns of one row atomically; return False if they have these values already."""
    table = layout.table
    if key.num_rows != 1:
        raise Unsupported("HBase changes columns of one row at a time.", hint="Update the rows one by one.")
    names = column_names(table, columns.column_names)
    key_names = {column.name for column in table.key_columns}
    if fixed := [name for name in names if name in key_names]:
        raise BadValue(
            f"Column {fixed[0]} is in the key of {table.name} and cannot be updated.",
            hint="Delete the row and put a new one.",
        )
    new = layout.encode_columns(convert_rows(table, columns.rename_columns(names), names))
    cells = {cell: values[0].as_py() for cell, values in new.items()}
    row_key = layout.encode_row_keys(convert_rows(table, key, [c.name for c in table.key_columns]))[0].as_py()
    puts = {cell: value for cell, value in cells.items() if value is not None}
    nulls = [cell for cell, value in cells.items() if value is None]
    while True:
        stored = read_if_exists(layout, lambda: client.get(layout.name, row_key, layout.families))
        if stored is None:
            raise RowAbsent(
                f"{table.name} has no row with key {key.to_pylist()[0]}.", hint="Put the whole row instead."
            )
        mark_time = (
            stored[layout.mark_column].time if layout.mark_column is not None and layout.mark_column in stored else -1
        )
        current = {column: cell.value for column, cell in stored.items() if cell.time >= mark_time}
        if all(current.get(cell) == value for cell, value in cells.items()):
            return False
        # The row still exists if one of its cells still has its value: HBase compares it in the same atomic step.
        witness = min(current)
        with suppress(OutcomeUnknown):  # the next iteration reads the outcome
            if client.change_if(layout.name, row_key, witness, current[witness], puts, nulls):
                return True


def _check_unique_keys(table: Table, keys: pa.Array, deleted_keys: pa.Array) -> None:
    all_keys = pa.concat_arrays([keys.cast(pa.binary()), deleted_keys.cast(pa.binary())])
    if len(all_keys) > 1 and pc.count_distinct(all_keys).as_py() < len(all_keys):
        raise BadValue(f"A write to {table.name} has the same key twice.", hint="Keep the last row of each key.")


CAPABILITIES = Capabilities(
    changelog=True, atomic_batch=False, snapshot_scan=False, before_images=False, cell_versions=True
)


class HBaseTables(TableStore):
    """Base tables in their current state, views at the published batch."""

    capabilities = CAPABILITIES

    def __init__(self, handle: HBaseHandle, catalog_store: HBaseCatalogStore, capture: ChangeCapture) -> None:
        self.url = handle.url
        self._handle, self._catalog_store, self._capture = handle, catalog_store, capture
        self._layouts, self._reader, self._table_statistics = handle.layouts, handle.reader, handle.table_statistics

    def drop_rows(self, table: Table) -> None:
        self._handle.require_writable()
        layout = self._layouts.layout_of(table)
        if layout.is_owned:
            with suppress(NoSuchTable):
                self._handle.existing_tables.discard(layout.name)
                self._handle.client.admin.drop(layout.name)
        self._layouts.forget(table)
        self._table_statistics.invalidate(table)

    # -- writes -------------------------------------------------------------------------------------------------------

    def write(self, table: Table, puts: pa.Table, deletes: pa.Table) -> WriteResult:
        self._handle.require_writable()
        count = write_rows(self._handle.client, self._layouts, self._layouts.layout_of(table), puts, deletes)
        self._table_statistics.invalidate(table)
        return self._write_result(count)

    def write_once(self, table: Table, puts: pa.Table, deletes: pa.Table, writer: str, number: int) -> WriteResult:
        note = self._catalog_store.note(f"once:{writer}")
        if note is not None and note["number"] >= number:
            return self._write_result(0)
        result = self.write(table, puts, deletes)
        self._catalog_store.put_note(f"once:{writer}", {"number": number})
        return result

    def update(self, table: Table, key: pa.Table, columns: pa.Table) -> WriteResult:
        self._handle.require_writable()
        return self._write_result(int(update_row(self._handle.client, self._layouts.layout_of(table), key, columns)))

    def _write_result(self, count: int) -> WriteResult:
        return WriteResult(self._capture.after_write() if count else self._capture.head(), count, atomic=False)

    # -- reads --------------------------------------------------------------------------------------------------------

    def get(self, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        self._handle.require_open()
        layout = self._layouts.layout_of(table)
        row_key = layout.row_key_encoding.encode_one(key)
        point_reader = self._layouts.point_reader(layout)
        if point_reader is not None:
            cells = self._reader.read_cells(layout, row_key)
            if cells is None:
                return None
            found = point_reader.read_row(key, cells)
            if found is not None:
                return found
        keys = pa.array([row_key], pa.binary())
        return first_row(table, self._reader.get(layout, keys, table.arrow.names).rows)

    def get_rows(self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        self._handle.require_open()
        layout = self._layouts.layout_of(table)
        row_keys = layout.encode_row_keys(convert_rows(table, keys, [c.name for c in table.key_columns]))
        return self._reader.get(layout, row_keys, column_names(table, columns)).rows

    def scan(
        self,
        table: Table,
        columns: Sequence[str] | None = None,
        *,
        start: bytes | None = None,
        stop: bytes | None = None,
        limit: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        self._handle.require_open()
        return self._reader.scan(self._layouts.layout_of(table), column_names(table, columns), start, stop, limit)

    def count(self, table: Table) -> int:
        self._handle.require_open()
        return self._table_statistics.size_of(table).rows

    def rejected_rows(self, table: Table) -> list[RejectedRow]:
        self._handle.require_open()
        return RejectedRows(self._handle.meta_table).list_rows(table)

    # -- reads at a cut -----------------------------------------------------------------------------------------------

    def scan_at(
        self, table: Table, columns: Sequence[str], cut: int, *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[pa.RecordBatch]:
        self._handle.require_open()
        return self._capture.scan_at(table, column_names(table, columns), cut, start, stop)

    def describe_scan(self, table: Table, columns: Sequence[str]) -> str:
        return pushdown.describe_scan(self._layouts.layout_of(table), columns, pushed_comparisons(table))

    def find_at(self, table: Table, keys: pa.Table, columns: Sequence[str], cut: int) -> pa.Table:
        self._handle.require_open()
        return self._capture.find_at(table, keys, column_names(table, columns), cut)

    def capture_mark(self, table: Table, cut: int, expected: CaptureMark | None = None) -> CaptureMark | None:
        self._handle.require_open()
        return self._capture.capture_mark(table, cut, expected)

    def has_moved(self, table: Table, cut: int) -> bool:
        return self._capture.has_moved(table, cut)

    def open_snapshot(self) -> HBaseSnapshot:
        self._handle.require_open()
        return HBaseSnapshot(
            self._handle.meta_table, self._handle.state_cache, self._layouts, self._reader, self._capture
        )

    # -- ranges of keys -----------------------------------------------------------------------------------------------

    def range_keys(self, table: Table, rows: pa.Table) -> pa.Array:
        return self._layouts.layout_of(table).encode_row_keys(rows)

    def is_in_key_order(self, table: Table) -> bool:
        return self._layouts.layout_of(table).is_in_key_order

    def split_points(self, table: Table, range_count: int) -> list[bytes]:
        self._handle.require_open()
        return choose_split_points(self._table_statistics.size_of(table), range_count)
