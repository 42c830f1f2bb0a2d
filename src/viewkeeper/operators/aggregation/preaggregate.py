"""Vectorised pre-aggregation of small deltas: the vectors of `sql.vectors_sql`, computed by numpy without a statement.

A statement costs a millisecond whatever its number of rows, and in a small batch few rows reach an aggregate. Rows get
their group's number, and terms are added up by number. If the key columns have few distinct values, as strings mostly
have, their dictionary codes identify the group. Otherwise the hash does: rows with the same hash are adjacent after a
sort, and must have the same key. A 64-bit term is split into halves of 32 bits, whose sums cannot overflow for the
allowed number of rows, unless the largest term shows that sums of whole terms cannot overflow either.
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
"""Up to this many rows, numpy is faster than a statement: a third of its time at 1,000 rows, two thirds at 16,000 and
at 32,000 (processor time, one or two measures; only a count of few groups is faster as a statement there)."""
_MAX_WEIGHT = 1 << 15
"""The largest absolute weight: 32 bits of a value, 15 of a weight and 15 of rows fit 63."""
_INT128_TYPE = pa.decimal128(38, 0)
_MAX_KEY_NUMBERS = 1 << 12
"""Largest number of keys that the distinct values of the key columns could form, for dictionary codes to identify
groups."""


@dataclass(frozen=True)
class _RowGroups:
    """Groups by ascending hash: one row of each, and the group number of each row."""

    hashes: Hashes
    first_rows: Ints
    group_numbers: Ints

    def sum(self, terms: Ints) -> Ints:
        sums = np.zeros(len(self.first_rows), np.int64)
        if len(sums) == 1:
            sums[0] = terms.sum()
        else:
            np.add.at(sums, self.group_numbers, terms)
        return sums


def preaggregate(statements: PreparedStatements, spec: AggregateSpec, rows: pa.Table) -> pa.Table | None:
    """Return one vector for each group; None if a statement is needed.

    Zero vectors are dropped, unless the aggregate also keeps values or has no keys.
    """
    plan = accumulator_layout(spec)
    if not 0 < rows.num_rows <= _MAX_ROWS or plan.distinct_arguments or plan.bucketed_accumulators:
        return None
    weight = weights_of(rows)
    max_weight = max(int(weight.max()), -int(weight.min()))
    if any(a.kind == "double" for a in plan.plain_accumulators) or max_weight > _MAX_WEIGHT:
        return None
    groups = _group_rows(statements, spec, rows)
    if groups is None:
        return None
    row_counts = groups.sum(weight)
    totals: dict[str, Ints | Int128Array] = {"¤n": row_counts}
    is_nonzero = row_counts != 0
    for accumulator in plan.plain_accumulators:
        values = one_chunk(rows.column(accumulator.argument))
        has_nulls = bool(values.null_count)
        weights = np.where(np.asarray(values.is_valid()), weight, 0) if has_nulls else weight
        if accumulator.is_count:
            totals[accumulator.name] = counts = groups.sum(weights) if has_nulls else row_counts
            is_nonzero |= counts != 0
            continue
        for name, terms in zip(accumulator.columns, _addend_columns(accumulator, values), strict=True):
            totals[name] = total = _sum_weighted(groups, terms, weights, max_weight)
            is_nonzero |= (total.low != 0) | (total.high != 0)
    keys = [key.name for key in spec.keys]
    kept_groups = None if is_nonzero.all() or not keys or plan.value_arguments else np.flatnonzero(is_nonzero)
    key_rows = pa.array(groups.first_rows if kept_groups is None else groups.first_rows[kept_groups])
    columns = {name: take_array(one_chunk(rows.column(name)), key_rows) for name in keys}
    columns |= {
        name: _total_column(total if kept_groups is None else total[kept_groups]) for name, total in totals.items()
    }
    columns[HASH] = pa.array(groups.hashes if kept_groups is None else groups.hashes[kept_groups])
    return pa.table(columns)


def _group_rows(statements: PreparedStatements, spec: AggregateSpec, rows: pa.Table) -> _RowGroups | None:
    keys = [key.name for key in spec.keys]
    if not keys:
        return _RowGroups(np.zeros(1, np.uint64), np.zeros(1, np.int64), np.zeros(0, np.int64))
    if rows.num_rows > SAMPLE_ROWS or any(rows.schema.field(name).type == pa.string() for name in keys):
        key_numbers = _number_keys([one_chunk(rows.column(name)) for name in keys])
        if key_numbers is not None:
            return _group_by_key_number(statements, rows.select(keys), key_numbers)
    hashes = hash_keys_vectorised(rows, keys, statements)
    if hashes is None:
        return None
    if not has_unique_hashes(spec, rows, hashes):
        groups = _RowGroups(*number_distinct(hashes))
        return groups if has_equal_keys(spec, rows, groups.first_rows[groups.group_numbers]) else None
    is_run_start = mark_first(hashes)
    run_starts = np.flatnonzero(is_run_start)
    if 2 * len(run_starts) > len(hashes):
        return _RowGroups(*number_distinct(hashes))
    # Rows of one key are often adjacent, as the lines of an order are: number the first row of each stretch only.
    run_groups = _RowGroups(*number_distinct(hashes[run_starts]))
    return _RowGroups(
        run_groups.hashes, run_starts[run_groups.first_rows], run_groups.group_numbers[np.cumsum(is_run_start) - 1]
    )


def _number_keys(keys: Sequence[pa.Array]) -> Ints | None:
    """Return a number for each row that is equal for equal keys; None if the key columns have many distinct values."""
    numbers, key_count = np.zeros(len(keys[0]), np.int64), 1
    for array in keys:
        if has_high_cardinality(array):
            return None
        encoded = array.dictionary_encode(null_encoding="encode")
        key_count *= len(encoded.dictionary)
        if len(encoded.dictionary) > MAX_DICTIONARY_VALUES or key_count > _MAX_KEY_NUMBERS:
            return None
        numbers = numbers * len(encoded.dictionary) + encoded.indices.to_numpy()
    return numbers


def _group_by_key_number(statements: PreparedStatements, keys: pa.Table, key_numbers: Ints) -> _RowGroups | None:
    row_of_number = np.full(int(key_numbers.max()) + 1, -1, np.int64)
    row_of_number[key_numbers] = np.arange(len(key_numbers))  # any row of the number will do: the last one wins
    used_numbers = np.flatnonzero(row_of_number >= 0)
    hashes = hash_keys_vectorised(keys.take(pa.array(row_of_number[used_numbers])), keys.column_names, statements)
    if hashes is None:
        return None
    order = radix_argsort(hashes)
    group_of_number = np.empty(len(row_of_number), np.int64)
    group_of_number[used_numbers[order]] = np.arange(len(used_numbers))
    return _RowGroups(hashes[order], row_of_number[used_numbers[order]], group_of_number[key_numbers])


def _addend_columns(accumulator: Accumulator, values: pa.Array) -> Sequence[Ints | Int128Array]:
    """Return, for each column of the accumulator, what every value adds; any value where it is NULL.

    Of a wide accumulator's first column, only the lower 64-bit word counts.
    """
    if not pa.types.is_decimal(values.type):
        return [np.asarray(values.fill_null(0) if values.null_count else values).astype(np.int64)]
    wide = Int128Array.from_decimals(values)
    if accumulator.kind == "wide":
        return [wide, wide.high]
    return [wide.low.view(np.int64)]


def _sum_weighted(groups: _RowGroups, terms: Ints | Int128Array, weights: Ints, max_weight: int) -> Int128Array:
    """Return Σ terms · weights by group; no weight exceeds `max_weight`."""
    signed = terms if isinstance(terms, np.ndarray) else terms.low.view(np.int64)
    minimum = int(signed.min())
    if max(int(signed.max()), -minimum) * max_weight * len(signed) < 1 << 63 and (signed is terms or minimum >= 0):
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
