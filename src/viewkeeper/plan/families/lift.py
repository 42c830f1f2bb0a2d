"""A plan with parameters as the plan of all members at once.

    lift(node) gives, for each member, what the node gives with that member's parameters, with the parameters beside it.

Conditions with parameters wait (`pending`) while they may: a selection commutes with filters, projections and inner
joins, so the template's path runs once, without members. Where they cannot wait (an aggregate, a window, a limit, an
expression that shows a parameter) the rows meet the members: a `Members` node, from which on each row is one member's.
From there a group is a group of one member, a window's partition and a limit are one member's, and rows of two sides
meet only if they are of the same one.

    filter x < :a ─ scan                    members on x < a ─ scan, parameters
    aggregate sum(y) ─ filter x < :a        aggregate by a: sum(y) ─ seeded ─ members …       (a row over nothing too)
    join ─ (filter x < :a ─ r), s           join ─ r, s; x < :a waits
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
from viewkeeper.plan.compile.branch import conjunction, conjuncts, raises, reference
from viewkeeper.plan.compile.measures import call_argument, is_sum
from viewkeeper.plan.logical import nodes
from viewkeeper.plan.logical.nodes import Call, Expr, Named, Node, Order, Query

PARAMETER = "parameter"
"""The operation of an expression that stands for a parameter; its value is the parameter's name in lower case."""

_ONE = Expr("literal", types.INT, value=1, nullable=False)


def lift(query: Query, table: Table) -> Query:
    """The query of all members over the table of parameters, which come first in its result."""
    taken = [int(c.name[1:]) for node in query.root.walk() for c in node.columns]
    lifted = _Lifting(table, count(max(taken, default=-1) + 1)).settled_at_root(query.root)
    shown = tuple((c.name, lifted.members[c.name.lower()]) for c in table.key_columns)
    return Query(lifted.node, (*shown, *query.output))


def has_parameters(*exprs: Expr | None) -> bool:
    return any(e.op == PARAMETER for expr in exprs if expr is not None for e in expr.walk())


@dataclass(frozen=True)
class Lifted:
    """`pending`: conditions that are still to be met. `members`: the column of each parameter, if rows are members'."""

    node: Node
    pending: tuple[Expr, ...] = ()
    members: Mapping[str, Column] | None = None

    @property
    def is_free(self) -> bool:
        """Whether it is the same for all members."""
        return not self.pending and self.members is None


@dataclass(frozen=True)
class Settled:
    node: Node
    members: Mapping[str, Column]

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(self.members.values())

    @property
    def named(self) -> tuple[Named, ...]:
        return tuple(Named(c.name, reference(c)) for c in self.columns)

    def see(self, expr: Expr) -> Expr:
        """The expression with the member's columns for parameters."""
        return seen(expr, self.members)

    def call(self, call: Call) -> Call:
        condition = None if call.filter is None else self.see(call.filter)
        return replace(call, args=tuple(self.see(a) for a in call.args), filter=condition)

    def order(self, order: Iterable[Order]) -> tuple[Order, ...]:
        return tuple(replace(o, expr=self.see(o.expr)) for o in order)

    @property
    def lifted(self) -> Lifted:
        return Lifted(self.node, (), self.members)


def seen(expr: Expr, members: Mapping[str, Column]) -> Expr:
    if expr.op == PARAMETER:
        return reference(members[expr.value])
    return replace(expr, args=tuple(seen(a, members) for a in expr.args)) if expr.args else expr


