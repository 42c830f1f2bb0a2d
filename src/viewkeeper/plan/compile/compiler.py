"""From a logical plan to operators.

Linear nodes rewrite branches (see `branches`); each node that needs rows of a key together becomes an operator. One
handler a node kind, in the visible table `HANDLERS`; joins live in `joins`, functions of a key's rows in `slices`.
The result is deterministic: the same plan and the same hints give the same operators, with the same ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from viewkeeper.errors import Unsupported
from viewkeeper.model.schema import Column, Table, column_of
from viewkeeper.operators.aggregation.shared_measures import all_fit
from viewkeeper.operators.aggregation.spec import AggregateSpec
from viewkeeper.operators.kinds import Aggregate, Consolidate, Image, Input, Sink
from viewkeeper.operators.operator import Operator
from viewkeeper.plan.compile import joins, per_key
from viewkeeper.plan.compile.branch import Branch, Given, positional, raises, reference
from viewkeeper.plan.compile.join_tree import flatten
from viewkeeper.plan.compile.measures import is_sum, measure_of, value_arguments
from viewkeeper.plan.dataflow.shared_aggregates import United
from viewkeeper.plan.families import compile as families_compile
from viewkeeper.plan.logical import nodes
from viewkeeper.plan.logical.nodes import Expr, Named, Node, Query, column

T = TypeVar("T", bound=Operator)


@dataclass(frozen=True)
class ViewPlan:
    """What the catalog keeps of a view's plan."""

    query: Query
    sizes: Mapping[int, int]
    """Rows of each base table when the view was made: the cost model's hint, kept so that a plan stays as it is."""
    lazy: tuple[str, ...] | None = None
    """Of a lazy view, the columns of its key: only what lookups by it need is kept (`narrowing`)."""
    united: United | None = None
    """What its last aggregate keeps together with those of other views."""
    compiled: list[Any] = field(default_factory=list, compare=False, repr=False)
    """What it was compiled to, for the next time (`compiled`)."""

    @cached_property
    def reads(self) -> frozenset[int]:
        """The tables and views that the query names."""
        return frozenset(node.table for node in self.query.root.walk() if isinstance(node, nodes.Scan))

    def to_json(self) -> dict[str, Any]:
        return {
            "root": nodes.node_to_json(self.query.root),
            "output": [[name, c.name, str(c.type), c.nullable] for name, c in self.query.output],
            "sizes": {str(k): v for k, v in self.sizes.items()},
            **({} if self.lazy is None else {"lazy": list(self.lazy)}),
            **({} if self.united is None else {"united": self.united.to_json()}),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ViewPlan:
        output = tuple((name, column_of(c)) for name, *c in data["output"])
        sizes = {int(k): v for k, v in data["sizes"].items()}
        lazy = tuple(data["lazy"]) if "lazy" in data else None
        united = United.from_json(data["united"]) if "united" in data else None
        return ViewPlan(Query(nodes.node_from_json(data["root"]), output), sizes, lazy, united)


@dataclass
class Compiler:
    """Compiles views into one set of operators. `tables` and `views` by id."""

    tables: Mapping[int, Table]
    views: Mapping[int, ViewPlan]
    operators: dict[str, Operator] = field(default_factory=dict)
    sizes: Mapping[int, int] = field(default_factory=dict)
    united: United | None = None
    """What the view that is compiled keeps with others. A view that it reads is compiled into it as it is by itself."""
    compiled: dict[tuple[int, frozenset[str]], tuple[Node, United | None, list[Branch]]] = field(default_factory=dict)
    """Nodes of the view that were compiled before, by identity: nothing is compiled twice."""

    def view(self, view_id: int) -> Sink:
        """The sink of a view, with everything behind it."""
        plan = self.views[view_id]
        self.sizes, self.united = plan.sizes, plan.united
        self.compiled.clear()
        needed = frozenset(c.name for _, c in plan.query.output)
        branches = self.settled(self.compile(without_sort(plan.query.root), needed), [])
        exprs = [Named(f"o{i}", reference(c)) for i, (_, c) in enumerate(plan.query.output)]
        branches = self.settled(branches, [b.see(n.expr) for b in branches for n in exprs])
        return self.add(Sink(view_id, tuple(b.segment(exprs, None) for b in branches)))

    def compile(self, node: Node, needed: frozenset[str]) -> list[Branch]:
        """The branches whose sum is the node, with at least the needed plan columns."""
        known = self.compiled.get((id(node), needed))
        if known is not None and known[0] is node and known[1] is self.united:
            return known[2]
        handler = HANDLERS.get(node.kind)
        if handler is None:
            raise Unsupported(f"{node.kind.upper()} is not supported in a materialized view.")
        branches = handler(self, node, needed)
        self.compiled[id(node), needed] = node, self.united, branches
        return branches

    def add(self, operator: T) -> T:
        """The operator, or the equal one that another view made."""
        return self.operators.setdefault(operator.id, operator)  # type: ignore[return-value]

    def image(self, table: int, key: tuple[str, ...]) -> Image:
        return self.add(Image(table, key))

    def settled(self, branches: list[Branch], upcoming: list[Expr]) -> list[Branch]:
        """Branches over which `upcoming` (in terms of the branches' sources) may run.

        The paths of a join may bring combinations that another path takes back, and a branch may be there to be
        subtracted; before an expression that can raise they are added up.
        """
        if not raises(upcoming) or not any(b.sign < 0 or b.source.may_cancel for b in branches):
            return branches
        # A branch may have columns beside those that are needed, which another one has not.
        shared = [name for name in branches[0].columns if all(name in b.columns for b in branches)]
        seen = {name: [b.columns[name] for b in branches] for name in shared}
        columns = [Column(name, exprs[0].type, any(e.nullable for e in exprs)) for name, exprs in seen.items()]
        return self.consolidated(branches, columns)

    def consolidated(self, branches: list[Branch], columns: list[Column]) -> list[Branch]:
        names = positional(columns, "x")
        exprs = [Named(names[c.name].name, reference(c)) for c in columns]
        key = tuple(n.name for n in exprs)
        operator = self.add(Consolidate(tuple(b.segment(exprs, key) for b in branches)))
        return [Branch(operator, {c.name: reference(names[c.name]) for c in columns})]


def without_sort(node: Node) -> Node:
    """A Sort at the top only orders the view's key."""
    while isinstance(node, nodes.Sort):
        node = node.child
    return node


def _scan(compiler: Compiler, node: nodes.Scan, needed: frozenset[str]) -> list[Branch]:
    wanted = [(c, stored) for c, stored in node.fields if c.name in needed]
    if node.table in compiler.tables:
        source = compiler.add(Input(node.table))
        return [Branch(source, {c.name: column(stored, c.type, c.nullable) for c, stored in wanted})]
    plan = compiler.views[node.table]
    inner = {name.lower(): c.name for name, c in plan.query.output}
    names = {c.name: inner[stored.lower()] for c, stored in wanted}
    own, compiler.united = compiler.united, None
    branches = compiler.compile(without_sort(plan.query.root), frozenset(names.values()))
    compiler.united = own
    return [b.renamed(names) for b in branches]


def _filter(compiler: Compiler, node: nodes.Filter, needed: frozenset[str]) -> list[Branch]:
    flat = flatten(node, compiler.tables)
    if flat.is_join:  # a comparison with a scalar: it decides how the scalar is looked up
        return joins.flat_join(compiler, flat, needed)
    branches = compiler.compile(node.child, needed | node.condition.columns())
    branches = compiler.settled(branches, [b.see(node.condition) for b in branches])
    return [b.filtered(node.condition) for b in branches]


def _project(compiler: Compiler, node: nodes.Project, needed: frozenset[str]) -> list[Branch]:
    exprs = [n for n in node.exprs if n.name in needed]
    branches = compiler.compile(node.child, frozenset().union(*(n.expr.columns() for n in exprs)))
    branches = compiler.settled(branches, [b.see(n.expr) for b in branches for n in exprs])
    return [b.projected(exprs) for b in branches]


def _union(compiler: Compiler, node: nodes.Union, needed: frozenset[str]) -> list[Branch]:
    places = [i for i, c in enumerate(node.output) if c.name in needed]
    result: list[Branch] = []
    for child in node.inputs:
        names = {node.output[i].name: child.columns[i].name for i in places}
        result.extend(b.renamed(names) for b in compiler.compile(child, frozenset(names.values())))
    return result


def _expand(compiler: Compiler, node: nodes.Expand, needed: frozenset[str]) -> list[Branch]:
    places = [i for i, c in enumerate(node.output) if c.name in needed]
    inner = frozenset().union(*(p[i].columns() for p in node.projections for i in places))
    branches = compiler.compile(node.child, inner)
    projections = [[Named(node.output[i].name, p[i]) for i in places] for p in node.projections]
    branches = compiler.settled(branches, [b.see(n.expr) for b in branches for p in projections for n in p])
    return [b.projected(p) for p in projections for b in branches]


def _steady(compiler: Compiler, node: nodes.Steady, needed: frozenset[str]) -> list[Branch]:
    columns = [c for c in node.columns if c.name in needed]
    return compiler.consolidated(compiler.compile(node.child, needed), columns)


def _generate(compiler: Compiler, node: nodes.Generate, needed: frozenset[str]) -> list[Branch]:
    """Rows repeated as INTERSECT ALL and EXCEPT ALL do it: the weight is multiplied."""
    if node.generator.op != "ReplicateRows":
        raise Unsupported(
            f"{node.generator.op.lower()} is not supported in a materialized view.",
            hint="Make the rows with UNPIVOT, UNION ALL or a join of VALUES, or keep the elements in a table.",
        )
    count, *values = node.generator.args
    kept = [Named(c.name, reference(c)) for c in node.kept if c.name in needed]
    made = [Named(c.name, v) for c, v in zip(node.output, values, strict=True) if c.name in needed]
    inner = count.columns().union(*(n.expr.columns() for n in [*kept, *made]))
    branches = compiler.compile(node.child, inner)
    branches = compiler.settled(branches, [b.see(e) for b in branches for e in [count, *(n.expr for n in made)]])
    return [replace(b.projected([*kept, *made]), times=(*b.times, b.see(count))) for b in branches]


def _aggregate(compiler: Compiler, node: nodes.Aggregate, needed: frozenset[str]) -> list[Branch]:
    calls = tuple(c for c in node.calls if c.name in needed)
    if (of_members := families_compile.aggregate(compiler, node, calls)) is not None:
        return of_members
    if not all(map(is_sum, calls)):
        return per_key.aggregate(compiler, node, calls, is_sum)
    arguments: dict[Expr, str] = {}
    measures = [measure_of(call, arguments, f"m{i}") for i, call in enumerate(calls)]
    keys = [Named(f"k{i}", key.expr) for i, key in enumerate(node.keys)]
    exprs = [*keys, *(Named(name, expr) for expr, name in arguments.items())]
    branches = compiler.compile(node.child, frozenset().union(*(n.expr.columns() for n in exprs)))
    branches = compiler.settled(branches, [b.see(n.expr) for b in branches for n in exprs])
    spec = AggregateSpec(tuple(k.column for k in keys), tuple(measures))
    source = tuple(b.segment(exprs, None) for b in branches)
    operator = Aggregate(source, spec, 1 + len(value_arguments(spec)))
    shared = None if compiler.united is None else compiler.united.place(operator)
    if shared is not None:
        operator, measures = shared
    names = {key.name: reference(k) for key, k in zip(node.keys, spec.keys, strict=True)}
    names |= {call.name: column(m.name, call.type, call.nullable) for call, m in zip(calls, measures, strict=True)}
    return [Branch(compiler.add(operator), names, () if shared is None else all_fit(measures))]


def _given(compiler: Compiler, node: Given, needed: frozenset[str]) -> list[Branch]:
    return list(node.branches)


HANDLERS: Mapping[str, Callable[[Compiler, Any, frozenset[str]], list[Branch]]] = {
    "scan": _scan,
    "filter": _filter,
    "project": _project,
    "union": _union,
    "expand": _expand,
    "aggregate": _aggregate,
    "join": joins.join,
    "given": _given,
    "generate": _generate,
    "steady": _steady,
    "members": families_compile.members,
    "seeded": families_compile.seeded,
    "window": per_key.window,
    "sort": lambda compiler, node, needed: compiler.compile(node.child, needed),
    "limit": per_key.limit,
}
