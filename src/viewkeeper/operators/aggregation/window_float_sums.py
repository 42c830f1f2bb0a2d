"""Sums of floats over window frames: the rows of each frame are added one by one in their order, as Spark adds them.

Floating-point addition has no inverse and is not associative: subtracting a row turns an infinity into NaN, and a sum
of partial sums has other digits. Rows are in order, so a frame is a range [low, high] of positions:

    x        3   1   4 │ 1   5              │ a new partition
    running  3   4   8 │ 1   6              a frame from the partition's start is running[high]
    other    start at zero, add x[low], x[low + 1], … for all frames at once that are long enough

NULL adds 0.0, which changes nothing: a sum that starts at 0.0 is never −0.0. The running sums of n rows take at most
2·√n numpy calls: partitions of up to √n rows are summed side by side, row by row, and there are at most √n longer ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from viewkeeper.model.int128 import Doubles, Flags, Ints
from viewkeeper.model.names import FIRST_ROW_INDEX, ROW_INDEX


@dataclass(frozen=True)
class FloatFrameSum:
    """A sum or average of floats over a window's frame of positions.

    A row's position is that in the order of all rows (`ROW_INDEX`); `FIRST_ROW_INDEX` is the position of its
    partition's first row. SQL puts the row's own value in `column`, which `add_frame_sums` replaces.
    """

    column: str
    is_average: bool


def frame_start_column(frame_sum: FloatFrameSum) -> str:
    return f"{frame_sum.column}_l"


def frame_end_column(frame_sum: FloatFrameSum) -> str:
    return f"{frame_sum.column}_h"


def add_frame_sums(rows: pa.Table, frame_sums: Sequence[FloatFrameSum]) -> pa.Table:
    """Return the rows with each frame sum's column, which had the row's own value, as the result over its frame."""
    position = _read_positions(rows.column(ROW_INDEX))
    order = np.argsort(position)
    first = _read_positions(rows.column(FIRST_ROW_INDEX))[order] - 1
    for frame_sum in frame_sums:
        column = rows.column(frame_sum.column).combine_chunks()
        valid: Flags = column.is_valid().to_numpy(zero_copy_only=False)[order]
        value: Doubles = np.where(valid, column.fill_null(0.0).to_numpy(zero_copy_only=False)[order], 0.0)
        lowest, highest = (
            _read_positions(rows.column(name))[order] - 1
            for name in (frame_start_column(frame_sum), frame_end_column(frame_sum))
        )
        total, count = _sum_frames(value, first, lowest, highest), _count_values(valid, lowest, highest)
        with np.errstate(invalid="ignore"):
            result = total / np.maximum(count, 1) if frame_sum.is_average else total
        results = np.empty_like(result)
        is_null = np.empty(len(order), np.bool_)
        results[order], is_null[order] = result, count == 0
        rows = rows.set_column(
            rows.schema.get_field_index(frame_sum.column), frame_sum.column, pa.array(results, mask=is_null)
        )
    return rows.drop_columns(
        [ROW_INDEX, FIRST_ROW_INDEX, *(n for f in frame_sums for n in (frame_start_column(f), frame_end_column(f)))]
    )


def _sum_frames(value: Doubles, first: Ints, starts: Ints, ends: Ints) -> Doubles:
    """Return the sum over each frame; `starts` is −1 where the frame is empty."""
    with np.errstate(over="ignore", invalid="ignore"):
        result = np.zeros(len(value), np.float64)
        starts_at_first = starts == first
        if starts_at_first.any():
            result[starts_at_first] = _running_sums(value, first)[ends[starts_at_first]]
        remaining = np.flatnonzero(~starts_at_first & (starts >= 0))
        length = ends[remaining] - starts[remaining] + 1
        remaining = remaining[np.argsort(-length, kind="stable")]
        start, total = starts[remaining], np.zeros(len(remaining), np.float64)
        for step, active in _active_frames(length):
            total[:active] += value[start[:active] + step]
        result[remaining] = total
    return result


def _running_sums(value: Doubles, first: Ints) -> Doubles:
    """Return the sum from the partition's first row to each row. Partitions are contiguous: `first` is where a row's
    partition begins."""
    result = value + 0.0
    start = np.flatnonzero(first == np.arange(len(first)))
    length = np.diff(np.append(start, len(first)))
    is_long = length > isqrt(len(first))
    for begin, count in zip(start[is_long].tolist(), length[is_long].tolist(), strict=True):
        result[begin : begin + count] = np.cumsum(result[begin : begin + count])
    start, length = start[~is_long], length[~is_long]
    start = start[np.argsort(-length, kind="stable")]
    for step, active in _active_frames(length):
        if step:
            row = start[:active] + step
            result[row] += result[row - 1]
    return result


def _active_frames(length: Ints) -> Any:
    """Yield (step, number of frames longer than `step`) for all steps; the lengths are in descending order."""
    longest = int(length.max()) if len(length) else 0
    shorter = np.cumsum(np.bincount(length, minlength=longest + 1)) if longest else np.zeros(0, np.int64)
    return ((step, len(length) - int(shorter[step])) for step in range(longest))


def _count_values(is_valid: Flags, starts: Ints, ends: Ints) -> Ints:
    valid_before = np.concatenate([[0], np.cumsum(is_valid)])
    return np.where(starts < 0, 0, valid_before[ends + 1] - valid_before[np.maximum(starts, 0)])


def _read_positions(column: Any) -> npt.NDArray[np.int64]:
    """Return a column of positions, which count from one; 0 where it is NULL."""
    positions: npt.NDArray[np.int64] = column.fill_null(0).combine_chunks().to_numpy(zero_copy_only=False)
    return positions
