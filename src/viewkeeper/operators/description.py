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


class Graph(Protocol):
    """The operators of all views, and what they use of the tables."""

    @property
    def operators(self) -> Mapping[str, Operator]: ...

    @property
    def tables(self) -> Mapping[int, Table]: ...

    @property
    def used(self) -> Mapping[int, tuple[Column, ...]]: ...

    @property
    def held(self) -> Mapping[str, tuple[Column, ...]]: ...


@dataclass(frozen=True)
class Drawn:
    """What stands in an operator's box. `reads` is the number of the state that it reads."""

    title: str
    lines: tuple[str, ...] = ()
    table: str | None = None
    key: tuple[str, ...] = ()
    reads: int | None = None


@dataclass(frozen=True)
class Told:
    """`numbers` of the operators that are shown, by id; `names` of tables and views."""

    flow: Graph
    numbers: Mapping[str, int]
    names: Mapping[int, str]
    fan_out: FanOut = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Rows and bytes of arrangements, by their names in the manifest."""
    members: Mapping[str, int] = field(default_factory=dict)
    """How many members a family has, by the operators that make their rows."""
    _traced: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def text(self, source: str, expr: Expr) -> str:
        """An expression over an operator's columns, in the words of the tables."""
        return expr_text(_renamed(expr, self.columns(source)))

    def given(self, segment: Segment, name: str) -> str:
        """What a segment gives under a name."""
        return next((self.text(segment.source, n.expr) for n in segment.exprs if n.name == name), name)

    def columns(self, name: str) -> Mapping[str, str]:
        """What the columns of an operator are made of, in the words of the tables."""
        if name not in self._traced:
            self._traced[name] = self.flow.operators[name].traced(self.text)
        return self._traced[name]


def _renamed(expr: Expr, names: Mapping[str, str]) -> Expr:
    if expr.op == "column":
        return replace(expr, value=names.get(expr.value, expr.value))
    return replace(expr, args=tuple(_renamed(a, names) for a in expr.args))
