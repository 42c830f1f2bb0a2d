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

from viewkeeper.commit.write_observer import Few, Made, made
from viewkeeper.errors import Unsupported
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.encoding.keys import encode_whole_key
from viewkeeper.model.encoding.rows import decode_row, plain_row
from viewkeeper.model.schema import Table
from viewkeeper.operators.operator import slots
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.state.run import Arrangement
from viewkeeper.store.contract.commits import Pinned

State = Callable[[str], tuple[Arrangement, Duck]]
"""The published state of a slot, and a DuckDB."""


Layer = dict[tuple[int, bytes], bytes]
"""By table and encoded key the row, empty if it is gone: of the view, and of its groups' sums."""


@dataclass(frozen=True)
class Followed:
    """A view at a position after its batch, for reads by key."""

    view: Table
    upto: int
    layers: tuple[Layer, ...]

    def get(self, pinned: Pinned, key: tuple[Any, ...]) -> dict[str, Any] | None:
        """One row of the view by its whole key."""
        row = _found(self.layers, (self.view.id, encode_whole_key(self.view, key)))
        if row is None:
            return pinned.get(self.view, key)
        return decode_row(self.view, row) if row else None


class Running:
    """One view since one batch. `state` is asked for what the batch left."""

    def __init__(self, catalog: Catalog, view: View, pinned: Pinned, state: State) -> None:
        self._view, self._state = view.table, state
        self._made = _way(catalog, view)
        self._few: Few | None = None if self._made is None else self._made.few
        self._of = None if self._made is None else catalog.tables_by_id[self._made.tables[0]].inside
        """Its base table, while the catalog is this one."""
        self._upto = pinned.batch.cut
        self._layers: tuple[Layer, ...] = ()
        self._fresh: Layer = {}
        """What is being touched; it is a layer when all of it has been taken."""

    def follow(self, pinned: Pinned) -> Followed | None:
        """Take what the log has had since; None if that cannot be done so."""
        table = self._of
        if self._few is None or table is None:
            return None
        if pinned.head > self._upto:
            images = pinned.images(table, self._upto)
            if images is None:
                return None
            self._fresh = {}
            for was, now in images:  # one after the other: a key may have been written twice
                before = [plain_row(table, was)] if was else []
                changes = self._few.changes(before, [plain_row(table, now)] if now else [], self)
                if changes is None:
                    self._few = None
                    return None
                for changed, key, row in changes:
                    self._fresh[changed.id, key] = row
            self._layers, self._upto = _above(self._fresh, self._layers), pinned.head
        return Followed(self._view, self._upto, self._layers)

    def one(self, table: Table, key: bytes, named: Any) -> bytes | None:
        """What lies on a shelf: as it was left by a change before, or by the batch."""
        known = _found((self._fresh, *self._layers), (table.id, key))
        if known is None and self._few is not None and self._few.groups is not None and self._made is not None:
            [name] = self._made.shelved
            arranged, duck = self._state(slots(self._made.flow.operators[name])[0])
            known = self._few.groups.in_runs(duck, arranged, key, named) or b""
            self._fresh[table.id, key] = known
        return known or None

    def some(self, table: Table, start: bytes | None, stop: bytes | None, limit: int) -> list[bytes]:
        raise Unsupported("Least and greatest values are kept by nobody here.")


def _found(layers: Iterable[Layer], key: tuple[int, bytes]) -> bytes | None:
    """The newest; None if nobody has touched it."""
    return next((row for layer in layers if (row := layer.get(key)) is not None), None)


def _above(layer: Layer, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """With a newer one; each is more than twice as large as the one above it, so there are few."""
    while layers and len(layers[0]) <= 2 * len(layer):
        layer, layers = layers[0] | layer, layers[1:]
    return (layer, *layers) if layer else layers


def _way(catalog: Catalog, view: View) -> Made | None:
    """The view's operators, if few rows can go through them one by one."""
    try:
        found = made(catalog, replace(view, sync=None), range(-1, -1_000, -1))  # numbers that no table has
    except Unsupported:
        return None
    values = sum(len(shelved) for shelved in found.shelved.values()) > len(found.shelved)
    return None if values or len(found.tables) != 1 or len(found.shelved) > 1 else found
