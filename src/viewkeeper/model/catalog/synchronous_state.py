"""Catalog entry of a synchronous view, which is maintained in the transaction of each write to its tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SYNCHRONOUS_OPTION = "_with_writes"
"""The option of a synchronous view's table: its rows change in write calls, not in batches."""


@dataclass(frozen=True)
class SynchronousState:
    """The base tables of a synchronous view, and the ids of the state tables of its operators, in the order in which
    the operators request them. Only the view's operators read these tables, and the change log does not contain them.
    """

    table_ids: tuple[int, ...]
    state_table_ids: tuple[int, ...]

    def to_json(self) -> list[Any]:
        return [list(self.table_ids), list(self.state_table_ids)]

    @staticmethod
    def from_json(data: list[Any]) -> SynchronousState:
        tables, state = data
        return SynchronousState(tuple(tables), tuple(state))
