"""BulkJoin: the whole join in one DuckDB statement over all relations, for first loads in the driver.

A load is a delta from nothing, so of the join paths `Σᵢ R₁ⁿᵉʷ⋈…⋈ΔRᵢ⋈…⋈Rₙᵒˡᵈ` one remains, which is the join itself.
Optional relations are joined last, each by its left outer or anti join.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import pyarrow as pa

from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.names import WEIGHT, quoted
from viewkeeper.model.schema import Column
from viewkeeper.operators.chunked_execution import concat_deltas
from viewkeeper.operators.operator import ExecutionContext, Operator, Ports
from viewkeeper.operators.segment import Segment, where_sql
from viewkeeper.resources.memory import row_width
from viewkeeper.state.consolidate import consolidation_sql


@dataclass(frozen=True)
class OptionalInput:
    """An optional relation: `join_type` is `left` or `anti`. `must_consolidate`: its rows are consolidated first,
    because whether a row has a match depends on the sum of weights."""

    relation: int
    join_type: str
    on: tuple[Expr, ...]
    must_consolidate: bool


@dataclass(frozen=True)
class BulkJoin(Operator):
    relations: tuple[tuple[Segment, ...], ...]
    where: tuple[Expr, ...]
    optional: tuple[OptionalInput, ...] = ()
    kind: ClassVar[str] = "bulk_join"
    is_load_only: ClassVar[bool] = True
    has_canceling_output: ClassVar[bool] = True

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return self.relations

    @property
    def columns(self) -> tuple[Column, ...]:
        hidden = {o.relation for o in self.optional if o.join_type == "anti"}
        return tuple(c for i, relation in enumerate(self.relations) if i not in hidden for c in relation[0].columns)

    @cached_property
    def sql(self) -> str:
        """Each relation is a table `input0`, `input1`, …; their weights multiply."""
        optional = {o.relation for o in self.optional}
        inner = [f"input{i}" for i in range(len(self.relations)) if i not in optional]
        factors = [f"{name}.{WEIGHT}" for name in inner]
        tables = f"({' CROSS JOIN '.join(inner)})" if self.optional else ", ".join(inner)
        for joined in self.optional:
            name = f"input{joined.relation}"
            rows = name
            if joined.must_consolidate:
                schema = _schema(self.relations[joined.relation][0].columns)
                rows = f"({consolidation_sql(schema, source=name)}) AS {name}"
            tables += f" {'ANTI' if joined.join_type == 'anti' else 'LEFT'} JOIN {rows} ON {where_sql(joined.on)}"
            if joined.join_type != "anti":
                factors.append(f"coalesce({name}.{WEIGHT}, 1)")
        condition = f" WHERE {where_sql(self.where)}" if self.where else ""
        columns = "".join(f"{quoted(c.name)}, " for c in self.columns)
        return f"SELECT {columns}CAST({' * '.join(factors)} AS BIGINT) AS {WEIGHT} FROM {tables}{condition}"

    def takes_part(self, on_spark: bool) -> bool:
        return not on_spark

    def run(self, context: ExecutionContext, ports: Ports) -> Iterable[pa.Table]:
        optional = {o.relation for o in self.optional}
        if not all(tables for i, tables in enumerate(ports) if i not in optional):
            return ()
        inputs = {
            f"input{i}": concat_deltas(tables) if tables else _empty_rows(self.relations[i][0].columns)
            for i, tables in enumerate(ports)
        }
        max_rows = context.memory.piece_rows(sum(row_width(table) for table in inputs.values()))
        return context.statements.stream(self.sql, max_rows, **inputs)


def _empty_rows(columns: Sequence[Column]) -> pa.Table:
    return _schema(columns).empty_table()


def _schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([*((c.name, types.arrow(c.type)) for c in columns), (WEIGHT, pa.int64())])
