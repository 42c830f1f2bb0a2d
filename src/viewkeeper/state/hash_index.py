"""Hash index: finds hashes in a sorted column of hashes by interpolation search, a directory and an existence filter.

Interpolation. `np.searchsorted` misses the cache at every step: finding 20,000 hashes among 6 M takes 1 to 2 µs each.
Hashes are evenly distributed, so the position of a hash among n is about hash / 2⁶⁴ · n, with an error of up to √n. The
hash at the guessed position shows the error, up to the root of it, and the guess is corrected. Two such steps, for all
probes at once, leave tens of rows to bisect:

    6,000,000 rows   guess ± 1,200   ─▶   ± 35   ─▶   ± 6        a tenth of the time, and no extra memory

Where a hash has many rows, or rows are placed by a value instead of a hash (`operators.segment`), guesses are worse.
The result of a bisection is checked, so a wrong guess costs time but never gives a wrong row: the search continues in a
wider window, and finally in the whole column.

Directory. A column that is probed often gets a directory of the first position for each value of the hash's top bits,
which halves the time of a guess. It takes 2 to 4 bytes a row and one pass over the column. The column never changes, so
the directory is kept.

Existence filter. Most probes of a short column find nothing: it holds the changes of one or a few batches, and the
probed keys changed in other batches. A flag for each value of the hash's top bits, with 8 to 16 times as many flags as
rows, rejects nine in ten of these probes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

# Radix argsort: hashes are evenly distributed, so their top bits nearly determine the order.
#
#     numpy's sort of 64-bit words compares, and mispredicts every second branch:    24,000 hashes  0.94 ms
#     numpy's sort of 16-bit words counts; after it, few hashes are out of order:                   0.32 ms
#
# The sort is always stable: equal hashes keep their input order.


_MIN_RADIX_ROWS = 512
"""Below this many hashes, one comparison sort is faster than two sorts."""
_MIN_DESCENTS = 64
"""If there are fewer descents than this, numpy's stable sort merges the ascending stretches fast by itself."""
_COARSE_SHIFT = np.uint64(48)


