"""BulkJoin: the whole join at once, for first loads in the driver: one DuckDB statement over all relations.

A load is a delta from nothing, so of the paths `Σᵢ R₁ⁿᵉʷ⋈…⋈ΔRᵢ⋈…⋈Rₙᵒˡᵈ` one remains, which is the join itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import pyarrow as pa

from viewkeeper.expressions.tree import Expr
from viewkeeper.model.names import WEIGHT, quoted
from viewkeeper.model.schema import Column
from viewkeeper.operators.operator import Operator, Ports, Site
from viewkeeper.operators.segments import Segment, where_sql
from viewkeeper.operators.steps import stacked
from viewkeeper.store.memory import width


@dataclass(frozen=True)
class BulkJoin(Operator):
    relations: tuple[tuple[Segment, ...], ...]
    where: tuple[Expr, ...]
    kind: ClassVar[str] = "bulkjoin"
    only_loads: ClassVar[bool] = True
    may_cancel: ClassVar[bool] = True

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return self.relations

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(c for relation in self.relations for c in relation[0].columns)

    @cached_property
    def sql(self) -> str:
        """Each relation is a table `input0`, `input1`, …; their weights multiply."""
        names = [f"input{i}" for i in range(len(self.relations))]
        weight = " * ".join(f"{n}.{WEIGHT}" for n in names)
        condition = f" WHERE {where_sql(self.where)}" if self.where else ""
        columns = "".join(f"{quoted(c.name)}, " for c in self.columns)
        return f"SELECT {columns}CAST({weight} AS BIGINT) AS {WEIGHT} FROM {', '.join(names)}{condition}"

    def takes_part(self, on_spark: bool) -> bool:
        return not on_spark

    def run(self, site: Site, ports: Ports) -> Iterable[pa.Table]:
        if not all(ports):
            return ()
        inputs = {f"input{i}": stacked(tables) for i, tables in enumerate(ports)}
        most = site.memory.rows(sum(width(table) for table in inputs.values()))
        return site.duck.stream(self.sql, most, **inputs)
