"""One state of the database that stays readable: an LMDB read transaction that is kept open.

The transaction shows tables, views, log, catalog and batch record as they were when it began, so nothing has to be
held or copied. Views are those of its batch already. A base table may be ahead of the batch's cut; what the log says
came after the cut is undone, and the log is part of the same state:

    rows at the cut = rows now, without the keys that changed after the cut, plus the first before-image of each

The price: pages of this state are not used again while it is open, so whoever opens one must close it soon.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import SnapshotGone
from viewkeeper.model.codec import decode_row, decode_rows
from viewkeeper.model.keys import encode_keys, encode_whole_key
from viewkeeper.model.schema import Table
from viewkeeper.store.base import Batch, Pinned
from viewkeeper.store.lmdb import log, records, rows
from viewkeeper.store.lmdb.environment import Environment
from viewkeeper.store.lmdb.failures import translated


class PinnedState(Pinned):
    """May be used from any thread; reads take turns."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._lock = threading.RLock()
        self._undone: dict[int, log.Images] = {}
        self._tables: dict[int, Any] = {}
        self._handle: Any = None
        self._txn: Any = None
        with translated(environment.path):
            while not self._begin():
                self.close()

    def _begin(self) -> bool:
        """Begin the transaction. False if it shows a table whose handle is not open: that has to come before it."""
        environment, meta = self._environment, self._environment.meta
        self._handle = environment.handle
        self._txn = self._handle.begin()
        try:
            self.catalog = records.read_catalog(self._txn, meta)
            self.head = records.read_number(self._txn, meta, records.HEAD)
            self.batch = records.read_batch(self._txn, meta) or Batch(0, self.head, {})
            ids = [*(t.id for t in self.catalog.tables), *(v.table.id for v in self.catalog.views)]
            there = [i for i in ids if self._txn.cursor().set_key(b"t%d" % i)]
        except BaseException:
            self.close()
            raise
        missing = [i for i in there if i not in self._tables]
        if missing:
            self.close()
            self._tables |= {i: environment.table(i) for i in missing}
        return not missing

    def get(self, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        name = encode_whole_key(table, key)
        with self._lock, translated(self._environment.path):
            txn = self._live()
            undone = self._undo(table)
            place = pc.index(undone.keys, pa.scalar(name, pa.binary())).as_py() if len(undone) else -1
            table, db = self.catalog.reading(table), self._tables.get(table.id)
            if place >= 0:
                value = undone.before[place].as_py() or None
            else:
                value = rows.find(txn, db, name) if db is not None else None
            return None if value is None else decode_row(table, value)

    def scan(
        self,
        table: Table,
        *,
        start: bytes | None = None,
        stop: bytes | None = None,
        limit: int | None = None,
        at_cut: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        with self._lock, translated(self._environment.path):
            self._live()
            table = self.catalog.reading(table)
            undone = log.within(self._undo(table), start, stop) if at_cut else log.NOTHING
            if len(undone):
                found = self._rebuilt(table, undone, start, stop)
                yield from (found if limit is None else found.slice(0, limit)).to_batches()
                return
        yield from self._scan(table, start, stop, limit)

    def find(self, table: Table, keys: pa.Table, *, at_cut: bool = True) -> pa.Table:
        names = encode_keys(table, keys)
        with self._lock, translated(self._environment.path):
            txn = self._live()
            undone = self._undo(table) if at_cut else log.NOTHING
            before = undone.before.filter(pc.is_in(undone.keys, value_set=names))
            names = names.filter(pc.invert(pc.is_in(names, value_set=undone.keys)))
            table, db = self.catalog.reading(table), self._tables.get(table.id)
            found = rows.find_many(txn, db, names) if db is not None else log.NOTHING.keys
            return decode_rows(table, pa.concat_arrays([found, log.present(before)]))

    def close(self) -> None:
        with self._lock:
            txn, self._txn = self._txn, None
            if txn is not None and self._environment._handle is self._handle:
                txn.abort()

    def _live(self) -> Any:
        if self._txn is None:
            raise SnapshotGone("The snapshot is closed.", hint="Take a new one.")
        return self._txn

    def _scan(self, table: Table, start: bytes | None, stop: bytes | None, limit: int | None) -> Iterator[Any]:
        db = self._tables.get(table.id)
        if db is None:
            return
        values = rows.scan(self._txn, db, self._environment.meta, table.id, start, stop, limit)
        while True:
            # The state may be closed between two batches, whose cursor then is not to be touched.
            with self._lock, translated(self._environment.path):
                self._live()
                found = next(values, None)
            if found is None:
                return
            yield from decode_rows(table, found).to_batches()

    def _rebuilt(self, table: Table, undone: log.Images, start: bytes | None, stop: bytes | None) -> pa.Table:
        """A key range with what came after the cut taken back, in key order."""
        now = pa.Table.from_batches(list(self._scan(table, start, stop, None)), table.arrow)
        kept = now.filter(pc.invert(pc.is_in(encode_keys(table, now), value_set=undone.keys)))
        before = decode_rows(table, log.present(undone.before))
        found = pa.concat_tables([kept, before]).combine_chunks()
        return found.take(pc.sort_indices(encode_keys(table, found)))

    def _undo(self, table: Table) -> log.Images:
        """The keys that changed after the cut, each with its row at the cut (empty: there was none)."""
        if table.is_view or self.batch.cut >= self.head:
            return log.NOTHING
        found = self._undone.get(table.id)
        if found is None:
            entries = log.entries(self._txn, self._environment.log, self.batch.cut, self.head, [table.id])
            pieces = list(log.gather(entries))
            found = self._undone[table.id] = _first_of_each_key(log.join(pieces)) if pieces else log.NOTHING
        return found


def _first_of_each_key(images: log.Images) -> log.Images:
    places = pa.table({"key": images.keys, "place": pa.array(range(len(images)), pa.int64())})
    first = places.group_by("key").aggregate([("place", "min")])["place_min"].combine_chunks()
    return log.Images(images.keys.take(first), images.before.take(first), images.after.take(first))
