"""Sink: the end of a view, its table in the store. What arrives is what the batch writes (`rounds.sink`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from viewkeeper.model.schema import Column
from viewkeeper.operators.description import Drawn, Told
from viewkeeper.operators.operator import Operator
from viewkeeper.operators.segment import LATER, Segment


@dataclass(frozen=True)
class Sink(Operator):
    view: int
    source: tuple[Segment, ...]
    keeps: tuple[str, ...] = field(default=(), metadata={LATER: True})
    """Of a lazy view: nothing arrives here, but these arrangements are kept for who asks (`plan.narrowing`)."""
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
    def fed_by(self) -> tuple[str, ...]:
        return (*super().fed_by, *self.keeps)

    @property
    def shows(self) -> int:
        return self.view

    def describe(self, told: Told) -> str:
        return f"{'lazy' if self.keeps else 'sink'} {told.names[self.view]}"

    def drawn(self, told: Told) -> Drawn:
        name = told.names[self.view]
        return Drawn(f"view {name}", table=name)
