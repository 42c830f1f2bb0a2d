"""Facts: what aggregates of different views make of the same rows, so that one keeps them for all.

    v1: sum(x), count(*)   ┐                               ┌─▶ v1: m1, m0
    v2: avg(x), max(y)     ├─▶ one aggregate of the rows ──┼─▶ v2: m2, m3
    v3: sum(x)             ┘   by the same keys            └─▶ v3: m1

A fact is a measure whatever it is called: the function, its argument as each segment over the rows has it, its types.
Two are the same function of the rows if they are equal, so the union of what views want is a set. Groups are a vector
space: a view reads its own coordinates of a group, and what others have beside them is nothing to it.

Groups' values, which Min, Max and DISTINCT need, may be a state as large as the rows. So aggregates that keep some are
one with each other, and those that only add up with each other: who wants a sum waits for no values.

An error must stay one view's. A sum that does not fit its type is not raised by the operator, which others need, but
told in a column beside it, and raised where a view begins that reads the sum. An argument that can fail on a row is
kept apart.
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
    """`exprs`: the argument for each segment over the rows; none of count(*)."""

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
    """What is added up, and by what."""

    keys: tuple[Any, ...]
    source: tuple[Segment, ...]


def aggregation_input_id(source: Sequence[Segment], spec: AggregateSpec) -> str | None:
    """The name of the rows and keys of an aggregate; None if one of its arguments can fail."""
    keys = {k.name for k in spec.keys}
    arguments = {m.argument for m in spec.measures}
    for named in (n for segment in source for n in segment.exprs if n.name not in keys):
        if named.name not in arguments or can_raise(named.expr):
            return None
    bare = (replace(s, exprs=tuple(n for n in s.exprs if n.name in keys)) for s in source)
    return content_id(
        "values" if accumulator_layout(spec).value_arguments else "sums", _AggregationInput(spec.keys, tuple(bare))
    )


def shared_measures(source: Sequence[Segment], spec: AggregateSpec) -> dict[str, SharedMeasure]:
    """Those of an aggregate's measures, by their names."""
    exprs = [{n.name: n.expr for n in segment.exprs} for segment in source]
    return {
        m.name: SharedMeasure(
            m.function,
            () if m.argument is None else tuple(one[m.argument] for one in exprs),
            m.argument_type,
            m.type,
            m.distinct,
        )
        for m in spec.measures
    }


def build_shared_aggregate(
    source: Sequence[Segment], spec: AggregateSpec, shared: Sequence[SharedMeasure]
) -> tuple[tuple[Segment, ...], AggregateSpec]:
    """Segments and spec of an aggregate over the same rows by the same keys, with these measures in their order."""
    keys = {k.name for k in spec.keys}
    arguments = list(dict.fromkeys(fact.exprs for fact in shared if fact.exprs))
    names = {exprs: f"a{i}" for i, exprs in enumerate(arguments)}
    segments = []
    for i, segment in enumerate(source):
        given = [n for n in segment.exprs if n.name in keys]
        segments.append(replace(segment, exprs=(*given, *(Named(names[exprs], exprs[i]) for exprs in arguments))))
    measures = tuple(
        Measure(f"m{i}", f.function, names.get(f.exprs), f.argument_type, f.type, f.distinct)
        for i, f in enumerate(shared)
    )
    return tuple(segments), AggregateSpec(spec.keys, measures)


# -- what does not fit ------------------------------------------------------------------------------------------------


def can_overflow(measure: Measure) -> bool:
    """Whether a group's value may not fit its type."""
    if measure.function == "Sum":
        return not types.is_float(measure.type)
    return measure.function == "Average" and types.decimal_digits(measure.type) is not None


def overflow_column(name: str) -> str:
    """The column that says where a measure does not fit."""
    return f"{name}{_OVERFLOW_SUFFIX}"


def overflow_text(measure: Measure) -> str:
    return f"ARITHMETIC_OVERFLOW: A group's {measure.function.lower()} does not fit {measure.type.sql}."


def overflow_checks(measures: Sequence[Measure]) -> tuple[Expr, ...]:
    """The condition with which a view begins that reads these: an error where one does not fit, whether or not the view
    would keep the group. None if all do."""
    fits = Expr("literal", types.BOOLEAN, value=True, nullable=False)
    told = [m for m in measures if can_overflow(m)]
    for measure in reversed(told):
        said = Expr("literal", types.STRING, value=overflow_text(measure), nullable=False)
        over = column(overflow_column(measure.name), types.BOOLEAN, False)
        fits = Expr("If", types.BOOLEAN, (over, Expr("RaiseError", types.VOID, (said,)), fits), nullable=False)
    return (fits,) if told else ()


def without_overflow_checks(spec: AggregateSpec, segment: Segment) -> Segment:
    """A segment over an aggregate for several views without that condition."""
    flags = {overflow_column(m.name) for m in spec.measures}
    return replace(segment, where=tuple(c for c in segment.where if not c.columns() & flags))
