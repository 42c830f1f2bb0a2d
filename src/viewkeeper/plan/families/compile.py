"""Compile the members of a family.

An aggregate that consists only of sums over the members' rows becomes `FamilyCells`: values of a row that the
conditions compare are added to the group's keys, and values of a member that they compare are bounds. For any other
query the members' rows are materialised as rows (`FamilyRows`), which are then processed as in any view.

    condition                                   becomes
    value < bound, and similar comparisons      a range; several on one value are one axis
    any other, over both                        bits: evaluated for each distinct tuple of values on either side
    over the member alone                       a flag of the member

A condition that can raise must not be evaluated on rows that no member reads: such a query has no cells. The argument
of a sum may raise: it is then NULL, and the rows for which it is are counted like any others (`make_try_expr`). This
count is known for each group and member; if it is above zero, the member has an evaluation error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from viewkeeper import expressions
from viewkeeper.errors import Unsupported
from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.operators.aggregation.spec import AggregateSpec, Measure
from viewkeeper.operators.kinds import Aggregate, FamilyCells, FamilyRows
from viewkeeper.operators.kinds.family_cells import RangeCondition, vector_columns
from viewkeeper.plan.compile.branch import (
    Branch,
    can_any_raise,
    column_reference,
    conjuncts,
    positional_columns,
    substitute,
)
from viewkeeper.plan.compile.measures import is_incremental, make_measure
from viewkeeper.plan.logical import nodes
from viewkeeper.plan.logical.nodes import Call, Expr, Named, Node, column

if TYPE_CHECKING:
    from viewkeeper.plan.compile.compiler import Compiler


# A try expression is an expression that can raise, rewritten as a value that never raises and a flag that it would
# have.
#
#     try(a * b)               = try_multiply(a', b'), fails where a and b are not NULL and the product is NULL
#     try(f(x))                = f(x'),                fails where x fails
#     try(CASE WHEN c THEN x)  = CASE WHEN c THEN x',  fails where c holds and x fails
#
# Whether a row fails is thus an ordinary value: rows can be counted by it, and a count is a sum.


_ARITHMETIC = frozenset({"Add", "Subtract", "Multiply"})
_FALSE = Expr("literal", types.BOOLEAN, value=False, nullable=False)


class TryExpr(NamedTuple):
    """An expression that can raise, as a value that never raises and a flag."""

    value: Expr
    """NULL where the expression fails, otherwise its value."""
    fails: Expr


def make_try_expr(expr: Expr) -> TryExpr | None:
    """Return the try expression; None if there is none: another operation fails, or one of several arguments does."""
    if not expressions.can_raise(expr):
        return TryExpr(expr, _FALSE)
    if expr.op in ("If", "CaseWhen"):
        return _try_choice(expr)
    tried_args = [make_try_expr(a) for a in expr.args]
    args = [tried for tried in tried_args if tried is not None]
    if len(args) < len(tried_args):
        return None
    value = replace(expr, args=tuple(a.value for a in args), nullable=True)
    if expr.op in _ARITHMETIC or (expr.op == "Divide" and types.is_float(expr.type)):
        mode = ("TRY", *expr.value[1:]) if isinstance(expr.value, tuple) else "TRY"
        value = replace(value, value=mode)
        first, second = args[::-1] if expr.op == "Divide" else args  # Spark evaluates the divisor first
        first_present = _null_test("IsNotNull", first.value)
        own_failure = _and(_and(first_present, _null_test("IsNotNull", second.value)), _null_test("IsNull", value))
        return TryExpr(value, _or(first.fails, _or(_and(first_present, second.fails), own_failure)))
    if len(args) == 1 and not any(part is expr for part in expressions.failing(expr)):
        return TryExpr(value, args[0].fails)
    return None


def failure_message(exprs: Iterable[Expr]) -> str:
    """Return the error message for rows on which one of these expressions fails."""
    parts = [part for expr in exprs for part in expressions.failing(expr)]
    if parts and all(types.decimal_digits(p.type) for p in parts):
        return "NUMERIC_VALUE_OUT_OF_RANGE: A number does not fit its decimal type."
    if parts and all(p.op == "Divide" for p in parts):
        return "DIVIDE_BY_ZERO: Division by zero."
    return "ARITHMETIC_OVERFLOW: What is summed does not fit its type, or is divided by zero."


def _try_choice(expr: Expr) -> TryExpr | None:
    """Return the try expression of a choice whose conditions cannot fail."""
    tests = range(1) if expr.op == "If" else range(0, len(expr.args) // 2 * 2, 2)
    values, fails = list(expr.args), list(expr.args)
    for i, arg in enumerate(expr.args):
        tried = make_try_expr(arg)
        if tried is None or (i in tests and tried.fails != _FALSE):
            return None
        if i not in tests:
            values[i], fails[i] = tried
    if expr.op == "CaseWhen" and len(fails) % 2 == 0:
        fails.append(_FALSE)
    return TryExpr(
        replace(expr, args=tuple(values), nullable=True),
        Expr(expr.op, types.BOOLEAN, tuple(fails), value=expr.value, nullable=False),
    )


def _null_test(op: str, expr: Expr) -> Expr:
    return Expr(op, types.BOOLEAN, (expr,), nullable=False)


def _and(left: Expr, right: Expr) -> Expr:
    return _FALSE if _FALSE in (left, right) else Expr("And", types.BOOLEAN, (left, right), nullable=False)


def _or(left: Expr, right: Expr) -> Expr:
    if _FALSE in (left, right):
        return right if left == _FALSE else left
    return Expr("Or", types.BOOLEAN, (left, right), nullable=False)


_MIRRORED = {
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
    "EqualTo": "EqualTo",
    "EqualNullSafe": "EqualNullSafe",
}


def compile_member_join(compiler: Compiler, node: nodes.MemberJoin, needed: frozenset[str]) -> list[Branch]:
    """Return the members' rows, as rows: each row joined with the members whose conditions it satisfies."""
    conditions = conjuncts(node.condition)
    used = needed.union(*(c.columns() for c in conditions))
    member_columns = list(node.parameters.columns)
    rows = [c for c in node.child.columns if c.name in used]
    names = positional_columns(rows, "d") | positional_columns(member_columns, "p")
    columns = {name: column_reference(c) for name, c in names.items()}
    where = tuple(substitute(c, columns) for c in conditions)
    ports = []
    for child, port_columns in ((node.child, rows), (node.parameters, member_columns)):
        exprs = [Named(names[c.name].name, column_reference(c)) for c in port_columns]
        branches = compiler.compile(child, frozenset(c.name for c in port_columns))
        branches = compiler.consolidate_before(branches, [b.resolve(n.expr) for b in branches for n in exprs])
        if can_any_raise(where) and len(branches) > 1:
            branches = compiler.consolidate(branches, port_columns)
        ports.append(tuple(b.build_segment(exprs, tuple(n.name for n in exprs), gather=True) for b in branches))
    operator = compiler.add_operator(FamilyRows(ports[0], ports[1], where))
    return [Branch(operator, {name: e for name, e in columns.items() if name in needed})]


