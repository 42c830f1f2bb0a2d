"""Row-at-a-time aggregation for small writes to synchronous views, on Python values.

    rows before −1, rows after +1 ──filter──▶ by group: counts and sums ──▶ state + Δ ──▶ the group's row

For few rows, Python loops are faster than Arrow kernels or a DuckDB statement. The law is that of `kinds.aggregate`,
and the keyed state is byte-identical. Supported are plain columns, comparisons of a column with a constant, and counts,
sums and averages of integers, sums of decimals, minimum and maximum. For anything else, and for whatever would raise an
error, `compile_row_aggregate` or `apply` returns None, and the caller falls back to the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.encoding.keys import encode_keys, encode_plain_key, plain_encoders, successor
from viewkeeper.model.encoding.row_fields import to_decimal
from viewkeeper.model.encoding.rows import decode_plain_row, encode_plain_row
from viewkeeper.model.schema import WEIGHT, Table
from viewkeeper.model.types import Type
from viewkeeper.operators.aggregation.encoded_sums import VectorAggregate
from viewkeeper.operators.aggregation.row_sums import COMPARISON_FUNCTIONS, EncodedRowAggregate
from viewkeeper.operators.aggregation.spec import (
    EXTREME_FUNCTIONS,
    Accumulator,
    AggregateSpec,
    Measure,
    accumulator_layout,
    sum_accumulator,
)
from viewkeeper.operators.segment import Segment
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.key_hash import hash_keys
from viewkeeper.state.run import Arrangement

RowValues = Mapping[str, Any]
RowChange = tuple[Table, bytes, bytes]
"""A table, a key, and the key's new row; an empty row deletes the key."""


class StateRowReader(Protocol):
    """Reads rows of a store by encoded keys, as they were when the write call began."""

    def get_row(self, table: Table, key: bytes, columns: RowValues) -> bytes | None:
        """Return the row of a key whose column values are `columns`, or None."""

    def first_rows(self, table: Table, start: bytes | None, stop: bytes | None, limit: int) -> list[bytes]: ...


RowPredicate = Callable[[RowValues], bool]


@dataclass(frozen=True)
class ColumnSelection:
    """A segment that filters rows and picks columns: pairs of an output name and a source column."""

    predicate: RowPredicate | None
    columns: tuple[tuple[str, str], ...]
    predicate_columns: frozenset[str] = frozenset()
    """The source columns that the predicate compares."""
    conditions: tuple[Expr, ...] = ()
    """The conditions of the predicate."""


def compile_selection(segment: Segment) -> ColumnSelection | None:
    """Return the selection of a segment; None if the segment does more than filter and pick columns."""
    if segment.times or segment.sign < 0 or any(n.expr.op != "column" for n in segment.exprs):
        return None
    conditions = [condition for filter_expr in segment.where for condition in _conjuncts(filter_expr)]
    compiled = [_compile_condition(condition) for condition in conditions]
    if None in compiled:
        return None
    predicates = [test for test in compiled if test is not None]
    predicate = (lambda row: all(test(row) for test in predicates)) if predicates else None
    compared = frozenset(str(condition.args[0].value) for condition in conditions)
    return ColumnSelection(
        predicate, tuple((n.name, str(n.expr.value)) for n in segment.exprs), compared, tuple(conditions)
    )


def _conjuncts(where: Expr) -> list[Expr]:
    return [p for arg in where.args for p in _conjuncts(arg)] if where.op == "And" else [where]


def _compile_condition(expr: Expr) -> RowPredicate | None:
    """Return a comparison that Python evaluates as Spark does, false for NULL; None for other conditions."""
    if expr.op == "IsNotNull" and expr.args[0].op == "column":
        name = str(expr.args[0].value)
        return lambda row: row[name] is not None
    if expr.op not in COMPARISON_FUNCTIONS or [a.op for a in expr.args] != ["column", "literal"]:
        return None
    column, literal = expr.args
    if column.type != literal.type or not (types.is_integer(column.type) or column.type == types.STRING):
        return None
    compare, name, value = COMPARISON_FUNCTIONS[expr.op], str(column.value), literal.value
    if value is None:
        return None
    if column.type == types.STRING:  # compared as bytes, which is Spark's order
        value = value.encode()
        return lambda row: row[name] is not None and compare(row[name].encode(), value)
    return lambda row: row[name] is not None and compare(row[name], value)


