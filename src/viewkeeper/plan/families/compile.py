"""How a family's members are compiled.

An aggregate of nothing but sums over the members' rows becomes `Cells`: what the conditions compare of a row are values
beside the group's keys, what they compare of a member are bounds. Everything else gets the members' rows as rows
(`Theta`), and goes on as it would in any view.

    condition                                   becomes
    value < bound, and its kin                  a range; several on one value are one axis
    any other, over both                        bits: tried for each distinct tuple of values on either side
    over the member alone                       a flag of the member

A part that can fail on a row must not be tried on rows that nobody wants: then there are no cells. But what a sum is
of may fail: there it is NULL, and the rows for which it is are counted like any others (`tried`). How many of them a
member has is known for each group, and more than none is its error.
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


# An expression that may fail as a value that never does, and whether it would have.
#
#     tried(a * b)               = try_multiply(a', b'), which fails where a and b are there and it is NULL
#     tried(f(x))                = f(x'),               which fails where x does
#     tried(CASE WHEN c THEN x)  = CASE WHEN c THEN x', which fails where c holds and x does
#
# Whether a row fails is then a value like any other: rows can be counted by it, and a count is a sum.


_ARITHMETIC = frozenset({"Add", "Subtract", "Multiply"})
_FALSE = Expr("literal", types.BOOLEAN, value=False, nullable=False)


class TryExpr(NamedTuple):
    value: Expr
    """NULL where it fails, else as it was."""
    fails: Expr


def make_try_expr(expr: Expr) -> TryExpr | None:
    """None if it cannot be said so: what fails is no such arithmetic, or an argument among several."""
    if not expressions.can_raise(expr):
        return TryExpr(expr, _FALSE)
    if expr.op in ("If", "CaseWhen"):
        return _try_choice(expr)
    inside = [make_try_expr(a) for a in expr.args]
    args = [one for one in inside if one is not None]
    if len(args) < len(inside):
        return None
    value = replace(expr, args=tuple(a.value for a in args), nullable=True)
    if expr.op in _ARITHMETIC or (expr.op == "Divide" and types.is_float(expr.type)):
        mode = ("TRY", *expr.value[1:]) if isinstance(expr.value, tuple) else "TRY"
        value = replace(value, value=mode)
        first, second = args[::-1] if expr.op == "Divide" else args  # Spark looks at a divisor first
        there = _null_test("IsNotNull", first.value)
        own = _and(_and(there, _null_test("IsNotNull", second.value)), _null_test("IsNull", value))
        return TryExpr(value, _or(first.fails, _or(_and(there, second.fails), own)))
    if len(args) == 1 and not any(part is expr for part in expressions.failing(expr)):
        return TryExpr(value, args[0].fails)
    return None


def failure_message(exprs: Iterable[Expr]) -> str:
    """What is said of rows on which one of these fails."""
    parts = [part for expr in exprs for part in expressions.failing(expr)]
    if parts and all(types.decimal_digits(p.type) for p in parts):
        return "NUMERIC_VALUE_OUT_OF_RANGE: A number does not fit its decimal type."
    if parts and all(p.op == "Divide" for p in parts):
        return "DIVIDE_BY_ZERO: Division by zero."
    return "ARITHMETIC_OVERFLOW: What is summed does not fit its type, or is divided by zero."


def _try_choice(expr: Expr) -> TryExpr | None:
    """One of several, by conditions that do not fail themselves."""
    tests = range(1) if expr.op == "If" else range(0, len(expr.args) // 2 * 2, 2)
    values, fails = list(expr.args), list(expr.args)
    for i, arg in enumerate(expr.args):
        one = make_try_expr(arg)
        if one is None or (i in tests and one.fails != _FALSE):
            return None
        if i not in tests:
            values[i], fails[i] = one
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
    """The rows with their members, as rows."""
    conditions = conjuncts(node.condition)
    used = needed.union(*(c.columns() for c in conditions))
    mine = list(node.parameters.columns)
    rows = [c for c in node.child.columns if c.name in used]
    names = positional_columns(rows, "d") | positional_columns(mine, "p")
    columns = {name: column_reference(c) for name, c in names.items()}
    where = tuple(substitute(c, columns) for c in conditions)
    ports = []
    for child, own in ((node.child, rows), (node.parameters, mine)):
        exprs = [Named(names[c.name].name, column_reference(c)) for c in own]
        branches = compiler.compile(child, frozenset(c.name for c in own))
        branches = compiler.consolidate_before(branches, [b.resolve(n.expr) for b in branches for n in exprs])
        if can_any_raise(where) and len(branches) > 1:
            branches = compiler.consolidate(branches, own)
        ports.append(tuple(b.build_segment(exprs, tuple(n.name for n in exprs), gather=True) for b in branches))
    operator = compiler.add_operator(FamilyRows(ports[0], ports[1], where))
    return [Branch(operator, {name: e for name, e in columns.items() if name in needed})]


def compile_member_seeds(compiler: Compiler, node: nodes.MemberSeeds, needed: frozenset[str]) -> list[Branch]:
    """The rows, and one row of NULLs for each member."""
    own = {mine.name: theirs for mine, theirs in zip(node.member_columns, node.parameters.columns, strict=True)}
    exprs = [
        Named(c.name, column_reference(own[c.name]) if c.name in own else Expr("literal", c.type))
        for c in node.columns
        if c.name in needed
    ]
    scanned = compiler.compile(node.parameters, frozenset(c.name for c in node.parameters.columns))
    return [*compiler.compile(node.child, needed), *(b.project(exprs) for b in scanned)]


def compile_family_aggregate(compiler: Compiler, node: nodes.Aggregate, calls: Sequence[Call]) -> list[Branch] | None:
    """An aggregate over members as cells; None if it is none, or more than sums."""
    found = _find_member_join(node.child)
    if found is None or not all(map(is_incremental, calls)):
        return None
    below, made, is_seeded = found
    arguments: dict[Expr, str] = {}
    measures = [make_measure(call, arguments, f"m{i}") for i, call in enumerate(calls)]
    if any(m.distinct or m.function in ("Min", "Max") for m in measures):
        return None
    mine = {c.name for c in below.parameters.columns}
    keys = [substitute(k.expr, made) for k in node.keys]
    own = [k for k in keys if not k.columns() & mine]
    argued = {name: substitute(expr, made) for expr, name in arguments.items()}
    if any(k.op != "column" for k in keys if k not in own) or any(e.columns() & mine for e in argued.values()):
        return None
    parted = _group_conditions(conjuncts(below.condition), mine)
    attempts = {name: make_try_expr(expr) for name, expr in argued.items() if can_any_raise([expr])}
    if parted is None or can_any_raise(own) or None in attempts.values():
        return None
    failing = {name: one for name, one in attempts.items() if one is not None}
    reason = failure_message([argued[name] for name in failing])
    if failing:
        argued |= {name: one.value for name, one in failing.items()} | {
            _FAILURES: _failure_flag(list(failing.values()))
        }
        measures.append(Measure(_FAILURES, "Count", _FAILURES, types.INT, types.BIGINT))
    grouped = [Named(f"k{i}", k) for i, k in enumerate(own)]
    spec = AggregateSpec((*(n.column for n in grouped), *(n.column for n in parted.values)), tuple(measures))
    row_exprs = [*grouped, *parted.values, *(Named(name, expr) for name, expr in argued.items())]
    parameters = positional_columns(below.parameters.columns, "p")
    member_exprs = [Named(parameters[c.name].name, column_reference(c)) for c in below.parameters.columns]
    member_exprs += [*parted.bounds, *parted.member_conditions]
    branches = compiler.compile(below.child, frozenset().union(*(n.expr.columns() for n in row_exprs)))
    branches = compiler.consolidate_before(branches, [b.resolve(n.expr) for b in branches for n in row_exprs])
    scanned = compiler.compile(below.parameters, frozenset(mine))
    names = tuple(parameters[c.name].name for c in below.parameters.columns)
    cells = compiler.add_operator(
        FamilyCells(
            rows=tuple(b.build_segment(row_exprs, None) for b in branches),
            members=tuple(b.build_segment(member_exprs, names, gather=True) for b in scanned),
            spec=spec,
            group_width=len(grouped),
            parameter_count=len(names),
            ranges=tuple(parted.ranges),
            other_conditions=tuple(
                substitute(o, _operator_columns(parted.values, parameters)) for o in parted.other_conditions
            ),
            member_conditions=tuple(n.name for n in parted.member_conditions),
            has_seed_rows=is_seeded,
        )
    )
    return _sum_cells(compiler, node, calls, cells, keys, own, parameters, measures, failing, reason)


_FAILURES = "failed"
"""The rows of a group for which an argument fails, and their number."""


def _failure_flag(attempts: Sequence[TryExpr]) -> Expr:
    """1 for a row on which one of these fails."""
    fails = attempts[0].fails
    for one in attempts[1:]:
        fails = Expr("Or", types.BOOLEAN, (fails, one.fails))
    return Expr("CaseWhen", types.INT, (fails, Expr("literal", types.INT, value=1, nullable=False)))


def _raise_if_failed(value: Expr, reason: str) -> Expr:
    zero = Expr("literal", types.BIGINT, value=0, nullable=False)
    failed = Expr("GreaterThan", types.BOOLEAN, (column(_FAILURES, types.BIGINT, False), zero), nullable=False)
    said = Expr("literal", types.STRING, value=reason, nullable=False)
    return Expr("If", value.type, (failed, Expr("RaiseError", types.VOID, (said,)), value), nullable=value.nullable)


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
    """The vectors of members and groups, added up by an aggregate."""
    numbers = iter(range(len(own_keys)))
    given = [
        column(f"k{next(numbers)}", k.type, k.nullable) if k in own_keys else column_reference(parameters[str(k.value)])
        for k in keys
    ]
    exprs = [Named(f"k{i}", e) for i, e in enumerate(given)]
    spec = AggregateSpec(tuple(e.column for e in exprs), tuple(measures))
    vectors = [Named(c.name, column_reference(c)) for c in vector_columns(spec)]
    seen = Branch(cells, {c.name: column_reference(c) for c in cells.columns})
    source = (seen.build_segment([*exprs, *vectors], tuple(e.name for e in exprs)),)
    operator = compiler.add_operator(Aggregate(source, spec, 1))
    names = {key.name: column_reference(k) for key, k in zip(node.keys, spec.keys, strict=True)}
    for call, m in zip(calls, measures, strict=False):  # the last one may be `failed`
        value = column(m.name, call.type, call.nullable)
        names[call.name] = _raise_if_failed(value, reason) if m.argument in failing else value
    return [Branch(operator, names)]


def _find_member_join(node: Node) -> tuple[nodes.MemberJoin, dict[str, Expr], bool] | None:
    """The members below projections (and a seed), and the node's columns over them."""
    is_seeded = isinstance(node, nodes.MemberSeeds)
    if isinstance(node, nodes.MemberSeeds):
        node = node.child
    made = {c.name: column_reference(c) for c in node.columns}
    while isinstance(node, nodes.Project):
        below = {n.name: n.expr for n in node.exprs}
        made = {name: substitute(e, below) for name, e in made.items()}
        node = node.child
    return (node, made, is_seeded) if isinstance(node, nodes.MemberJoin) else None


