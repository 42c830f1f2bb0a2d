"""Inner joins as lookup paths, with no intermediate result.

    Δ(R₁⋈…⋈Rₙ) = Σᵢ R₁ⁿᵉʷ⋈…⋈Rᵢ₋₁ⁿᵉʷ ⋈ ΔRᵢ ⋈ Rᵢ₊₁ᵒˡᵈ⋈…⋈Rₙᵒˡᵈ

All inner joins that touch are flattened into relations, equalities between two relations (edges) and other
conditions. For each relation there is one path: its delta is looked up in the other relations, one after the other,
each by the edges that the bound ones give. A base table is looked up in an image shared by (table, key); the view's
own filter on it runs after the lookup. A first load in the driver runs the whole join as one statement instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from viewkeeper.errors import Defect
from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.operators.kinds import Arrange, BulkJoin, Lookup
from viewkeeper.operators.operator import Operator
from viewkeeper.plan import presence, thresholds
from viewkeeper.plan.branches import Branch, conjunction, conjuncts, positional, raises, reference, substitute
from viewkeeper.plan.keys import Keyed, keyed
from viewkeeper.plan.nodes import Expr, Filter, Join, Named, Node, Project
from viewkeeper.plan.unique import unique_keys

if TYPE_CHECKING:
    from viewkeeper.plan.compiler import Compiler


@dataclass(frozen=True)
class Edge:
    """`left` of relation `a` equals `right` of relation `b`."""

    a: int
    b: int
    left: Expr
    right: Expr
    null_safe: bool

    def side(self, relation: int) -> Expr:
        return self.left if relation == self.a else self.right

    def other(self, relation: int) -> int:
        return self.b if relation == self.a else self.a


@dataclass(frozen=True)
class Relation:
    """One input of the join: its branches, the plan columns that it must give, and its size for the cost model."""

    branches: list[Branch]
    columns: tuple[Column, ...]
    size: float
    """Rows before its own conditions, as far as the cost model knows."""
    share: float
    """The part of them that the conditions keep: a guess."""
    unique: tuple[frozenset[str], ...]
    """Sets of plan columns that are proven unique."""
    computed: bool
    """Whether the join compares a column that can raise: it is made when a row comes, so the rows are kept with it."""

    @property
    def rows(self) -> float:
        return self.size * self.share

    @property
    def table(self) -> int | None:
        """The base table that it is, seen through its own conditions; None if it is computed."""
        return self.branches[0].source.changes_of if len(self.branches) == 1 and not self.computed else None

    def stored(self, expr: Expr) -> str | None:
        """The base column behind an expression, if it is nothing but one."""
        seen = self.branches[0].see(expr) if self.table is not None else None
        return seen.value if seen is not None and seen.op == "column" else None


def join(compiler: Compiler, node: Join, needed: frozenset[str]) -> list[Branch]:
    return inner(compiler, node, needed) if node.how == "inner" else presence.join(compiler, keyed(node), needed)


def inner(compiler: Compiler, node: Node, needed: frozenset[str]) -> list[Branch]:
    """Inner joins that touch, with the filters and projections on them."""
    inputs, conditions, output = flattened(node)
    owner = {c.name: i for i, child in enumerate(inputs) for c in child.columns}
    wanted = {name: expr for name, expr in output.items() if name in needed}
    edges, local, rest = _classify(conditions, owner)
    compared = frozenset().union(*(c.columns() for c in conditions))
    used = compared.union(*(e.columns() for e in wanted.values()))
    relations = [_relation(compiler, child, local[i], used, compared) for i, child in enumerate(inputs)]
    late = [c for c in rest if raises([c])]
    early = [c for c in rest if not raises([c])]
    keep = frozenset().union(*(e.columns() for e in [*wanted.values(), *late]))
    order = sorted(range(len(relations)), key=lambda i: (relations[i].rows, i))
    branches = [_path(compiler, relations, edges, early, keep, start, order) for start in range(len(relations))]
    branches.append(_bulk(compiler, relations, edges, early, keep))
    if late:
        columns = [c for r in relations for c in r.columns if c.name in keep]
        branches = [b.filtered(conjunction(late)) for b in compiler.consolidated(branches, columns)]
    exprs = [Named(name, expr) for name, expr in wanted.items()]
    branches = compiler.settled(branches, [b.see(n.expr) for b in branches for n in exprs])
    return [b.projected(exprs) for b in branches]


def flattened(node: Node) -> tuple[list[Node], list[Expr], dict[str, Expr]]:
    """The relations below touching inner joins, all conditions, and the node's columns over the relations' columns."""
    if isinstance(node, Join):
        node = keyed(node)
    if isinstance(node, Join) and node.how == "semi" and presence.equalities(node):
        return flattened(presence.as_inner(node))
    if isinstance(node, Join) and node.how == "inner":
        left, left_conditions, left_columns = flattened(node.left)
        right, right_conditions, right_columns = flattened(node.right)
        columns = left_columns | right_columns
        own = [substitute(c, columns) for c in conjuncts(node.condition)]
        return left + right, left_conditions + right_conditions + own, columns
    if isinstance(node, Filter) and holds_join(node.child):
        inputs, conditions, columns = flattened(node.child)
        return inputs, conditions + [substitute(c, columns) for c in conjuncts(node.condition)], columns
    if isinstance(node, Project) and not isinstance(node, Keyed) and holds_join(node.child):
        inputs, conditions, columns = flattened(node.child)
        return inputs, conditions, {n.name: substitute(n.expr, columns) for n in node.exprs}
    return [node], [], {c.name: reference(c) for c in node.columns}


def holds_join(node: Node) -> bool:
    """Whether it is an inner join, or filters and projections on one."""
    while isinstance(node, (Filter, Project)) and not isinstance(node, Keyed):
        node = node.child
    return isinstance(node, Join) and (
        node.how == "inner" or (node.how == "semi" and presence.equalities(keyed(node)) is not None)
    )


def _classify(
    conditions: Sequence[Expr], owner: dict[str, int]
) -> tuple[list[Edge], dict[int, list[Expr]], list[Expr]]:
    """Edges, conditions on one relation, and the rest."""
    edges: list[Edge] = []
    local: dict[int, list[Expr]] = {i: [] for i in owner.values()}
    rest: list[Expr] = []
    for condition in conditions:
        touched = {owner[c] for c in condition.columns()}
        if len(touched) == 1 and not raises([condition]):
            local[touched.pop()].append(condition)
        elif (edge := _edge(condition, owner)) is not None:
            edges.append(edge)
        else:
            rest.append(condition)
    return edges, local, rest


def _edge(condition: Expr, owner: dict[str, int]) -> Edge | None:
    if condition.op not in ("EqualTo", "EqualNullSafe"):
        return None
    left, right = condition.args
    a, b = ({owner[c] for c in side.columns()} for side in (left, right))
    if len(a) != 1 or len(b) != 1 or a == b or raises([left, right]):
        return None
    return Edge(a.pop(), b.pop(), left, right, condition.op == "EqualNullSafe")


def _relation(
    compiler: Compiler, node: Node, local: list[Expr], used: frozenset[str], compared: frozenset[str]
) -> Relation:
    columns = tuple(c for c in node.columns if c.name in used)
    branches = compiler.compile(node, frozenset(c.name for c in columns))
    if local:
        branches = [b.filtered(conjunction(local)) for b in branches]
    unique = tuple(frozenset(k) for k in unique_keys(node, compiler.tables))
    computed = raises(b.columns[c.name] for b in branches for c in columns if c.name in compared)
    table = branches[0].source.changes_of
    if len(branches) == 1 and table is not None:
        size = compiler.sizes.get(table, 0)
        return Relation(branches, columns, size, _share(branches[0].where), unique, computed)
    # An aggregate or a slice is smaller than what it is made of; by how much is not known before it runs.
    tables = [compiler.sizes.get(s, 0) for s in _tables(compiler, branches)]
    return Relation(branches, columns, max(tables, default=0) * 0.5, 1.0, unique, computed)


def _share(where: Sequence[Expr]) -> float:
    """A guess of the share of rows that conditions keep; a test for NULL keeps nearly all."""
    share = 1.0
    for condition in where:
        share *= {"IsNotNull": 0.95, "EqualTo": 0.1, "EqualNullSafe": 0.1}.get(condition.op, 0.4)
    return share


def _tables(compiler: Compiler, branches: Sequence[Branch]) -> set[int]:
    found: set[int] = set()
    waiting: list[Operator] = [b.source for b in branches]
    while waiting:
        operator = waiting.pop()
        if operator.changes_of is not None:
            found.add(operator.changes_of)
        waiting.extend(compiler.operators[s.source] for s in operator.segments())
    return found


def _path(
    compiler: Compiler,
    relations: list[Relation],
    edges: list[Edge],
    conditions: list[Expr],
    keep: frozenset[str],
    start: int,
    order: list[int],
) -> Branch:
    """The lookups that turn the delta of relation `start` into its share of the join's delta."""
    bound = [start]
    current = relations[start].branches
    open_edges, waiting = list(edges), list(conditions)
    last = order[-1]
    linked = frozenset(x for e in edges for x in (e.a, e.b))
    moved = thresholds.threshold(relations, start, linked, conditions, keep)
    while len(bound) < len(relations):
        if moved is not None and len(bound) == 1:
            step = moved.step
        else:
            step = _next(relations, open_edges, edges, bound, order)
        used = [e for e in open_edges if step in (e.a, e.b) and e.other(step) in bound]
        lookup_by = _lookup_edges(compiler, relations, step, used, edges)
        open_edges = [e for e in open_edges if e not in used]
        later = keep.union(
            *(c.columns() for c in waiting), *(e.side(x).columns() for e in [*used, *open_edges] for x in (e.a, e.b))
        )
        # "Before" in the law is a fixed order of the relations: here by size, so that the largest, which is last,
        # is the one whose path also serves a first load.
        fresh = order.index(step) < order.index(start)
        if moved is not None and len(bound) == 1:
            scalar = relations[start]
            branch = thresholds.lookup(compiler, scalar, relations[step], moved, later, fresh, start == last)
        else:
            branch = _lookup(compiler, relations, bound, current, step, lookup_by, later, fresh, start == last)
        bound.append(step)
        covered = {c.name for i in bound for c in relations[i].columns}
        checks = [_equality(e) for e in used]
        ready = [c for c in waiting if c.columns() <= covered]
        waiting = [c for c in waiting if c not in ready]
        for condition in [*checks, *ready]:
            branch = branch.filtered(condition)
        current = [branch]
    if len(current) == 1 and len(relations) > 1:
        return current[0]
    raise Defect("A join has at least two relations")


