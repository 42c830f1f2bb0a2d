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

from viewkeeper.model.arrow_buffers import one_chunk, take_array
from viewkeeper.model.int128 import DIGIT_BITS, Int128Array, Ints
from viewkeeper.model.names import HASH
from viewkeeper.operators.aggregation.groups import has_equal_keys, has_unique_hashes, mark_first, number_distinct
from viewkeeper.operators.aggregation.spec import Accumulator, AggregateSpec, accumulator_layout
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.hash_index import Hashes, radix_argsort
from viewkeeper.state.key_hash import MAX_DICTIONARY_VALUES, SAMPLE_ROWS, has_high_cardinality, hash_keys_vectorised
from viewkeeper.state.run import weights_of

_MAX_ROWS = 1 << 15
"""Up to here it is sooner done than a statement: in a third of the time at 1,000 rows, in two thirds at 16,000 and at
32,000 (processor time, one or two measures; only few groups without any are counted sooner by a statement there)."""
_MAX_WEIGHT = 1 << 15
"""The largest weight: 32 bits of a value, 15 of a weight and 15 of rows fit 63."""
_INT128_TYPE = pa.decimal128(38, 0)
_MAX_KEY_NUMBERS = 1 << 12
"""Different keys that the few values of its columns could make, up to which codes tell groups apart."""


@dataclass(frozen=True)
class _RowGroups:
    """Groups by ascending hash: a row of each, and the number of each row's group."""

    hashes: Hashes
    first_rows: Ints
    group_numbers: Ints

    def sum(self, terms: Ints) -> Ints:
        added = np.zeros(len(self.first_rows), np.int64)
        if len(added) == 1:
            added[0] = terms.sum()
        else:
            np.add.at(added, self.group_numbers, terms)
        return added


def preaggregate(statements: PreparedStatements, spec: AggregateSpec, rows: pa.Table) -> pa.Table | None:
    """One vector a group, none of them zero unless its values are kept too; None where that takes a statement."""
    plan = accumulator_layout(spec)
    if not 0 < rows.num_rows <= _MAX_ROWS or plan.distinct_arguments or plan.bucketed_accumulators:
        return None
    weight = weights_of(rows)
    times = max(int(weight.max()), -int(weight.min()))
    if any(a.kind == "double" for a in plan.plain_accumulators) or times > _MAX_WEIGHT:
        return None
    groups = _group_rows(statements, spec, rows)
    if groups is None:
        return None
    counted = groups.sum(weight)
    totals: dict[str, Ints | Int128Array] = {"¤n": counted}
    is_some = counted != 0
    for accumulator in plan.plain_accumulators:
        values = one_chunk(rows.column(accumulator.argument))
        has_nulls = bool(values.null_count)
        weights = np.where(np.asarray(values.is_valid()), weight, 0) if has_nulls else weight
        if accumulator.is_count:
            totals[accumulator.name] = added = groups.sum(weights) if has_nulls else counted
            is_some |= added != 0
            continue
        for name, terms in zip(accumulator.columns, _addend_columns(accumulator, values), strict=True):
            totals[name] = total = _sum_weighted(groups, terms, weights, times)
            is_some |= (total.low != 0) | (total.high != 0)
    keys = [key.name for key in spec.keys]
    kept = None if is_some.all() or not keys or plan.value_arguments else np.flatnonzero(is_some)
    places = pa.array(groups.first_rows if kept is None else groups.first_rows[kept])
    columns = {name: take_array(one_chunk(rows.column(name)), places) for name in keys}
    columns |= {name: _total_column(total if kept is None else total[kept]) for name, total in totals.items()}
    columns[HASH] = pa.array(groups.hashes if kept is None else groups.hashes[kept])
    return pa.table(columns)


