"""Row counts of tables, and keys that split a table into similar parts. HBase keeps no counts, so keys are scanned."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from viewkeeper.model.encoding.keys import restrict_to_prefix
from viewkeeper.model.schema import Table
from viewkeeper_hbase.cached_state import StateCache
from viewkeeper_hbase.layout.layout import Layout
from viewkeeper_hbase.layout.layout_cache import Layouts
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.thrift.errors import NoSuchTable
from viewkeeper_hbase.thrift.request_encoder import TimeRange
from viewkeeper_hbase.thrift.scan import ScanRequest

_MAX_COUNT_AGE = 20.0
"""Seconds for which the count of a large table is reused."""

_COUNT_TIMEOUT = 2.0
"""Seconds after which a count stops; the uncounted rest is estimated from the number of regions."""

_KEYS_ONLY_FILTER = b"FirstKeyOnlyFilter() AND KeyOnlyFilter()"
_MAX_SAMPLE = 256


@dataclass(frozen=True)
class TableSize:
    """A table's row count, and a sample of keys at even distances."""

    rows: int
    sample: tuple[bytes, ...]


class TableSizes:
    """The sizes of a database's tables. A large table is measured again only after `_MAX_COUNT_AGE`."""

    def __init__(self, client: HBaseClient, layouts: Layouts, state_cache: StateCache) -> None:
        self._client, self._layouts, self._state_cache = client, layouts, state_cache
        self._measured: dict[int, tuple[float, TableSize]] = {}

    def size_of(self, table: Table) -> TableSize:
        found = self._measured.get(table.id)
        if found is not None and time.monotonic() - found[0] < _MAX_COUNT_AGE and found[1].rows > 10_000:
            return found[1]
        readable = self._state_cache.readable_batch() if table.is_view else None
        if readable is not None and not readable.number:
            return TableSize(0, ())
        size = measure_table(
            self._client, self._layouts.layout_of(table), None if readable is None else readable.time_range
        )
        self._measured[table.id] = (time.monotonic(), size)
        return size

    def invalidate(self, table: Table) -> None:
        """Discard the size of a table after a write."""
        self._measured.pop(table.id, None)


def measure_table(client: HBaseClient, layout: Layout, span: TimeRange | None) -> TableSize:
    """Count a table's rows. The count is exact if the scan ends within `_COUNT_TIMEOUT`."""
    start, stop = restrict_to_prefix(layout.table, None, None)
    request = ScanRequest(
        start=start or b"",
        stop=stop or b"",
        columns=layout.families,
        span=span,
        filter=_KEYS_ONLY_FILTER,
        cache_blocks=False,
    )
    keys: list[pa.Array] = []
    rows, deadline, complete = 0, time.monotonic() + _COUNT_TIMEOUT, True
    try:
        for cells in client.scan(layout.name, request):
            keys.append(cells.keys)
            rows += cells.rows
            if time.monotonic() > deadline:
                complete = False
                break
        if not rows:
            return TableSize(0, ())
        last = keys[-1][-1].as_py()
        starts = [] if complete else [r.start for r in client.admin.list_regions(layout.name) if r.start > last]
    except NoSuchTable:
        if not layout.is_owned:
            raise
        return TableSize(0, ())
    sample = _sample_keys(pa.chunked_array(keys), rows)
    if not starts:
        return TableSize(rows, sample)
    counted_regions = len(client.admin.list_regions(layout.name)) - len(starts)
    return TableSize(rows * (counted_regions + len(starts)) // max(counted_regions, 1), (*sample, *starts))


def choose_split_points(size: TableSize, range_count: int) -> list[bytes]:
    """Return at most `range_count - 1` keys of the sample."""
    if range_count < 2 or len(size.sample) < 2:
        return []
    positions = np.linspace(0, len(size.sample), min(range_count, len(size.sample)) + 1)[1:-1].astype(int)
    return sorted({size.sample[position] for position in positions})


def _sample_keys(keys: pa.ChunkedArray, rows: int) -> tuple[bytes, ...]:
    positions = np.unique(np.linspace(0, rows - 1, min(rows, _MAX_SAMPLE)).astype(np.int64))
    return tuple(keys.take(pa.array(positions)).to_pylist())
