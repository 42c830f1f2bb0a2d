"""Consolidation: the weights of equal rows are added up, and rows of weight zero are dropped.

Rows are equal if they are indistinguishable: NULL equals NULL and NaN equals NaN, but −0.0 and 0.0 are two values,
since an update from one to the other is visible in a view that selects the column.

Small deltas are consolidated without a DuckDB statement: equal rows have equal hashes, so a sort by hash makes them
adjacent.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from viewkeeper.model.arrow_buffers import one_chunk
from viewkeeper.model.delta import identical_rows
from viewkeeper.model.int128 import Int128Array
from viewkeeper.model.names import quoted
from viewkeeper.model.schema import WEIGHT
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.hash_index import Hashes, radix_argsort

_MAX_SORTED_ROWS = 1 << 15
"""Up to this many rows, the sort is faster than a DuckDB statement."""
_HASH_MULTIPLIER, _HALF_WORD_BITS = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)
_NULL_HASH = np.uint64(0xBF58476D1CE4E5B9)
_WORD_TYPES = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def consolidate(statements: PreparedStatements, delta: pa.Table) -> pa.Table:
    """Return the same multiset with one row for each distinct row; the order of the columns is unchanged."""
    if delta.num_rows == 0:
        return delta
    if delta.num_rows == 1:
        return delta.slice(0, 0) if delta[WEIGHT][0].as_py() == 0 else delta
    quick = _consolidate_by_sort(delta) if delta.num_rows <= _MAX_SORTED_ROWS else None
    return statements.run(consolidation_sql(delta.schema), delta=delta) if quick is None else quick


def _consolidate_by_sort(delta: pa.Table) -> pa.Table | None:
    """Consolidate with numpy. Return None if a column's type is not supported or hashes of different rows collide."""
    delta = delta.combine_chunks()
    hashes = _hash_rows(delta)
    if hashes is None:
        return None
    order, weights = radix_argsort(hashes), delta.column(WEIGHT).to_numpy()
    sorted_hashes = hashes[order]
    repeats = 1 + np.flatnonzero(sorted_hashes[1:] == sorted_hashes[:-1])
    if not len(repeats):
        return delta if weights.all() else delta.filter(pa.array(weights != 0))
    repeated_rows, previous_rows = (delta.take(pa.array(order[positions])) for positions in (repeats, repeats - 1))
    if not identical_rows(repeated_rows, previous_rows, ignored_column=WEIGHT).all():
        return None
    start = np.delete(np.arange(len(order)), repeats)
    summed = np.add.reduceat(weights[order], start)
    nonzero = np.flatnonzero(summed)
    rows = delta.take(pa.array(order[start[nonzero]]))
    return rows.set_column(rows.schema.get_field_index(WEIGHT), WEIGHT, pa.array(summed[nonzero]))


def _hash_rows(delta: pa.Table) -> Hashes | None:
    """Return a hash of each row, equal for equal rows; None if a column has an unsupported type."""
    hashes = np.zeros(delta.num_rows, np.uint64)
    for name in delta.column_names:
        if name == WEIGHT:
            continue
        column_hashes = _hash_column(one_chunk(delta.column(name)))
        if column_hashes is None:
            return None
        hashes ^= column_hashes
        hashes *= _HASH_MULTIPLIER
        hashes ^= hashes >> _HALF_WORD_BITS
    return hashes


def _hash_column(array: pa.Array) -> Hashes | None:
    arrow_type = array.type
    if pa.types.is_string(arrow_type):
        return np.asarray(array.dictionary_encode().indices.fill_null(-1)).astype(np.uint64)
    if pa.types.is_decimal128(arrow_type):
        wide = Int128Array.from_decimals(array)
        hashes = wide.low ^ (wide.high.view(np.uint64) * _HASH_MULTIPLIER)
    elif pa.types.is_integer(arrow_type) or pa.types.is_date(arrow_type) or pa.types.is_timestamp(arrow_type):
        data = array.buffers()[1]
        if data is None:
            return np.full(len(array), _NULL_HASH)
        hashes = np.frombuffer(data, _WORD_TYPES[arrow_type.bit_width])[array.offset :][: len(array)].astype(np.uint64)
    else:
        return None
    return np.where(np.asarray(array.is_null()), _NULL_HASH, hashes) if array.null_count else hashes


def consolidation_sql(schema: pa.Schema, order_clause: str = "", source: str = "delta") -> str:
    """Return the SQL statement that consolidates a table of this schema."""
    columns = [name for name in schema.names if name != WEIGHT]
    groups = [quoted(c) for c in columns]
    floats = [quoted(c) for c in columns if pa.types.is_floating(schema.field(c).type)]
    groups += [f"({c} = 0 AND signbit({c}))" for c in floats]
    selected = ", ".join("sum(¤w)::BIGINT AS ¤w" if name == WEIGHT else quoted(name) for name in schema.names)
    grouped = f" GROUP BY {', '.join(groups)}" if groups else ""
    return f"SELECT {selected} FROM {source}{grouped} HAVING sum(¤w) <> 0{order_clause}"
