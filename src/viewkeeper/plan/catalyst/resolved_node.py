"""`ResolvedNode`, the result of reading a plan node: a logical node with the expression id of each of its columns.

Expression ids repeat where Spark inlines a common table expression twice. A column is therefore named where it is
created (a scan, a projection, a call), with numbers in that order, so that the same query always gives the same plan.
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

ExprIds = tuple[int | None, ...]


@dataclass(frozen=True)
class ResolvedNode:
    """A node, and the expression id of each of its columns (None: no expression refers to it)."""

    node: Node
    ids: ExprIds

    @property
    def columns(self) -> dict[int, Column]:
        return {i: c for i, c in zip(self.ids, self.node.columns, strict=True) if i is not None}


@dataclass
class Reader:
    """Reads one plan with a table of node readers, and assigns column names.

    `analysed_plan` is the live analysed plan, in which constant relations look for a table.
    """

    node_readers: Mapping[str, Callable[[Reader, RawNode], ResolvedNode]]
    analysed_plan: Any
    column_count: int = 0

    def new_name(self) -> str:
        self.column_count += 1
        return f"c{self.column_count - 1}"

    def read(self, raw: RawNode) -> ResolvedNode:
        if raw.op in self.node_readers:
            return self.node_readers[raw.op](self, raw)
        if not raw.children:
            raise Unsupported(
                f"The query reads something that is not a table or view of this database ({raw.op}).",
                hint="SHOW TABLES and SHOW VIEWS list what there is.",
            )
        raise Unsupported(f"{raw.op} is not supported.", hint=f"Supported: {', '.join(sorted(self.node_readers))}.")

    def new_columns(self, columns: Iterable[Column]) -> tuple[Column, ...]:
        """Return columns with new names."""
        return tuple(Column(self.new_name(), c.type, c.nullable) for c in columns)

    def project(self, child: ResolvedNode, exprs: Iterable[tuple[int | None, Expr]]) -> ResolvedNode:
        """Project the node; a column that is only passed through keeps its name."""
        named: list[Named] = []
        ids: list[int | None] = []
        used_names: set[str] = set()
        for id_, expr in exprs:
            name = str(expr.value) if expr.op == "column" and expr.value not in used_names else self.new_name()
            used_names.add(name)
            named.append(Named(name, expr))
            ids.append(id_)
        return ResolvedNode(nodes.Project(strip_projections(child.node), tuple(named)), tuple(ids))

    def select_exactly(self, relation: ResolvedNode, ids: ExprIds) -> ResolvedNode:
        """Return the relation with exactly these columns, in this order; if there are none, with one constant
        column."""
        if relation.ids == ids:
            return relation
        if not ids:
            return ResolvedNode(
                nodes.Project(strip_projections(relation.node), (Named(self.new_name(), TRUE),)), (None,)
            )
        columns = relation.columns
        return self.project(relation, [(i, column_reference(columns[i])) for i in ids if i is not None])


def strip_projections(node: Node) -> Node:
    """Remove projections that only drop or reorder columns: another projection above makes them superfluous."""
    while isinstance(node, nodes.Project) and all(n.expr.op == "column" and n.expr.value == n.name for n in node.exprs):
        node = node.child
    return node


def column_reference(c: Column) -> Expr:
    return column(c.name, c.type, c.nullable)
