"""Lift a plan with parameters to the plan of all members of a family at once.

    lift(node) gives, for each member, the rows of the node with that member's parameters, and its parameters.

Conditions with parameters are deferred (`pending`) as far as possible: a selection commutes with filters, projections
and inner joins, so the template's path runs once, without members. Where a condition cannot be deferred (an aggregate,
a window, a limit, an expression that contains a parameter), a `MemberJoin` joins the rows with the members; above it,
each row belongs to one member. There, groups, window partitions and limits are per member, and rows of two sides are
joined only if they belong to the same member.

    filter x < :a ─ scan                    members on x < a ─ scan, parameters
    aggregate sum(y) ─ filter x < :a        aggregate by a: sum(y) ─ seeded ─ members …       (a row also over no input)
    join ─ (filter x < :a ─ r), s           join ─ r, s; x < :a is pending
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from viewkeeper.errors import Unsupported
from viewkeeper.model import types
from viewkeeper.model.schema import Column, Table
from viewkeeper.model.types import Type
from viewkeeper.plan.compile.branch import can_any_raise, column_reference, conjunction, conjuncts
from viewkeeper.plan.compile.measures import call_argument, is_incremental
from viewkeeper.plan.logical import nodes
from viewkeeper.plan.logical.nodes import Call, Expr, Named, Node, Order, Query

PARAMETER = "parameter"
"""`op` of an expression that stands for a parameter; its value is the parameter's name in lower case."""

_ONE = Expr("literal", types.INT, value=1, nullable=False)


def lift(query: Query, table: Table) -> Query:
    """Return the query of all members over the table of parameters, whose columns come first in the result."""
    numbers = [int(c.name[1:]) for node in query.root.walk() for c in node.columns]
    lifted = _PlanLifter(table, count(max(numbers, default=-1) + 1)).lift_root(query.root)
    member_columns = tuple((c.name, lifted.members[c.name.lower()]) for c in table.key_columns)
    return Query(lifted.node, (*member_columns, *query.output))


def has_parameters(*exprs: Expr | None) -> bool:
    return any(e.op == PARAMETER for expr in exprs if expr is not None for e in expr.walk())


@dataclass(frozen=True)
class LiftedPlan:
    """`pending`: deferred conditions. `members`: by parameter, its column, if the rows belong to members; else None."""

    node: Node
    pending: tuple[Expr, ...] = ()
    members: Mapping[str, Column] | None = None

    @property
    def is_member_independent(self) -> bool:
        """Whether the rows are the same for all members."""
        return not self.pending and self.members is None


@dataclass(frozen=True)
class MemberPlan:
    """A lifted plan whose rows belong to members. `members`: by parameter, its column."""

    node: Node
    members: Mapping[str, Column]

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(self.members.values())

    @property
    def key_exprs(self) -> tuple[Named, ...]:
        return tuple(Named(c.name, column_reference(c)) for c in self.columns)

    def bind(self, expr: Expr) -> Expr:
        """Return the expression with the member's columns in place of parameters."""
        return bind_parameters(expr, self.members)

    def bind_call(self, call: Call) -> Call:
        condition = None if call.filter is None else self.bind(call.filter)
        return replace(call, args=tuple(self.bind(a) for a in call.args), filter=condition)

    def bind_order(self, order: Iterable[Order]) -> tuple[Order, ...]:
        return tuple(replace(o, expr=self.bind(o.expr)) for o in order)

    @property
    def as_lifted(self) -> LiftedPlan:
        return LiftedPlan(self.node, (), self.members)


def bind_parameters(expr: Expr, members: Mapping[str, Column]) -> Expr:
    """Return the expression with the members' columns in place of parameters."""
    if expr.op == PARAMETER:
        return column_reference(members[expr.value])
    return replace(expr, args=tuple(bind_parameters(a, members) for a in expr.args)) if expr.args else expr