def compile_member_seeds(compiler: Compiler, node: nodes.MemberSeeds, needed: frozenset[str]) -> list[Branch]:
    """Return the rows, and one row of NULLs for each member."""
    parameter_columns = {
        member_column.name: stored_column
        for member_column, stored_column in zip(node.member_columns, node.parameters.columns, strict=True)
    }
    exprs = [
        Named(
            c.name,
            column_reference(parameter_columns[c.name]) if c.name in parameter_columns else Expr("literal", c.type),
        )
        for c in node.columns
        if c.name in needed
    ]
    scanned = compiler.compile(node.parameters, frozenset(c.name for c in node.parameters.columns))
    return [*compiler.compile(node.child, needed), *(b.project(exprs) for b in scanned)]


def compile_family_aggregate(compiler: Compiler, node: nodes.Aggregate, calls: Sequence[Call]) -> list[Branch] | None:
    """Compile an aggregate over members as cells; None if the input is no member join or a call is not a plain sum."""
    member_join = _find_member_join(node.child)
    if member_join is None or not all(map(is_incremental, calls)):
        return None
    join, columns, is_seeded = member_join
    arguments: dict[Expr, str] = {}
    measures = [make_measure(call, arguments, f"m{i}") for i, call in enumerate(calls)]
    if any(m.distinct or m.function in ("Min", "Max") for m in measures):
        return None
    member_columns = {c.name for c in join.parameters.columns}
    keys = [substitute(k.expr, columns) for k in node.keys]
    own_keys = [k for k in keys if not k.columns() & member_columns]
    arguments_below = {name: substitute(expr, columns) for expr, name in arguments.items()}
    if any(k.op != "column" for k in keys if k not in own_keys) or any(
        e.columns() & member_columns for e in arguments_below.values()
    ):
        return None
    groups = _group_conditions(conjuncts(join.condition), member_columns)
    attempts = {name: make_try_expr(expr) for name, expr in arguments_below.items() if can_any_raise([expr])}
    if groups is None or can_any_raise(own_keys) or None in attempts.values():
        return None
    failing = {name: tried for name, tried in attempts.items() if tried is not None}
    reason = failure_message([arguments_below[name] for name in failing])
    if failing:
        arguments_below |= {name: tried.value for name, tried in failing.items()} | {
            _FAILURES: _failure_flag(list(failing.values()))
        }
        measures.append(Measure(_FAILURES, "Count", _FAILURES, types.INT, types.BIGINT))
    grouped = [Named(f"k{i}", k) for i, k in enumerate(own_keys)]
    spec = AggregateSpec((*(n.column for n in grouped), *(n.column for n in groups.values)), tuple(measures))
    row_exprs = [*grouped, *groups.values, *(Named(name, expr) for name, expr in arguments_below.items())]
    parameters = positional_columns(join.parameters.columns, "p")
    member_exprs = [Named(parameters[c.name].name, column_reference(c)) for c in join.parameters.columns]
    member_exprs += [*groups.bounds, *groups.member_conditions]
    branches = compiler.compile(join.child, frozenset().union(*(n.expr.columns() for n in row_exprs)))
    branches = compiler.consolidate_before(branches, [b.resolve(n.expr) for b in branches for n in row_exprs])
    scanned = compiler.compile(join.parameters, frozenset(member_columns))
    names = tuple(parameters[c.name].name for c in join.parameters.columns)
    cells = compiler.add_operator(
        FamilyCells(
            rows=tuple(b.build_segment(row_exprs, None) for b in branches),
            members=tuple(b.build_segment(member_exprs, names, gather=True) for b in scanned),
            spec=spec,
            group_width=len(grouped),
            parameter_count=len(names),
            ranges=tuple(groups.ranges),
            other_conditions=tuple(
                substitute(o, _operator_columns(groups.values, parameters)) for o in groups.other_conditions
            ),
            member_conditions=tuple(n.name for n in groups.member_conditions),
            has_seed_rows=is_seeded,
        )
    )
    return _sum_cells(compiler, node, calls, cells, keys, own_keys, parameters, measures, failing, reason)