def _group_rows(statements: PreparedStatements, spec: AggregateSpec, rows: pa.Table) -> _RowGroups | None:
    keys = [key.name for key in spec.keys]
    if not keys:
        return _RowGroups(np.zeros(1, np.uint64), np.zeros(1, np.int64), np.zeros(0, np.int64))
    if rows.num_rows > SAMPLE_ROWS or any(rows.schema.field(name).type == pa.string() for name in keys):
        code = _number_keys([one_chunk(rows.column(name)) for name in keys])
        if code is not None:
            return _group_by_key_number(statements, rows.select(keys), code)
    found = hash_keys_vectorised(rows, keys, statements)
    if found is None:
        return None
    if not has_unique_hashes(spec, rows, found):
        groups = _RowGroups(*number_distinct(found))
        return groups if has_equal_keys(spec, rows, groups.first_rows[groups.group_numbers]) else None
    is_next = mark_first(found)
    heads = np.flatnonzero(is_next)
    if 2 * len(heads) > len(found):
        return _RowGroups(*number_distinct(found))
    few = _RowGroups(*number_distinct(found[heads]))  # rows of one key come together, as the lines of an order do
    return _RowGroups(few.hashes, heads[few.first_rows], few.group_numbers[np.cumsum(is_next) - 1])


def _number_keys(keys: Sequence[pa.Array]) -> Ints | None:
    """A number for each row, the same for equal keys; None if a key has many values."""
    code, most = np.zeros(len(keys[0]), np.int64), 1
    for array in keys:
        if has_high_cardinality(array):
            return None
        encoded = array.dictionary_encode(null_encoding="encode")
        most *= len(encoded.dictionary)
        if len(encoded.dictionary) > MAX_DICTIONARY_VALUES or most > _MAX_KEY_NUMBERS:
            return None
        code = code * len(encoded.dictionary) + encoded.indices.to_numpy()
    return code


def _group_by_key_number(statements: PreparedStatements, keys: pa.Table, key_numbers: Ints) -> _RowGroups | None:
    row = np.full(int(key_numbers.max()) + 1, -1, np.int64)
    row[key_numbers] = np.arange(len(key_numbers))  # any of its rows: the last
    known = np.flatnonzero(row >= 0)
    found = hash_keys_vectorised(keys.take(pa.array(row[known])), keys.column_names, statements)
    if found is None:
        return None
    order = radix_argsort(found)
    number = np.empty(len(row), np.int64)
    number[known[order]] = np.arange(len(known))
    return _RowGroups(found[order], row[known[order]], number[key_numbers])


def _addend_columns(accumulator: Accumulator, values: pa.Array) -> Sequence[Ints | Int128Array]:
    """For each of its columns what every value adds, of which a Wide's lower word alone is meant; whatever, where that
    is NULL."""
    if not pa.types.is_decimal(values.type):
        return [np.asarray(values.fill_null(0) if values.null_count else values).astype(np.int64)]
    wide = Int128Array.from_decimals(values)
    if accumulator.kind == "wide":
        return [wide, wide.high]
    return [wide.low.view(np.int64)]


def _sum_weighted(groups: _RowGroups, terms: Ints | Int128Array, weights: Ints, max_weight: int) -> Int128Array:
    """Σ terms · weights, none of which is beyond `times`."""
    signed = terms if isinstance(terms, np.ndarray) else terms.low.view(np.int64)
    least = int(signed.min())
    if max(int(signed.max()), -least) * max_weight * len(signed) < 1 << 63 and (signed is terms or least >= 0):
        return Int128Array.from_int64(groups.sum(signed * weights))
    lower, upper = (
        (signed & _LOW_DIGIT_MASK, signed >> DIGIT_BITS) if isinstance(terms, np.ndarray) else terms.addends[:2]
    )
    return Int128Array.sum(
        groups.sum(lower * weights), groups.sum(upper * weights), np.zeros(len(groups.first_rows), np.int64)
    )


def _total_column(total: Ints | Int128Array) -> pa.Array:
    return pa.array(total) if isinstance(total, np.ndarray) else total.to_decimals(_INT128_TYPE)


_LOW_DIGIT_MASK = (1 << DIGIT_BITS) - 1
