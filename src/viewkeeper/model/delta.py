"""A delta: an Arrow table with a weight column `_w` (int64), a generalised multiset.

Insert is +1, delete is −1, an update is both. Adding deltas is concatenating them. `consolidate` sums the weights of
equal rows and drops the zeros, so a record's timeline inside one batch telescopes to its ends.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from viewkeeper.model.schema import WEIGHT


def weighted(rows: pa.Table, weight: int) -> pa.Table:
    """The rows, each with the same weight."""
    return rows.append_column(WEIGHT, pa.array(np.full(rows.num_rows, weight, np.int64)))


def plain(table: pa.Table) -> pa.Table:
    """One chunk a column and no string views: pyarrow has no `take` for them, and DuckDB may hand them out."""
    columns = []
    for chunked in table.columns:
        if pa.types.is_string_view(chunked.type):
            chunked = chunked.cast(pa.string())
        elif pa.types.is_binary_view(chunked.type):
            chunked = chunked.cast(pa.binary())
        columns.append(chunked)
    return pa.table(columns, names=table.column_names).combine_chunks()


def rearranged(table: pa.Table, places: pa.Array | None = None) -> pa.Table:
    """One chunk a column, the rows at these places or all. Column by column, so that few copies exist at a time."""
    columns = []
    for column in table.columns:
        whole = column.combine_chunks()
        columns.append(whole if places is None else whole.take(places))
    return pa.Table.from_arrays(columns, schema=table.schema)
