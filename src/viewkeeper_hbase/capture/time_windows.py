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

from viewkeeper.store.contract.store import Seen
from viewkeeper_hbase.layout.layout import Layout
from viewkeeper_hbase.push.spool import Pushed
from viewkeeper_hbase.thrift.client import Client

OVERLAP = 5.0
"""Seconds."""

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sight:
    """The cells of a window, by row key (ascending): how many there are, their oldest and newest time."""

    keys: pa.Array
    cells: Times
    oldest: Times
    newest: Times

    def __len__(self) -> int:
        return len(self.keys)

    def digest(self) -> str:
        """The same for the same cells; empty for none."""
        if not len(self):
            return ""
        lengths = np.asarray(pc.binary_length(self.keys))
        joined = b"".join(self.keys.to_pylist()) if len(self) < 64 else _bytes(self.keys)
        parts = (joined, lengths.tobytes(), self.cells.tobytes(), self.oldest.tobytes(), self.newest.tobytes())
        crc = 0
        for part in parts:
            crc = zlib.crc32(part, crc)
        return f"{len(self)}:{crc:08x}"

    def without(self, known: Sight) -> Sight:
        """The rows that have other cells than they had when `known` was seen."""
        if not len(known) or not len(self):
            return self
        place = pc.index_in(self.keys, value_set=known.keys)
        at = np.asarray(pc.fill_null(place, -1)).astype(np.int64)
        same = (at >= 0) & (self.cells == known.cells[at]) & (self.newest == known.newest[at])
        return self.only(~same)

    def only(self, which: npt.NDArray[np.bool_]) -> Sight:
        return Sight(self.keys.filter(pa.array(which)), self.cells[which], self.oldest[which], self.newest[which])


NOTHING = Sight(pa.array([], pa.binary()), *(np.empty(0, np.int64),) * 3)


@dataclass(frozen=True)
class Noted(Seen):
    """What was seen of a table's last seconds before a cut: the time after which to look again, a digest of the cells
    from there up to the cut, and the cells, which are not published: in the process that saw them only."""

    low: int
    digest: str
    sight: Sight | None = field(default=None, compare=False, repr=False)
    push: Pushed | None = None
    """Up to where what HBase pushes of the table was taken."""


@dataclass(frozen=True)
class Look:
    """All cells of one table with times in (after, upto], as one raw scan saw them."""

    after: int
    upto: int
    keys: pa.Array
    row: Times
    """For each cell, its row; ascending."""
    time: Times

    def covers(self, after: int, upto: int) -> bool:
        return self.after <= after and upto <= self.upto

    def sight(self, after: int, upto: int) -> Sight:
        """Those of the cells with times in (after, upto], by row."""
        which = (self.time > after) & (self.time <= upto)
        times, row = self.time[which], self.row[which]
        if not len(row):
            return NOTHING
        starts = np.flatnonzero(np.r_[True, row[1:] != row[:-1]])
        keys = self.keys.take(pa.array(row[starts]))
        counts = np.diff(np.r_[starts, len(row)]).astype(np.int64)
        return Sight(keys, counts, np.minimum.reduceat(times, starts), np.maximum.reduceat(times, starts))

    def noted(self, low: int, cut: int) -> Noted:
        sight = self.sight(low, cut)
        return Noted(low, sight.digest(), sight)


def scan_window(
    client: Client, layout: Layout, after: int, upto: int, *, start: bytes = b"", stop: bytes = b""
) -> Look:
    """Scan a table, or a range of its row keys, for the cells with times in (after, upto]."""
    span = (max(after, -1) + 1, upto + 1)
    found = client.changed(layout.name, span, start=start, stop=stop, families=layout.families)
    return joined(after, upto, [Look(after, upto, cells.keys, cells.row, cells.time) for cells in found])


def joined(after: int, upto: int, looks: Sequence[Look]) -> Look:
    """The looks at one range of row keys after another, as one."""
    if not looks:
        return Look(after, upto, NOTHING.keys, NOTHING.cells, NOTHING.cells)
    before = np.cumsum([0, *(len(one.keys) for one in looks)])
    rows = [one.row + seen for one, seen in zip(looks, before, strict=False)]
    keys = pa.concat_arrays([one.keys for one in looks])
    return Look(after, upto, keys, np.concatenate(rows), np.concatenate([one.time for one in looks]))


def join(first: Sight, second: Sight) -> pa.Array:
    """The row keys of either, each once."""
    if not len(first) or not len(second):
        return second.keys if not len(first) else first.keys
    return pa.concat_arrays([first.keys, second.keys]).unique()


def _bytes(keys: pa.Array) -> Any:
    offsets = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, keys.offset * 4)
    return np.frombuffer(keys.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].tobytes()
