"""How a table's rows lie in HBase, and how cells become rows again.

A table made here is `namespace:name.id`, with one family `c`:

    row key         the key columns, order-preserving (`model.keys`)
    c:              a mark that is written with every whole row
    c:<column>      one cell for each column that is not in the key (`encodings`); NULL: no cell
    c:<00><column>  of a column that was added with a DEFAULT: it is NULL; neither cell: the row shows that default

A put replaces a row whole and must not leave old values of columns that are NULL now. Deleting those would take a
second call, between which the row is neither old nor new. So instead: **a cell that is older than its row's mark is not
part of the row.** All cells of one put have one time, so a row put here is atomic, and a column that somebody writes
later counts as well. A row without a mark, written by others, has all its cells.

Cells of base tables have HBase's own times, milliseconds since 1970. Cells of views have the number of the batch that
wrote them, so a read up to batch n is the view of batch n. A view's NULLs are deleted too before its batch is
published: who reads it with a plain client need not know about marks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import BadValue, TooLarge, Unsupported
from viewkeeper.model import types
from viewkeeper.model.encoding.key_decoding import Mask, decode_keys
from viewkeeper.model.encoding.keys import encode_keys, encode_whole_key
from viewkeeper.model.encoding.rows import InitialValue, initial_value
from viewkeeper.model.row_names import key_text
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.model.types import Type
from viewkeeper_hbase.layout import value_encodings
from viewkeeper_hbase.thrift.admin import ColumnFamily
from viewkeeper_hbase.thrift.cells import Cells, Offsets
from viewkeeper_hbase.thrift.request_encoder import MAX_CALL_BYTES

FAMILY = b"c"
MARK_COLUMN = b"c:"
MARK_VALUE = b"\x01"

VIEW_VERSIONS = 200
"""Batches back to which a view stays readable."""

TABLE_VERSIONS = 100
"""How often a row may be overwritten while it is captured."""

_MAX_KEY_BYTES = 32_767

_CELL_OVERHEAD = 40
"""Bytes around a cell's value in a call, its column's name not counted; at least."""

MAX_ROW_BYTES = MAX_CALL_BYTES - 1_000


class RowKeys(Protocol):
    """How row keys are made from key columns, and back."""

    def encode(self, rows: pa.Table) -> pa.Array: ...

    def encode_one(self, values: Sequence[Any]) -> bytes: ...

    def decode(self, keys: pa.Array) -> tuple[pa.Table, Mask]:
        """The key columns, and which keys cannot be read."""


@dataclass(frozen=True)
class OrderedKeys:
    """Keys as `model.keys` has them."""

    table: Table

    def encode(self, rows: pa.Table) -> pa.Array:
        return encode_keys(self.table, rows)

    def encode_one(self, values: Sequence[Any]) -> bytes:
        return encode_whole_key(self.table, values)

    def decode(self, keys: pa.Array) -> tuple[pa.Table, Mask]:
        return decode_keys(self._key_table, keys)

    @cached_property
    def _key_table(self) -> Table:
        """The table as its keys lie: those of a member of a family begin with the parameters."""
        if not self.table.key_prefix:
            return self.table
        before = tuple(column for _, column in self.table.dropped_columns)
        key = (*(KeyPart(column.name) for column in before), *self.table.key)
        return replace(self.table, columns=(*before, *self.table.columns), key=key, dropped_columns=(), key_prefix=b"")


@dataclass(frozen=True)
class ColumnCells:
    """Where a column's cells are, and how their values are written."""

    cell: bytes
    encoding: str
    null_cell: bytes | None = None
    """The cell that says NULL, where no cell means the initial value."""
    initial: InitialValue | None = None
    """What a row shows that has neither cell."""
    narrower_types: tuple[Type, ...] = ()
    """The types with which cells were written before."""

    @property
    def cells(self) -> tuple[bytes, ...]:
        return (self.cell,) if self.null_cell is None else (self.cell, self.null_cell)