@dataclass(frozen=True)
class _Lifting:
    table: Table
    numbers: count[int]

    def fresh(self, type_: Type, nullable: bool = True) -> Column:
        return Column(f"c{next(self.numbers)}", type_, nullable)

    def scan(self) -> nodes.Scan:
        """The members: a scan of the parameters, with columns of its own."""
        return nodes.Scan(self.table.id, tuple((self.fresh(c.type, False), c.inside) for c in self.table.key_columns))

    def members_of(self, columns: Sequence[Column]) -> Mapping[str, Column]:
        return {c.name.lower(): mine for c, mine in zip(self.table.key_columns, columns, strict=True)}

    def settled(self, lifted: Lifted) -> Settled:
        if lifted.members is None:
            scan = self.scan()
            members = self.members_of(scan.columns)
            condition = conjunction([seen(c, members) for c in lifted.pending])
            return Settled(nodes.Members(lifted.node, scan, condition), members)
        condition = conjunction([seen(c, lifted.members) for c in lifted.pending])
        node = lifted.node if condition is None else nodes.Filter(lifted.node, condition)
        return Settled(node, lifted.members)

    def settled_at_root(self, root: Node) -> Settled:
        return self.settled(self.lift(root))

    def lift(self, node: Node) -> Lifted:
        handler = _HANDLERS.get(node.kind)
        if handler is None:
            raise Unsupported(f"{node.kind.upper()} is not supported in a family of views.")
        return handler(self, node)


def _scan(lifting: _Lifting, node: nodes.Scan) -> Lifted:
    return Lifted(node)


def _filter(lifting: _Lifting, node: nodes.Filter) -> Lifted:
    child = lifting.lift(node.child)
    now: list[Expr] = []
    later = list(child.pending)
    for condition in conjuncts(node.condition):
        # What can fail must not be tried on rows that a condition before it would have kept away.
        waits = has_parameters(condition) or (later and raises_over(condition))
        (later if waits else now).append(condition)
    below = conjunction(now)
    return Lifted(child.node if below is None else nodes.Filter(child.node, below), tuple(later), child.members)


def raises_over(expr: Expr) -> bool:
    """Whether it can fail, a parameter being a value."""
    return raises([over_columns(expr)])


def over_columns(expr: Expr) -> Expr:
    if expr.op == PARAMETER:
        return Expr("column", expr.type, value=str(expr.value), nullable=expr.nullable)
    return replace(expr, args=tuple(over_columns(a) for a in expr.args)) if expr.args else expr


def _project(lifting: _Lifting, node: nodes.Project) -> Lifted:
    child = lifting.lift(node.child)
    if has_parameters(*(n.expr for n in node.exprs)) or (child.pending and raises_over_any(node.exprs)):
        child = lifting.settled(child).lifted
    exprs = [Named(n.name, n.expr if child.members is None else seen(n.expr, child.members)) for n in node.exprs]
    wanted = frozenset().union(*(c.columns() for c in child.pending))
    wanted |= {c.name for c in (child.members or {}).values()}
    given = {n.name for n in exprs}
    exprs += [Named(c.name, reference(c)) for c in child.node.columns if c.name in wanted - given]
    return Lifted(nodes.Project(child.node, tuple(exprs)), child.pending, child.members)


def raises_over_any(exprs: Iterable[Named]) -> bool:
    return any(raises_over(n.expr) for n in exprs)


def _join(lifting: _Lifting, node: nodes.Join) -> Lifted:
    if node.how == "right":
        return _join(lifting, replace(node, how="left", left=node.right, right=node.left))
    left, right = lifting.lift(node.left), lifting.lift(node.right)
    conditions = conjuncts(node.condition)
    if node.how == "inner":
        return _inner(lifting, left, right, conditions)
    if right.is_free and not has_parameters(*conditions) and node.how != "full":
        return Lifted(replace(node, left=left.node, right=right.node), left.pending, left.members)
    if left.is_free and right.is_free and not has_parameters(*conditions):
        return Lifted(replace(node, left=left.node, right=right.node))
    one = lifting.settled(left)
    if node.how == "full" or right.members is not None:
        other = lifting.settled(right)
        here = [*(one.see(c) for c in conditions), *_same(one, other)]
        joined = replace(node, left=one.node, right=other.node, condition=conjunction(here))
        return _coalesced(lifting, joined, one, other) if node.how == "full" else Lifted(joined, (), one.members)
    here = [one.see(c) for c in (*conditions, *right.pending)]
    return Lifted(replace(node, left=one.node, right=right.node, condition=conjunction(here)), (), one.members)


