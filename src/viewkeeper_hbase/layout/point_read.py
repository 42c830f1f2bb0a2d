"""One row by key as Python values, without Arrow: building arrays for one row takes as long as asking HBase for it.

Only for plain layouts (values as bytes, keys of integers, booleans and strings); the others, and cells that cannot be
read, go the long way (`layout.read_cells`).
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
    """How the cells of one row become a dictionary."""

    mark_column: bytes | None
    keys: tuple[tuple[str, Callable[[Any], Any]], ...]
    columns: tuple[tuple[str, ColumnCells | None, CellReader | None], ...]
    """In the table's order; those of the key have no place."""

    def read_row(self, key: Sequence[Any], cells: Mapping[bytes, Cell]) -> dict[str, Any] | None:
        """The row, or None if one of its cells cannot be read here."""
        since = cells[self.mark_column].time if self.mark_column is not None and self.mark_column in cells else -1
        named = {
            name: None if value is None else read(value) for (name, read), value in zip(self.keys, key, strict=True)
        }
        found: dict[str, Any] = {}
        try:
            for name, place, read in self.columns:
                if place is None or read is None:
                    found[name] = named[name]
                    continue
                cell = cells.get(place.cell)
                found[name] = read(cell.value) if cell is not None and cell.time >= since else None
                if place.null_cell is not None and place.initial is not None and found[name] is None:
                    null = cells.get(place.null_cell)
                    found[name] = place.initial.value if null is None or null.time < since else None
        except (struct.error, ValueError, OverflowError):
            return None
        return found


def point_reader(layout: Layout) -> PointReader | None:
    """The reader of a layout, if it is a plain one."""
    table = layout.table
    plain = all(place.encoding == "bytes" for place in layout.column_cells.values())
    if not plain or not all(c.type in _IN_KEYS for c in table.key_columns):
        return None
    keys = tuple((c.name, scalar_reader(table.name, c.name, c.type)) for c in table.key_columns)
    columns: list[tuple[str, ColumnCells | None, CellReader | None]] = []
    for column in table.stored_columns:
        place = layout.column_cells.get(column.name)
        columns.append((column.name, place, None if place is None else _cell_reader(column.type)))
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
        written = Decimal(int.from_bytes(value[4:], "big", signed=True))
        exact = written.scaleb(-int.from_bytes(value[:4], "big", signed=True), _DECIMAL_CONTEXT)
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
