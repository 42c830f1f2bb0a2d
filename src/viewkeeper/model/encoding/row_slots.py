"""Some columns of a row as they lie in its bytes (`codec`): numbers, and bytes of what is longer.

For who looks at few columns of few rows, and needs them for nothing but to add up, compare, and tell apart.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from viewkeeper.model.encoding.rows import VERSION, layout_of
from viewkeeper.model.schema import Table
from viewkeeper.model.types import STRING, Type, decimal_digits

Slots = Sequence[Any]


class OtherColumns(Exception):
    """A row was written before a column was added."""


class SlotReader:
    """Reads these columns of a table's rows: `places` says where each is put. `unpack` gives what lies in the slots, a
    string as the place where it ends, and first of all what a row begins with: `clean`, if none of its columns is NULL,
    and all of the table's are there."""

    def __init__(self, table: Table, names: Sequence[str]) -> None:
        layout = layout_of(table, len(table.places))
        wanted = {layout.names.index(name) for name in names}
        bitmap = (len(layout.names) + 7) // 8
        form = f"<{3 + bitmap}s"
        slots: dict[int, int] = {}
        for at, code in enumerate(layout.codes):
            if at in wanted or layout.variable[at]:
                slots[at] = len(slots) + 1
                form += code
            else:
                form += f"{struct.calcsize('<' + code)}x"
        self.unpack: Callable[[bytes], Slots] = struct.Struct(form).unpack_from
        self.places = {layout.names[at]: place for at, place in slots.items()}
        self._head = struct.pack("<BH", VERSION, len(layout.names))
        self.clean = self._head + bytes(bitmap)
        self._width, self._slots = layout.width, slots
        ends = [place for at, place in slots.items() if layout.variable[at]]
        self._strings = dict(zip(ends, [0, *ends], strict=False))
        """By the place where one ends, that where it begins: where the one before ends; 0 for the first."""

    def read(self, row: bytes) -> Slots:
        """The columns, NULL as None. OtherColumns if the row lacks one of the table's."""
        if row[:3] != self._head:
            raise OtherColumns
        begun, *found = self.unpack(row)
        ends, slots = [0, *found], [0, *found]
        for end, start in self._strings.items():
            slots[end] = row[self._width + ends[start] : self._width + ends[end]]
        if begun != self.clean:
            nulls = int.from_bytes(begun[3:], "little")
            for at, place in self._slots.items():
                if nulls >> at & 1:
                    slots[place] = None
        return slots

    def column(self, name: str) -> Callable[[bytes, Slots], Any]:
        """What gives a column of a row that begins clean, which was unpacked."""
        place, width = self.places[name], self._width
        if place not in self._strings:
            return lambda row, slots: slots[place]
        start = self._strings[place]
        if not start:
            return lambda row, slots: row[width : width + slots[place]]
        return lambda row, slots: row[width + slots[start] : width + slots[place]]


def plain(kind: Type, slot: Any) -> Any:
    """What lies in a slot, as `model.scalars` has it."""
    if kind == STRING:
        return None if slot is None else slot.decode()
    return int.from_bytes(slot, "little", signed=True) if is_wide(kind) and slot is not None else slot


def is_wide(kind: Type) -> bool:
    """Whether a type's numbers are 16 bytes."""
    digits = decimal_digits(kind)
    return digits is not None and digits[0] > 18
