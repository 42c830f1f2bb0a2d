"""Sink: the end of a view, its table in the store. What arrives is what the batch writes (`rounds.sink`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from viewkeeper.model.schema import Column
from viewkeeper.operators.operator import Operator
from viewkeeper.operators.segments import Segment
from viewkeeper.operators.telling import Drawn, Told


@dataclass(frozen=True)
class Sink(Operator):
    view: int
    source: tuple[Segment, ...]
    kind: ClassVar[str] = "sink"
    keyed: ClassVar[bool] = False
    is_sink: ClassVar[bool] = True

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return (self.source,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.source[0].columns

    @property
    def shows(self) -> int:
        return self.view

    def describe(self, told: Told) -> str:
        return f"sink {told.names[self.view]}"

    def drawn(self, told: Told) -> Drawn:
        name = told.names[self.view]
        return Drawn(f"view {name}", table=name)
