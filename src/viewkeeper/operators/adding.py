"""The vectors of few rows, added up by numpy: what `aggregate_sql.vectors` says, without a statement.

A statement costs a millisecond however few its rows, and of a small batch few rows reach an aggregate. Rows with the
same hash lie side by side after a sort; where they have the same key, their terms are added up from one group's first
row to the next one's. A term of 64 bits goes in halves of 32, whose sums cannot overflow for as many rows as are taken.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from viewkeeper.model.chunks import one_chunk, taken
from viewkeeper.model.names import HASH
from viewkeeper.operators.arrangement import weights_of
from viewkeeper.operators.duck import Duck
from viewkeeper.operators.groups import firsts, same_keys
from viewkeeper.operators.hashing import NULL_HASH, is_bijective, quick_hashes
from viewkeeper.operators.measures import Accumulator, layout
from viewkeeper.operators.spec import AggregateSpec
from viewkeeper.operators.wide import DIGIT, Wide

_MOST_ROWS = 1 << 15
"""Up to here it is sooner done than a statement: in a third of the time at 1,000 rows, in two thirds at 16,000 and at
32,000 (processor time, one or two measures; only few groups without any are counted sooner by a statement there)."""
_MOST_TIMES = 1 << 15
"""The largest weight: 32 bits of a value, 15 of a weight and 15 of rows fit 63."""
_HUGE = pa.decimal128(38, 0)

Ints = npt.NDArray[np.int64]


def vectors(duck: Duck, spec: AggregateSpec, rows: pa.Table) -> pa.Table | None:
    """One vector a group, none of them zero unless its values are kept too; None where that takes a statement."""
    plan = layout(spec)
    if not 0 < rows.num_rows <= _MOST_ROWS or plan.distincts or plan.bucketed:
        return None
    keys = [key.name for key in spec.keys]
    weight = weights_of(rows)
    if any(a.kind == "double" for a in plan.plain) or max(int(weight.max()), -int(weight.min())) > _MOST_TIMES:
        return None
    found = quick_hashes(rows, keys, duck)
    if found is None:
        return None
    order = np.argsort(found)  # unstable, and by vectors: a tenth of a stable sort's time
    # One integer has a hash of its own, but for NULL's.
    is_own = is_bijective([rows.schema.field(name).type for name in keys]) and not (found == NULL_HASH).any()
    if not is_own and not same_keys(spec, rows, found, order):
        return None
    start = np.flatnonzero(firsts(found[order]))

    def summed(terms: Ints) -> Ints:
        added: Ints = np.add.reduceat(terms[order], start)
        return added

    counted = summed(weight)
    columns: dict[str, pa.Array] = {"_n": pa.array(counted)}
    is_some = counted != 0
    for accumulator in plan.plain:
        values = one_chunk(rows.column(accumulator.argument))
        times = np.where(np.asarray(values.is_valid()), weight, 0) if values.null_count else weight
        if accumulator.is_count:
            counted = summed(times)
            is_some |= counted != 0
            columns[accumulator.name] = pa.array(counted)
            continue
        for name, (low, high) in zip(accumulator.columns, _halves(accumulator, values), strict=True):
            total = Wide.sum(summed(low * times), summed(high * times), np.zeros(len(start), np.int64))
            is_some |= (total.low != 0) | (total.high != 0)
            columns[name] = total.decimals(_HUGE, np.ones(len(start), np.bool_))
    first = order[start]
    places = pa.array(first)
    whole = pa.table({name: taken(one_chunk(rows.column(name)), places) for name in keys} | columns)
    whole = whole.append_column(HASH, pa.array(found[first]))
    return whole if is_some.all() or not keys or plan.values else whole.filter(pa.array(is_some))


def _halves(accumulator: Accumulator, values: pa.Array) -> list[tuple[Ints, Ints]]:
    """For each of its columns, the lower and upper 32 bits of what every value adds; whatever, where that is NULL."""
    if not pa.types.is_decimal(values.type):
        integers = np.asarray(values.fill_null(0) if values.null_count else values).astype(np.int64)
        return [(integers & _LOW, integers >> DIGIT)]
    wide = Wide.of(values)
    if accumulator.kind == "wide":
        lower, middle, _ = wide.addends
        return [(lower, middle), (wide.high & _LOW, wide.high >> DIGIT)]
    signed = wide.low.view(np.int64)
    return [(signed & _LOW, signed >> DIGIT)]


_LOW = (1 << DIGIT) - 1