def _next(relations: list[Relation], links: list[Edge], edges: list[Edge], bound: list[int], order: list[int]) -> int:
    """The relation to look up next: the one after which the fewest rows are expected; crosses last."""

    def cost(i: int) -> tuple[bool, float, int]:
        mine = [e for e in links if i in (e.a, e.b) and e.other(i) in bound]
        return not mine, _fan_out(relations, i, mine, edges) * relations[i].share, order.index(i)

    return min((i for i in range(len(relations)) if i not in bound), key=cost)


def _fan_out(relations: list[Relation], index: int, links: list[Edge], edges: list[Edge]) -> float:
    """How many rows of a relation are expected for one row that is looked up by these edges."""
    relation = relations[index]
    if not links:
        return relation.size
    if any(key <= {_name(e.side(index)) for e in links} for key in relation.unique):
        return 1.0
    # At least two: where sizes are not known yet (a view over empty tables), a unique key still comes first.
    return max(2.0, relation.size / max(_distinct(relations, index, e, edges) for e in links))


def _distinct(relations: list[Relation], index: int, edge: Edge, edges: list[Edge]) -> float:
    """The number of values of an edge's column: the size of the table whose key it refers to, or a tenth of its own."""
    alike = {_name(edge.side(index))}
    for _ in edges:
        alike |= {_name(e.side(e.other(x))) for e in edges for x in (e.a, e.b) if _name(e.side(x)) in alike - {None}}
    sizes = [r.size for r in relations for key in r.unique if len(key) == 1 and key <= alike]
    return max(1.0, min([relations[index].size, max(sizes)]) if sizes else relations[index].size / 10)


