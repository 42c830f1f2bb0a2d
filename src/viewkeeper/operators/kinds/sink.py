"""Sink: the end of a view. Its input is what the batch writes to the view's table (`runtime.upserts`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from viewkeeper.model.schema import Column
from viewkeeper.operators.description import ExplainContext, OperatorDescription
from viewkeeper.operators.operator import Operator
from viewkeeper.operators.segment import OMITTED_IF_EMPTY, Segment


@dataclass(frozen=True)
class Sink(Operator):
    view: int
    source: tuple[Segment, ...]
    lazy_arrangements: tuple[str, ...] = field(default=(), metadata={OMITTED_IF_EMPTY: True})
    """For a lazy view: it has no input, but these arrangements are kept so that reads can compute its rows."""
    kind: ClassVar[str] = "sink"
    needs_exchange: ClassVar[bool] = False
    is_sink: ClassVar[bool] = True

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return (self.source,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.source[0].columns

    @property
    def upstream_ids(self) -> tuple[str, ...]:
        return (*super().upstream_ids, *self.lazy_arrangements)

    @property
    def output_view(self) -> int:
        return self.view

    def describe(self, context: ExplainContext) -> str:
        return f"{'lazy' if self.lazy_arrangements else 'sink'} {context.names[self.view]}"

    def box_description(self, context: ExplainContext) -> OperatorDescription:
        name = context.names[self.view]
        return OperatorDescription(f"view {name}", table=name)
