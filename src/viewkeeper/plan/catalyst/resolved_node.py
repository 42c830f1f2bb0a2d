"""What reading a plan node gives: a `Relation`, our node with the expression id of each of its columns.

Ids repeat where Spark inlines a common table expression twice, so a column's name is given where the column is made (a
scan, a projection, a call), numbered in that order: the same query always gives the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from viewkeeper.errors import Unsupported
from viewkeeper.model.schema import Column
from viewkeeper.plan.catalyst.expressions import TRUE
from viewkeeper.plan.catalyst.raw_tree import RawNode
from viewkeeper.plan.logical import nodes
from viewkeeper.plan.logical.nodes import Expr, Named, Node, column

Ids = tuple[int | None, ...]


@dataclass(frozen=True)
class Relation:
    """A node, and the expression id of each of its columns (None: no expression refers to it)."""

    node: Node
    ids: Ids

    @property
    def columns(self) -> dict[int, Column]:
        return {i: c for i, c in zip(self.ids, self.node.columns, strict=True) if i is not None}


@dataclass
class Reader:
    """Reads one plan by a table of readings; gives out column names.

    `analysed` is the live analysed plan: constant relations look there for a table to stand on.
    """

    readings: Mapping[str, Callable[[Reader, RawNode], Relation]]
    analysed: Any
    count: int = 0

    def fresh(self) -> str:
        self.count += 1
        return f"c{self.count - 1}"

    def read(self, raw: RawNode) -> Relation:
        if raw.op in self.readings:
            return self.readings[raw.op](self, raw)
        if not raw.children:
            raise Unsupported(
                f"The query reads something that is not a table or view of this database ({raw.op}).",
                hint="SHOW TABLES and SHOW VIEWS list what there is.",
            )
        raise Unsupported(f"{raw.op} is not supported.", hint=f"Supported: {', '.join(sorted(self.readings))}.")

    def renamed(self, columns: Iterable[Column]) -> tuple[Column, ...]:
        """New names for columns that a node makes."""
        return tuple(Column(self.fresh(), c.type, c.nullable) for c in columns)

    def projected(self, child: Relation, exprs: Iterable[tuple[int | None, Expr]]) -> Relation:
        """A projection in which a column that only passes through keeps its name."""
        named: list[Named] = []
        ids: list[int | None] = []
        taken: set[str] = set()
        for id_, expr in exprs:
            name = str(expr.value) if expr.op == "column" and expr.value not in taken else self.fresh()
            taken.add(name)
            named.append(Named(name, expr))
            ids.append(id_)
        return Relation(nodes.Project(unwrapped(child.node), tuple(named)), tuple(ids))

    def exactly(self, relation: Relation, ids: Ids) -> Relation:
        """The relation with these columns and no others, in this order; without any: one constant column."""
        if relation.ids == ids:
            return relation
        if not ids:
            return Relation(nodes.Project(unwrapped(relation.node), (Named(self.fresh(), TRUE),)), (None,))
        known = relation.columns
        return self.projected(relation, [(i, reference(known[i])) for i in ids if i is not None])


def unwrapped(node: Node) -> Node:
    """Below projections that only drop or reorder columns: another projection above makes them superfluous."""
    while isinstance(node, nodes.Project) and all(n.expr.op == "column" and n.expr.value == n.name for n in node.exprs):
        node = node.child
    return node


def reference(c: Column) -> Expr:
    return column(c.name, c.type, c.nullable)
