"""The columns of vectors as 64-bit integers that can be added in any order, wrap around, and be put together again.

A column of zeros has no part; one whose sums cannot leave 64 bits has one; any other is 128-bit integers in three parts
(`Wide.addends`), each summed by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from viewkeeper.model.chunks import one_chunk
from viewkeeper.operators.wide import Ints, Wide

_ROOM = 2.0**62


@dataclass(frozen=True)
class Addends:
    """`parts` of all columns, one after the other; how many each column has; and what type it is."""

    parts: tuple[Ints, ...]
    counts: tuple[int, ...]
    kinds: tuple[pa.DataType, ...]

    def put_together(self, parts: Sequence[Ints], times: Ints) -> list[pa.Array]:
        """Columns from sums of the parts, each row multiplied by its weight."""
        found, at = [], 0
        for count, kind in zip(self.counts, self.kinds, strict=True):
            mine = [part * times for part in parts[at : at + count]]
            at += count
            found.append(_column(mine, kind, len(times)))
        return found


def addends(rows: pa.Table, names: Sequence[str]) -> Addends:
    parts: list[Ints] = []
    counts, kinds = [], []
    for name in names:
        column = one_chunk(rows.column(name))
        mine = _parts(column)
        parts += mine
        counts.append(len(mine))
        kinds.append(column.type)
    return Addends(tuple(parts), tuple(counts), tuple(kinds))


def _parts(column: pa.Array) -> list[Ints]:
    if not pa.types.is_decimal(column.type):
        values: Ints = column.to_numpy()
        return [values] if values.any() else []
    wide = Wide.of(column)
    if not wide.low.any() and not wide.high.any():
        return []
    small = wide.low.view(np.int64)
    if bool(wide.is_long.all()) and float(np.abs(small.astype(np.float64)).sum()) < _ROOM:
        return [np.ascontiguousarray(small)]
    return list(wide.addends)


def _column(parts: Sequence[Ints], kind: pa.DataType, rows: int) -> pa.Array:
    if not parts:
        parts = [np.zeros(rows, np.int64)]
    if not pa.types.is_decimal(kind):
        return pa.array(parts[0], kind)
    wide = Wide.sum(*parts) if len(parts) == 3 else Wide(parts[0].view(np.uint64), parts[0] >> 63)
    return wide.decimals(kind, np.ones(rows, np.bool_))
