"""A synchronous view: one that is kept in the transaction of each write to its table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WITH_WRITES = "_with_writes"
"""The option by which the table of such a view says that its rows change in write calls, and not in batches."""


@dataclass(frozen=True)
class Sync:
    """`of`: the base tables. `state`: the numbers of the tables in which its operators keep their state, in the order
    in which they ask for them; nobody else reads these, and they are in no log."""

    of: tuple[int, ...]
    state: tuple[int, ...]

    def to_json(self) -> list[Any]:
        return [list(self.of), list(self.state)]

    @staticmethod
    def from_json(data: list[Any]) -> Sync:
        of, state = data
        return Sync(tuple(of), tuple(state))
