"""Read aggregates and windows: the plan nodes that call functions over several rows.

Catalyst's Aggregate mixes grouping expressions, aggregate calls, and arithmetic over both. Here they are separated:
keys and calls form the Aggregate, and the arithmetic is a projection above it, in which an expression that equals a
grouping expression is that key's column.

Group keys and DISTINCT arguments of floating type are normalised (−0.0 is 0.0, one NaN), as Spark does at run time. A
window call's `value` starts with its frame: `("frame", (kind, lower, upper))`, kind "rows" or "range", bounds
"unbounded preceding", "current row", "unbounded following", or an expression, negative for PRECEDING.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from viewkeeper.model import types
from viewkeeper.plan import functions
from viewkeeper.plan.catalyst.expressions import (
    CALL_FIELDS,
    Scope,
    conjunction,
    conjuncts,
    field_value,
    literal_value,
    scala_name,
    sql_name,
)
from viewkeeper.plan.catalyst.raw_tree import RawExpr, RawNode
from viewkeeper.plan.catalyst.resolved_node import ExprIds, Reader, ResolvedNode, column_reference
from viewkeeper.plan.catalyst.subqueries import SUBQUERY, ScalarSubqueries
from viewkeeper.plan.compile.branch import substitute
from viewkeeper.plan.logical import nodes
from viewkeeper.plan.logical.nodes import Aggregate, Call, Expand, Expr, Named, Node, Order, Project

# Merging several DISTINCT aggregates into one aggregate.
#
# Spark has no operator for them, so its optimiser (RewriteDistinctAggregates, which cannot be switched off) rewrites
#
#     SELECT f(DISTINCT a), h(DISTINCT b) FILTER (WHERE c), sum(x) GROUP BY k
#
# as
#
#     γ_{k; f(d₁) FILTER (g = 1), h(d₂) FILTER (g = 2 AND m), first(r) FILTER (g = 0)}
#       γ_{k, d₁, d₂, g; r := sum(x), m := max(c)}
#         Expand [k, NULL, NULL, x, NULL, 0], [k, a, NULL, NULL, NULL, 1], [k, NULL, b, NULL, c, 2]
#
# The aggregate operator counts the values of any number of arguments in one pass over a group, whereas this plan
# processes every row once for each DISTINCT. The rewrite is inverted as follows. The rows with number g are the input's
# rows through projection g. The inner aggregate reduces them to the distinct values of the columns that projection g
# does not leave NULL, and `max(c)` is true if a row with that value passed the filter. If no such column is left, there
# is one row for each k, which holds the results of the other aggregates. All of this is checked column by column; a
# plan that does not match stays unchanged.


_DISTINCT_FUNCTIONS = frozenset({"Count", "Sum", "Average", "Min", "Max"})
"""Functions whose DISTINCT the aggregate operator maintains."""


def merge_distincts(node: Aggregate) -> Aggregate:
    """Return the aggregate over the rows themselves, if the node is Spark's rewrite of several DISTINCT aggregates."""
    names, inner = _strip_projections(node.child)
    if not isinstance(inner, Aggregate) or not isinstance(inner.child, Expand):
        return node
    rewritten = _DistinctRewrite(names, inner, inner.child)
    keys = [rewritten.restore_key(k) for k in node.keys]
    calls = [rewritten.restore_call(c, node) for c in node.calls]
    if not calls or any(k is None for k in keys) or any(c is None for c in calls):
        return node
    return Aggregate(inner.child.child, tuple(k for k in keys if k), tuple(c for c in calls if c))


def _strip_projections(node: Node) -> tuple[dict[str, str], Node]:
    """Return the node below projections that only pick and rename, and its column names by their names above."""
    names = {c.name: c.name for c in node.columns}
    while isinstance(node, Project) and all(n.expr.op == "column" for n in node.exprs):
        passed = {n.name: str(n.expr.value) for n in node.exprs}
        names = {outer_name: passed[name] for outer_name, name in names.items()}
        node = node.child
    return names, node


