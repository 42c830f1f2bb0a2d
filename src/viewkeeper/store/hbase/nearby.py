"""The rows of changed keys: one by one, or by a scan where they lie close together.

A get costs HBase and its gateway as much as `WORTH` rows of a scan. So where at least one in so many rows is wanted,
the range is scanned and the others are left out. How close the keys lie nobody knows beforehand, so it is tried: keys
are sorted, a scan begins at the first of them, and goes on for as long as its replies have enough that is wanted. Where
they have not, the next keys are read one by one, twice as many each time before it is tried again; a table remembers
that from batch to batch.

    a scan's reply up to row r      settles all keys up to r: a key that it does not have is not there
    the end of a scan               settles all keys of its range

HBase runs a get as a scan of one row: both see the same cells of a row, and each row as it was at one moment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.store.hbase.batches import TimeRange
from viewkeeper.store.hbase.client import Client
from viewkeeper.store.hbase.layout import Layout, Rows, read_cells
from viewkeeper.store.hbase.layouts import if_there
from viewkeeper.store.hbase.reading import join_rows, read_rows
from viewkeeper.store.hbase.scanning import Scan

WORTH = 4
"""Rows of a scan for which one get is given."""

_FEW = 50
"""Keys for which a try may cost more than it brings."""

_FIRST, _MOST = 500, 64_000
"""Keys that are read one by one before it is tried again: at first, and at most."""


@dataclass
class Tried:
    """How trying went with a table: how many keys are read one by one before the next try, and after it if it fails."""

    left: int = 0
    after: int = _FIRST

    def failed(self) -> None:
        self.left, self.after = self.after, min(2 * self.after, _MOST)


def rows_of(
    client: Client, layout: Layout, keys: pa.Array, columns: Sequence[str], span: TimeRange | None, tried: Tried
) -> Rows:
    """The rows of these keys, each once and in no order, from cells with times in a span."""
    if len(keys) < _FEW or tried.left >= len(keys):
        tried.left = max(0, tried.left - len(keys))
        return read_rows(client, layout, keys, columns, span)
    parts = if_there(layout, lambda: list(_parts(client, layout, keys.sort(), columns, span, tried)))
    return join_rows(layout, columns, parts or [])


def _parts(
    client: Client, layout: Layout, keys: pa.Array, columns: Sequence[str], span: TimeRange | None, tried: Tried
) -> Iterator[Rows]:
    at = 0
    while at < len(keys):
        if tried.left or len(keys) - at < _FEW:
            count = max(tried.left, _FEW)
            tried.left = max(0, tried.left - len(keys) + at)
            yield read_rows(client, layout, keys.slice(at, count), columns, span)
            at += count
            continue
        wanted = Scan(start=keys[at].as_py(), stop=keys[-1].as_py() + b"\0", columns=layout.asked(columns), span=span)
        with closing(client.scan(layout.name, wanted)) as replies:
            for cells in replies:
                upto = bisect_right(keys, cells.keys[-1].as_py(), lo=at, key=lambda key: key.as_py())
                yield only(read_cells(layout, cells, columns), keys.slice(at, upto - at))
                settled, at = upto - at, upto
                if WORTH * settled < cells.rows:
                    tried.failed()
                    break
                tried.after = _FIRST
            else:
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
