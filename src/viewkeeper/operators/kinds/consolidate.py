"""Consolidate: the sum of its inputs with what cancels removed.

Stands between a join's paths and an expression that can raise: a path may bring a combination of rows that was never in
any state, which another path takes back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from viewkeeper.model.names import HASH
from viewkeeper.model.schema import Column
from viewkeeper.operators.consolidate import consolidate
from viewkeeper.operators.operator import Operator, Ports, Site
from viewkeeper.operators.segments import Segment
from viewkeeper.operators.steps import ranges
from viewkeeper.operators.telling import Drawn, Told


@dataclass(frozen=True)
class Consolidate(Operator):
    source: tuple[Segment, ...]
    kind: ClassVar[str] = "consolidate"

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return (self.source,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.source[0].columns

    def run(self, site: Site, ports: Ports) -> Iterator[pa.Table]:
        for part in ranges(site, ports):
            if part[0] is not None:
                yield consolidate(site.duck, part[0]).drop_columns([HASH])

    def describe(self, told: Told) -> str:
        return "consolidate"

    def drawn(self, told: Told) -> Drawn:
        return Drawn("consolidate")
