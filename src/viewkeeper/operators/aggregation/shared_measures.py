"""Shared measures: one aggregate computes the measures of several views over the same rows by the same keys.

    v1: sum(x), count(*)   ┐                               ┌─▶ v1: m1, m0
    v2: avg(x), max(y)     ├─▶ one aggregate of the rows ──┼─▶ v2: m2, m3
    v3: sum(x)             ┘   by the same keys            └─▶ v3: m1

A shared measure is identified by its function, its argument as an expression of each segment over the rows, and its
types, not by its name. Equal measures are computed once, so the state has the union of what the views need. Groups are
a vector space: a view reads its own coordinates of a group, and the others do not affect it.

The values of groups, which Min, Max and DISTINCT need, may be a state as large as the rows. So aggregates that keep
values are shared with each other only, and so are aggregates that only add up: a view with sums does not wait for
values.

An error must not affect other views. A sum that does not fit its type is not raised by the shared operator but flagged
in a column beside it, and raised by the segment of each view that reads the sum. An aggregate with an argument that can
fail on a row is not shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from viewkeeper.expressions import can_raise
from viewkeeper.expressions.tree import Expr, Named, column
from viewkeeper.model import types
from viewkeeper.model.types import Type
from viewkeeper.operators.aggregation.spec import AggregateSpec, Measure, accumulator_layout
from viewkeeper.operators.operator import content_id
from viewkeeper.operators.segment import Segment

_OVERFLOW_SUFFIX = "_beyond"


@dataclass(frozen=True)
class SharedMeasure:
    """`exprs`: the argument in each segment over the rows; empty for count(*)."""

    function: str
    exprs: tuple[Expr, ...]
    argument_type: Type | None
    type: Type
    distinct: bool

    def to_json(self) -> list[Any]:
        kind = None if self.argument_type is None else str(self.argument_type)
        return [self.function, [e.to_json() for e in self.exprs], kind, str(self.type), self.distinct]

    @staticmethod
    def from_json(data: Sequence[Any]) -> SharedMeasure:
        function, exprs, kind, type_, distinct = data
        argument = None if kind is None else types.parse_type(kind)
        return SharedMeasure(
            function, tuple(Expr.from_json(e) for e in exprs), argument, types.parse_type(type_), distinct
        )


@dataclass(frozen=True)
class _AggregationInput:
    """The rows that are aggregated, and the keys."""

    keys: tuple[Any, ...]
    source: tuple[Segment, ...]


def aggregation_input_id(source: Sequence[Segment], spec: AggregateSpec) -> str | None:
    """Return the id of an aggregate's rows and keys; None if one of its arguments can fail."""
    keys = {k.name for k in spec.keys}
    arguments = {m.argument for m in spec.measures}
    for named in (n for segment in source for n in segment.exprs if n.name not in keys):
        if named.name not in arguments or can_raise(named.expr):
            return None
    key_segments = (replace(s, exprs=tuple(n for n in s.exprs if n.name in keys)) for s in source)
    return content_id(
        "values" if accumulator_layout(spec).value_arguments else "sums",
        _AggregationInput(spec.keys, tuple(key_segments)),
    )


def shared_measures(source: Sequence[Segment], spec: AggregateSpec) -> dict[str, SharedMeasure]:
    """Return the shared measures of an aggregate, by name."""
    exprs = [{n.name: n.expr for n in segment.exprs} for segment in source]
    return {
        m.name: SharedMeasure(
            m.function,
            () if m.argument is None else tuple(segment_exprs[m.argument] for segment_exprs in exprs),
            m.argument_type,
            m.type,
            m.distinct,
        )
        for m in spec.measures
    }


def build_shared_aggregate(
    source: Sequence[Segment], spec: AggregateSpec, shared: Sequence[SharedMeasure]
) -> tuple[tuple[Segment, ...], AggregateSpec]:
    """Return segments and spec of an aggregate over the same rows by the same keys, with these measures in this
    order."""
    keys = {k.name for k in spec.keys}
    arguments = list(dict.fromkeys(measure.exprs for measure in shared if measure.exprs))
    names = {exprs: f"a{i}" for i, exprs in enumerate(arguments)}
    segments = []
    for i, segment in enumerate(source):
        key_exprs = [n for n in segment.exprs if n.name in keys]
        segments.append(replace(segment, exprs=(*key_exprs, *(Named(names[exprs], exprs[i]) for exprs in arguments))))
    measures = tuple(
        Measure(
            f"m{i}", measure.function, names.get(measure.exprs), measure.argument_type, measure.type, measure.distinct
        )
        for i, measure in enumerate(shared)
    )
    return tuple(segments), AggregateSpec(spec.keys, measures)


# -- overflow ----------------------------------------------------------------------------------------------------------


def can_overflow(measure: Measure) -> bool:
    """Return whether a group's value may not fit the measure's type."""
    if measure.function == "Sum":
        return not types.is_float(measure.type)
    return measure.function == "Average" and types.decimal_digits(measure.type) is not None


def overflow_column(name: str) -> str:
    """Return the name of the column that flags where a measure does not fit."""
    return f"{name}{_OVERFLOW_SUFFIX}"


def overflow_text(measure: Measure) -> str:
    return f"ARITHMETIC_OVERFLOW: A group's {measure.function.lower()} does not fit {measure.type.sql}."


def overflow_checks(measures: Sequence[Measure]) -> tuple[Expr, ...]:
    """Return the first condition of a segment that reads these measures: it raises an error where one does not fit,
    whether or not the view keeps the group. Empty if none can overflow."""
    fits = Expr("literal", types.BOOLEAN, value=True, nullable=False)
    checked = [m for m in measures if can_overflow(m)]
    for measure in reversed(checked):
        message = Expr("literal", types.STRING, value=overflow_text(measure), nullable=False)
        is_overflow = column(overflow_column(measure.name), types.BOOLEAN, False)
        fits = Expr(
            "If", types.BOOLEAN, (is_overflow, Expr("RaiseError", types.VOID, (message,)), fits), nullable=False
        )
    return (fits,) if checked else ()


def without_overflow_checks(spec: AggregateSpec, segment: Segment) -> Segment:
    """Return a segment over a shared aggregate without that condition."""
    flags = {overflow_column(m.name) for m in spec.measures}
    return replace(segment, where=tuple(c for c in segment.where if not c.columns() & flags))
