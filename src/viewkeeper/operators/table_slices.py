"""Rows of base tables that recomputes read by hash, from the tables' arrangements.

Those of one table are taken once for all ports of an operator that read it. Few rows are remembered, with the runs that
they were taken from, for whoever of the same batch asks next: TPC-H's Q21 reads the lines of the same orders twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from viewkeeper.model.delta import no_rows
from viewkeeper.operators.operator import Site
from viewkeeper.operators.segment_execution import passed
from viewkeeper.state.consolidate import consolidate
from viewkeeper.state.hash_index import Hashes

if TYPE_CHECKING:
    from viewkeeper.operators.kinds.recompute import Recompute

_TAKEN, _FEW_ROWS = "taken ", 1 << 16
"""Of so many rows it is remembered that they were taken."""


class Tables:
    """What one recompute reads, in one batch."""

    def __init__(self, site: Site, operator: Recompute) -> None:
        self._site, self._operator = site, operator
        self._found: dict[str, tuple[Hashes, pa.Table | None]] = {}

    def rows(self, port: int, hashes: Hashes) -> pa.Table:
        """The new rows of these hashes, as the port's own segment shows them."""
        arranged, segment = self._operator.shared[port], self._operator.inputs[port][0]
        if arranged is None:
            return no_rows(segment.columns)
        asked, rows = self._found.get(arranged, (None, None))
        if asked is not hashes:
            taken = self.taken(arranged, hashes)
            rows = None if taken is None else consolidate(self._site.duck, taken)
            self._found[arranged] = hashes, rows
        return no_rows(segment.columns) if rows is None else passed(self._site.duck, segment, rows)

    def taken(self, arranged: str, hashes: Hashes) -> pa.Table | None:
        """The table's new rows of these hashes, those that cancel each other too; None if it never had any."""
        arrangement = self._site.fresh(f"{arranged}/0")
        return arrangement.slice(hashes, sorted(self._operator.reads[arranged])) if arrangement.runs else None

    def kept(self, arranged: str, hashes: Hashes) -> pa.Table | None:
        """The same, for whoever else of this batch asks (`covered`)."""
        arrangement, columns = self._site.fresh(f"{arranged}/0"), sorted(self._operator.reads[arranged])
        known = arrangement.remembered(f"{_TAKEN}{columns}")
        if known is not None and known[0] is hashes:
            return known[1]
        rows = self.taken(arranged, hashes)
        if rows is not None and rows.num_rows <= _FEW_ROWS:
            arrangement.remember(f"{_TAKEN}{columns}", (hashes, rows))
        return rows

    def covered(self, hashes: Hashes) -> Hashes | None:
        """Hashes whose rows of the one table that is read were taken last, by another operator mostly, if these are
        among them, and not much less: they need not be sought again."""
        tables = self._operator.reads
        if len(tables) != 1:
            return None
        ((arranged, columns),) = tables.items()
        known = self._site.fresh(f"{arranged}/0").remembered(f"{_TAKEN}{sorted(columns)}")
        if known is None or not len(hashes) <= len(known[0]) <= 2 * len(hashes):
            return None
        places = np.minimum(np.searchsorted(known[0], hashes), len(known[0]) - 1)
        return known[0] if np.array_equal(known[0][places], hashes) else None
