"""Exact sums of doubles: integers for each exponent bucket, added in any order, rounded once.

A finite double is ±m · 2^(e − 1074), with m < 2^53 and 0 ≤ e ≤ 2045. Bucket b = e div 32 holds the sum of
m · 2^(e mod 32), below 2^84 each, so a 128-bit integer has room for 2^42 rows. Three more buckets count NaN, +∞ and −∞.

    Σ x  =  2^−1074 · Σ_b  X_b · 2^(32 b)

Addition of integers is exact and can be undone, so the sum does not depend on history, order or lane:
{1e16, 1, 1} minus 1e16 is 2. Rounding (half to even) writes all X_b as base-2^32 digits, carries, and reads the top.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.operators.wide import DIGIT, Doubles, Ints, Wide, nearest

NAN, PLUS_INFINITY, MINUS_INFINITY = 253, 254, 255
BUCKETS = 256
"""Buckets of different accumulators are told apart by multiples of this."""

_CHUNK_DIGITS = 1 << 22


@dataclass(frozen=True)
class Totals:
    """One accumulator's bucket rows: `value` is the total of `group` in `bucket`, each pair once."""

    group: Ints
    bucket: Ints
    value: Wide


def bits(column: Any) -> Any:
    """A float or double column as the bit patterns of its doubles (uint64): what `terms` reads."""
    return pc.cast(column, pa.float64()).combine_chunks().view(pa.uint64())


def terms(column: str) -> tuple[tuple[str, str], ...]:
    """SQL for (bucket, term) of a double, given its bit pattern as UBIGINT."""
    return (_term(column, f"{_mantissa(column)}::HUGEINT", _place(column)),)


def square_terms(column: str) -> tuple[tuple[str, str], ...]:
    """The same for its square in units of 2^−2148: m² has 106 bits, so it goes in as two terms."""
    square, place = f"({_mantissa(column)}::HUGEINT * {_mantissa(column)}::HUGEINT)", f"(2 * {_place(column)})"
    low = _term(column, f"({square} & {(1 << 53) - 1})", place, signed=False)
    high = _term(column, f"({square} >> 53)", f"({place} + 53)", signed=False)
    return low, high


def _term(column: str, mantissa: str, place: str, signed: bool = True) -> tuple[str, str]:
    infinity = f"WHEN {column} >> 63 = 0 THEN {PLUS_INFINITY} ELSE {MINUS_INFINITY}"
    special = f"CASE WHEN {_fraction(column)} <> 0 THEN {NAN} {infinity} END"
    size = f"({mantissa} * (1::UBIGINT << ({place} & 31)))"
    value = f"CASE WHEN {column} >> 63 = 0 THEN {size} ELSE -{size} END" if signed else size
    return (
        f"CASE WHEN {_exponent(column)} = 2047 THEN {special} ELSE ({place} >> 5) END::INTEGER",
        f"CASE WHEN {_exponent(column)} = 2047 THEN 1::HUGEINT ELSE {value} END",
    )


def _exponent(column: str) -> str:
    return f"(({column} >> 52) & 2047)"


def _fraction(column: str) -> str:
    return f"({column} & {(1 << 52) - 1})"


def _place(column: str) -> str:
    """The e of m · 2^(e − 1074): subnormal doubles share the least one."""
    return f"(greatest({_exponent(column)}, 1) - 1)"


def _mantissa(column: str) -> str:
    return f"({_fraction(column)} + CASE WHEN {_exponent(column)} > 0 THEN {1 << 52} ELSE 0 END)"


def rounded(groups: int, totals: Totals) -> Doubles:
    """The double nearest to the sum of each of `groups` groups; 0.0 where there is nothing."""
    group, bucket, digits = totals.group, totals.bucket, totals.value.digits
    result = np.zeros(groups, np.float64)
    finite = bucket < NAN
    if finite.any():
        _round_finite(result, group[finite], bucket[finite], digits[finite])
    if not finite.all():
        counted = (digits != 0).any(axis=1) & ~finite
        special = np.zeros((groups, 3), np.bool_)
        special[group[counted], bucket[counted] - NAN] = True
        nan, plus, minus = special.T
        result[plus] = np.inf
        result[minus] = -np.inf
        result[nan | (plus & minus)] = np.nan
    return result


def _round_finite(result: Doubles, group: Ints, bucket: Ints, terms: Ints) -> None:
    lowest = int(bucket.min())
    width = int(bucket.max()) - lowest + 1 + 4
    order = np.argsort(group, kind="stable")
    group, bucket, terms = group[order], bucket[order] - lowest, terms[order]
    step = max(1, _CHUNK_DIGITS // width)
    for start in range(0, len(result), step):
        stop = min(start + step, len(result))
        low, high = np.searchsorted(group, [start, stop])
        digits = np.zeros((stop - start, width), np.int64)
        for j in range(4):
            digits[group[low:high] - start, bucket[low:high] + j] += terms[low:high, j]
        result[start:stop] = nearest(digits, DIGIT * lowest - 1074)
