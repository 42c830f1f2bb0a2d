"""Vectorised aggregation of a write call's rows, for synchronous views: Arrow kernels instead of DuckDB statements.

    rows with weights ──filter──▶ by group: Σ of weights and of weighted values ──▶ + stored sums ──▶ the group's rows

The law is that of `kinds.aggregate`; `row_groups` does the same for smaller writes. Counts and sums are linear, so old
and new rows need no consolidation first: a weight is a factor. Supported are groups by plain columns, with counts, sums
and averages that fit 64 bits. For anything else, and for whatever would raise an error, `apply` returns None, and the
caller falls back to the operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.expressions.tree import Expr
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.encoding.rows import encode_rows
from viewkeeper.model.schema import WEIGHT, Table
from viewkeeper.operators.aggregation.spec import AggregateSpec, rescale_decimals, unscale_decimals

AccumulatorInputs = Sequence[tuple[str, str, str]]
"""For each accumulator its kind, its input column, and its name."""

EncodedChanges = tuple[Table, pa.BinaryArray, pa.BinaryArray]
"""Keys of a table and their new rows; an empty row deletes the key."""
Bools = npt.NDArray[np.bool_]

_MAX_SAFE_SUM, _MAX_EXACT_DOUBLE = 1 << 62, 1 << 53
_COMPARISON_FUNCTIONS = {
    "EqualTo": pc.equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
}


class KeyReader(Protocol):
    def find(self, table: Table, keys: pa.BinaryArray) -> pa.Table:
        """Return the rows of these encoded keys, each once, in any order."""


@dataclass(frozen=True)
class VectorAggregate:
    """An aggregate by plain columns, and the table of a view that shows its groups."""

    spec: AggregateSpec
    conditions: Sequence[Expr]
    """Conditions on input rows."""
    keys: Sequence[str]
    """The input columns that are the group's key."""
    accumulator_inputs: AccumulatorInputs
    measure_sources: Sequence[tuple[str, str, str, str]]
    """For each measure its name, its function, and the accumulators that it is read from: a count and a sum."""
    state_table: Table
    view_table: Table
    view_columns: Sequence[str]
    """For each column of the view the column of the group's row."""

    def apply(self, delta: pa.Table, reader: KeyReader) -> list[EncodedChanges] | None:
        """Return the changes of the state and of the view for weighted rows; None if they are not supported."""
        try:
            return self._apply(delta, reader)
        except pa.ArrowInvalid:  # a sum does not fit
            return None

    def _apply(self, delta: pa.Table, reader: KeyReader) -> list[EncodedChanges] | None:
        added = self._group_deltas(delta)
        if added is None or not added.num_rows:
            return None if added is None else []
        names = [k.name for k in self.spec.keys]
        sums = [name for name in added.column_names if name not in names]
        encoded = encode_keys(self.state_table, added)
        stored = reader.find(self.state_table, encoded)
        stored_index = pc.index_in(encoded, value_set=encode_keys(self.state_table, stored))
        old = {n: pc.fill_null(stored[n].cast(pa.int64()).combine_chunks().take(stored_index), 0) for n in sums}
        new = {n: pc.add_checked(old[n], added[n].combine_chunks()) for n in sums}
        rows = {name: added[name].combine_chunks() for name in names}
        was_stored, is_nonzero = np.asarray(pc.is_valid(stored_index)), np.zeros(len(stored_index), np.bool_)
        for column in new.values():
            is_nonzero |= np.asarray(column) != 0
        count, old_count = np.asarray(new["¤n"]), np.asarray(old["¤n"])
        if (count < 0).any():
            return None
        state = pa.table({**rows, **new}).select(self.state_table.arrow.names).cast(self.state_table.arrow)
        view_rows = self._view_rows({**rows, **new})
        view_keys = encoded if self._has_group_key else encode_keys(self.view_table, view_rows)
        return [
            _encode_changes(self.view_table, view_keys, view_rows, count > 0, old_count > 0),
            _encode_changes(self.state_table, encoded, state, is_nonzero, was_stored),
        ]

    @cached_property
    def _has_group_key(self) -> bool:
        """Whether the keys of the view's rows equal those of the state's rows byte for byte."""
        columns = {c.name: source for c, source in zip(self.view_table.columns, self.view_columns, strict=True)}
        return [replace(k, column=columns[k.column]) for k in self.view_table.key] == list(self.state_table.key)

    def _group_deltas(self, delta: pa.Table) -> pa.Table | None:
        """Return the sums that the rows add to each of their groups; None if they may not fit."""
        for condition in self.conditions:
            delta = delta.filter(pc.fill_null(_evaluate_condition(condition, delta), False))
        weights = delta[WEIGHT]
        columns: dict[str, Any] = {"¤n": weights}
        for kind, source, name in self.accumulator_inputs:
            column = delta[source]
            if kind == "count":
                columns[name] = weights if not column.null_count else pc.if_else(pc.is_valid(column), weights, 0)
                continue
            values = unscale_decimals(column).cast(pa.int64())
            minimum, maximum = pc.min_max(values).values()
            largest = max(abs(minimum.as_py() or 0), abs(maximum.as_py() or 0))
            if largest * delta.num_rows >= _MAX_SAFE_SUM or (kind == "double" and largest > _MAX_EXACT_DOUBLE):
                return None
            product = pc.multiply(values, weights)
            columns[name] = pc.fill_null(product, 0) if column.null_count else product
        names = [k.name for k in self.spec.keys]
        grouped = {name: delta[key] for name, key in zip(names, self.keys, strict=True)}
        rows = pa.table({**grouped, **columns}).group_by(names, use_threads=False)
        sums = rows.aggregate([(name, "sum") for name in columns])
        return sums.rename_columns([*names, *columns])

    def _view_rows(self, columns: Mapping[str, pa.Array]) -> pa.Table:
        """Return the groups' rows as rows of the view."""
        values = dict(columns)
        for name, function, counts, sums in self.measure_sources:
            if not sums:
                values[name] = columns[counts]
                continue
            is_empty = pc.equal(columns[counts], 0)
            total = columns[sums]
            if function == "Average":
                averages = np.asarray(total).astype(np.float64) / np.maximum(np.asarray(columns[counts]), 1)
                values[name] = pc.if_else(is_empty, None, pa.array(averages))
            else:
                values[name] = pc.if_else(is_empty, None, total)
        fields = zip(self.view_table.arrow, self.view_columns, strict=True)
        return pa.table(
            [_cast_sum(values[source], field.type) for field, source in fields], schema=self.view_table.arrow
        )