def _inner(lifting: _Lifting, left: Lifted, right: Lifted, conditions: Sequence[Expr]) -> Lifted:
    now = [c for c in conditions if not has_parameters(c)]
    pending = (*left.pending, *right.pending, *(c for c in conditions if has_parameters(c)))
    if left.members is not None and right.members is not None:
        now += _same(Settled(left.node, left.members), Settled(right.node, right.members))
    joined = nodes.Join("inner", left.node, right.node, conjunction(now))
    return Lifted(joined, pending, left.members if left.members is not None else right.members)


def _same(one: Settled, other: Settled) -> list[Expr]:
    """Rows of one member meet rows of the same."""
    return [
        Expr("EqualTo", types.BOOLEAN, (reference(a), reference(other.members[name])), nullable=False)
        for name, a in one.members.items()
    ]


def _coalesced(lifting: _Lifting, joined: nodes.Join, one: Settled, other: Settled) -> Lifted:
    """Of a full join either side may say whose the row is."""
    members = {name: lifting.fresh(c.type, False) for name, c in one.members.items()}
    either = [
        Named(members[name].name, Expr("Coalesce", a.type, tuple(map(reference, (a, other.members[name])))))
        for name, a in one.members.items()
    ]
    kept = [Named(c.name, reference(c)) for c in joined.columns]
    return Lifted(nodes.Project(joined, (*kept, *either)), (), members)


def _aggregate(lifting: _Lifting, node: nodes.Aggregate) -> Lifted:
    child = lifting.lift(node.child)
    inside = [
        *(k.expr for k in node.keys),
        *(a for c in node.calls for a in (*c.args, *([c.filter] if c.filter else ()))),
    ]
    if child.is_free and not has_parameters(*inside):
        return Lifted(replace(node, child=child.node))
    settled = lifting.settled(child)
    keys = tuple(Named(lifting.fresh(c.type, False).name, reference(c)) for c in settled.columns)
    members = lifting.members_of([k.column for k in keys])
    calls = tuple(settled.call(c) for c in node.calls)
    if node.keys:
        own = tuple(Named(k.name, settled.see(k.expr)) for k in node.keys)
        return Lifted(nodes.Aggregate(settled.node, (*keys, *own), calls), (), members)
    below, calls = _over_nothing(lifting, settled, calls)
    return Lifted(nodes.Aggregate(below, keys, calls), (), members)


def _over_nothing(lifting: _Lifting, settled: Settled, calls: tuple[Call, ...]) -> tuple[Node, tuple[Call, ...]]:
    """A global aggregate has a row over nothing too: each member brings a row of NULLs, which no call counts."""
    one = lifting.fresh(types.INT)
    exprs: dict[str, Named] = {n.name: n for n in (*settled.named, Named(one.name, _ONE))}
    made: list[Call] = []
    there = Expr("IsNotNull", types.BOOLEAN, (reference(one),), nullable=False)
    for call in calls:
        if is_sum(call):
            argument = call_argument(call) or _ONE
            column = lifting.fresh(argument.type)
            exprs[column.name] = Named(column.name, argument)
            made.append(replace(call, args=(reference(column),), filter=None))
        else:
            condition = there if call.filter is None else Expr("And", types.BOOLEAN, (there, call.filter))
            made.append(replace(call, filter=condition))
            used = frozenset().union(*(a.columns() for a in (*call.args, condition)))
            given = (Named(c.name, reference(c)) for c in settled.node.columns if c.name in used)
            exprs |= {n.name: n for n in given if n.name not in exprs}
    return nodes.Seeded(nodes.Project(settled.node, tuple(exprs.values())), lifting.scan(), settled.columns), tuple(
        made
    )


