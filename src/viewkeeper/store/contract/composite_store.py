"""A store that delegates each protocol of the contract to an object of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.schema import Table
from viewkeeper.store.contract import lazy_reads
from viewkeeper.store.contract.commits import (
    Batch,
    CaptureMark,
    ChangedKeys,
    ChangedTable,
    Lease,
    LogHold,
    OpenCommit,
    ParallelMap,
    PendingChanges,
    RejectedRow,
    StoreSnapshot,
    StreamChange,
    ViewChange,
    WriteResult,
)
from viewkeeper.store.contract.store import Store
from viewkeeper.store.contract.tables import BatchCommits, CatalogStore, ChangeLog, LeaseStore, TableStore


class DelegatingStore(Store):
    """Delegates each call to the object of its protocol, and reads of lazy views to `lazy_reads`."""

    can_read_lazy_views = True
    catalog_store: CatalogStore
    table_store: TableStore
    changelog: ChangeLog
    batch_commits: BatchCommits
    lease_store: LeaseStore

    # -- catalog ------------------------------------------------------------------------------------------------------

    def catalog(self) -> Catalog:
        return self.catalog_store.catalog()

    def change_catalog(self, change: Callable[[Catalog], Catalog]) -> Catalog:
        return self.catalog_store.change_catalog(change)

    def note(self, name: str) -> Mapping[str, Any] | None:
        return self.catalog_store.note(name)

    def put_note(self, name: str, note: Mapping[str, Any] | None) -> None:
        self.catalog_store.put_note(name, note)

    # -- tables -------------------------------------------------------------------------------------------------------

    def drop_rows(self, table: Table) -> None:
        self.table_store.drop_rows(table)

    def write(self, table: Table, puts: pa.Table, deletes: pa.Table) -> WriteResult:
        return self.table_store.write(table, puts, deletes)

    def write_once(self, table: Table, puts: pa.Table, deletes: pa.Table, writer: str, number: int) -> WriteResult:
        return self.table_store.write_once(table, puts, deletes, writer, number)

    def update(self, table: Table, key: pa.Table, columns: pa.Table) -> WriteResult:
        return self.table_store.update(table, key, columns)

    def load_synchronous_view(self, view: View, changes: Sequence[ViewChange]) -> None:
        self.table_store.load_synchronous_view(view, changes)

    def catch_up_synchronous_view(
        self, view: View, after: int, publish: Callable[[Catalog, int], Catalog] | None = None
    ) -> tuple[int, bool]:
        return self.table_store.catch_up_synchronous_view(view, after, publish)

    def get(self, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        return self.table_store.get(table, key) if not table.is_lazy else lazy_reads.get(self, table, key)

    def get_rows(self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        if table.is_lazy:
            return lazy_reads.find(self, table, keys, columns)
        return self.table_store.get_rows(table, keys, columns)

    def scan(
        self,
        table: Table,
        columns: Sequence[str] | None = None,
        *,
        start: bytes | None = None,
        stop: bytes | None = None,
        limit: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        if table.is_lazy:
            return lazy_reads.scan(self, table, columns, start, stop, limit)
        return self.table_store.scan(table, columns, start=start, stop=stop, limit=limit)

    def scan_at(
        self, table: Table, columns: Sequence[str], cut: int, *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[pa.RecordBatch]:
        lazy_reads.check_has_past(table)
        return self.table_store.scan_at(table, columns, cut, start=start, stop=stop)

    def describe_scan(self, table: Table, columns: Sequence[str]) -> str | None:
        return self.table_store.describe_scan(table, columns)

    def capture_mark(self, table: Table, cut: int, expected: CaptureMark | None = None) -> CaptureMark | None:
        return self.table_store.capture_mark(table, cut, expected)

    def has_moved(self, table: Table, cut: int) -> bool:
        return self.table_store.has_moved(table, cut)

    def range_keys(self, table: Table, rows: pa.Table) -> pa.Array:
        return encode_keys(table, rows) if table.is_lazy else self.table_store.range_keys(table, rows)

    def is_in_key_order(self, table: Table) -> bool:
        return table.is_lazy or self.table_store.is_in_key_order(table)

    def find_at(self, table: Table, keys: pa.Table, columns: Sequence[str], cut: int) -> pa.Table:
        lazy_reads.check_has_past(table)
        return self.table_store.find_at(table, keys, columns, cut)

    def split_points(self, table: Table, range_count: int) -> list[bytes]:
        return [] if table.is_lazy else self.table_store.split_points(table, range_count)

    def count(self, table: Table) -> int:
        return lazy_reads.count(self, table) if table.is_lazy else self.table_store.count(table)

    def rejected_rows(self, table: Table) -> list[RejectedRow]:
        return self.table_store.rejected_rows(table)

    def open_snapshot(self) -> StoreSnapshot:
        return lazy_reads.with_lazy_views(self, self.table_store.open_snapshot())

    # -- change log ---------------------------------------------------------------------------------------------------

    def head(self) -> int:
        return self.changelog.head()

    def changes(self, table: Table, columns: Sequence[str], after: int, up_to: int) -> pa.Table:
        return self.changelog.changes(table, columns, after, up_to)

    def net_changes(self, table: Table, columns: Sequence[str], after: int, up_to: int) -> pa.Table | None:
        return self.changelog.net_changes(table, columns, after, up_to)

    def changes_partition(
        self, table: Table, columns: Sequence[str], after: int, up_to: int, partition: int, partition_count: int
    ) -> pa.Table:
        return self.changelog.changes_partition(table, columns, after, up_to, partition, partition_count)

    def changed_keys(
        self, table: Table, columns: Sequence[str], after: int, up_to: int, capture_mark: CaptureMark | None = None
    ) -> tuple[ChangedKeys, CaptureMark]:
        return self.changelog.changed_keys(table, columns, after, up_to, capture_mark)

    def describe_capture(self) -> str | None:
        return self.changelog.describe_capture()

    def on_changes(self, notify: Callable[[], None]) -> None:
        self.changelog.on_changes(notify)

    def set_parallel_map(self, parallel_map: ParallelMap | None) -> None:
        self.changelog.set_parallel_map(parallel_map)

    def pending(self, after: int, tables: Sequence[int], head: int | None = None) -> PendingChanges:
        return self.changelog.pending(after, tables, head)

    def cut_after(self, after: int, tables: Sequence[int], rows: int) -> int:
        return self.changelog.cut_after(after, tables, rows)

    def entries(
        self, table: Table, columns: Sequence[str], after: int, up_to: int
    ) -> Iterator[tuple[int, float, pa.Table]]:
        lazy_reads.check_has_changes(table)
        return self.changelog.entries(table, columns, after, up_to)

    def logged_table(self, table: Table) -> Table:
        return self.changelog.logged_table(table)

    def settled_position(self, table: Table) -> int:
        lazy_reads.check_has_changes(table)
        return self.changelog.settled_position(table)

    def changed_tables(self, after: int, up_to: int) -> Mapping[int, ChangedTable]:
        return self.changelog.changed_tables(after, up_to)

    def log_bytes(self) -> int | None:
        return self.changelog.log_bytes()

    def truncate(self, up_to: int) -> None:
        self.changelog.truncate(up_to)

    def hold(self, name: str, position: int, expiry: float | None = None, *, table: Table | None = None) -> None:
        self.changelog.hold(name, position, expiry, table=table)

    def release_hold(self, name: str) -> None:
        self.changelog.release_hold(name)

    def holds(self) -> list[LogHold]:
        return self.changelog.holds()

    # -- batch commits ------------------------------------------------------------------------------------------------

    def published_batch(self) -> Batch | None:
        return self.batch_commits.published_batch()

    def salvage_batch(self) -> Batch:
        return self.batch_commits.salvage_batch()

    def commit(
        self,
        batch: Batch,
        changes: Sequence[ViewChange | StreamChange],
        change_catalog: Callable[[Catalog], Catalog] | None = None,
        open_commit: OpenCommit | None = None,
    ) -> None:
        self.batch_commits.commit(batch, changes, change_catalog, open_commit)

    def begin_commit(self, number: int, tables: Sequence[Table], share_count: int) -> OpenCommit | None:
        return self.batch_commits.begin_commit(number, tables, share_count)

    def collect_garbage(self) -> None:
        self.batch_commits.collect_garbage()

    # -- lease --------------------------------------------------------------------------------------------------------

    def acquire_lease(self) -> Lease:
        return self.lease_store.acquire_lease()

    def lease_holder(self) -> str | None:
        return self.lease_store.lease_holder()
