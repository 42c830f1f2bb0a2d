"""Time windows: raw scans for the cells written between two times, with old versions and delete markers.

HBase assigns a cell's time before the cell becomes visible, so a cell may turn up in a window that was already
scanned. Therefore:

    overlap          a window overlaps the previous one: it finds cells that became visible late, within the overlap
    known cells      `HBaseCaptureMark.cells` are the cells seen in the overlap last time; they are no changes
    digest           a digest of the overlap's cells is published with the batch, so that other processes can check:
                     a different digest means that a cell became visible late and is pending

The caller keeps the mark: a batch publishes its own. A CREATE that scans the same seconds a moment later, when
more cells may be visible, does not change the batch's mark.

Cells that become visible after the overlap, or that their writer gave an older time, are found only by an audit.
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
"""Default overlap of two windows, in seconds."""

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class WindowCells:
    """The cells of a window by row key, ascending: their number, and their oldest and newest times."""

    keys: pa.Array
    counts: Times
    oldest: Times
    newest: Times

    def __len__(self) -> int:
        return len(self.keys)

    def digest(self) -> str:
        """Return a checksum of the cells; empty if there are none."""
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
        """Return the rows whose cells differ from those in `previous`."""
        if not len(previous) or not len(self):
            return self
        indices = pc.index_in(self.keys, value_set=previous.keys)
        positions = np.asarray(pc.fill_null(indices, -1)).astype(np.int64)
        same = (
            (positions >= 0) & (self.counts == previous.counts[positions]) & (self.newest == previous.newest[positions])
        )
        return self.filter(~same)

    def filter(self, which: npt.NDArray[np.bool_]) -> WindowCells:
        return WindowCells(
            self.keys.filter(pa.array(which)), self.counts[which], self.oldest[which], self.newest[which]
        )


NO_CELLS = WindowCells(pa.array([], pa.binary()), *(np.empty(0, np.int64),) * 3)


@dataclass(frozen=True)
class HBaseCaptureMark(CaptureMark):
    """The capture mark of a table at a cut: `low` is the time after which to scan again, `digest` that of the cells
    from `low` to the cut. `cells` are these cells; they are not published and exist only in the process that
    scanned them."""

    low: int
    digest: str
    cells: WindowCells | None = field(default=None, compare=False, repr=False)
    push: PushMark | None = None
    """How far the rows that HBase pushed of the table were read."""


@dataclass(frozen=True)
class WindowScan:
    """All cells of one table with times in (after, up_to], from one raw scan."""

    after: int
    up_to: int
    keys: pa.Array
    row: Times
    """For each cell, the index of its row in `keys`; ascending."""
    time: Times

    def covers(self, after: int, up_to: int) -> bool:
        return self.after <= after and up_to <= self.up_to

    def cells_between(self, after: int, up_to: int) -> WindowCells:
        """Return the cells with times in (after, up_to], by row."""
        which = (self.time > after) & (self.time <= up_to)
        times, row = self.time[which], self.row[which]
        if not len(row):
            return NO_CELLS
        starts = np.flatnonzero(np.r_[True, row[1:] != row[:-1]])
        keys = self.keys.take(pa.array(row[starts]))
        counts = np.diff(np.r_[starts, len(row)]).astype(np.int64)
        return WindowCells(keys, counts, np.minimum.reduceat(times, starts), np.maximum.reduceat(times, starts))

    def mark_at(self, low: int, cut: int) -> HBaseCaptureMark:
        cells = self.cells_between(low, cut)
        return HBaseCaptureMark(low, cells.digest(), cells)


def scan_window(
    client: HBaseClient, layout: Layout, after: int, up_to: int, *, start: bytes = b"", stop: bytes = b""
) -> WindowScan:
    """Scan a table, or a range of its row keys, for the cells with times in (after, up_to]."""
    span = (max(after, -1) + 1, up_to + 1)
    replies = client.scan_changed(layout.name, span, start=start, stop=stop, families=layout.families)
    return concat_scans(
        after, up_to, [WindowScan(after, up_to, cells.keys, cells.row, cells.time) for cells in replies]
    )


def concat_scans(after: int, up_to: int, scans: Sequence[WindowScan]) -> WindowScan:
    """Concatenate scans of consecutive row key ranges."""
    if not scans:
        return WindowScan(after, up_to, NO_CELLS.keys, NO_CELLS.counts, NO_CELLS.counts)
    offsets = np.cumsum([0, *(len(scan.keys) for scan in scans)])
    rows = [scan.row + offset for scan, offset in zip(scans, offsets, strict=False)]
    keys = pa.concat_arrays([scan.keys for scan in scans])
    return WindowScan(after, up_to, keys, np.concatenate(rows), np.concatenate([scan.time for scan in scans]))


def union_keys(first: WindowCells, second: WindowCells) -> pa.Array:
    """Return the distinct row keys of both."""
    if not len(first) or not len(second):
        return second.keys if not len(first) else first.keys
    return pa.concat_arrays([first.keys, second.keys]).unique()


def _key_bytes(keys: pa.Array) -> Any:
    offsets = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, keys.offset * 4)
    return np.frombuffer(keys.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].tobytes()
