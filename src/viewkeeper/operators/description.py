"""How operators tell of themselves, in EXPLAIN and in pictures: what they are told first, and what they say.

Inside the plan columns have positions for names. In EXPLAIN they are shown so; in a picture each is traced back to what
it was made from (`o_orderdate`, `year(o_orderdate)`).
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
"""Rows that one probe finds, by the arrangement's id, as far as they are known."""


class DataflowGraph(Protocol):
    """The operators of all views, and what they use of the tables."""

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
    """What stands in an operator's box. `reads` is the number of the state that it reads."""

    title: str
    lines: tuple[str, ...] = ()
    table: str | None = None
    key: tuple[str, ...] = ()
    reads: int | None = None


@dataclass(frozen=True)
class ExplainContext:
    """`numbers` of the operators that are shown, by id; `names` of tables and views."""

    dataflow: DataflowGraph
    numbers: Mapping[str, int]
    names: Mapping[int, str]
    fan_out: FanOut = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Rows and bytes of arrangements, by their names in the manifest."""
    member_counts: Mapping[str, int] = field(default_factory=dict)
    """How many members a family has, by the operators that make their rows."""
    _column_texts: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def describe_expr(self, source: str, expr: Expr) -> str:
        """An expression over an operator's columns, in the words of the tables."""
        return expr_text(_rename_columns(expr, self.column_texts(source)))

    def describe_output(self, segment: Segment, name: str) -> str:
        """What a segment gives under a name."""
        return next((self.describe_expr(segment.source, n.expr) for n in segment.exprs if n.name == name), name)

    def column_texts(self, operator_id: str) -> Mapping[str, str]:
        """What the columns of an operator are made of, in the words of the tables."""
        if operator_id not in self._column_texts:
            self._column_texts[operator_id] = self.dataflow.operators[operator_id].column_texts(self.describe_expr)
        return self._column_texts[operator_id]


def _rename_columns(expr: Expr, names: Mapping[str, str]) -> Expr:
    if expr.op == "column":
        return replace(expr, value=names.get(expr.value, expr.value))
    return replace(expr, args=tuple(_rename_columns(a, names) for a in expr.args))
