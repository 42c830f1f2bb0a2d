"""The relations of a flattened join, the edges between them, and the cardinality estimates of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.operators.operator import Operator
from viewkeeper.plan.compile.branch import Branch, can_any_raise, conjunction
from viewkeeper.plan.compile.join_tree import FlatJoin, JoinInput
from viewkeeper.plan.logical.nodes import Expr, Node
from viewkeeper.plan.logical.unique_keys import unique_keys

if TYPE_CHECKING:
    from viewkeeper.plan.compile.compiler import Compiler


@dataclass(frozen=True)
class JoinEdge:
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

    def replace_side(self, relation: int, expr: Expr) -> JoinEdge:
        """Return the edge with another expression on the side of a relation."""
        return replace(self, left=expr) if relation == self.a else replace(self, right=expr)

    @property
    def equality(self) -> Expr:
        return Expr("EqualNullSafe" if self.null_safe else "EqualTo", types.BOOLEAN, (self.left, self.right))


@dataclass(frozen=True)
class JoinRelation:
    """An input of the join: its branches, the plan columns that it must provide, and its estimated cardinality."""

    branches: list[Branch]
    columns: tuple[Column, ...]
    size: float
    """Estimated rows before the relation's own conditions."""
    selectivity: float
    """Estimated share of rows that its own conditions keep."""
    unique: tuple[frozenset[str], ...]
    """Sets of plan columns that are proven unique."""
    is_computed: bool
    """Whether the join compares a column that can raise.

    Its value is computed when a row is inserted and stored with the row.
    """
    node: Node
    join_type: str = "inner"
    """inner, left or anti, as in `join_tree.JoinInput`."""

    @property
    def rows(self) -> float:
        return self.size * self.selectivity

    @property
    def is_optional(self) -> bool:
        return self.join_type != "inner"

    @property
    def table(self) -> int | None:
        """The base table behind the relation's own conditions; None if the relation is computed."""
        return self.branches[0].source.input_table if len(self.branches) == 1 and not self.is_computed else None

    def stored_column(self, expr: Expr) -> str | None:
        """Return the base column that an expression consists of; None if it is anything else."""
        resolved = self.branches[0].resolve(expr) if self.table is not None else None
        return resolved.value if resolved is not None and resolved.op == "column" else None


def classify_conditions(
    flat: FlatJoin, owner: Mapping[str, int]
) -> tuple[list[JoinEdge], list[list[Expr]], list[Expr], list[list[Expr]]]:
    """Return the edges, the conditions on single relations, those over several, and the other conditions of each ON."""
    edges: list[JoinEdge] = []
    local: list[list[Expr]] = [[] for _ in flat.inputs]
    across: list[Expr] = []
    for condition in flat.conditions:
        touched = {owner[c] for c in condition.columns()}
        is_inner = all(flat.inputs[i].join_type == "inner" for i in touched)
        if len(touched) == 1 and is_inner and not can_any_raise([condition]):
            local[touched.pop()].append(condition)
        elif is_inner and (edge := _join_edge(condition, owner)) is not None:
            edges.append(edge)
        else:
            across.append(condition)
    on: list[list[Expr]] = [[] for _ in flat.inputs]
    for i, source in enumerate(flat.inputs):
        for condition in source.on:
            edge = _join_edge(condition, owner)
            if edge is not None and i in (edge.a, edge.b):
                edges.append(replace(edge, owner=i))
            else:
                on[i].append(condition)
    return edges, local, across, on


def _join_edge(condition: Expr, owner: Mapping[str, int]) -> JoinEdge | None:
    if condition.op not in ("EqualTo", "EqualNullSafe"):
        return None
    left, right = condition.args
    a, b = ({owner[c] for c in side.columns()} for side in (left, right))
    if len(a) != 1 or len(b) != 1 or a == b or can_any_raise([left, right]):
        return None
    return JoinEdge(a.pop(), b.pop(), left, right, condition.op == "EqualNullSafe")


