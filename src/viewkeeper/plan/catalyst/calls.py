"""Aggregates and windows: the nodes that call functions over several rows.

Catalyst's Aggregate mixes three things: grouping expressions, aggregate calls, and arithmetic over both. Here they are
apart: keys and calls make the Aggregate, the arithmetic is a projection above it, in which an expression that equals a
grouping expression is that key's column.

Group keys and DISTINCT arguments of floating type are normalised (−0.0 is 0.0, one NaN), as Spark does when it runs.
A window call's `value` starts with its frame: `("frame", (kind, lower, upper))`, kind "rows" or "range", bounds
"unbounded preceding", "current row", "unbounded following", or an expression, negative for PRECEDING.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from viewkeeper.model import types
from viewkeeper.plan import functions, nodes
from viewkeeper.plan.catalyst.distincts import together
from viewkeeper.plan.catalyst.expressions import (
    CALL_FIELDS,
    Scope,
    field_value,
    internal_value,
    scala_name,
    sql_name,
)
from viewkeeper.plan.catalyst.relation import Ids, Reader, Relation, reference
from viewkeeper.plan.catalyst.scalars import SUBQUERY, Scalars
from viewkeeper.plan.catalyst.tree import RawExpr, RawNode
from viewkeeper.plan.nodes import Call, Expr, Named, Node, Order

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

    def named(parts: tuple[Any, ...]) -> Expr:
        if parts not in calls:
            calls[parts] = Call(reader.fresh(), *parts)
        return reference(calls[parts].column)

    def special(e: RawExpr) -> Expr | None:
        if e.op == "AggregateExpression" and e.args[0].op == "PivotFirst":
            items = tuple(named(parts) for parts in _pivot(inner, e.args[0]))
            return Expr("CreateArray", e.type, items, None, False)
        if e.op == "AggregateExpression":
            return named(_call(inner, e))
        if e.op in ("Alias", "Literal") or any(a.op in ("AggregateExpression", SUBQUERY) for a in e.walk()):
            return None
        key = keys.get(inner.read(e))
        return reference(key.column) if key else None

    scope = above.scope({}, special)
    results = [(e.id, scope.read(e)) for e in raw.exprs.get("aggregateExpressions", [])]
    node = together(nodes.Aggregate(below.joined(child.node), tuple(keys.values()), tuple(calls.values())))
    grouped = Relation(above.joined(node), (*(None for _ in node.columns), *above.ids))
    return reader.projected(grouped, results) if results else grouped


def read_window(reader: Reader, raw: RawNode) -> Relation:
    child = reader.read(raw.children[0])
    scalars = Scalars(reader, refuse="in a window function")
    scope = scalars.scope(child.columns)
    calls, ids = [], []
    for alias in raw.exprs["windowExpressions"]:
        if alias.op == "AttributeReference":
            continue  # Spark lists columns of the input that a correlated subquery is joined by; the input has them
        function, definition = alias.args[0].args
        name = reader.fresh()
        calls.append(_window_call(scope, name, function, definition.args[-1]))
        ids.append(alias.id)
    partition = tuple(scope.read(e) for e in raw.exprs.get("partitionSpec", []))
    order = tuple(scope.order(o) for o in raw.exprs.get("orderSpec", []))
    node, ids_below = child.node, child.ids
    if not order and all(c.function == "RowNumber" for c in calls):
        node, ids_below, order = _in_order(child)
    return Relation(nodes.Window(node, partition, order, tuple(calls)), (*ids_below, *ids))


def _in_order(child: Relation) -> tuple[Node, Ids, tuple[Order, ...]]:
    """The order of a sorted input as a window's own.

    Spark turns `ORDER BY … LIMIT n` of a correlated subquery into row numbers. Where a projection stands between the
    two it leaves the window without an order, and counts on rows arriving as sorted.
    """
    node = child.node
    if isinstance(node, nodes.Sort):
        return node.child, child.ids, node.order
    if isinstance(node, nodes.Project) and isinstance(node.child, nodes.Sort):
        below = node.child
        missing = sorted({c for o in below.order for c in o.expr.columns()} - {n.name for n in node.exprs})
        known = {c.name: c for c in below.columns}
        extra = tuple(Named(name, reference(known[name])) for name in missing)
        return nodes.Project(below.child, (*node.exprs, *extra)), (*child.ids, *(None for _ in extra)), below.order
    return node, child.ids, ()


def _window_call(scope: Scope, name: str, function: RawExpr, frame: RawExpr) -> Call:
    kind = {"RowFrame": "rows", "RangeFrame": "range"}[scala_name(frame.fields["frameType"])]
    bounds = tuple(_BOUNDS[b.op] if b.op in _BOUNDS else scope.read(b) for b in frame.args)
    framed = ("frame", (kind, *bounds))
    if function.op == "AggregateExpression":
        op, args, type_, distinct, condition, value, nullable = _call(scope, function)
    else:
        if not functions.is_known(function.op):
            raise functions.refused(sql_name(function))
        args = () if function.op in _RANKS else tuple(scope.read(a) for a in function.args)
        op, type_, distinct, condition, nullable = function.op, function.type, False, None, function.nullable
        value = _parameters(function)
    return Call(name, op, args, type_, distinct, condition, (framed, *(value or ())), nullable)


def _call(scope: Scope, raw: RawExpr) -> tuple[Any, ...]:
    """The fields of a Call but for its name, from an AggregateExpression."""
    function, *filters = raw.args
    if not functions.is_known(function.op):
        raise functions.refused(sql_name(function))
    distinct = bool(raw.fields["isDistinct"])
    orders = [scope.order(a) for a in function.args if a.op == "SortOrder"]  # WITHIN GROUP (ORDER BY …)
    args = (*(scope.read(a) for a in function.args if a.op != "SortOrder"), *(o.expr for o in orders))
    if distinct:
        args = tuple(normalised(a) for a in args)
    condition = scope.read(filters[0]) if filters else None
    ways = [("DESC" if o.descending else "ASC") + f" NULLS {'LAST' if o.nulls_last else 'FIRST'}" for o in orders]
    value = (*(_parameters(function) or ()), *([("order", ", ".join(ways))] if ways else [])) or None
    return (function.op, args, raw.type, distinct, condition, value, raw.nullable)


def _pivot(scope: Scope, function: RawExpr) -> Iterator[tuple[Any, ...]]:
    """PIVOT: the value of the group's one row for each of the listed values, which its maximum is."""
    pivot, value = (scope.read(a) for a in function.args)
    listed = function.live.pivotColumnValues()
    for place in range(listed.length()):
        wanted = Expr("literal", pivot.type, value=internal_value(listed.apply(place), pivot.type))
        same = Expr("EqualNullSafe", types.BOOLEAN, (pivot, wanted), None, False)
        yield ("Max", (value,), value.type, False, same, None, True)


def _parameters(function: RawExpr) -> tuple[tuple[str, Any], ...] | None:
    flags = [name for name, value in function.fields.items() if isinstance(value, bool)]
    names = dict.fromkeys((*CALL_FIELDS.get(function.op, ()), *flags))
    return tuple((name, field_value(function, name)) for name in names) or None


def normalised(expr: Expr) -> Expr:
    """Keys compare by value: all NaN are one, and −0.0 is 0.0."""
    if not types.is_float(expr.type) or expr.op in ("NormalizeNaNAndZero", "literal"):
        return expr
    return Expr("NormalizeNaNAndZero", expr.type, (expr,), None, expr.nullable)
