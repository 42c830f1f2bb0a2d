"""Deltas of past batches. The time of a view's cells is the batch number, so a stored view is its own log.

The rows that batch n changed are those with a cell or a delete marker of time n; the batch's delta is their state
at n minus their state at n − 1. It is readable as far back as views keep versions. A view that is not stored has
delta files instead (`viewkeeper.store.redo.delta_files`). The changes of a base table are those of a view that
copies it.

A batch's *position* is a time after its publication began. So a delta's position is after those of the writes
from which it follows, and the positions of one database always increase.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from viewkeeper.errors import SnapshotGone, Unsupported
from viewkeeper.model.catalog.catalog import View
from viewkeeper.model.delta import with_weight
from viewkeeper.model.encoding.keys import successor
from viewkeeper.model.names import WEIGHT, backticked
from viewkeeper.model.schema import Table
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.store.redo import delta_files
from viewkeeper_hbase.cached_state import StateCache
from viewkeeper_hbase.capture import time_windows
from viewkeeper_hbase.layout.layout_cache import Layouts, read_if_exists
from viewkeeper_hbase.layout.row_reader import HBaseRowReader
from viewkeeper_hbase.thrift.client import HBaseClient


class ViewHistory:
    """Reads the deltas of views, batch by batch."""

    def __init__(
        self,
        client: HBaseClient,
        state_cache: StateCache,
        layouts: Layouts,
        reader: HBaseRowReader,
        directory: StateDirectory,
    ) -> None:
        self._client, self._state_cache, self._layouts, self._reader = client, state_cache, layouts, reader
        self._directory = directory

    def logged_table(self, table: Table) -> Table:
        """Return the view whose deltas are the changes of `table`: the view itself, or a view that copies the base
        table."""
        return table if table.is_view else self._copy_view(table).table

    def _copy_view(self, table: Table) -> View:
        for view in self._state_cache.catalog().views:
            if view.is_copy_of(table) and view.suspended is None and view.own_cut is None:
                return view
        name = backticked(table.name)
        raise Unsupported(
            f"HBase keeps no log of {table.name}: what its writers did is known batch by batch, and only to views.",
            hint="Make one that streams it, then subscribe to either: CREATE MATERIALIZED VIEW"
            f" {backticked(table.name + '_changes')} WITH (store = 'none') AS SELECT * FROM {name}.",
        )

    def settled_position(self, table: Table) -> int:
        """Return the position of the published batch."""
        self.logged_table(table)
        published = self._state_cache.published_batch()
        return 0 if published is None else published.readable_batches[-1].position

    def entries(
        self, table: Table, columns: list[str], after: int, up_to: int
    ) -> Iterator[tuple[int, float, pa.Table]]:
        """Yield position, time and delta of each batch with a position in (after, up_to] that changed the table or
        view."""
        if table.is_view:
            return self._entries(table, columns, after, up_to)
        view = self._copy_view(table)
        if after < view.complete_since:
            raise _forgotten_error(table, after)
        visible = [c.name for c in table.columns]
        found = self._entries(view.table, visible, after, up_to)
        return ((position, time, _add_dropped_columns(table, columns, delta)) for position, time, delta in found)

    def _entries(
        self, table: Table, columns: list[str], after: int, up_to: int
    ) -> Iterator[tuple[int, float, pa.Table]]:
        published = self._state_cache.published_batch()
        if published is None:
            return
        if not table.is_stored:
            if after < published.delta_files.forgotten_position:
                raise _forgotten_error(table, after)
            for file in published.delta_files.for_table(table.id, after, up_to):
                yield (
                    file.position,
                    file.time,
                    delta_files.read_delta_file(self._directory, file).select([*columns, WEIGHT]),
                )
            return
        oldest = published.readable_batches[0]
        if oldest.number > 1 and after < oldest.position:
            raise _forgotten_error(table, after)
        batches = [past for past in published.readable_batches if after < past.position <= up_to]
        if not batches:
            return
        layout = self._layouts.layout_of(table)
        first, last = batches[0].number, batches[-1].number
        key_range = {"start": table.key_prefix, "stop": successor(table.key_prefix) or b""} if table.key_prefix else {}
        scan = read_if_exists(
            layout, lambda: time_windows.scan_window(self._client, layout, first - 1, last, **key_range)
        )
        readable = self._state_cache.readable_batch(first - 1)
        for past in batches:
            keys = time_windows.NO_CELLS.keys if scan is None else scan.cells_between(past.number - 1, past.number).keys
            if not len(keys):
                continue
            before_rows = self._reader.read_rows(layout, keys, columns, (0, past.number)).rows
            after_rows = self._reader.read_rows(layout, keys, columns, (0, past.number + 1)).rows
            readable.check_readable()
            yield (
                past.position,
                past.time,
                pa.concat_tables([with_weight(before_rows, -1), with_weight(after_rows, 1)]).combine_chunks(),
            )


def _add_dropped_columns(table: Table, columns: Sequence[str], delta: pa.Table) -> pa.Table:
    """Add the dropped columns, as NULLs, to a delta of the visible ones."""
    missing = [name for name in columns if name not in delta.column_names]
    for name in missing:
        delta = delta.append_column(name, pa.nulls(delta.num_rows, table.arrow.field(name).type))
    return delta.select([*columns, WEIGHT])


def _forgotten_error(table: Table, after: int) -> SnapshotGone:
    return SnapshotGone(f"The changes of {table.name} after position {after} are no longer kept.")
