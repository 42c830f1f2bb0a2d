"""A column as one array, however many chunks it came in."""

from __future__ import annotations

import pyarrow as pa


def one_chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """The column as one array; of a column in one chunk nothing is copied."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