def radix_argsort(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return the positions of the hashes in ascending order of the hashes."""
    if len(hashes) < _MIN_RADIX_ROWS or np.count_nonzero(hashes[1:] < hashes[:-1]) < _MIN_DESCENTS:
        return np.argsort(hashes, kind="stable")
    coarse = np.argsort((hashes >> _COARSE_SHIFT).astype(np.uint16), kind="stable")
    return coarse[np.argsort(hashes[coarse], kind="stable")]


Hashes = npt.NDArray[np.uint64]
RowIds = npt.NDArray[np.int64]

_MIN_INTERPOLATED_ROWS = 1 << 12
_MIN_INTERPOLATED_PROBES = 64
"""For a shorter column, or for fewer probes, bisecting the whole column is faster."""
_INTERPOLATION_STEPS = 2
_NARROW_WINDOW, _WIDE_WINDOW = 64, 2048
_HASH_SCALE, _FRACTION_SHIFT = 2.0**-64, np.uint64(11)
_BUCKET_ROWS = 2
_ROWS_PER_PROBE = 8
"""The directory is built when all lookups so far had one probe for this many rows."""
_MAX_FILTER_ROWS = 1 << 17
_MIN_FILTER_PROBES = 1 << 10
"""The existence filter is used for columns of at most this many rows and lookups of at least this many probes."""
_FILTER_EXTRA_BITS = 3
"""Bits of the hash that the existence filter distinguishes beyond those that would number the rows."""


class HashIndex:
    """Index over an ascending column of hashes."""

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        self._probe_count = 0
        """Number of probes until the directory is built. Two threads may lose an update; the count is only a
        heuristic."""
        self._window_widths: tuple[int, ...] = (_NARROW_WINDOW, _WIDE_WINDOW)
        """Window widths that are still tried. Threads may change it at once, because the results do not depend on
        it."""
        self._last_count: tuple[Hashes, RowIds, RowIds] | None = None
        """Result of the last `count_rows`, for the call of `ranges` that usually follows with the same hashes."""

    def count_rows(self, hashes: Hashes) -> int:
        """Return the number of rows that have one of the ascending hashes."""
        start, stop = self.ranges(hashes)
        self._last_count = (hashes, start, stop)
        return int((stop - start).sum())

    def ranges(self, hashes: Hashes) -> tuple[RowIds, RowIds]:
        """Return for each of the ascending hashes the range [start, stop) of its rows, empty if there are none."""
        counted, self._last_count = self._last_count, None
        if counted is not None and np.array_equal(counted[0], hashes):
            return counted[1], counted[2]
        candidates = self._filter_candidates(hashes)
        if candidates is None:
            return self._search_ranges(hashes)
        start, stop = np.zeros((2, len(hashes)), np.int64)
        if len(candidates):
            start[candidates], stop[candidates] = self._search_ranges(hashes[candidates])
        return start, stop

    def _search_ranges(self, hashes: Hashes) -> tuple[RowIds, RowIds]:
        keys = self._hashes
        start = self._search_starts(hashes)
        stop, repeated = _first_row_ends(keys, hashes, start)
        if len(repeated):
            stop[repeated] = self._search_ends(stop[repeated], hashes[repeated])
        return start, stop

    def starts(self, hashes: Hashes) -> RowIds:
        """Return for each hash, in any order, the position of its first row; an arbitrary position if it has no row."""
        candidates = self._filter_candidates(hashes)
        if candidates is None:
            return self._search_starts(hashes)
        found = np.zeros(len(hashes), np.int64)
        if len(candidates):
            found[candidates] = self._search_starts(hashes[candidates])
        return found

    def _filter_candidates(self, hashes: Hashes) -> RowIds | None:
        """Return the indices of the hashes that may exist, if they are less than half of all; None if the existence
        filter is not applicable or not selective."""
        if not 0 < len(self._hashes) <= _MAX_FILTER_ROWS or len(hashes) < _MIN_FILTER_PROBES:
            return None
        shift, flags = self._existence_filter
        candidates = np.flatnonzero(flags[(hashes >> shift).view(np.int64)])
        return candidates if 2 * len(candidates) < len(hashes) else None

    @cached_property
    def _existence_filter(self) -> tuple[np.uint64, npt.NDArray[np.bool_]]:
        """(shift, flags): `flags[hash >> shift]` tells whether the column has a hash with these top bits."""
        bits = len(self._hashes).bit_length() + _FILTER_EXTRA_BITS
        flags = np.zeros(1 << bits, np.bool_)
        shift = np.uint64(64 - bits)
        flags[(self._hashes >> shift).view(np.int64)] = True
        return shift, flags

    def _search_starts(self, hashes: Hashes) -> RowIds:
        """Return for each hash the position of its first row, or the position where it would be inserted."""
        if self._is_short(hashes):
            return _bisect(self._hashes, hashes, "left")
        directory = self._get_directory(len(hashes))
        if directory is not None:
            return directory.starts(self._hashes, hashes)
        if not self._window_widths:
            return _bisect(self._hashes, hashes, "left")
        return self._search_windows(_interpolate(self._hashes, hashes), hashes, np.less)

    def _search_ends(self, starts: RowIds, hashes: Hashes) -> RowIds:
        """Return one past the last row of each hash; `starts - 1` is a row of the hash."""
        if self._is_short(hashes):
            return _bisect(self._hashes, hashes, "right")
        directory = self._get_directory(0)
        if directory is not None:
            return directory.ends(self._hashes, starts, hashes)
        return self._search_windows(starts + _NARROW_WINDOW // 2, hashes, np.less_equal)

    def _is_short(self, hashes: Hashes) -> bool:
        return len(self._hashes) < _MIN_INTERPOLATED_ROWS or len(hashes) < _MIN_INTERPOLATED_PROBES

    def _get_directory(self, probes: int) -> _Directory | None:
        if "_directory" not in self.__dict__:
            self._probe_count += probes
            if self._probe_count * _ROWS_PER_PROBE <= len(self._hashes):
                return None
        return self._directory

    @cached_property
    def _directory(self) -> _Directory:
        bits = max(1, (len(self._hashes) // _BUCKET_ROWS).bit_length())
        counts = np.bincount((self._hashes >> np.uint64(64 - bits)).astype(np.int64), minlength=1 << bits)
        first = np.concatenate([[0], np.cumsum(counts)])
        small = np.int32 if first[-1] < 1 << 31 else np.int64
        return _Directory(np.uint64(64 - bits), first.astype(small), int(np.diff(first).max()) + 1)

    def _search_windows(self, guess: RowIds, hashes: Hashes, precedes: np.ufunc) -> RowIds:
        """Return the first position whose key does not precede the hash: from a window around the guess, from a wider
        window, or from the whole column. A window width that misses most probes is not tried again."""
        keys, found, remaining = self._hashes, guess, np.arange(len(hashes))
        for width in self._window_widths:
            positions = _bisect_windows(keys, guess[remaining] - width // 2, width, hashes[remaining], precedes)
            found[remaining] = positions
            last = len(remaining)
            remaining = remaining[~_is_first_position(keys, positions, hashes[remaining], precedes)]
            if precedes is np.less and len(remaining) * 2 > last:
                self._window_widths = tuple(w for w in self._window_widths if w != width)
            if len(remaining) < _MIN_INTERPOLATED_PROBES:
                break
        if len(remaining):
            found[remaining] = _bisect(keys, hashes[remaining], "left" if precedes is np.less else "right")
        return found


@dataclass(frozen=True)
class _Directory:
    """The first position for each value of the hash's top bits, and the number of positions to bisect in the longest
    bucket."""

    shift: np.uint64
    bucket_starts: npt.NDArray[Any]
    width: int

    def starts(self, keys: Hashes, hashes: Hashes) -> RowIds:
        return _bisect_windows(
            keys, self.bucket_starts[(hashes >> self.shift).astype(np.int64)], self.width, hashes, np.less
        )

    def ends(self, keys: Hashes, first_ends: RowIds, hashes: Hashes) -> RowIds:
        """Return one past the last row of each hash; `first_ends - 1` is a row of the hash."""
        return _bisect_windows(keys, first_ends, self.width, hashes, np.less_equal)


def _interpolate(keys: Hashes, hashes: Hashes) -> RowIds:
    """Return the approximate position of each hash."""
    last = len(keys) - 1
    guess = ((hashes >> _FRACTION_SHIFT).astype(np.float64) * (len(keys) / 2.0**53)).astype(np.int64)
    for _ in range(_INTERPOLATION_STEPS):
        np.minimum(guess, last, out=guess)
        np.maximum(guess, 0, out=guess)
        # Unsigned subtraction wraps around; read as int64, the difference has the right sign and value unless it
        # exceeds half of the hash range.
        guess += ((hashes - keys[guess]).view(np.int64) * (len(keys) * _HASH_SCALE)).astype(np.int64)
    return guess


def _bisect_windows(keys: Hashes, first: RowIds, width: int, hashes: Hashes, precedes: np.ufunc) -> RowIds:
    """Return the first position whose key does not precede the hash, searching windows that begin at `first`, all at
    once. A window that would run over an end of the column is moved inside; the column is sorted as a whole, so the
    search stays correct."""
    width = min(width, len(keys))
    position = np.minimum(first, len(keys) - width, dtype=np.int64)
    np.maximum(position, 0, out=position)
    while width > 1:
        half = width >> 1
        position += precedes(keys[position + (half - 1)], hashes) * np.int64(half)
        width -= half
    found: RowIds = position + precedes(keys[position], hashes)
    return found


def _is_first_position(keys: Hashes, positions: RowIds, hashes: Hashes, precedes: np.ufunc) -> npt.NDArray[np.bool_]:
    """Return whether these are the first positions whose keys do not precede the hashes."""
    last = len(keys) - 1
    is_after = (positions > last) | ~precedes(keys[np.minimum(positions, last)], hashes)
    is_first = (positions == 0) | precedes(keys[np.maximum(positions - 1, 0)], hashes)
    found: npt.NDArray[np.bool_] = is_after & is_first
    return found


def _bisect(keys: Hashes, hashes: Hashes, side: Any) -> RowIds:
    """Bisect the whole column, probing in ascending order of the hashes, so that successive probes touch neighbouring
    rows."""
    if (
        len(hashes) < _MIN_INTERPOLATED_PROBES
        or len(keys) < _MIN_INTERPOLATED_ROWS
        or bool((hashes[1:] >= hashes[:-1]).all())
    ):
        return np.searchsorted(keys, hashes, side)
    order = radix_argsort(hashes)
    found = np.empty(len(hashes), np.int64)
    found[order] = np.searchsorted(keys, hashes[order], side)
    return found


def _first_row_ends(keys: Hashes, hashes: Hashes, start: RowIds) -> tuple[RowIds, RowIds]:
    """Return one past the first row of each hash, and the indices of the hashes that have more rows. Most keys have one
    row."""
    if len(keys) == 0:
        return start.copy(), np.zeros(0, np.int64)
    last = len(keys) - 1
    exists = (keys[np.minimum(start, last)] == hashes) & (start <= last)
    if not exists.any():  # most lookups in a short run find nothing
        return start.copy(), np.zeros(0, np.int64)
    stop = start + exists
    return stop, np.flatnonzero((stop > start) & (stop <= last) & (keys[np.minimum(stop, last)] == hashes))
