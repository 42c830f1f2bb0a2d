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
from viewkeeper.model.delta import weighted
from viewkeeper.model.encoding.keys import successor
from viewkeeper.model.names import WEIGHT, backticked
from viewkeeper.model.schema import Table
from viewkeeper.resources.directory import Directory
from viewkeeper.store.redo import delta_files
from viewkeeper_hbase.cached_state import Known
from viewkeeper_hbase.capture import time_windows
from viewkeeper_hbase.layout.layout_cache import Layouts, if_there
from viewkeeper_hbase.layout.row_reader import Reader
from viewkeeper_hbase.thrift.client import Client


class History:
    """The deltas of views, batch by batch."""

    def __init__(self, client: Client, known: Known, layouts: Layouts, reader: Reader, directory: Directory) -> None:
        self._client, self._known, self._layouts, self._reader = client, known, layouts, reader
        self._directory = directory

    def told_by(self, table: Table) -> Table:
        """The view that says what happened to a table: one that is just its rows."""
        return table if table.is_view else self._whole(table).table

    def _whole(self, table: Table) -> View:
        for view in self._known.catalog().views:
            if view.is_whole(table) and view.suspended is None and view.at is None:
                return view
        name = backticked(table.name)
        raise Unsupported(
            f"HBase keeps no log of {table.name}: what its writers did is known batch by batch, and only to views.",
            hint="Make one that streams it, then subscribe to either: CREATE MATERIALIZED VIEW"
            f" {backticked(table.name + '_changes')} WITH (store = 'none') AS SELECT * FROM {name}.",
        )

    def settled(self, table: Table) -> int:
        """The position of the published batch."""
        self.told_by(table)
        published = self._known.published()
        return 0 if published is None else published.past[-1].position

    def entries(self, table: Table, columns: list[str], after: int, upto: int) -> Iterator[tuple[int, float, pa.Table]]:
        """Position, time and delta of each batch with a position in (after, upto] that changed the table or view."""
        if table.is_view:
            return self._entries(table, columns, after, upto)
        view = self._whole(table)
        if after < view.since:
            raise _gone(table, after)
        shown = [c.name for c in table.columns]
        found = self._entries(view.table, shown, after, upto)
        return ((position, when, _as_stored(table, columns, delta)) for position, when, delta in found)

    def _entries(
        self, table: Table, columns: list[str], after: int, upto: int
    ) -> Iterator[tuple[int, float, pa.Table]]:
        published = self._known.published()
        if published is None:
            return
        if not table.is_stored:
            if after < published.streams.gone:
                raise _gone(table, after)
            for one in published.streams.of(table.id, after, upto):
                yield one.position, one.time, delta_files.read(self._directory, one).select([*columns, WEIGHT])
            return
        oldest = published.past[0]
        if oldest.number > 1 and after < oldest.position:
            raise _gone(table, after)
        wanted = [past for past in published.past if after < past.position <= upto]
        if not wanted:
            return
        layout = self._layouts.of(table)
        first, last = wanted[0].number, wanted[-1].number
        own = {"start": table.prefix, "stop": successor(table.prefix) or b""} if table.prefix else {}
        look = if_there(layout, lambda: time_windows.scan_window(self._client, layout, first - 1, last, **own))
        shown = self._known.shown(first - 1)
        for past in wanted:
            keys = time_windows.NOTHING.keys if look is None else look.sight(past.number - 1, past.number).keys
            if not len(keys):
                continue
            before = self._reader.rows(layout, keys, columns, (0, past.number)).rows
            now = self._reader.rows(layout, keys, columns, (0, past.number + 1)).rows
            shown.check()
            yield past.position, past.time, pa.concat_tables([weighted(before, -1), weighted(now, 1)]).combine_chunks()


def _as_stored(table: Table, columns: Sequence[str], delta: pa.Table) -> pa.Table:
    """A delta of a table's visible columns with those that were dropped, which no longer hold anything."""
    missing = [name for name in columns if name not in delta.column_names]
    for name in missing:
        delta = delta.append_column(name, pa.nulls(delta.num_rows, table.arrow.field(name).type))
    return delta.select([*columns, WEIGHT])


def _gone(table: Table, after: int) -> SnapshotGone:
    return SnapshotGone(f"The changes of {table.name} after position {after} are no longer kept.")
