"""Many rows for the step of `few`: the same law on Arrow's columns, without a statement.

    rows with weights ──filter──▶ by group: Σ of weights and of weighted values ──▶ + what lies there ──▶ group's rows

Counts and sums are linear, so rows that went and rows that came need not cancel first: a weight is a factor. It is done
for groups by plain columns, with counts, sums and averages that fit 64 bits; anything else, and whatever would be an
error, is left to others: None.
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
"""For each accumulator its kind, the column that it is fed by, and its name."""

EncodedChanges = tuple[Table, pa.BinaryArray, pa.BinaryArray]
"""Keys of a table, and their rows from now on; an empty one goes."""
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
        """The rows of these encoded keys, each once, in any order."""


@dataclass(frozen=True)
class VectorAggregate:
    """An aggregate whose groups are plain columns, and the end of a view that shows them."""

    spec: AggregateSpec
    conditions: Sequence[Expr]
    """That rows must pass."""
    keys: Sequence[str]
    """The columns of the rows that are the group."""
    accumulator_inputs: AccumulatorInputs
    measure_sources: Sequence[tuple[str, str, str, str]]
    """For each measure its name, its function, and the accumulators that it is read from: a count, and a sum."""
    state_table: Table
    view_table: Table
    view_columns: Sequence[str]
    """For each column of the view that of the group's row."""

    def apply(self, delta: pa.Table, reader: KeyReader) -> list[EncodedChanges] | None:
        """What rows with weights do to the state and to the view."""
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
        lies = reader.find(self.state_table, encoded)
        place = pc.index_in(encoded, value_set=encode_keys(self.state_table, lies))
        old = {n: pc.fill_null(lies[n].cast(pa.int64()).combine_chunks().take(place), 0) for n in sums}
        new = {n: pc.add_checked(old[n], added[n].combine_chunks()) for n in sums}
        rows = {name: added[name].combine_chunks() for name in names}
        there, stays = np.asarray(pc.is_valid(place)), np.zeros(len(place), np.bool_)
        for column in new.values():
            stays |= np.asarray(column) != 0
        count, before = np.asarray(new["¤n"]), np.asarray(old["¤n"])
        if (count < 0).any():
            return None
        state = pa.table({**rows, **new}).select(self.state_table.arrow.names).cast(self.state_table.arrow)
        shown = self._view_rows({**rows, **new})
        named = encoded if self._has_group_key else encode_keys(self.view_table, shown)
        return [
            _encode_changes(self.view_table, named, shown, count > 0, before > 0),
            _encode_changes(self.state_table, encoded, state, stays, there),
        ]

    @cached_property
    def _has_group_key(self) -> bool:
        """Whether the view's rows have the keys of their groups, byte for byte."""
        columns = {c.name: source for c, source in zip(self.view_table.columns, self.view_columns, strict=True)}
        return [replace(k, column=columns[k.column]) for k in self.view_table.key] == list(self.state_table.key)

    def _group_deltas(self, delta: pa.Table) -> pa.Table | None:
        """What the rows add to each group that they are in."""
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
            least, most = pc.min_max(values).values()
            largest = max(abs(least.as_py() or 0), abs(most.as_py() or 0))
            if largest * delta.num_rows >= _MAX_SAFE_SUM or (kind == "double" and largest > _MAX_EXACT_DOUBLE):
                return None
            product = pc.multiply(values, weights)
            columns[name] = pc.fill_null(product, 0) if column.null_count else product
        names = [k.name for k in self.spec.keys]
        grouped = {name: delta[key] for name, key in zip(names, self.keys, strict=True)}
        rows = pa.table({**grouped, **columns}).group_by(names, use_threads=False)
        found = rows.aggregate([(name, "sum") for name in columns])
        return found.rename_columns([*names, *columns])

    def _view_rows(self, columns: Mapping[str, pa.Array]) -> pa.Table:
        """The groups' rows, as the view has them."""
        made = dict(columns)
        for name, function, counts, sums in self.measure_sources:
            if not sums:
                made[name] = columns[counts]
                continue
            none = pc.equal(columns[counts], 0)
            total = columns[sums]
            if function == "Average":
                divided = np.asarray(total).astype(np.float64) / np.maximum(np.asarray(columns[counts]), 1)
                made[name] = pc.if_else(none, None, pa.array(divided))
            else:
                made[name] = pc.if_else(none, None, total)
        fields = zip(self.view_table.arrow, self.view_columns, strict=True)
        return pa.table([_cast_sum(made[source], field.type) for field, source in fields], schema=self.view_table.arrow)


def _encode_changes(
    table: Table, keys: pa.BinaryArray, rows: pa.Table, is_present: Bools, was_present: Bools
) -> EncodedChanges:
    """The rows that are there `now`, and those that only were, empty."""
    after, touched = encode_rows(table, rows), is_present | was_present
    if not is_present.all():
        after = pc.if_else(pa.array(is_present), after, pa.scalar(b"", pa.binary()))
    if not touched.all():
        keys, after = keys.filter(pa.array(touched)), after.filter(pa.array(touched))
    return table, keys, after


def _cast_sum(column: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """A sum in the type that it has: a decimal's integers get their scale back. ArrowInvalid if it does not fit."""
    if column.type == arrow_type:
        return column
    if pa.types.is_decimal(arrow_type) and pa.types.is_integer(column.type):
        least, most = (end.as_py() or 0 for end in pc.min_max(column).values())
        if max(-least, most) >= 10**arrow_type.precision:
            raise pa.ArrowInvalid(f"{least} to {most} has more than {arrow_type.precision} digits.")
        return rescale_decimals(column.cast(pa.decimal128(19, 0)), arrow_type)
    return column.cast(arrow_type)


def _evaluate_condition(condition: Expr, rows: pa.Table) -> Any:
    column = rows[str(condition.args[0].value)]
    if condition.op == "IsNotNull":
        return pc.is_valid(column)
    return _COMPARISON_FUNCTIONS[condition.op](column, pa.scalar(condition.args[1].value, column.type))
