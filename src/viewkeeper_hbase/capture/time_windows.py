"""What was written in a time window: raw scans, which show old versions and delete markers too.

A cell's time is taken before the cell can be seen, so a cell may turn up in a window that was read already. Therefore:

    a window overlaps the one before      what becomes visible late, but within the overlap, is found by the next one
    known cells are no change             `Noted` is which cells of the overlap were there last time
    others can tell, too                  a digest of the overlap's cells is published with the batch: if it differs
                                          now, something came late, and waits

It is the caller's: a batch's is what it publishes, and a CREATE that reads the same seconds a moment later, when more
may be visible, does not touch it.

What comes later than the overlap, or with an older time of its writer's own choosing, is found by an audit only.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.store.contract.store import CaptureMark
from viewkeeper_hbase.layout.layout import Layout
from viewkeeper_hbase.push.spool import PushMark
from viewkeeper_hbase.thrift.client import HBaseClient

OVERLAP = 5.0
"""Seconds."""

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class WindowCells:
    """The cells of a window, by row key (ascending): how many there are, their oldest and newest time."""

    keys: pa.Array
    counts: Times
    oldest: Times
    newest: Times

    def __len__(self) -> int:
        return len(self.keys)

    def digest(self) -> str:
        """The same for the same cells; empty for none."""
        if not len(self):
            return ""
        lengths = np.asarray(pc.binary_length(self.keys))
        joined = b"".join(self.keys.to_pylist()) if len(self) < 64 else _key_bytes(self.keys)
        parts = (joined, lengths.tobytes(), self.counts.tobytes(), self.oldest.tobytes(), self.newest.tobytes())
        crc = 0
        for part in parts:
            crc = zlib.crc32(part, crc)
        return f"{len(self)}:{crc:08x}"

    def without_seen(self, previous: WindowCells) -> WindowCells:
        """The rows that have other cells than they had when `known` was seen."""
        if not len(previous) or not len(self):
            return self
        place = pc.index_in(self.keys, value_set=previous.keys)
        at = np.asarray(pc.fill_null(place, -1)).astype(np.int64)
        same = (at >= 0) & (self.counts == previous.counts[at]) & (self.newest == previous.newest[at])
        return self.filter(~same)

    def filter(self, which: npt.NDArray[np.bool_]) -> WindowCells:
        return WindowCells(
            self.keys.filter(pa.array(which)), self.counts[which], self.oldest[which], self.newest[which]
        )


NO_CELLS = WindowCells(pa.array([], pa.binary()), *(np.empty(0, np.int64),) * 3)


@dataclass(frozen=True)
class HBaseCaptureMark(CaptureMark):
    """What was seen of a table's last seconds before a cut: the time after which to look again, a digest of the cells
    from there up to the cut, and the cells, which are not published: in the process that saw them only."""

    low: int
    digest: str
    cells: WindowCells | None = field(default=None, compare=False, repr=False)
    push: PushMark | None = None
    """Up to where what HBase pushes of the table was taken."""


@dataclass(frozen=True)
class WindowScan:
    """All cells of one table with times in (after, upto], as one raw scan saw them."""

    after: int
    up_to: int
    keys: pa.Array
    row: Times
    """For each cell, its row; ascending."""
    time: Times

    def covers(self, after: int, up_to: int) -> bool:
        return self.after <= after and up_to <= self.up_to

    def cells_between(self, after: int, up_to: int) -> WindowCells:
        """Those of the cells with times in (after, upto], by row."""
        which = (self.time > after) & (self.time <= up_to)
        times, row = self.time[which], self.row[which]
        if not len(row):
            return NO_CELLS
        starts = np.flatnonzero(np.r_[True, row[1:] != row[:-1]])
        keys = self.keys.take(pa.array(row[starts]))
        counts = np.diff(np.r_[starts, len(row)]).astype(np.int64)
        return WindowCells(keys, counts, np.minimum.reduceat(times, starts), np.maximum.reduceat(times, starts))

    def mark_at(self, low: int, cut: int) -> HBaseCaptureMark:
        sight = self.cells_between(low, cut)
        return HBaseCaptureMark(low, sight.digest(), sight)


def scan_window(
    client: HBaseClient, layout: Layout, after: int, up_to: int, *, start: bytes = b"", stop: bytes = b""
) -> WindowScan:
    """Scan a table, or a range of its row keys, for the cells with times in (after, upto]."""
    span = (max(after, -1) + 1, up_to + 1)
    found = client.scan_changed(layout.name, span, start=start, stop=stop, families=layout.families)
    return concat_scans(after, up_to, [WindowScan(after, up_to, cells.keys, cells.row, cells.time) for cells in found])


def concat_scans(after: int, up_to: int, scans: Sequence[WindowScan]) -> WindowScan:
    """The looks at one range of row keys after another, as one."""
    if not scans:
        return WindowScan(after, up_to, NO_CELLS.keys, NO_CELLS.counts, NO_CELLS.counts)
    before = np.cumsum([0, *(len(one.keys) for one in scans)])
    rows = [one.row + seen for one, seen in zip(scans, before, strict=False)]
    keys = pa.concat_arrays([one.keys for one in scans])
    return WindowScan(after, up_to, keys, np.concatenate(rows), np.concatenate([one.time for one in scans]))


def union_keys(first: WindowCells, second: WindowCells) -> pa.Array:
    """The row keys of either, each once."""
    if not len(first) or not len(second):
        return second.keys if not len(first) else first.keys
    return pa.concat_arrays([first.keys, second.keys]).unique()


def _key_bytes(keys: pa.Array) -> Any:
    offsets = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, keys.offset * 4)
    return np.frombuffer(keys.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].tobytes()
