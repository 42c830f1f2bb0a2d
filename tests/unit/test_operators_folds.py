"""Sums over frames add in the order of rows: against a loop that says so, with what is not finite and with NULL."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from viewkeeper.model.names import FIRST_ROW_INDEX, ROW_INDEX
from viewkeeper.operators.aggregation.window_float_sums import FloatFrameSum, add_frame_sums

_VALUES = st.sampled_from([None, 0.0, -0.0, 0.1, 0.7, 1e16, -1e16, 1e308, math.inf, -math.inf, math.nan])
_FRAMES = st.tuples(st.integers(-3, 3), st.integers(0, 4))
_PARTITION = st.lists(st.tuples(_VALUES, _FRAMES, st.booleans()), min_size=1, max_size=30)


def slow(values: list[float | None], average: bool) -> float | None:
    total, count = 0.0, 0
    for value in values:
        if value is not None:
            total, count = total + value, count + 1
    if not count:
        return None
    return total / count if average else total


@given(st.lists(_PARTITION, max_size=5), st.booleans())
def test_every_frame_is_added_from_its_first_row_to_its_last(
    partitions: list[list[tuple[float | None, tuple[int, int], bool]]], average: bool
) -> None:
    rows, expected, start = [], [], 0
    for partition in partitions:
        values = [value for value, _, _ in partition]
        for i, (value, (offset, length), whole) in enumerate(partition):
            low = 0 if whole else max(0, i + offset)
            high = min(len(partition) - 1, i if whole else i + offset + length - 1)
            empty = high < low or low >= len(partition)
            frame = (None, None) if empty else (start + low + 1, start + high + 1)
            rows.append((start + i + 1, start + 1, value, *frame))
            expected.append(None if empty else slow(values[low : high + 1], average))
        start += len(partition)
    shuffled = np.random.default_rng(len(rows)).permutation(len(rows))
    names = (ROW_INDEX, FIRST_ROW_INDEX, "w0", "w0_l", "w0_h")
    kinds = (pa.int64(), pa.int64(), pa.float64(), pa.int64(), pa.int64())
    columns = [pa.array([rows[j][i] for j in shuffled], kind) for i, kind in enumerate(kinds)]
    found = add_frame_sums(pa.table(columns, names=list(names)), [FloatFrameSum("w0", average)])
    assert found.column_names == ["w0"]
    assert [repr(v) for v in found["w0"].to_pylist()] == [repr(expected[j]) for j in shuffled]