@dataclass(frozen=True)
class _PlanLifter:
    table: Table
    numbers: count[int]

    def new_column(self, type_: Type, nullable: bool = True) -> Column:
        return Column(f"c{next(self.numbers)}", type_, nullable)

    def scan_members(self) -> nodes.Scan:
        """Return a scan of the table of parameters, with new column names."""
        return nodes.Scan(
            self.table.id, tuple((self.new_column(c.type, False), c.internal_name) for c in self.table.key_columns)
        )

    def members_of(self, columns: Sequence[Column]) -> Mapping[str, Column]:
        return {c.name.lower(): column for c, column in zip(self.table.key_columns, columns, strict=True)}

    def join_members(self, lifted: LiftedPlan) -> MemberPlan:
        if lifted.members is None:
            scan = self.scan_members()
            members = self.members_of(scan.columns)
            condition = conjunction([bind_parameters(c, members) for c in lifted.pending])
            return MemberPlan(nodes.MemberJoin(lifted.node, scan, condition), members)
        condition = conjunction([bind_parameters(c, lifted.members) for c in lifted.pending])
        node = lifted.node if condition is None else nodes.Filter(lifted.node, condition)
        return MemberPlan(node, lifted.members)

    def lift_root(self, root: Node) -> MemberPlan:
        return self.join_members(self.lift(root))

    def lift(self, node: Node) -> LiftedPlan:
        handler = _HANDLERS.get(node.kind)
        if handler is None:
            raise Unsupported(f"{node.kind.upper()} is not supported in a family of views.")
        return handler(self, node)


def _lift_scan(lifter: _PlanLifter, node: nodes.Scan) -> LiftedPlan:
    return LiftedPlan(node)


def _lift_filter(lifter: _PlanLifter, node: nodes.Filter) -> LiftedPlan:
    child = lifter.lift(node.child)
    immediate: list[Expr] = []
    deferred = list(child.pending)
    for condition in conjuncts(node.condition):
        # A condition that can raise must not be evaluated on rows that an earlier condition would have rejected.
        must_wait = has_parameters(condition) or (deferred and can_raise_when_bound(condition))
        (deferred if must_wait else immediate).append(condition)
    below = conjunction(immediate)
    return LiftedPlan(child.node if below is None else nodes.Filter(child.node, below), tuple(deferred), child.members)


def can_raise_when_bound(expr: Expr) -> bool:
    """Whether the expression can raise if its parameters are values."""
    return can_any_raise([parameters_as_columns(expr)])


def parameters_as_columns(expr: Expr) -> Expr:
    """Return the expression with parameters as columns, for analyses that do not know parameters."""
    if expr.op == PARAMETER:
        return Expr("column", expr.type, value=str(expr.value), nullable=expr.nullable)
    return replace(expr, args=tuple(parameters_as_columns(a) for a in expr.args)) if expr.args else expr


def _lift_project(lifter: _PlanLifter, node: nodes.Project) -> LiftedPlan:
    child = lifter.lift(node.child)
    if has_parameters(*(n.expr for n in node.exprs)) or (child.pending and can_any_raise_when_bound(node.exprs)):
        child = lifter.join_members(child).as_lifted
    exprs = [
        Named(n.name, n.expr if child.members is None else bind_parameters(n.expr, child.members)) for n in node.exprs
    ]
    pending_columns = frozenset().union(*(c.columns() for c in child.pending))
    pending_columns |= {c.name for c in (child.members or {}).values()}
    present = {n.name for n in exprs}
    exprs += [Named(c.name, column_reference(c)) for c in child.node.columns if c.name in pending_columns - present]
    return LiftedPlan(nodes.Project(child.node, tuple(exprs)), child.pending, child.members)


def can_any_raise_when_bound(exprs: Iterable[Named]) -> bool:
    return any(can_raise_when_bound(n.expr) for n in exprs)


def _lift_join(lifter: _PlanLifter, node: nodes.Join) -> LiftedPlan:
    if node.join_type == "right":
        return _lift_join(lifter, replace(node, join_type="left", left=node.right, right=node.left))
    left, right = lifter.lift(node.left), lifter.lift(node.right)
    conditions = conjuncts(node.condition)
    if node.join_type == "inner":
        return _lift_inner_join(lifter, left, right, conditions)
    if right.is_member_independent and not has_parameters(*conditions) and node.join_type != "full":
        return LiftedPlan(replace(node, left=left.node, right=right.node), left.pending, left.members)
    if left.is_member_independent and right.is_member_independent and not has_parameters(*conditions):
        return LiftedPlan(replace(node, left=left.node, right=right.node))
    left_members = lifter.join_members(left)
    if node.join_type == "full" or right.members is not None:
        right_members = lifter.join_members(right)
        bound_conditions = [*(left_members.bind(c) for c in conditions), *_same_member(left_members, right_members)]
        joined = replace(
            node, left=left_members.node, right=right_members.node, condition=conjunction(bound_conditions)
        )
        return (
            _coalesce_members(lifter, joined, left_members, right_members)
            if node.join_type == "full"
            else LiftedPlan(joined, (), left_members.members)
        )
    bound_conditions = [left_members.bind(c) for c in (*conditions, *right.pending)]
    return LiftedPlan(
        replace(node, left=left_members.node, right=right.node, condition=conjunction(bound_conditions)),
        (),
        left_members.members,
    )


