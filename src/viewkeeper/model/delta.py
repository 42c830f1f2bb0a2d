"""A delta: an Arrow table with a weight column `¤w` (int64), a generalised multiset (Z-set).

An insert is +1, a delete is −1, an update is both. Deltas are added by concatenation. Consolidation sums the weights of
equal rows and drops zeros, so the changes of a row inside one batch reduce to its first and last state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model import types
from viewkeeper.model.arrow_buffers import buffer_view, equal_bits, one_chunk
from viewkeeper.model.names import HASH
from viewkeeper.model.schema import WEIGHT, Column
from viewkeeper.model.threads import ThreadPool

RowIndices = npt.NDArray[np.int64]

_WORD = 8
_PARALLEL_ROWS = 1_000_000
_SINGLE_TAKE_ROWS = 100_000
"""Below this many rows, one call takes the rows of all columns."""


def with_weight(rows: pa.Table, weight: int) -> pa.Table:
    """Return the rows with the same weight for each."""
    return rows.append_column(WEIGHT, pa.array(np.full(rows.num_rows, weight, np.int64)))


def empty_delta(columns: Sequence[Column]) -> pa.Table:
    """Return an empty delta with these columns, weight and hash."""
    fields = [(c.name, types.arrow(c.type)) for c in columns]
    return pa.schema([*fields, (WEIGHT, pa.int64()), (HASH, pa.uint64())]).empty_table()


def normalize_chunks(table: pa.Table) -> pa.Table:
    """Return the table with one chunk a column and without string views: pyarrow has no `take` for views, and DuckDB
    may return them."""
    columns = []
    for chunked in table.columns:
        if pa.types.is_string_view(chunked.type):
            chunked = chunked.cast(pa.string())
        elif pa.types.is_binary_view(chunked.type):
            chunked = chunked.cast(pa.binary())
        columns.append(chunked)
    return pa.table(columns, names=table.column_names).combine_chunks()


def identical_rows(one: pa.Table, other: pa.Table, *, ignored_column: str = "") -> npt.NDArray[np.bool_]:
    """Return where two tables have bitwise identical rows, ignoring one column: NULL equals NULL, −0.0 is not 0.0."""
    same = np.ones(one.num_rows, np.bool_)
    for name in one.column_names:
        left, right = one.column(name), other.column(name)
        if name == ignored_column:
            continue
        if left.num_chunks == right.num_chunks == 1 and left.type == right.type:
            identical = equal_bits(left.chunk(0), right.chunk(0))
            if identical is not None:
                same &= identical
                continue
        if pa.types.is_floating(left.type):
            integer = pa.int64() if left.type == pa.float64() else pa.int32()
            left, right = (pa.chunked_array([c.view(integer) for c in side.chunks], integer) for side in (left, right))
        equal = pc.equal(left, right)
        if left.null_count or right.null_count:
            both_null = pc.and_(pc.is_null(left), pc.is_null(right))
            equal = pc.fill_null(pc.or_kleene(equal, both_null), False)
        same &= np.asarray(equal)
    return same


def identical_rows_at(
    rows: pa.Table, one: RowIndices, other: RowIndices, *, ignored_column: str = ""
) -> npt.NDArray[np.bool_]:
    """Compare rows of one table, given by their indices, as `identical_rows` does."""
    same, other_columns = np.ones(len(one), np.bool_), []
    for name in rows.column_names:
        if name == ignored_column:
            continue
        words = buffer_view(one_chunk(rows.column(name)))
        if words is None:
            other_columns.append(name)
        elif words.dtype.itemsize <= _WORD:
            same &= words[one] == words[other]
        else:
            halves = words.view(np.uint64).reshape(-1, 2)
            same &= (halves[one] == halves[other]).all(axis=1)
    if not other_columns or not same.any():
        return same
    left, right = (rows.select(other_columns).take(pa.array(indices)) for indices in (one, other))
    return same & identical_rows(left, right)


def rearrange(
    table: pa.Table, indices: pa.Array | None = None, spill: Callable[[pa.Table], pa.Table] | None = None
) -> pa.Table:
    """Return the rows at `indices`, or all, with one chunk a column. Only a few columns are copied at a time.

    `spill` receives each finished column, as a table with one column.
    """

    def rearrange_column(column: pa.ChunkedArray) -> pa.Array:
        array = column.combine_chunks()
        result = array if indices is None else array.take(indices)
        return result if spill is None else spill(pa.table([result], names=[""])).column(0).chunk(0)

    if 0 < table.num_rows < _SINGLE_TAKE_ROWS and spill is None:
        combined = table.combine_chunks()
        return combined if indices is None else combined.take(indices)
    if table.num_rows < _PARALLEL_ROWS or spill is not None:
        columns = [rearrange_column(c) for c in table.columns]
    else:  # Arrow copies without the GIL
        with ThreadPool(2, thread_name_prefix="viewkeeper-rows") as threads:
            columns = list(threads.map(rearrange_column, table.columns))
    return pa.Table.from_arrays(columns, schema=table.schema)