def _lookup_edges(
    compiler: Compiler, relations: list[Relation], index: int, links: list[Edge], edges: list[Edge]
) -> list[Edge]:
    """The edges that make the key: a unique key alone when they cover one (its image exists anyway).

    Else a base table is looked up by one column, so that one arrangement serves many views: the one with the most
    values. The other edges are checked after the lookup.
    """
    relation = relations[index]
    named = {_name(e.side(index)): e for e in links}
    for key in relation.unique:
        if key and key <= set(named):
            return [named[name] for name in sorted(key)]
    if len(links) < 2 or relation.table is None or None in named:
        return links
    first = compiler.tables[relation.table].key[0].column

    def worth(edge: Edge) -> tuple[float, bool, str]:
        mine = edge.side(index)
        return _distinct(relations, index, edge, edges), relation.stored(mine) == first, str(mine.value)

    return [max(links, key=worth)]


def _name(expr: Expr) -> str | None:
    return expr.value if expr.op == "column" else None


def _lookup(
    compiler: Compiler,
    relations: list[Relation],
    bound: list[int],
    current: list[Branch],
    step: int,
    edges: list[Edge],
    later: frozenset[str],
    fresh: bool,
    load: bool,
) -> Branch:
    relation = relations[step]
    arranged, key_edges, take, inner, where = _arranged(compiler, relation, step, edges)
    probe_columns = [c for i in bound for c in relations[i].columns if c.name in later]
    names = positional(probe_columns, "p")
    exprs = [Named(names[c.name].name, reference(c)) for c in probe_columns]
    key, worked_out = _keyed([edge.side(edge.other(step)) for edge in key_edges], names, "q")
    probe = tuple(b.segment([*exprs, *worked_out], key) for b in current)
    operator = compiler.add(Lookup(probe, arranged.id, fresh, take, load))
    columns = {c.name: reference(names[c.name]) for c in probe_columns} | inner
    return Branch(operator, columns, where)


