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
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

NAN, PLUS_INFINITY, MINUS_INFINITY = 253, 254, 255
BUCKETS = 256
"""Buckets of different accumulators are told apart by multiples of this."""

Ints = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

DIGIT = 32
_MASK = np.int64((1 << DIGIT) - 1)
_CHUNK_DIGITS = 1 << 22


@dataclass(frozen=True)
class Totals:
    """One accumulator's bucket rows: `value` (decimal128) is the total of `group` in `bucket`, each pair once."""

    group: Ints
    bucket: Ints
    value: Any


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
    group, bucket, digits = totals.group, totals.bucket, limbs(totals.value)
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


def limbs(value: Any) -> Ints:
    """Each 128-bit integer as four base-2^32 digits, the lowest first, the highest one signed."""
    if not len(value):
        return np.zeros((0, 4), np.int64)
    raw = np.frombuffer(value.buffers()[1], np.uint32)[4 * value.offset :][: 4 * len(value)].reshape(-1, 4)
    digits = raw.astype(np.int64)
    digits[:, 3] = raw[:, 3].astype(np.int32)
    return digits


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
        result[start:stop] = _read(digits, DIGIT * lowest - 1074)


def _read(digits: Ints, exponent: int) -> Doubles:
    """The double nearest to Σ digits[:, j] · 2^(32 j + exponent), ties to even."""
    _carry(digits)
    negative = digits[:, -1] < 0
    if negative.any():
        digits[negative] *= -1
        _carry(digits)
    filled = digits != 0
    top = digits.shape[1] - 1 - np.argmax(filled[:, ::-1], axis=1)
    first = np.argmax(filled, axis=1)
    rows = np.arange(len(digits))
    a, b, c = (np.where(top >= j, digits[rows, np.maximum(top - j, 0)], 0).astype(np.uint64) for j in range(3))
    # 96 bits a·2^64 + b·2^32 + c, shifted so that the highest bit of the upper 64 is set; the rest only says "more".
    shift = (DIGIT - np.frexp(a.astype(np.float64))[1]).astype(np.uint64)
    upper = (((a << np.uint64(32)) | b) << shift) | (c >> (np.uint64(32) - shift))
    more = (first < top - 2) | (((c << shift) & np.uint64(_MASK)) != 0)
    mantissa, rest = upper >> np.uint64(11), upper & np.uint64(2047)
    odd = (mantissa & np.uint64(1)) == 1
    mantissa += (rest > 1024) | ((rest == 1024) & (more | odd))
    with np.errstate(over="ignore"):
        size = np.ldexp(mantissa.astype(np.float64), DIGIT * (top - 1) + exponent - shift.astype(np.int64) + 11)
    return np.where(filled.any(axis=1), np.where(negative, -size, size), 0.0)


def _carry(digits: Ints) -> None:
    for j in range(digits.shape[1] - 1):
        digits[:, j + 1] += digits[:, j] >> DIGIT
        digits[:, j] &= _MASK