def _lift_inner_join(
    lifter: _PlanLifter, left: LiftedPlan, right: LiftedPlan, conditions: Sequence[Expr]
) -> LiftedPlan:
    immediate = [c for c in conditions if not has_parameters(c)]
    pending = (*left.pending, *right.pending, *(c for c in conditions if has_parameters(c)))
    if left.members is not None and right.members is not None:
        immediate += _same_member(MemberPlan(left.node, left.members), MemberPlan(right.node, right.members))
    joined = nodes.Join("inner", left.node, right.node, conjunction(immediate))
    return LiftedPlan(joined, pending, left.members if left.members is not None else right.members)


def _same_member(left: MemberPlan, right: MemberPlan) -> list[Expr]:
    """Return the conditions under which two rows belong to the same member."""
    return [
        Expr("EqualTo", types.BOOLEAN, (column_reference(a), column_reference(right.members[name])), nullable=False)
        for name, a in left.members.items()
    ]


def _coalesce_members(lifter: _PlanLifter, joined: nodes.Join, left: MemberPlan, right: MemberPlan) -> LiftedPlan:
    """Take the member of a full join's row from either side."""
    members = {name: lifter.new_column(c.type, False) for name, c in left.members.items()}
    either = [
        Named(members[name].name, Expr("Coalesce", a.type, tuple(map(column_reference, (a, right.members[name])))))
        for name, a in left.members.items()
    ]
    carried = [Named(c.name, column_reference(c)) for c in joined.columns]
    return LiftedPlan(nodes.Project(joined, (*carried, *either)), (), members)


def _lift_aggregate(lifter: _PlanLifter, node: nodes.Aggregate) -> LiftedPlan:
    child = lifter.lift(node.child)
    inner_exprs = [
        *(k.expr for k in node.keys),
        *(a for c in node.calls for a in (*c.args, *([c.filter] if c.filter else ()))),
    ]
    if child.is_member_independent and not has_parameters(*inner_exprs):
        return LiftedPlan(replace(node, child=child.node))
    joined = lifter.join_members(child)
    keys = tuple(Named(lifter.new_column(c.type, False).name, column_reference(c)) for c in joined.columns)
    members = lifter.members_of([k.column for k in keys])
    calls = tuple(joined.bind_call(c) for c in node.calls)
    if node.keys:
        own_keys = tuple(Named(k.name, joined.bind(k.expr)) for k in node.keys)
        return LiftedPlan(nodes.Aggregate(joined.node, (*keys, *own_keys), calls), (), members)
    below, calls = _add_seeds(lifter, joined, calls)
    return LiftedPlan(nodes.Aggregate(below, keys, calls), (), members)


def _add_seeds(lifter: _PlanLifter, plan: MemberPlan, calls: tuple[Call, ...]) -> tuple[Node, tuple[Call, ...]]:
    """Add a row of NULLs for each member, which no call counts.

    A global aggregate has a row also over no input, and so has each member of the family.
    """
    marker = lifter.new_column(types.INT)
    exprs: dict[str, Named] = {n.name: n for n in (*plan.key_exprs, Named(marker.name, _ONE))}
    new_calls: list[Call] = []
    is_real_row = Expr("IsNotNull", types.BOOLEAN, (column_reference(marker),), nullable=False)
    for call in calls:
        if is_incremental(call):
            argument = call_argument(call) or _ONE
            column = lifter.new_column(argument.type)
            exprs[column.name] = Named(column.name, argument)
            new_calls.append(replace(call, args=(column_reference(column),), filter=None))
        else:
            condition = is_real_row if call.filter is None else Expr("And", types.BOOLEAN, (is_real_row, call.filter))
            new_calls.append(replace(call, filter=condition))
            used = frozenset().union(*(a.columns() for a in (*call.args, condition)))
            used_columns = (Named(c.name, column_reference(c)) for c in plan.node.columns if c.name in used)
            exprs |= {n.name: n for n in used_columns if n.name not in exprs}
    return nodes.MemberSeeds(
        nodes.Project(plan.node, tuple(exprs.values())), lifter.scan_members(), plan.columns
    ), tuple(new_calls)


