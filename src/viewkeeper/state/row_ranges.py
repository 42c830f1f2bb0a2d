"""Ranges of row ids, each given by its start and its count, and their expansion to single row ids."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from viewkeeper.state.hash_index import RowIds


def expand_ranges(start: RowIds, count: RowIds) -> RowIds:
    """Return start, start + 1, … start + count − 1 of every range, concatenated."""
    total = int(count.sum())
    if total == len(count) and bool((count == 1).all()):
        return start
    return np.repeat(start - np.cumsum(count) + count, count) + np.arange(total)


def split_ranges(start: RowIds, count: RowIds, max_rows: int) -> Iterator[tuple[int, int, RowIds, RowIds]]:
    """Split the ranges into groups of at most `max_rows` row ids, in order.

    A group is (index of its first range, one past the index of its last range, starts, counts).
    """
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
