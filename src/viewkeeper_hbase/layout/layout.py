"""The layout of a table's rows in HBase, and the decoding of cells into rows.

A table that Viewkeeper creates is `namespace:name.id`, with one family `c`:

    row key         the key columns, order-preserving (`model.encoding.keys`)
    c:              a mark that is written with every whole row
    c:<column>      one cell for each column outside the key (`value_encodings`); NULL: no cell
    c:<00><column>  for a column that was added with a DEFAULT: it is NULL; neither cell: it has the default

A put replaces a row whole and must not leave old values of columns that are NULL now. Deleting those would take a
second call, and between the calls the row would be neither old nor new. Therefore **a cell that is older than its
row's mark is not part of the row.** All cells of one put have the same time, so the put is atomic; a column that
is written later is part of the row as well. A row without a mark, written by another program, consists of all its
cells.

Cells of base tables have HBase's own times, milliseconds since 1970. Cells of views have the number of the batch
that wrote them, so reading cells up to time n gives the view at batch n. The cells of a view's NULLs are also
deleted before its batch is published, so that a plain HBase client can read the view without knowing about marks.
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
"""Number of batches for which a view stays readable."""

TABLE_VERSIONS = 100
"""How often a row may be overwritten while it is captured."""

_MAX_KEY_BYTES = 32_767

_CELL_OVERHEAD = 40
"""Minimum number of bytes of a call for each cell, in addition to its value and its column's name."""

MAX_ROW_BYTES = MAX_CALL_BYTES - 1_000


class RowKeys(Protocol):
    """The encoding of key columns as row keys."""

    def encode(self, rows: pa.Table) -> pa.Array: ...

    def encode_one(self, values: Sequence[Any]) -> bytes: ...

    def decode(self, keys: pa.Array) -> tuple[pa.Table, Mask]:
        """Return the key columns, and a mask of the keys that cannot be decoded."""


@dataclass(frozen=True)
class OrderedKeys:
    """Row keys encoded by `model.encoding.keys`."""

    table: Table

    def encode(self, rows: pa.Table) -> pa.Array:
        return encode_keys(self.table, rows)

    def encode_one(self, values: Sequence[Any]) -> bytes:
        return encode_whole_key(self.table, values)

    def decode(self, keys: pa.Array) -> tuple[pa.Table, Mask]:
        return decode_keys(self._key_table, keys)

    @cached_property
    def _key_table(self) -> Table:
        """The table with the columns in the order of the encoded key: a view family's member begins with its
        parameters."""
        if not self.table.key_prefix:
            return self.table
        parameters = tuple(column for _, column in self.table.dropped_columns)
        key = (*(KeyPart(column.name) for column in parameters), *self.table.key)
        return replace(
            self.table, columns=(*parameters, *self.table.columns), key=key, dropped_columns=(), key_prefix=b""
        )


@dataclass(frozen=True)
class ColumnCells:
    """A column's cells and their encoding."""

    cell: bytes
    encoding: str
    null_cell: bytes | None = None
    """The cell that marks NULL, if a missing cell stands for the initial value."""
    initial: InitialValue | None = None
    """The value of a row that has neither cell."""
    narrower_types: tuple[Type, ...] = ()
    """Earlier types of the column, with which older cells are encoded."""

    @property
    def cells(self) -> tuple[bytes, ...]:
        return (self.cell,) if self.null_cell is None else (self.cell, self.null_cell)


