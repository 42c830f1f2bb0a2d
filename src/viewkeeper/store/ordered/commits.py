"""Batches of a store over an ordered map: a commit is one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial

import pyarrow as pa

from viewkeeper import failpoints
from viewkeeper.errors import MaintainerBusy
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.schema import Table
from viewkeeper.store.contract.commits import Batch, Begun, StreamChange, ViewChange
from viewkeeper.store.contract.tables import Publishing
from viewkeeper.store.ordered import batch_record, change_encoding, metadata
from viewkeeper.store.ordered.change_encoding import EncodedRows, encoded_changes
from viewkeeper.store.ordered.handle import Opened, OrderedRecords
from viewkeeper.store.ordered.lease import FileLeasing
from viewkeeper.store.ordered.maps import State
from viewkeeper.store.ordered.write_call import Call, stream

_READY_ROWS = 1 << 20
_KNOWN_TABLES = 256


class OrderedPublishing(Publishing):
    """The view changes, their log entries and the batch record become visible together."""

    def __init__(self, opened: Opened, known: OrderedRecords, leasing: FileLeasing) -> None:
        self.url = opened.url
        self._opened = opened
        self._records = known
        self._leasing = leasing
        self._batch: Batch | None = None
        self._last: tuple[int, batch_record.Basis | None] = (0, None)
        """The last batch that was published here, and its basis: once another process has published one, it is void."""

    def published(self) -> Batch | None:
        with self._opened.read() as state:
            number = metadata.read_number(state.meta, metadata.BATCH_NUMBER)
            if number and (self._batch is None or self._batch.number != number):
                self._batch = batch_record.read_batch(state.meta)
        return self._batch

    def salvaged(self) -> Batch:
        with self._opened.read() as state:
            number = metadata.read_number(state.meta, metadata.BATCH_NUMBER)
            self._batch = Batch(number, metadata.read_number(state.meta, metadata.FLOOR), {})
        return self._batch

    def commit(
        self,
        batch: Batch,
        changes: Sequence[ViewChange | StreamChange],
        change_catalog: Callable[[Catalog], Catalog] | None = None,
        begun: Begun | None = None,
    ) -> None:
        self._opened.writable()
        streams = [(change.table, stream(change)) for change in changes if isinstance(change, StreamChange)]
        stored = [change for change in changes if isinstance(change, ViewChange)]
        pieces: Iterable[EncodedRows] = encoded_changes(stored)
        if sum(change.puts.num_rows + change.deletes.num_rows for change in stored) <= _READY_ROWS:
            pieces = list(pieces)  # before the transaction: writers wait only while rows are put
        last, basis = self._last
        record = batch_record.encode(batch, basis if last == batch.number - 1 else None)
        with ExitStack() as stack:
            call = begun.taken(stack) if isinstance(begun, _Begun) else None
            if call is None:
                size = sum(change.puts.nbytes for change in stored)
                state = stack.enter_context(self._opened.write([change.table.id for change in stored], size))
                call = Call(state, size)
            state = call.state
            self._check(state, batch.number)
            # Step 3: the view changes, their log entries and the batch record. Step 4, publishing, is the map's commit.
            for table, keys, after in pieces:
                call.apply(table, keys, after)
            for table, images in streams:
                call.append(table, images)
            failpoints.point("commit.3.middle")
            call.finish(always=change_catalog is not None)
            if change_catalog is not None:
                metadata.change_catalog(state.meta, change_catalog, self._records.known)
            record.put(state.meta)
            failpoints.point("commit.4.before")
        self._batch = Batch(batch.number, batch.cut, batch.record)  # as it would be read again
        self._last = batch.number, record.basis

    def begin(self, number: int, tables: Sequence[Table], shares: int) -> Begun:
        catalog = self._records.catalog()
        stored = [t.id for t in (*catalog.tables, *(v.table for v in catalog.views_by_id.values())) if t.is_stored]
        if len(stored) <= _KNOWN_TABLES:
            # LMDB opens a table for the first time in a transaction that writes: its reader would wait for this one.
            with self._opened.read(stored):
                pass
        return _Begun(self._opened, tables, shares, partial(self._check, number=number))

    def _check(self, state: State, number: int) -> None:
        published = metadata.read_number(state.meta, metadata.BATCH_NUMBER)
        if number != published + 1 or self._leasing.lost:
            raise MaintainerBusy(
                f"Batch {number} cannot follow batch {published}, which is published: another process"
                f" maintains {self._opened.path}.",
                hint="Open the database again.",
            )


class _Begun(Begun):
    """The transaction of a commit, from the first change on."""

    def __init__(self, opened: Opened, tables: Sequence[Table], shares: int, check: Callable[[State], None]) -> None:
        self._shares = shares
        self._opened, self._tables, self._check = opened, [table.id for table in tables if table.is_stored], check
        self._stack = ExitStack()
        self._call: Call | None = None

    encode = staticmethod(change_encoding.as_table)

    def apply(self, table: Table, encoded: pa.Table) -> None:
        if self._call is None:
            size = self._shares * encoded.nbytes
            state = self._stack.enter_context(self._opened.write(self._tables, size))
            self._check(state)
            self._call = Call(state, size)
        for piece in encoded.to_batches():
            self._call.apply(table, *piece.columns)

    def taken(self, stack: ExitStack) -> Call | None:
        """What has been done so far, for whoever ends the transaction with this stack; None if nothing."""
        call, self._call = self._call, None
        stack.enter_context(self._stack.pop_all())
        return call

    def give_up(self) -> None:
        self._call = None
        with suppress(_GivenUp), self._stack:
            raise _GivenUp


class _GivenUp(Exception):
    """A transaction ends without its commit."""
