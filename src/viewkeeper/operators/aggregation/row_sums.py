"""Sums in a write call of few rows: the law of `few` for counts, sums and averages, on the bytes of the rows.

    rows before −1, rows after +1 ──filter──▶ by group: what to add ──▶ the group's numbers ──▶ its row of the state,
                                                                                                and of the view

A group's rows differ from those before in nothing but their numbers, so they are taken apart once, and packed again.
What is known of a group stays for the next write call, while nobody else has written: the store sees to that. Python's
own loops are cheapest here: a put has used the processor's cache for other things, and each library's call is cold.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from operator import add, itemgetter
from typing import Any, Protocol

from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.encoding.keys import encode_plain_key
from viewkeeper.model.encoding.row_slots import FieldValues, OlderRowLayout, RowFieldReader, to_plain_value
from viewkeeper.model.encoding.rows import encode_plain_row, row_layout
from viewkeeper.model.schema import Table

RowRewrites = tuple[Table, list[bytes], list[bytes], list[bytes]]
"""Keys of a table, and their rows before and from now on; an empty one is none."""
MeasureSources = Sequence[tuple[str, str, str, str, str, int, int]]
"""Each one's name, function, argument, its count and sum, and the least and greatest sum that fits."""

_MAX_EXACT_DOUBLE, _INT128_FORMAT = 1 << 53, "16s"
_MAX_CACHED_GROUPS, _MAX_CACHED_BYTES = 1_000, 4_096
"""Groups that stay, and the bytes of a row that may."""
_UNREAD_FIELDS = (b"",)
COMPARISON_FUNCTIONS = {
    "EqualTo": operator.eq,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
}


class CachedRowReader(Protocol):
    """Rows of a store, and what is left of them from one write call to the next."""

    carried_state: MutableMapping[int, Any]
    """By view, what the write call before has left here, if nobody has written since."""

    def get_rows(self, table: Table, keys: Sequence[bytes]) -> list[bytes]:
        """The row of each encoded key, as it was when the write call began; empty where there is none."""


class _NotSupported(Exception):
    """Left to others."""


class _DecodedRow:
    """A group's row in a table: as the store has it, and taken apart."""

    __slots__ = ("fields", "key", "null_bits", "stored", "tail")

    def __init__(self, table: Table, key: bytes, stored: bytes, encoded: bytes) -> None:
        layout = row_layout(table, len(table.physical_columns))
        self.key, self.stored = key, stored
        self.fields = list(layout.packer.unpack_from(encoded))
        self.null_bits = int.from_bytes(self.fields[2], "little")
        self.tail = encoded[layout.width :]

    def encode(self, pack: Callable[..., bytes]) -> bytes:
        slots = self.fields
        slots[2] = self.null_bits.to_bytes(len(slots[2]), "little")
        return pack(*slots) + self.tail


class _CachedGroup:
    """Its rows, and its numbers."""

    __slots__ = ("state_row", "sums", "view_row")

    def __init__(self, state_row: _DecodedRow, view_row: _DecodedRow, sums: list[int]) -> None:
        self.state_row, self.view_row, self.sums = state_row, view_row, sums

    @property
    def byte_size(self) -> int:
        return len(self.state_row.tail) + len(self.view_row.tail)


@dataclass(frozen=True)
class _RowReadPlan:
    """How the rows of a base table are looked at."""

    table: Table
    reader: RowFieldReader
    read_group: Callable[[FieldValues], Any]
    read_group_fast: Callable[[bytes, FieldValues], Any] | None
    """The same of a row that begins clean, and was unpacked only; None: all have to be read."""
    conditions: Sequence[Callable[[FieldValues], bool]]
    count_fields: Sequence[tuple[int, int]]
    """For each number that counts values, its place and that of their column."""
    sum_fields: Sequence[tuple[int, int, bool]]
    """For each that sums them the same, and whether it does so as doubles."""


