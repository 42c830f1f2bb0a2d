"""Sums of floats over window frames: the frame's rows added one by one in their order, as Spark adds them.

Floating-point addition has no inverse and does not associate: taking a row back turns an infinity into NaN, and a sum
of partial sums has other digits. Rows stand in order, so a frame is a stretch [low, high] of places:

    x        3   1   4 │ 1   5              │ a new partition
    running  3   4   8 │ 1   6              a frame from the partition's start is running[high]
    other    start at zero, add x[low], x[low + 1], … for all frames at once that are long enough

NULL adds 0.0, which changes nothing: a sum that starts at 0.0 is never −0.0. The running sums of n rows take 2·√n numpy
calls at most: partitions up to √n rows go side by side, row by row, and of longer ones there are at most √n.
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
from viewkeeper.model.names import FIRST, PLACE


@dataclass(frozen=True)
class Fold:
    """A sum or average of floats over a window's frame, which is the places from `low` to `high`.

    A row's place is that in the order of all rows (`PLACE`); `FIRST` is the place of its partition's first row. SQL
    gives the row's own value in its column, which `folded` replaces.
    """

    column: str
    average: bool


def low(fold: Fold) -> str:
    return f"{fold.column}_l"


def high(fold: Fold) -> str:
    return f"{fold.column}_h"


def folded(rows: pa.Table, folds: Sequence[Fold]) -> pa.Table:
    """The rows with each fold's column, until now the row's own value, as the result over its frame."""
    place = _integers(rows.column(PLACE))
    order = np.argsort(place)
    first = _integers(rows.column(FIRST))[order] - 1
    for fold in folds:
        column = rows.column(fold.column).combine_chunks()
        valid: Flags = column.is_valid().to_numpy(zero_copy_only=False)[order]
        value: Doubles = np.where(valid, column.fill_null(0.0).to_numpy(zero_copy_only=False)[order], 0.0)
        lowest, highest = (_integers(rows.column(name))[order] - 1 for name in (low(fold), high(fold)))
        total, count = _sums(value, first, lowest, highest), _counts(valid, lowest, highest)
        with np.errstate(invalid="ignore"):
            result = total / np.maximum(count, 1) if fold.average else total
        made = np.empty_like(result)
        none = np.empty(len(order), np.bool_)
        made[order], none[order] = result, count == 0
        rows = rows.set_column(rows.schema.get_field_index(fold.column), fold.column, pa.array(made, mask=none))
    return rows.drop_columns([PLACE, FIRST, *(n for f in folds for n in (low(f), high(f)))])


def _sums(value: Doubles, first: Ints, lowest: Ints, highest: Ints) -> Doubles:
    """The sum over each frame; `lowest` is −1 where it is empty."""
    with np.errstate(over="ignore", invalid="ignore"):
        result = np.zeros(len(value), np.float64)
        whole = lowest == first
        if whole.any():
            result[whole] = _running(value, first)[highest[whole]]
        rest = np.flatnonzero(~whole & (lowest >= 0))
        length = highest[rest] - lowest[rest] + 1
        rest = rest[np.argsort(-length, kind="stable")]
        start, total = lowest[rest], np.zeros(len(rest), np.float64)
        for step, active in _active(length):
            total[:active] += value[start[:active] + step]
        result[rest] = total
    return result


def _running(value: Doubles, first: Ints) -> Doubles:
    """The sum from the partition's first row to each row. Partitions are stretches: `first` is where a row's begins."""
    result = value + 0.0
    start = np.flatnonzero(first == np.arange(len(first)))
    length = np.diff(np.append(start, len(first)))
    long = length > isqrt(len(first))
    for begin, count in zip(start[long].tolist(), length[long].tolist(), strict=True):
        result[begin : begin + count] = np.cumsum(result[begin : begin + count])
    start, length = start[~long], length[~long]
    start = start[np.argsort(-length, kind="stable")]
    for step, active in _active(length):
        if step:
            place = start[:active] + step
            result[place] += result[place - 1]
    return result


def _active(length: Ints) -> Any:
    """(step, how many are longer than it), for all steps; the longest come first."""
    longest = int(length.max()) if len(length) else 0
    shorter = np.cumsum(np.bincount(length, minlength=longest + 1)) if longest else np.zeros(0, np.int64)
    return ((step, len(length) - int(shorter[step])) for step in range(longest))


def _counts(valid: Flags, lowest: Ints, highest: Ints) -> Ints:
    counted = np.concatenate([[0], np.cumsum(valid)])
    return np.where(lowest < 0, 0, counted[highest + 1] - counted[np.maximum(lowest, 0)])


def _integers(column: Any) -> npt.NDArray[np.int64]:
    """A column of places, which count from one; 0: NULL."""
    found: npt.NDArray[np.int64] = column.fill_null(0).combine_chunks().to_numpy(zero_copy_only=False)
    return found