class _DistinctRewrite:
    """The inner aggregate and its Expand: resolves the outer aggregate's columns over the rows below the Expand."""

    def __init__(self, names: Mapping[str, str], inner: Aggregate, expand: Expand) -> None:
        self.names = names
        self.keys = {k.name: k.expr for k in inner.keys}
        self.calls = {c.name: c for c in inner.calls}
        self.projections = [dict(zip((c.name for c in expand.output), p, strict=True)) for p in expand.projections]

    def restore_key(self, key: Named) -> Named | None:
        """Return a key of the outer aggregate over the input, if the key is the same in every projection."""
        resolved = {self._resolve(key.expr, row) for row in self.projections}
        expr = resolved.pop()
        return None if resolved or expr is None else Named(key.name, expr)

    def restore_call(self, call: Call, outer: Aggregate) -> Call | None:
        numbered = [(number, c) for c in conjuncts(call.filter) if (number := self._projection_number(c)) is not None]
        if call.distinct or len(numbered) != 1:
            return None
        (number, condition), grouped = (
            numbered[0],
            {str(self._inner_name(c)) for k in outer.keys for c in k.expr.columns()},
        )
        row = self._find_projection(*number)
        if row is None:
            return None
        other_conditions = [c for c in conjuncts(call.filter) if c is not condition]
        value_columns = {name for name, e in self.keys.items() if not _is_null(e, row)} - grouped - {number[0]}
        if not value_columns and call.function == "First" and not other_conditions and len(call.args) == 1:
            return self._restore_plain_call(call, row)
        return self._restore_distinct_call(call, row, other_conditions, value_columns)

    def _restore_plain_call(self, call: Call, projection: Mapping[str, Expr]) -> Call | None:
        """Restore an aggregate without DISTINCT, which the inner aggregate computes."""
        inner_call = self.calls.get(self._inner_name(str(call.args[0].value)) or "")
        if call.args[0].op != "column" or inner_call is None or inner_call.distinct:
            return None
        condition = None if inner_call.filter is None else substitute(inner_call.filter, projection)
        args = tuple(substitute(a, projection) for a in inner_call.args)
        return replace(inner_call, name=call.name, args=args, filter=condition, nullable=call.nullable)

    def _restore_distinct_call(
        self, call: Call, projection: Mapping[str, Expr], conditions: list[Expr], value_columns: set[str]
    ) -> Call | None:
        if call.function not in _DISTINCT_FUNCTIONS or len(call.args) != 1:
            return None
        if {self._inner_name(c) for c in call.args[0].columns()} != value_columns or len(value_columns) != 1:
            return None
        passed = [self._restore_filter(c, projection) for c in conditions]
        argument = self._resolve(call.args[0], projection)
        if argument is None or any(p is None for p in passed):
            return None
        condition = conjunction(tuple(p for p in passed if p))
        return replace(call, args=(argument,), distinct=True, filter=condition)

    def _restore_filter(self, condition: Expr, projection: Mapping[str, Expr]) -> Expr | None:
        """Restore the FILTER of a DISTINCT aggregate, of which the inner aggregate computes the maximum."""
        inner_call = self.calls.get(self._inner_name(str(condition.value)) or "") if condition.op == "column" else None
        if (
            inner_call is None
            or inner_call.function != "Max"
            or inner_call.filter is not None
            or inner_call.type != types.BOOLEAN
        ):
            return None
        return substitute(inner_call.args[0], projection)

    def _inner_name(self, outer_name: str) -> str | None:
        return self.names.get(outer_name)

    def _projection_number(self, condition: Expr) -> tuple[str, int] | None:
        """Return (column, number) of `g = number` over a key of the inner aggregate that numbers the projections."""
        if condition.op != "EqualTo":
            return None
        for side, other in (condition.args, condition.args[::-1]):
            name = self._inner_name(str(side.value)) if side.op == "column" else None
            if name in self.keys and other.op == "literal" and isinstance(other.value, int):
                return str(name), other.value
        return None

    def _find_projection(self, column: str, number: int) -> Mapping[str, Expr] | None:
        """Return the projection with the number, if there is exactly one."""
        numbers = [(substitute(self.keys[column], row), row) for row in self.projections]
        rows = [row for e, row in numbers if e.op == "literal" and e.value == number]
        return rows[0] if len(rows) == 1 and all(e.op == "literal" for e, _ in numbers) else None

    def _resolve(self, expr: Expr, projection: Mapping[str, Expr]) -> Expr | None:
        """Return an expression over the inner aggregate's keys as an expression over the rows below a projection."""
        keys = {outer_name: self.keys[name] for outer_name, name in self.names.items() if name in self.keys}
        if not expr.columns() <= set(keys):
            return None
        return substitute(substitute(expr, keys), projection)