class EncodedRowAggregate:
    """An aggregate by plain columns, and the end of a view that shows its groups: for each column of the view `taken`
    has that of the group's row. `keys` are the columns of the base table that are the group's `names`, `conditions` are
    what a row must pass, and `fed` has for each accumulator its kind, the column that it is fed by, and its name."""

    def __init__(
        self,
        names: Sequence[str],
        keys: Sequence[str],
        conditions: Sequence[Expr],
        accumulator_inputs: Sequence[tuple[str, str, str]],
        measure_sources: MeasureSources,
        state_table: Table,
        view_table: Table,
        view_columns: Sequence[str],
    ) -> None:
        self._names, self._keys, self._conditions, self._accumulator_inputs = (
            names,
            keys,
            conditions,
            accumulator_inputs,
        )
        self._state_table, self._view_table = state_table, view_table
        shown = list(zip((c.name for c in view_table.columns), view_columns, strict=True))
        self._group_columns = [(column, source) for column, source in shown if source in names]
        self._key_null_masks = {
            state_table.id: _null_mask(state_table, names),
            view_table.id: _null_mask(view_table, [column for column, _ in self._group_columns]),
        }
        kept = row_layout(state_table, len(state_table.physical_columns))
        self._first_sum_field = 3 + kept.names.index("¤n")
        """Of the state's slots, the first number."""
        self._int128_sums = [
            at for at, code in enumerate(kept.format_codes[self._first_sum_field - 3 :]) if code == _INT128_FORMAT
        ]
        place = {"¤n": 0} | {name: at for at, (_, _, name) in enumerate(accumulator_inputs, 1)}
        read = {measure[0]: measure for measure in measure_sources}
        end = row_layout(view_table, len(view_table.physical_columns))
        self._measure_fields: list[tuple[int, bool, str, int, int | None, int, int]] = []
        for column, source in shown:
            if source not in names:
                at = end.names.index(column)
                _, function, _, counts, total, least, most = read[source]
                sums = place[total] if total else None
                self._measure_fields.append(
                    (at, end.format_codes[at] == _INT128_FORMAT, function, place[counts], sums, least, most)
                )
        self._read_plan: _RowReadPlan | None = None

    def apply(
        self, table: Table, before: Iterable[bytes], after: Iterable[bytes], reader: CachedRowReader
    ) -> list[RowRewrites] | None:
        """What changed rows, as they were and are (empty: none), do to the state and to the view; None if that is left
        to others: what does not fit, is damaged, or was written before a column was added."""
        at_hand: dict[Any, _CachedGroup] = reader.carried_state.pop(self._view_table.id, {})
        try:
            deltas = self._group_deltas(self._plan_reading(table), before, after)
            new = self._load_groups(table, [group for group in deltas if group not in at_hand], reader)
            changed = self._apply_deltas([(at_hand.get(group) or new[group], delta) for group, delta in deltas.items()])
        except (_NotSupported, OlderRowLayout, OverflowError, struct.error):
            return None
        if len(at_hand) + len(new) > _MAX_CACHED_GROUPS:
            at_hand.clear()
        at_hand |= {group: found for group, found in new.items() if found.byte_size <= _MAX_CACHED_BYTES}
        reader.carried_state[self._view_table.id] = at_hand
        return changed

    def _plan_reading(self, table: Table) -> _RowReadPlan:
        """Worked out once for a table as it is."""
        if self._read_plan is None or self._read_plan.table is not table:
            compared = [str(condition.args[0].value) for condition in self._conditions]
            reader = RowFieldReader(
                table, [*self._keys, *(source for _, source, _ in self._accumulator_inputs), *compared]
            )
            places = reader.positions
            strings = any(condition.args[0].type == types.STRING for condition in self._conditions)
            group_in = None if strings or len(self._keys) > 1 else reader.column_getter(self._keys[0])
            group_of = itemgetter(*(places[name] for name in self._keys))
            tests = [_compile_condition(condition, places) for condition in self._conditions]
            fed = [(at, places[source], kind) for at, (kind, source, _) in enumerate(self._accumulator_inputs, 1)]
            counted = [(at, source) for at, source, kind in fed if kind == "count"]
            summed = [(at, source, kind == "double") for at, source, kind in fed if kind != "count"]
            self._read_plan = _RowReadPlan(table, reader, group_of, group_in, tests, counted, summed)
        return self._read_plan

    def _group_deltas(
        self, plan: _RowReadPlan, before: Iterable[bytes], after: Iterable[bytes]
    ) -> dict[Any, list[int]]:
        """What the rows add to the numbers of each group that they are in."""
        read, unpack, clean = plan.reader.read, plan.reader.unpack, plan.reader.header_without_nulls
        group_of, group_in, tests, counted, summed = (
            plan.read_group,
            plan.read_group_fast,
            plan.conditions,
            plan.count_fields,
            plan.sum_fields,
        )
        nothing = [0] * (1 + len(self._accumulator_inputs))
        deltas: dict[Any, list[int]] = {}
        for weight, rows in ((-1, before), (1, after)):
            for row in filter(None, rows):
                slots: FieldValues = unpack(row) if group_in is not None else _UNREAD_FIELDS
                quick = slots[0] == clean
                if not quick:
                    slots = read(row)
                if tests and not all(test(slots) for test in tests):
                    continue
                group = group_in(row, slots) if quick and group_in is not None else group_of(slots)
                delta = deltas.get(group)
                if delta is None:
                    delta = deltas[group] = nothing.copy()
                delta[0] += weight
                for at, source in counted:
                    if slots[source] is not None:
                        delta[at] += weight
                for at, source, double in summed:
                    if (value := slots[source]) is not None:
                        delta[at] += weight * value
                        if double and not -_MAX_EXACT_DOUBLE <= value <= _MAX_EXACT_DOUBLE:
                            raise _NotSupported
        return deltas

    def _load_groups(self, table: Table, groups: Sequence[Any], reader: CachedRowReader) -> dict[Any, _CachedGroup]:
        """Groups as the store has them."""
        if not groups:
            return {}
        kinds = [table.by_name[name.lower()].type for name in self._keys]
        columns = zip(*groups, strict=True) if len(kinds) > 1 else [groups]
        values = [[to_plain_value(kind, slot) for slot in column] for kind, column in zip(kinds, columns, strict=True)]
        named = [dict(zip(self._names, row, strict=True)) for row in zip(*values, strict=True)]
        shown = [{column: row[source] for column, source in self._group_columns} for row in named]
        both = zip(
            self._load_rows(self._state_table, named, reader),
            self._load_rows(self._view_table, shown, reader),
            strict=True,
        )
        return {group: self._build_group(state, view) for group, (state, view) in zip(groups, both, strict=True)}

    def _load_rows(
        self, table: Table, values: Sequence[Mapping[str, Any]], reader: CachedRowReader
    ) -> Iterable[_DecodedRow]:
        keys = [encode_plain_key(table, row) for row in values]
        for key, known, row in zip(keys, reader.get_rows(table, keys), values, strict=True):
            found = _DecodedRow(table, key, known, known or encode_plain_row(table, row))
            found.null_bits &= self._key_null_masks[
                table.id
            ]  # its numbers are given, or said to be NULL, when it is packed
            yield found

    def _build_group(self, state: _DecodedRow, view: _DecodedRow) -> _CachedGroup:
        numbers: list[Any] = (
            state.fields[self._first_sum_field :] if state.stored else [0] * (1 + len(self._accumulator_inputs))
        )
        for at in self._int128_sums if state.stored else ():
            numbers[at] = int.from_bytes(numbers[at], "little", signed=True)
        return _CachedGroup(state, view, numbers)

    def _apply_deltas(self, groups: Sequence[tuple[_CachedGroup, Sequence[int]]]) -> list[RowRewrites]:
        """Add to the numbers of groups; what becomes of their rows."""
        kept: RowRewrites = (self._state_table, [], [], [])
        shown: RowRewrites = (self._view_table, [], [], [])
        pack, pack_shown = (
            row_layout(t, len(t.physical_columns)).packer.pack for t in (self._state_table, self._view_table)
        )
        for group, delta in groups:
            group.sums = numbers = list(map(add, group.sums, delta))
            if numbers[0] < 0:
                raise _NotSupported
            row = group.state_row
            row.fields[self._first_sum_field :] = numbers
            for at in self._int128_sums:
                row.fields[self._first_sum_field + at] = numbers[at].to_bytes(16, "little", signed=True)
            _record_rewrite(pack, kept, row, any(numbers))
            row = group.view_row
            for at, wide, function, counts, total, least, most in self._measure_fields:
                value: Any = numbers[counts]
                if total is not None:
                    bit = 1 << at
                    row.null_bits = row.null_bits & ~bit if value else row.null_bits | bit
                    value = _sum_value(function, value, numbers[total], least, most) if value else 0
                row.fields[3 + at] = value.to_bytes(16, "little", signed=True) if wide else value
            _record_rewrite(pack_shown, shown, row, numbers[0] > 0)
        return [shown, kept]


