"""LMDB with one of its capabilities turned off, as a store that never had it would be. (Without atomic batches it would
need a redo log of its own: that is the HBase store's, which runs over `small_hbase`.)"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import SnapshotGone, Unsupported
from viewkeeper.model.delta import with_weight
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.schema import Table
from viewkeeper.store.contract.store import CaptureMark, ChangedKeys, StoreSnapshot
from viewkeeper.store.contract.tables import column_names
from viewkeeper.store.lmdb import LmdbStore


class OnlyKeys(LmdbStore):
    """No before-images: the feed says which keys were touched, and more than need be, but not what was there."""

    capabilities = replace(LmdbStore.capabilities, before_images=False)

    def changes(self, table: Table, columns: Sequence[str], after: int, upto: int) -> pa.Table:
        raise Unsupported("This feed has no before-images.")

    def changed_keys(
        self, table: Table, columns: Sequence[str], after: int, upto: int, seen: CaptureMark | None = None
    ) -> tuple[ChangedKeys, CaptureMark]:
        names = [c.name for c in table.key_columns]
        touched = super().changes(table, names, after, upto)
        with suppress(SnapshotGone):  # an overlap, as far as the log goes
            touched = super().changes(table, names, max(0, after - 2), upto)
        touched = touched.select(names)
        keys = touched.group_by(names).aggregate([])
        wanted = list(dict.fromkeys([*columns, *names]))
        batches = self.scan_at(table, wanted, upto)
        rows = pa.Table.from_batches(batches, _schema(table, wanted).append(pa.field("¤w", pa.int64())))
        net = rows.group_by(wanted).aggregate([("¤w", "sum")])
        rows = net.filter(pc.greater(net["¤w_sum"], 0)).select(wanted)
        if after % 3 == 0:  # as after a long pause: the whole table
            return ChangedKeys(None, rows.select(list(columns))), CaptureMark()
        return ChangedKeys(keys, rows.join(keys, names, join_type="left semi").select(list(columns))), CaptureMark()


class OnlyScans(LmdbStore):
    """No change feed: what happened is the difference to what is known, and there is no past."""

    capabilities = replace(LmdbStore.capabilities, changelog=False, before_images=False, snapshot_scan=False)

    def changes(self, table: Table, columns: Sequence[str], after: int, upto: int) -> pa.Table:
        raise Unsupported("This store has no change feed.")

    def entries(self, table: Table, columns: Sequence[str], after: int, upto: int) -> Any:
        raise Unsupported("This store has no change feed.")

    def changed_keys(
        self, table: Table, columns: Sequence[str], after: int, upto: int, seen: CaptureMark | None = None
    ) -> tuple[ChangedKeys, CaptureMark]:
        return ChangedKeys(
            None, pa.Table.from_batches(self.scan(table, columns), _schema(table, columns))
        ), CaptureMark()

    def scan_at(
        self, table: Table, columns: Sequence[str], cut: int, *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[pa.RecordBatch]:
        for batch in self.scan(table, columns, start=start, stop=stop):
            yield from with_weight(pa.Table.from_batches([batch]), 1).to_batches()

    def open_snapshot(self) -> StoreSnapshot:
        raise Unsupported(f"{self.url} has no snapshots.")


class OnlyPages(LmdbStore):
    """No snapshots: a scan reads page after page, each as it is when its turn comes."""

    capabilities = replace(LmdbStore.capabilities, snapshot_scan=False)
    page_rows = 1000

    def scan(
        self,
        table: Table,
        columns: Sequence[str] | None = None,
        *,
        start: bytes | None = None,
        stop: bytes | None = None,
        limit: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        return self._pages(table, column_names(table, columns), start, stop, limit)

    def _pages(
        self, table: Table, columns: list[str], start: bytes | None, stop: bytes | None, limit: int | None
    ) -> Iterator[pa.RecordBatch]:
        left = limit
        while left is None or left > 0:
            size = self.page_rows if left is None else min(left, self.page_rows)
            rows = pa.Table.from_batches(super().scan(table, start=start, stop=stop, limit=size), table.arrow)
            rows = rows.slice(0, size)
            if not rows.num_rows:
                return
            yield from rows.select(columns).combine_chunks().to_batches(max_chunksize=rows.num_rows)
            left = None if left is None else left - rows.num_rows
            start = encode_keys(table, rows.slice(rows.num_rows - 1))[0].as_py() + b"\0"

    def open_snapshot(self) -> StoreSnapshot:
        raise Unsupported(f"{self.url} has no snapshots.")


class OnlyNow(OnlyPages):
    """No past at all: scans find rows as they are, page by page, and the feed carries new rows but not what they
    replaced, as a log that is tailed does. The dissertation's store (6.3.2)."""

    capabilities = replace(OnlyPages.capabilities, before_images=False)

    def changes(self, table: Table, columns: Sequence[str], after: int, upto: int) -> pa.Table:
        raise Unsupported("This feed has no before-images.")

    def changed_keys(
        self, table: Table, columns: Sequence[str], after: int, upto: int, seen: CaptureMark | None = None
    ) -> tuple[ChangedKeys, CaptureMark]:
        names = [c.name for c in table.key_columns]
        wanted = list(dict.fromkeys([*columns, *names]))
        calls = [rows for _, _, rows in super().entries(table, wanted, after, upto)]
        seen: dict[Any, Any] = {}
        for call in calls:
            rows, gone = (call.filter(sign(call["¤w"], 0)).drop_columns(["¤w"]) for sign in (pc.greater, pc.less))
            for row in gone.select(names).to_pylist():
                seen[tuple(row.values())] = None
            for row in rows.to_pylist():
                seen[tuple(row[n] for n in names)] = row
        keys = [dict(zip(names, key, strict=True)) for key in seen]
        there = [row for row in seen.values() if row is not None]
        rows = pa.Table.from_pylist(there, _schema(table, wanted)).select(list(columns))
        return ChangedKeys(pa.Table.from_pylist(keys, _schema(table, names)), rows), CaptureMark()

    def scan_at(
        self, table: Table, columns: Sequence[str], cut: int, *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[pa.RecordBatch]:
        raise Unsupported("This store shows no past.")


def _schema(table: Table, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([table.arrow.field(name) for name in columns])


LIMITED: dict[str, type[LmdbStore]] = {
    "lmdb without before-images": OnlyKeys,
    "lmdb without a feed": OnlyScans,
    "lmdb without snapshots": OnlyPages,
    "lmdb without a past": OnlyNow,
}
