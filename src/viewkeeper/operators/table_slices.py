"""Rows of base tables that recomputes read by hash, from the tables' arrangements.

Those of one table are taken once for all ports of an operator that read it. Few rows are remembered, with the runs that
they were taken from, for whoever of the same batch asks next: TPC-H's Q21 reads the lines of the same orders twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from viewkeeper.model.delta import empty_delta
from viewkeeper.operators.operator import ExecutionContext
from viewkeeper.operators.segment_execution import run_segment
from viewkeeper.state.consolidate import consolidate
from viewkeeper.state.hash_index import Hashes

if TYPE_CHECKING:
    from viewkeeper.operators.kinds.recompute import Recompute

_SLICE_CACHE_KEY, _MAX_CACHED_ROWS = "taken ", 1 << 16
"""Of so many rows it is remembered that they were taken."""


class TableSlices:
    """What one recompute reads, in one batch."""

    def __init__(self, context: ExecutionContext, operator: Recompute) -> None:
        self._context, self._operator = context, operator
        self._slices: dict[str, tuple[Hashes, pa.Table | None]] = {}

    def read_port_rows(self, port: int, hashes: Hashes) -> pa.Table:
        """The new rows of these hashes, as the port's own segment shows them."""
        arranged, segment = self._operator.shared_images[port], self._operator.inputs[port][0]
        if arranged is None:
            return empty_delta(segment.columns)
        asked, rows = self._slices.get(arranged, (None, None))
        if asked is not hashes:
            taken = self.read_slice(arranged, hashes)
            rows = None if taken is None else consolidate(self._context.statements, taken)
            self._slices[arranged] = hashes, rows
        return empty_delta(segment.columns) if rows is None else run_segment(self._context.statements, segment, rows)

    def read_slice(self, image_id: str, hashes: Hashes) -> pa.Table | None:
        """The table's new rows of these hashes, those that cancel each other too; None if it never had any."""
        arrangement = self._context.new(f"{image_id}/0")
        return arrangement.slice(hashes, sorted(self._operator.lookup_columns[image_id])) if arrangement.runs else None

    def read_cached_slice(self, image_id: str, hashes: Hashes) -> pa.Table | None:
        """The same, for whoever else of this batch asks (`covered`)."""
        arrangement, columns = self._context.new(f"{image_id}/0"), sorted(self._operator.lookup_columns[image_id])
        known = arrangement.cached_result(f"{_SLICE_CACHE_KEY}{columns}")
        if known is not None and known[0] is hashes:
            return known[1]
        rows = self.read_slice(image_id, hashes)
        if rows is not None and rows.num_rows <= _MAX_CACHED_ROWS:
            arrangement.cache_result(f"{_SLICE_CACHE_KEY}{columns}", (hashes, rows))
        return rows

    def find_covering_hashes(self, hashes: Hashes) -> Hashes | None:
        """Hashes whose rows of the one table that is read were taken last, by another operator mostly, if these are
        among them, and not much less: they need not be sought again."""
        tables = self._operator.lookup_columns
        if len(tables) != 1:
            return None
        ((arranged, columns),) = tables.items()
        known = self._context.new(f"{arranged}/0").cached_result(f"{_SLICE_CACHE_KEY}{sorted(columns)}")
        if known is None or not len(hashes) <= len(known[0]) <= 2 * len(hashes):
            return None
        places = np.minimum(np.searchsorted(known[0], hashes), len(known[0]) - 1)
        return known[0] if np.array_equal(known[0][places], hashes) else None
