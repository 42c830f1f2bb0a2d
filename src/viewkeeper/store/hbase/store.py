"""HBaseStore: the store contract over HBase's Thrift2 gateway.

What HBase can and cannot do shapes it: a write call is atomic for each row, not as a whole; positions are times of
HBase's clock, in milliseconds, so a call takes its position after its rows have theirs; nothing is known of a row
before it is written, so a put counts as a change.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from viewkeeper.errors import BadValue, MaintainerBusy, ReadOnly, StoreError
from viewkeeper.model.catalog import Catalog
from viewkeeper.model.schema import Table
from viewkeeper.model.selection import wanted
from viewkeeper.store.arrow import column_names, typed
from viewkeeper.store.base import (
    Batch,
    Capabilities,
    Changed,
    Finding,
    Pending,
    Reject,
    Seen,
    Spread,
    Store,
    StreamChange,
    ViewChange,
    Written,
)
from viewkeeper.store.files import Directory
from viewkeeper.store.hbase import commit, lease, pushing, writing
from viewkeeper.store.hbase.client import Client
from viewkeeper.store.hbase.examine import examine
from viewkeeper.store.hbase.failures import NoSuchTable
from viewkeeper.store.hbase.feed import Feed
from viewkeeper.store.hbase.history import History
from viewkeeper.store.hbase.known import CACHE, Known
from viewkeeper.store.hbase.layouts import Layouts
from viewkeeper.store.hbase.pinned import PinnedBatch
from viewkeeper.store.hbase.push.attached import Attached, capture_text
from viewkeeper.store.hbase.reading import Reader
from viewkeeper.store.hbase.records import FORMAT, Cells, Records, State, catalog_cells
from viewkeeper.store.hbase.rejects import Rejects
from viewkeeper.store.hbase.sizes import Sizes, split_points
from viewkeeper.store.hbase.url import parse, state_home, with_options
from viewkeeper.store.hbase.windows import OVERLAP
from viewkeeper.store.redo import files, steps, streams
from viewkeeper.store.redo.files import Redo

_DEFINING = 10.0
"""Seconds that a change of the catalog waits for a batch that changes it too."""


class HBaseStore(Store):
    """One open database in a namespace. Its methods may be called from any thread."""

    selects = True
    capabilities = Capabilities(
        change_feed=True, atomic_batch=False, snapshot_scan=False, before_images=False, cell_versions=True
    )

    def __init__(self, url: str, mode: str = "w", **options: Any) -> None:
        place = parse(url, options)
        if mode not in ("w", "r"):
            raise BadValue(f"There is no mode {mode!r}.", hint="Modes: 'w' and 'r'.")
        self.url = with_options(url, options)
        self._mode, self._namespace = mode, place.namespace
        self._client = Client(place.gateway, retry=place.retry)
        self._closed = False
        try:
            self._client.greet()
            self._records = Records(self._client, place.namespace)
            state = self._records.open(mode, place.create)
        except BaseException:
            self._client.close()
            raise
        self.uuid = state.uuid
        self.state_path = place.state or state_home(self.uuid)
        self._redos = Directory(self.state_path).below("redo")
        self._streams = Directory(self.state_path).below("streams")
        self._forgotten = 0
        """The position up to which the next batch forgets the deltas of views that are not stored."""
        self._known = Known(self._records, state, CACHE if place.cache is None else place.cache)
        self._layouts = Layouts(self._client, place.namespace)
        self._reader = Reader(self._client, self._known)
        overlap = int(1000 * (OVERLAP if place.overlap is None else place.overlap))
        self._feed = Feed(self.url, self._client, self._records, self._known, self._layouts, self._reader, overlap)
        self._push = Attached(self._records, self._known, self._layouts, self.state_path, place.capture)
        self._feed.arrivals = self._push.arrivals
        self._history = History(self._client, self._known, self._layouts, self._reader, self._streams)
        self._lease_span = lease.SPAN if place.lease is None else place.lease
        self._lease: lease.RowLease | None = None
        self._owner = f"process {os.getpid()} on {socket.gethostname()} ({secrets.token_hex(4)})"
        self._committing = threading.Lock()
        self._unfinished = False
        self._sizes = Sizes(self._client, self._layouts, self._known)

    # -- catalog ------------------------------------------------------------------------------------------------------

    def catalog(self) -> Catalog:
        self._live()
        return self._known.catalog()

    def change_catalog(self, change: Callable[[Catalog], Catalog]) -> Catalog:
        self._writable()
        until = time.monotonic() + _DEFINING
        made: list[Catalog] = []
        said: list[str] = []

        def moved(state: State) -> tuple[State, Cells] | None:
            made.clear()
            said.clear()
            before = self._known.catalog() if state.catalog else Catalog()
            _, changed, written = self._records.change(before, change)
            if written is None:
                made.append(changed)
                return None
            for table in filter(None, map(changed.tables_by_id.get, written.definitions)):
                said.extend(self._layouts.check(table))
            if state.claim is not None and state.claim.defines:
                return None
            made.append(changed)
            return replace(state, catalog=changed.version, format=FORMAT), catalog_cells(written)

        before = {t.id for t in self._known.catalog(now=True).tables}
        while True:
            state = self._records.move(moved)
            self._known.learn(state)
            if made:
                break
            if time.monotonic() > until:
                raise MaintainerBusy(
                    f"A view of {self._namespace} is being published by {state.claim and state.claim.owner}.",
                    hint="Try again when it is done.",
                )
            time.sleep(0.05)
        for table in (t for t in made[0].tables if t.id not in before):
            self._layouts.ensure(self._layouts.of(table))
        for warning in said:
            warnings.warn(warning, stacklevel=2)
        return self._known.catalog(now=True)

    def drop_rows(self, table: Table) -> None:
        self._writable()
        layout = self._layouts.of(table)
        if layout.owned:
            with suppress(NoSuchTable):
                self._client.tables.drop(layout.name)
        self._layouts.forget(table)
        self._sizes.forget(table)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def write(self, table: Table, puts: pa.Table, deletes: pa.Table) -> Written:
        self._writable()
        count = writing.write_rows(self._client, self._layouts, self._layouts.of(table), puts, deletes)
        self._sizes.forget(table)
        return Written(self._feed.after_write() if count else self.head(), count, atomic=False)

    def update(self, table: Table, key: pa.Table, columns: pa.Table) -> Written:
        self._writable()
        changed = writing.update_row(self._client, self._layouts.of(table), key, columns)
        return Written(self._feed.after_write() if changed else self.head(), int(changed), atomic=False)

    def get(self, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        self._live()
        layout = self._layouts.of(table)
        name = layout.keys.encode_one(key)
        point = self._layouts.point(layout)
        if point is not None:
            cells = self._reader.cells(layout, name)
            if cells is None:
                return None
            found = point.row(key, cells)
            if found is not None:
                return found
        keys = pa.array([name], pa.binary())
        rows = self._reader.get(layout, keys, table.arrow.names).rows
        if not rows.num_rows:
            return None
        row: dict[str, Any] = rows.select(table.outside.names).cast(table.outside).to_pylist()[0]
        return row | {name: rows[name][0].as_py() for name in rows.column_names if name not in row}

    def get_many(self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        self._live()
        layout = self._layouts.of(table)
        names = layout.row_keys(typed(table, keys, [c.name for c in table.key_columns]))
        return self._reader.get(layout, names, column_names(table, columns)).rows

    def scan(
        self,
        table: Table,
        columns: Sequence[str] | None = None,
        *,
        start: bytes | None = None,
        stop: bytes | None = None,
        limit: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        self._live()
        return self._reader.scan(self._layouts.of(table), column_names(table, columns), start, stop, limit)

    def scan_at(
        self, table: Table, columns: Sequence[str], cut: int, *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[pa.RecordBatch]:
        self._live()
        return self._feed.at(table, column_names(table, columns), cut, start, stop)

    def scan_text(self, table: Table, columns: Sequence[str]) -> str:
        return pushing.scan_text(self._layouts.of(table), columns, wanted(table))

    def watch(self, table: Table, cut: int, seen: Seen | None = None) -> Seen | None:
        self._live()
        return self._feed.watch(table, cut, seen)

    def has_moved(self, table: Table, cut: int) -> bool:
        return self._feed.has_moved(table, cut)

    def range_keys(self, table: Table, rows: pa.Table) -> pa.Array:
        return self._layouts.of(table).row_keys(rows)

    def in_key_order(self, table: Table) -> bool:
        return self._layouts.of(table).in_key_order

    def find_at(self, table: Table, keys: pa.Table, columns: Sequence[str], cut: int) -> pa.Table:
        self._live()
        return self._feed.find_at(table, keys, column_names(table, columns), cut)

    def split_points(self, table: Table, parts: int) -> list[bytes]:
        self._live()
        return split_points(self._sizes.of(table), parts)

    def count(self, table: Table) -> int:
        self._live()
        return self._sizes.of(table).rows

    def rejects(self, table: Table) -> list[Reject]:
        self._live()
        return Rejects(self._records).listed(table)

    # -- feed ---------------------------------------------------------------------------------------------------------

    def head(self) -> int:
        self._live()
        return self._feed.head()

    def changes(self, table: Table, columns: Sequence[str], after: int, upto: int) -> pa.Table:
        self._live()
        return self._feed.changes(table, column_names(table, columns), after, upto)

    def changed(
        self, table: Table, columns: Sequence[str], after: int, upto: int, seen: Seen | None = None
    ) -> tuple[Changed, Seen]:
        self._live()
        return self._feed.changed(table, column_names(table, columns), after, upto, seen)

    def capture_by(self, spread: Spread | None) -> None:
        self._feed.spread = spread

    @property
    def look_pause(self) -> float:  # type: ignore[override]
        return self._push.pause

    def capture_text(self) -> str:
        self._live()
        return capture_text(self._records)

    def on_news(self, told: Callable[[], None]) -> None:
        self._push.on_news = told

    def pending(self, after: int, tables: Sequence[int]) -> Pending:
        self._live()
        self._push.follow()
        return self._feed.pending(after, tables)

    def entries(
        self, table: Table, columns: Sequence[str], after: int, upto: int
    ) -> Iterator[tuple[int, float, pa.Table]]:
        self._live()
        return self._history.entries(table, column_names(table, columns), after, upto)

    def settled(self, table: Table) -> int:
        self._live()
        return self._history.settled(table)

    def told_by(self, table: Table) -> Table:
        self._live()
        return self._history.told_by(table)

    def pin(self) -> PinnedBatch:
        self._live()
        return PinnedBatch(self._records, self._known, self._layouts, self._reader, self._feed)

    def cut_after(self, after: int, tables: Sequence[int], rows: int) -> int:
        self._live()
        return self._feed.cut_after(after, tables, rows)

    def truncate(self, upto: int) -> None:
        """HBase forgets old versions by itself; what it pushed, and files of deltas, are forgotten here."""
        self._writable()
        self._forgotten = max(self._forgotten, upto)
        self._push.truncate(upto)

    # -- batches ------------------------------------------------------------------------------------------------------

    def published(self) -> Batch | None:
        self._live()
        if self._unfinished and self._committing.acquire(blocking=False):
            try:
                self._finish_own()
            finally:
                self._committing.release()
        published = self._known.published()
        return None if published is None else published.batch

    def commit(
        self,
        batch: Batch,
        changes: Sequence[ViewChange | StreamChange],
        change_catalog: Callable[[Catalog], Catalog] | None = None,
    ) -> None:
        self._writable()
        with self._committing:
            self._finish_own()
            if self._lease is not None and self._lease.lost:
                raise MaintainerBusy(
                    f"The lease on {self._namespace} ran out and another process has taken it.", hint="Open it again."
                )
            steps.check_turn(self._namespace, self._known.state(now=True), batch.number)
            stored = [change for change in changes if isinstance(change, ViewChange)]
            tables = tuple(commit.table_redo(self._client, self._layouts.of(c.table), c) for c in stored)
            told = [c for c in changes if isinstance(c, StreamChange)]
            streamed = [(c.table.id, streams.write(self._streams, batch.number, c)) for c in told]
            before = self._known.published()
            claimed = None
            self._unfinished = True  # from here on: the answer to a claim may be lost
            while claimed is None:  # again if the catalog has changed meanwhile
                current = self._known.catalog(now=True)
                written = None
                if change_catalog is not None:
                    current, _, written = self._records.change(current, change_catalog)
                # After the catalog's change, whose positions are up to the head: a view's deltas follow its definition.
                published = commit.published(before, batch, self.head(), streamed, self._forgotten)
                redo = Redo(published.to_json(), None if written is None else written.to_json(), tables)
                claimed = steps.claim(self._records, self._redos, redo, self._owner, current.version)
            commit.finish(self._records, self._redos, claimed)
            self._unfinished = False
            self._known.expire()  # should the next call fail, who reads next asks again: it is published
            with suppress(StoreError):
                self._known.learn(None)
            self._feed.arrivals.committed(batch.cut, batch.seen.values())
            for change in stored:
                self._sizes.forget(change.table)

    def collect(self) -> None:
        self._writable()
        files.collect(self._redos, self._known.state().published)
        published = self._known.published()
        if published is not None:
            streams.collect(self._streams, published.streams, published.batch.number)

    def _finish_own(self) -> None:
        """A batch that this process claimed and could not finish: it has been decided, so it is finished first."""
        state = self._known.state(now=True)
        if state.claim is not None and state.claim.owner == self._owner:
            commit.finish(self._records, self._redos, state.claim)
            self._known.learn(None)
        self._unfinished = False

    # -- life ---------------------------------------------------------------------------------------------------------

    def acquire_lease(self) -> lease.RowLease:
        self._writable()
        held = lease.acquire(self._records, self._lease_span)
        try:
            claimed = self._known.state(now=True).claim
            if claimed is not None:  # whoever held the lease before could not finish
                commit.finish(self._records, self._redos, claimed)
                self._known.learn(None)
            self._push.begin()
        except BaseException:
            held.release()
            raise
        held.on_release = self._push.end
        self._lease = held
        return held

    def examine(self) -> Iterator[Finding]:
        self._live()
        return examine(self._client, self._records, self._layouts, self._redos)

    def lease_holder(self) -> str | None:
        self._live()
        return lease.holder(self._records)

    def note(self, name: str) -> Mapping[str, Any] | None:
        self._live()
        found: Mapping[str, Any] | None = self._records.note(name)
        return found

    def put_note(self, name: str, note: Mapping[str, Any] | None) -> None:
        self._writable()
        self._records.put_note(name, note)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._push.end()
            self._client.close()

    def _live(self) -> None:
        if self._closed:
            raise StoreError(f"The database {self.url} is closed.", hint="Open it again.")

    def _writable(self) -> None:
        self._live()
        if self._mode == "r":
            raise ReadOnly(f"The database {self.url} was opened with mode='r'.", hint="Open it with mode='w'.")
