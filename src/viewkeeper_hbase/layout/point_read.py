"""Point reads without Arrow: one row by key as Python values.

Building arrays for one row takes as long as the call to HBase. This module supports plain layouts (values encoded
as bytes; keys of integers, booleans, strings and binary). The caller reads other layouts, and rows with
unreadable cells, through Arrow (`layout.decode_rows`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Context, Decimal
from typing import Any

from viewkeeper.model import types
from viewkeeper.model.intake.scalars import EPOCH, EPOCH_ORDINAL, EPOCH_UTC, scalar_reader
from viewkeeper.model.types import Type
from viewkeeper_hbase.layout.layout import ColumnCells, Layout
from viewkeeper_hbase.thrift.client import Cell

CellReader = Callable[[bytes], Any]

_IN_KEYS = (types.BOOLEAN, types.TINYINT, types.SMALLINT, types.INT, types.BIGINT, types.STRING, types.BINARY)
_DECIMAL_CONTEXT = Context(prec=40)


@dataclass(frozen=True)
class PointReader:
    """Decodes the cells of one row into a dictionary."""

    mark_column: bytes | None
    keys: tuple[tuple[str, Callable[[Any], Any]], ...]
    columns: tuple[tuple[str, ColumnCells | None, CellReader | None], ...]
    """In the table's order; columns of the key have no cells."""

    def read_row(self, key: Sequence[Any], cells: Mapping[bytes, Cell]) -> dict[str, Any] | None:
        """Return the row, or None if one of its cells cannot be decoded."""
        mark_time = cells[self.mark_column].time if self.mark_column is not None and self.mark_column in cells else -1
        key_values = {
            name: None if value is None else read(value) for (name, read), value in zip(self.keys, key, strict=True)
        }
        row: dict[str, Any] = {}
        try:
            for name, column_cells, read in self.columns:
                if column_cells is None or read is None:
                    row[name] = key_values[name]
                    continue
                cell = cells.get(column_cells.cell)
                row[name] = read(cell.value) if cell is not None and cell.time >= mark_time else None
                if column_cells.null_cell is not None and column_cells.initial is not None and row[name] is None:
                    null = cells.get(column_cells.null_cell)
                    row[name] = column_cells.initial.value if null is None or null.time < mark_time else None
        except (struct.error, ValueError, OverflowError):
            return None
        return row


def point_reader(layout: Layout) -> PointReader | None:
    """Return the reader of a layout; None if the layout is not a plain one."""
    table = layout.table
    is_plain = all(column_cells.encoding == "bytes" for column_cells in layout.column_cells.values())
    if not is_plain or not all(c.type in _IN_KEYS for c in table.key_columns):
        return None
    keys = tuple((c.name, scalar_reader(table.name, c.name, c.type)) for c in table.key_columns)
    columns: list[tuple[str, ColumnCells | None, CellReader | None]] = []
    for column in table.stored_columns:
        column_cells = layout.column_cells.get(column.name)
        columns.append((column.name, column_cells, None if column_cells is None else _cell_reader(column.type)))
    return PointReader(layout.mark_column, keys, tuple(columns))


def _cell_reader(type_name: Type) -> CellReader:
    if digits := types.decimal_digits(type_name):
        return _decimal_reader(digits[1])
    return _CELL_READERS[type_name]


def _decimal_reader(scale: int) -> CellReader:
    unit = Decimal(1).scaleb(-scale, _DECIMAL_CONTEXT)

    def read(value: bytes) -> Decimal:
        if not 5 <= len(value) <= 20:
            raise ValueError
        unscaled = Decimal(int.from_bytes(value[4:], "big", signed=True))
        exact = unscaled.scaleb(-int.from_bytes(value[:4], "big", signed=True), _DECIMAL_CONTEXT)
        rounded = exact.quantize(unit, context=_DECIMAL_CONTEXT)
        if rounded != exact:
            raise ValueError
        return rounded

    return read


def _number_reader(form: str) -> CellReader:
    unpack = struct.Struct(form).unpack
    return lambda value: unpack(value)[0]


def _read_boolean(value: bytes) -> bool:
    if len(value) != 1:
        raise ValueError
    return value != b"\0"


_read_days, _read_micros = _number_reader(">i"), _number_reader(">q")
_CELL_READERS: dict[Type, CellReader] = {
    types.BOOLEAN: _read_boolean,
    types.TINYINT: _number_reader(">b"),
    types.SMALLINT: _number_reader(">h"),
    types.INT: _number_reader(">i"),
    types.BIGINT: _number_reader(">q"),
    types.FLOAT: _number_reader(">f"),
    types.DOUBLE: _number_reader(">d"),
    types.STRING: bytes.decode,
    types.BINARY: bytes,
    types.DATE: lambda value: date.fromordinal(_read_days(value) + EPOCH_ORDINAL),
    types.TIMESTAMP: lambda value: EPOCH_UTC + timedelta(microseconds=_read_micros(value)),
    types.TIMESTAMP_NTZ: lambda value: EPOCH + timedelta(microseconds=_read_micros(value)),
}