@dataclass
class _ConditionGroups:
    """Conditions by what they are about. `values` of rows and `bounds` of members have names of their own."""

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
    parted = _ConditionGroups([], [], [], [], [])
    for condition in conditions:
        used = condition.columns()
        if used <= member_columns:
            parted.member_conditions.append(Named(f"f{len(parted.member_conditions)}", _null_as_false(condition)))
        elif (compared := _as_range_condition(condition, member_columns)) is not None:
            value, operator, bound = compared
            if can_any_raise([value]) or not _has_arrow_type(value.type):
                return None
            parted.ranges.append(RangeCondition(parted.add_value(value), operator, parted.add_bound(bound)))
        else:
            if can_any_raise([condition]):
                return None
            for expr in condition.walk():
                if expr.op == "column" and expr.value not in member_columns:
                    parted.add_value(expr)
            parted.other_conditions.append(condition)
    return parted


def _as_range_condition(condition: Expr, member_columns: set[str]) -> tuple[Expr, str, Expr] | None:
    """(value of the row, operator, bound of the member), if that is what is compared."""
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
    """A condition that is NULL is not met."""
    no = Expr("literal", types.BOOLEAN, value=False, nullable=False)
    return Expr("Coalesce", types.BOOLEAN, (condition, no), nullable=False) if condition.nullable else condition


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
    """The columns of a condition by the names that the operator has for them."""
    rows = {str(n.expr.value): column_reference(n.column) for n in values if n.expr.op == "column"}
    return rows | {name: column_reference(c) for name, c in parameters.items()}
