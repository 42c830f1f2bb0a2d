"""A store that is made of parts: an object for each protocol, and nothing but who does what."""

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
    Begun,
    Changed,
    Hold,
    Lease,
    Pending,
    Pinned,
    Reject,
    Seen,
    Spread,
    StreamChange,
    Touched,
    ViewChange,
    Written,
)
from viewkeeper.store.contract.store import Store
from viewkeeper.store.contract.tables import Feed, Leasing, Publishing, Records, Rows


class StoreOfParts(Store):
    """What is asked of it, the part does that it belongs to; what is asked of lazy views, who works them out."""

    answers_lazily = True
    records: Records
    rows: Rows
    feed: Feed
    publishing: Publishing
    leasing: Leasing

    # -- records ------------------------------------------------------------------------------------------------------

    def catalog(self) -> Catalog:
        return self.records.catalog()

    def change_catalog(self, change: Callable[[Catalog], Catalog]) -> Catalog:
        return self.records.change_catalog(change)

    def note(self, name: str) -> Mapping[str, Any] | None:
        return self.records.note(name)

    def put_note(self, name: str, note: Mapping[str, Any] | None) -> None:
        self.records.put_note(name, note)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def drop_rows(self, table: Table) -> None:
        self.rows.drop_rows(table)

    def write(self, table: Table, puts: pa.Table, deletes: pa.Table) -> Written:
        return self.rows.write(table, puts, deletes)

    def write_once(self, table: Table, puts: pa.Table, deletes: pa.Table, writer: str, number: int) -> Written:
        return self.rows.write_once(table, puts, deletes, writer, number)

    def update(self, table: Table, key: pa.Table, columns: pa.Table) -> Written:
        return self.rows.update(table, key, columns)

    def place(self, view: View, changes: Sequence[ViewChange]) -> None:
        self.rows.place(view, changes)

    def follow(
        self, view: View, after: int, publish: Callable[[Catalog, int], Catalog] | None = None
    ) -> tuple[int, bool]:
        return self.rows.follow(view, after, publish)

    def get(self, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        return self.rows.get(table, key) if not table.is_lazy else lazy_reads.get(self, table, key)

    def get_many(self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        if table.is_lazy:
            return lazy_reads.find(self, table, keys, columns)
        return self.rows.get_many(table, keys, columns)

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
        return self.rows.scan(table, columns, start=start, stop=stop, limit=limit)

    def scan_at(
        self, table: Table, columns: Sequence[str], cut: int, *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[pa.RecordBatch]:
        lazy_reads.refuse_past(table)
        return self.rows.scan_at(table, columns, cut, start=start, stop=stop)

    def scan_text(self, table: Table, columns: Sequence[str]) -> str | None:
        return self.rows.scan_text(table, columns)

    def watch(self, table: Table, cut: int, seen: Seen | None = None) -> Seen | None:
        return self.rows.watch(table, cut, seen)

    def has_moved(self, table: Table, cut: int) -> bool:
        return self.rows.has_moved(table, cut)

    def range_keys(self, table: Table, rows: pa.Table) -> pa.Array:
        return encode_keys(table, rows) if table.is_lazy else self.rows.range_keys(table, rows)

    def in_key_order(self, table: Table) -> bool:
        return table.is_lazy or self.rows.in_key_order(table)

    def find_at(self, table: Table, keys: pa.Table, columns: Sequence[str], cut: int) -> pa.Table:
        lazy_reads.refuse_past(table)
        return self.rows.find_at(table, keys, columns, cut)

    def split_points(self, table: Table, parts: int) -> list[bytes]:
        return [] if table.is_lazy else self.rows.split_points(table, parts)

    def count(self, table: Table) -> int:
        return lazy_reads.count(self, table) if table.is_lazy else self.rows.count(table)

    def rejects(self, table: Table) -> list[Reject]:
        return self.rows.rejects(table)

    def pin(self) -> Pinned:
        return lazy_reads.answered(self, self.rows.pin())

    # -- feed ---------------------------------------------------------------------------------------------------------

    def head(self) -> int:
        return self.feed.head()

    def changes(self, table: Table, columns: Sequence[str], after: int, upto: int) -> pa.Table:
        return self.feed.changes(table, columns, after, upto)

    def net_changes(self, table: Table, columns: Sequence[str], after: int, upto: int) -> pa.Table | None:
        return self.feed.net_changes(table, columns, after, upto)

    def part_of_changes(
        self, table: Table, columns: Sequence[str], after: int, upto: int, part: int, parts: int
    ) -> pa.Table:
        return self.feed.part_of_changes(table, columns, after, upto, part, parts)

    def changed(
        self, table: Table, columns: Sequence[str], after: int, upto: int, seen: Seen | None = None
    ) -> tuple[Changed, Seen]:
        return self.feed.changed(table, columns, after, upto, seen)

    def capture_text(self) -> str | None:
        return self.feed.capture_text()

    def on_news(self, told: Callable[[], None]) -> None:
        self.feed.on_news(told)

    def work_by(self, spread: Spread | None) -> None:
        self.feed.work_by(spread)

    def pending(self, after: int, tables: Sequence[int], head: int | None = None) -> Pending:
        return self.feed.pending(after, tables, head)

    def cut_after(self, after: int, tables: Sequence[int], rows: int) -> int:
        return self.feed.cut_after(after, tables, rows)

    def entries(
        self, table: Table, columns: Sequence[str], after: int, upto: int
    ) -> Iterator[tuple[int, float, pa.Table]]:
        lazy_reads.refuse_changes(table)
        return self.feed.entries(table, columns, after, upto)

    def told_by(self, table: Table) -> Table:
        return self.feed.told_by(table)

    def settled(self, table: Table) -> int:
        lazy_reads.refuse_changes(table)
        return self.feed.settled(table)

    def touched(self, after: int, upto: int) -> Mapping[int, Touched]:
        return self.feed.touched(after, upto)

    def log_bytes(self) -> int | None:
        return self.feed.log_bytes()

    def truncate(self, upto: int) -> None:
        self.feed.truncate(upto)

    def hold(self, name: str, position: int, expiry: float | None = None, *, table: Table | None = None) -> None:
        self.feed.hold(name, position, expiry, table=table)

    def release_hold(self, name: str) -> None:
        self.feed.release_hold(name)

    def holds(self) -> list[Hold]:
        return self.feed.holds()

    # -- publishing ---------------------------------------------------------------------------------------------------

    def published(self) -> Batch | None:
        return self.publishing.published()

    def salvaged(self) -> Batch:
        return self.publishing.salvaged()

    def commit(
        self,
        batch: Batch,
        changes: Sequence[ViewChange | StreamChange],
        change_catalog: Callable[[Catalog], Catalog] | None = None,
        begun: Begun | None = None,
    ) -> None:
        self.publishing.commit(batch, changes, change_catalog, begun)

    def begin(self, number: int, tables: Sequence[Table], shares: int) -> Begun | None:
        return self.publishing.begin(number, tables, shares)

    def collect(self) -> None:
        self.publishing.collect()

    # -- lease --------------------------------------------------------------------------------------------------------

    def acquire_lease(self) -> Lease:
        return self.leasing.acquire_lease()

    def lease_holder(self) -> str | None:
        return self.leasing.lease_holder()
