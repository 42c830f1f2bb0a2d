"""Consolidation: the weights of equal rows add up, and zeros vanish.

Equal means indistinguishable: NULL equals NULL and NaN equals NaN, but −0.0 and 0.0 are two values, since an update
from one to the other shows in a view that selects the column.

Few rows of integers and dates need no statement: equal ones have equal hashes, and lie side by side after a sort.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from viewkeeper.model.delta import identical
from viewkeeper.model.names import HASH, quoted
from viewkeeper.model.schema import WEIGHT
from viewkeeper.operators.duck import Duck
from viewkeeper.operators.hashing import quick_hashes

_MOST_ROWS = 1 << 14
"""Up to here it is sooner done than a statement."""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def consolidate(duck: Duck, delta: pa.Table) -> pa.Table:
    """The same multiset with one row for each distinct row; columns stay in their order."""
    if delta.num_rows == 0:
        return delta
    if delta.num_rows == 1:
        return delta.slice(0, 0) if delta[WEIGHT][0].as_py() == 0 else delta
    quick = _of_integers(delta) if delta.num_rows <= _MOST_ROWS else None
    return duck.run(consolidation(delta.schema), delta=delta) if quick is None else quick


def _of_integers(delta: pa.Table) -> pa.Table | None:
    """The same by numpy; None where that cannot be done."""
    codes = quick_hashes(delta, [name for name in delta.column_names if name not in (WEIGHT, HASH)])
    if codes is None:
        return None
    delta = delta.combine_chunks()
    if HASH in delta.column_names:
        codes = codes * _SPREAD ^ delta.column(HASH).to_numpy()
    order, weights = np.argsort(codes), delta.column(WEIGHT).to_numpy()
    ordered = codes[order]
    again = 1 + np.flatnonzero(ordered[1:] == ordered[:-1])
    if not len(again):
        return delta if weights.all() else delta.filter(pa.array(weights != 0))
    one, other = (delta.take(pa.array(order[places])) for places in (again, again - 1))
    if not identical(one, other, but=WEIGHT).all():
        return None
    start = np.delete(np.arange(len(order)), again)
    summed = np.add.reduceat(weights[order], start)
    left = np.flatnonzero(summed)
    rows = delta.take(pa.array(order[start[left]]))
    return rows.set_column(rows.schema.get_field_index(WEIGHT), WEIGHT, pa.array(summed[left]))


def consolidation(schema: pa.Schema, order: str = "") -> str:
    """The statement that consolidates a table `delta` of this schema."""
    columns = [name for name in schema.names if name != WEIGHT]
    groups = [quoted(c) for c in columns]
    floats = [quoted(c) for c in columns if pa.types.is_floating(schema.field(c).type)]
    groups += [f"({c} = 0 AND signbit({c}))" for c in floats]
    shown = ", ".join("sum(_w)::BIGINT AS _w" if name == WEIGHT else quoted(name) for name in schema.names)
    grouped = f" GROUP BY {', '.join(groups)}" if groups else ""
    return f"SELECT {shown} FROM delta{grouped} HAVING sum(_w) <> 0{order}"