def _encode_changes(
    table: Table, keys: pa.BinaryArray, rows: pa.Table, is_present: Bools, was_present: Bools
) -> EncodedChanges:
    """Encode the rows that are present now, and an empty row for each that only was present before."""
    after, touched = encode_rows(table, rows), is_present | was_present
    if not is_present.all():
        after = pc.if_else(pa.array(is_present), after, pa.scalar(b"", pa.binary()))
    if not touched.all():
        keys, after = keys.filter(pa.array(touched)), after.filter(pa.array(touched))
    return table, keys, after


def _cast_sum(column: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """Return a sum in its column's type; a decimal's integers get their scale back. Raise ArrowInvalid if it does not
    fit."""
    if column.type == arrow_type:
        return column
    if pa.types.is_decimal(arrow_type) and pa.types.is_integer(column.type):
        minimum, maximum = (end.as_py() or 0 for end in pc.min_max(column).values())
        if max(-minimum, maximum) >= 10**arrow_type.precision:
            raise pa.ArrowInvalid(f"{minimum} to {maximum} has more than {arrow_type.precision} digits.")
        return rescale_decimals(column.cast(pa.decimal128(19, 0)), arrow_type)
    return column.cast(arrow_type)


def _evaluate_condition(condition: Expr, rows: pa.Table) -> Any:
    column = rows[str(condition.args[0].value)]
    if condition.op == "IsNotNull":
        return pc.is_valid(column)
    return _COMPARISON_FUNCTIONS[condition.op](column, pa.scalar(condition.args[1].value, column.type))