@dataclass(frozen=True)
class ViewOutput:
    """The table of a view, and the selection that makes its rows from those of the last operator."""

    table: Table
    selection: ColumnSelection

    @cached_property
    def _sources(self) -> list[tuple[str, str]]:
        named = zip(self.table.columns, self.selection.columns, strict=True)
        return [(column.name, source) for column, (_, source) in named]

    @cached_property
    def identifying_columns(self) -> frozenset[str]:
        """The source columns that a row's key and the predicate need."""
        keyed = {part.column for part in self.table.key}
        return frozenset(source for name, source in self._sources if name in keyed) | self.selection.predicate_columns

    @cached_property
    def _key_encoders(self) -> list[tuple[str, Callable[[Any], bytes]]]:
        sources = dict(self._sources)
        return [(sources[name], encode) for name, encode in plain_encoders(self.table)]

    def _encode_key(self, row: RowValues) -> bytes:
        return b"".join([encode(row.get(source)) for source, encode in self._key_encoders]) or b"\x00"

    def encode_view_keys(self, rows: Iterable[RowValues]) -> list[bytes]:
        """Return the view's keys of those of the rows that pass the predicate."""
        predicate = self.selection.predicate
        return [self._encode_key(row) for row in rows if predicate is None or predicate(row)]

    def encode_view_rows(self, rows: Iterable[RowValues]) -> list[tuple[bytes, bytes]]:
        """Return the view's keys and rows of those of the rows that pass the predicate."""
        predicate, sources = self.selection.predicate, self._sources
        return [
            (self._encode_key(row), encode_plain_row(self.table, {name: row[source] for name, source in sources}))
            for row in rows
            if predicate is None or predicate(row)
        ]


def compile_view_output(table: Table, segments: Sequence[Segment]) -> ViewOutput | None:
    """Return the view's output; None if the last segment does more than filter and pick columns, or the view is a
    bag."""
    selection = compile_selection(segments[0]) if len(segments) == 1 and not table.is_bag else None
    return None if selection is None else ViewOutput(table, selection)


def apply_to_linear_view(
    output: ViewOutput, before: Sequence[RowValues], after: Sequence[RowValues]
) -> list[RowChange]:
    """Return the changes of a view without operators for deleted and inserted rows."""
    rows = {**dict.fromkeys(output.encode_view_keys(before), b""), **dict(output.encode_view_rows(after))}
    return [(output.table, key, row) for key, row in rows.items()]


GroupKey = tuple[Any, ...]
StepResult = tuple[list[RowChange], list[RowValues], list[RowValues]]


