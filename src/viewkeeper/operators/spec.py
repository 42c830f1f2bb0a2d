"""What an aggregate computes: keys and measures."""

from __future__ import annotations

from dataclasses import dataclass

from viewkeeper.model.schema import Column
from viewkeeper.model.types import Type


@dataclass(frozen=True)
class Measure:
    """One aggregate: `function` (a Catalyst class name) of the input column `argument` (None: count(*))."""

    name: str
    function: str
    argument: str | None
    argument_type: Type | None
    type: Type
    distinct: bool = False

    @property
    def column(self) -> Column:
        return Column(self.name, self.type)


@dataclass(frozen=True)
class AggregateSpec:
    keys: tuple[Column, ...]
    measures: tuple[Measure, ...]
