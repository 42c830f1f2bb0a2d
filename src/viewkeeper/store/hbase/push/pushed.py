"""What a batch had of a table's pushed changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Pushed:
    """Up to which mark of a spool's life. `complete`: that was known to be everything up to the batch's cut."""

    life: str
    mark: Mapping[str, int]
    complete: bool
    known: Mapping[str, int] | None = field(default=None, compare=False)
    """What had come when the batch read its rows: more than the mark, if some of it was of times after the cut. It is
    not published: in the process that read them only."""
    upto: int | None = field(default=None, compare=False)
    """The cut at which it read them, likewise: of the files known by then, each row without a later time was read."""

    def to_json(self) -> list[Any]:
        return [self.life, dict(self.mark), self.complete]

    @staticmethod
    def from_json(data: list[Any]) -> Pushed:
        return Pushed(data[0], data[1], data[2])
