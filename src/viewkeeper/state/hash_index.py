"""Finding hashes in a sorted column of them: where a hash lies is guessed from its value, and looked at nearby.

`np.searchsorted` misses the cache at every step: finding 20,000 hashes in 6 M takes 1 to 2 µs each. But hashes are
spread evenly, so the place of one among n is about hash / 2⁶⁴ · n, up to √n; what lies there tells how far off that
is, up to the root of it, and again. Two such steps, for all probes at once, leave tens of rows to bisect:

    6,000,000 rows   guess ± 1,200   ─▶   ± 35   ─▶   ± 6        a tenth of the time, and nothing to keep

Where a hash has many rows, or the column is no hash (`segments`), guesses are worse. What a bisection finds is checked,
so a wrong guess costs time and never a row: then the window is wider, and at last it is the whole column.

A column that is asked often gets a directory, which says where the hashes with the same top bits begin: half of a
guess's time. It takes 2 to 4 bytes a row and reads the whole column once. The column never changes, so it stays.

Of a short column most probes find nothing: it holds the changes of a batch or a few, and what is looked up changed in
another. A flag for each value of the hash's top bits, 8 to 16 times as many as rows, says so of nine in ten at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

# The order of hashes: they are spread evenly, so their top bits nearly tell it.
#
#     numpy's sort of words compares and guesses wrongly at every second step:       24,000 hashes  0.94 ms
#     its sort of 16 bits only counts; of what that leaves little is out of order:                  0.32 ms
#
# Always stable: equal hashes stay in the order in which they were given.


_MIN_RADIX_ROWS = 512
"""Hashes of which one sort is sooner done than two."""
_MIN_DESCENTS = 64
"""Ascending stretches that merge by themselves, if there are no more."""
_COARSE_SHIFT = np.uint64(48)


def radix_argsort(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """The places of the hashes in ascending order."""
    if len(hashes) < _MIN_RADIX_ROWS or np.count_nonzero(hashes[1:] < hashes[:-1]) < _MIN_DESCENTS:
        return np.argsort(hashes, kind="stable")
    coarse = np.argsort((hashes >> _COARSE_SHIFT).astype(np.uint16), kind="stable")
    return coarse[np.argsort(hashes[coarse], kind="stable")]


Hashes = npt.NDArray[np.uint64]
RowIds = npt.NDArray[np.int64]

_MIN_INTERPOLATED_ROWS = 1 << 12
_MIN_INTERPOLATED_PROBES = 64
"""Of a shorter column, or for fewer probes, bisecting all of it is sooner done."""
_INTERPOLATION_STEPS = 2
_NARROW_WINDOW, _WIDE_WINDOW = 64, 2048
_HASH_SCALE, _FRACTION_SHIFT = 2.0**-64, np.uint64(11)
_BUCKET_ROWS = 2
_ROWS_PER_PROBE = 8
"""A directory is made when all lookups so far had one probe for so many rows."""
_MAX_FILTER_ROWS = 1 << 17
_MIN_FILTER_PROBES = 1 << 10
"""Up to so many rows, and from so many probes on, flags are asked first."""
_FILTER_EXTRA_BITS = 3
"""Bits of the hash that flags know beyond those that would number the rows."""


class HashIndex:
    """An ascending column of hashes."""

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        self._probe_count = 0
        """Probes so far, while there is no directory. A count that two threads make at once may be lost."""
        self._window_widths: tuple[int, ...] = (_NARROW_WINDOW, _WIDE_WINDOW)
        """What is worth a try. (Threads that change it at once agree in what they find.)"""
        self._last_count: tuple[Hashes, RowIds, RowIds] | None = None
        """What was found by who asked how much there is, for who asks for it next."""

    def count_rows(self, hashes: Hashes) -> int:
        """How many rows the ascending hashes have."""
        start, stop = self.ranges(hashes)
        self._last_count = (hashes, start, stop)
        return int((stop - start).sum())

    def ranges(self, hashes: Hashes) -> tuple[RowIds, RowIds]:
        """For each of the ascending hashes, the range [start, stop) where it is, empty if it is not there."""
        counted, self._last_count = self._last_count, None
        if counted is not None and np.array_equal(counted[0], hashes):
            return counted[1], counted[2]
        some = self._filter_candidates(hashes)
        if some is None:
            return self._search_ranges(hashes)
        start, stop = np.zeros((2, len(hashes)), np.int64)
        if len(some):
            start[some], stop[some] = self._search_ranges(hashes[some])
        return start, stop

    def _search_ranges(self, hashes: Hashes) -> tuple[RowIds, RowIds]:
        keys = self._hashes
        start = self._search_starts(hashes)
        stop, more = _first_row_ends(keys, hashes, start)
        if len(more):
            stop[more] = self._search_ends(stop[more], hashes[more])
        return start, stop

    def starts(self, hashes: Hashes) -> RowIds:
        """For each hash, ascending or not, where it begins; of one that is not there, anywhere."""
        some = self._filter_candidates(hashes)
        if some is None:
            return self._search_starts(hashes)
        found = np.zeros(len(hashes), np.int64)
        if len(some):
            found[some] = self._search_starts(hashes[some])
        return found

    def _filter_candidates(self, hashes: Hashes) -> RowIds | None:
        """The places of hashes that may be there, if they are few; None if it is not known."""
        if not 0 < len(self._hashes) <= _MAX_FILTER_ROWS or len(hashes) < _MIN_FILTER_PROBES:
            return None
        shift, flags = self._existence_filter
        some = np.flatnonzero(flags[(hashes >> shift).view(np.int64)])
        return some if 2 * len(some) < len(hashes) else None

    @cached_property
    def _existence_filter(self) -> tuple[np.uint64, npt.NDArray[np.bool_]]:
        """Whether there is a hash with these top bits."""
        bits = len(self._hashes).bit_length() + _FILTER_EXTRA_BITS
        flags = np.zeros(1 << bits, np.bool_)
        shift = np.uint64(64 - bits)
        flags[(self._hashes >> shift).view(np.int64)] = True
        return shift, flags

    def _search_starts(self, hashes: Hashes) -> RowIds:
        """For each hash where it begins, or would."""
        if self._is_short(hashes):
            return _bisect(self._hashes, hashes, "left")
        directory = self._get_directory(len(hashes))
        if directory is not None:
            return directory.starts(self._hashes, hashes)
        if not self._window_widths:
            return _bisect(self._hashes, hashes, "left")
        return self._search_windows(_interpolate(self._hashes, hashes), hashes, np.less)

    def _search_ends(self, starts: RowIds, hashes: Hashes) -> RowIds:
        """One past the last row of each hash, of which one is right before `begun`."""
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
        """The first place whose key is not `before` the hash: in a window around the guess, or a wider one, or of all.
        A window in which most were not found is not tried again."""
        keys, found, left = self._hashes, guess, np.arange(len(hashes))
        for width in self._window_widths:
            here = _bisect_windows(keys, guess[left] - width // 2, width, hashes[left], precedes)
            found[left] = here
            last = len(left)
            left = left[~_is_first_position(keys, here, hashes[left], precedes)]
            if precedes is np.less and len(left) * 2 > last:
                self._window_widths = tuple(w for w in self._window_widths if w != width)
            if len(left) < _MIN_INTERPOLATED_PROBES:
                break
        if len(left):
            found[left] = _bisect(keys, hashes[left], "left" if precedes is np.less else "right")
        return found


@dataclass(frozen=True)
class _Directory:
    """The first place of each value of the hash's top bits, and the width of the widest bucket."""

    shift: np.uint64
    bucket_starts: npt.NDArray[Any]
    width: int

    def starts(self, keys: Hashes, hashes: Hashes) -> RowIds:
        return _bisect_windows(
            keys, self.bucket_starts[(hashes >> self.shift).astype(np.int64)], self.width, hashes, np.less
        )

    def ends(self, keys: Hashes, first_ends: RowIds, hashes: Hashes) -> RowIds:
        """One past the last row of each hash, of which one is right before `begun`."""
        return _bisect_windows(keys, first_ends, self.width, hashes, np.less_equal)


