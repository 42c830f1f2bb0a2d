"""Aggregation of counts, sums and averages directly on encoded rows, for small writes to synchronous views.

    rows before −1, rows after +1 ──filter──▶ by group: sums to add ──▶ the group's sums ──▶ its row of the state,
                                                                                             and of the view

The law is that of `row_groups`. The new row of a group differs from the old one in its sums only, so each row is
unpacked once and packed again. Decoded groups are cached for the next write call, unless there is another write in
between; the store ensures that. Python loops are fastest here: a put has used the processor's caches for other work, so
each library call starts cold.
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
"""Keys of a table, and their rows before and after; an empty row is none."""
MeasureSources = Sequence[tuple[str, str, str, str, str, int, int]]
"""For each measure its name, function, argument, its count and sum, and the smallest and largest sum that fits."""

_MAX_EXACT_DOUBLE, _INT128_FORMAT = 1 << 53, "16s"
_MAX_CACHED_GROUPS, _MAX_CACHED_BYTES = 1_000, 4_096
"""Groups that are cached, and the bytes of the variable tails of a group's rows up to which it is cached."""
_UNREAD_FIELDS = (b"",)
COMPARISON_FUNCTIONS = {
    "EqualTo": operator.eq,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
}


class CachedRowReader(Protocol):
    """Reads rows of a store, and carries cached groups from one write call to the next."""

    carried_state: MutableMapping[int, Any]
    """By view, what the previous write call left here, unless there has been another write since."""

    def get_rows(self, table: Table, keys: Sequence[bytes]) -> list[bytes]:
        """Return the row of each encoded key, as it was when the write call began; empty where there is none."""


class _NotSupported(Exception):
    """The caller falls back to the operators."""


class _DecodedRow:
    """A group's row in a table: as stored, and unpacked."""

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
    """A group's rows in the state and in the view, and its sums."""

    __slots__ = ("state_row", "sums", "view_row")

    def __init__(self, state_row: _DecodedRow, view_row: _DecodedRow, sums: list[int]) -> None:
        self.state_row, self.view_row, self.sums = state_row, view_row, sums

    @property
    def byte_size(self) -> int:
        return len(self.state_row.tail) + len(self.view_row.tail)


@dataclass(frozen=True)
class _RowReadPlan:
    """How the rows of a base table are read."""

    table: Table
    reader: RowFieldReader
    read_group: Callable[[FieldValues], Any]
    read_group_fast: Callable[[bytes, FieldValues], Any] | None
    """The same for a row without NULLs that was only unpacked; None: every row must be read completely."""
    conditions: Sequence[Callable[[FieldValues], bool]]
    count_fields: Sequence[tuple[int, int]]
    """For each count of values, its index in the sums and the field of its column."""
    sum_fields: Sequence[tuple[int, int, bool]]
    """The same for each sum of values, and whether it adds doubles."""


