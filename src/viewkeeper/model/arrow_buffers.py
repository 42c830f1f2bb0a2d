"""Access to Arrow buffers: chunked columns as one array, selected rows, and fixed-width columns as numpy words."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_TAKE = pc.get_function("array_take")


def one_chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return the column as one array. A column with one chunk is not copied."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def take_array(array: pa.Array, indices: pa.Array) -> pa.Array:
    """Return `array.take(indices)`, without the two dispatching calls that `take` makes first."""
    return _TAKE.call([array, indices])


def take_table_rows(table: pa.Table, indices: npt.NDArray[np.int64]) -> pa.Table:
    """Return `table.take(indices)` at a cost proportional to `indices`. Arrow's `take` first concatenates the chunks of
    a column: 95 ms instead of 4 ms for 16,384 of 5 million rows."""
    chunks = table.to_batches()
    if len(chunks) <= 1:
        return table.take(pa.array(indices))
    ends = np.cumsum([chunk.num_rows for chunk in chunks])
    chunk_index = np.searchsorted(ends, indices, "right")
    order = np.argsort(chunk_index, kind="stable")
    edges = np.searchsorted(chunk_index[order], np.arange(len(chunks) + 1))
    pieces = [
        chunk.take(pa.array(indices[order[low:high]] - (end - chunk.num_rows)))
        for chunk, end, (low, high) in zip(chunks, ends, pairwise(edges), strict=True)
        if high > low
    ]
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return pa.Table.from_batches(pieces, table.schema).combine_chunks().take(pa.array(inverse))


# A fixed-width column as numpy words over Arrow's buffer.
#
#     int, date, time, double     a word of its width          decimal     two words of 64 bits, the lower one first
#
# Without NULLs, values are equal if their words are, except for doubles (two zeros, many NaNs). Integers, dates and
# decimals of up to 18 digits compare like their words as integers. numpy does either faster than Arrow.


_FIXED_WIDTH_TYPES = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float32(), pa.float64(), pa.date32(), pa.timestamp("us"), (_DECIMAL := pa.decimal128(38, 0))),
)
_WORD_DTYPES = {
    kind.id: np.dtype(f"V{kind.byte_width}" if kind.byte_width > 8 else f"u{kind.byte_width}")
    for kind in _FIXED_WIDTH_TYPES
}
_INTEGER_TYPES = frozenset(kind.id for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.date32(), _DECIMAL))
_WORD_DIGITS = 18
"""The lower word determines a decimal with at most this many digits: the upper word only repeats the sign."""


def buffer_view(array: pa.Array) -> npt.NDArray[Any] | None:
    """Return a fixed-width column without NULLs as numpy words over its buffer; None for any other column."""
    kind = _WORD_DTYPES.get(array.type.id)
    if kind is None or array.null_count:
        return None
    if not len(array):
        return np.zeros(0, kind)
    words: npt.NDArray[Any] = np.frombuffer(array.buffers()[1], kind, len(array), array.offset * kind.itemsize)
    return words


def integer_view(array: pa.Array) -> npt.NDArray[Any] | None:
    """Return a column of integers, dates or decimals of up to 18 digits without NULLs as integers, else None."""
    words = buffer_view(array) if array.type.id in _INTEGER_TYPES else None
    if words is None:
        return None
    if not pa.types.is_decimal128(array.type):
        return words.view(f"i{words.dtype.itemsize}")
    return words.view(np.int64)[::2] if array.type.precision <= _WORD_DIGITS else None


def integer_value(scalar: pa.Scalar) -> int | None:
    """Return a value that is not NULL as `integer_view` shows it, else None."""
    kind = scalar.type
    if kind.id not in _INTEGER_TYPES:
        return None
    if pa.types.is_decimal128(kind):
        return int(scalar.as_py().scaleb(kind.scale)) if kind.precision <= _WORD_DIGITS else None
    return int(scalar.value if pa.types.is_date32(kind) else scalar.as_py())  # Python has no dates after 9999


def equal_bits(one: pa.Array, other: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return where two columns of one type and length have the same bits, some microseconds faster than Arrow. Return
    None if `buffer_view` does not support a column."""
    left, right = buffer_view(one), buffer_view(other)
    if left is None or right is None:
        return None
    if left.dtype.itemsize > 8:
        halves = [np.ascontiguousarray(side).view(np.uint64).reshape(-1, 2) for side in (left, right)]
        both: npt.NDArray[np.bool_] = (halves[0] == halves[1]).all(axis=1)
        return both
    same: npt.NDArray[np.bool_] = left == right
    return same
