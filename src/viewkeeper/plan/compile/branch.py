"""Branches: a relation during compilation is a sum of branches.

A **branch** is an operator's output seen through pending linear steps: for each plan column an expression over the
operator's columns, and a list of conditions. Filters, projections, unions and grouping sets only rewrite branches, so
consecutive linear nodes are fused. A segment is built when the next operator with a key is reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from viewkeeper.expressions import can_raise
from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.operators.operator import Operator
from viewkeeper.operators.segment import Segment
from viewkeeper.plan.logical.nodes import Expr, Named, Node, column


@dataclass(frozen=True)
class Branch:
    """`columns`: plan column → expression over the source's columns; `where`: conditions over them, in order.

    `sign` −1: the branch is subtracted from the others. `times`: factors by which each row's weight is multiplied.
    """

    source: Operator
    columns: Mapping[str, Expr]
    where: tuple[Expr, ...] = ()
    sign: int = 1
    times: tuple[Expr, ...] = ()

    def negate(self) -> Branch:
        return replace(self, sign=-self.sign)

    def add_filter(self, condition: Expr | None) -> Branch:
        return replace(self, where=(*self.where, *(self.resolve(c) for c in conjuncts(condition))))

    def project(self, exprs: Iterable[Named]) -> Branch:
        return replace(self, columns={n.name: self.resolve(n.expr) for n in exprs})

    def rename(self, names: Mapping[str, str]) -> Branch:
        """Return the same rows with renamed plan columns; `names` maps new → old."""
        return replace(self, columns={new: self.columns[old] for new, old in names.items()})

    def resolve(self, expr: Expr) -> Expr:
        """Return the expression in terms of the source's columns."""
        return substitute(expr, self.columns)

    def build_segment(
        self, exprs: Sequence[Named], key: tuple[str, ...] | None, gather: bool = False, ordered: bool = False
    ) -> Segment:
        """Return the pending steps and a last projection (over plan columns) as one segment."""
        resolved = tuple(Named(n.name, self.resolve(n.expr)) for n in exprs)
        return Segment(self.source.id, self.where, resolved, key, gather, self.sign, self.times, ordered)


@dataclass(frozen=True, eq=False)
class CompiledNode(Node):
    """A node that is already compiled, so that two joins can read it and it is compiled only once."""

    node: Node
    branches: tuple[Branch, ...]
    kind: ClassVar[str] = "given"

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(c for c in self.node.columns if c.name in self.branches[0].columns)


def substitute(expr: Expr, columns: Mapping[str, Expr]) -> Expr:
    """Return the expression with each column replaced by its expression in `columns`."""
    if expr.op == "column":
        return columns[expr.value]
    if not expr.args:
        return expr
    return replace(expr, args=tuple(substitute(a, columns) for a in expr.args))


def conjuncts(condition: Expr | None) -> tuple[Expr, ...]:
    """Return the parts of an AND, in their order."""
    if condition is None:
        return ()
    if condition.op == "And":
        return (*conjuncts(condition.args[0]), *conjuncts(condition.args[1]))
    if condition.op == "literal" and condition.value is True:
        return ()
    return (condition,)


def conjunction(conditions: Sequence[Expr]) -> Expr | None:
    """Return the AND of the conditions; None if there are none."""
    result: Expr | None = None
    for condition in conditions:
        result = condition if result is None else Expr("And", types.BOOLEAN, (result, condition))
    return result


def can_any_raise(exprs: Iterable[Expr]) -> bool:
    """Whether one of the expressions can raise on a row."""
    return any(can_raise(e) for e in exprs)


def positional_columns(columns: Sequence[Column], prefix: str) -> dict[str, Column]:
    """Map each plan column to a column named after its position, so that equal plans give equal operators."""
    return {c.name: Column(f"{prefix}{i}", c.type, c.nullable) for i, c in enumerate(columns)}


def column_reference(col: Column) -> Expr:
    return column(col.name, col.type, col.nullable)
