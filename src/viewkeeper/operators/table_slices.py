"""Slices of base tables: the rows of some hashes that per-key recomputations read from the tables' arrangements.

A table's slice is read once for all ports of an operator. Small slices are also cached with the runs that they were
read from, for other operators of the same batch: TPC-H Q21 reads the line items of the same orders twice.
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
"""Prefix of the cache key of slices, and the number of rows up to which a slice is cached."""


class TableSlices:
    """The slices that one recomputation reads in one batch."""

    def __init__(self, context: ExecutionContext, operator: Recompute) -> None:
        self._context, self._operator = context, operator
        self._slices: dict[str, tuple[Hashes, pa.Table | None]] = {}

    def read_port_rows(self, port: int, hashes: Hashes) -> pa.Table:
        """Return the new rows of these hashes through the port's segment."""
        arranged, segment = self._operator.shared_images[port], self._operator.inputs[port][0]
        if arranged is None:
            return empty_delta(segment.columns)
        cached_hashes, rows = self._slices.get(arranged, (None, None))
        if cached_hashes is not hashes:
            slice_ = self.read_slice(arranged, hashes)
            rows = None if slice_ is None else consolidate(self._context.statements, slice_)
            self._slices[arranged] = hashes, rows
        return empty_delta(segment.columns) if rows is None else run_segment(self._context.statements, segment, rows)

    def read_slice(self, image_id: str, hashes: Hashes) -> pa.Table | None:
        """Return the table's new rows of these hashes, not consolidated; None if the arrangement has no runs."""
        arrangement = self._context.new(f"{image_id}/0")
        return arrangement.slice(hashes, sorted(self._operator.lookup_columns[image_id])) if arrangement.runs else None

    def read_cached_slice(self, image_id: str, hashes: Hashes) -> pa.Table | None:
        """Return the same, from the cache if the last slice was of the very same `hashes` object."""
        arrangement, columns = self._context.new(f"{image_id}/0"), sorted(self._operator.lookup_columns[image_id])
        cached = arrangement.cached_result(f"{_SLICE_CACHE_KEY}{columns}")
        if cached is not None and cached[0] is hashes:
            return cached[1]
        rows = self.read_slice(image_id, hashes)
        if rows is not None and rows.num_rows <= _MAX_CACHED_ROWS:
            arrangement.cache_result(f"{_SLICE_CACHE_KEY}{columns}", (hashes, rows))
        return rows

    def find_covering_hashes(self, hashes: Hashes) -> Hashes | None:
        """Return the hashes of the cached slice of the operator's one table if they contain these and are at most twice
        as many; else None.

        The cached slice, mostly that of another operator, then saves a lookup.
        """
        tables = self._operator.lookup_columns
        if len(tables) != 1:
            return None
        ((arranged, columns),) = tables.items()
        cached = self._context.new(f"{arranged}/0").cached_result(f"{_SLICE_CACHE_KEY}{sorted(columns)}")
        if cached is None or not len(hashes) <= len(cached[0]) <= 2 * len(hashes):
            return None
        positions = np.minimum(np.searchsorted(cached[0], hashes), len(cached[0]) - 1)
        return cached[0] if np.array_equal(cached[0][positions], hashes) else None
