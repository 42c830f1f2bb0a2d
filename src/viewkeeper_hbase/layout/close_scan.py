"""The rows of changed keys: one by one, or by a scan where they lie close together.

A get costs HBase and its gateway as much as `WORTH` rows of a scan. So where at least one in so many rows is wanted,
the range is scanned and the others are left out. How close the keys lie nobody knows beforehand, so it is tried: keys
are sorted, a scan begins at the first of them, and goes on for as long as its replies have enough that is wanted. Where
they have not, the next keys are read one by one, twice as many each time before it is tried again; a table remembers
that from batch to batch.

    a scan's reply up to row r      settles all keys up to r: a key that it does not have is not there
    the end of a scan               settles all keys of its range

HBase runs a get as a scan of one row: both see the same cells of a row, and each row as it was at one moment.

A row that was **put whole after the last cut** has no older cell in it: its mark is newer, and what is older than the
mark is not part of the row (`layout`). So where many rows of a range changed, cells of times after the cut are asked
for first. HBase opens no file that has none of these, and does not pass by the versions of before. What hides a cell
of such a time is a marker of at least that time, which is in the span too. Rows that have no mark in it (a column was
written, the row deleted, a cell dated back) are read from all their cells then.

Such a scan goes past rows that did not change and tells nothing of them. So it is made where an earlier scan has told
how many there are: at most so many, and the keys that changed since, lie there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper_hbase.layout.layout import Layout, Rows, read_cells
from viewkeeper_hbase.layout.layout_cache import if_there
from viewkeeper_hbase.layout.row_reader import join_rows, read_rows
from viewkeeper_hbase.thrift.client import Client
from viewkeeper_hbase.thrift.request_encoder import TimeRange
from viewkeeper_hbase.thrift.scan import Scan

WORTH = 4
"""Rows of a scan for which one get is given."""

_PAST = 10
"""Rows that a scan may go past for one that changed, and tells nothing of."""

_FEW = 50
"""Keys for which a try may cost more than it brings."""

_FIRST, _MOST = 500, 64_000
"""Keys that are read otherwise before it is tried again: at first, and at most."""


@dataclass
class Tries:
    """How a way to read went: for how many keys it is not tried, and for how many if it fails the next time."""

    left: int = 0
    after: int = _FIRST

    def failed(self) -> None:
        self.left, self.after = self.after, min(2 * self.after, _MOST)

    def went(self) -> None:
        self.after = _FIRST

    def without(self, keys: int) -> None:
        self.left = max(0, self.left - keys)


@dataclass
class Tried:
    """What was learned of a table: how scanning went, and asking for new cells only; and that at most so many rows lie
    in a range of keys, by the scans that went through it."""

    close: Tries = field(default_factory=Tries)
    newer: Tries = field(default_factory=Tries)
    start: bytes = b""
    stop: bytes = b""
    rows: int = 0

    def scanned(self, start: bytes, stop: bytes, rows: int) -> None:
        apart = not self.rows or stop < self.start or self.stop < start
        if apart or (start <= self.start and self.stop <= stop):
            self.start, self.stop, self.rows = start, stop, rows
        elif start < self.start or self.stop < stop:
            self.start, self.stop, self.rows = min(start, self.start), max(stop, self.stop), self.rows + rows

    def changed(self, keys: pa.Array) -> bool:
        """These (ascending) have changed, some may be new: whether few others lie between them."""
        self.rows += len(keys) if self.rows else 0
        within = self.start <= keys[0].as_py() and keys[-1].as_py() <= self.stop
        return bool(self.rows) and within and self.rows <= _PAST * len(keys)


def rows_of(
    client: Client,
    layout: Layout,
    keys: pa.Array,
    columns: Sequence[str],
    span: TimeRange | None,
    tried: Tried,
    after: int | None = None,
) -> Rows:
    """The rows of these keys, each once and in no order, from cells with times in a span, which begins with 0. `after`:
    the cut that they changed after."""
    if len(keys) < _FEW:
        tried.rows += len(keys) if tried.rows else 0
        return read_rows(client, layout, keys, columns, span)
    keys = keys.sort()
    found = if_there(layout, lambda: list(_read(client, layout, keys, columns, span, tried, after)))
    return join_rows(layout, columns, found or [])


def _read(
    client: Client,
    layout: Layout,
    keys: pa.Array,
    columns: Sequence[str],
    span: TimeRange | None,
    tried: Tried,
    after: int | None,
) -> Iterator[Rows]:
    many, put_whole = tried.changed(keys), layout.mark is not None and not layout.table.is_view
    if many and put_whole and span is not None and after is not None:
        if tried.newer.left:
            tried.newer.without(len(keys))
        else:
            left = len(keys)
            settled = []
            for found in _new(client, layout, keys, columns, (after + 1, span[1])):
                settled += [found.keys, pa.array([key for key, _ in found.rejects], pa.binary())]
                yield found
            if settled:
                keys = keys.filter(pc.invert(pc.is_in(keys, value_set=pa.concat_arrays(settled))))
            if 2 * len(keys) > left:
                tried.newer.failed()
            else:
                tried.newer.went()
    yield from _parts(client, layout, keys, columns, span, tried)


def _new(client: Client, layout: Layout, keys: pa.Array, columns: Sequence[str], span: TimeRange) -> Iterator[Rows]:
    """Those of the rows that were put whole within a span, from its cells."""
    stop = keys[-1].as_py() + b"\0"
    wanted = Scan(start=keys[0].as_py(), stop=stop, columns=layout.asked(columns), span=span)
    for cells in client.scan(layout.name, wanted):
        marked = cells.keys.filter(pa.array(cells.newest(layout.mark or b"") >= 0))
        both = marked.filter(pc.is_in(marked, value_set=keys))
        yield only(read_cells(layout, cells, columns), both)


def _parts(
    client: Client, layout: Layout, keys: pa.Array, columns: Sequence[str], span: TimeRange | None, tried: Tried
) -> Iterator[Rows]:
    """The rows of keys (ascending), from all cells of a span."""
    at, close = 0, tried.close
    while at < len(keys):
        if close.left or len(keys) - at < _FEW:
            count = min(max(close.left, _FEW), len(keys) - at)
            close.without(count)
            yield read_rows(client, layout, keys.slice(at, count), columns, span)
            at += count
            continue
        start, stop, seen = keys[at].as_py(), keys[-1].as_py(), 0
        wanted = Scan(start=start, stop=stop + b"\0", columns=layout.asked(columns), span=span)
        with closing(client.scan(layout.name, wanted)) as replies:
            for cells in replies:
                upto = bisect_right(keys, cells.keys[-1].as_py(), lo=at, key=lambda key: key.as_py())
                yield only(read_cells(layout, cells, columns), keys.slice(at, upto - at))
                settled, at, seen = upto - at, upto, seen + cells.rows
                if WORTH * settled < cells.rows:
                    close.failed()
                    break
                close.went()
            else:
                tried.scanned(start, stop, seen)
                return


def only(found: Rows, keys: pa.Array) -> Rows:
    """Those of the rows that have these keys."""
    which = pc.is_in(found.keys, value_set=keys)
    if not pc.all(which, min_count=0).as_py():
        found = Rows(found.rows.filter(which), found.keys.filter(which), found.rejects)
    if found.rejects:
        wanted = set(keys.to_pylist())
        found = Rows(found.rows, found.keys, tuple(reject for reject in found.rejects if reject[0] in wanted))
    return found
