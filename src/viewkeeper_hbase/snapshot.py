"""A snapshot: one state of the database that stays readable without locks, because HBase keeps old cell versions.

    views           cells up to the batch's number; readable while fewer than `VIEW_VERSIONS` later ones are published
    base tables     cells up to the time of the batch's cut; readable while no row has been overwritten more often than
                    its table keeps versions, which is checked after each read

A read that comes too late raises SnapshotGone. A mapped table that keeps no versions or no deleted cells has no
past state; reading it at a cut raises Unsupported. A write that became visible only after its batch shows in a
base table but not yet in its views.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import SnapshotGone, Unsupported
from viewkeeper.model.schema import Table
from viewkeeper.resources.fork_guard import owned
from viewkeeper.store.contract.commits import ChangedKeys
from viewkeeper.store.contract.store import Batch, StoreSnapshot
from viewkeeper.store.contract.tables import column_names, first_row
from viewkeeper_hbase.cached_state import ReadableBatch, StateCache
from viewkeeper_hbase.capture.feed import ChangeCapture
from viewkeeper_hbase.layout.layout import Layout
from viewkeeper_hbase.layout.layout_cache import Layouts
from viewkeeper_hbase.layout.row_reader import HBaseRowReader
from viewkeeper_hbase.metadata import MetaTable
from viewkeeper_hbase.thrift.request_encoder import TimeRange


class HBaseSnapshot(StoreSnapshot):
    """A snapshot at the published batch. It may be used from any thread."""

    def __init__(
        self,
        meta_table: MetaTable,
        state_cache: StateCache,
        layouts: Layouts,
        reader: HBaseRowReader,
        capture: ChangeCapture,
    ) -> None:
        self._state_cache, self._layouts, self._reader, self._capture = state_cache, layouts, reader, capture
        self._is_closed = False
        owned(self, "The snapshot was taken")
        state_cache.state(refresh=True)
        self.catalog, published = meta_table.read_consistent(state_cache.catalog())
        if published is None:
            self.head = capture.head()
            self.batch = Batch(0, self.head, {})
        else:
            self.head = published.readable_batches[-1].position
            self.batch = published.batch

    def get(self, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        layout = self._layout_if_open(table)
        row_keys = pa.array([layout.row_key_encoding.encode_one(key)], pa.binary())
        return first_row(table, self._rows(layout, row_keys, table.arrow.names, at_cut=True))

    def scan(
        self,
        table: Table,
        *,
        columns: Sequence[str] | None = None,
        start: bytes | None = None,
        stop: bytes | None = None,
        limit: int | None = None,
        at_cut: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        layout = self._layout_if_open(table)
        requested = column_names(table, columns)
        # The key columns are always read: the check for overwritten rows scans by row key.
        read_columns = list(dict.fromkeys([*requested, *(c.name for c in table.key_columns)]))
        span, readable = self._time_range(layout, at_cut)
        if readable is not None and not readable.number:
            return
        checked_up_to = b""
        for rows in self._reader.scan_keys(layout, read_columns, span, start, stop, limit, readable):
            self._layout_if_open(table)
            if span is not None and readable is None:
                range_end = (
                    layout.encode_row_keys(pa.Table.from_batches([rows.slice(rows.num_rows - 1)]))[0].as_py() + b"\0"
                )
                self._check_versions(layout, checked_up_to, range_end)
                checked_up_to = range_end
            yield rows.select(requested)
        if span is not None and readable is None:
            self._check_versions(
                layout, checked_up_to, b""
            )  # the range after the last row read, where rows may be missing

    def find(
        self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None, *, at_cut: bool = True
    ) -> pa.Table:
        layout = self._layout_if_open(table)
        return self._rows(layout, layout.encode_row_keys(keys), column_names(table, columns), at_cut=at_cut)

    def changed_since_cut(self, table: Table) -> ChangedKeys | None:
        """Return the keys changed between the cut and the present; a later state to stop at does not exist."""
        self._layout_if_open(table)
        if table.is_view:
            return None
        capture_mark = self.batch.capture_marks.get(table.id)
        found, _ = self._capture.changed_keys(
            table, table.arrow.names, self.batch.cut, self._capture.head(), capture_mark
        )
        return None if found.keys is not None and not found.keys.num_rows else found

    def close(self) -> None:
        self._is_closed = True

    def _rows(self, layout: Layout, names: pa.Array, columns: Sequence[str], *, at_cut: bool) -> pa.Table:
        span, readable = self._time_range(layout, at_cut)
        if not len(names) or (readable is not None and not readable.number):
            return layout.table.arrow.empty_table().select(list(columns))
        found = self._reader.read_rows(layout, names, columns, span).rows
        if readable is not None:
            readable.check_readable()
        elif span is not None:
            ends = pc.min_max(names)
            self._check_versions(layout, ends["min"].as_py(), ends["max"].as_py() + b"\0")
        return found

    def _time_range(self, layout: Layout, at_cut: bool) -> tuple[TimeRange | None, ReadableBatch | None]:
        """Return the time range of the cells to read and, for a view, the batch that is read."""
        if layout.table.is_view:
            readable = self._state_cache.readable_batch(self.batch.number)
            return readable.time_range, readable
        if not at_cut:
            return None, None
        if not self._layouts.has_past_versions(layout):
            raise Unsupported(
                f"{layout.table.name} has no past: its HBase table {layout.name} does not keep versions and deleted"
                " cells.",
                hint="Set VERSIONS => 10 or more and KEEP_DELETED_CELLS => 'TRUE', or read it without a snapshot.",
            )
        return (0, self.batch.cut + 1), None

    def _check_versions(self, layout: Layout, start: bytes, stop: bytes) -> None:
        """Raise SnapshotGone if a row of the key range has as many newer versions as HBase keeps: its state at the
        cut may be lost."""
        window = self._capture.scan_since(layout, self.batch.cut, start, stop)
        if not len(window.row):
            return
        versions = np.unique(np.stack([window.row, window.time]), axis=1)[0]
        if int(np.bincount(versions).max()) >= self._layouts.readable_versions(layout):
            raise SnapshotGone(
                f"{layout.table.name} can no longer be read as of batch {self.batch.number}: a row was overwritten"
                f" {self._layouts.readable_versions(layout)} times since.",
                hint="Take a new snapshot.",
            )

    def _layout_if_open(self, table: Table) -> Layout:
        if self._is_closed:
            raise SnapshotGone("The snapshot is closed.", hint="Take a new one.")
        return self._layouts.layout_of(table)
