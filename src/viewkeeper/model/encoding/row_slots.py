"""Reading a few columns of an encoded row (`rows`) without full decoding: numbers, and the bytes of longer values.

For readers of few columns and few rows that only add, compare and distinguish values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from viewkeeper.model.encoding.rows import VERSION, row_layout
from viewkeeper.model.schema import Table
from viewkeeper.model.types import STRING, Type, decimal_digits

FieldValues = Sequence[Any]


class OlderRowLayout(Exception):
    """A row was written before a column was added."""


class RowFieldReader:
    """Reads selected columns of a table's rows. `positions` maps each column to its index in the values.

    `unpack` returns the raw field slots, where a string is its end offset. The first value is the row's header, which
    equals `header_without_nulls` if the row has all columns of the table and no column is NULL.
    """

    def __init__(self, table: Table, names: Sequence[str]) -> None:
        layout = row_layout(table, len(table.physical_columns))
        selected = {layout.names.index(name) for name in names}
        bitmap = (len(layout.names) + 7) // 8
        format_string = f"<{3 + bitmap}s"
        slots: dict[int, int] = {}
        for at, code in enumerate(layout.format_codes):
            if at in selected or layout.variable[at]:
                slots[at] = len(slots) + 1
                format_string += code
            else:
                format_string += f"{struct.calcsize('<' + code)}x"
        self.unpack: Callable[[bytes], FieldValues] = struct.Struct(format_string).unpack_from
        self.positions = {layout.names[at]: index for at, index in slots.items()}
        self._header = struct.pack("<BH", VERSION, len(layout.names))
        self.header_without_nulls = self._header + bytes(bitmap)
        self._width, self._positions_by_column = layout.width, slots
        ends = [index for at, index in slots.items() if layout.variable[at]]
        self._string_starts = dict(zip(ends, [0, *ends], strict=False))
        """By the index of a string: the index of the preceding string, at whose end it begins; 0 for the first."""

    def read(self, row: bytes) -> FieldValues:
        """Return the columns, NULL as None. Raise OlderRowLayout if the row lacks a column of the table."""
        if row[:3] != self._header:
            raise OlderRowLayout
        header, *fields = self.unpack(row)
        ends, slots = [0, *fields], [0, *fields]
        for end, start in self._string_starts.items():
            slots[end] = row[self._width + ends[start] : self._width + ends[end]]
        if header != self.header_without_nulls:
            nulls = int.from_bytes(header[3:], "little")
            for at, index in self._positions_by_column.items():
                if nulls >> at & 1:
                    slots[index] = None
        return slots

    def column_getter(self, name: str) -> Callable[[bytes, FieldValues], Any]:
        """Return the function that reads a column from a row without NULLs and its unpacked slots."""
        index, width = self.positions[name], self._width
        if index not in self._string_starts:
            return lambda row, slots: slots[index]
        start = self._string_starts[index]
        if not start:
            return lambda row, slots: row[width : width + slots[index]]
        return lambda row, slots: row[width + slots[start] : width + slots[index]]


def to_plain_value(type_: Type, field: Any) -> Any:
    """Convert a field's raw value to a plain value (see `intake.scalars`)."""
    if type_ == STRING:
        return None if field is None else field.decode()
    return int.from_bytes(field, "little", signed=True) if is_wide(type_) and field is not None else field


def is_wide(type_: Type) -> bool:
    """Return whether the type's values are 16-byte numbers."""
    digits = decimal_digits(type_)
    return digits is not None and digits[0] > 18
