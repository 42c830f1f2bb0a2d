"""Axes: one condition of the template as the bucket of each row and the buckets that each member needs.

A **range** compares a value of the row with a bound of the member. Distinct bounds u₀ < u₁ < … divide the values into

    x < u₀ │ x = u₀ │ u₀ < x < u₁ │ x = u₁ │ …  │ NULL           so each of `<`, `<=`, `=`, `>=`, `>` and `<=>` is a
                                                                  contiguous range first … last − 1 of buckets

and buckets that no member distinguishes are merged. Rows that no member needs are known at once and dropped. NULL has a
bucket of its own, which only `<=>` with a NULL needs. A condition that is no range has one bucket for each distinct
tuple of its values, and the members of a bucket are **bits**.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from viewkeeper.errors import Defect
from viewkeeper.model.int128 import Flags, Ints
from viewkeeper.operators.family.value_codes import encode_values

Bytes = npt.NDArray[np.uint8]

_MAX_TABLE_RATIO = 4
"""A table of all values between the smallest and the largest is used if it has at most this many entries per row."""


@dataclass(frozen=True)
class RangeAxis:
    """`row_buckets`: the bucket of each row (−1: no member needs it); a member needs `first_buckets` … `end_buckets` −
    1."""

    row_buckets: Ints
    first_buckets: Ints
    end_buckets: Ints
    size: int

    def select_rows(self, positions: Ints) -> RangeAxis:
        return RangeAxis(self.row_buckets[positions], self.first_buckets, self.end_buckets, self.size)

    def select_members(self, positions: Ints) -> RangeAxis:
        return RangeAxis(self.row_buckets, self.first_buckets[positions], self.end_buckets[positions], self.size)

    @property
    def member_signature(self) -> list[Ints]:
        """Arrays that are equal for members with the same buckets."""
        return [self.first_buckets, self.end_buckets]

    def member_bits(self) -> Bytes:
        """Return the members of each bucket. A member's bit is toggled at its first bucket and after its last one."""
        count = len(self.first_buckets)
        member = np.arange(count)
        bit = (128 >> (member & 7)).astype(np.uint8)
        bits = np.zeros((self.size + 1, (count + 7) // 8), np.uint8)
        np.bitwise_xor.at(bits, (self.first_buckets, member >> 3), bit)
        np.bitwise_xor.at(bits, (self.end_buckets, member >> 3), bit)
        np.bitwise_xor.accumulate(bits, axis=0, out=bits)
        return bits[: self.size]


@dataclass(frozen=True)
class BitmapAxis:
    """`row_buckets`: the bucket of each row; `matches`[bucket, kind], and the kind of each member."""

    row_buckets: Ints
    matches: Flags
    member_kinds: Ints

    @property
    def size(self) -> int:
        return int(self.matches.shape[0])

    def select_rows(self, positions: Ints) -> BitmapAxis:
        return BitmapAxis(self.row_buckets[positions], self.matches, self.member_kinds)

    def select_members(self, positions: Ints) -> BitmapAxis:
        return BitmapAxis(self.row_buckets, self.matches, self.member_kinds[positions])

    @property
    def member_signature(self) -> list[Ints]:
        return [self.member_kinds]

    def member_bits(self) -> Bytes:
        return np.packbits(self.matches[:, self.member_kinds], axis=1)


Axis = RangeAxis | BitmapAxis


def build_range_axis(values: Any, conditions: Sequence[tuple[str, Any]]) -> RangeAxis:
    """Return the axis of a column that is compared with bounds: (operator, the bound of each member)."""
    (x, is_present), *bounds = encode_values([values, *(b for _, b in conditions)])
    present_bounds = [b[is_bound_present] for b, is_bound_present in bounds]
    cuts = np.unique(np.concatenate(present_bounds))
    null_bucket = 2 * len(cuts) + 1
    member_count = len(bounds[0][0])
    first, last = np.zeros(member_count, np.int64), np.full(member_count, null_bucket + 1)
    for (operator, _), (bound, is_bound_present) in zip(conditions, bounds, strict=True):
        start, stop = _bucket_range(operator, np.searchsorted(cuts, bound), null_bucket, is_bound_present)
        first, last = np.maximum(first, start), np.minimum(last, stop)
    first, last = np.where(first < last, first, 0), np.where(first < last, last, 0)
    edges = np.unique(np.concatenate([first, last]))
    is_empty = len(edges) < 2
    size = 1 if is_empty else len(edges) - 1
    renamed = np.searchsorted(edges, np.arange(null_bucket + 1), "right") - 1
    renamed[(renamed < 0) | (renamed >= size) | is_empty] = -1
    bucket = renamed[np.where(is_present, _assign_buckets(x, is_present, cuts), null_bucket)]
    return RangeAxis(bucket, np.searchsorted(edges, first), np.searchsorted(edges, last), size)


def _bucket_range(operator: str, bound_positions: Ints, top: int, is_bound_present: Flags) -> tuple[Ints, Ints]:
    """Return the range of buckets whose values satisfy the operator with the bound at this position; empty for a NULL
    bound."""
    bound_bucket, next_bucket = 2 * bound_positions + 1, 2 * bound_positions + 2
    match operator:
        case "LessThan":
            start, stop = np.zeros_like(bound_bucket), bound_bucket
        case "LessThanOrEqual":
            start, stop = np.zeros_like(bound_bucket), next_bucket
        case "GreaterThan":
            start, stop = next_bucket, np.full_like(bound_bucket, top)
        case "GreaterThanOrEqual":
            start, stop = bound_bucket, np.full_like(bound_bucket, top)
        case "EqualTo":
            start, stop = bound_bucket, next_bucket
        case "EqualNullSafe":
            return np.where(is_bound_present, bound_bucket, top), np.where(is_bound_present, next_bucket, top + 1)
        case _:
            raise Defect(f"{operator} is no range.")
    return start, np.where(is_bound_present, stop, 0)


def _assign_buckets(codes: Ints, is_present: Flags, cuts: Ints) -> Ints:
    """Return the bucket of each row. A lookup table takes 10 ns a row, a binary search up to 400 ns, so a table is used
    unless it were too large."""
    if not len(codes):
        return codes
    present = codes if is_present.all() else codes[is_present]
    if not len(present):
        return np.zeros(len(codes), np.int64)
    minimum, maximum = int(present.min()), int(present.max())
    if maximum - minimum < _MAX_TABLE_RATIO * len(present) + 1024:
        table = _search_buckets(np.arange(minimum, maximum + 1), cuts)
        return table[np.clip(codes, minimum, maximum) - minimum]
    return _search_buckets(codes, cuts)


def _search_buckets(codes: Ints, cuts: Ints) -> Ints:
    position = np.searchsorted(cuts, codes)
    if not len(cuts):
        return position
    is_bound = cuts[np.minimum(position, len(cuts) - 1)] == codes
    buckets: Ints = 2 * position + (is_bound & (position < len(cuts)))
    return buckets
