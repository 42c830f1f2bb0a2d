"""A snapshot: one state of the database that stays readable.

It shows tables, views, log, catalog and batch record as they were when it was opened, so nothing has to be held or
copied. Views are in the state of its batch already. A base table may be ahead of the batch's cut; the changes that the
log lists after the cut are undone, and the log is part of the same state:

    rows at the cut = rows now, without the keys that changed after the cut, plus the first before-image of each

The cost: the map cannot reuse pages of this state while the snapshot is open, so the caller must close it soon.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import SnapshotGone
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.encoding.keys import encode_keys, encode_whole_key, restrict_to_prefix
from viewkeeper.model.encoding.rows import decode_row, decode_rows
from viewkeeper.model.schema import Table
from viewkeeper.resources.fork_guard import owned
from viewkeeper.store.contract.commits import Batch, ChangedKeys, StoreSnapshot
from viewkeeper.store.contract.tables import column_names
from viewkeeper.store.ordered import batch_record, log_format, metadata
from viewkeeper.store.ordered.maps import Database, MapSnapshot
from viewkeeper.store.ordered.row_images import (
    NO_IMAGES,
    RowImages,
    concat_images,
    drop_empty,
    filter_key_range,
    first_image_by_key,
)

_MAX_LOG_ROWS = 1_000
"""Maximum number of changed rows that `row_images` returns."""


class OrderedSnapshot(StoreSnapshot):
    """A snapshot of an ordered map. Thread-safe; reads are serialized."""

    def __init__(
        self,
        database: Database,
        cached: Catalog,
        last_batch: Batch | None = None,
        unchanged_spans: dict[int, tuple[int, int]] | None = None,
    ) -> None:
        owned(self, "The snapshot was taken")
        self._lock = threading.RLock()
        self._unchanged_spans = {} if unchanged_spans is None else unchanged_spans
        """For each table two positions between which no write to it was found; shared by the snapshots of a store."""
        self._undo_cache: dict[int, RowImages] = {}
        self._state: MapSnapshot | None = database.open_snapshot()
        try:
            meta = self._state.meta
            is_known = metadata.catalog_version(meta) == cached.version
            self.catalog = cached if is_known else metadata.read_catalog(meta, cached)
            self.head = metadata.read_counter(meta, metadata.HEAD)
            number = metadata.read_counter(meta, metadata.BATCH_NUMBER)
            found = (
                last_batch if last_batch is not None and last_batch.number == number else batch_record.read_batch(meta)
            )
            self.batch = found or Batch(0, self.head, {})
        except BaseException:
            self.close()
            raise

    def get(self, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        encoded_key = encode_whole_key(table, key)
        with self._lock, self._require_open().translate_errors():
            state = self._require_open()
            undo_images = self._undo_images(table)
            index = pc.index(undo_images.keys, pa.scalar(encoded_key, pa.binary())).as_py() if len(undo_images) else -1
            table = self.catalog.readable_version(table)
            value = (
                undo_images.before[index].as_py() or None
                if index >= 0
                else state.rows(table.storage_id).find(encoded_key)
            )
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
        names = column_names(table, columns)
        start, stop = restrict_to_prefix(table, start, stop)
        with self._lock, self._require_open().translate_errors():
            table = self.catalog.readable_version(table)
            undo_images = filter_key_range(self._undo_images(table), start, stop) if at_cut else NO_IMAGES
            if len(undo_images):
                found = self._scan_at_cut(table, undo_images, start, stop).select(names)
                yield from (found if limit is None else found.slice(0, limit)).to_batches()
                return
        yield from self._scan(table, start, stop, limit, names)

    def size(self, table: Table, start: bytes | None, stop: bytes | None, limit: int) -> int:
        start, stop = restrict_to_prefix(table, start, stop)
        with self._lock, self._require_open().translate_errors():
            return sum(len(values) for values in self._require_open().rows(table.storage_id).scan(start, stop, limit))

    def find(
        self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None, *, at_cut: bool = True
    ) -> pa.Table:
        column_list = column_names(table, columns)
        encoded_keys = encode_keys(table, keys)
        with self._lock, self._require_open().translate_errors():
            state = self._require_open()
            undo_images = self._undo_images(table) if at_cut else NO_IMAGES
            before = undo_images.before.filter(pc.is_in(undo_images.keys, value_set=encoded_keys))
            encoded_keys = encoded_keys.filter(pc.invert(pc.is_in(encoded_keys, value_set=undo_images.keys)))
            table = self.catalog.readable_version(table)
            found = state.rows(table.storage_id).find_rows(encoded_keys)
            return decode_rows(table, pa.concat_arrays([found, drop_empty(before)]), column_list)

    def changed_since_cut(self, table: Table) -> ChangedKeys | None:
        with self._lock, self._require_open().translate_errors():
            undo_images = self._undo_images(table)
            if not len(undo_images):
                return None
            table = self.catalog.readable_version(table)
            current = decode_rows(table, self._require_open().rows(table.storage_id).find_rows(undo_images.keys))
            # A key that neither is in the table now nor was at the cut is in no index either.
            names = [c.name for c in table.key_columns]
            keys = [decode_rows(table, drop_empty(undo_images.before), names), current.select(names)]
            return ChangedKeys(pa.concat_tables(keys).combine_chunks(), current)

    def row_images(self, table: Table, after: int) -> list[tuple[bytes, bytes]] | None:
        with self._lock, self._require_open().translate_errors():
            state = self._require_open()
            if after < metadata.read_counter(state.meta, metadata.FLOOR):
                return None
            return log_format.read_row_images(state.log, after, self.head, table.id, _MAX_LOG_ROWS)

    def close(self) -> None:
        with self._lock:
            state, self._state = self._state, None
            if state is not None:
                state.close()

    def _require_open(self) -> MapSnapshot:
        if self._state is None:
            raise SnapshotGone("The snapshot is closed.", hint="Take a new one.")
        return self._state

    def _scan(
        self,
        table: Table,
        start: bytes | None,
        stop: bytes | None,
        limit: int | None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[Any]:
        with self._lock:
            values = self._require_open().rows(table.storage_id).scan(start, stop, limit)
        while True:
            # The snapshot may be closed between two batches; then its cursor must not be used.
            with self._lock, self._require_open().translate_errors():
                found = next(values, None)
            if found is None:
                return
            yield from decode_rows(table, found, columns).to_batches()

    def _scan_at_cut(self, table: Table, undo_images: RowImages, start: bytes | None, stop: bytes | None) -> pa.Table:
        """Return a key range in key order, with the changes after the cut undone."""
        current = pa.Table.from_batches(list(self._scan(table, start, stop, None)), table.arrow)
        unchanged = current.filter(pc.invert(pc.is_in(encode_keys(table, current), value_set=undo_images.keys)))
        before = decode_rows(table, drop_empty(undo_images.before))
        found = pa.concat_tables([unchanged, before]).combine_chunks()
        return found.take(pc.sort_indices(encode_keys(table, found)))

    def _undo_images(self, table: Table) -> RowImages:
        """Return the keys that changed after the cut, each with its row at the cut (empty: none)."""
        if not table.is_changed_by_writes or self.batch.cut >= self.head:
            return NO_IMAGES
        found = self._undo_cache.get(table.id)
        if found is None:
            # Log entries of commits to views are in this range, too; `_unchanged_spans` avoids reading them more than
            # once.
            cut = self.batch.cut
            since, until = self._unchanged_spans.get(table.id, (cut, cut))
            after = max(cut, until) if since <= cut else cut
            pieces = list(
                log_format.decode_entries(log_format.entries(self._require_open().log, after, self.head, [table.id]))
            )
            found = self._undo_cache[table.id] = first_image_by_key(concat_images(pieces)) if pieces else NO_IMAGES
            if not pieces:
                self._unchanged_spans[table.id] = cut, max(after, self.head)
        return found
