"""Some columns of a row as they lie in its bytes (`codec`): numbers, and bytes of what is longer.

For who looks at few columns of few rows, and needs them for nothing but to add up, compare, and tell apart.
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
    """Reads these columns of a table's rows: `places` says where each is put. `unpack` gives what lies in the slots, a
    string as the place where it ends, and first of all what a row begins with: `clean`, if none of its columns is NULL,
    and all of the table's are there."""

    def __init__(self, table: Table, names: Sequence[str]) -> None:
        layout = row_layout(table, len(table.physical_columns))
        wanted = {layout.names.index(name) for name in names}
        bitmap = (len(layout.names) + 7) // 8
        form = f"<{3 + bitmap}s"
        slots: dict[int, int] = {}
        for at, code in enumerate(layout.format_codes):
            if at in wanted or layout.variable[at]:
                slots[at] = len(slots) + 1
                form += code
            else:
                form += f"{struct.calcsize('<' + code)}x"
        self.unpack: Callable[[bytes], FieldValues] = struct.Struct(form).unpack_from
        self.positions = {layout.names[at]: place for at, place in slots.items()}
        self._header = struct.pack("<BH", VERSION, len(layout.names))
        self.header_without_nulls = self._header + bytes(bitmap)
        self._width, self._positions_by_column = layout.width, slots
        ends = [place for at, place in slots.items() if layout.variable[at]]
        self._string_starts = dict(zip(ends, [0, *ends], strict=False))
        """By the place where one ends, that where it begins: where the one before ends; 0 for the first."""

    def read(self, row: bytes) -> FieldValues:
        """The columns, NULL as None. OtherColumns if the row lacks one of the table's."""
        if row[:3] != self._header:
            raise OlderRowLayout
        begun, *found = self.unpack(row)
        ends, slots = [0, *found], [0, *found]
        for end, start in self._string_starts.items():
            slots[end] = row[self._width + ends[start] : self._width + ends[end]]
        if begun != self.header_without_nulls:
            nulls = int.from_bytes(begun[3:], "little")
            for at, place in self._positions_by_column.items():
                if nulls >> at & 1:
                    slots[place] = None
        return slots

    def column_getter(self, name: str) -> Callable[[bytes, FieldValues], Any]:
        """What gives a column of a row that begins clean, which was unpacked."""
        place, width = self.positions[name], self._width
        if place not in self._string_starts:
            return lambda row, slots: slots[place]
        start = self._string_starts[place]
        if not start:
            return lambda row, slots: row[width : width + slots[place]]
        return lambda row, slots: row[width + slots[start] : width + slots[place]]


def to_plain_value(type_: Type, field: Any) -> Any:
    """What lies in a slot, as `model.scalars` has it."""
    if type_ == STRING:
        return None if field is None else field.decode()
    return int.from_bytes(field, "little", signed=True) if is_wide(type_) and field is not None else field


def is_wide(type_: Type) -> bool:
    """Whether a type's numbers are 16 bytes."""
    digits = decimal_digits(type_)
    return digits is not None and digits[0] > 18
