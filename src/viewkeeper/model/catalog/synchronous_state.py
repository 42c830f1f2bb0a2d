"""A synchronous view: one that is kept in the transaction of each write to its table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SYNCHRONOUS_OPTION = "_with_writes"
"""The option by which the table of such a view says that its rows change in write calls, and not in batches."""


@dataclass(frozen=True)
class SynchronousState:
    """`of`: the base tables. `state`: the numbers of the tables in which its operators keep their state, in the order
    in which they ask for them; nobody else reads these, and they are in no log."""

    table_ids: tuple[int, ...]
    state_table_ids: tuple[int, ...]

    def to_json(self) -> list[Any]:
        return [list(self.table_ids), list(self.state_table_ids)]

    @staticmethod
    def from_json(data: list[Any]) -> SynchronousState:
        of, state = data
        return SynchronousState(tuple(of), tuple(state))
