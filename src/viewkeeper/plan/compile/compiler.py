"""Compile a logical plan to operators.

Linear nodes rewrite branches (see `branch`); each node that needs the rows of a key together becomes an operator. The
table `NODE_COMPILERS` has one function for each node kind. Joins are compiled in `joins`, and functions of a key's rows
in `per_key`. The result is deterministic: the same plan and sizes give the same operators with the same ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from viewkeeper.errors import Unsupported
from viewkeeper.model.schema import Column, Table, column_from_json
from viewkeeper.operators.aggregation.shared_measures import overflow_checks
from viewkeeper.operators.aggregation.spec import AggregateSpec
from viewkeeper.operators.kinds import Aggregate, Consolidate, Input, Sink, TableImage
from viewkeeper.operators.operator import Operator
from viewkeeper.plan.compile import joins, per_key
from viewkeeper.plan.compile.branch import Branch, CompiledNode, can_any_raise, column_reference, positional_columns
from viewkeeper.plan.compile.join_tree import flatten
from viewkeeper.plan.compile.measures import is_incremental, make_measure, value_arguments
from viewkeeper.plan.dataflow.shared_aggregates import SharedMeasures
from viewkeeper.plan.families import compile as families_compile
from viewkeeper.plan.logical import nodes
from viewkeeper.plan.logical.nodes import Expr, Named, Node, Query, column

T = TypeVar("T", bound=Operator)


@dataclass(frozen=True)
class ViewPlan:
    """The part of a view's plan that the catalog stores."""

    query: Query
    sizes: Mapping[int, int]
    """Rows of each base table when the view was created, for cardinality estimates; stored so that the plan is
    stable."""
    lazy_key: tuple[str, ...] | None = None
    """Key columns of a lazy view, for which only what lookups by this key need is kept (`key_propagation`);
    else None."""
    shared_measures: SharedMeasures | None = None
    """The measures that the view's last aggregate shares with other views."""
    compiled_cache: list[Any] = field(default_factory=list, compare=False, repr=False)
    """Compiled forms of the view, for the next request (`compiled_view`)."""

    @cached_property
    def reads(self) -> frozenset[int]:
        """The tables and views that the query names."""
        return frozenset(node.table for node in self.query.root.walk() if isinstance(node, nodes.Scan))

    def to_json(self) -> dict[str, Any]:
        return {
            "root": nodes.node_to_json(self.query.root),
            "output": [[name, c.name, str(c.type), c.nullable] for name, c in self.query.output],
            "sizes": {str(k): v for k, v in self.sizes.items()},
            **({} if self.lazy_key is None else {"lazy": list(self.lazy_key)}),
            **({} if self.shared_measures is None else {"united": self.shared_measures.to_json()}),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ViewPlan:
        output = tuple((name, column_from_json(c)) for name, *c in data["output"])
        sizes = {int(k): v for k, v in data["sizes"].items()}
        lazy = tuple(data["lazy"]) if "lazy" in data else None
        united = SharedMeasures.from_json(data["united"]) if "united" in data else None
        return ViewPlan(Query(nodes.node_from_json(data["root"]), output), sizes, lazy, united)


@dataclass
class Compiler:
    """Compiles views into one set of operators. `tables` and `view_plans` are by id."""

    tables: Mapping[int, Table]
    view_plans: Mapping[int, ViewPlan]
    operators: dict[str, Operator] = field(default_factory=dict)
    sizes: Mapping[int, int] = field(default_factory=dict)
    shared_measures: SharedMeasures | None = None
    """Shared measures of the view that is compiled. A view that it reads is compiled into it without shared
    measures."""
    branch_cache: dict[tuple[int, frozenset[str]], tuple[Node, SharedMeasures | None, list[Branch]]] = field(
        default_factory=dict
    )
    """Nodes of the view that are already compiled, by identity: no node is compiled twice."""

    def compile_view(self, view_id: int) -> Sink:
        """Compile a view with everything behind it, and return its sink."""
        plan = self.view_plans[view_id]
        self.sizes, self.shared_measures = plan.sizes, plan.shared_measures
        self.branch_cache.clear()
        needed = frozenset(c.name for _, c in plan.query.output)
        branches = self.consolidate_before(self.compile(strip_sort(plan.query.root), needed), [])
        exprs = [Named(f"o{i}", column_reference(c)) for i, (_, c) in enumerate(plan.query.output)]
        branches = self.consolidate_before(branches, [b.resolve(n.expr) for b in branches for n in exprs])
        return self.add_operator(Sink(view_id, tuple(b.build_segment(exprs, None) for b in branches)))

    def compile(self, node: Node, needed: frozenset[str]) -> list[Branch]:
        """Return the branches whose sum is the node, with at least the needed plan columns."""
        cached = self.branch_cache.get((id(node), needed))
        if cached is not None and cached[0] is node and cached[1] is self.shared_measures:
            return cached[2]
        handler = NODE_COMPILERS.get(node.kind)
        if handler is None:
            raise Unsupported(f"{node.kind.upper()} is not supported in a materialized view.")
        branches = handler(self, node, needed)
        self.branch_cache[id(node), needed] = node, self.shared_measures, branches
        return branches

    def add_operator(self, operator: T) -> T:
        """Return the operator, or the equal one that was added before."""
        return self.operators.setdefault(operator.id, operator)  # type: ignore[return-value]

    def add_image(self, table: int, key: tuple[str, ...]) -> TableImage:
        return self.add_operator(TableImage(table, key))

    def consolidate_before(self, branches: list[Branch], next_exprs: list[Expr]) -> list[Branch]:
        """Return branches over which `next_exprs` (in terms of the branches' sources) may run.

        A path of a join may emit combinations that another path cancels, and a branch may be there only to be
        subtracted. The branches are therefore consolidated before an expression that can raise.
        """
        if not can_any_raise(next_exprs) or not any(b.sign < 0 or b.source.has_canceling_output for b in branches):
            return branches
        # A branch may have more columns than the needed ones; other branches may lack them.
        shared = [name for name in branches[0].columns if all(name in b.columns for b in branches)]
        exprs_by_column = {name: [b.columns[name] for b in branches] for name in shared}
        columns = [
            Column(name, exprs[0].type, any(e.nullable for e in exprs)) for name, exprs in exprs_by_column.items()
        ]
        return self.consolidate(branches, columns)

    def consolidate(self, branches: list[Branch], columns: list[Column]) -> list[Branch]:
        names = positional_columns(columns, "x")
        exprs = [Named(names[c.name].name, column_reference(c)) for c in columns]
        key = tuple(n.name for n in exprs)
        operator = self.add_operator(Consolidate(tuple(b.build_segment(exprs, key) for b in branches)))
        return [Branch(operator, {c.name: column_reference(names[c.name]) for c in columns})]


def strip_sort(node: Node) -> Node:
    """Remove a Sort at the top, which only orders the view's key."""
    while isinstance(node, nodes.Sort):
        node = node.child
    return node


def _compile_scan(compiler: Compiler, node: nodes.Scan, needed: frozenset[str]) -> list[Branch]:
    needed_fields = [(c, stored) for c, stored in node.fields if c.name in needed]
    if node.table in compiler.tables:
        source = compiler.add_operator(Input(node.table))
        return [Branch(source, {c.name: column(stored, c.type, c.nullable) for c, stored in needed_fields})]
    plan = compiler.view_plans[node.table]
    inner = {name.lower(): c.name for name, c in plan.query.output}
    names = {c.name: inner[stored.lower()] for c, stored in needed_fields}
    own_measures, compiler.shared_measures = compiler.shared_measures, None
    branches = compiler.compile(strip_sort(plan.query.root), frozenset(names.values()))
    compiler.shared_measures = own_measures
    return [b.rename(names) for b in branches]


def _compile_filter(compiler: Compiler, node: nodes.Filter, needed: frozenset[str]) -> list[Branch]:
    flat_join = flatten(node, compiler.tables)
    if flat_join.is_join:  # a comparison with a scalar subquery: it decides how the scalar is looked up
        return joins.compile_flat_join(compiler, flat_join, needed)
    branches = compiler.compile(node.child, needed | node.condition.columns())
    branches = compiler.consolidate_before(branches, [b.resolve(node.condition) for b in branches])
    return [b.add_filter(node.condition) for b in branches]


def _compile_project(compiler: Compiler, node: nodes.Project, needed: frozenset[str]) -> list[Branch]:
    exprs = [n for n in node.exprs if n.name in needed]
    branches = compiler.compile(node.child, frozenset().union(*(n.expr.columns() for n in exprs)))
    branches = compiler.consolidate_before(branches, [b.resolve(n.expr) for b in branches for n in exprs])
    return [b.project(exprs) for b in branches]


def _compile_union(compiler: Compiler, node: nodes.Union, needed: frozenset[str]) -> list[Branch]:
    positions = [i for i, c in enumerate(node.output) if c.name in needed]
    result: list[Branch] = []
    for child in node.inputs:
        names = {node.output[i].name: child.columns[i].name for i in positions}
        result.extend(b.rename(names) for b in compiler.compile(child, frozenset(names.values())))
    return result


def _compile_expand(compiler: Compiler, node: nodes.Expand, needed: frozenset[str]) -> list[Branch]:
    positions = [i for i, c in enumerate(node.output) if c.name in needed]
    inner = frozenset().union(*(p[i].columns() for p in node.projections for i in positions))
    branches = compiler.compile(node.child, inner)
    projections = [[Named(node.output[i].name, p[i]) for i in positions] for p in node.projections]
    branches = compiler.consolidate_before(
        branches, [b.resolve(n.expr) for b in branches for p in projections for n in p]
    )
    return [b.project(p) for p in projections for b in branches]


def _compile_consolidation(compiler: Compiler, node: nodes.Consolidation, needed: frozenset[str]) -> list[Branch]:
    columns = [c for c in node.columns if c.name in needed]
    return compiler.consolidate(compiler.compile(node.child, needed), columns)


def _compile_generate(compiler: Compiler, node: nodes.Generate, needed: frozenset[str]) -> list[Branch]:
    """Repeat rows for INTERSECT ALL and EXCEPT ALL: multiply the weight."""
    if node.generator.op != "ReplicateRows":
        raise Unsupported(
            f"{node.generator.op.lower()} is not supported in a materialized view.",
            hint="Make the rows with UNPIVOT, UNION ALL or a join of VALUES, or keep the elements in a table.",
        )
    count, *values = node.generator.args
    carried = [Named(c.name, column_reference(c)) for c in node.child_columns if c.name in needed]
    generated = [Named(c.name, v) for c, v in zip(node.output, values, strict=True) if c.name in needed]
    inner = count.columns().union(*(n.expr.columns() for n in [*carried, *generated]))
    branches = compiler.compile(node.child, inner)
    branches = compiler.consolidate_before(
        branches, [b.resolve(e) for b in branches for e in [count, *(n.expr for n in generated)]]
    )
    return [replace(b.project([*carried, *generated]), times=(*b.times, b.resolve(count))) for b in branches]


def _compile_aggregate(compiler: Compiler, node: nodes.Aggregate, needed: frozenset[str]) -> list[Branch]:
    calls = tuple(c for c in node.calls if c.name in needed)
    if (family_branches := families_compile.compile_family_aggregate(compiler, node, calls)) is not None:
        return family_branches
    if not all(map(is_incremental, calls)):
        return per_key.compile_per_key_aggregate(compiler, node, calls, is_incremental)
    arguments: dict[Expr, str] = {}
    measures = [make_measure(call, arguments, f"m{i}") for i, call in enumerate(calls)]
    keys = [Named(f"k{i}", key.expr) for i, key in enumerate(node.keys)]
    exprs = [*keys, *(Named(name, expr) for expr, name in arguments.items())]
    branches = compiler.compile(node.child, frozenset().union(*(n.expr.columns() for n in exprs)))
    branches = compiler.consolidate_before(branches, [b.resolve(n.expr) for b in branches for n in exprs])
    spec = AggregateSpec(tuple(k.column for k in keys), tuple(measures))
    source = tuple(b.build_segment(exprs, None) for b in branches)
    operator = Aggregate(source, spec, 1 + len(value_arguments(spec)))
    shared = None if compiler.shared_measures is None else compiler.shared_measures.find_aggregate(operator)
    if shared is not None:
        operator, measures = shared
    names = {key.name: column_reference(k) for key, k in zip(node.keys, spec.keys, strict=True)}
    names |= {call.name: column(m.name, call.type, call.nullable) for call, m in zip(calls, measures, strict=True)}
    return [Branch(compiler.add_operator(operator), names, () if shared is None else overflow_checks(measures))]


def _compiled_branches(compiler: Compiler, node: CompiledNode, needed: frozenset[str]) -> list[Branch]:
    return list(node.branches)


NODE_COMPILERS: Mapping[str, Callable[[Compiler, Any, frozenset[str]], list[Branch]]] = {
    "scan": _compile_scan,
    "filter": _compile_filter,
    "project": _compile_project,
    "union": _compile_union,
    "expand": _compile_expand,
    "aggregate": _compile_aggregate,
    "join": joins.compile_join,
    "given": _compiled_branches,
    "generate": _compile_generate,
    "steady": _compile_consolidation,
    "members": families_compile.compile_member_join,
    "seeded": families_compile.compile_member_seeds,
    "window": per_key.compile_window,
    "sort": lambda compiler, node, needed: compiler.compile(node.child, needed),
    "limit": per_key.compile_limit,
}
