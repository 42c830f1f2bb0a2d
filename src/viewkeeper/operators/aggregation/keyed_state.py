"""Keyed state of an aggregate: the key of each slot's table, and which columns add up (`operators.keyed_state`)."""

from __future__ import annotations

from viewkeeper.errors import Defect
from viewkeeper.model import types
from viewkeeper.model.schema import WEIGHT, Column, KeyPart
from viewkeeper.operators.aggregation.spec import AggregateSpec, accumulator_layout
from viewkeeper.operators.keyed_state import KeyedStateLayout

_SUM_TYPE = types.decimal(38, 0)
"""Type of a 128-bit sum; below 2^62 rows it has at most 38 digits."""


def aggregate_layouts(spec: AggregateSpec) -> tuple[tuple[KeyedStateLayout, ...], ...]:
    return (vector_layout(spec),), *(
        value_layouts(spec, argument) for argument in accumulator_layout(spec).value_arguments
    )


def vector_layout(spec: AggregateSpec) -> KeyedStateLayout:
    plan = accumulator_layout(spec)
    counts = {"¤n", *(a.name for a in plan.plain_accumulators if a.is_count)}
    sums = tuple(Column(n, types.BIGINT if n in counts else _SUM_TYPE, nullable=False) for n in plan.additive_columns)
    bucket = (Column("¤b", types.INT, nullable=False),) if plan.bucketed_accumulators else ()
    key = (*spec.keys, *bucket)
    by = "group" if plan.bucketed_accumulators else "key"
    parts = tuple(KeyPart(c.name) for c in key)
    return KeyedStateLayout(
        (*key, *sums), parts, len(spec.keys), plan.additive_columns, keep_zero=not spec.keys, access=by
    )


def value_layouts(spec: AggregateSpec, argument: str) -> tuple[KeyedStateLayout, ...]:
    """Return the layouts of an argument's values: for Min and Max, one table in the direction of each extreme."""
    functions = {m.function for m in spec.measures if m.argument == argument}
    ends = [descends for function, descends in (("Min", False), ("Max", True)) if function in functions]
    group = tuple(KeyPart(k.name) for k in spec.keys)
    kind = next(m.argument_type for m in spec.measures if m.argument == argument)
    if kind is None:
        raise Defect(f"{argument} is the argument of no measure.")
    columns = (*spec.keys, Column(argument, kind), Column(WEIGHT, types.BIGINT))
    return tuple(
        KeyedStateLayout(
            columns, (*group, KeyPart(argument, descends)), len(group), (WEIGHT,), access="ends" if ends else "key"
        )
        for descends in ends or [False]
    )