@dataclass(frozen=True)
class Layout:
    """A table in HBase. `owned`: it was made here, and may be altered and dropped."""

    table: Table
    name: str
    is_owned: bool
    row_key_encoding: RowKeys
    column_cells: Mapping[str, ColumnCells]
    """By column, for columns that are not in the key."""
    mark_column: bytes | None
    families: tuple[bytes, ...]

    @property
    def is_in_key_order(self) -> bool:
        """Whether its rows lie in the order of keys as `model.keys` writes them."""
        return self.is_owned or isinstance(self.row_key_encoding, OrderedKeys)

    def column_family(self) -> ColumnFamily:
        """What a table made here asks of HBase."""
        versions = VIEW_VERSIONS if self.table.is_view else TABLE_VERSIONS
        return ColumnFamily(FAMILY, max_versions=versions, keep_deleted_cells=True)

    def cells_to_read(self, columns: Sequence[str]) -> tuple[bytes, ...]:
        """What to ask HBase for, to read these columns. Every row of a view is marked; elsewhere a row is there if any
        of its cells is, so its families are asked for whole. So is a view's when most columns are wanted: HBase seeks
        to each column that is named."""
        wanted = [cell for c in columns if c in self.column_cells for cell in self.column_cells[c].cells]
        if self.mark_column is not None and self.table.is_view and 2 * len(wanted) <= len(self.column_cells):
            return (self.mark_column, *wanted)
        return self.families

    def scan_filter(self, columns: Sequence[str]) -> bytes | None:
        """What HBase should leave out of a scan of these columns, where a row is there if any of its cells is: all but
        the columns' cells and each row's first. None when most columns are wanted."""
        wanted = [cell for c in columns if c in self.column_cells for cell in self.column_cells[c].cells]
        if (self.mark_column is not None and self.table.is_view) or 2 * len(wanted) > len(self.column_cells):
            return None
        names = (cell.partition(b":")[2].replace(b"'", b"''") for cell in wanted)
        return b" OR ".join([b"FirstKeyOnlyFilter()", *(b"QualifierFilter(=, 'binary:%s')" % name for name in names)])

    def encode(self, rows: pa.Table) -> tuple[pa.Array, dict[bytes, pa.Array]]:
        """Row keys and cells of whole rows."""
        keys = self.encode_row_keys(rows)
        cells: dict[bytes, pa.Array] = {}
        if self.mark_column is not None:
            cells[self.mark_column] = pa.array(np.full(rows.num_rows, MARK_VALUE, "S1"), pa.binary())
        cells |= self.encode_columns(rows)
        self._check_sizes(rows, keys, cells)
        return keys, cells

    def _check_sizes(self, rows: pa.Table, keys: pa.Array, cells: Mapping[bytes, pa.Array]) -> None:
        """Before anything is written: a batch whose cells HBase refused could never be finished."""
        if not len(keys):
            return
        sizes = _value_lengths(keys).astype(np.int64)
        for cell, values in cells.items():
            sizes += np.asarray(pc.fill_null(pc.binary_length(values), 0)) + len(cell) + _CELL_OVERHEAD
        largest = int(sizes.argmax())
        if sizes[largest] > MAX_ROW_BYTES:
            raise TooLarge(
                f"A row of {self.table.name} has {sizes[largest]:,} bytes, over the {MAX_ROW_BYTES:,} that HBase's"
                f" gateway takes in one call: {key_text(self.table, rows, largest)}.",
                hint="Keep large objects elsewhere.",
                table=self.table.id,
                key=encode_keys(self.table, rows.slice(largest, 1))[0].as_py(),
            )

    def encode_columns(self, rows: pa.Table) -> dict[bytes, pa.Array]:
        cells: dict[bytes, pa.Array] = {}
        for name, place in self.column_cells.items():
            if name not in rows.column_names:
                continue
            values = value_encodings.encode(place.encoding, self.table.by_name[name.lower()].type, rows[name])
            cells[place.cell] = values
            if place.null_cell is not None:
                cells[place.null_cell] = pc.if_else(
                    values.is_null(), pa.scalar(MARK_VALUE), pa.scalar(None, pa.binary())
                )
        return cells

    def encode_row_keys(self, rows: pa.Table) -> pa.Array:
        keys = self.row_key_encoding.encode(rows)
        lengths = _value_lengths(keys)
        if len(keys) and int(lengths.max()) > _MAX_KEY_BYTES:
            raise TooLarge(
                f"A key of {self.table.name} has {lengths.max():,} bytes, HBase takes {_MAX_KEY_BYTES:,}:"
                f" {key_text(self.table, rows, int(lengths.argmax()))}.",
                hint="A view without a unique key has whole rows as keys: give it a KEY.",
                table=self.table.id,
                key=encode_keys(self.table, rows.slice(int(lengths.argmax()), 1))[0].as_py(),
            )
        return keys


@dataclass(frozen=True)
class DecodedRows:
    """Cells as rows: those that can be read, their row keys, and the rest as (row key, reason)."""

    rows: pa.Table
    keys: pa.Array
    rejected: tuple[tuple[bytes, str], ...]


