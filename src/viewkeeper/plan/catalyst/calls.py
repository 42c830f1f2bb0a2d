"""Aggregates and windows: the nodes that call functions over several rows.

Catalyst's Aggregate mixes three things: grouping expressions, aggregate calls, and arithmetic over both. Here they are
apart: keys and calls make the Aggregate, the arithmetic is a projection above it, in which an expression that equals a
grouping expression is that key's column.

Group keys and DISTINCT arguments of floating type are normalised (−0.0 is 0.0, one NaN), as Spark does when it runs.
A window call's `value` starts with its frame: `("frame", (kind, lower, upper))`, kind "rows" or "range", bounds
"unbounded preceding", "current row", "unbounded following", or an expression, negative for PRECEDING.
"""

from __future__ import annotations

from typing import Any

from viewkeeper.model import types
from viewkeeper.plan import nodes
from viewkeeper.plan.catalyst.expressions import CALL_FIELDS, Scope, field_value, scala_name
from viewkeeper.plan.catalyst.relation import Reader, Relation, reference
from viewkeeper.plan.catalyst.scalars import SUBQUERY, Scalars
from viewkeeper.plan.catalyst.tree import RawExpr, RawNode
from viewkeeper.plan.nodes import Call, Expr, Named

_BOUNDS = {
    "UnboundedPreceding$": "unbounded preceding",
    "UnboundedFollowing$": "unbounded following",
    "CurrentRow$": "current row",
}
_RANKS = frozenset({"Rank", "DenseRank", "PercentRank"})
"""Their arguments repeat the window's order."""


def read_aggregate(reader: Reader, raw: RawNode) -> Relation:
    child = reader.read(raw.children[0])
    below, above = Scalars(reader), Scalars(reader)
    inner = below.scope(child.columns)
    keys: dict[Expr, Named] = {}
    for key in raw.exprs.get("groupingExpressions", []):
        expr = inner.read(key)
        if expr not in keys:
            normal = normalised(expr)
            keys[expr] = Named(str(normal.value) if normal.op == "column" else reader.fresh(), normal)
    calls: dict[tuple[Any, ...], Call] = {}

    def special(e: RawExpr) -> Expr | None:
        if e.op == "AggregateExpression":
            parts = _call(inner, e)
            if parts not in calls:
                calls[parts] = Call(reader.fresh(), *parts)
            return reference(calls[parts].column)
        if e.op in ("Alias", "Literal") or any(a.op in ("AggregateExpression", SUBQUERY) for a in e.walk()):
            return None
        key = keys.get(inner.read(e))
        return reference(key.column) if key else None

    scope = above.scope({}, special)
    results = [(e.id, scope.read(e)) for e in raw.exprs.get("aggregateExpressions", [])]
    node = nodes.Aggregate(below.joined(child.node), tuple(keys.values()), tuple(calls.values()))
    grouped = Relation(above.joined(node), (*(None for _ in node.columns), *above.ids))
    return reader.projected(grouped, results) if results else grouped


def read_window(reader: Reader, raw: RawNode) -> Relation:
    child = reader.read(raw.children[0])
    scalars = Scalars(reader, refuse="in a window function")
    scope = scalars.scope(child.columns)
    calls, ids = [], []
    for alias in raw.exprs["windowExpressions"]:
        function, definition = alias.args[0].args
        name = reader.fresh()
        calls.append(_window_call(scope, name, function, definition.args[-1]))
        ids.append(alias.id)
    partition = tuple(scope.read(e) for e in raw.exprs.get("partitionSpec", []))
    order = tuple(scope.order(o) for o in raw.exprs.get("orderSpec", []))
    return Relation(nodes.Window(child.node, partition, order, tuple(calls)), (*child.ids, *ids))


def _window_call(scope: Scope, name: str, function: RawExpr, frame: RawExpr) -> Call:
    kind = {"RowFrame": "rows", "RangeFrame": "range"}[scala_name(frame.fields["frameType"])]
    bounds = tuple(_BOUNDS[b.op] if b.op in _BOUNDS else scope.read(b) for b in frame.args)
    framed = ("frame", (kind, *bounds))
    if function.op == "AggregateExpression":
        op, args, type_, distinct, condition, value, nullable = _call(scope, function)
    else:
        args = () if function.op in _RANKS else tuple(scope.read(a) for a in function.args)
        op, type_, distinct, condition, nullable = function.op, function.type, False, None, function.nullable
        value = _parameters(function)
    return Call(name, op, args, type_, distinct, condition, (framed, *(value or ())), nullable)


def _call(scope: Scope, raw: RawExpr) -> tuple[Any, ...]:
    """The fields of a Call but for its name, from an AggregateExpression."""
    function, *filters = raw.args
    distinct = bool(raw.fields["isDistinct"])
    args = tuple(scope.read(a) for a in function.args)
    if distinct:
        args = tuple(normalised(a) for a in args)
    condition = scope.read(filters[0]) if filters else None
    return (function.op, args, raw.type, distinct, condition, _parameters(function), raw.nullable)


def _parameters(function: RawExpr) -> tuple[tuple[str, Any], ...] | None:
    return tuple((name, field_value(function, name)) for name in CALL_FIELDS.get(function.op, ())) or None


def normalised(expr: Expr) -> Expr:
    """Keys compare by value: all NaN are one, and −0.0 is 0.0."""
    if not types.is_float(expr.type) or expr.op in ("NormalizeNaNAndZero", "literal"):
        return expr
    return Expr("NormalizeNaNAndZero", expr.type, (expr,), None, expr.nullable)
