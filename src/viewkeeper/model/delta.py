"""A delta: an Arrow table with a weight column `¤w` (int64), a generalised multiset.

Insert is +1, delete is −1, an update is both. Adding deltas is concatenating them. `consolidate` sums the weights of
equal rows and drops the zeros, so a record's timeline inside one batch telescopes to its ends.
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
"""Rows of which all columns are taken by one call."""


def with_weight(rows: pa.Table, weight: int) -> pa.Table:
    """The rows, each with the same weight."""
    return rows.append_column(WEIGHT, pa.array(np.full(rows.num_rows, weight, np.int64)))


def empty_delta(columns: Sequence[Column]) -> pa.Table:
    """An empty delta of these columns, with weight and hash."""
    fields = [(c.name, types.arrow(c.type)) for c in columns]
    return pa.schema([*fields, (WEIGHT, pa.int64()), (HASH, pa.uint64())]).empty_table()


def normalize_chunks(table: pa.Table) -> pa.Table:
    """One chunk a column and no string views: pyarrow has no `take` for them, and DuckDB may hand them out."""
    columns = []
    for chunked in table.columns:
        if pa.types.is_string_view(chunked.type):
            chunked = chunked.cast(pa.string())
        elif pa.types.is_binary_view(chunked.type):
            chunked = chunked.cast(pa.binary())
        columns.append(chunked)
    return pa.table(columns, names=table.column_names).combine_chunks()


def identical_rows(one: pa.Table, other: pa.Table, *, ignored_column: str = "") -> npt.NDArray[np.bool_]:
    """Where two tables have rows that nothing tells apart (but one column): NULL is NULL, −0.0 is not 0.0."""
    same = np.ones(one.num_rows, np.bool_)
    for name in one.column_names:
        left, right = one.column(name), other.column(name)
        if name == ignored_column:
            continue
        if left.num_chunks == right.num_chunks == 1 and left.type == right.type:
            bits = equal_bits(left.chunk(0), right.chunk(0))
            if bits is not None:
                same &= bits
                continue
        if pa.types.is_floating(left.type):
            whole = pa.int64() if left.type == pa.float64() else pa.int32()
            left, right = (pa.chunked_array([c.view(whole) for c in side.chunks], whole) for side in (left, right))
        equal = pc.equal(left, right)
        if left.null_count or right.null_count:
            both = pc.and_(pc.is_null(left), pc.is_null(right))
            equal = pc.fill_null(pc.or_kleene(equal, both), False)
        same &= np.asarray(equal)
    return same


def identical_rows_at(
    rows: pa.Table, one: RowIndices, other: RowIndices, *, ignored_column: str = ""
) -> npt.NDArray[np.bool_]:
    """The same of rows of one table, told by their places."""
    same, others = np.ones(len(one), np.bool_), []
    for name in rows.column_names:
        if name == ignored_column:
            continue
        found = buffer_view(one_chunk(rows.column(name)))
        if found is None:
            others.append(name)
        elif found.dtype.itemsize <= _WORD:
            same &= found[one] == found[other]
        else:
            halves = found.view(np.uint64).reshape(-1, 2)
            same &= (halves[one] == halves[other]).all(axis=1)
    if not others or not same.any():
        return same
    left, right = (rows.select(others).take(pa.array(places)) for places in (one, other))
    return same & identical_rows(left, right)


def rearrange(
    table: pa.Table, indices: pa.Array | None = None, spill: Callable[[pa.Table], pa.Table] | None = None
) -> pa.Table:
    """One chunk a column, the rows at these places or all. A few columns at a time: few copies exist at once.

    `aside` is given each column when it is done, as a table of one.
    """

    def moved(column: pa.ChunkedArray) -> pa.Array:
        whole = column.combine_chunks()
        done = whole if indices is None else whole.take(indices)
        return done if spill is None else spill(pa.table([done], names=[""])).column(0).chunk(0)

    if 0 < table.num_rows < _SINGLE_TAKE_ROWS and spill is None:
        whole = table.combine_chunks()
        return whole if indices is None else whole.take(indices)
    if table.num_rows < _PARALLEL_ROWS or spill is not None:
        columns = [moved(c) for c in table.columns]
    else:  # Arrow copies outside of Python's lock
        with ThreadPool(2, thread_name_prefix="viewkeeper-rows") as threads:
            columns = list(threads.map(moved, table.columns))
    return pa.Table.from_arrays(columns, schema=table.schema)
