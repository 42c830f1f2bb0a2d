"""Columns in chunks: as one array, and some rows of them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_TAKE = pc.get_function("array_take")


def one_chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """The column as one array; of a column in one chunk nothing is copied."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def taken(array: pa.Array, places: pa.Array) -> pa.Array:
    """What `array.take` gives, without the two calls before it that choose between kinds of arguments."""
    return _TAKE.call([array, places])


def rows_at(table: pa.Table, places: npt.NDArray[np.int64]) -> pa.Table:
    """What `table.take` gives, at the cost of these rows: of a column in several chunks Arrow's `take` first copies all
    into one, 95 ms for 16,384 of 5 million rows instead of 4."""
    chunks = table.to_batches()
    if len(chunks) <= 1:
        return table.take(pa.array(places))
    ends = np.cumsum([chunk.num_rows for chunk in chunks])
    which = np.searchsorted(ends, places, "right")
    order = np.argsort(which, kind="stable")
    edges = np.searchsorted(which[order], np.arange(len(chunks) + 1))
    found = [
        chunk.take(pa.array(places[order[low:high]] - (end - chunk.num_rows)))
        for chunk, end, (low, high) in zip(chunks, ends, pairwise(edges), strict=True)
        if high > low
    ]
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return pa.Table.from_batches(found, table.schema).combine_chunks().take(pa.array(back))
