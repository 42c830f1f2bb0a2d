"""A view ahead of its batch, kept up with the log: each change that waits is taken once, and not again by every read.

    rows of the view now  =  rows of its batch, but those of the keys that waiting changes have touched

It is what a synchronous view does in a write (`operators.few`), done by a reader in its own memory: what a group's sums
were at the batch is read from the batch's state when the group is first touched. A new batch begins it anew. It is done
for views that few rows can go through one by one, and have no least or greatest values to keep; others are worked out
by their operators (`overlay`).

What is touched lies in layers, the newest first, which nobody changes once they are there: a reader has those of the
position that it asked for, whoever goes on meanwhile, and of changes that could not be taken to their end it has none.
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
"""The published state of a slot, and a DuckDB."""


OverlayLayer = dict[tuple[int, bytes], bytes]
"""By table and encoded key the row, empty if it is gone: of the view, and of its groups' sums."""


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
    """One view since one batch. `state` is asked for what the batch left."""

    def __init__(self, catalog: Catalog, view: View, snapshot: StoreSnapshot, state: StateLookup) -> None:
        self._view, self._state = view.table, state
        self._plan = _plan_rows(catalog, view)
        self._row_path: RowPath | None = None if self._plan is None else self._plan.row_path
        self._base_table = None if self._plan is None else catalog.tables_by_id[self._plan.tables[0]].internal
        """Its base table, while the catalog is this one."""
        self._position = snapshot.batch.cut
        self._layers: tuple[OverlayLayer, ...] = ()
        self._new_layer: OverlayLayer = {}
        """What is being touched; it is a layer when all of it has been taken."""

    def catch_up(self, snapshot: StoreSnapshot) -> RowOverlayVersion | None:
        """Take what the log has had since; None if that cannot be done so."""
        table = self._base_table
        if self._row_path is None or table is None:
            return None
        if snapshot.head > self._position:
            images = snapshot.row_images(table, self._position)
            if images is None:
                return None
            self._new_layer = {}
            for was, now in images:  # one after the other: a key may have been written twice
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
        """What lies on a shelf: as it was left by a change before, or by the batch."""
        known = _find_in_layers((self._new_layer, *self._layers), (table.id, key))
        if (
            known is None
            and self._row_path is not None
            and self._row_path.aggregate is not None
            and self._plan is not None
        ):
            [name] = self._plan.state_tables
            arranged, duck = self._state(slot_names(self._plan.dataflow.operators[name])[0])
            known = self._row_path.aggregate.encode_sums_from_runs(duck, arranged, key, columns) or b""
            self._new_layer[table.id, key] = known
        return known or None

    def first_rows(self, table: Table, start: bytes | None, stop: bytes | None, limit: int) -> list[bytes]:
        raise Unsupported("Least and greatest values are kept by nobody here.")


def _find_in_layers(layers: Iterable[OverlayLayer], key: tuple[int, bytes]) -> bytes | None:
    """The newest; None if nobody has touched it."""
    return next((row for layer in layers if (row := layer.get(key)) is not None), None)


def _push_layer(layer: OverlayLayer, layers: tuple[OverlayLayer, ...]) -> tuple[OverlayLayer, ...]:
    """With a newer one; each is more than twice as large as the one above it, so there are few."""
    while layers and len(layers[0]) <= 2 * len(layer):
        layer, layers = layers[0] | layer, layers[1:]
    return (layer, *layers) if layer else layers


def _plan_rows(catalog: Catalog, view: View) -> SynchronousPlan | None:
    """The view's operators, if few rows can go through them one by one."""
    try:
        found = plan_synchronous(
            catalog, replace(view, synchronous_state=None), range(-1, -1_000, -1)
        )  # numbers that no table has
    except Unsupported:
        return None
    values = sum(len(shelved) for shelved in found.state_tables.values()) > len(found.state_tables)
    return None if values or len(found.tables) != 1 or len(found.state_tables) > 1 else found