class RowAggregate:
    """An aggregate over plain columns, with the tables of its keyed state by slot."""

    def __init__(
        self, spec: AggregateSpec, selection: ColumnSelection, state_tables: Sequence[Sequence[Table]]
    ) -> None:
        self._spec, self._selection, self._predicate = spec, selection, selection.predicate
        source = dict(selection.columns)
        plan = accumulator_layout(spec)
        self._names = [k.name for k in spec.keys]
        self._keys = [source[name] for name in self._names]
        self._vector_table = state_tables[0][0]
        self._accumulator_inputs = [(a.kind, source[a.argument], a.name) for a in plan.plain_accumulators]
        self._value_tables = [
            (a, source[a], tables) for a, tables in zip(plan.value_arguments, state_tables[1:], strict=True)
        ]
        self._measure_sources = [_measure_source(measure) for measure in spec.measures]
        self._zero_sums = dict.fromkeys(("¤n", *(name for _, _, name in self._accumulator_inputs)), 0)

    def apply(
        self,
        before: Sequence[RowValues],
        after: Sequence[RowValues],
        reader: StateRowReader,
        required_columns: frozenset[str],
    ) -> StepResult | None:
        """Return the changes of the state, and the touched groups' rows before and after; None if a result does not
        fit.

        `required_columns`: the columns that the caller needs of the rows before.
        """
        deltas: dict[GroupKey, dict[str, int]] = {}
        value_counts: dict[GroupKey, list[dict[Any, int]]] = {}
        for weight, rows in ((-1, before), (1, after)):
            for row in rows if self._predicate is None else filter(self._predicate, rows):
                self._accumulate(row, weight, deltas, value_counts)
        needs_keys_only = required_columns <= set(self._names)
        changes: list[RowChange] = []
        rows_before: list[RowValues] = []
        rows_after: list[RowValues] = []
        for group, delta in deltas.items():
            group_values = dict(zip(self._names, group, strict=True))
            key = encode_plain_key(self._vector_table, group_values)
            stored = reader.get_row(self._vector_table, key, group_values)
            old = self._zero_sums if stored is None else decode_plain_row(self._vector_table, stored)
            new = {name: old[name] + added for name, added in delta.items()}
            is_kept = not self._names or any(new.values())
            changes.append(
                (
                    self._vector_table,
                    key,
                    encode_plain_row(self._vector_table, {**group_values, **new}) if is_kept else b"",
                )
            )
            extremes: tuple[dict[tuple[str, str], Any], ...] = ({}, {})
            for (argument, _, tables), values in zip(self._value_tables, value_counts[group], strict=True):
                changes += self._update_extremes(argument, tables, group_values, values, reader, extremes)
            for group_rows, sums, side_extremes, exists in (
                (rows_before, old, extremes[0], stored is not None),
                (rows_after, new, extremes[1], True),
            ):
                if sums["¤n"] > 0 or (exists and not self._names):
                    group_row = (
                        group_values
                        if needs_keys_only and sums is old
                        else self._group_row(group_values, sums, side_extremes)
                    )
                    if group_row is None or new["¤n"] < 0:
                        return None
                    group_rows.append(group_row)
        return changes, rows_before, rows_after

    def build_vector_aggregate(self, output: ViewOutput) -> VectorAggregate | None:
        """Return the vectorised aggregation for larger writes, if the view shows the groups unchanged; else None."""
        if not self._is_identity_output(output):
            return None
        measure_sources = [
            (name, function, counts, sums) for name, function, _, counts, sums, *_ in self._measure_sources
        ]
        view_columns = [source for _, source in output.selection.columns]
        inputs = (self._selection.conditions, self._keys, self._accumulator_inputs, measure_sources)
        return VectorAggregate(self._spec, *inputs, self._vector_table, output.table, view_columns)

    def build_encoded_row_aggregate(self, output: ViewOutput) -> EncodedRowAggregate | None:
        """Return the aggregation on encoded rows for small writes, under the same condition; else None."""
        if not self._is_identity_output(output):
            return None
        conditions, view_columns = self._selection.conditions, [source for _, source in output.selection.columns]
        inputs = (self._names, self._keys, conditions, self._accumulator_inputs, self._measure_sources)
        return EncodedRowAggregate(*inputs, self._vector_table, output.table, view_columns)

    def _is_identity_output(self, output: ViewOutput) -> bool:
        """Return whether the view shows all groups unchanged, and the state has counts and sums only."""
        is_plain = not self._value_tables and not output.selection.conditions
        return is_plain and bool(self._names) and output.identifying_columns <= set(self._names)

    def encode_sums_from_runs(
        self, statements: PreparedStatements, state: Arrangement, key: bytes, values: RowValues
    ) -> bytes | None:
        """Return a group's sums in a state of runs, encoded as in the keyed state; None if the group has none."""
        key_table = pa.table({k.name: _single_value_column(k.type, values[k.name]) for k in self._spec.keys})
        rows = state.slice(
            hash_keys(statements, key_table, tuple(self._names)) if self._names else np.zeros(1, np.uint64)
        )
        if rows.num_rows:  # an arrangement without runs has no column types
            rows = rows.filter(pc.equal(encode_keys(self._vector_table, rows), pa.scalar(key, pa.binary())))
        if not rows.num_rows:
            return None
        sums = {
            name: sum(map(int, rows[name].to_pylist()))
            for name in ("¤n", *(name for _, _, name in self._accumulator_inputs))
        }
        return encode_plain_row(self._vector_table, {**values, **sums})

    def _accumulate(
        self,
        row: RowValues,
        weight: int,
        deltas: dict[GroupKey, dict[str, int]],
        value_counts: dict[GroupKey, list[dict[Any, int]]],
    ) -> None:
        group = tuple([row[k] for k in self._keys])
        delta = deltas.get(group)
        if delta is None:
            delta = deltas[group] = dict(self._zero_sums)
            value_counts[group] = [{} for _ in self._value_tables]
        delta["¤n"] += weight
        for kind, source, name in self._accumulator_inputs:
            value = row[source]
            if value is not None:
                delta[name] += weight * (1 if kind == "count" else int(float(value)) if kind == "double" else value)
        for (_, source, _), values in zip(self._value_tables, value_counts[group], strict=True):
            value = row[source]
            if value is not None:
                values[value] = values.get(value, 0) + weight

    def _update_extremes(
        self,
        argument: str,
        tables: Sequence[Table],
        group_values: RowValues,
        values: Mapping[Any, int],
        reader: StateRowReader,
        extremes: tuple[dict[tuple[str, str], Any], ...],
    ) -> list[RowChange]:
        """Return the changes of a group's values; add the minimum and maximum before and after to `extremes`."""
        changes: list[RowChange] = []
        new_counts: dict[Any, int] = {}
        for value, weight in values.items():
            row = {**group_values, argument: value}
            stored = reader.get_row(tables[0], encode_plain_key(tables[0], row), row)
            new_counts[value] = weight + (0 if stored is None else decode_plain_row(tables[0], stored)[WEIGHT])
            for table in tables:
                after = encode_plain_row(table, {**row, WEIGHT: new_counts[value]}) if new_counts[value] else b""
                changes.append((table, encode_plain_key(table, row), after))
        for table in tables:
            function = "Max" if table.key[-1].descending else "Min"
            start = encode_plain_key(table, group_values, len(self._names)) if self._names else None
            stop = None if start is None else successor(start)
            rows = reader.first_rows(table, start, stop, len(values) + 1)
            stored_values = [decode_plain_row(table, row)[argument] for row in rows]
            candidates = [v for v in stored_values if new_counts.get(v, 1) > 0] + [
                v for v, count in new_counts.items() if count > 0
            ]
            best = max if function == "Max" else min
            extremes[0][function, argument] = stored_values[0] if stored_values else None
            extremes[1][function, argument] = best(candidates, default=None)
        return changes

    def _group_row(
        self, group_values: RowValues, group_sums: Mapping[str, int], extremes: Mapping[tuple[str, str], Any]
    ) -> RowValues | None:
        """Return the row of a group; None if a sum does not fit."""
        row = dict(group_values)
        for name, function, argument, counts, sums, minimum, maximum in self._measure_sources:
            if function in EXTREME_FUNCTIONS:
                row[name] = extremes[function, argument]
            elif not sums:
                row[name] = group_sums[counts]
            else:
                count, total = group_sums[counts], group_sums[sums]
                if function == "Sum" and not minimum <= total <= maximum:
                    return None
                row[name] = None if not count else total if function == "Sum" else float(total) / count
        return row


