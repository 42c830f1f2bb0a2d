"""Arrange: a relation that is not a plain base table, arranged by the key on which it is looked up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from viewkeeper.errors import Defect
from viewkeeper.model.schema import Column
from viewkeeper.operators.chunked_execution import arrange_input
from viewkeeper.operators.description import ExplainContext, OperatorDescription
from viewkeeper.operators.operator import ExecutionContext, Operator, Ports
from viewkeeper.operators.segment import Segment


@dataclass(frozen=True)
class Arrange(Operator):
    """State: its rows by the hash of the key, or in the order of the key's one column (range lookups)."""

    source: tuple[Segment, ...]
    kind: ClassVar[str] = "arrange"
    stateful: ClassVar[bool] = True
    is_arrangement: ClassVar[bool] = True

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return (self.source,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.source[0].columns

    @property
    def arrangement_key(self) -> tuple[str, ...]:
        key = self.source[0].key
        if key is None:
            raise Defect("An arrangement has no key.")
        return key

    @property
    def slot_count(self) -> int:
        return 1

    def run(self, context: ExecutionContext, ports: Ports) -> Iterable[pa.Table]:
        return arrange_input(context, self, ports)

    def describe(self, context: ExplainContext) -> str:
        by = "in the order of" if self.source[0].ordered else "by"
        return f"arrangement {by} ({', '.join(self.arrangement_key)})"

    def reason(self, context: ExplainContext) -> str:
        if self.source[0].ordered:
            return "kept in order because it is compared with a threshold that moves"
        return "kept because its rows are computed: no base table can be looked up in its place"

    def box_description(self, context: ExplainContext) -> OperatorDescription:
        return OperatorDescription(
            "arrangement", key=tuple(context.describe_output(self.source[0], k) for k in self.arrangement_key)
        )
