"""The relations of a flattened join and the edges between them, with what the cost model knows of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.operators.operator import Operator
from viewkeeper.plan.compile.branch import Branch, conjunction, raises
from viewkeeper.plan.compile.join_tree import Flat, Source
from viewkeeper.plan.logical.nodes import Expr, Node
from viewkeeper.plan.logical.unique_keys import unique_keys

if TYPE_CHECKING:
    from viewkeeper.plan.compile.compiler import Compiler


@dataclass(frozen=True)
class Edge:
    """`left` of relation `a` equals `right` of relation `b`. `owner`: the optional relation whose ON it is part of."""

    a: int
    b: int
    left: Expr
    right: Expr
    null_safe: bool
    owner: int | None = None

    def side(self, relation: int) -> Expr:
        return self.left if relation == self.a else self.right

    def other(self, relation: int) -> int:
        return self.b if relation == self.a else self.a

    def named(self, relation: int, name: Expr) -> Edge:
        """The edge with a column in the place of what it compares of a relation."""
        return replace(self, left=name) if relation == self.a else replace(self, right=name)

    @property
    def equality(self) -> Expr:
        return Expr("EqualNullSafe" if self.null_safe else "EqualTo", types.BOOLEAN, (self.left, self.right))


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
    node: Node
    how: str = "inner"
    """inner, left or anti, as in `flatten.Source`."""

    @property
    def rows(self) -> float:
        return self.size * self.share

    @property
    def is_optional(self) -> bool:
        return self.how != "inner"

    @property
    def table(self) -> int | None:
        """The base table that it is, seen through its own conditions; None if it is computed."""
        return self.branches[0].source.changes_of if len(self.branches) == 1 and not self.computed else None

    def stored(self, expr: Expr) -> str | None:
        """The base column behind an expression, if it is nothing but one."""
        seen = self.branches[0].see(expr) if self.table is not None else None
        return seen.value if seen is not None and seen.op == "column" else None


def classify(flat: Flat, owner: Mapping[str, int]) -> tuple[list[Edge], list[list[Expr]], list[Expr], list[list[Expr]]]:
    """Edges; conditions on one relation alone, by relation; those over several; what else each ON asks for."""
    edges: list[Edge] = []
    local: list[list[Expr]] = [[] for _ in flat.sources]
    across: list[Expr] = []
    for condition in flat.conditions:
        touched = {owner[c] for c in condition.columns()}
        is_inner = all(flat.sources[i].how == "inner" for i in touched)
        if len(touched) == 1 and is_inner and not raises([condition]):
            local[touched.pop()].append(condition)
        elif is_inner and (edge := _edge(condition, owner)) is not None:
            edges.append(edge)
        else:
            across.append(condition)
    on: list[list[Expr]] = [[] for _ in flat.sources]
    for i, source in enumerate(flat.sources):
        for condition in source.on:
            edge = _edge(condition, owner)
            if edge is not None and i in (edge.a, edge.b):
                edges.append(replace(edge, owner=i))
            else:
                on[i].append(condition)
    return edges, local, across, on


def _edge(condition: Expr, owner: Mapping[str, int]) -> Edge | None:
    if condition.op not in ("EqualTo", "EqualNullSafe"):
        return None
    left, right = condition.args
    a, b = ({owner[c] for c in side.columns()} for side in (left, right))
    if len(a) != 1 or len(b) != 1 or a == b or raises([left, right]):
        return None
    return Edge(a.pop(), b.pop(), left, right, condition.op == "EqualNullSafe")


def relation_of(
    compiler: Compiler, source: Source, local: list[Expr], used: frozenset[str], compared: frozenset[str]
) -> Relation:
    columns = tuple(c for c in source.node.columns if c.name in used)
    branches = compiler.compile(source.node, frozenset(c.name for c in columns))
    if local:
        branches = [b.filtered(conjunction(local)) for b in branches]
    unique = tuple(frozenset(k) for k in unique_keys(source.node, compiler.tables))
    computed = raises(b.columns[c.name] for b in branches for c in columns if c.name in compared)
    table = branches[0].source.changes_of
    if len(branches) == 1 and table is not None:
        size, share = float(compiler.sizes.get(table, 0)), _share(branches[0].where)
    else:
        # An aggregate or a slice is smaller than what it is made of; by how much is not known before it runs.
        sizes = [compiler.sizes.get(s, 0) for s in _tables(compiler, branches)]
        size, share = max(sizes, default=0) * 0.5, 1.0
    return Relation(branches, columns, size, share, unique, computed, source.node, source.how)


def _share(where: Sequence[Expr]) -> float:
    """A guess of the share of rows that conditions keep; a test for NULL keeps nearly all."""
    share = 1.0
    for condition in where:
        share *= {"IsNotNull": 0.95, "EqualTo": 0.1, "EqualNullSafe": 0.1}.get(condition.op, 0.4)
    return share


def _tables(compiler: Compiler, branches: Sequence[Branch]) -> set[int]:
    """The base tables below these branches. Operators are shared, so each is visited once."""
    waiting: list[Operator] = [b.source for b in branches]
    visited: dict[str, Operator] = {}
    while waiting:
        operator = waiting.pop()
        if operator.id not in visited:
            visited[operator.id] = operator
            waiting.extend(compiler.operators[s.source] for s in operator.segments())
    return {operator.changes_of for operator in visited.values() if operator.changes_of is not None}


def fan_out(relations: list[Relation], index: int, links: list[Edge], edges: list[Edge]) -> float:
    """How many rows of a relation are expected for one row that is looked up by these edges."""
    relation = relations[index]
    if not links:
        return relation.size
    if any(key <= {name_of(e.side(index)) for e in links} for key in relation.unique):
        return 1.0
    # At least two: where sizes are not known yet (a view over empty tables), a unique key still comes first.
    return max(2.0, relation.size / max(_distinct(relations, index, e, edges) for e in links))


def _distinct(relations: list[Relation], index: int, edge: Edge, edges: list[Edge]) -> float:
    """The number of values of an edge's column: the size of the table whose key it refers to, or a tenth of its own."""
    alike = {name_of(edge.side(index))}
    for _ in edges:
        alike |= {
            name_of(e.side(e.other(x))) for e in edges for x in (e.a, e.b) if name_of(e.side(x)) in alike - {None}
        }
    sizes = [r.size for r in relations for key in r.unique if len(key) == 1 and key <= alike]
    return max(1.0, min([relations[index].size, max(sizes)]) if sizes else relations[index].size / 10)


def lookup_edges(
    compiler: Compiler, relations: list[Relation], index: int, links: list[Edge], edges: list[Edge]
) -> list[Edge]:
    """The edges that make the key: a unique key alone when they cover one (its image exists anyway).

    Else a base table is looked up by one column, so that one arrangement serves many views: the one with the most
    values. The other edges are checked after the lookup.
    """
    relation = relations[index]
    named = {name_of(e.side(index)): e for e in links}
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


def name_of(expr: Expr) -> str | None:
    return expr.value if expr.op == "column" else None