def _measure_source(measure: Measure) -> tuple[str, str, str, str, str, int, int]:
    """Return a measure's name, function, argument, its count and sum accumulators, and the smallest and largest sum
    that fits."""
    argument, function = measure.argument, measure.function
    if argument is None:
        return measure.name, function, "", "¤n", "", 0, 0
    is_sum = function in ("Sum", "Average")
    digits = types.decimal_digits(measure.type)
    maximum = 10 ** digits[0] - 1 if digits else (1 << 63) - 1
    sums = sum_accumulator(measure).name if is_sum else ""
    return measure.name, function, argument, Accumulator("count", argument).name, sums, -maximum - (not digits), maximum


def compile_row_aggregate(
    spec: AggregateSpec, segments: Sequence[Segment], state_tables: Sequence[Sequence[Table]]
) -> RowAggregate | None:
    """Return the row-at-a-time aggregation; None if the aggregate has keys, measures or inputs that it does not
    support."""
    selection = compile_selection(segments[0]) if len(segments) == 1 else None
    plan = accumulator_layout(spec)
    is_additive = not plan.distinct_arguments and all(a.kind in ("count", "sum", "double") for a in plan.accumulators)
    is_supported = all(_is_supported(m) for m in spec.measures) and not any(types.is_float(k.type) for k in spec.keys)
    return (
        RowAggregate(spec, selection, state_tables) if selection is not None and is_additive and is_supported else None
    )


def _single_value_column(type_: Type, value: Any) -> pa.Array:
    """Return one plain value as a column."""
    arrow = types.arrow(type_)
    if pa.types.is_decimal(arrow):
        return pa.array([None if value is None else to_decimal(value, arrow.scale)], arrow)
    if pa.types.is_date32(arrow):
        return pa.array([value], pa.int32()).cast(arrow)
    return pa.array([value], pa.int64()).cast(arrow) if pa.types.is_timestamp(arrow) else pa.array([value], arrow)


def _is_supported(measure: Measure) -> bool:
    kind = measure.argument_type
    if measure.function == "Average":
        return kind is not None and types.is_integer(kind)
    is_unsupported_extreme = measure.function in EXTREME_FUNCTIONS and kind in (
        types.STRING,
        types.BINARY,
        types.BOOLEAN,
    )
    return kind is None or not (types.is_float(kind) or is_unsupported_extreme)
