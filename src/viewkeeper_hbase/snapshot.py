"""One state of the database that stays readable: nothing is held, HBase keeps the versions anyway.

    views           cells up to the batch's number; readable while fewer than `VIEW_VERSIONS` later ones are published
    base tables     cells up to the time of the batch's cut; readable while no row was overwritten since more often than
                    its table keeps versions, which is looked up after each read

A read that comes too late raises SnapshotGone. A table of others that keeps no versions or no deleted cells has no
past, and says so. A write that became visible late, after its batch, shows in a base table but not yet in its views.
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
from viewkeeper.store.contract.commits import Changed
from viewkeeper.store.contract.store import Batch, Pinned
from viewkeeper.store.contract.tables import column_names, first_row
from viewkeeper_hbase.cached_state import Known, Shown
from viewkeeper_hbase.capture.feed import Feed
from viewkeeper_hbase.layout.layout import Layout
from viewkeeper_hbase.layout.layout_cache import Layouts
from viewkeeper_hbase.layout.row_reader import Reader
from viewkeeper_hbase.metadata import MetaTable
from viewkeeper_hbase.thrift.request_encoder import TimeRange


class PinnedBatch(Pinned):
    """May be used from any thread."""

    def __init__(self, records: MetaTable, known: Known, layouts: Layouts, reader: Reader, feed: Feed) -> None:
        self._known, self._layouts, self._reader, self._feed = known, layouts, reader, feed
        self._closed = False
        owned(self, "The snapshot was taken")
        known.state(now=True)
        self.catalog, published = records.whole(known.catalog())
        if published is None:
            self.head = feed.head()
            self.batch = Batch(0, self.head, {})
        else:
            self.head = published.past[-1].position
            self.batch = published.batch

    def get(self, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        layout = self._live(table)
        names = pa.array([layout.keys.encode_one(key)], pa.binary())
        return first_row(table, self._rows(layout, names, table.arrow.names, at_cut=True))

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
        layout = self._live(table)
        wanted = column_names(table, columns)
        # What was overwritten since is looked up by key.
        read = list(dict.fromkeys([*wanted, *(c.name for c in table.key_columns)]))
        span, shown = self._span(layout, at_cut)
        if shown is not None and not shown.number:
            return
        seen = b""
        for rows in self._reader.scan_keys(layout, read, span, start, stop, limit, shown):
            self._live(table)
            if span is not None and shown is None:
                upto = layout.row_keys(pa.Table.from_batches([rows.slice(rows.num_rows - 1)]))[0].as_py() + b"\0"
                self._check_versions(layout, seen, upto)
                seen = upto
            yield rows.select(wanted)
        if span is not None and shown is None:
            self._check_versions(layout, seen, b"")  # rows at the end that are missing

    def find(
        self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None, *, at_cut: bool = True
    ) -> pa.Table:
        layout = self._live(table)
        return self._rows(layout, layout.row_keys(keys), column_names(table, columns), at_cut=at_cut)

    def later(self, table: Table) -> Changed | None:
        """Up to now: there is no state to stop at."""
        self._live(table)
        if table.is_view:
            return None
        seen = self.batch.seen.get(table.id)
        found, _ = self._feed.changed(table, table.arrow.names, self.batch.cut, self._feed.head(), seen)
        return None if found.keys is not None and not found.keys.num_rows else found

    def close(self) -> None:
        self._closed = True

    def _rows(self, layout: Layout, names: pa.Array, columns: Sequence[str], *, at_cut: bool) -> pa.Table:
        span, shown = self._span(layout, at_cut)
        if not len(names) or (shown is not None and not shown.number):
            return layout.table.arrow.empty_table().select(list(columns))
        found = self._reader.rows(layout, names, columns, span).rows
        if shown is not None:
            shown.check()
        elif span is not None:
            ends = pc.min_max(names)
            self._check_versions(layout, ends["min"].as_py(), ends["max"].as_py() + b"\0")
        return found

    def _span(self, layout: Layout, at_cut: bool) -> tuple[TimeRange | None, Shown | None]:
        """The times of the cells to read, and for a view the batch that is read."""
        if layout.table.is_view:
            shown = self._known.shown(self.batch.number)
            return shown.span, shown
        if not at_cut:
            return None, None
        if not self._layouts.is_exact(layout):
            raise Unsupported(
                f"{layout.table.name} has no past: its HBase table {layout.name} does not keep versions and deleted"
                " cells.",
                hint="Set VERSIONS => 10 or more and KEEP_DELETED_CELLS => 'TRUE', or read it without a snapshot.",
            )
        return (0, self.batch.cut + 1), None

    def _check_versions(self, layout: Layout, start: bytes, stop: bytes) -> None:
        """Raise if HBase may have dropped what a row was at the cut: as many newer versions as it keeps."""
        look = self._feed.since(layout, self.batch.cut, start, stop)
        if not len(look.row):
            return
        times = np.unique(np.stack([look.row, look.time]), axis=1)[0]
        if int(np.bincount(times).max()) >= self._layouts.versions(layout):
            raise SnapshotGone(
                f"{layout.table.name} can no longer be read as of batch {self.batch.number}: a row was overwritten"
                f" {self._layouts.versions(layout)} times since.",
                hint="Take a new snapshot.",
            )

    def _live(self, table: Table) -> Layout:
        if self._closed:
            raise SnapshotGone("The snapshot is closed.", hint="Take a new one.")
        return self._layouts.of(table)