_FAILURES = "failed"
"""Column that marks rows for which an argument fails, and the measure that counts them in each group."""


def _failure_flag(attempts: Sequence[TryExpr]) -> Expr:
    """Return an expression that is 1 for a row on which one of these fails, and NULL for others."""
    fails = attempts[0].fails
    for attempt in attempts[1:]:
        fails = Expr("Or", types.BOOLEAN, (fails, attempt.fails))
    return Expr("CaseWhen", types.INT, (fails, Expr("literal", types.INT, value=1, nullable=False)))


def _raise_if_failed(value: Expr, reason: str) -> Expr:
    zero = Expr("literal", types.BIGINT, value=0, nullable=False)
    failed = Expr("GreaterThan", types.BOOLEAN, (column(_FAILURES, types.BIGINT, False), zero), nullable=False)
    message = Expr("literal", types.STRING, value=reason, nullable=False)
    return Expr("If", value.type, (failed, Expr("RaiseError", types.VOID, (message,)), value), nullable=value.nullable)


def _sum_cells(
    compiler: Compiler,
    node: nodes.Aggregate,
    calls: Sequence[Call],
    cells: FamilyCells,
    keys: Sequence[Expr],
    own_keys: Sequence[Expr],
    parameters: Mapping[str, Column],
    measures: Sequence[Measure],
    failing: Collection[str],
    reason: str,
) -> list[Branch]:
    """Add up the cells' vectors by member and group with an aggregate operator."""
    numbers = iter(range(len(own_keys)))
    key_columns = [
        column(f"k{next(numbers)}", k.type, k.nullable) if k in own_keys else column_reference(parameters[str(k.value)])
        for k in keys
    ]
    exprs = [Named(f"k{i}", e) for i, e in enumerate(key_columns)]
    spec = AggregateSpec(tuple(e.column for e in exprs), tuple(measures))
    vectors = [Named(c.name, column_reference(c)) for c in vector_columns(spec)]
    branch = Branch(cells, {c.name: column_reference(c) for c in cells.columns})
    source = (branch.build_segment([*exprs, *vectors], tuple(e.name for e in exprs)),)
    operator = compiler.add_operator(Aggregate(source, spec, 1))
    names = {key.name: column_reference(k) for key, k in zip(node.keys, spec.keys, strict=True)}
    for call, m in zip(calls, measures, strict=False):  # the last measure may be the failure count
        value = column(m.name, call.type, call.nullable)
        names[call.name] = _raise_if_failed(value, reason) if m.argument in failing else value
    return [Branch(operator, names)]


