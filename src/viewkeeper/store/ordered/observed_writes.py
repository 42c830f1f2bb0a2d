"""Synchronous views in a store over an ordered map: maintenance in each write's transaction, and their initial load.

The rows of a new view are computed as of the published batch, while writers continue, and written before any catalog
lists the view. The changes since then are applied from the log, in a transaction of their own or in the one that lists
the view:

    load at cut ──▶ rows, keyed state ──▶ log up to the batch's cut ──▶ log up to the head, logged, and the catalog

The changes after the batch's cut are logged as this call's changes to the view, so a snapshot of the batch undoes them
as it undoes the changes of base tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from itertools import compress
from operator import attrgetter, ne
from typing import Any

import numpy as np
import pyarrow as pa

from viewkeeper import failpoints
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.encoding.rows import decode_rows
from viewkeeper.model.schema import WEIGHT, Table
from viewkeeper.store.contract.commits import ViewChange
from viewkeeper.store.contract.write_observer import write_observer
from viewkeeper.store.ordered import batch_record, log_format, metadata
from viewkeeper.store.ordered.handle import OrderedCatalogStore, StoreHandle
from viewkeeper.store.ordered.maps import State
from viewkeeper.store.ordered.row_images import RowImages, binary_array, drop_empty, net_delta
from viewkeeper.store.ordered.write_call import WriteCall, encode_change_rows

_MAX_ROW_SUMS = 1_500
"""Changed rows of a call up to which a view of sums is maintained row at a time; above, it is vectorised."""
_MAX_ROWS_ONE_BY_ONE = 512
"""Changed rows up to which other views are maintained row at a time; above, a statement costs less."""
_IMAGE_SIDES = attrgetter("before"), attrgetter("after")


def synchronous_table_ids(views: Sequence[View]) -> list[int]:
    """Return the ids of the tables that a write changes in addition to its own: the views and their keyed state."""
    return [
        n for v in views if v.synchronous_state is not None for n in (v.table.id, *v.synchronous_state.state_table_ids)
    ]


class CarriedState:
    """State that the observer carries from one write call of a store to the next.

    It is valid only if no other write has happened in between, which the log's head shows.
    """

    def __init__(self) -> None:
        self._last: tuple[int, dict[int, Any]] = (-1, {})

    def take(self, head: int) -> dict[int, Any]:
        """Return the state, by view, for a call that begins at this head. A call that fails leaves no state."""
        (position, carried_state), self._last = self._last, (-1, {})
        return carried_state if position == head else {}

    def put(self, position: int, carried_state: dict[int, Any]) -> None:
        """Keep the state of a committed call, with the call's position."""
        self._last = (position, carried_state)


class WriteCallReads:
    """The reads of a write observer in one write call (`WriteReads` and `RowReads`)."""

    def __init__(self, state: State, carried_state: MutableMapping[int, Any] | None = None) -> None:
        self._state = state
        self.carried_state: MutableMapping[int, Any] = {} if carried_state is None else carried_state

    def find(self, table: Table, keys: pa.BinaryArray) -> pa.Table:
        return decode_rows(table, self._state.rows(table.id).find_rows(keys))

    def get_row(self, table: Table, key: bytes, columns: Mapping[str, Any]) -> bytes | None:
        return self._state.rows(table.id).find(key)

    def get_rows(self, table: Table, keys: Sequence[bytes]) -> list[bytes]:
        return self._state.rows(table.id).find_in_order(keys)

    def first_rows(self, table: Table, start: bytes | None, stop: bytes | None, limit: int) -> list[bytes]:
        return [row for rows in self._state.rows(table.id).scan(start, stop, limit) for row in rows.to_pylist()]

    def range(self, table: Table, start: bytes | None, stop: bytes | None, limit: int | None) -> pa.Table:
        found = [decode_rows(table, rows) for rows in self._state.rows(table.id).scan(start, stop, limit)]
        return pa.concat_tables(found) if found else table.arrow.empty_table()


def run_write_observer(
    call: WriteCall,
    catalog: Catalog,
    table: Table,
    pieces: Sequence[RowImages],
    carried_state: MutableMapping[int, Any],
) -> None:
    """Maintain the synchronous views of a table after a write call has changed it."""
    stored_table = catalog.tables_by_id[table.id]
    changed, reads = sum(map(len, pieces)), WriteCallReads(call.state, carried_state)
    for view in catalog.synchronous_views.get(table.id, ()):
        if changed <= _MAX_ROW_SUMS:
            before, after = ([row for piece in pieces for row in side(piece).to_pylist()] for side in _IMAGE_SIDES)
            if (
                rewritten := write_observer().apply_row_sums(catalog, view, table.id, before, after, reads)
            ) is not None:
                for rows in rewritten:
                    _rewrite_rows(call, view, *rows)
                continue
        carried_state.pop(view.table.id, None)
        if changed > _MAX_ROW_SUMS:
            weighted_images = partial(_weighted_images, stored_table.internal, pieces)
            if (
                found := write_observer().apply_vector_sums(catalog, view, table.id, weighted_images, reads)
            ) is not None:
                for changes in found:
                    _apply_encoded(call, view, *changes)
                continue
        if changed <= _MAX_ROWS_ONE_BY_ONE:
            images = [pair for piece in pieces for pair in _image_pairs(piece)]
            if (row_changes := write_observer().apply_rows(catalog, view, table.id, images, reads)) is not None:
                _apply_row_changes(call, view, row_changes)
                continue
        delta = net_delta(stored_table.internal, pieces, list(write_observer().columns(catalog, view, table.id)))
        if delta.num_rows:
            _apply_view_changes(
                call, view, write_observer().apply_deltas(catalog, view, {table.id: delta}, WriteCallReads(call.state))
            )
    failpoints.hit("write.kept")


