"""Rows through a segment: its conditions, its columns, and the hash of its key.

Without a statement where Arrow and numpy tell the same (`comparing`, `choosing`, `products`, `hashing`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from viewkeeper.expressions.backends.vector_case import value_of
from viewkeeper.expressions.backends.vector_decimals import product_of
from viewkeeper.expressions.backends.vector_predicates import all_hold
from viewkeeper.expressions.tree import Named
from viewkeeper.model import types
from viewkeeper.model.arrow_buffers import one_chunk
from viewkeeper.model.names import HASH
from viewkeeper.model.schema import WEIGHT
from viewkeeper.operators.segment import Segment
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.state.key_hash import has_many, quick_hashes

_GATHERED = np.uint64(16)


def passed(duck: Duck, segment: Segment, rows: pa.Table) -> pa.Table:
    """What the segment makes of the rows."""
    found = quickly_passed(duck, segment, rows)
    return duck.run(segment.sql, input=rows) if found is None else found


def quickly_passed(duck: Duck, segment: Segment, rows: pa.Table) -> pa.Table | None:
    """The same if it takes no statement; None if DuckDB is needed."""
    if not segment.is_exact:
        return None
    if segment.compared:
        met = all_hold(segment.compared, rows)
        if not met.all():
            rows = rows.select([*sorted(segment.used()), WEIGHT]).filter(pa.array(met))
    if any(map(has_many, _texts(segment, rows))):  # asked before anything is worked out: the hash takes a statement
        return None
    columns = {n.name: _value(segment, n, rows) for n in segment.exprs}
    if any(column is None for column in columns.values()):
        return None
    delta = pa.table({**columns, WEIGHT: rows.column(WEIGHT)})
    if segment.key is None:
        return delta
    found = quick_hashes(delta, segment.key, duck)
    if found is None:
        return None
    return delta.append_column(HASH, pa.array(found >> _GATHERED if segment.gather else found))


def _texts(segment: Segment, rows: pa.Table) -> Iterator[pa.Array]:
    """The key's columns that are strings."""
    for named in segment.exprs:
        if named.expr.type == types.STRING and named.expr.op == "column" and named.name in (segment.key or ()):
            yield one_chunk(rows.column(str(named.expr.value)))


def _value(segment: Segment, named: Named, rows: pa.Table) -> Any:
    return product_of(named.expr, rows) if named.name in segment.products else value_of(named.expr, rows)
