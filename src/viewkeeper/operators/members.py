"""What operators have in common that give a family's rows to its members: two ports, and state of each.

port 0  rows of the family's path, the same for all members     ─▶ state 0
port 1  members, as rows of parameters                          ─▶ state 1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from viewkeeper.expressions.tree import Expr
from viewkeeper.operators.operator import Operator
from viewkeeper.operators.segments import Segment


@dataclass(frozen=True)
class ForMembers(Operator):
    rows: tuple[Segment, ...]
    members: tuple[Segment, ...]
    stateful: ClassVar[bool] = True
    members_slot: ClassVar[int | None] = 1
    jointly: ClassVar[bool] = True

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return self.rows, self.members

    @property
    def slots(self) -> int:
        return 2

    def made_of(self, name: str) -> tuple[str, Expr] | None:
        for segment in (self.members[0], self.rows[0]):
            found = next(((segment.source, n.expr) for n in segment.exprs if n.name == name), None)
            if found is not None:
                return found
        return None

    def traced(self, text: Callable[[str, Expr], str]) -> Mapping[str, str]:
        return {n.name: text(s.source, n.expr) for s in (self.rows[0], self.members[0]) for n in s.exprs}