def _union(lifting: _Lifting, node: nodes.Union) -> Lifted:
    children = [lifting.lift(child) for child in node.inputs]
    if all(child.is_free for child in children):
        return Lifted(replace(node, inputs=tuple(c.node for c in children)))
    inputs = []
    for child, was in zip(map(lifting.settled, children), node.inputs, strict=True):
        own = tuple(Named(c.name, reference(c)) for c in was.columns)
        inputs.append(nodes.Project(child.node, (*child.named, *own)))
    output = [lifting.fresh(c.type, False) for c in lifting.table.key_columns]
    return Lifted(nodes.Union(tuple(inputs), (*output, *node.output)), (), lifting.members_of(output))


def _sort(lifting: _Lifting, node: nodes.Sort) -> Lifted:
    child = lifting.lift(node.child)
    if child.is_free and not has_parameters(*(o.expr for o in node.order)):
        return Lifted(replace(node, child=child.node))
    settled = lifting.settled(child)
    order = (*(Order(reference(c)) for c in settled.columns), *settled.order(node.order))
    return Lifted(nodes.Sort(settled.node, order), (), settled.members)


def _limit(lifting: _Lifting, node: nodes.Limit) -> Lifted:
    """The first rows of each member: those with the first numbers."""
    child = lifting.lift(node.child)
    if child.is_free:
        return Lifted(replace(node, child=child.node))
    order = node.child.order if isinstance(node.child, nodes.Sort) else ()
    below = lifting.settled(lifting.lift(node.child.child) if isinstance(node.child, nodes.Sort) else child)
    number = lifting.fresh(types.INT, False)
    frame = (("frame", ("rows", "unbounded preceding", "current row")),)
    call = Call(number.name, "RowNumber", (), types.INT, value=frame, nullable=False)
    partition = tuple(map(reference, below.columns))
    window = nodes.Window(below.node, partition, below.order(order), (call,))
    last = None if node.count is None else node.count + node.offset
    tests = [("GreaterThan", node.offset)] if node.offset else []
    tests += [] if last is None else [("LessThanOrEqual", last)]
    conditions = [
        Expr(
            op,
            types.BOOLEAN,
            (reference(number), Expr("literal", types.INT, value=value, nullable=False)),
            nullable=False,
        )
        for op, value in tests
    ]
    condition = conjunction(conditions)
    return Lifted(window if condition is None else nodes.Filter(window, condition), (), below.members)


def _window(lifting: _Lifting, node: nodes.Window) -> Lifted:
    child = lifting.lift(node.child)
    inside = [*node.partition, *(o.expr for o in node.order), *(a for c in node.calls for a in c.args)]
    if child.is_free and not has_parameters(*inside):
        return Lifted(replace(node, child=child.node))
    below = lifting.settled(child)
    partition = (*map(reference, below.columns), *(below.see(p) for p in node.partition))
    calls = tuple(below.call(c) for c in node.calls)
    return Lifted(nodes.Window(below.node, partition, below.order(node.order), calls), (), below.members)


def _expand(lifting: _Lifting, node: nodes.Expand) -> Lifted:
    child = lifting.lift(node.child)
    if child.is_free and not has_parameters(*(e for p in node.projections for e in p)):
        return Lifted(replace(node, child=child.node))
    below = lifting.settled(child)
    members = [lifting.fresh(c.type, False) for c in below.columns]
    rows = tuple((*map(reference, below.columns), *(below.see(e) for e in p)) for p in node.projections)
    return Lifted(nodes.Expand(below.node, rows, (*members, *node.output)), (), lifting.members_of(members))


def _generate(lifting: _Lifting, node: nodes.Generate) -> Lifted:
    child = lifting.lift(node.child)
    if child.is_free and not has_parameters(node.generator):
        return Lifted(replace(node, child=child.node))
    below = lifting.settled(child)
    kept = (*node.kept, *below.columns)
    return Lifted(replace(node, child=below.node, generator=below.see(node.generator), kept=kept), (), below.members)


_HANDLERS: Mapping[str, Callable[[_Lifting, Any], Lifted]] = {
    "scan": _scan,
    "filter": _filter,
    "project": _project,
    "join": _join,
    "aggregate": _aggregate,
    "union": _union,
    "sort": _sort,
    "limit": _limit,
    "window": _window,
    "expand": _expand,
    "generate": _generate,
}