def _is_null(expr: Expr, projection: Mapping[str, Expr]) -> bool:
    """Whether a key is NULL in all rows of a projection."""
    used = [projection[c] for c in expr.columns()]
    return bool(used) and all(e.op == "literal" and e.value is None for e in used)


_BOUNDS = {
    "UnboundedPreceding$": "unbounded preceding",
    "UnboundedFollowing$": "unbounded following",
    "CurrentRow$": "current row",
}
_RANK_FUNCTIONS = frozenset({"Rank", "DenseRank", "PercentRank"})
"""Functions whose arguments repeat the window's order."""


def read_aggregate(reader: Reader, raw: RawNode) -> ResolvedNode:
    """Read an Aggregate as keys and calls, with a projection for the arithmetic over them."""
    child = reader.read(raw.children[0])
    below, above = ScalarSubqueries(reader), ScalarSubqueries(reader)
    inner = below.scope(child.columns)
    keys: dict[Expr, Named] = {}
    for key in raw.exprs.get("groupingExpressions", []):
        expr = inner.read(key)
        if expr not in keys:
            normalised = normalise_float(expr)
            keys[expr] = Named(str(normalised.value) if normalised.op == "column" else reader.new_name(), normalised)
    calls: dict[tuple[Any, ...], Call] = {}

    def call_reference(parts: tuple[Any, ...]) -> Expr:
        if parts not in calls:
            calls[parts] = Call(reader.new_name(), *parts)
        return column_reference(calls[parts].column)

    def read_special(e: RawExpr) -> Expr | None:
        if e.op == "AggregateExpression" and e.args[0].op == "PivotFirst":
            items = tuple(call_reference(parts) for parts in _pivot_calls(inner, e.args[0]))
            return Expr("CreateArray", e.type, items, None, False)
        if e.op == "AggregateExpression":
            return call_reference(_call_fields(inner, e))
        if e.op in ("Alias", "Literal") or any(a.op in ("AggregateExpression", SUBQUERY) for a in e.walk()):
            return None
        key = keys.get(inner.read(e))
        return column_reference(key.column) if key else None

    scope = above.scope({}, read_special)
    results = [(e.id, scope.read(e)) for e in raw.exprs.get("aggregateExpressions", [])]
    node = merge_distincts(nodes.Aggregate(below.cross_join(child.node), tuple(keys.values()), tuple(calls.values())))
    grouped = ResolvedNode(above.cross_join(node), (*(None for _ in node.columns), *above.ids))
    return reader.project(grouped, results) if results else grouped


def read_window(reader: Reader, raw: RawNode) -> ResolvedNode:
    """Read window functions over one window definition."""
    child = reader.read(raw.children[0])
    scalars = ScalarSubqueries(reader, forbidden_place="in a window function")
    scope = scalars.scope(child.columns)
    calls, ids = [], []
    for alias in raw.exprs["windowExpressions"]:
        if alias.op == "AttributeReference":
            continue  # Spark lists input columns by which a correlated subquery is joined; the child has them already
        function, definition = alias.args[0].args
        name = reader.new_name()
        calls.append(_window_call(scope, name, function, definition.args[-1]))
        ids.append(alias.id)
    partition = tuple(scope.read(e) for e in raw.exprs.get("partitionSpec", []))
    order = tuple(scope.read_order(o) for o in raw.exprs.get("orderSpec", []))
    node, ids_below = child.node, child.ids
    if not order and all(c.function == "RowNumber" for c in calls):
        node, ids_below, order = _order_from_input(child)
    return ResolvedNode(nodes.Window(node, partition, order, tuple(calls)), (*ids_below, *ids))


