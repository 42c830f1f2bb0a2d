"""Read measures from a group's totals: Spark's result types, Spark's rounding, Spark's overflow errors.

Each reader returns a column, with one value for each side of a group, and flags for values out of range (None: there
can be none). Sums are checked against the result's type. Decimal averages are exact and round HALF_UP; an average of
integers or doubles divides the sum, rounded once, by the count.

Variance and standard deviation are computed from exact sums, so nothing cancels whatever the size of the values:

    var_pop  = (c·Σx² − (Σx)²) / c²          var_samp = (c·Σx² − (Σx)²) / (c·(c − 1))

The numerator is an exact integer, so the division is the only rounding. It can have thousands of bits, so it is a
Python integer, one for each touched group. A NaN or an infinity among the values gives NaN; too few values give NULL.
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


def compute_variances(
    function: str, count: Ints, sums: exact_float_sum.BucketTotals, squares: exact_float_sum.BucketTotals
) -> list[float | None]:
    """Return `function` of each group, from its number of values and the bucket totals of x and x²."""
    sample = function.endswith("Samp")
    sum_integers, sum_low = _integer_totals(len(count), sums)
    square_integers, square_low = _integer_totals(len(count), squares)
    shift = min(2 * sum_low, square_low)
    scale = 2 * 1075 - shift
    has_special = _has_special(len(count), sums)
    variances: list[float | None] = []
    for c, x, xx, is_nan in zip(count.tolist(), sum_integers, square_integers, has_special.tolist(), strict=True):
        if c == 0 or (sample and c == 1):
            variances.append(None)
        elif is_nan:
            variances.append(float("nan"))
        else:
            numerator = (c * xx << (square_low - shift)) - (x * x << (2 * sum_low - shift))
            variance = _divide(numerator, c * (c - 1 if sample else c), scale)
            variances.append(variance**0.5 if function.startswith("Stddev") else variance)
    return variances


def _integer_totals(group_count: int, totals: exact_float_sum.BucketTotals) -> tuple[list[int], int]:
    """Return each group's total as an integer in units of 2^low above the unit of the buckets, and `low`."""
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
    """Return numerator / denominator · 2^−scale, rounded once."""
    try:
        return numerator / (denominator << scale) if scale >= 0 else (numerator << -scale) / denominator
    except OverflowError:
        return float("inf")


MeasureColumn = tuple[Any, Flags | None]


def read_measure(measure: Measure, totals: GroupTotals) -> MeasureColumn:
    """Return a measure of every group from additive state. (Min and Max are read from values: `extremes`.)"""
    a, function = measure.argument, measure.function
    if a is None:
        return pa.array(totals.row_counts), None
    count = totals.counts[Accumulator("count", a, measure.distinct).name]
    if function == "Count":
        return pa.array(count), None
    if function in VARIANCES:
        _, first, second = accumulators_of(measure)
        variances = compute_variances(function, count, totals.buckets[first], totals.buckets[second])
        return pa.array(variances, pa.float64()), None
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
    """Return the exact sum, and where it fits 128 bits (None: everywhere)."""
    if accumulator.kind == "wide":
        lower, upper = (totals.sums[c] for c in accumulator.columns)
        return add_upper_words(lower, upper)
    return totals.sums[accumulator.name], None


def _read_sum(measure: Measure, count: Ints, total: Int128Array, fits: Flags | None) -> MeasureColumn:
    has_values = count > 0
    if digits := types.decimal_digits(measure.type):
        in_range = _combine_flags(total.is_within(10 ** digits[0]), fits)
        return total.to_decimals(types.arrow(measure.type), has_values & in_range), has_values & ~in_range
    in_range = _combine_flags(total.fits_int64, fits)
    return pa.array(total.low.view(np.int64), mask=~has_values | ~in_range), has_values & ~in_range


def _read_average(measure: Measure, count: Ints, total: Int128Array, fits: Flags | None) -> MeasureColumn:
    has_values = count > 0
    argument_digits, result_digits = (
        types.decimal_digits(measure.argument_type or types.VOID),
        types.decimal_digits(measure.type),
    )
    if not argument_digits or not result_digits:
        return pa.array(total.doubles / np.maximum(count, 1), mask=~has_values), None
    # The sum must fit Spark's type of the sum, and the quotient the result's type.
    in_range = _combine_flags(total.is_within(10 ** min(38, argument_digits[0] + 10)), fits)
    quotient = _divide_half_up(
        total, np.maximum(count, 1), 10 ** (result_digits[1] - argument_digits[1]), has_values & in_range
    )
    in_range &= quotient.is_within(10 ** result_digits[0])
    return quotient.to_decimals(types.arrow(measure.type), has_values & in_range), has_values & ~in_range


def _divide_half_up(total: Int128Array, count: Ints, power: int, is_needed: Flags) -> Int128Array:
    """Return total · power / count, rounded half away from zero; zero where `is_needed` is false."""
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
    # The scaled average is below 10^42, as the largest value is. Beyond 38 digits it is out of range in any type.
    large = np.where(np.abs(large) < 10**38, large, 10**38)
    return Int128Array((large & (2**64 - 1)).astype(np.uint64), (large >> 64).astype(np.int64))


def _combine_flags(flags: Flags, other_flags: Flags | None) -> Flags:
    return flags if other_flags is None else flags & other_flags