def _find_member_join(node: Node) -> tuple[nodes.MemberJoin, dict[str, Expr], bool] | None:
    """Return the member join below projections (and seeds), the node's columns over it, and whether there are seeds."""
    is_seeded = isinstance(node, nodes.MemberSeeds)
    if isinstance(node, nodes.MemberSeeds):
        node = node.child
    columns = {c.name: column_reference(c) for c in node.columns}
    while isinstance(node, nodes.Project):
        projected = {n.name: n.expr for n in node.exprs}
        columns = {name: substitute(e, projected) for name, e in columns.items()}
        node = node.child
    return (node, columns, is_seeded) if isinstance(node, nodes.MemberJoin) else None


@dataclass
class _ConditionGroups:
    """Conditions grouped by what they compare. `values` of rows and `bounds` of members get positional names."""

    values: list[Named]
    bounds: list[Named]
    member_conditions: list[Named]
    ranges: list[RangeCondition]
    other_conditions: list[Expr]

    def add_value(self, expr: Expr) -> str:
        return _name_expr(self.values, expr, "d")

    def add_bound(self, expr: Expr) -> str:
        return _name_expr(self.bounds, expr, "g")


def _group_conditions(conditions: Sequence[Expr], member_columns: set[str]) -> _ConditionGroups | None:
    groups = _ConditionGroups([], [], [], [], [])
    for condition in conditions:
        used = condition.columns()
        if used <= member_columns:
            groups.member_conditions.append(Named(f"f{len(groups.member_conditions)}", _null_as_false(condition)))
        elif (comparison := _as_range_condition(condition, member_columns)) is not None:
            value, operator, bound = comparison
            if can_any_raise([value]) or not _has_arrow_type(value.type):
                return None
            groups.ranges.append(RangeCondition(groups.add_value(value), operator, groups.add_bound(bound)))
        else:
            if can_any_raise([condition]):
                return None
            for expr in condition.walk():
                if expr.op == "column" and expr.value not in member_columns:
                    groups.add_value(expr)
            groups.other_conditions.append(condition)
    return groups


def _as_range_condition(condition: Expr, member_columns: set[str]) -> tuple[Expr, str, Expr] | None:
    """Return (value of the row, operator, bound of the member) if the condition is such a comparison, else None."""
    if condition.op not in _MIRRORED or condition.args[0].type != condition.args[1].type:
        return None
    left, right = condition.args
    if left.columns() & member_columns:
        left, right, operator = right, left, _MIRRORED[condition.op]
    else:
        operator = condition.op
    if (
        not left.columns()
        or left.columns() & member_columns
        or not right.columns()
        or not right.columns() <= member_columns
    ):
        return None
    return left, operator, right


def _null_as_false(condition: Expr) -> Expr:
    """Return the condition with NULL as false."""
    false = Expr("literal", types.BOOLEAN, value=False, nullable=False)
    return Expr("Coalesce", types.BOOLEAN, (condition, false), nullable=False) if condition.nullable else condition


def _has_arrow_type(type_: types.Type) -> bool:
    try:
        types.arrow(type_)
    except Unsupported:
        return False
    return True


def _name_expr(named_exprs: list[Named], expr: Expr, prefix: str) -> str:
    for n in named_exprs:
        if n.expr == expr:
            return n.name
    named_exprs.append(Named(f"{prefix}{len(named_exprs)}", expr))
    return named_exprs[-1].name


def _operator_columns(values: Sequence[Named], parameters: Mapping[str, Column]) -> dict[str, Expr]:
    """Map a condition's columns to the names that they have in the operator."""
    rows = {str(n.expr.value): column_reference(n.column) for n in values if n.expr.op == "column"}
    return rows | {name: column_reference(c) for name, c in parameters.items()}