class EncodedRowAggregate:
    """An aggregate by plain columns, with the table of a view that shows its groups.

    `keys` are the base table's columns for the group's columns `names`, `conditions` filter its rows,
    `accumulator_inputs` has for each accumulator its kind, its input column and its name, and `view_columns` has for
    each column of the view the column of the group's row.
    """

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
        view_sources = list(zip((c.name for c in view_table.columns), view_columns, strict=True))
        self._group_columns = [(column, source) for column, source in view_sources if source in names]
        self._key_null_masks = {
            state_table.id: _null_mask(state_table, names),
            view_table.id: _null_mask(view_table, [column for column, _ in self._group_columns]),
        }
        state_layout = row_layout(state_table, len(state_table.physical_columns))
        self._first_sum_field = 3 + state_layout.names.index("¤n")
        """Position of the first sum among the fields of a state row."""
        self._int128_sums = [
            index
            for index, code in enumerate(state_layout.format_codes[self._first_sum_field - 3 :])
            if code == _INT128_FORMAT
        ]
        sum_index = {"¤n": 0} | {name: index for index, (_, _, name) in enumerate(accumulator_inputs, 1)}
        measures = {measure[0]: measure for measure in measure_sources}
        view_layout = row_layout(view_table, len(view_table.physical_columns))
        self._measure_fields: list[tuple[int, bool, str, int, int | None, int, int]] = []
        for column, source in view_sources:
            if source not in names:
                index = view_layout.names.index(column)
                _, function, _, counts, total, minimum, maximum = measures[source]
                sums = sum_index[total] if total else None
                self._measure_fields.append(
                    (
                        index,
                        view_layout.format_codes[index] == _INT128_FORMAT,
                        function,
                        sum_index[counts],
                        sums,
                        minimum,
                        maximum,
                    )
                )
        self._read_plan: _RowReadPlan | None = None

    def apply(
        self, table: Table, before: Iterable[bytes], after: Iterable[bytes], reader: CachedRowReader
    ) -> list[RowRewrites] | None:
        """Return the changes of the state and of the view for changed rows, before and after (an empty row is none).

        None if the caller must fall back: a result does not fit, a row is damaged, or it was written before a column
        was added.
        """
        cached: dict[Any, _CachedGroup] = reader.carried_state.pop(self._view_table.id, {})
        try:
            deltas = self._group_deltas(self._plan_reading(table), before, after)
            loaded = self._load_groups(table, [group for group in deltas if group not in cached], reader)
            changed = self._apply_deltas(
                [(cached.get(group) or loaded[group], delta) for group, delta in deltas.items()]
            )
        except (_NotSupported, OlderRowLayout, OverflowError, struct.error):
            return None
        if len(cached) + len(loaded) > _MAX_CACHED_GROUPS:
            cached.clear()
        cached |= {group: entry for group, entry in loaded.items() if entry.byte_size <= _MAX_CACHED_BYTES}
        reader.carried_state[self._view_table.id] = cached
        return changed

    def _plan_reading(self, table: Table) -> _RowReadPlan:
        """Return the plan for a table; it is computed once for a version of the table."""
        if self._read_plan is None or self._read_plan.table is not table:
            compared = [str(condition.args[0].value) for condition in self._conditions]
            reader = RowFieldReader(
                table, [*self._keys, *(source for _, source, _ in self._accumulator_inputs), *compared]
            )
            positions = reader.positions
            compares_strings = any(condition.args[0].type == types.STRING for condition in self._conditions)
            read_group_fast = None if compares_strings or len(self._keys) > 1 else reader.column_getter(self._keys[0])
            read_group = itemgetter(*(positions[name] for name in self._keys))
            conditions = [_compile_condition(condition, positions) for condition in self._conditions]
            inputs = [
                (index, positions[source], kind) for index, (kind, source, _) in enumerate(self._accumulator_inputs, 1)
            ]
            count_fields = [(index, source) for index, source, kind in inputs if kind == "count"]
            sum_fields = [(index, source, kind == "double") for index, source, kind in inputs if kind != "count"]
            self._read_plan = _RowReadPlan(
                table, reader, read_group, read_group_fast, conditions, count_fields, sum_fields
            )
        return self._read_plan

    def _group_deltas(
        self, plan: _RowReadPlan, before: Iterable[bytes], after: Iterable[bytes]
    ) -> dict[Any, list[int]]:
        """Return what the rows add to the sums of each of their groups."""
        read, unpack, header_without_nulls = plan.reader.read, plan.reader.unpack, plan.reader.header_without_nulls
        read_group, read_group_fast, conditions, count_fields, sum_fields = (
            plan.read_group,
            plan.read_group_fast,
            plan.conditions,
            plan.count_fields,
            plan.sum_fields,
        )
        zeros = [0] * (1 + len(self._accumulator_inputs))
        deltas: dict[Any, list[int]] = {}
        for weight, rows in ((-1, before), (1, after)):
            for row in filter(None, rows):
                fields: FieldValues = unpack(row) if read_group_fast is not None else _UNREAD_FIELDS
                is_fast = fields[0] == header_without_nulls
                if not is_fast:
                    fields = read(row)
                if conditions and not all(test(fields) for test in conditions):
                    continue
                group = read_group_fast(row, fields) if is_fast and read_group_fast is not None else read_group(fields)
                delta = deltas.get(group)
                if delta is None:
                    delta = deltas[group] = zeros.copy()
                delta[0] += weight
                for index, source in count_fields:
                    if fields[source] is not None:
                        delta[index] += weight
                for index, source, is_double in sum_fields:
                    if (value := fields[source]) is not None:
                        delta[index] += weight * value
                        if is_double and not -_MAX_EXACT_DOUBLE <= value <= _MAX_EXACT_DOUBLE:
                            raise _NotSupported
        return deltas

    def _load_groups(self, table: Table, groups: Sequence[Any], reader: CachedRowReader) -> dict[Any, _CachedGroup]:
        """Return groups as the store has them."""
        if not groups:
            return {}
        kinds = [table.by_name[name.lower()].type for name in self._keys]
        columns = zip(*groups, strict=True) if len(kinds) > 1 else [groups]
        values = [[to_plain_value(kind, slot) for slot in column] for kind, column in zip(kinds, columns, strict=True)]
        group_values = [dict(zip(self._names, row, strict=True)) for row in zip(*values, strict=True)]
        view_values = [{column: row[source] for column, source in self._group_columns} for row in group_values]
        row_pairs = zip(
            self._load_rows(self._state_table, group_values, reader),
            self._load_rows(self._view_table, view_values, reader),
            strict=True,
        )
        return {group: self._build_group(state, view) for group, (state, view) in zip(groups, row_pairs, strict=True)}

    def _load_rows(
        self, table: Table, values: Sequence[Mapping[str, Any]], reader: CachedRowReader
    ) -> Iterable[_DecodedRow]:
        keys = [encode_plain_key(table, row) for row in values]
        for key, stored, row in zip(keys, reader.get_rows(table, keys), values, strict=True):
            decoded = _DecodedRow(table, key, stored, stored or encode_plain_row(table, row))
            # Only the key's NULL bits stay; those of the sums are set when the row is packed.
            decoded.null_bits &= self._key_null_masks[table.id]
            yield decoded

    def _build_group(self, state: _DecodedRow, view: _DecodedRow) -> _CachedGroup:
        sums: list[Any] = (
            state.fields[self._first_sum_field :] if state.stored else [0] * (1 + len(self._accumulator_inputs))
        )
        for index in self._int128_sums if state.stored else ():
            sums[index] = int.from_bytes(sums[index], "little", signed=True)
        return _CachedGroup(state, view, sums)

    def _apply_deltas(self, groups: Sequence[tuple[_CachedGroup, Sequence[int]]]) -> list[RowRewrites]:
        """Add the deltas to the sums of the groups, and return the rewrites of their rows."""
        state_rewrites: RowRewrites = (self._state_table, [], [], [])
        view_rewrites: RowRewrites = (self._view_table, [], [], [])
        pack_state, pack_view = (
            row_layout(t, len(t.physical_columns)).packer.pack for t in (self._state_table, self._view_table)
        )
        for group, delta in groups:
            group.sums = sums = list(map(add, group.sums, delta))
            if sums[0] < 0:
                raise _NotSupported
            row = group.state_row
            row.fields[self._first_sum_field :] = sums
            for index in self._int128_sums:
                row.fields[self._first_sum_field + index] = sums[index].to_bytes(16, "little", signed=True)
            _record_rewrite(pack_state, state_rewrites, row, any(sums))
            row = group.view_row
            for index, is_int128, function, counts, total, minimum, maximum in self._measure_fields:
                value: Any = sums[counts]
                if total is not None:
                    null_bit = 1 << index
                    row.null_bits = row.null_bits & ~null_bit if value else row.null_bits | null_bit
                    value = _sum_value(function, value, sums[total], minimum, maximum) if value else 0
                row.fields[3 + index] = value.to_bytes(16, "little", signed=True) if is_int128 else value
            _record_rewrite(pack_view, view_rewrites, row, sums[0] > 0)
        return [view_rewrites, state_rewrites]


