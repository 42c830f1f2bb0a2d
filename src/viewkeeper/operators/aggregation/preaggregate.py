"""The vectors of few rows, added up by numpy: what `aggregate_sql.vectors` says, without a statement.

A statement costs a millisecond however few its rows, and of a small batch few rows reach an aggregate. Rows get their
group's number, and terms are added up by number. Where a key has few different values, as strings mostly have, their
codes tell the group. Otherwise its hash does: rows with the same one lie side by side after a sort, and must have the
same key. A term of 64 bits goes in halves of 32, whose sums cannot overflow for as many rows as are taken, unless the
largest term says that whole ones cannot either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from viewkeeper.model.arrow_buffers import one_chunk, taken
from viewkeeper.model.int128 import DIGIT, Ints, Wide
from viewkeeper.model.names import HASH
from viewkeeper.operators.aggregation.groups import firsts, is_own, numbered, same_keys
from viewkeeper.operators.aggregation.spec import Accumulator, AggregateSpec, layout
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.state.hash_index import Hashes, ascending
from viewkeeper.state.key_hash import FEW_VALUES, SAMPLE, has_many, quick_hashes
from viewkeeper.state.run import weights_of

_MOST_ROWS = 1 << 15
"""Up to here it is sooner done than a statement: in a third of the time at 1,000 rows, in two thirds at 16,000 and at
32,000 (processor time, one or two measures; only few groups without any are counted sooner by a statement there)."""
_MOST_TIMES = 1 << 15
"""The largest weight: 32 bits of a value, 15 of a weight and 15 of rows fit 63."""
_HUGE = pa.decimal128(38, 0)
_FEW_KEYS = 1 << 12
"""Different keys that the few values of its columns could make, up to which codes tell groups apart."""


@dataclass(frozen=True)
class _Grouped:
    """Groups by ascending hash: a row of each, and the number of each row's group."""

    hashes: Hashes
    row: Ints
    number: Ints

    def sum(self, terms: Ints) -> Ints:
        added = np.zeros(len(self.row), np.int64)
        if len(added) == 1:
            added[0] = terms.sum()
        else:
            np.add.at(added, self.number, terms)
        return added


def vectors(duck: Duck, spec: AggregateSpec, rows: pa.Table) -> pa.Table | None:
    """One vector a group, none of them zero unless its values are kept too; None where that takes a statement."""
    plan = layout(spec)
    if not 0 < rows.num_rows <= _MOST_ROWS or plan.distincts or plan.bucketed:
        return None
    weight = weights_of(rows)
    times = max(int(weight.max()), -int(weight.min()))
    if any(a.kind == "double" for a in plan.plain) or times > _MOST_TIMES:
        return None
    groups = _grouped(duck, spec, rows)
    if groups is None:
        return None
    counted = groups.sum(weight)
    totals: dict[str, Ints | Wide] = {"¤n": counted}
    is_some = counted != 0
    for accumulator in plan.plain:
        values = one_chunk(rows.column(accumulator.argument))
        has_nulls = bool(values.null_count)
        weights = np.where(np.asarray(values.is_valid()), weight, 0) if has_nulls else weight
        if accumulator.is_count:
            totals[accumulator.name] = added = groups.sum(weights) if has_nulls else counted
            is_some |= added != 0
            continue
        for name, terms in zip(accumulator.columns, _terms(accumulator, values), strict=True):
            totals[name] = total = _total(groups, terms, weights, times)
            is_some |= (total.low != 0) | (total.high != 0)
    keys = [key.name for key in spec.keys]
    kept = None if is_some.all() or not keys or plan.values else np.flatnonzero(is_some)
    places = pa.array(groups.row if kept is None else groups.row[kept])
    columns = {name: taken(one_chunk(rows.column(name)), places) for name in keys}
    columns |= {name: _column(total if kept is None else total[kept]) for name, total in totals.items()}
    columns[HASH] = pa.array(groups.hashes if kept is None else groups.hashes[kept])
    return pa.table(columns)


def _grouped(duck: Duck, spec: AggregateSpec, rows: pa.Table) -> _Grouped | None:
    keys = [key.name for key in spec.keys]
    if not keys:
        return _Grouped(np.zeros(1, np.uint64), np.zeros(1, np.int64), np.zeros(0, np.int64))
    if rows.num_rows > SAMPLE or any(rows.schema.field(name).type == pa.string() for name in keys):
        code = _codes([one_chunk(rows.column(name)) for name in keys])
        if code is not None:
            return _by_code(duck, rows.select(keys), code)
    found = quick_hashes(rows, keys, duck)
    if found is None:
        return None
    if not is_own(spec, rows, found):
        groups = _Grouped(*numbered(found))
        return groups if same_keys(spec, rows, groups.row[groups.number]) else None
    is_next = firsts(found)
    heads = np.flatnonzero(is_next)
    if 2 * len(heads) > len(found):
        return _Grouped(*numbered(found))
    few = _Grouped(*numbered(found[heads]))  # rows of one key come together, as the lines of an order do
    return _Grouped(few.hashes, heads[few.row], few.number[np.cumsum(is_next) - 1])


def _codes(keys: Sequence[pa.Array]) -> Ints | None:
    """A number for each row, the same for equal keys; None if a key has many values."""
    code, most = np.zeros(len(keys[0]), np.int64), 1
    for array in keys:
        if has_many(array):
            return None
        encoded = array.dictionary_encode(null_encoding="encode")
        most *= len(encoded.dictionary)
        if len(encoded.dictionary) > FEW_VALUES or most > _FEW_KEYS:
            return None
        code = code * len(encoded.dictionary) + encoded.indices.to_numpy()
    return code


def _by_code(duck: Duck, keys: pa.Table, code: Ints) -> _Grouped | None:
    row = np.full(int(code.max()) + 1, -1, np.int64)
    row[code] = np.arange(len(code))  # any of its rows: the last
    known = np.flatnonzero(row >= 0)
    found = quick_hashes(keys.take(pa.array(row[known])), keys.column_names, duck)
    if found is None:
        return None
    order = ascending(found)
    number = np.empty(len(row), np.int64)
    number[known[order]] = np.arange(len(known))
    return _Grouped(found[order], row[known[order]], number[code])


def _terms(accumulator: Accumulator, values: pa.Array) -> Sequence[Ints | Wide]:
    """For each of its columns what every value adds, of which a Wide's lower word alone is meant; whatever, where that
    is NULL."""
    if not pa.types.is_decimal(values.type):
        return [np.asarray(values.fill_null(0) if values.null_count else values).astype(np.int64)]
    wide = Wide.of(values)
    if accumulator.kind == "wide":
        return [wide, wide.high]
    return [wide.low.view(np.int64)]


def _total(groups: _Grouped, terms: Ints | Wide, weights: Ints, times: int) -> Wide:
    """Σ terms · weights, none of which is beyond `times`."""
    signed = terms if isinstance(terms, np.ndarray) else terms.low.view(np.int64)
    least = int(signed.min())
    if max(int(signed.max()), -least) * times * len(signed) < 1 << 63 and (signed is terms or least >= 0):
        return Wide.long(groups.sum(signed * weights))
    lower, upper = (signed & _LOW, signed >> DIGIT) if isinstance(terms, np.ndarray) else terms.addends[:2]
    return Wide.sum(groups.sum(lower * weights), groups.sum(upper * weights), np.zeros(len(groups.row), np.int64))


def _column(total: Ints | Wide) -> pa.Array:
    return pa.array(total) if isinstance(total, np.ndarray) else total.decimals(_HUGE)


_LOW = (1 << DIGIT) - 1