def _record_rewrite(pack: Callable[..., bytes], rewrites: RowRewrites, row: _DecodedRow, is_present: bool) -> None:
    """Note what becomes of a row."""
    _, keys, before, after = rewrites
    keys.append(row.key)
    before.append(row.stored)
    row.stored = row.encode(pack) if is_present else b""
    after.append(row.stored)


def _null_mask(table: Table, names: Sequence[str]) -> int:
    """Of these columns, those that say that they are NULL."""
    columns = row_layout(table, len(table.physical_columns)).names
    return sum(1 << columns.index(name) for name in names)


def _sum_value(function: str, count: int, total: int, minimum: int, maximum: int) -> Any:
    if function == "Average":
        return float(total) / count
    if not minimum <= total <= maximum:
        raise _NotSupported
    return total


def _compile_condition(condition: Expr, field_positions: Mapping[str, int]) -> Callable[[FieldValues], bool]:
    """As Spark compares: strings by their bytes; a comparison with NULL does not pass."""
    column = condition.args[0]
    at = field_positions[str(column.value)]
    if condition.op == "IsNotNull":
        return lambda slots: slots[at] is not None
    compare, literal = COMPARISON_FUNCTIONS[condition.op], condition.args[1].value
    value = str(literal).encode() if column.type == types.STRING else literal
    return lambda slots: slots[at] is not None and compare(slots[at], value)