def _record_rewrite(pack: Callable[..., bytes], rewrites: RowRewrites, row: _DecodedRow, is_present: bool) -> None:
    """Append the row's key, its old bytes and its new bytes."""
    _, keys, before, after = rewrites
    keys.append(row.key)
    before.append(row.stored)
    row.stored = row.encode(pack) if is_present else b""
    after.append(row.stored)


def _null_mask(table: Table, names: Sequence[str]) -> int:
    """Return the NULL bits of these columns."""
    columns = row_layout(table, len(table.physical_columns)).names
    return sum(1 << columns.index(name) for name in names)


def _sum_value(function: str, count: int, total: int, minimum: int, maximum: int) -> Any:
    if function == "Average":
        return float(total) / count
    if not minimum <= total <= maximum:
        raise _NotSupported
    return total


def _compile_condition(condition: Expr, field_positions: Mapping[str, int]) -> Callable[[FieldValues], bool]:
    """Return the condition as Spark evaluates it: strings compare by their bytes, and NULL does not pass."""
    column = condition.args[0]
    position = field_positions[str(column.value)]
    if condition.op == "IsNotNull":
        return lambda slots: slots[position] is not None
    compare, literal = COMPARISON_FUNCTIONS[condition.op], condition.args[1].value
    value = str(literal).encode() if column.type == types.STRING else literal
    return lambda slots: slots[position] is not None and compare(slots[position], value)