def compile_relation(
    compiler: Compiler,
    source: JoinInput,
    local: list[Expr],
    used_columns: frozenset[str],
    compared_columns: frozenset[str],
) -> JoinRelation:
    """Compile one input of the join with its own conditions, and estimate its cardinality."""
    columns = tuple(c for c in source.node.columns if c.name in used_columns)
    branches = compiler.compile(source.node, frozenset(c.name for c in columns))
    if local:
        branches = [b.add_filter(conjunction(local)) for b in branches]
    unique = tuple(frozenset(k) for k in unique_keys(source.node, compiler.tables))
    is_computed = can_any_raise(b.columns[c.name] for b in branches for c in columns if c.name in compared_columns)
    table = branches[0].source.input_table
    if len(branches) == 1 and table is not None:
        size, selectivity = float(compiler.sizes.get(table, 0)), _estimate_selectivity(branches[0].where)
    else:
        # The output of an aggregate or a recomputation is smaller than its input, by an unknown factor.
        sizes = [compiler.sizes.get(s, 0) for s in _base_tables(compiler, branches)]
        size, selectivity = max(sizes, default=0) * 0.5, 1.0
    return JoinRelation(branches, columns, size, selectivity, unique, is_computed, source.node, source.join_type)


def _estimate_selectivity(where: Sequence[Expr]) -> float:
    """Estimate the share of rows that conditions keep; a test for NULL keeps nearly all."""
    selectivity = 1.0
    for condition in where:
        selectivity *= {"IsNotNull": 0.95, "EqualTo": 0.1, "EqualNullSafe": 0.1}.get(condition.op, 0.4)
    return selectivity


def _base_tables(compiler: Compiler, branches: Sequence[Branch]) -> set[int]:
    """Return the base tables below these branches. Operators are shared, so each is visited once."""
    pending: list[Operator] = [b.source for b in branches]
    visited: dict[str, Operator] = {}
    while pending:
        operator = pending.pop()
        if operator.id not in visited:
            visited[operator.id] = operator
            pending.extend(compiler.operators[s.source] for s in operator.segments())
    return {operator.input_table for operator in visited.values() if operator.input_table is not None}


def estimate_fan_out(
    relations: list[JoinRelation], index: int, usable_edges: list[JoinEdge], edges: list[JoinEdge]
) -> float:
    """Estimate how many rows of a relation match one row that is looked up by these edges."""
    relation = relations[index]
    if not usable_edges:
        return relation.size
    if any(key <= {column_name(e.side(index)) for e in usable_edges} for key in relation.unique):
        return 1.0
    # At least two: if sizes are not known yet (a view over empty tables), a unique key still comes first.
    return max(2.0, relation.size / max(_estimate_distinct(relations, index, e, edges) for e in usable_edges))


def _estimate_distinct(relations: list[JoinRelation], index: int, edge: JoinEdge, edges: list[JoinEdge]) -> float:
    """Estimate the number of distinct values of an edge's column.

    It is the size of the table whose key the column refers to, or a tenth of the rows of its own relation.
    """
    equated = {column_name(edge.side(index))}
    for _ in edges:
        equated |= {
            column_name(e.side(e.other(x)))
            for e in edges
            for x in (e.a, e.b)
            if column_name(e.side(x)) in equated - {None}
        }
    sizes = [r.size for r in relations for key in r.unique if len(key) == 1 and key <= equated]
    return max(1.0, min([relations[index].size, max(sizes)]) if sizes else relations[index].size / 10)


def choose_lookup_edges(
    compiler: Compiler, relations: list[JoinRelation], index: int, usable_edges: list[JoinEdge], edges: list[JoinEdge]
) -> list[JoinEdge]:
    """Return the edges that form the lookup key: those of a unique key if they cover one (its image exists anyway).

    Otherwise a base table is looked up by a single column, the one with the most distinct values, so that one image
    serves many views. The other edges are checked after the lookup.
    """
    relation = relations[index]
    edge_by_column = {column_name(e.side(index)): e for e in usable_edges}
    for key in relation.unique:
        if key and key <= set(edge_by_column):
            return [edge_by_column[name] for name in sorted(key)]
    if len(usable_edges) < 2 or relation.table is None or None in edge_by_column:
        return usable_edges
    first_key_column = compiler.tables[relation.table].key[0].column

    def preference(edge: JoinEdge) -> tuple[float, bool, str]:
        side = edge.side(index)
        return (
            _estimate_distinct(relations, index, edge, edges),
            relation.stored_column(side) == first_key_column,
            str(side.value),
        )

    return [max(usable_edges, key=preference)]


def column_name(expr: Expr) -> str | None:
    """Return the name of the column that an expression consists of; None if it is anything else."""
    return expr.value if expr.op == "column" else None