@dataclass(frozen=True)
class Layout:
    """A table's layout in HBase. If `is_owned`, Viewkeeper created the table and may alter and drop it."""

    table: Table
    name: str
    is_owned: bool
    row_key_encoding: RowKeys
    column_cells: Mapping[str, ColumnCells]
    """By column, for the columns outside the key."""
    mark_column: bytes | None
    families: tuple[bytes, ...]

    @property
    def is_in_key_order(self) -> bool:
        """Whether the table's rows are stored in the order of `model.encoding.keys`."""
        return self.is_owned or isinstance(self.row_key_encoding, OrderedKeys)

    def column_family(self) -> ColumnFamily:
        """Return the family settings of an owned table."""
        versions = VIEW_VERSIONS if self.table.is_view else TABLE_VERSIONS
        return ColumnFamily(FAMILY, max_versions=versions, keep_deleted_cells=True)

    def cells_to_read(self, columns: Sequence[str]) -> tuple[bytes, ...]:
        """Return the cells to request from HBase in order to read these columns.

        Every row of a view has a mark. In other tables a row exists if any of its cells does, so whole families
        are requested. The same holds for a view if most columns are requested: HBase seeks to each column that is
        named.
        """
        cells = [cell for c in columns if c in self.column_cells for cell in self.column_cells[c].cells]
        if self.mark_column is not None and self.table.is_view and 2 * len(cells) <= len(self.column_cells):
            return (self.mark_column, *cells)
        return self.families

    def scan_filter(self, columns: Sequence[str]) -> bytes | None:
        """Return a filter for a scan of these columns that drops all cells but the columns' and the first of each
        row.

        It is for tables in which a row exists if any of its cells does. None if most columns are requested.
        """
        cells = [cell for c in columns if c in self.column_cells for cell in self.column_cells[c].cells]
        if (self.mark_column is not None and self.table.is_view) or 2 * len(cells) > len(self.column_cells):
            return None
        names = (cell.partition(b":")[2].replace(b"'", b"''") for cell in cells)
        return b" OR ".join([b"FirstKeyOnlyFilter()", *(b"QualifierFilter(=, 'binary:%s')" % name for name in names)])

    def encode(self, rows: pa.Table) -> tuple[pa.Array, dict[bytes, pa.Array]]:
        """Encode whole rows as row keys and cells."""
        keys = self.encode_row_keys(rows)
        cells: dict[bytes, pa.Array] = {}
        if self.mark_column is not None:
            cells[self.mark_column] = pa.array(np.full(rows.num_rows, MARK_VALUE, "S1"), pa.binary())
        cells |= self.encode_columns(rows)
        self._check_sizes(rows, keys, cells)
        return keys, cells

    def _check_sizes(self, rows: pa.Table, keys: pa.Array, cells: Mapping[bytes, pa.Array]) -> None:
        """Check row sizes before anything is written: a batch with cells that HBase refuses could never be finished."""
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
        for name, column_cells in self.column_cells.items():
            if name not in rows.column_names:
                continue
            values = value_encodings.encode(column_cells.encoding, self.table.by_name[name.lower()].type, rows[name])
            cells[column_cells.cell] = values
            if column_cells.null_cell is not None:
                cells[column_cells.null_cell] = pc.if_else(
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
    """Decoded cells: the readable rows, their row keys, and the rejected rows as (row key, reason)."""

    rows: pa.Table
    keys: pa.Array
    rejected: tuple[tuple[bytes, str], ...]


def table_layout(namespace: str, table: Table) -> Layout:
    """Return the layout of a table: Viewkeeper's own, or the one that the table's options map."""
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
    key_names = {c.name for c in table.key_columns}
    column_cells = {c.name: _column_cells(table, c, encoding) for c in table.stored_columns if c.name not in key_names}
    name = f"{namespace}:{re.sub('[^A-Za-z0-9_]', '_', table.first_name)}.{table.storage_id}"
    return Layout(table, name, True, OrderedKeys(table), column_cells, MARK_COLUMN, (FAMILY,))


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
    """Decode the rows of a reply. Requested keys that were not found are left out."""
    found = cells.key_stop > 0
    keys = cells.keys if found.all() else cells.keys.drop_null()
    key_columns, rejected = layout.row_key_encoding.decode(keys)
    reasons: list[tuple[Mask, str]] = [(rejected, "its row key cannot be read")] if rejected.any() else []
    mark_times = _mark_times(layout, cells)
    arrays = []
    for name in columns:
        column_cells = layout.column_cells.get(name)
        if column_cells is None:
            arrays.append(key_columns[name])
            continue
        values = _column_values(cells, column_cells.cell, mark_times)
        if not found.all():
            values = values.filter(pa.array(found))
        type_ = layout.table.by_name[name.lower()].type
        other_types = (
            *column_cells.narrower_types,
            *(value_encodings.WIDER_TYPES.get(type_, ()) if layout.is_owned else ()),
        )
        array, undecodable = value_encodings.decode(column_cells.encoding, type_, values, other_types)
        if undecodable is not None:
            reasons.append(
                (undecodable, f"{column_cells.cell.decode(errors='replace')} is no {name} ({column_cells.encoding})")
            )
            rejected = rejected | undecodable
        if column_cells.null_cell is not None and column_cells.initial is not None and array.null_count:
            nulls = _column_values(cells, column_cells.null_cell, mark_times)
            unset = pc.and_(array.is_null(), nulls.filter(pa.array(found)).is_null())
            array = pc.if_else(unset, column_cells.initial.arrow, array)
        arrays.append(array)
    schema = pa.schema([layout.table.arrow.field(name) for name in columns])
    rows = pa.Table.from_arrays(arrays, schema=schema) if columns else pa.table({"": pa.nulls(len(keys))}).select([])
    if not rejected.any():
        return DecodedRows(rows, keys, ())
    reason_by_row = {int(i): reason for undecodable, reason in reversed(reasons) for i in np.flatnonzero(undecodable)}
    rejects = tuple((keys[i].as_py(), reason) for i, reason in sorted(reason_by_row.items()))
    good = pa.array(~rejected)
    return DecodedRows(rows.filter(good), keys.filter(good), rejects)


def _mark_times(layout: Layout, cells: Cells) -> Offsets | None:
    """Return each row's mark time, before which cells do not count; None if no row has an older cell."""
    if layout.mark_column is None or not len(cells):
        return None
    mark_cells = cells.newest_cells(layout.mark_column)
    mark_times = np.where(mark_cells >= 0, cells.time[np.maximum(mark_cells, 0)], np.int64(-1))
    return mark_times if bool((cells.time < mark_times[cells.row]).any()) else None


def _column_values(cells: Cells, column: bytes, mark_times: Offsets | None) -> pa.Array:
    """Return each row's newest value of a column, null if the row has none that counts."""
    if mark_times is None:
        return cells.column(column)
    newest = cells.newest_cells(column)
    return cells.values_at(np.where(cells.time[np.maximum(newest, 0)] >= mark_times, newest, -1))


def _value_lengths(keys: pa.Array) -> Any:
    return np.diff(np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, keys.offset * 4))