def _order_from_input(child: ResolvedNode) -> tuple[Node, ExprIds, tuple[Order, ...]]:
    """Return the order of a sorted input as a window's own.

    Spark turns `ORDER BY … LIMIT n` of a correlated subquery into row numbers. If there is a projection between the
    two, Spark leaves the window without an order and relies on rows arriving sorted.
    """
    node = child.node
    if isinstance(node, nodes.Sort):
        return node.child, child.ids, node.order
    if isinstance(node, nodes.Project) and isinstance(node.child, nodes.Sort):
        below = node.child
        missing = sorted({c for o in below.order for c in o.expr.columns()} - {n.name for n in node.exprs})
        columns = {c.name: c for c in below.columns}
        extra = tuple(Named(name, column_reference(columns[name])) for name in missing)
        return nodes.Project(below.child, (*node.exprs, *extra)), (*child.ids, *(None for _ in extra)), below.order
    return node, child.ids, ()


def _window_call(scope: Scope, name: str, function: RawExpr, frame: RawExpr) -> Call:
    kind = {"RowFrame": "rows", "RangeFrame": "range"}[scala_name(frame.fields["frameType"])]
    bounds = tuple(_BOUNDS[b.op] if b.op in _BOUNDS else scope.read(b) for b in frame.args)
    frame_parameter = ("frame", (kind, *bounds))
    if function.op == "AggregateExpression":
        op, args, type_, distinct, condition, value, nullable = _call_fields(scope, function)
    else:
        if not functions.is_known_function(function.op):
            raise functions.unsupported_function(sql_name(function))
        args = () if function.op in _RANK_FUNCTIONS else tuple(scope.read(a) for a in function.args)
        op, type_, distinct, condition, nullable = function.op, function.type, False, None, function.nullable
        value = _parameters(function)
    return Call(name, op, args, type_, distinct, condition, (frame_parameter, *(value or ())), nullable)


def _call_fields(scope: Scope, raw: RawExpr) -> tuple[Any, ...]:
    """Return the fields of a Call except its name, from an AggregateExpression."""
    function, *filters = raw.args
    if not functions.is_known_function(function.op):
        raise functions.unsupported_function(sql_name(function))
    distinct = bool(raw.fields["isDistinct"])
    orders = [scope.read_order(a) for a in function.args if a.op == "SortOrder"]  # WITHIN GROUP (ORDER BY …)
    args = (*(scope.read(a) for a in function.args if a.op != "SortOrder"), *(o.expr for o in orders))
    if distinct:
        args = tuple(normalise_float(a) for a in args)
    condition = scope.read(filters[0]) if filters else None
    directions = [("DESC" if o.descending else "ASC") + f" NULLS {'LAST' if o.nulls_last else 'FIRST'}" for o in orders]
    value = (*(_parameters(function) or ()), *([("order", ", ".join(directions))] if directions else [])) or None
    return (function.op, args, raw.type, distinct, condition, value, raw.nullable)


def _pivot_calls(scope: Scope, function: RawExpr) -> Iterator[tuple[Any, ...]]:
    """PIVOT: for each listed value, the maximum over the group's single row with that value."""
    pivot, value = (scope.read(a) for a in function.args)
    values = function.jvm_object.pivotColumnValues()
    for index in range(values.length()):
        literal = Expr("literal", pivot.type, value=literal_value(values.apply(index), pivot.type))
        is_value = Expr("EqualNullSafe", types.BOOLEAN, (pivot, literal), None, False)
        yield ("Max", (value,), value.type, False, is_value, None, True)


def _parameters(function: RawExpr) -> tuple[tuple[str, Any], ...] | None:
    flags = [name for name, value in function.fields.items() if isinstance(value, bool)]
    names = dict.fromkeys((*CALL_FIELDS.get(function.op, ()), *flags))
    return tuple((name, field_value(function, name)) for name in names) or None


def normalise_float(expr: Expr) -> Expr:
    """Normalise a key, because keys compare by value: all NaN are equal, and −0.0 equals 0.0."""
    if not types.is_float(expr.type) or expr.op in ("NormalizeNaNAndZero", "literal"):
        return expr
    return Expr("NormalizeNaNAndZero", expr.type, (expr,), None, expr.nullable)
