"""Exact sums of doubles: integers for each exponent bucket, added in any order, rounded once.

A finite double is ±m · 2^(e − 1075) with its exponent field e < 2047 and m < 2^53 (a subnormal one has e = 0 and an
even m). Bucket b = e div 32 holds the sum of m · 2^(e mod 32), below 2^84 each, so a 128-bit integer has room for 2^42
rows. Three more buckets count NaN, +∞ and −∞.

    Σ x  =  2^−1075 · Σ_b  X_b · 2^(32 b)

Addition of integers is exact and invertible, so the sum does not depend on the history, on the order of the rows or on
the lane: {1e16, 1, 1} minus 1e16 is 2. Rounding (half to even) writes all X_b as base-2^32 digits, carries, and rounds
the leading digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model.int128 import DIGIT_BITS, Doubles, Int128Array, Ints, nearest_doubles

NAN, PLUS_INFINITY, MINUS_INFINITY = 253, 254, 255
BUCKETS = 256
"""Bucket numbers of different accumulators are offset by multiples of this."""

_CHUNK_DIGITS = 1 << 22


@dataclass(frozen=True)
class BucketTotals:
    """One accumulator's bucket rows: `value` is the total of `group` in `bucket`; each pair occurs once, ordered by
    group."""

    group: Ints
    bucket: Ints
    value: Int128Array


def double_bits(column: Any) -> Any:
    """Return a float or double column as the bit patterns of its doubles (uint64), the input of the terms' SQL."""
    return pc.cast(column, pa.float64()).combine_chunks().view(pa.uint64())


def sum_terms_sql(bits_column: str, columns: str) -> tuple[str, ...]:
    """Return SELECTs over `rows` of `columns` and (`¤bucket`, `¤term`, `¤times`), whose sum is Σ ¤term · ¤times by
    bucket.

    `bits_column` has the bit patterns; `¤times` is the weight with the double's sign.
    """
    sign = "CASE WHEN ¤negative THEN -¤w ELSE ¤w END"
    return _finite_terms_sql(
        bits_column, columns, "¤e >> 5", f"{_MANTISSA} * (1::UBIGINT << (¤e & 31))", sign
    ), _special_terms_sql(bits_column, columns)


def square_terms_sql(bits_column: str, columns: str) -> tuple[str, ...]:
    """Return the same for squares, in units of 2^−2150; m² has 106 bits, so it is split into two terms."""
    square, high_exponent = f"({_MANTISSA} * {_MANTISSA})", "(2 * ¤e + 53)"
    low = f"({square} & {(1 << 53) - 1}) * (1::UBIGINT << (2 * ¤e & 31))"
    high = f"({square} >> 53) * (1::UBIGINT << ({high_exponent} & 31))"
    return (
        _finite_terms_sql(bits_column, columns, "2 * ¤e >> 5", low, "¤w"),
        _finite_terms_sql(bits_column, columns, f"{high_exponent} >> 5", high, "¤w"),
        _special_terms_sql(bits_column, columns),
    )


_MANTISSA = f"(CASE WHEN ¤e = 0 THEN ¤f * 2 ELSE ¤f | {1 << 52} END)::HUGEINT"


def _finite_terms_sql(bits_column: str, columns: str, bucket: str, term: str, times: str) -> str:
    fields = (
        f"({bits_column} >> 52) & 2047 AS ¤e, {bits_column} & {(1 << 52) - 1} AS ¤f, "
        f"{bits_column} >> 63 = 1 AS ¤negative"
    )
    inner = f"SELECT *, {fields} FROM rows WHERE {bits_column} IS NOT NULL"
    selected = f"({bucket})::INTEGER AS ¤bucket, {term} AS ¤term, {times} AS ¤times"
    return f"SELECT {columns}{selected} FROM ({inner}) WHERE ¤e <> 2047"


def _special_terms_sql(bits_column: str, columns: str) -> str:
    infinity = f"WHEN {bits_column} >> 63 = 0 THEN {PLUS_INFINITY} ELSE {MINUS_INFINITY}"
    bucket = f"CASE WHEN {bits_column} & {(1 << 52) - 1} <> 0 THEN {NAN} {infinity} END::INTEGER"
    selected = f"{bucket} AS ¤bucket, 1::HUGEINT AS ¤term, ¤w AS ¤times"
    return f"SELECT {columns}{selected} FROM rows WHERE ({bits_column} >> 52) & 2047 = 2047"


def round_totals(group_count: int, totals: BucketTotals) -> Doubles:
    """Return the double nearest to the sum of each of the groups; 0.0 for a group without bucket rows."""
    group, bucket, digits = totals.group, totals.bucket, totals.value.digits
    result = np.zeros(group_count, np.float64)
    finite = bucket < NAN
    if finite.any():
        _round_finite(result, group[finite], bucket[finite], digits[finite])
    if not finite.all():
        is_nonzero_special = (digits != 0).any(axis=1) & ~finite
        special = np.zeros((group_count, 3), np.bool_)
        special[group[is_nonzero_special], bucket[is_nonzero_special] - NAN] = True
        nan, plus, minus = special.T
        result[plus] = np.inf
        result[minus] = -np.inf
        result[nan | (plus & minus)] = np.nan
    return result


def _round_finite(result: Doubles, group: Ints, bucket: Ints, terms: Ints) -> None:
    lowest = int(bucket.min())
    width = int(bucket.max()) - lowest + 1 + 4
    bucket = bucket - lowest
    step = max(1, _CHUNK_DIGITS // width)
    for start in range(0, len(result), step):
        stop = min(start + step, len(result))
        low, high = np.searchsorted(group, [start, stop])
        digits = np.zeros((stop - start, width), np.int64)
        for j in range(4):
            digits[group[low:high] - start, bucket[low:high] + j] += terms[low:high, j]
        result[start:stop] = nearest_doubles(digits, DIGIT_BITS * lowest - 1075)
