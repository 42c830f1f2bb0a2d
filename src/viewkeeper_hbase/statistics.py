"""How many rows a table has, and keys that cut it into similar parts. HBase keeps no counts, so keys are scanned."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from viewkeeper.model.encoding.keys import bounded
from viewkeeper.model.schema import Table
from viewkeeper_hbase.cached_state import Known
from viewkeeper_hbase.layout.layout import Layout
from viewkeeper_hbase.layout.layout_cache import Layouts
from viewkeeper_hbase.thrift.client import Client
from viewkeeper_hbase.thrift.errors import NoSuchTable
from viewkeeper_hbase.thrift.request_encoder import TimeRange
from viewkeeper_hbase.thrift.scan import Scan

_COUNTED = 20.0
"""Seconds for which a large table's count is believed."""

_PATIENCE = 2.0
"""Seconds for counting; what is not counted by then is estimated by the number of regions."""

_FOR_KEYS = b"FirstKeyOnlyFilter() AND KeyOnlyFilter()"
_SAMPLES = 256


@dataclass(frozen=True)
class Size:
    """A table's rows, and keys that lie evenly among them."""

    rows: int
    sample: tuple[bytes, ...]


class Sizes:
    """The sizes of a database's tables. A large one is measured once in a while only."""

    def __init__(self, client: Client, layouts: Layouts, known: Known) -> None:
        self._client, self._layouts, self._known = client, layouts, known
        self._found: dict[int, tuple[float, Size]] = {}

    def of(self, table: Table) -> Size:
        found = self._found.get(table.id)
        if found is not None and time.monotonic() - found[0] < _COUNTED and found[1].rows > 10_000:
            return found[1]
        shown = self._known.shown() if table.is_view else None
        if shown is not None and not shown.number:
            return Size(0, ())
        size = measure(self._client, self._layouts.of(table), None if shown is None else shown.span)
        self._found[table.id] = (time.monotonic(), size)
        return size

    def forget(self, table: Table) -> None:
        """It was written."""
        self._found.pop(table.id, None)


def measure(client: Client, layout: Layout, span: TimeRange | None) -> Size:
    """Count a table's rows. Exact for one that is scanned within the patience."""
    start, stop = bounded(layout.table, None, None)
    wanted = Scan(
        start=start or b"", stop=stop or b"", columns=layout.families, span=span, filter=_FOR_KEYS, cache_blocks=False
    )
    keys: list[pa.Array] = []
    rows, until, complete = 0, time.monotonic() + _PATIENCE, True
    try:
        for cells in client.scan(layout.name, wanted):
            keys.append(cells.keys)
            rows += cells.rows
            if time.monotonic() > until:
                complete = False
                break
        if not rows:
            return Size(0, ())
        last = keys[-1][-1].as_py()
        starts = [] if complete else [r.start for r in client.tables.regions(layout.name) if r.start > last]
    except NoSuchTable:
        if not layout.owned:
            raise
        return Size(0, ())
    sample = _sample(pa.chunked_array(keys), rows)
    if not starts:
        return Size(rows, sample)
    done = len(client.tables.regions(layout.name)) - len(starts)
    return Size(rows * (done + len(starts)) // max(done, 1), (*sample, *starts))


def split_points(size: Size, parts: int) -> list[bytes]:
    """Up to `parts - 1` keys of the sample."""
    if parts < 2 or len(size.sample) < 2:
        return []
    places = np.linspace(0, len(size.sample), min(parts, len(size.sample)) + 1)[1:-1].astype(int)
    return sorted({size.sample[at] for at in places})


def _sample(keys: pa.ChunkedArray, rows: int) -> tuple[bytes, ...]:
    places = np.unique(np.linspace(0, rows - 1, min(rows, _SAMPLES)).astype(np.int64))
    return tuple(keys.take(pa.array(places)).to_pylist())
