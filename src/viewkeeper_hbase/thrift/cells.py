"""The rows of a gateway's reply, as byte offsets into the reply's frame.

Locating values (`reply_decoder`) and copying them are separate steps: a reader that needs only keys, or three of
sixteen columns, copies nothing else.
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
"""The kind of a cell: a value, or a delete marker for one version, one version of a family, a column, a family."""


@dataclass(frozen=True)
class Cells:
    """The rows of one reply: offsets of row keys, columns and values in the frame."""

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
        """Row keys, binary; null for keys that were not found."""
        found = self.key_stop > 0
        return _slice_values(
            self.frame, self.key_start[found], self.key_stop[found], None if found.all() else _slice_indices(found)
        )

    @cached_property
    def row(self) -> Offsets:
        """For each cell, the index of its row."""
        return np.repeat(np.arange(self.rows), np.diff(self.first))

    @cached_property
    def values(self) -> pa.Array:
        """For each cell, its value."""
        return _slice_values(self.frame, self.value_start, self.value_stop, None)

    @cached_property
    def columns(self) -> tuple[tuple[bytes, ...], npt.NDArray[np.int64]]:
        """The columns `family:qualifier` that occur, and for each cell the index of its column."""
        return _identify_columns(self)

    def cells_of_column(self, column: bytes) -> Offsets:
        """Return the indices of a column's cells, ascending."""
        names, which = self.columns
        return np.flatnonzero(which == names.index(column)) if column in names else np.empty(0, np.int64)

    def newest_cells(self, column: bytes) -> Offsets:
        """Return for each row the index of its first (newest) cell of a column, or -1."""
        cells = self.cells_of_column(column)[::-1]
        newest = np.full(self.rows, -1, np.int64)
        newest[self.row[cells]] = cells  # of several versions, the first one is assigned last and stays
        return newest

    def column(self, column: bytes) -> pa.Array:
        """Return for each row the newest value of a column, or null."""
        return self.values_at(self.newest_cells(column))

    def values_at(self, positions: Offsets) -> pa.Array:
        """Return for each row the value of the cell with this index; null for -1."""
        has = positions >= 0
        cells = positions[has]
        return _slice_values(
            self.frame, self.value_start[cells], self.value_stop[cells], None if has.all() else _slice_indices(has)
        )

    def to_batch(self, columns: dict[str, bytes], *, key: str = "_key", time: str | None = None) -> pa.RecordBatch:
        """Return a record batch of the row key, the named columns and, in a column `time`, each row's newest cell
        time."""
        arrays = {key: self.keys, **{name: self.column(column) for name, column in columns.items()}}
        if time is not None:
            has_cells = np.diff(self.first) > 0
            newest = np.zeros(self.rows, np.int64)
            newest[has_cells] = np.maximum.reduceat(self.time, self.first[:-1][has_cells]) if len(self) else 0
            arrays[time] = pa.array(newest, mask=~has_cells)
        return pa.RecordBatch.from_pydict(arrays)


def no_cells(frame: Frame) -> Cells:
    """Return the cells of a reply without rows."""
    empty = np.empty(0, np.int64)
    return Cells(frame, empty, empty, np.zeros(1, np.int64), empty, empty, empty, empty, np.empty(0, np.uint8))


# -- values at offsets ------------------------------------------------------------------------------------------------


def _slice_values(frame: Frame, start: Offsets, stop: Offsets, places: pa.Array | None) -> pa.Array:
    """Return the byte ranges as a binary array. `start` and `stop` ascend.

    The frame itself, cut at s0 e0 s1 e1 ..., is a binary array of the ranges and the gaps between them: a take of
    every second element copies the ranges out in one call.
    """
    if not len(start):
        return pa.nulls(len(places) if places is not None else 0, pa.binary())
    cuts = np.empty(2 * len(start), np.int32)
    cuts[0::2] = start
    cuts[1::2] = stop
    ranges_and_gaps = pa.Array.from_buffers(pa.binary(), len(cuts) - 1, [None, pa.py_buffer(cuts), pa.py_buffer(frame)])
    return ranges_and_gaps.take(pa.array(np.arange(0, len(cuts), 2)) if places is None else places)


def _slice_indices(has: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the take indices for `_slice_values`: one range for each True of `has`, null for each False."""
    return pa.array(2 * (np.cumsum(has) - 1), mask=~has)


def _identify_columns(cells: Cells) -> tuple[tuple[bytes, ...], Offsets]:
    """Identify columns by the bytes of the cells' heads, eight at a time; the last eight overlap those before."""
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
    column_names = [_column_name(cells, int(i)) for i in example]
    names = tuple(dict.fromkeys(column_names))
    if len(names) < len(column_names):  # a row has several versions of a column
        which = np.array([names.index(name) for name in column_names])[which]
    return names, which.astype(np.int64)


def _column_name(cells: Cells, cell: int) -> bytes:
    head = cells.frame[cells.head_start[cell] : cells.value_start[cell] - 7].tobytes()
    family = struct.unpack_from(">i", head)[0]
    return head[4 : 4 + family] + b":" + head[4 + family + 7 :]
