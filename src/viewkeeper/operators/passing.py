"""Rows through a segment: its conditions, its columns, and the hash of its key.

Without a statement where Arrow and numpy tell the same (`comparing`, `choosing`, `hashing`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from viewkeeper.model.names import HASH
from viewkeeper.model.schema import WEIGHT
from viewkeeper.operators.choosing import value_of
from viewkeeper.operators.comparing import all_hold
from viewkeeper.operators.duck import Duck
from viewkeeper.operators.hashing import quick_hashes
from viewkeeper.operators.segments import Segment

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
    keyed = {n.name: value_of(n.expr, rows) for n in segment.exprs if n.name in (segment.key or ())}
    found = None
    if segment.key is not None:
        found = quick_hashes(pa.table({**keyed, WEIGHT: rows.column(WEIGHT)}), segment.key, duck)
        if found is None:
            return None
    columns = {n.name: keyed[n.name] if n.name in keyed else value_of(n.expr, rows) for n in segment.exprs}
    delta = pa.table({**columns, WEIGHT: rows.column(WEIGHT)})
    if found is None:
        return delta
    return delta.append_column(HASH, pa.array(found >> _GATHERED if segment.gather else found))
