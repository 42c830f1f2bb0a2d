"""An index: a view of which users ask nothing but that it is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Index:
    """What an index holds: the rows of a table or view in another order.

    `columns`: for each column of the index, in their order, the column of `on` that it holds, by its name inside. The
    first `keys` of them are what it was made for; the others are what names the row, and what it includes.
    """

    on: int
    columns: tuple[str, ...]
    keys: int
    included: int = 0

    def to_json(self) -> list[Any]:
        return [self.on, list(self.columns), self.keys, self.included]

    @staticmethod
    def from_json(data: list[Any]) -> Index:
        on, columns, keys, included = data
        return Index(on, tuple(columns), keys, included)