def _interpolate(keys: Hashes, hashes: Hashes) -> RowIds:
    """About where each hash lies."""
    last = len(keys) - 1
    guess = ((hashes >> _FRACTION_SHIFT).astype(np.float64) * (len(keys) / 2.0**53)).astype(np.int64)
    for _ in range(_INTERPOLATION_STEPS):
        np.minimum(guess, last, out=guess)
        np.maximum(guess, 0, out=guess)
        # Words wrap around: the difference is right, with its sign, unless it is half of all hashes.
        guess += ((hashes - keys[guess]).view(np.int64) * (len(keys) * _HASH_SCALE)).astype(np.int64)
    return guess


def _bisect_windows(keys: Hashes, first: RowIds, width: int, hashes: Hashes, precedes: np.ufunc) -> RowIds:
    """The first place whose key is not `before` the hash, of a window that begins there: all windows at once.
    One that would run over an end is moved: the column is sorted as a whole, so it still holds."""
    width = min(width, len(keys))
    place = np.minimum(first, len(keys) - width, dtype=np.int64)
    np.maximum(place, 0, out=place)
    while width > 1:
        half = width >> 1
        place += precedes(keys[place + (half - 1)], hashes) * np.int64(half)
        width -= half
    found: RowIds = place + precedes(keys[place], hashes)
    return found


def _is_first_position(keys: Hashes, positions: RowIds, hashes: Hashes, precedes: np.ufunc) -> npt.NDArray[np.bool_]:
    """Whether these are the first places whose keys are not `before` the hashes."""
    last = len(keys) - 1
    is_after = (positions > last) | ~precedes(keys[np.minimum(positions, last)], hashes)
    is_first = (positions == 0) | precedes(keys[np.maximum(positions - 1, 0)], hashes)
    found: npt.NDArray[np.bool_] = is_after & is_first
    return found


def _bisect(keys: Hashes, hashes: Hashes, side: Any) -> RowIds:
    """By bisection of the whole column: in the order of the hashes, since then one step's rows are near the last's."""
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
    """One past the first row of each hash, and which hashes have more rows. Most keys have one."""
    if len(keys) == 0:
        return start.copy(), np.zeros(0, np.int64)
    last = len(keys) - 1
    is_there = (keys[np.minimum(start, last)] == hashes) & (start <= last)
    if not is_there.any():  # of a short run most lookups find nothing
        return start.copy(), np.zeros(0, np.int64)
    stop = start + is_there
    return stop, np.flatnonzero((stop > start) & (stop <= last) & (keys[np.minimum(stop, last)] == hashes))
