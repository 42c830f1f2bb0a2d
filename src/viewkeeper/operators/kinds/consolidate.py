"""Consolidate: the sum of its inputs with what cancels removed.

Stands between a join's paths and an expression that can raise: a path may bring a combination of rows that was never in
any state, which another path takes back. Or, `once`: the key of each row that changed, one time, whatever its weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from viewkeeper.model.names import HASH, WEIGHT, quoted
from viewkeeper.model.schema import Column
from viewkeeper.operators.chunked_execution import ranges
from viewkeeper.operators.description import Drawn, Told
from viewkeeper.operators.operator import Operator, Ports, Site
from viewkeeper.operators.segment import Segment
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.state.consolidate import consolidate


@dataclass(frozen=True)
class Consolidate(Operator):
    source: tuple[Segment, ...]
    once: bool = False
    kind: ClassVar[str] = "consolidate"

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return (self.source,)

    @property
    def columns(self) -> tuple[Column, ...]:
        source = self.source[0]
        return tuple(c for c in source.columns if c.name in (source.key or ())) if self.once else source.columns

    def run(self, site: Site, ports: Ports) -> Iterator[pa.Table]:
        for part in ranges(site, ports):
            if part[0] is not None:
                yield self._once(site.duck, part[0]) if self.once else _consolidated(site.duck, part[0])

    def _once(self, duck: Duck, rows: pa.Table) -> pa.Table:
        selected = ", ".join([*(quoted(c.name) for c in self.columns), f"1::BIGINT AS {WEIGHT}"])  # a key may be empty
        return duck.run(f"SELECT DISTINCT {selected} FROM delta", delta=rows)

    def describe(self, told: Told) -> str:
        return "each key that changed, once" if self.once else "consolidate"

    def drawn(self, told: Told) -> Drawn:
        return Drawn("changed keys" if self.once else "consolidate")


def _consolidated(duck: Duck, rows: pa.Table) -> pa.Table:
    return consolidate(duck, rows).drop_columns([HASH])
