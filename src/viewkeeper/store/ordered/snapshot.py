"""One state of the database that stays readable.

It shows tables, views, log, catalog and batch record as they were when it was taken, so nothing has to be
held or copied. Views are those of its batch already. A base table may be ahead of the batch's cut; what the log says
came after the cut is undone, and the log is part of the same state:

    rows at the cut = rows now, without the keys that changed after the cut, plus the first before-image of each

The price: pages of this state are not used again while it is open, so whoever opens one must close it soon.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import SnapshotGone
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.encoding.keys import bounded, encode_keys, encode_whole_key
from viewkeeper.model.encoding.rows import decode_row, decode_rows
from viewkeeper.model.schema import Table
from viewkeeper.resources.fork_guard import owned
from viewkeeper.store.contract.commits import Batch, Changed, Pinned
from viewkeeper.store.contract.tables import column_names
from viewkeeper.store.ordered import batch_record, log_format, metadata
from viewkeeper.store.ordered.maps import Database, PinnedMap
from viewkeeper.store.ordered.row_images import NOTHING, Images, first_of_each_key, join, present, within

_MOST = 1_000
"""Rows of the log that are handed out one by one."""


class PinnedState(Pinned):
    """May be used from any thread; reads take turns."""

    def __init__(
        self,
        database: Database,
        known: Catalog,
        last: Batch | None = None,
        quiet: dict[int, tuple[int, int]] | None = None,
    ) -> None:
        owned(self, "The snapshot was taken")
        self._lock = threading.RLock()
        self._quiet = {} if quiet is None else quiet
        """By table, two positions: others saw that nothing was written to it after the first, up to the second."""
        self._undone: dict[int, Images] = {}
        self._state: PinnedMap | None = database.pin()
        try:
            meta = self._state.meta
            is_known = metadata.catalog_version(meta) == known.version
            self.catalog = known if is_known else metadata.read_catalog(meta, known)
            self.head = metadata.read_number(meta, metadata.HEAD)
            number = metadata.read_number(meta, metadata.BATCH_NUMBER)
            found = last if last is not None and last.number == number else batch_record.read_batch(meta)
            self.batch = found or Batch(0, self.head, {})
        except BaseException:
            self.close()
            raise

    def get(self, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        name = encode_whole_key(table, key)
        with self._lock, self._live().reading():
            state = self._live()
            undone = self._undo(table)
            place = pc.index(undone.keys, pa.scalar(name, pa.binary())).as_py() if len(undone) else -1
            table = self.catalog.reading(table)
            value = undone.before[place].as_py() or None if place >= 0 else state.rows(table.home).find(name)
            return None if value is None else decode_row(table, value)

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
        wanted = column_names(table, columns)
        start, stop = bounded(table, start, stop)
        with self._lock, self._live().reading():
            table = self.catalog.reading(table)
            undone = within(self._undo(table), start, stop) if at_cut else NOTHING
            if len(undone):
                found = self._rebuilt(table, undone, start, stop).select(wanted)
                yield from (found if limit is None else found.slice(0, limit)).to_batches()
                return
        yield from self._scan(table, start, stop, limit, wanted)

    def size(self, table: Table, start: bytes | None, stop: bytes | None, most: int) -> int:
        start, stop = bounded(table, start, stop)
        with self._lock, self._live().reading():
            return sum(len(values) for values in self._live().rows(table.home).scan(start, stop, most))

    def find(
        self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None, *, at_cut: bool = True
    ) -> pa.Table:
        wanted = column_names(table, columns)
        names = encode_keys(table, keys)
        with self._lock, self._live().reading():
            state = self._live()
            undone = self._undo(table) if at_cut else NOTHING
            before = undone.before.filter(pc.is_in(undone.keys, value_set=names))
            names = names.filter(pc.invert(pc.is_in(names, value_set=undone.keys)))
            table = self.catalog.reading(table)
            found = state.rows(table.home).find_many(names)
            return decode_rows(table, pa.concat_arrays([found, present(before)]), wanted)

    def later(self, table: Table) -> Changed | None:
        with self._lock, self._live().reading():
            undone = self._undo(table)
            if not len(undone):
                return None
            table = self.catalog.reading(table)
            now = decode_rows(table, self._live().rows(table.home).find_many(undone.keys))
            # A key that is neither in the table now nor was at the cut is in no index either.
            names = [c.name for c in table.key_columns]
            keys = [decode_rows(table, present(undone.before), names), now.select(names)]
            return Changed(pa.concat_tables(keys).combine_chunks(), now)

    def images(self, table: Table, after: int) -> list[tuple[bytes, bytes]] | None:
        with self._lock, self._live().reading():
            state = self._live()
            if after < metadata.read_number(state.meta, metadata.FLOOR):
                return None
            return log_format.few(state.log, after, self.head, table.id, _MOST)

    def close(self) -> None:
        with self._lock:
            state, self._state = self._state, None
            if state is not None:
                state.close()

    def _live(self) -> PinnedMap:
        if self._state is None:
            raise SnapshotGone("The snapshot is closed.", hint="Take a new one.")
        return self._state

    def _scan(
        self,
        table: Table,
        start: bytes | None,
        stop: bytes | None,
        limit: int | None,
        wanted: Sequence[str] | None = None,
    ) -> Iterator[Any]:
        with self._lock:
            values = self._live().rows(table.home).scan(start, stop, limit)
        while True:
            # The state may be closed between two batches, whose cursor then is not to be touched.
            with self._lock, self._live().reading():
                found = next(values, None)
            if found is None:
                return
            yield from decode_rows(table, found, wanted).to_batches()

    def _rebuilt(self, table: Table, undone: Images, start: bytes | None, stop: bytes | None) -> pa.Table:
        """A key range with what came after the cut taken back, in key order."""
        now = pa.Table.from_batches(list(self._scan(table, start, stop, None)), table.arrow)
        kept = now.filter(pc.invert(pc.is_in(encode_keys(table, now), value_set=undone.keys)))
        before = decode_rows(table, present(undone.before))
        found = pa.concat_tables([kept, before]).combine_chunks()
        return found.take(pc.sort_indices(encode_keys(table, found)))

    def _undo(self, table: Table) -> Images:
        """The keys that changed after the cut, each with its row at the cut (empty: there was none)."""
        if not table.with_writes or self.batch.cut >= self.head:
            return NOTHING
        found = self._undone.get(table.id)
        if found is None:
            # What commits wrote to views lies there too, and is passed over: at most once.
            cut = self.batch.cut
            since, upto = self._quiet.get(table.id, (cut, cut))
            after = max(cut, upto) if since <= cut else cut
            pieces = list(log_format.gather(log_format.entries(self._live().log, after, self.head, [table.id])))
            found = self._undone[table.id] = first_of_each_key(join(pieces)) if pieces else NOTHING
            if not pieces:
                self._quiet[table.id] = cut, max(after, self.head)
        return found
