"""What earlier batches did to a view: its cells have batch numbers as times, so the table itself is the log.

The rows that batch n changed are those with a cell or a delete marker of time n; its delta is their state at n less
that at n − 1. That goes back as far as views keep versions. A batch's *position* is a time after its publication began,
so that a delta's position is after those of the writes it stems from, and positions of one database always rise.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from viewkeeper.errors import SnapshotGone, Unsupported
from viewkeeper.model.delta import weighted
from viewkeeper.model.schema import Table
from viewkeeper.store.hbase import windows
from viewkeeper.store.hbase.client import Client
from viewkeeper.store.hbase.known import Known
from viewkeeper.store.hbase.layout import Layout
from viewkeeper.store.hbase.layouts import if_there
from viewkeeper.store.hbase.reading import Reader


class History:
    """The deltas of views, batch by batch."""

    def __init__(self, client: Client, known: Known, reader: Reader) -> None:
        self._client, self._known, self._reader = client, known, reader

    def settled(self, table: Table) -> int:
        """The position of the published batch."""
        if not table.is_view:
            raise Unsupported(
                f"HBase keeps no log of {table.name}: what its writers did is known batch by batch only.",
                hint=f"Subscribe to a view of it: CREATE MATERIALIZED VIEW … AS SELECT * FROM {table.name}.",
            )
        published = self._known.published()
        return 0 if published is None else published.past[-1].position

    def entries(
        self, layout: Layout, columns: list[str], after: int, upto: int
    ) -> Iterator[tuple[int, float, pa.Table]]:
        """Position, time and delta of each batch with a position in (after, upto] that changed the view."""
        self.settled(layout.table)
        published = self._known.published()
        if published is None:
            return
        oldest = published.past[0]
        if oldest.number > 1 and after < oldest.position:
            raise SnapshotGone(f"The changes of {layout.table.name} after position {after} are no longer kept.")
        wanted = [past for past in published.past if after < past.position <= upto]
        if not wanted:
            return
        first, last = wanted[0].number, wanted[-1].number
        look = if_there(layout, lambda: windows.look(self._client, layout, first - 1, last))
        shown = self._known.shown(first - 1)
        for past in wanted:
            keys = windows.NOTHING.keys if look is None else look.sight(past.number - 1, past.number).keys
            if not len(keys):
                continue
            before = self._reader.rows(layout, keys, columns, (0, past.number)).rows
            now = self._reader.rows(layout, keys, columns, (0, past.number + 1)).rows
            shown.check()
            yield past.position, past.time, pa.concat_tables([weighted(before, -1), weighted(now, 1)]).combine_chunks()
