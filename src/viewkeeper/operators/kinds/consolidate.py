"""Consolidate: the sum of its inputs, with weights of equal rows added up and zeros dropped.

It stands between the paths of a join and an expression that can raise: one path may output a combination of rows that
was never in any state and that another path cancels. With `is_distinct_keys`, it outputs the key of each changed row
once, whatever its weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from viewkeeper.model.names import HASH, WEIGHT, quoted
from viewkeeper.model.schema import Column
from viewkeeper.operators.chunked_execution import split_by_hash_range
from viewkeeper.operators.description import ExplainContext, OperatorDescription
from viewkeeper.operators.operator import ExecutionContext, Operator, Ports
from viewkeeper.operators.segment import Segment
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.consolidate import consolidate


@dataclass(frozen=True)
class Consolidate(Operator):
    source: tuple[Segment, ...]
    is_distinct_keys: bool = False
    kind: ClassVar[str] = "consolidate"

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return (self.source,)

    @property
    def columns(self) -> tuple[Column, ...]:
        source = self.source[0]
        return (
            tuple(c for c in source.columns if c.name in (source.key or ()))
            if self.is_distinct_keys
            else source.columns
        )

    def run(self, context: ExecutionContext, ports: Ports) -> Iterator[pa.Table]:
        for part in split_by_hash_range(context, ports):
            if part[0] is not None:
                yield (
                    self._distinct_keys(context.statements, part[0])
                    if self.is_distinct_keys
                    else _consolidate_rows(context.statements, part[0])
                )

    def _distinct_keys(self, statements: PreparedStatements, rows: pa.Table) -> pa.Table:
        selected = ", ".join(
            [*(quoted(c.name) for c in self.columns), f"1::BIGINT AS {WEIGHT}"]
        )  # a key may have no columns
        return statements.run(f"SELECT DISTINCT {selected} FROM delta", delta=rows)

    def describe(self, context: ExplainContext) -> str:
        return "each key that changed, once" if self.is_distinct_keys else "consolidate"

    def box_description(self, context: ExplainContext) -> OperatorDescription:
        return OperatorDescription("changed keys" if self.is_distinct_keys else "consolidate")


def _consolidate_rows(statements: PreparedStatements, rows: pa.Table) -> pa.Table:
    return consolidate(statements, rows).drop_columns([HASH])
