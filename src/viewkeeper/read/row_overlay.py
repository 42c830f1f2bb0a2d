"""A view ahead of its batch, kept up with the log: each pending change is applied once, not by every read.

    rows of the view now  =  rows of its batch, except those of the keys that pending changes have touched

A reader does in its own memory what a synchronous view does in a write (`synchronous.row_aggregate`): the sums of a
group at the batch are read from the batch's state when a change first touches the group. A new batch starts a new
overlay. It is used for views that are evaluated row at a time and keep no minimum or maximum values; for others, the
operators compute a batch overlay (`overlay`).

The touched rows are in layers, the newest first. A layer is immutable once it is published, so a reader keeps the
layers of its position while another thread adds one. Changes that could not be applied completely add no layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from viewkeeper.commit.write_observer import RowPath, SynchronousPlan, plan_synchronous
from viewkeeper.errors import Unsupported
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.encoding.keys import encode_whole_key
from viewkeeper.model.encoding.rows import decode_plain_row, decode_row
from viewkeeper.model.schema import Table
from viewkeeper.operators.operator import slot_names
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.run import Arrangement
from viewkeeper.store.contract.commits import StoreSnapshot

StateLookup = Callable[[str], tuple[Arrangement, PreparedStatements]]
"""Returns the published state of a slot, and prepared statements."""


OverlayLayer = dict[tuple[int, bytes], bytes]
"""Rows by table and encoded key, of the view and of its groups' sums; an empty row is deleted."""


@dataclass(frozen=True)
class RowOverlayVersion:
    """A view at a position after its batch, for reads by key."""

    view: Table
    position: int
    layers: tuple[OverlayLayer, ...]

    def get(self, snapshot: StoreSnapshot, key: tuple[Any, ...]) -> dict[str, Any] | None:
        """One row of the view by its whole key."""
        row = _find_in_layers(self.layers, (self.view.id, encode_whole_key(self.view, key)))
        if row is None:
            return snapshot.get(self.view, key)
        return decode_row(self.view, row) if row else None


class RowOverlay:
    """One view since one batch. `state` looks up the batch's state."""

    def __init__(self, catalog: Catalog, view: View, snapshot: StoreSnapshot, state: StateLookup) -> None:
        self._view, self._state = view.table, state
        self._plan = _plan_rows(catalog, view)
        self._row_path: RowPath | None = None if self._plan is None else self._plan.row_path
        self._base_table = None if self._plan is None else catalog.tables_by_id[self._plan.tables[0]].internal
        """The base table, as of this catalog."""
        self._position = snapshot.batch.cut
        self._layers: tuple[OverlayLayer, ...] = ()
        self._new_layer: OverlayLayer = {}
        """The rows touched by the changes in progress; they become a layer when all changes are applied."""

    def catch_up(self, snapshot: StoreSnapshot) -> RowOverlayVersion | None:
        """Apply the log since the last call; None if this view or these changes do not allow it."""
        table = self._base_table
        if self._row_path is None or table is None:
            return None
        if snapshot.head > self._position:
            images = snapshot.row_images(table, self._position)
            if images is None:
                return None
            self._new_layer = {}
            for was, now in images:  # in order: a key may have been written twice
                before = [decode_plain_row(table, was)] if was else []
                changes = self._row_path.compute_changes(before, [decode_plain_row(table, now)] if now else [], self)
                if changes is None:
                    self._row_path = None
                    return None
                for changed, key, row in changes:
                    self._new_layer[changed.id, key] = row
            self._layers, self._position = _push_layer(self._new_layer, self._layers), snapshot.head
        return RowOverlayVersion(self._view, self._position, self._layers)

    def get_row(self, table: Table, key: bytes, columns: Any) -> bytes | None:
        """A row of keyed state, as an earlier change or the batch left it."""
        found = _find_in_layers((self._new_layer, *self._layers), (table.id, key))
        if (
            found is None
            and self._row_path is not None
            and self._row_path.aggregate is not None
            and self._plan is not None
        ):
            [name] = self._plan.state_tables
            arrangement, statements = self._state(slot_names(self._plan.dataflow.operators[name])[0])
            found = self._row_path.aggregate.encode_sums_from_runs(statements, arrangement, key, columns) or b""
            self._new_layer[table.id, key] = found
        return found or None

    def first_rows(self, table: Table, start: bytes | None, stop: bytes | None, limit: int) -> list[bytes]:
        raise Unsupported("Least and greatest values are kept by nobody here.")


def _find_in_layers(layers: Iterable[OverlayLayer], key: tuple[int, bytes]) -> bytes | None:
    """The newest row of a key; None if no layer has it."""
    return next((row for layer in layers if (row := layer.get(key)) is not None), None)


def _push_layer(layer: OverlayLayer, layers: tuple[OverlayLayer, ...]) -> tuple[OverlayLayer, ...]:
    """Add a layer. Each layer is more than twice as large as the one above it, so there are few."""
    while layers and len(layers[0]) <= 2 * len(layer):
        layer, layers = layers[0] | layer, layers[1:]
    return (layer, *layers) if layer else layers


def _plan_rows(catalog: Catalog, view: View) -> SynchronousPlan | None:
    """The view's plan for row-at-a-time evaluation; None if there is none, or it does not suit an overlay."""
    try:
        plan = plan_synchronous(
            catalog, replace(view, synchronous_state=None), range(-1, -1_000, -1)
        )  # numbers that no table has
    except Unsupported:
        return None
    keeps_values = sum(len(tables) for tables in plan.state_tables.values()) > len(plan.state_tables)
    return None if keeps_values or len(plan.tables) != 1 or len(plan.state_tables) > 1 else plan
