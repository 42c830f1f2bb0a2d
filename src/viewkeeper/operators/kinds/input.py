"""Input: the changes of a base table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import ClassVar

from viewkeeper.errors import Defect
from viewkeeper.expressions.tree import Expr
from viewkeeper.model.schema import Column
from viewkeeper.operators.description import Drawn, Told
from viewkeeper.operators.operator import Operator, named_after


@dataclass(frozen=True)
class Input(Operator):
    """The changes of a base table: the columns that any view uses, consolidated. Capture gives them."""

    table: int
    kind: ClassVar[str] = "input"
    keyed: ClassVar[bool] = False
    is_source: ClassVar[bool] = True

    @cached_property
    def id(self) -> str:
        return _name(self.table)

    @property
    def columns(self) -> tuple[Column, ...]:
        raise Defect("An input's columns are those that the segments over it read")

    @property
    def changes_of(self) -> int:
        return self.table

    def describe(self, told: Told) -> str:
        return f"input {told.names[self.table]} ({self._used(told)})"

    def drawn(self, told: Told) -> Drawn:
        name = told.names[self.table]
        return Drawn(f"Δ {name}", (self._used(told),), name)

    def traced(self, text: Callable[[str, Expr], str]) -> Mapping[str, str]:
        return {}  # the columns have the table's names

    def _used(self, told: Told) -> str:
        return ", ".join(c.name for c in told.flow.used[self.table])


@cache
def _name(table: int) -> str:
    """Worked out once: every batch asks for it anew."""
    return f"{Input.kind}-{named_after(Input.kind, Input(table))}"
