"""Consolidation: the weights of equal rows add up, and zeros vanish.

Equal means indistinguishable: NULL equals NULL and NaN equals NaN, but −0.0 and 0.0 are two values, since an update
from one to the other shows in a view that selects the column.

Few rows need no statement: equal ones have equal codes, whatever those are, and lie side by side after a sort.
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
"""Up to here it is sooner done than a statement."""
_HASH_MULTIPLIER, _HALF_WORD_BITS = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)
_NULL_HASH = np.uint64(0xBF58476D1CE4E5B9)
_WORD_TYPES = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def consolidate(statements: PreparedStatements, delta: pa.Table) -> pa.Table:
    """The same multiset with one row for each distinct row; columns stay in their order."""
    if delta.num_rows == 0:
        return delta
    if delta.num_rows == 1:
        return delta.slice(0, 0) if delta[WEIGHT][0].as_py() == 0 else delta
    quick = _consolidate_by_sort(delta) if delta.num_rows <= _MAX_SORTED_ROWS else None
    return statements.run(consolidation_sql(delta.schema), delta=delta) if quick is None else quick


def _consolidate_by_sort(delta: pa.Table) -> pa.Table | None:
    """The same by numpy; None where that cannot be done."""
    delta = delta.combine_chunks()
    codes = _hash_rows(delta)
    if codes is None:
        return None
    order, weights = radix_argsort(codes), delta.column(WEIGHT).to_numpy()
    ordered = codes[order]
    again = 1 + np.flatnonzero(ordered[1:] == ordered[:-1])
    if not len(again):
        return delta if weights.all() else delta.filter(pa.array(weights != 0))
    one, other = (delta.take(pa.array(order[places])) for places in (again, again - 1))
    if not identical_rows(one, other, ignored_column=WEIGHT).all():
        return None
    start = np.delete(np.arange(len(order)), again)
    summed = np.add.reduceat(weights[order], start)
    left = np.flatnonzero(summed)
    rows = delta.take(pa.array(order[start[left]]))
    return rows.set_column(rows.schema.get_field_index(WEIGHT), WEIGHT, pa.array(summed[left]))


def _hash_rows(delta: pa.Table) -> Hashes | None:
    """A number for each row, the same for equal ones; None where there is a column of another kind."""
    found = np.zeros(delta.num_rows, np.uint64)
    for name in delta.column_names:
        if name == WEIGHT:
            continue
        code = _hash_column(one_chunk(delta.column(name)))
        if code is None:
            return None
        found ^= code
        found *= _HASH_MULTIPLIER
        found ^= found >> _HALF_WORD_BITS
    return found


def _hash_column(array: pa.Array) -> Hashes | None:
    kind = array.type
    if pa.types.is_string(kind):
        return np.asarray(array.dictionary_encode().indices.fill_null(-1)).astype(np.uint64)
    if pa.types.is_decimal128(kind):
        wide = Int128Array.from_decimals(array)
        found = wide.low ^ (wide.high.view(np.uint64) * _HASH_MULTIPLIER)
    elif pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        data = array.buffers()[1]
        if data is None:
            return np.full(len(array), _NULL_HASH)
        found = np.frombuffer(data, _WORD_TYPES[kind.bit_width])[array.offset :][: len(array)].astype(np.uint64)
    else:
        return None
    return np.where(np.asarray(array.is_null()), _NULL_HASH, found) if array.null_count else found


def consolidation_sql(schema: pa.Schema, order_clause: str = "", source: str = "delta") -> str:
    """The statement that consolidates a table of this schema."""
    columns = [name for name in schema.names if name != WEIGHT]
    groups = [quoted(c) for c in columns]
    floats = [quoted(c) for c in columns if pa.types.is_floating(schema.field(c).type)]
    groups += [f"({c} = 0 AND signbit({c}))" for c in floats]
    shown = ", ".join("sum(¤w)::BIGINT AS ¤w" if name == WEIGHT else quoted(name) for name in schema.names)
    grouped = f" GROUP BY {', '.join(groups)}" if groups else ""
    return f"SELECT {shown} FROM {source}{grouped} HAVING sum(¤w) <> 0{order_clause}"
