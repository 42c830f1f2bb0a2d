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
from viewkeeper.operators import exact
from viewkeeper.operators.groups import Sides
from viewkeeper.operators.measures import VARIANCES, Accumulator, needs, summing
from viewkeeper.operators.spec import Measure
from viewkeeper.operators.variance import variances
from viewkeeper.operators.wide import Flags, Ints, Wide, combined

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
        doubles = exact.rounded(len(count), sides.buckets[accumulator])
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
