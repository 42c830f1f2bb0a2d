"""Stretches of places: where each begins and how many it has, and all of them one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from viewkeeper.state.hash_index import RowIds


def expand_ranges(start: RowIds, count: RowIds) -> RowIds:
    """start, start + 1, … start + count − 1 for each pair, one after the other."""
    total = int(count.sum())
    if total == len(count) and bool((count == 1).all()):
        return start
    return np.repeat(start - np.cumsum(count) + count, count) + np.arange(total)


def split_ranges(start: RowIds, count: RowIds, max_rows: int) -> Iterator[tuple[int, int, RowIds, RowIds]]:
    """Ranges that hold so many places together, all in order: (first range, one past the last, starts, counts)."""
    ends = np.cumsum(count)
    for low in range(0, int(ends[-1]), max_rows):
        high = min(low + max_rows, int(ends[-1]))
        first, last = (int(i) for i in np.searchsorted(ends, [low, high - 1], "right"))
        begin, length = start[first : last + 1].copy(), count[first : last + 1].copy()
        skipped = low - int(ends[first] - count[first])
        begin[0] += skipped
        length[0] -= skipped
        length[-1] -= int(ends[last]) - high
        yield first, last + 1, begin, length