def _lift_union(lifter: _PlanLifter, node: nodes.Union) -> LiftedPlan:
    children = [lifter.lift(child) for child in node.inputs]
    if all(child.is_member_independent for child in children):
        return LiftedPlan(replace(node, inputs=tuple(c.node for c in children)))
    inputs = []
    for child, original in zip(map(lifter.join_members, children), node.inputs, strict=True):
        own_columns = tuple(Named(c.name, column_reference(c)) for c in original.columns)
        inputs.append(nodes.Project(child.node, (*child.key_exprs, *own_columns)))
    output = [lifter.new_column(c.type, False) for c in lifter.table.key_columns]
    return LiftedPlan(nodes.Union(tuple(inputs), (*output, *node.output)), (), lifter.members_of(output))


def _lift_sort(lifter: _PlanLifter, node: nodes.Sort) -> LiftedPlan:
    child = lifter.lift(node.child)
    if child.is_member_independent and not has_parameters(*(o.expr for o in node.order)):
        return LiftedPlan(replace(node, child=child.node))
    joined = lifter.join_members(child)
    order = (*(Order(column_reference(c)) for c in joined.columns), *joined.bind_order(node.order))
    return LiftedPlan(nodes.Sort(joined.node, order), (), joined.members)


def _lift_limit(lifter: _PlanLifter, node: nodes.Limit) -> LiftedPlan:
    """Rewrite a limit of each member as a window with row numbers and a filter on them."""
    child = lifter.lift(node.child)
    if child.is_member_independent:
        return LiftedPlan(replace(node, child=child.node))
    order = node.child.order if isinstance(node.child, nodes.Sort) else ()
    below = lifter.join_members(lifter.lift(node.child.child) if isinstance(node.child, nodes.Sort) else child)
    number = lifter.new_column(types.INT, False)
    frame = (("frame", ("rows", "unbounded preceding", "current row")),)
    call = Call(number.name, "RowNumber", (), types.INT, value=frame, nullable=False)
    partition = tuple(map(column_reference, below.columns))
    window = nodes.Window(below.node, partition, below.bind_order(order), (call,))
    last = None if node.count is None else node.count + node.offset
    tests = [("GreaterThan", node.offset)] if node.offset else []
    tests += [] if last is None else [("LessThanOrEqual", last)]
    conditions = [
        Expr(
            op,
            types.BOOLEAN,
            (column_reference(number), Expr("literal", types.INT, value=value, nullable=False)),
            nullable=False,
        )
        for op, value in tests
    ]
    condition = conjunction(conditions)
    return LiftedPlan(window if condition is None else nodes.Filter(window, condition), (), below.members)


def _lift_window(lifter: _PlanLifter, node: nodes.Window) -> LiftedPlan:
    child = lifter.lift(node.child)
    inner_exprs = [*node.partition, *(o.expr for o in node.order), *(a for c in node.calls for a in c.args)]
    if child.is_member_independent and not has_parameters(*inner_exprs):
        return LiftedPlan(replace(node, child=child.node))
    below = lifter.join_members(child)
    partition = (*map(column_reference, below.columns), *(below.bind(p) for p in node.partition))
    calls = tuple(below.bind_call(c) for c in node.calls)
    return LiftedPlan(nodes.Window(below.node, partition, below.bind_order(node.order), calls), (), below.members)


def _lift_expand(lifter: _PlanLifter, node: nodes.Expand) -> LiftedPlan:
    child = lifter.lift(node.child)
    if child.is_member_independent and not has_parameters(*(e for p in node.projections for e in p)):
        return LiftedPlan(replace(node, child=child.node))
    below = lifter.join_members(child)
    members = [lifter.new_column(c.type, False) for c in below.columns]
    rows = tuple((*map(column_reference, below.columns), *(below.bind(e) for e in p)) for p in node.projections)
    return LiftedPlan(nodes.Expand(below.node, rows, (*members, *node.output)), (), lifter.members_of(members))


def _lift_generate(lifter: _PlanLifter, node: nodes.Generate) -> LiftedPlan:
    child = lifter.lift(node.child)
    if child.is_member_independent and not has_parameters(node.generator):
        return LiftedPlan(replace(node, child=child.node))
    below = lifter.join_members(child)
    carried = (*node.child_columns, *below.columns)
    return LiftedPlan(
        replace(node, child=below.node, generator=below.bind(node.generator), child_columns=carried), (), below.members
    )


_HANDLERS: Mapping[str, Callable[[_PlanLifter, Any], LiftedPlan]] = {
    "scan": _lift_scan,
    "filter": _lift_filter,
    "project": _lift_project,
    "join": _lift_join,
    "aggregate": _lift_aggregate,
    "union": _lift_union,
    "sort": _lift_sort,
    "limit": _lift_limit,
    "window": _lift_window,
    "expand": _lift_expand,
    "generate": _lift_generate,
}
