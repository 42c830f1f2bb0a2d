"""Input: the changes of a base table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import ClassVar

from viewkeeper.errors import Defect
from viewkeeper.expressions.tree import Expr
from viewkeeper.model.schema import Column
from viewkeeper.operators.description import ExplainContext, OperatorDescription
from viewkeeper.operators.operator import Operator, content_id


@dataclass(frozen=True)
class Input(Operator):
    """The changes of a base table, from capture: the columns that any view uses, consolidated."""

    table: int
    kind: ClassVar[str] = "input"
    needs_exchange: ClassVar[bool] = False
    is_source: ClassVar[bool] = True

    @cached_property
    def id(self) -> str:
        return _input_id(self.table)

    @property
    def columns(self) -> tuple[Column, ...]:
        raise Defect("An input's columns are those that the segments over it read")

    @property
    def input_table(self) -> int:
        return self.table

    def describe(self, context: ExplainContext) -> str:
        return f"input {context.names[self.table]} ({self._used_column_names(context)})"

    def box_description(self, context: ExplainContext) -> OperatorDescription:
        name = context.names[self.table]
        return OperatorDescription(f"Δ {name}", (self._used_column_names(context),), name)

    def column_texts(self, expr_text: Callable[[str, Expr], str]) -> Mapping[str, str]:
        return {}  # the columns have the table's names

    def _used_column_names(self, context: ExplainContext) -> str:
        return ", ".join(c.name for c in context.dataflow.used_columns[self.table])


@cache
def _input_id(table: int) -> str:
    """Return the id of a table's input; cached, because every batch needs it again."""
    return f"{Input.kind}-{content_id(Input.kind, Input(table))}"
