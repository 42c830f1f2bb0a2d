"""What earlier batches did to a view: its cells have batch numbers as times, so the table itself is the log.

The rows that batch n changed are those with a cell or a delete marker of time n; its delta is their state at n less
that at n − 1. That goes back as far as views keep versions. A view that is not stored has files of deltas instead
(`redo.streams`), and a base table has what a view says that is just its rows.

A batch's *position* is a time after its publication began, so that a delta's position is after those of the writes it
stems from, and positions of one database always rise.
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
    """The deltas of views, batch by batch."""

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
        """The view that says what happened to a table: one that is just its rows."""
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
        """The position of the published batch."""
        self.logged_table(table)
        published = self._state_cache.published_batch()
        return 0 if published is None else published.readable_batches[-1].position

    def entries(
        self, table: Table, columns: list[str], after: int, up_to: int
    ) -> Iterator[tuple[int, float, pa.Table]]:
        """Position, time and delta of each batch with a position in (after, upto] that changed the table or view."""
        if table.is_view:
            return self._entries(table, columns, after, up_to)
        view = self._copy_view(table)
        if after < view.complete_since:
            raise _forgotten_error(table, after)
        shown = [c.name for c in table.columns]
        found = self._entries(view.table, shown, after, up_to)
        return ((position, when, _add_dropped_columns(table, columns, delta)) for position, when, delta in found)

    def _entries(
        self, table: Table, columns: list[str], after: int, up_to: int
    ) -> Iterator[tuple[int, float, pa.Table]]:
        published = self._state_cache.published_batch()
        if published is None:
            return
        if not table.is_stored:
            if after < published.delta_files.forgotten_position:
                raise _forgotten_error(table, after)
            for one in published.delta_files.for_table(table.id, after, up_to):
                yield (
                    one.position,
                    one.time,
                    delta_files.read_delta_file(self._directory, one).select([*columns, WEIGHT]),
                )
            return
        oldest = published.readable_batches[0]
        if oldest.number > 1 and after < oldest.position:
            raise _forgotten_error(table, after)
        wanted = [past for past in published.readable_batches if after < past.position <= up_to]
        if not wanted:
            return
        layout = self._layouts.layout_of(table)
        first, last = wanted[0].number, wanted[-1].number
        own = {"start": table.key_prefix, "stop": successor(table.key_prefix) or b""} if table.key_prefix else {}
        look = read_if_exists(layout, lambda: time_windows.scan_window(self._client, layout, first - 1, last, **own))
        shown = self._state_cache.readable_batch(first - 1)
        for past in wanted:
            keys = time_windows.NO_CELLS.keys if look is None else look.cells_between(past.number - 1, past.number).keys
            if not len(keys):
                continue
            before = self._reader.read_rows(layout, keys, columns, (0, past.number)).rows
            now = self._reader.read_rows(layout, keys, columns, (0, past.number + 1)).rows
            shown.check_readable()
            yield (
                past.position,
                past.time,
                pa.concat_tables([with_weight(before, -1), with_weight(now, 1)]).combine_chunks(),
            )


def _add_dropped_columns(table: Table, columns: Sequence[str], delta: pa.Table) -> pa.Table:
    """A delta of a table's visible columns with those that were dropped, which no longer hold anything."""
    missing = [name for name in columns if name not in delta.column_names]
    for name in missing:
        delta = delta.append_column(name, pa.nulls(delta.num_rows, table.arrow.field(name).type))
    return delta.select([*columns, WEIGHT])


def _forgotten_error(table: Table, after: int) -> SnapshotGone:
    return SnapshotGone(f"The changes of {table.name} after position {after} are no longer kept.")
