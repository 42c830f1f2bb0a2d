"""Variance and standard deviation from exact sums: nothing cancels, whatever the values' size.

    var_pop  = (c·Σx² − (Σx)²) / c²          var_samp = (c·Σx² − (Σx)²) / (c·(c − 1))

The numerator is an exact integer, so one division rounds, once. It can have thousands of bits, so it is a Python
integer, one for each touched group. NaN or an infinity among the values makes NaN; too few values make NULL.
"""

from __future__ import annotations

import numpy as np

from viewkeeper.operators import exact
from viewkeeper.operators.wide import DIGIT, Flags, Ints


def variances(function: str, count: Ints, sums: exact.Totals, squares: exact.Totals) -> list[float | None]:
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
            variance = _quotient(above, c * (c - 1 if sample else c), scale)
            found.append(variance**0.5 if function.startswith("Stddev") else variance)
    return found


def _integers(groups: int, totals: exact.Totals) -> tuple[list[int], int]:
    """Each group's total as an integer in units of 2^low, above the unit of its kind."""
    finite = totals.bucket < exact.NAN
    group, bucket = totals.group[finite], totals.bucket[finite]
    low = DIGIT * int(bucket.min()) if len(bucket) else 0
    result = [0] * groups
    for g, b, value in zip(group.tolist(), bucket.tolist(), totals.value.integers[finite].tolist(), strict=True):
        result[g] += value << (DIGIT * b - low)
    return result, low


def _has_special(groups: int, totals: exact.Totals) -> Flags:
    special = np.zeros(groups, np.bool_)
    special[totals.group[(totals.bucket >= exact.NAN) & ((totals.value.low != 0) | (totals.value.high != 0))]] = True
    return special


def _quotient(above: int, below: int, scale: int) -> float:
    """above / below · 2^−scale, rounded once."""
    try:
        return above / (below << scale) if scale >= 0 else (above << -scale) / below
    except OverflowError:
        return float("inf")
