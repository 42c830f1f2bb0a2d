"""Reading measures from a group's totals: Spark's result types, Spark's rounding, Spark's overflow errors.

Each reader gives a column, one value for each side of a group, and where it is out of range (None: it cannot be). Sums
are checked against the result's type. Decimal averages are exact, HALF_UP; an average of integers or doubles divides
the sum, rounded once, by the count.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from viewkeeper.model import types
from viewkeeper.model.int128 import DIGIT_BITS, Flags, Int128Array, Ints, add_upper_words
from viewkeeper.operators.aggregation import exact_float_sum
from viewkeeper.operators.aggregation.groups import GroupTotals
from viewkeeper.operators.aggregation.spec import VARIANCES, Accumulator, Measure, accumulators_of, sum_accumulator

# Variance and standard deviation from exact sums: nothing cancels, whatever the values' size.
#
#     var_pop  = (c·Σx² − (Σx)²) / c²          var_samp = (c·Σx² − (Σx)²) / (c·(c − 1))
#
# The numerator is an exact integer, so one division rounds, once. It can have thousands of bits, so it is a Python
# integer, one for each touched group. NaN or an infinity among the values makes NaN; too few values make NULL.


def compute_variances(
    function: str, count: Ints, sums: exact_float_sum.BucketTotals, squares: exact_float_sum.BucketTotals
) -> list[float | None]:
    """`function` of each group, given how many values it has and its totals of x and x² in buckets."""
    sample = function.endswith("Samp")
    first, low = _integer_totals(len(count), sums)
    second, square_low = _integer_totals(len(count), squares)
    shift = min(2 * low, square_low)
    scale = 2 * 1075 - shift
    undefined = _has_special(len(count), sums)
    found: list[float | None] = []
    for c, x, xx, nan in zip(count.tolist(), first, second, undefined.tolist(), strict=True):
        if c == 0 or (sample and c == 1):
            found.append(None)
        elif nan:
            found.append(float("nan"))
        else:
            above = (c * xx << (square_low - shift)) - (x * x << (2 * low - shift))
            variance = _divide(above, c * (c - 1 if sample else c), scale)
            found.append(variance**0.5 if function.startswith("Stddev") else variance)
    return found


def _integer_totals(group_count: int, totals: exact_float_sum.BucketTotals) -> tuple[list[int], int]:
    """Each group's total as an integer in units of 2^low, above the unit of its kind."""
    finite = totals.bucket < exact_float_sum.NAN
    group, bucket = totals.group[finite], totals.bucket[finite]
    low = DIGIT_BITS * int(bucket.min()) if len(bucket) else 0
    result = [0] * group_count
    for g, b, value in zip(group.tolist(), bucket.tolist(), totals.value.python_integers[finite].tolist(), strict=True):
        result[g] += value << (DIGIT_BITS * b - low)
    return result, low


def _has_special(group_count: int, totals: exact_float_sum.BucketTotals) -> Flags:
    special = np.zeros(group_count, np.bool_)
    special[
        totals.group[(totals.bucket >= exact_float_sum.NAN) & ((totals.value.low != 0) | (totals.value.high != 0))]
    ] = True
    return special


def _divide(numerator: int, denominator: int, scale: int) -> float:
    """above / below · 2^−scale, rounded once."""
    try:
        return numerator / (denominator << scale) if scale >= 0 else (numerator << -scale) / denominator
    except OverflowError:
        return float("inf")


MeasureColumn = tuple[Any, Flags | None]


def read_measure(measure: Measure, totals: GroupTotals) -> MeasureColumn:
    """A measure of every group, from additive state. (Min and Max are read from values: `extremes`.)"""
    a, function = measure.argument, measure.function
    if a is None:
        return pa.array(totals.row_counts), None
    count = totals.counts[Accumulator("count", a, measure.distinct).name]
    if function == "Count":
        return pa.array(count), None
    if function in VARIANCES:
        _, first, second = accumulators_of(measure)
        found = compute_variances(function, count, totals.buckets[first], totals.buckets[second])
        return pa.array(found, pa.float64()), None
    accumulator = sum_accumulator(measure)
    if accumulator.is_bucketed:
        doubles = exact_float_sum.round_totals(len(count), totals.buckets[accumulator])
        if function == "Average":
            doubles /= np.maximum(count, 1)
        return pa.array(doubles, mask=count == 0), None
    total, fits = _read_total(accumulator, totals)
    if function == "Sum":
        return _read_sum(measure, count, total, fits)
    return _read_average(measure, count, total, fits)


def _read_total(accumulator: Accumulator, totals: GroupTotals) -> tuple[Int128Array, Flags | None]:
    """The exact sum, and where it fits 128 bits (None: everywhere)."""
    if accumulator.kind == "wide":
        lower, upper = (totals.sums[c] for c in accumulator.columns)
        return add_upper_words(lower, upper)
    return totals.sums[accumulator.name], None


def _read_sum(measure: Measure, count: Ints, total: Int128Array, fits: Flags | None) -> MeasureColumn:
    some = count > 0
    if digits := types.decimal_digits(measure.type):
        inside = _combine_flags(total.is_within(10 ** digits[0]), fits)
        return total.to_decimals(types.arrow(measure.type), some & inside), some & ~inside
    inside = _combine_flags(total.fits_int64, fits)
    return pa.array(total.low.view(np.int64), mask=~some | ~inside), some & ~inside


def _read_average(measure: Measure, count: Ints, total: Int128Array, fits: Flags | None) -> MeasureColumn:
    some = count > 0
    given, result = types.decimal_digits(measure.argument_type or types.VOID), types.decimal_digits(measure.type)
    if not given or not result:
        return pa.array(total.doubles / np.maximum(count, 1), mask=~some), None
    # The sum has to fit Spark's type for it, and the quotient the result's.
    inside = _combine_flags(total.is_within(10 ** min(38, given[0] + 10)), fits)
    quotient = _divide_half_up(total, np.maximum(count, 1), 10 ** (result[1] - given[1]), some & inside)
    inside &= quotient.is_within(10 ** result[0])
    return quotient.to_decimals(types.arrow(measure.type), some & inside), some & ~inside


def _divide_half_up(total: Int128Array, count: Ints, power: int, is_needed: Flags) -> Int128Array:
    """total · power / count, half away from zero; zero where it is not wanted."""
    small = total.low.view(np.int64)
    limit = 2**61 // power
    if bool(((total.fits_int64 & (small < limit) & (small > -limit) & (count < 2**61)) | ~is_needed).all()):
        small = np.where(is_needed, small, 0)
        size = (2 * np.abs(small) * power + count) // (2 * count)
        quotient = np.where(small < 0, -size, size)
        return Int128Array(quotient.view(np.uint64), quotient >> 63)
    integers = np.where(is_needed, total.python_integers, 0)
    size = (2 * np.abs(integers) * power + count) // (2 * count.astype(object))
    large = np.where(integers < 0, -size, size)
    # An average is no larger than the largest value, scaled: below 10^42. Beyond 128 bits it is out of range anyway.
    large = np.where(np.abs(large) < 10**38, large, 10**38)
    return Int128Array((large & (2**64 - 1)).astype(np.uint64), (large >> 64).astype(np.int64))


def _combine_flags(flags: Flags, other_flags: Flags | None) -> Flags:
    return flags if other_flags is None else flags & other_flags
