"""Consolidation: the weights of equal rows add up, and zeros vanish.

Equal means indistinguishable: NULL equals NULL and NaN equals NaN, but −0.0 and 0.0 are two values, since an update
from one to the other shows in a view that selects the column.
"""

from __future__ import annotations

import pyarrow as pa

from viewkeeper.model.names import quoted
from viewkeeper.model.schema import WEIGHT
from viewkeeper.operators.duck import Duck


def consolidate(duck: Duck, delta: pa.Table) -> pa.Table:
    """The same multiset with one row for each distinct row; columns stay in their order."""
    if delta.num_rows == 0:
        return delta
    if delta.num_rows == 1:
        return delta.slice(0, 0) if delta[WEIGHT][0].as_py() == 0 else delta
    return duck.run(consolidation(delta.schema), delta=delta)


def consolidation(schema: pa.Schema, order: str = "") -> str:
    """The statement that consolidates a table `delta` of this schema."""
    columns = [name for name in schema.names if name != WEIGHT]
    groups = [quoted(c) for c in columns]
    floats = [quoted(c) for c in columns if pa.types.is_floating(schema.field(c).type)]
    groups += [f"({c} = 0 AND signbit({c}))" for c in floats]
    shown = ", ".join("sum(_w)::BIGINT AS _w" if name == WEIGHT else quoted(name) for name in schema.names)
    grouped = f" GROUP BY {', '.join(groups)}" if groups else ""
    return f"SELECT {shown} FROM delta{grouped} HAVING sum(_w) <> 0{order}"
