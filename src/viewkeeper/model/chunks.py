"""A column as one array, however many chunks it came in, and as the words in which it lies in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_PLAIN = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float32(), pa.float64(), pa.date32(), pa.timestamp("us"), pa.decimal128(38, 0)),
)
_WORDS = {kind.id: np.dtype(f"V{kind.byte_width}" if kind.byte_width > 8 else f"u{kind.byte_width}") for kind in _PLAIN}
_TAKE = pc.get_function("array_take")


def one_chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """The column as one array; of a column in one chunk nothing is copied."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def words(array: pa.Array) -> npt.NDArray[Any] | None:
    """A column of numbers, dates or times without NULLs as it lies in memory; None of any other."""
    kind = _WORDS.get(array.type.id)
    if kind is None or array.null_count:
        return None
    if not len(array):
        return np.zeros(0, kind)
    found: npt.NDArray[Any] = np.frombuffer(array.buffers()[1], kind, len(array), array.offset * kind.itemsize)
    return found


def same_words(one: pa.Array, other: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Where two columns of one type and length have the same bits, some microseconds sooner than Arrow says so; None of
    columns that are no plain words."""
    left, right = words(one), words(other)
    if left is None or right is None:
        return None
    if left.dtype.itemsize > 8:
        halves = [np.ascontiguousarray(side).view(np.uint64).reshape(-1, 2) for side in (left, right)]
        both: npt.NDArray[np.bool_] = (halves[0] == halves[1]).all(axis=1)
        return both
    same: npt.NDArray[np.bool_] = left == right
    return same


def taken(array: pa.Array, places: pa.Array) -> pa.Array:
    """What `array.take` gives, without the two calls before it that choose between kinds of arguments."""
    return _TAKE.call([array, places])
