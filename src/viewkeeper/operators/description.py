"""Operator descriptions for EXPLAIN and plan diagrams, and the context that operators need to describe themselves.

Inside a plan, the columns of an operator are named by position. EXPLAIN shows these names; a diagram traces each column
back to the expression over table columns that it is computed from (`o_orderdate`, `year(o_orderdate)`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from viewkeeper.expressions.backends.text import expr_text
from viewkeeper.expressions.tree import Expr
from viewkeeper.model.schema import Column, Table
from viewkeeper.operators.operator import Operator
from viewkeeper.operators.segment import Segment

FanOut = Mapping[str, float]
"""Rows that one probe finds, by the id of the arrangement; arrangements without statistics are missing."""


class DataflowGraph(Protocol):
    """The operators of all views, and which table columns they use."""

    @property
    def operators(self) -> Mapping[str, Operator]: ...

    @property
    def tables(self) -> Mapping[int, Table]: ...

    @property
    def used_columns(self) -> Mapping[int, tuple[Column, ...]]: ...

    @property
    def image_columns(self) -> Mapping[str, tuple[Column, ...]]: ...


@dataclass(frozen=True)
class OperatorDescription:
    """The text of an operator's box in a plan diagram. `reads` is the number of the state that the operator reads."""

    title: str
    lines: tuple[str, ...] = ()
    table: str | None = None
    key: tuple[str, ...] = ()
    reads: int | None = None


@dataclass(frozen=True)
class ExplainContext:
    """Names, sizes and numbering that descriptions need: `numbers` of the shown operators by id, `names` of tables and
    views."""

    dataflow: DataflowGraph
    numbers: Mapping[str, int]
    names: Mapping[int, str]
    fan_out: FanOut = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Rows and bytes of arrangements, by their state slot names in the manifest."""
    member_counts: Mapping[str, int] = field(default_factory=dict)
    """The number of members of a family, by the id of the operator that computes their rows."""
    _column_texts: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def describe_expr(self, source: str, expr: Expr) -> str:
        """Return an expression over an operator's columns as text over table columns."""
        return expr_text(_rename_columns(expr, self.column_texts(source)))

    def describe_output(self, segment: Segment, name: str) -> str:
        """Return the text of the expression that a segment outputs under a name."""
        return next((self.describe_expr(segment.source, n.expr) for n in segment.exprs if n.name == name), name)

    def column_texts(self, operator_id: str) -> Mapping[str, str]:
        """Return, for each column of an operator, its expression as text over table columns."""
        if operator_id not in self._column_texts:
            self._column_texts[operator_id] = self.dataflow.operators[operator_id].column_texts(self.describe_expr)
        return self._column_texts[operator_id]


def _rename_columns(expr: Expr, names: Mapping[str, str]) -> Expr:
    if expr.op == "column":
        return replace(expr, value=names.get(expr.value, expr.value))
    return replace(expr, args=tuple(_rename_columns(a, names) for a in expr.args))
