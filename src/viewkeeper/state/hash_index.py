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


_FEW = 512
"""Hashes of which one sort is sooner done than two."""
_STRETCHES = 64
"""Ascending stretches that merge by themselves, if there are no more."""
_COARSE = np.uint64(48)


def ascending(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """The places of the hashes in ascending order."""
    if len(hashes) < _FEW or np.count_nonzero(hashes[1:] < hashes[:-1]) < _STRETCHES:
        return np.argsort(hashes, kind="stable")
    coarse = np.argsort((hashes >> _COARSE).astype(np.uint16), kind="stable")
    return coarse[np.argsort(hashes[coarse], kind="stable")]


Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

_GUESSED_ROWS = 1 << 12
_GUESSED_PROBES = 64
"""Of a shorter column, or for fewer probes, bisecting all of it is sooner done."""
_GUESSES = 2
_NARROW, _WIDE = 64, 2048
_SCALE, _FRACTION = 2.0**-64, np.uint64(11)
_BUCKET_ROWS = 2
_ASKED = 8
"""A directory is made when all lookups so far had one probe for so many rows."""
_FLAGGED_ROWS = 1 << 17
_FLAGGED_PROBES = 1 << 10
"""Up to so many rows, and from so many probes on, flags are asked first."""
_FLAG_BITS = 3
"""Bits of the hash that flags know beyond those that would number the rows."""


class SortedHashes:
    """An ascending column of hashes."""

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        self._asked = 0
        """Probes so far, while there is no directory. A count that two threads make at once may be lost."""
        self._windows: tuple[int, ...] = (_NARROW, _WIDE)
        """What is worth a try. (Threads that change it at once agree in what they find.)"""
        self._counted: tuple[Hashes, Places, Places] | None = None
        """What was found by who asked how much there is, for who asks for it next."""

    def counted(self, hashes: Hashes) -> int:
        """How many rows the ascending hashes have."""
        start, stop = self.ranges(hashes)
        self._counted = (hashes, start, stop)
        return int((stop - start).sum())

    def ranges(self, hashes: Hashes) -> tuple[Places, Places]:
        """For each of the ascending hashes, the range [start, stop) where it is, empty if it is not there."""
        counted, self._counted = self._counted, None
        if counted is not None and np.array_equal(counted[0], hashes):
            return counted[1], counted[2]
        some = self._flagged(hashes)
        if some is None:
            return self._ranges(hashes)
        start, stop = np.zeros((2, len(hashes)), np.int64)
        if len(some):
            start[some], stop[some] = self._ranges(hashes[some])
        return start, stop

    def _ranges(self, hashes: Hashes) -> tuple[Places, Places]:
        keys = self._hashes
        start = self._starts(hashes)
        stop, more = _next_places(keys, hashes, start)
        if len(more):
            stop[more] = self._ends(stop[more], hashes[more])
        return start, stop

    def starts(self, hashes: Hashes) -> Places:
        """For each hash, ascending or not, where it begins; of one that is not there, anywhere."""
        some = self._flagged(hashes)
        if some is None:
            return self._starts(hashes)
        found = np.zeros(len(hashes), np.int64)
        if len(some):
            found[some] = self._starts(hashes[some])
        return found

    def _flagged(self, hashes: Hashes) -> Places | None:
        """The places of hashes that may be there, if they are few; None if it is not known."""
        if not 0 < len(self._hashes) <= _FLAGGED_ROWS or len(hashes) < _FLAGGED_PROBES:
            return None
        shift, flags = self._flags
        some = np.flatnonzero(flags[(hashes >> shift).view(np.int64)])
        return some if 2 * len(some) < len(hashes) else None

    @cached_property
    def _flags(self) -> tuple[np.uint64, npt.NDArray[np.bool_]]:
        """Whether there is a hash with these top bits."""
        bits = len(self._hashes).bit_length() + _FLAG_BITS
        flags = np.zeros(1 << bits, np.bool_)
        shift = np.uint64(64 - bits)
        flags[(self._hashes >> shift).view(np.int64)] = True
        return shift, flags

    def _starts(self, hashes: Hashes) -> Places:
        """For each hash where it begins, or would."""
        if self._is_short(hashes):
            return _bisected(self._hashes, hashes, "left")
        directory = self._known(len(hashes))
        if directory is not None:
            return directory.starts(self._hashes, hashes)
        if not self._windows:
            return _bisected(self._hashes, hashes, "left")
        return self._near(_guessed(self._hashes, hashes), hashes, np.less)

    def _ends(self, begun: Places, hashes: Hashes) -> Places:
        """One past the last row of each hash, of which one is right before `begun`."""
        if self._is_short(hashes):
            return _bisected(self._hashes, hashes, "right")
        directory = self._known(0)
        if directory is not None:
            return directory.ends(self._hashes, begun, hashes)
        return self._near(begun + _NARROW // 2, hashes, np.less_equal)

    def _is_short(self, hashes: Hashes) -> bool:
        return len(self._hashes) < _GUESSED_ROWS or len(hashes) < _GUESSED_PROBES

    def _known(self, probes: int) -> _Directory | None:
        if "_directory" not in self.__dict__:
            self._asked += probes
            if self._asked * _ASKED <= len(self._hashes):
                return None
        return self._directory

    @cached_property
    def _directory(self) -> _Directory:
        bits = max(1, (len(self._hashes) // _BUCKET_ROWS).bit_length())
        counts = np.bincount((self._hashes >> np.uint64(64 - bits)).astype(np.int64), minlength=1 << bits)
        first = np.concatenate([[0], np.cumsum(counts)])
        small = np.int32 if first[-1] < 1 << 31 else np.int64
        return _Directory(np.uint64(64 - bits), first.astype(small), int(np.diff(first).max()) + 1)

    def _near(self, guess: Places, hashes: Hashes, before: np.ufunc) -> Places:
        """The first place whose key is not `before` the hash: in a window around the guess, or a wider one, or of all.
        A window in which most were not found is not tried again."""
        keys, found, left = self._hashes, guess, np.arange(len(hashes))
        for width in self._windows:
            here = _within(keys, guess[left] - width // 2, width, hashes[left], before)
            found[left] = here
            last = len(left)
            left = left[~_is_found(keys, here, hashes[left], before)]
            if before is np.less and len(left) * 2 > last:
                self._windows = tuple(w for w in self._windows if w != width)
            if len(left) < _GUESSED_PROBES:
                break
        if len(left):
            found[left] = _bisected(keys, hashes[left], "left" if before is np.less else "right")
        return found


@dataclass(frozen=True)
class _Directory:
    """The first place of each value of the hash's top bits, and the width of the widest bucket."""

    shift: np.uint64
    first: npt.NDArray[Any]
    width: int

    def starts(self, keys: Hashes, hashes: Hashes) -> Places:
        return _within(keys, self.first[(hashes >> self.shift).astype(np.int64)], self.width, hashes, np.less)

    def ends(self, keys: Hashes, begun: Places, hashes: Hashes) -> Places:
        """One past the last row of each hash, of which one is right before `begun`."""
        return _within(keys, begun, self.width, hashes, np.less_equal)


def _guessed(keys: Hashes, hashes: Hashes) -> Places:
    """About where each hash lies."""
    last = len(keys) - 1
    guess = ((hashes >> _FRACTION).astype(np.float64) * (len(keys) / 2.0**53)).astype(np.int64)
    for _ in range(_GUESSES):
        np.minimum(guess, last, out=guess)
        np.maximum(guess, 0, out=guess)
        # Words wrap around: the difference is right, with its sign, unless it is half of all hashes.
        guess += ((hashes - keys[guess]).view(np.int64) * (len(keys) * _SCALE)).astype(np.int64)
    return guess


def _within(keys: Hashes, first: Places, width: int, hashes: Hashes, before: np.ufunc) -> Places:
    """The first place whose key is not `before` the hash, of a window that begins there: all windows at once.
    One that would run over an end is moved: the column is sorted as a whole, so it still holds."""
    width = min(width, len(keys))
    place = np.minimum(first, len(keys) - width, dtype=np.int64)
    np.maximum(place, 0, out=place)
    while width > 1:
        half = width >> 1
        place += before(keys[place + (half - 1)], hashes) * np.int64(half)
        width -= half
    found: Places = place + before(keys[place], hashes)
    return found


def _is_found(keys: Hashes, places: Places, hashes: Hashes, before: np.ufunc) -> npt.NDArray[np.bool_]:
    """Whether these are the first places whose keys are not `before` the hashes."""
    last = len(keys) - 1
    is_after = (places > last) | ~before(keys[np.minimum(places, last)], hashes)
    is_first = (places == 0) | before(keys[np.maximum(places - 1, 0)], hashes)
    found: npt.NDArray[np.bool_] = is_after & is_first
    return found


def _bisected(keys: Hashes, hashes: Hashes, side: Any) -> Places:
    """By bisection of the whole column: in the order of the hashes, since then one step's rows are near the last's."""
    if len(hashes) < _GUESSED_PROBES or len(keys) < _GUESSED_ROWS or bool((hashes[1:] >= hashes[:-1]).all()):
        return np.searchsorted(keys, hashes, side)
    order = ascending(hashes)
    found = np.empty(len(hashes), np.int64)
    found[order] = np.searchsorted(keys, hashes[order], side)
    return found


def _next_places(keys: Hashes, hashes: Hashes, start: Places) -> tuple[Places, Places]:
    """One past the first row of each hash, and which hashes have more rows. Most keys have one."""
    if len(keys) == 0:
        return start.copy(), np.zeros(0, np.int64)
    last = len(keys) - 1
    is_there = (keys[np.minimum(start, last)] == hashes) & (start <= last)
    if not is_there.any():  # of a short run most lookups find nothing
        return start.copy(), np.zeros(0, np.int64)
    stop = start + is_there
    return stop, np.flatnonzero((stop > start) & (stop <= last) & (keys[np.minimum(stop, last)] == hashes))