def _weighted_images(table: Table, pieces: Sequence[RowImages], columns: Sequence[str]) -> pa.Table:
    """Return the before-images as rows with weight −1, and the after-images with +1."""
    before = [drop_empty(images.before) for images in pieces]
    after = [drop_empty(images.after) for images in pieces]
    weights = np.repeat(np.array([-1, 1]), [sum(map(len, before)), sum(map(len, after))])
    return decode_rows(table, pa.concat_arrays([*before, *after]), columns).append_column(WEIGHT, pa.array(weights))


def _rewrite_rows(
    call: WriteCall, view: View, table: Table, keys: list[bytes], before: list[bytes], after: list[bytes]
) -> None:
    """Write rows whose before-images are known; unchanged rows are skipped."""
    changed = list(map(ne, before, after))
    if not all(changed):
        keys, before, after = (list(compress(side, changed)) for side in (keys, before, after))
    if keys:
        call.state.rows(table.id).rewrite(table, keys, before, after)
        if table.id == view.table.id:
            call.append_rows(table, keys, before, after)


def _image_pairs(images: RowImages) -> Iterator[tuple[bytes, bytes]]:
    return zip(images.before.to_pylist(), images.after.to_pylist(), strict=True)


def _apply_row_changes(call: WriteCall, view: View, changes: Sequence[tuple[Table, bytes, bytes]]) -> None:
    """Write single rows, grouped by table."""
    by_table: dict[int, tuple[Table, dict[bytes, bytes]]] = {}
    for table, key, after in changes:
        by_table.setdefault(table.id, (table, {}))[1][key] = after
    for table, rows in by_table.values():
        _apply_encoded(call, view, table, binary_array(list(rows)), binary_array(list(rows.values())))


def _apply_encoded(call: WriteCall, view: View, table: Table, keys: pa.BinaryArray, after: pa.BinaryArray) -> None:
    images = call.state.rows(table.id).apply(table, keys, after)
    if table.id == view.table.id:
        call.append(table, images)


def _apply_view_changes(call: WriteCall, view: View, changes: Sequence[ViewChange], *, is_logged: bool = True) -> None:
    """Write the changes of a view and its keyed state. Only the view's own rows are logged; its state is private."""
    for change in changes:
        for keys, after in encode_change_rows(change.table, change.puts, change.deletes):
            images = call.state.rows(change.table.id).apply(change.table, keys, after)
            if is_logged and change.table.id == view.table.id:
                call.append(change.table, images)


class SynchronousViewLoader:
    """Loads a view that becomes synchronous."""

    def __init__(self, handle: StoreHandle, catalog_store: OrderedCatalogStore) -> None:
        self._handle = handle
        self._catalog_store = catalog_store

    def load(self, view: View, changes: Sequence[ViewChange]) -> None:
        """Write the initial rows of a view that no catalog lists as synchronous yet, replacing its existing rows."""
        with self._handle.write(synchronous_table_ids([view])) as state:
            for number in synchronous_table_ids([view]):
                state.rows(number).clear()
            _apply_view_changes(WriteCall(state), view, changes, is_logged=False)

    def catch_up(
        self, view: View, after: int, publish: Callable[[Catalog, int], Catalog] | None = None
    ) -> tuple[int, bool]:
        """Apply the changes in the log after a position to a synchronous view.

        The view is brought to the cut of the published batch; if it is there already, it is brought to the head, and
        `publish` adds it to the catalog with the call's position. Return the view's position and whether the catalog
        lists it.
        """
        with self._handle.write(synchronous_table_ids([view])) as state:
            catalog, call = self._catalog_store.catalog_at(state), WriteCall(state)
            self._handle.check_log_retained(state, after)
            batch = batch_record.read_batch(state.meta)
            # The view may be beyond the batch: the first batch may have been published while the view was loaded.
            is_final = publish is not None and (batch is None or batch.cut <= after)
            up_to = call.head if is_final or batch is None else max(batch.cut, after)
            deltas = {}
            for table in (
                view.synchronous_state.table_ids if view.synchronous_state is not None and up_to > after else ()
            ):
                pieces = list(log_format.decode_entries(log_format.entries(state.log, after, up_to, [table])))
                names = list(write_observer().columns(catalog, view, table))
                deltas[table] = net_delta(catalog.tables_by_id[table].internal, pieces, names)
            if any(delta.num_rows for delta in deltas.values()):
                changes = write_observer().apply_deltas(catalog, view, deltas, WriteCallReads(state))
                _apply_view_changes(call, view, changes, is_logged=is_final and batch is not None)
            if not is_final or publish is None:
                return up_to, False
            position = call.finish(always=True).position
            metadata.change_catalog(state.meta, lambda current: publish(current, position), self._catalog_store.cached)
            failpoints.hit("view.kept")
        return position, True
