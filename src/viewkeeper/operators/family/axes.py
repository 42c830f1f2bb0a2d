"""One condition of the template as an axis: the bucket of each row, and the buckets that each member wants.

A **range** compares a value of the row with a bound of the member. The distinct bounds u₀ < u₁ < … cut the values into

    x < u₀ │ x = u₀ │ u₀ < x < u₁ │ x = u₁ │ …  │ NULL           so `<`, `<=`, `=`, `>=`, `>` and `<=>` are all
    a stretch of neighbouring buckets for a member                first … last − 1

and buckets that no member tells apart are made one. Rows that no member wants are known at once, and go. NULL has a
bucket of its own, which only `<=>` with a NULL reaches. A condition that is no range has one bucket for each distinct
tuple of values in it, and the members of a bucket are **bits**.
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
"""A table of all values between the least and the greatest is made if it has no more than so many entries a row."""


@dataclass(frozen=True)
class RangeAxis:
    """`bucket` of each row (−1: no member wants it); a member wants `first` … `last` − 1."""

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
        """Members that are alike here have the same."""
        return [self.first_buckets, self.end_buckets]

    def member_bits(self) -> Bytes:
        """The members of each bucket: a member's bit is toggled at its first and past its last bucket."""
        count = len(self.first_buckets)
        member = np.arange(count)
        bit = (128 >> (member & 7)).astype(np.uint8)
        found = np.zeros((self.size + 1, (count + 7) // 8), np.uint8)
        np.bitwise_xor.at(found, (self.first_buckets, member >> 3), bit)
        np.bitwise_xor.at(found, (self.end_buckets, member >> 3), bit)
        np.bitwise_xor.accumulate(found, axis=0, out=found)
        return found[: self.size]


@dataclass(frozen=True)
class BitmapAxis:
    """`bucket` of each row; `wanted`[bucket, kind] and the `kind` of each member."""

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
    """The axis of a column that is compared with bounds: (operator, the bound of each member)."""
    (x, there), *bounds = encode_values([values, *(b for _, b in conditions)])
    known = [b[some] for b, some in bounds]
    cuts = np.unique(np.concatenate(known))
    top = 2 * len(cuts) + 1
    members = len(bounds[0][0])
    first, last = np.zeros(members, np.int64), np.full(members, top + 1)
    for (operator, _), (bound, some) in zip(conditions, bounds, strict=True):
        low, high = _bucket_range(operator, np.searchsorted(cuts, bound), top, some)
        first, last = np.maximum(first, low), np.minimum(last, high)
    first, last = np.where(first < last, first, 0), np.where(first < last, last, 0)
    edges = np.unique(np.concatenate([first, last]))
    empty = len(edges) < 2
    size = 1 if empty else len(edges) - 1
    renamed = np.searchsorted(edges, np.arange(top + 1), "right") - 1
    renamed[(renamed < 0) | (renamed >= size) | empty] = -1
    bucket = renamed[np.where(there, _assign_buckets(x, there, cuts), top)]
    return RangeAxis(bucket, np.searchsorted(edges, first), np.searchsorted(edges, last), size)


def _bucket_range(operator: str, bound_positions: Ints, top: int, is_bound_present: Flags) -> tuple[Ints, Ints]:
    """The buckets of the values that compare so with the bound in this place; a bound that is NULL has none."""
    at, after = 2 * bound_positions + 1, 2 * bound_positions + 2
    match operator:
        case "LessThan":
            low, high = np.zeros_like(at), at
        case "LessThanOrEqual":
            low, high = np.zeros_like(at), after
        case "GreaterThan":
            low, high = after, np.full_like(at, top)
        case "GreaterThanOrEqual":
            low, high = at, np.full_like(at, top)
        case "EqualTo":
            low, high = at, after
        case "EqualNullSafe":
            return np.where(is_bound_present, at, top), np.where(is_bound_present, after, top + 1)
        case _:
            raise Defect(f"{operator} is no range.")
    return low, np.where(is_bound_present, high, 0)


def _assign_buckets(codes: Ints, is_present: Flags, cuts: Ints) -> Ints:
    """Before binary search: a table takes 10 ns a row, a search up to 400."""
    if not len(codes):
        return codes
    seen = codes if is_present.all() else codes[is_present]
    if not len(seen):
        return np.zeros(len(codes), np.int64)
    least, most = int(seen.min()), int(seen.max())
    if most - least < _MAX_TABLE_RATIO * len(seen) + 1024:
        table = _search_buckets(np.arange(least, most + 1), cuts)
        return table[np.clip(codes, least, most) - least]
    return _search_buckets(codes, cuts)


def _search_buckets(codes: Ints, cuts: Ints) -> Ints:
    place = np.searchsorted(cuts, codes)
    if not len(cuts):
        return place
    met = cuts[np.minimum(place, len(cuts) - 1)] == codes
    found: Ints = 2 * place + (met & (place < len(cuts)))
    return found
