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
from viewkeeper.model.int128 import DIGIT, Flags, Ints, Wide, combined
from viewkeeper.operators.aggregation import exact_float_sum
from viewkeeper.operators.aggregation.groups import Sides
from viewkeeper.operators.aggregation.spec import VARIANCES, Accumulator, Measure, needs, summing

# Variance and standard deviation from exact sums: nothing cancels, whatever the values' size.
#
#     var_pop  = (c·Σx² − (Σx)²) / c²          var_samp = (c·Σx² − (Σx)²) / (c·(c − 1))
#
# The numerator is an exact integer, so one division rounds, once. It can have thousands of bits, so it is a Python
# integer, one for each touched group. NaN or an infinity among the values makes NaN; too few values make NULL.


def variances(
    function: str, count: Ints, sums: exact_float_sum.Totals, squares: exact_float_sum.Totals
) -> list[float | None]:
    """`function` of each group, given how many values it has and its totals of x and x² in buckets."""
    sample = function.endswith("Samp")
    first, low = _integers(len(count), sums)
    second, square_low = _integers(len(count), squares)
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
            variance = _rounded_quotient(above, c * (c - 1 if sample else c), scale)
            found.append(variance**0.5 if function.startswith("Stddev") else variance)
    return found


def _integers(groups: int, totals: exact_float_sum.Totals) -> tuple[list[int], int]:
    """Each group's total as an integer in units of 2^low, above the unit of its kind."""
    finite = totals.bucket < exact_float_sum.NAN
    group, bucket = totals.group[finite], totals.bucket[finite]
    low = DIGIT * int(bucket.min()) if len(bucket) else 0
    result = [0] * groups
    for g, b, value in zip(group.tolist(), bucket.tolist(), totals.value.integers[finite].tolist(), strict=True):
        result[g] += value << (DIGIT * b - low)
    return result, low


def _has_special(groups: int, totals: exact_float_sum.Totals) -> Flags:
    special = np.zeros(groups, np.bool_)
    special[
        totals.group[(totals.bucket >= exact_float_sum.NAN) & ((totals.value.low != 0) | (totals.value.high != 0))]
    ] = True
    return special


def _rounded_quotient(above: int, below: int, scale: int) -> float:
    """above / below · 2^−scale, rounded once."""
    try:
        return above / (below << scale) if scale >= 0 else (above << -scale) / below
    except OverflowError:
        return float("inf")


Column = tuple[Any, Flags | None]


def read(measure: Measure, sides: Sides) -> Column:
    """A measure of every group, from additive state. (Min and Max are read from values: `extremes`.)"""
    a, function = measure.argument, measure.function
    if a is None:
        return pa.array(sides.rows), None
    count = sides.counts[Accumulator("count", a, measure.distinct).name]
    if function == "Count":
        return pa.array(count), None
    if function in VARIANCES:
        _, first, second = needs(measure)
        found = variances(function, count, sides.buckets[first], sides.buckets[second])
        return pa.array(found, pa.float64()), None
    accumulator = summing(measure)
    if accumulator.is_bucketed:
        doubles = exact_float_sum.rounded(len(count), sides.buckets[accumulator])
        if function == "Average":
            doubles /= np.maximum(count, 1)
        return pa.array(doubles, mask=count == 0), None
    total, fits = _total(accumulator, sides)
    if function == "Sum":
        return _sum(measure, count, total, fits)
    return _average(measure, count, total, fits)


def _total(accumulator: Accumulator, sides: Sides) -> tuple[Wide, Flags | None]:
    """The exact sum, and where it fits 128 bits (None: everywhere)."""
    if accumulator.kind == "wide":
        lower, upper = (sides.sums[c] for c in accumulator.columns)
        return combined(lower, upper)
    return sides.sums[accumulator.name], None


def _sum(measure: Measure, count: Ints, total: Wide, fits: Flags | None) -> Column:
    some = count > 0
    if digits := types.decimal_digits(measure.type):
        inside = _and(total.within(10 ** digits[0]), fits)
        return total.decimals(types.arrow(measure.type), some & inside), some & ~inside
    inside = _and(total.is_long, fits)
    return pa.array(total.low.view(np.int64), mask=~some | ~inside), some & ~inside


def _average(measure: Measure, count: Ints, total: Wide, fits: Flags | None) -> Column:
    some = count > 0
    given, result = types.decimal_digits(measure.argument_type or types.VOID), types.decimal_digits(measure.type)
    if not given or not result:
        return pa.array(total.doubles / np.maximum(count, 1), mask=~some), None
    # The sum has to fit Spark's type for it, and the quotient the result's.
    inside = _and(total.within(10 ** min(38, given[0] + 10)), fits)
    quotient = _quotient(total, np.maximum(count, 1), 10 ** (result[1] - given[1]), some & inside)
    inside &= quotient.within(10 ** result[0])
    return quotient.decimals(types.arrow(measure.type), some & inside), some & ~inside


def _quotient(total: Wide, count: Ints, power: int, wanted: Flags) -> Wide:
    """total · power / count, half away from zero; zero where it is not wanted."""
    small = total.low.view(np.int64)
    limit = 2**61 // power
    if bool(((total.is_long & (small < limit) & (small > -limit) & (count < 2**61)) | ~wanted).all()):
        small = np.where(wanted, small, 0)
        size = (2 * np.abs(small) * power + count) // (2 * count)
        quotient = np.where(small < 0, -size, size)
        return Wide(quotient.view(np.uint64), quotient >> 63)
    integers = np.where(wanted, total.integers, 0)
    size = (2 * np.abs(integers) * power + count) // (2 * count.astype(object))
    large = np.where(integers < 0, -size, size)
    # An average is no larger than the largest value, scaled: below 10^42. Beyond 128 bits it is out of range anyway.
    large = np.where(np.abs(large) < 10**38, large, 10**38)
    return Wide((large & (2**64 - 1)).astype(np.uint64), (large >> 64).astype(np.int64))


def _and(one: Flags, other: Flags | None) -> Flags:
    return one if other is None else one & other
