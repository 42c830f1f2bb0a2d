"""The table store over an ordered map: rows are written together with their log entries and read in one state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper import failpoints
from viewkeeper.errors import BadValue, RowAbsent, TooLarge
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.delta import with_weight
from viewkeeper.model.encoding.keys import encode_keys, encode_whole_key, restrict_to_prefix
from viewkeeper.model.encoding.rows import NewerRowLayout, decode_row, decode_rows, encode_rows
from viewkeeper.model.schema import Table
from viewkeeper.store.contract.commits import Batch, Capabilities, ViewChange, WriteResult
from viewkeeper.store.contract.tables import TableStore, column_names, convert_rows
from viewkeeper.store.ordered import log_format, metadata
from viewkeeper.store.ordered.handle import OrderedCatalogStore, StoreHandle
from viewkeeper.store.ordered.maps import State
from viewkeeper.store.ordered.observed_writes import (
    CarriedState,
    SynchronousViewLoader,
    run_write_observer,
    synchronous_table_ids,
)
from viewkeeper.store.ordered.row_images import (
    NO_IMAGES,
    check_sizes,
    concat_images,
    drop_empty,
    filter_key_range,
    first_image_by_key,
)
from viewkeeper.store.ordered.snapshot import OrderedSnapshot
from viewkeeper.store.ordered.write_call import WriteCall, encode_change_rows, images_to_delta

CAPABILITIES = Capabilities(
    changelog=True, atomic_batch=True, snapshot_scan=True, before_images=True, cell_versions=False
)


class OrderedTables(TableStore):
    """Writes and reads table rows. A write call is one transaction; a scan reads one state."""

    capabilities = CAPABILITIES

    def __init__(self, handle: StoreHandle, catalog_store: OrderedCatalogStore) -> None:
        self.url = handle.url
        self._handle = handle
        self._catalog_store = catalog_store
        self._synchronous_loader = SynchronousViewLoader(handle, catalog_store)
        self._carried_state = CarriedState()
        self._snapshot_batch: Batch | None = None
        """Batch of the last snapshot, reused for snapshots of the same number, because its record is long."""
        self._unchanged_spans: dict[int, tuple[int, int]] = {}

    def drop_rows(self, table: Table) -> None:
        with self._handle.write([table.id]) as state:
            state.rows(table.id).clear()

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(self, table: Table, puts: pa.Table, deletes: pa.Table) -> WriteResult:
        return self._write(table, puts, deletes, None)

    def write_once(self, table: Table, puts: pa.Table, deletes: pa.Table, writer: str, number: int) -> WriteResult:
        return self._write(table, puts, deletes, (f"once:{writer}", number))

    def _write(
        self, table: Table, puts: pa.Table, deletes: pa.Table, write_marker: tuple[str, int] | None
    ) -> WriteResult:
        max_bytes = self._handle.require_writable().max_call_bytes
        if puts.nbytes + deletes.nbytes > max_bytes:
            raise TooLarge(
                f"A write call to {table.name} has {(puts.nbytes + deletes.nbytes) / 1e9:.1f} GB,"
                f" {max_bytes / 1e9:.0f} GB is the limit.",
                hint="Write it in several calls: each is a transaction.",
            )
        slices = encode_change_rows(table, puts, deletes)
        first = next(slices, None)  # before the transaction: other writers wait only while rows are put
        failpoints.hit("write.before")
        with self._observed_transaction(table, puts.nbytes) as (state, catalog):
            call = WriteCall(state, puts.nbytes)
            carried_state = self._carried_state.take(call.head)
            if write_marker is not None:
                note = metadata.read_note(state.meta, write_marker[0])
                if note is not None and note["number"] >= write_marker[1]:
                    return call.finish()
                metadata.put_note(state.meta, write_marker[0], {"number": write_marker[1]})
            pieces = []
            while first is not None:
                images = call.apply(table, *first)
                if table.id in catalog.synchronous_views:
                    pieces.append(images)
                first = next(slices, None)
            failpoints.hit("write.middle")
            changed = call.changed_rows
            if pieces:
                run_write_observer(call, catalog, table, pieces, carried_state)
            written = replace(call.finish(), changed_rows=changed)
        self._carried_state.put(written.position, carried_state)
        return written

    @contextmanager
    def _observed_transaction(self, table: Table, size: int = 0) -> Iterator[tuple[State, Catalog]]:
        """Open a transaction over a table and its synchronous views, and return the catalog of that transaction."""
        while True:
            view_tables = synchronous_table_ids(self._catalog_store.cached.synchronous_views.get(table.id, ()))
            with ExitStack() as stack:
                state = stack.enter_context(self._handle.write([table.id, *view_tables], size))
                catalog = self._catalog_store.catalog_at(state)
                if not set(synchronous_table_ids(catalog.synchronous_views.get(table.id, ()))) <= set(view_tables):
                    continue  # nothing is written yet; table handles must be opened before a transaction
                yield state, catalog
                return

    def update(self, table: Table, key: pa.Table, columns: pa.Table) -> WriteResult:
        self._handle.require_writable()
        names = column_names(table, columns.column_names)
        key_names = {column.name for column in table.key_columns}
        if fixed := [name for name in names if name in key_names]:
            raise BadValue(
                f"Column {fixed[0]} is in the key of {table.name} and cannot be updated.",
                hint="Delete the row and put a new one.",
            )
        new = dict(zip(names, convert_rows(table, columns.rename_columns(names), names).columns, strict=True))
        keys = encode_keys(table, convert_rows(table, key, [column.name for column in table.key_columns]))
        with self._observed_transaction(table) as (state, catalog):
            # Use the current definition: a column that another process has just added keeps its value.
            table = catalog.tables_by_id.get(table.id, table)
            rows = state.rows(table.id)
            old = [rows.find(name) for name in keys.to_pylist()]
            if None in old:
                raise RowAbsent(
                    f"{table.name} has no row with key {key.slice(old.index(None), 1).to_pylist()[0]}.",
                    hint="Put the whole row instead.",
                )
            row = decode_rows(table, pa.array(old, pa.binary()))
            row = pa.table({name: new.get(name, row.column(name)) for name in row.column_names}, schema=table.arrow)
            after = encode_rows(table, row)
            check_sizes(table, row, keys, after)
            call = WriteCall(state)
            carried_state = self._carried_state.take(call.head)
            images = call.apply(table, keys, after)
            if table.id in catalog.synchronous_views:
                run_write_observer(call, catalog, table, [images], carried_state)
            written = call.finish()
        self._carried_state.put(written.position, carried_state)
        return written

    def load_synchronous_view(self, view: View, changes: Sequence[ViewChange]) -> None:
        self._synchronous_loader.load(view, changes)

    def catch_up_synchronous_view(
        self, view: View, after: int, publish: Callable[[Catalog, int], Catalog] | None = None
    ) -> tuple[int, bool]:
        return self._synchronous_loader.catch_up(view, after, publish)

    # -- reading ------------------------------------------------------------------------------------------------------

    def get(self, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        value = self._handle.require_open().get(table.storage_id, encode_whole_key(table, key))
        if value is None:
            return None
        try:
            return decode_row(table, value)
        except NewerRowLayout:
            return decode_row(self._catalog_store.catalog().readable_version(table), value)

    def get_rows(self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        column_list = column_names(table, columns)
        encoded_keys = encode_keys(table, convert_rows(table, keys, [column.name for column in table.key_columns]))
        with self._handle.read([table.storage_id]) as state:
            table = self._catalog_store.catalog_at(state).readable_version(table)
            found = state.rows(table.storage_id).find_rows(encoded_keys)
        return decode_rows(table, found, column_list)

    def scan(
        self,
        table: Table,
        columns: Sequence[str] | None = None,
        *,
        start: bytes | None = None,
        stop: bytes | None = None,
        limit: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        self._handle.require_open()
        return self._scan(table, column_names(table, columns), *restrict_to_prefix(table, start, stop), limit)

    def _scan(
        self, table: Table, columns: list[str], start: bytes | None, stop: bytes | None, limit: int | None
    ) -> Iterator[pa.RecordBatch]:
        with self._handle.read([table.storage_id]) as state:
            table = self._catalog_store.catalog_at(state).readable_version(table)
            for values in state.rows(table.storage_id).scan(start, stop, limit):
                yield from decode_rows(table, values, columns).to_batches()
                self._handle.require_open()  # the store may have been closed or forked meanwhile

    def scan_at(
        self, table: Table, columns: Sequence[str], cut: int, *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[pa.RecordBatch]:
        self._handle.require_open()
        return self._scan_at(table, column_names(table, columns), cut, *restrict_to_prefix(table, start, stop))

    def _scan_at(
        self, table: Table, columns: list[str], cut: int, start: bytes | None, stop: bytes | None
    ) -> Iterator[pa.RecordBatch]:
        # Rows and log belong to one state: the changes that the log lists after the cut are undone.
        with self._handle.read([table.storage_id]) as state:
            self._handle.check_log_retained(state, cut)
            table = self._catalog_store.catalog_at(state).readable_version(table)
            head = metadata.read_counter(state.meta, metadata.HEAD)
            later = log_format.entries(state.log, cut, head, [table.storage_id])
            undo_deltas = [
                images_to_delta(table, filter_key_range(images, start, stop), columns, -1)
                for images in log_format.decode_entries(later)
            ]
            for values in state.rows(table.storage_id).scan(start, stop, None):
                yield from with_weight(decode_rows(table, values, columns), 1).to_batches()
                self._handle.require_open()
        for delta in undo_deltas:
            yield from delta.to_batches()

    def find_at(self, table: Table, keys: pa.Table, columns: Sequence[str], cut: int) -> pa.Table:
        column_list = column_names(table, columns)
        encoded_keys = encode_keys(table, convert_rows(table, keys, [column.name for column in table.key_columns]))
        with self._handle.read([table.storage_id]) as state:
            self._handle.check_log_retained(state, cut)
            table = self._catalog_store.catalog_at(state).readable_version(table)
            head = metadata.read_counter(state.meta, metadata.HEAD)
            later = list(log_format.decode_entries(log_format.entries(state.log, cut, head, [table.storage_id])))
            undo_images = first_image_by_key(concat_images(later)) if later else NO_IMAGES
            before = undo_images.before.filter(pc.is_in(undo_images.keys, value_set=encoded_keys))
            encoded_keys = encoded_keys.filter(pc.invert(pc.is_in(encoded_keys, value_set=undo_images.keys)))
            found = state.rows(table.storage_id).find_rows(encoded_keys)
        return decode_rows(table, pa.concat_arrays([found, drop_empty(before)]), column_list)

    def split_points(self, table: Table, range_count: int) -> list[bytes]:
        if range_count < 2:
            return []
        with self._handle.read([table.storage_id]) as state:
            return [p for p in state.rows(table.storage_id).split_points(range_count) if p.startswith(table.key_prefix)]

    def count(self, table: Table) -> int:
        with self._handle.read([table.storage_id]) as state:
            rows = state.rows(table.storage_id)
            return (
                sum(map(len, rows.scan(*restrict_to_prefix(table, None, None), None)))
                if table.key_prefix
                else rows.count()
            )

    def open_snapshot(self) -> OrderedSnapshot:
        snapshot = OrderedSnapshot(
            self._handle.require_open(), self._catalog_store.cached, self._snapshot_batch, self._unchanged_spans
        )
        self._snapshot_batch = snapshot.batch if snapshot.batch.number else None
        return snapshot