def _arranged(
    compiler: Compiler, relation: Relation, index: int, edges: list[Edge]
) -> tuple[Operator, list[Edge], tuple[tuple[str, Column], ...], dict[str, Expr], tuple[Expr, ...]]:
    """Where the relation is looked up by these edges: operator, edges in key order, columns taken, how they give the
    relation's plan columns, and the relation's own conditions that are still to be checked."""
    stored = [relation.stored(e.side(index)) for e in edges]
    table = relation.table
    if table is not None and all(name is not None for name in stored) and len(set(stored)) == len(stored):
        branch = relation.branches[0]
        by_name = {name.lower(): (name, e) for name, e in zip(stored, edges, strict=True) if name is not None}
        primary = [k.column.lower() for k in compiler.tables[table].key]
        names = primary if set(primary) == set(by_name) else sorted(by_name)
        image = compiler.image(table, tuple(by_name[n][0] for n in names))
        seen = {e.value: e for c in relation.columns for e in branch.columns[c.name].walk() if e.op == "column"}
        seen |= {e.value: e for w in branch.where for e in w.walk() if e.op == "column"}
        take = tuple((name, Column(f"a{i}", e.type, e.nullable)) for i, (name, e) in enumerate(sorted(seen.items())))
        renamed = {name: reference(c) for name, c in take}
        inner = {c.name: substitute(branch.columns[c.name], renamed) for c in relation.columns}
        return image, [by_name[n][1] for n in names], take, inner, tuple(substitute(w, renamed) for w in branch.where)
    ordered = sorted(edges, key=lambda e: str(e.side(index).to_json()))
    names_of = positional(relation.columns, "x")
    exprs = [Named(names_of[c.name].name, reference(c)) for c in relation.columns]
    key, worked_out = _keyed([edge.side(index) for edge in ordered], names_of, "y")
    arrange = compiler.add(Arrange(tuple(b.segment([*exprs, *worked_out], key) for b in relation.branches)))
    take = tuple((names_of[c.name].name, Column(f"a{i}", c.type, c.nullable)) for i, c in enumerate(relation.columns))
    inner = {c.name: reference(taken) for c, (_, taken) in zip(relation.columns, take, strict=True)}
    return arrange, ordered, take, inner, ()


def _keyed(sides: Iterable[Expr], names: Mapping[str, Column], prefix: str) -> tuple[tuple[str, ...], list[Named]]:
    """The names by which rows are arranged or sought, and what has to be worked out for that: no column says it."""
    key, worked_out = [], []
    for number, side in enumerate(sides):
        if side.op == "column":
            key.append(names[side.value].name)
        else:
            worked_out.append(Named(f"{prefix}{number}", side))
            key.append(worked_out[-1].name)
    return tuple(key), worked_out


def _bulk(
    compiler: Compiler, relations: list[Relation], edges: list[Edge], conditions: list[Expr], keep: frozenset[str]
) -> Branch:
    names: dict[str, Column] = {}
    ports = []
    for i, relation in enumerate(relations):
        own = positional(relation.columns, f"r{i}_")
        names |= own
        exprs = [Named(own[c.name].name, reference(c)) for c in relation.columns]
        ports.append(tuple(b.segment(exprs, None) for b in relation.branches))
    columns = {name: reference(c) for name, c in names.items()}
    where = tuple(substitute(c, columns) for c in [*(_equality(e) for e in edges), *conditions])
    return Branch(compiler.add(BulkJoin(tuple(ports), where)), {n: e for n, e in columns.items() if n in keep})


def _equality(edge: Edge) -> Expr:
    return Expr("EqualNullSafe" if edge.null_safe else "EqualTo", types.BOOLEAN, (edge.left, edge.right))
