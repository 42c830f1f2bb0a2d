"""The rows of a gateway's reply, as places in its bytes.

Finding out where things are (`frames`) and taking them out are two jobs: a reader that wants keys only, or three of
sixteen columns, copies no others.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from viewkeeper_hbase.thrift.connection import Frame

Offsets = npt.NDArray[np.int64]

PUT, DELETE, DELETE_FAMILY_VERSION, DELETE_COLUMN, DELETE_FAMILY = 4, 8, 10, 12, 14
"""What a cell is: a value, or a marker that hides one version, a family's version, a column, a family."""


@dataclass(frozen=True)
class Cells:
    """The rows of one reply: where in the frame each row key, column and value lies."""

    frame: Frame
    key_start: Offsets
    """For each row. A key that was not found has start = stop = 0 and no cells."""
    key_stop: Offsets
    first: Offsets
    """Row i has the cells first[i] up to first[i + 1]."""
    head_start: Offsets
    """For each cell: `s family | 0b 0002 | s qualifier` begins here, and ends 3 bytes before the value's length."""
    value_start: Offsets
    value_stop: Offsets
    time: npt.NDArray[np.int64]
    kind: npt.NDArray[np.uint8]

    @property
    def rows(self) -> int:
        return len(self.key_start)

    def __len__(self) -> int:
        return len(self.value_start)

    @cached_property
    def keys(self) -> pa.Array:
        """Row keys, binary; null where nothing was found."""
        found = self.key_stop > 0
        return _slice_values(
            self.frame, self.key_start[found], self.key_stop[found], None if found.all() else _slice_indices(found)
        )

    @cached_property
    def row(self) -> Offsets:
        """For each cell, its row."""
        return np.repeat(np.arange(self.rows), np.diff(self.first))

    @cached_property
    def values(self) -> pa.Array:
        """For each cell, its value."""
        return _slice_values(self.frame, self.value_start, self.value_stop, None)

    @cached_property
    def columns(self) -> tuple[tuple[bytes, ...], npt.NDArray[np.int64]]:
        """The columns `family:qualifier` that occur, and for each cell which of them it is of."""
        return _identify_columns(self)

    def cells_of_column(self, column: bytes) -> Offsets:
        """The cells of a column, in order."""
        names, which = self.columns
        return np.flatnonzero(which == names.index(column)) if column in names else np.empty(0, np.int64)

    def newest_cells(self, column: bytes) -> Offsets:
        """For each row, its first (newest) cell of a column, or -1."""
        cells = self.cells_of_column(column)[::-1]
        place = np.full(self.rows, -1, np.int64)
        place[self.row[cells]] = cells  # of several versions the first one is written last, and stays
        return place

    def column(self, column: bytes) -> pa.Array:
        """For each row, the newest value of a column; null where it has none."""
        return self.values_at(self.newest_cells(column))

    def values_at(self, positions: Offsets) -> pa.Array:
        """For each row the value of its cell at that place; null where it is -1."""
        has = positions >= 0
        cells = positions[has]
        return _slice_values(
            self.frame, self.value_start[cells], self.value_stop[cells], None if has.all() else _slice_indices(has)
        )

    def to_batch(self, columns: dict[str, bytes], *, key: str = "_key", time: str | None = None) -> pa.RecordBatch:
        """A record batch: the row key, the named columns, and if asked for the newest cell's time of each row."""
        arrays = {key: self.keys, **{name: self.column(column) for name, column in columns.items()}}
        if time is not None:
            some = np.diff(self.first) > 0
            newest = np.zeros(self.rows, np.int64)
            newest[some] = np.maximum.reduceat(self.time, self.first[:-1][some]) if len(self) else 0
            arrays[time] = pa.array(newest, mask=~some)
        return pa.RecordBatch.from_pydict(arrays)


def no_cells(frame: Frame) -> Cells:
    """Those of a reply without rows."""
    none = np.empty(0, np.int64)
    return Cells(frame, none, none, np.zeros(1, np.int64), none, none, none, none, np.empty(0, np.uint8))


# -- what is at the places --------------------------------------------------------------------------------------------


def _slice_values(frame: Frame, start: Offsets, stop: Offsets, places: pa.Array | None) -> pa.Array:
    """The byte ranges as a binary array. `start` and `stop` ascend.

    The frame itself, cut at s0 e0 s1 e1 ..., is a binary array of ranges and the gaps between them: taking every second
    element copies the ranges out in one go.
    """
    if not len(start):
        return pa.nulls(len(places) if places is not None else 0, pa.binary())
    cuts = np.empty(2 * len(start), np.int32)
    cuts[0::2] = start
    cuts[1::2] = stop
    whole = pa.Array.from_buffers(pa.binary(), len(cuts) - 1, [None, pa.py_buffer(cuts), pa.py_buffer(frame)])
    return whole.take(pa.array(np.arange(0, len(cuts), 2)) if places is None else places)


def _slice_indices(has: npt.NDArray[np.bool_]) -> pa.Array:
    """For `_slices`: which range each of `has` is, null where it is False."""
    return pa.array(2 * (np.cumsum(has) - 1), mask=~has)


def _identify_columns(cells: Cells) -> tuple[tuple[bytes, ...], Offsets]:
    """Tell columns apart by the bytes of their heads, eight at a time, the last eight overlapping those before."""
    if not len(cells):
        return (), np.empty(0, np.int64)
    length = cells.value_start - 7 - cells.head_start
    long = np.ndarray((len(cells.frame) - 7,), "<u8", buffer=cells.frame, strides=(1,))
    offsets = range(0, int(length.max()), 8)
    words = [length.astype(np.uint64), *(long[cells.head_start + np.minimum(offset, length - 8)] for offset in offsets)]

    width = int(cells.first[1] - cells.first[0])
    if width * cells.rows == len(cells) and all(bool((w.reshape(-1, width) == w[:width]).all()) for w in words):
        # Every row has the columns of the first one.
        which, example = np.tile(np.arange(width), cells.rows), np.arange(width)
    else:
        digest = words[0].copy()
        for word in words[1:]:
            digest *= np.uint64(0x9E3779B97F4A7C15)
            digest ^= word
            digest ^= digest >> np.uint64(29)
        _, example, which = np.unique(digest, return_index=True, return_inverse=True)
        if not all(bool((w == w[example][which]).all()) for w in words):
            _, example, which = np.unique(np.stack(words, axis=1), axis=0, return_index=True, return_inverse=True)
    named = [_column_name(cells, int(i)) for i in example]
    names = tuple(dict.fromkeys(named))
    if len(names) < len(named):  # a row has several versions of a column
        which = np.array([names.index(name) for name in named])[which]
    return names, which.astype(np.int64)


def _column_name(cells: Cells, cell: int) -> bytes:
    head = cells.frame[cells.head_start[cell] : cells.value_start[cell] - 7].tobytes()
    family = struct.unpack_from(">i", head)[0]
    return head[4 : 4 + family] + b":" + head[4 + family + 7 :]
