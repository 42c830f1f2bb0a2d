"""Batch commits of a store over an ordered map: a commit is one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial

import pyarrow as pa

from viewkeeper import failpoints
from viewkeeper.errors import MaintainerBusy
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.schema import Table
from viewkeeper.store.contract.commits import Batch, OpenCommit, StreamChange, ViewChange
from viewkeeper.store.contract.tables import BatchCommits
from viewkeeper.store.ordered import batch_record, change_encoding, metadata
from viewkeeper.store.ordered.change_encoding import EncodedChange, encode_view_changes
from viewkeeper.store.ordered.handle import OrderedCatalogStore, StoreHandle
from viewkeeper.store.ordered.lease import FileLeaseStore
from viewkeeper.store.ordered.maps import State
from viewkeeper.store.ordered.write_call import WriteCall, stream_images

_MAX_PREENCODED_ROWS = 1 << 20
_MAX_PREOPENED_TABLES = 256


class OrderedCommits(BatchCommits):
    """Commits batches: the view changes, their log entries and the batch record become visible together."""

    def __init__(self, handle: StoreHandle, catalog_store: OrderedCatalogStore, lease_store: FileLeaseStore) -> None:
        self.url = handle.url
        self._handle = handle
        self._catalog_store = catalog_store
        self._lease_store = lease_store
        self._batch: Batch | None = None
        self._last_basis: tuple[int, batch_record.RunBasis | None] = (0, None)
        """The last batch published here, and its basis. It is ignored if another process has published a batch
        since."""

    def published_batch(self) -> Batch | None:
        with self._handle.read() as state:
            number = metadata.read_counter(state.meta, metadata.BATCH_NUMBER)
            if number and (self._batch is None or self._batch.number != number):
                self._batch = batch_record.read_batch(state.meta)
        return self._batch

    def salvage_batch(self) -> Batch:
        with self._handle.read() as state:
            number = metadata.read_counter(state.meta, metadata.BATCH_NUMBER)
            self._batch = Batch(number, metadata.read_counter(state.meta, metadata.FLOOR), {})
        return self._batch

    def commit(
        self,
        batch: Batch,
        changes: Sequence[ViewChange | StreamChange],
        change_catalog: Callable[[Catalog], Catalog] | None = None,
        open_commit: OpenCommit | None = None,
    ) -> None:
        self._handle.require_writable()
        streams = [(change.table, stream_images(change)) for change in changes if isinstance(change, StreamChange)]
        stored = [change for change in changes if isinstance(change, ViewChange)]
        pieces: Iterable[EncodedChange] = encode_view_changes(stored)
        if sum(change.puts.num_rows + change.deletes.num_rows for change in stored) <= _MAX_PREENCODED_ROWS:
            pieces = list(pieces)  # before the transaction: other writers wait only while rows are put
        last_number, basis = self._last_basis
        record = batch_record.encode_batch(batch, basis if last_number == batch.number - 1 else None)
        with ExitStack() as stack:
            call = open_commit.hand_over(stack) if isinstance(open_commit, _OpenTransaction) else None
            if call is None:
                size = sum(change.puts.nbytes for change in stored)
                state = stack.enter_context(self._handle.write([change.table.id for change in stored], size))
                call = WriteCall(state, size)
            state = call.state
            self._check_turn(state, batch.number)
            # Step 3: the view changes, their log entries and the batch record. Step 4, publishing, is the map's commit.
            for table, keys, after in pieces:
                call.apply(table, keys, after)
            for table, images in streams:
                call.append(table, images)
            failpoints.hit("commit.3.middle")
            call.finish(always=change_catalog is not None)
            if change_catalog is not None:
                metadata.change_catalog(state.meta, change_catalog, self._catalog_store.cached)
            record.put(state.meta)
            failpoints.hit("commit.4.before")
        self._batch = Batch(batch.number, batch.cut, batch.record)  # the same as if it were read again
        self._last_basis = batch.number, record.basis

    def begin_commit(self, number: int, tables: Sequence[Table], share_count: int) -> OpenCommit:
        catalog = self._catalog_store.catalog()
        stored = [t.id for t in (*catalog.tables, *(v.table for v in catalog.views_by_id.values())) if t.is_stored]
        if len(stored) <= _MAX_PREOPENED_TABLES:
            # LMDB opens a table for the first time in a transaction that writes: its reader would wait for this one.
            with self._handle.read(stored):
                pass
        return _OpenTransaction(self._handle, tables, share_count, partial(self._check_turn, number=number))

    def _check_turn(self, state: State, number: int) -> None:
        published = metadata.read_counter(state.meta, metadata.BATCH_NUMBER)
        if number != published + 1 or self._lease_store.is_lost:
            raise MaintainerBusy(
                f"Batch {number} cannot follow batch {published}, which is published: another process"
                f" maintains {self._handle.path}.",
                hint="Open the database again.",
            )


class _OpenTransaction(OpenCommit):
    """A pipelined commit: its transaction begins with the first change."""

    def __init__(
        self, handle: StoreHandle, tables: Sequence[Table], share_count: int, check_turn: Callable[[State], None]
    ) -> None:
        self._share_count = share_count
        self._handle, self._tables, self._check_turn = (
            handle,
            [table.id for table in tables if table.is_stored],
            check_turn,
        )
        self._stack = ExitStack()
        self._call: WriteCall | None = None

    encode = staticmethod(change_encoding.encode_as_table)

    def apply(self, table: Table, encoded: pa.Table) -> None:
        if self._call is None:
            size = self._share_count * encoded.nbytes
            state = self._stack.enter_context(self._handle.write(self._tables, size))
            self._check_turn(state)
            self._call = WriteCall(state, size)
        for piece in encoded.to_batches():
            self._call.apply(table, *piece.columns)

    def hand_over(self, stack: ExitStack) -> WriteCall | None:
        """Return the call with the changes applied so far, and let `stack` end its transaction; None if there are
        none."""
        call, self._call = self._call, None
        stack.enter_context(self._stack.pop_all())
        return call

    def abort(self) -> None:
        self._call = None
        with suppress(_Aborted), self._stack:
            raise _Aborted


class _Aborted(Exception):
    """Raised to end a transaction without committing it."""
