"""The rows of a store over an ordered map: written with their log entries, read at one state."""

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
from viewkeeper.model.delta import weighted
from viewkeeper.model.encoding.keys import bounded, encode_keys, encode_whole_key
from viewkeeper.model.encoding.rows import WrittenLater, decode_row, decode_rows, encode_rows
from viewkeeper.model.schema import Table
from viewkeeper.store.contract.commits import Batch, Capabilities, ViewChange, Written
from viewkeeper.store.contract.tables import Rows, column_names, typed
from viewkeeper.store.ordered import log_format, metadata
from viewkeeper.store.ordered.handle import Opened, OrderedRecords
from viewkeeper.store.ordered.maps import State
from viewkeeper.store.ordered.observed_writes import Left, OrderedKeeping, numbers, take_along
from viewkeeper.store.ordered.row_images import NOTHING, first_of_each_key, join, present, refuse_large, within
from viewkeeper.store.ordered.snapshot import PinnedState
from viewkeeper.store.ordered.write_call import Call, delta, encoded_entries

CAPABILITIES = Capabilities(
    change_feed=True, atomic_batch=True, snapshot_scan=True, before_images=True, cell_versions=False
)


class OrderedRows(Rows):
    """A write call is one transaction; a scan sees one state."""

    capabilities = CAPABILITIES

    def __init__(self, opened: Opened, known: OrderedRecords) -> None:
        self.url = opened.url
        self._opened = opened
        self._records = known
        self._keeping = OrderedKeeping(opened, known)
        self._left = Left()
        self._batch: Batch | None = None
        """The last one that was pinned: its record is long, and is the same for its number."""
        self._quiet: dict[int, tuple[int, int]] = {}

    def drop_rows(self, table: Table) -> None:
        with self._opened.write([table.id]) as state:
            state.rows(table.id).clear()

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(self, table: Table, puts: pa.Table, deletes: pa.Table) -> Written:
        return self._write(table, puts, deletes, None)

    def write_once(self, table: Table, puts: pa.Table, deletes: pa.Table, writer: str, number: int) -> Written:
        return self._write(table, puts, deletes, (f"once:{writer}", number))

    def _write(self, table: Table, puts: pa.Table, deletes: pa.Table, once: tuple[str, int] | None) -> Written:
        largest = self._opened.writable().largest_call
        if puts.nbytes + deletes.nbytes > largest:
            raise TooLarge(
                f"A write call to {table.name} has {(puts.nbytes + deletes.nbytes) / 1e9:.1f} GB,"
                f" {largest / 1e9:.0f} GB is the limit.",
                hint="Write it in several calls: each is a transaction.",
            )
        slices = encoded_entries(table, puts, deletes)
        first = next(slices, None)  # before the transaction: other writers wait only while rows are put
        failpoints.point("write.before")
        with self._writing(table, puts.nbytes) as (state, catalog):
            call = Call(state, puts.nbytes)
            at_hand = self._left.taken(call.head)
            if once is not None:
                noted = metadata.read_note(state.meta, once[0])
                if noted is not None and noted["number"] >= once[1]:
                    return call.finish()
                metadata.put_note(state.meta, once[0], {"number": once[1]})
            pieces = []
            while first is not None:
                images = call.apply(table, *first)
                if table.id in catalog.synchronous:
                    pieces.append(images)
                first = next(slices, None)
            failpoints.point("write.middle")
            changed = call.changed
            if pieces:
                take_along(call, catalog, table, pieces, at_hand)
            written = replace(call.finish(), changed=changed)
        self._left.leave(written.position, at_hand)
        return written

    @contextmanager
    def _writing(self, table: Table, size: int = 0) -> Iterator[tuple[State, Catalog]]:
        """A transaction over a table and all that is kept in its writes, and the catalog as it is in there."""
        while True:
            kept = numbers(self._records.known.synchronous.get(table.id, ()))
            with ExitStack() as stack:
                state = stack.enter_context(self._opened.write([table.id, *kept], size))
                catalog = self._records.shown(state)
                if not set(numbers(catalog.synchronous.get(table.id, ()))) <= set(kept):
                    continue  # nothing is written yet; handles are opened before a transaction
                yield state, catalog
                return

    def update(self, table: Table, key: pa.Table, columns: pa.Table) -> Written:
        self._opened.writable()
        names = column_names(table, columns.column_names)
        keyed = {column.name for column in table.key_columns}
        if fixed := [name for name in names if name in keyed]:
            raise BadValue(
                f"Column {fixed[0]} is in the key of {table.name} and cannot be updated.",
                hint="Delete the row and put a new one.",
            )
        new = dict(zip(names, typed(table, columns.rename_columns(names), names).columns, strict=True))
        keys = encode_keys(table, typed(table, key, [column.name for column in table.key_columns]))
        with self._writing(table) as (state, catalog):
            # As it is now: a column that another process has just added keeps its value.
            table = catalog.tables_by_id.get(table.id, table)
            there = state.rows(table.id)
            old = [there.find(name) for name in keys.to_pylist()]
            if None in old:
                raise RowAbsent(
                    f"{table.name} has no row with key {key.slice(old.index(None), 1).to_pylist()[0]}.",
                    hint="Put the whole row instead.",
                )
            row = decode_rows(table, pa.array(old, pa.binary()))
            row = pa.table({name: new.get(name, row.column(name)) for name in row.column_names}, schema=table.arrow)
            after = encode_rows(table, row)
            refuse_large(table, row, keys, after)
            call = Call(state)
            at_hand = self._left.taken(call.head)
            images = call.apply(table, keys, after)
            if table.id in catalog.synchronous:
                take_along(call, catalog, table, [images], at_hand)
            written = call.finish()
        self._left.leave(written.position, at_hand)
        return written

    def place(self, view: View, changes: Sequence[ViewChange]) -> None:
        self._keeping.place(view, changes)

    def follow(
        self, view: View, after: int, publish: Callable[[Catalog, int], Catalog] | None = None
    ) -> tuple[int, bool]:
        return self._keeping.follow(view, after, publish)

    # -- reading ------------------------------------------------------------------------------------------------------

    def get(self, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        value = self._opened.live().get(table.home, encode_whole_key(table, key))
        if value is None:
            return None
        try:
            return decode_row(table, value)
        except WrittenLater:
            return decode_row(self._records.catalog().reading(table), value)

    def get_many(self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        wanted = column_names(table, columns)
        names = encode_keys(table, typed(table, keys, [column.name for column in table.key_columns]))
        with self._opened.read([table.home]) as state:
            table = self._records.shown(state).reading(table)
            found = state.rows(table.home).find_many(names)
        return decode_rows(table, found, wanted)

    def scan(
        self,
        table: Table,
        columns: Sequence[str] | None = None,
        *,
        start: bytes | None = None,
        stop: bytes | None = None,
        limit: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        self._opened.live()
        return self._scan(table, column_names(table, columns), *bounded(table, start, stop), limit)

    def _scan(
        self, table: Table, wanted: list[str], start: bytes | None, stop: bytes | None, limit: int | None
    ) -> Iterator[pa.RecordBatch]:
        with self._opened.read([table.home]) as state:
            table = self._records.shown(state).reading(table)
            for values in state.rows(table.home).scan(start, stop, limit):
                yield from decode_rows(table, values, wanted).to_batches()
                self._opened.live()  # it may have been closed since, or inherited

    def scan_at(
        self, table: Table, columns: Sequence[str], cut: int, *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[pa.RecordBatch]:
        self._opened.live()
        return self._scan_at(table, column_names(table, columns), cut, *bounded(table, start, stop))

    def _scan_at(
        self, table: Table, wanted: list[str], cut: int, start: bytes | None, stop: bytes | None
    ) -> Iterator[pa.RecordBatch]:
        # One state shows the rows and the log alike: what the log says came after the cut is undone.
        with self._opened.read([table.home]) as state:
            self._opened.check_kept(state, cut)
            table = self._records.shown(state).reading(table)
            head = metadata.read_number(state.meta, metadata.HEAD)
            later = log_format.entries(state.log, cut, head, [table.home])
            undone = [delta(table, within(images, start, stop), wanted, -1) for images in log_format.gather(later)]
            for values in state.rows(table.home).scan(start, stop, None):
                yield from weighted(decode_rows(table, values, wanted), 1).to_batches()
                self._opened.live()
        for part in undone:
            yield from part.to_batches()

    def find_at(self, table: Table, keys: pa.Table, columns: Sequence[str], cut: int) -> pa.Table:
        wanted = column_names(table, columns)
        names = encode_keys(table, typed(table, keys, [column.name for column in table.key_columns]))
        with self._opened.read([table.home]) as state:
            self._opened.check_kept(state, cut)
            table = self._records.shown(state).reading(table)
            head = metadata.read_number(state.meta, metadata.HEAD)
            later = list(log_format.gather(log_format.entries(state.log, cut, head, [table.home])))
            undone = first_of_each_key(join(later)) if later else NOTHING
            before = undone.before.filter(pc.is_in(undone.keys, value_set=names))
            names = names.filter(pc.invert(pc.is_in(names, value_set=undone.keys)))
            found = state.rows(table.home).find_many(names)
        return decode_rows(table, pa.concat_arrays([found, present(before)]), wanted)

    def split_points(self, table: Table, parts: int) -> list[bytes]:
        if parts < 2:
            return []
        with self._opened.read([table.home]) as state:
            return [p for p in state.rows(table.home).split_points(parts) if p.startswith(table.prefix)]

    def count(self, table: Table) -> int:
        with self._opened.read([table.home]) as state:
            rows = state.rows(table.home)
            return sum(map(len, rows.scan(*bounded(table, None, None), None))) if table.prefix else rows.count()

    def pin(self) -> PinnedState:
        found = PinnedState(self._opened.live(), self._records.known, self._batch, self._quiet)
        self._batch = found.batch if found.batch.number else None
        return found
