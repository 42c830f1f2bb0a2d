"""Finding hashes in a sorted column of them: bisection, with a directory where the column is long and asked often.

`np.searchsorted` misses the cache at every step: finding 3,400 hashes in 6 M takes 0.7 µs each. A directory says where
the hashes with the same top bits begin; what is left is a short, branch-free bisection of all probes at once.

    fine      a row or two in a bucket: a tenth of the time; takes up to 4 bytes a row and reads the whole column, so it
              is made for one lookup of many probes
    coarse    tens of rows in a bucket: a third of the time; takes a thirtieth of the bytes and is found by bisection
              itself, so it is made as soon as all lookups so far had as many probes as it has buckets

The column never changes, so a directory stays with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

_BUCKET_ROWS = 2
_COARSE_ROWS = 64
_DIRECTORY_ROWS = 1 << 13
_DIRECTORY_PROBES = 256
_MANY_PROBES = 16
"""From one probe for so many rows on, a lookup makes a fine directory."""
_LONG = 1 << 18
"""A column of more rows than these is as one of these: so many probes are many."""


class SortedHashes:
    """An ascending column of hashes, with the directories that its lookups were worth."""

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        self._asked = 0
        """Probes so far, while there is no directory. A count that two threads make at once may be lost."""
        self._counted: tuple[Hashes, Places, Places] | None = None
        """What was found by who asked how much there is, for who asks for it next."""

    def counted(self, hashes: Hashes) -> int:
        """How many rows the ascending hashes have."""
        start, stop = self.ranges(hashes)
        self._counted = (hashes, start, stop)
        return int((stop - start).sum())

    def ranges(self, hashes: Hashes) -> tuple[Places, Places]:
        """For each of the ascending hashes, the range [start, stop) where it is."""
        counted, self._counted = self._counted, None
        if counted is not None and np.array_equal(counted[0], hashes):
            return counted[1], counted[2]
        keys, directory = self._hashes, self._directory(len(hashes))
        if directory is None:
            start = np.searchsorted(keys, hashes, "left")
            stop, more = _next_places(keys, hashes, start)
            if len(more):
                stop[more] = np.searchsorted(keys, hashes[more], "right")
        else:
            start = directory.starts(keys, hashes)
            stop, more = _next_places(keys, hashes, start)
            if len(more):
                stop[more] = directory.ends(keys, stop[more], hashes[more])
        return start, stop

    def starts(self, hashes: Hashes) -> Places:
        """For each hash, ascending or not, where it begins, or would."""
        directory = self._directory(len(hashes))
        return (
            np.searchsorted(self._hashes, hashes, "left")
            if directory is None
            else directory.starts(self._hashes, hashes)
        )

    def _directory(self, probes: int) -> _Directory | None:
        rows = len(self._hashes)
        if rows < _DIRECTORY_ROWS or probes < _DIRECTORY_PROBES:
            return None
        if "_fine" in self.__dict__ or probes * _MANY_PROBES > min(rows, _LONG):
            return self._fine
        self._asked += probes
        return self._coarse if self._asked * _COARSE_ROWS > rows else None

    @cached_property
    def _fine(self) -> _Directory:
        bits = max(1, (len(self._hashes) // _BUCKET_ROWS).bit_length())
        counts = np.bincount((self._hashes >> np.uint64(64 - bits)).astype(np.int64), minlength=1 << bits)
        return _Directory.of(bits, np.concatenate([[0], np.cumsum(counts)]))

    @cached_property
    def _coarse(self) -> _Directory:
        bits = max(1, (len(self._hashes) // _COARSE_ROWS).bit_length())
        begins = np.arange(1 << bits, dtype=np.uint64) << np.uint64(64 - bits)
        return _Directory.of(bits, np.append(np.searchsorted(self._hashes, begins, "left"), len(self._hashes)))


@dataclass(frozen=True)
class _Directory:
    """The first place of each value of the hash's top bits, and the width of the widest bucket."""

    shift: np.uint64
    first: npt.NDArray[Any]
    width: int

    @staticmethod
    def of(bits: int, first: npt.NDArray[Any]) -> _Directory:
        small = np.int32 if first[-1] < 1 << 31 else np.int64
        return _Directory(np.uint64(64 - bits), first.astype(small), int(np.diff(first).max()) + 1)

    def starts(self, keys: Hashes, hashes: Hashes) -> Places:
        return self._bisect(keys, self.first[(hashes >> self.shift).astype(np.int64)], hashes, np.less)

    def ends(self, keys: Hashes, begun: Places, hashes: Hashes) -> Places:
        """One past the last row of each hash, of which one is at `begun`."""
        return self._bisect(keys, begun, hashes, np.less_equal)

    def _bisect(self, keys: Hashes, place: Places, hashes: Hashes, before: np.ufunc) -> Places:
        """The first place at or after `place` whose key is not `before` the hash: windows of one width for all."""
        width = min(self.width, len(keys))
        # A window that would run over the end starts earlier: the column is sorted as a whole, so it still holds.
        place = np.minimum(place, len(keys) - width).astype(np.int64)
        while width > 1:
            half = width >> 1
            place += before(keys[place + (half - 1)], hashes) * np.int64(half)
            width -= half
        found: Places = place + before(keys[place], hashes)
        return found


def _next_places(keys: Hashes, hashes: Hashes, start: Places) -> tuple[Places, Places]:
    """One past the first row of each hash, and which hashes have more rows. Most keys have one."""
    if len(keys) == 0:
        return start.copy(), np.zeros(0, np.int64)
    last = len(keys) - 1
    stop = start + ((keys[np.minimum(start, last)] == hashes) & (start <= last))
    return stop, np.flatnonzero((stop > start) & (stop <= last) & (keys[np.minimum(stop, last)] == hashes))