def table_layout(namespace: str, table: Table) -> Layout:
    """The layout of a table: its own, or the one that its options map."""
    options = dict(table.options)
    if "hbase.table" in options:
        from viewkeeper_hbase.layout.mapping import mapped_layout

        return mapped_layout(table, options)
    encoding = options.get("hbase.encoding", "bytes")
    if encoding not in value_encodings.ENCODINGS:
        raise BadValue(
            f"{table.name}: there is no encoding {encoding!r}.",
            hint=f"Encodings: {', '.join(value_encodings.ENCODINGS)}.",
        )
    in_key = {c.name for c in table.key_columns}
    places = {c.name: _column_cells(table, c, encoding) for c in table.stored_columns if c.name not in in_key}
    name = f"{namespace}:{re.sub('[^A-Za-z0-9_]', '_', table.first_name)}.{table.storage_id}"
    return Layout(table, name, True, OrderedKeys(table), places, MARK_COLUMN, (FAMILY,))


def _column_cells(table: Table, column: Column, encoding: str) -> ColumnCells:
    name, initial = table.first_internal_name(column.internal_name).encode(), initial_value(table, column.name)
    narrower = tuple(n.type for n in table.earlier_types(column.internal_name))
    if encoding == "text" and types.FLOAT in narrower:
        raise Unsupported(
            f"{table.name}.{column.name}: a FLOAT that lies in HBase as text would be another DOUBLE.",
            hint="Add a DOUBLE column, and UPDATE it from this one.",
        )
    return ColumnCells(
        MARK_COLUMN + name, encoding, None if initial is None else MARK_COLUMN + b"\0" + name, initial, narrower
    )


def decode_rows(layout: Layout, cells: Cells, columns: Sequence[str]) -> DecodedRows:
    """The rows in a reply. Keys that were asked for and not found are left out."""
    found = cells.key_stop > 0
    keys = cells.keys if found.all() else cells.keys.drop_null()
    key_columns, bad = layout.row_key_encoding.decode(keys)
    reasons: list[tuple[Mask, str]] = [(bad, "its row key cannot be read")] if bad.any() else []
    since = _mark_times(layout, cells)
    arrays = []
    for name in columns:
        place = layout.column_cells.get(name)
        if place is None:
            arrays.append(key_columns[name])
            continue
        values = _column_values(cells, place.cell, since)
        if not found.all():
            values = values.filter(pa.array(found))
        type_ = layout.table.by_name[name.lower()].type
        others = (*place.narrower_types, *(value_encodings.WIDER_TYPES.get(type_, ()) if layout.is_owned else ()))
        array, wrong = value_encodings.decode(place.encoding, type_, values, others)
        if wrong is not None:
            reasons.append((wrong, f"{place.cell.decode(errors='replace')} is no {name} ({place.encoding})"))
            bad = bad | wrong
        if place.null_cell is not None and place.initial is not None and array.null_count:
            nulls = _column_values(cells, place.null_cell, since)
            unset = pc.and_(array.is_null(), nulls.filter(pa.array(found)).is_null())
            array = pc.if_else(unset, place.initial.arrow, array)
        arrays.append(array)
    schema = pa.schema([layout.table.arrow.field(name) for name in columns])
    rows = pa.Table.from_arrays(arrays, schema=schema) if columns else pa.table({"": pa.nulls(len(keys))}).select([])
    if not bad.any():
        return DecodedRows(rows, keys, ())
    why = {int(i): reason for wrong, reason in reversed(reasons) for i in np.flatnonzero(wrong)}
    rejects = tuple((keys[i].as_py(), reason) for i, reason in sorted(why.items()))
    good = pa.array(~bad)
    return DecodedRows(rows.filter(good), keys.filter(good), rejects)


def _mark_times(layout: Layout, cells: Cells) -> Offsets | None:
    """For each row the time of its mark: older cells do not count. None if no row has an older cell."""
    if layout.mark_column is None or not len(cells):
        return None
    place = cells.newest_cells(layout.mark_column)
    since = np.where(place >= 0, cells.time[np.maximum(place, 0)], np.int64(-1))
    return since if bool((cells.time < since[cells.row]).any()) else None


def _column_values(cells: Cells, column: bytes, mark_times: Offsets | None) -> pa.Array:
    """For each row the newest value of a column, null if there is none that counts."""
    if mark_times is None:
        return cells.column(column)
    place = cells.newest_cells(column)
    return cells.values_at(np.where(cells.time[np.maximum(place, 0)] >= mark_times, place, -1))


def _value_lengths(keys: pa.Array) -> Any:
    return np.diff(np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, keys.offset * 4))
