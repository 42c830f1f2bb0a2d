"""The change log of a store over an ordered map: changes after a position, pending changes, and holds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

import pyarrow as pa

from viewkeeper import failpoints
from viewkeeper.model.encoding.keys import restrict_to_prefix
from viewkeeper.model.schema import Table
from viewkeeper.store.contract.commits import ChangedTable, LogHold, PendingChanges
from viewkeeper.store.contract.tables import ChangeLog, column_names
from viewkeeper.store.ordered import log_format, metadata
from viewkeeper.store.ordered.handle import OrderedCatalogStore, StoreHandle
from viewkeeper.store.ordered.row_images import NO_IMAGES, RowImages, filter_key_range, net_delta
from viewkeeper.store.ordered.write_call import images_to_delta

_MAX_CACHED_REQUESTS = 64
_NO_CHANGES = PendingChanges(0, 0, None)
_position = attrgetter("position")


class OrderedChangeLog(ChangeLog):
    """Reads and truncates the change log."""

    def __init__(self, handle: StoreHandle, catalog_store: OrderedCatalogStore) -> None:
        self.url = handle.url
        self._handle = handle
        self._catalog_store = catalog_store
        self._log_size = log_format.LogSize()
        self._pending_cache: dict[tuple[int, tuple[int, ...]], tuple[int, PendingChanges]] = {}
        """Pending changes from a position up to another one. The log only grows, so the next request continues from
        there."""

    def head(self) -> int:
        return self._handle.require_open().read_counter(metadata.HEAD)

    def changes(self, table: Table, columns: Sequence[str], after: int, up_to: int) -> pa.Table:
        names = column_names(table, columns)
        with self._handle.read(only_log=True) as state:
            self._handle.check_log_retained(state, after)
            table = self._catalog_store.catalog_at(state).readable_version(table)
            chunks = log_format.entries(state.log, after, up_to, [table.storage_id])
            deltas = [
                images_to_delta(table, _images_of_table(table, images), names, 1)
                for images in log_format.decode_entries(chunks)
            ]
        return pa.concat_tables(deltas) if deltas else images_to_delta(table, NO_IMAGES, names, 1)

    def net_changes(self, table: Table, columns: Sequence[str], after: int, up_to: int) -> pa.Table | None:
        if table.is_bag and not table.is_stored:
            return None  # its entries are deltas, which add up, not successive images of a key
        return self.changes_partition(table, columns, after, up_to, 0, 1)

    def changes_partition(
        self, table: Table, columns: Sequence[str], after: int, up_to: int, partition: int, partition_count: int
    ) -> pa.Table:
        names = column_names(table, columns)
        with self._handle.read(only_log=True) as state:
            self._handle.check_log_retained(state, after)
            table = self._catalog_store.catalog_at(state).readable_version(table)
            start, stop = log_format.partition_bounds(
                state.log, after, up_to, table.storage_id, partition, partition_count
            )
            chunks = log_format.entries_between(state.log, start, stop, [table.storage_id])
            pieces = [_images_of_table(table, images) for images in log_format.decode_entries(chunks)]
        return net_delta(table, pieces, names)

    def entries(
        self, table: Table, columns: Sequence[str], after: int, up_to: int
    ) -> Iterator[tuple[int, float, pa.Table]]:
        """Yield the changes call by call: position, time, and the delta of some chunks of the call."""
        names = column_names(table, columns)
        with self._handle.read(only_log=True) as state:
            self._handle.check_log_retained(state, after)
            table = self._catalog_store.catalog_at(state).readable_version(table)
            found = []
            for position, call in groupby(log_format.entries(state.log, after, up_to, [table.storage_id]), _position):
                chunks = list(call)
                found += [(position, chunks[0].time, images) for images in log_format.decode_entries(chunks)]
        for position, time_, images in found:
            if len(table_images := _images_of_table(table, images)):
                yield position, time_, images_to_delta(table, table_images, names, 1)

    def pending(self, after: int, tables: Sequence[int], head: int | None = None) -> PendingChanges:
        with self._handle.read(only_log=True) as state:
            self._handle.check_log_retained(state, after)
            head = metadata.read_counter(state.meta, metadata.HEAD)
            request = (after, tuple(tables))
            counted_up_to, found = self._pending_cache.get(request, (after, _NO_CHANGES))
            if counted_up_to > head:  # another thread has seen a newer head
                counted_up_to, found = after, _NO_CHANGES
            if counted_up_to < head:
                found = _add_entries(found, log_format.entries(state.log, counted_up_to, head, tables))
        if len(self._pending_cache) >= _MAX_CACHED_REQUESTS:
            self._pending_cache.clear()
        self._pending_cache[request] = head, found
        return found

    def cut_after(self, after: int, tables: Sequence[int], rows: int) -> int:
        with self._handle.read(only_log=True) as state:
            self._handle.check_log_retained(state, after)
            head = metadata.read_counter(state.meta, metadata.HEAD)
            counted, previous_call, call = 0, None, None
            for entry in log_format.entries(state.log, after, head, tables):
                if entry.position != call:
                    previous_call, call = call, entry.position
                counted += entry.rows
                if counted > rows and previous_call is not None:
                    return previous_call
            return head

    def changed_tables(self, after: int, up_to: int) -> dict[int, ChangedTable]:
        with self._handle.read(only_log=True) as state:
            self._handle.check_log_retained(state, after)
            return log_format.find_changed_tables(state.log, after, up_to)

    def log_bytes(self) -> int | None:
        with self._handle.read() as state:
            size = state.log.size()
            if size is not None:
                return size
            floor = metadata.read_counter(state.meta, metadata.FLOOR)
            return self._log_size.measure(state.log, floor, metadata.read_counter(state.meta, metadata.HEAD))

    def truncate(self, up_to: int) -> None:
        with self._handle.write() as state:
            hold_positions = [hold.position for hold in metadata.read_holds(state.meta, time.time())]
            head = metadata.read_counter(state.meta, metadata.HEAD)
            up_to = min([up_to, head, *hold_positions])
            if up_to > metadata.read_counter(state.meta, metadata.FLOOR):
                log_format.truncate(state.log, up_to)
                failpoints.hit("commit.5.truncate.middle")
                metadata.put_counter(state.meta, metadata.FLOOR, up_to)

    def hold(self, name: str, position: int, expiry: float | None = None, *, table: Table | None = None) -> None:
        """Retain the log after a position until released or (seconds since 1970) expired. A name has one hold."""
        with self._handle.write() as state:
            self._handle.check_log_retained(state, position)
            metadata.put_hold(state.meta, LogHold(name, position, expiry))

    def release_hold(self, name: str) -> None:
        """Release a hold; an unknown name is no error."""
        with self._handle.write() as state:
            metadata.delete_hold(state.meta, name)

    def holds(self) -> list[LogHold]:
        """Return the holds that have not expired."""
        with self._handle.read() as state:
            return metadata.read_holds(state.meta, time.time())


def _images_of_table(table: Table, images: RowImages) -> RowImages:
    """Return the images of a table; for a member of a view family, those of its own rows."""
    return filter_key_range(images, *restrict_to_prefix(table, None, None)) if table.key_prefix else images


def _add_entries(pending: PendingChanges, entries: Iterable[log_format.LogEntry]) -> PendingChanges:
    """Return the pending changes extended by later log entries."""
    calls, rows, oldest, size = pending.calls, pending.rows, pending.oldest_time, pending.size
    first, last, by_table = pending.first_position, pending.last_position, dict(pending.rows_by_table)
    for entry in entries:
        calls += entry.position != last
        oldest = entry.time if oldest is None else oldest
        first, last = entry.position if first is None else first, entry.position
        rows, size = rows + entry.rows, size + len(entry.body)
        by_table[entry.table_id] = by_table.get(entry.table_id, 0) + entry.rows
    return PendingChanges(calls, rows, oldest, first, last, size, by_table)
