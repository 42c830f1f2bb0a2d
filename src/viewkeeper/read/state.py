"""The state that one read sees.

    SnapshotState   a snapshot of the store: views at its batch; base tables at its cut, or at their last write
    PositionState   a log position, for readers in several processes and for stores whose snapshots hold only views

An index shows the published batch, and a base table that is read at its last write may be ahead of it:
`index_overlay` is the difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.encoding.key_order import key_order
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.names import COUNT, WEIGHT
from viewkeeper.model.schema import Table
from viewkeeper.read.access.key_ranges import KeyHistogram, key_histogram
from viewkeeper.read.position_state import consolidate_rows
from viewkeeper.store.contract.commits import Batch, ChangedKeys, StoreSnapshot
from viewkeeper.store.contract.store import Store


class ReadState(Protocol):
    catalog: Catalog

    def scan(
        self, table: Table, columns: Sequence[str], start: bytes | None, stop: bytes | None, limit: int | None
    ) -> Iterator[pa.Table]:
        """Stored rows of a key range in key order."""

    def find(self, table: Table, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Stored rows by key, in any order."""

    def index_overlay(self, table: Table) -> ChangedKeys | None:
        """Changes of a table after the state that its indexes show; None if there are none."""

    def view_overlay(self, table: Table) -> ChangedKeys | None:
        """Changes that belong to the state but are not in the rows of `scan` and `find`; None if there are none."""

    def count(self, table: Table) -> int:
        """The approximate number of rows of a table."""

    def estimate_rows(self, table: Table, start: bytes | None, stop: bytes | None, limit: int) -> int:
        """The approximate number of rows of a key range; counted up to `limit`."""

    def key_histogram(self, table: Table) -> KeyHistogram:
        """The table's key histogram."""

    def is_in_key_order(self, table: Table) -> bool:
        """Whether `scan` supports key ranges, and returns rows in key order."""


class SnapshotState:
    """`at_cut`: base tables at the batch's cut. `overlays`: by view, its changes after the batch."""

    def __init__(
        self, store: Store, snapshot: StoreSnapshot, *, at_cut: bool, overlays: Mapping[int, ChangedKeys] | None = None
    ) -> None:
        self._store, self._snapshot, self._at_cut = store, snapshot, at_cut
        self._overlays = overlays or {}
        self.catalog = snapshot.catalog

    def scan(
        self, table: Table, columns: Sequence[str], start: bytes | None, stop: bytes | None, limit: int | None
    ) -> Iterator[pa.Table]:
        bounds = {"start": start, "stop": stop}
        for batch in self._snapshot.scan(table, columns=columns, limit=limit, at_cut=self._at_cut, **bounds):
            yield pa.Table.from_batches([batch])

    def find(self, table: Table, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        return self._snapshot.find(table, keys, columns, at_cut=self._at_cut)

    def index_overlay(self, table: Table) -> ChangedKeys | None:
        if not table.is_changed_by_writes:
            return self.view_overlay(table)
        return None if self._at_cut else self._snapshot.changed_since_cut(table)

    def view_overlay(self, table: Table) -> ChangedKeys | None:
        return self._overlays.get(table.id)

    def count(self, table: Table) -> int:
        return self._store.count(table)

    def estimate_rows(self, table: Table, start: bytes | None, stop: bytes | None, limit: int) -> int:
        return self._snapshot.size(table, start, stop, limit)

    def key_histogram(self, table: Table) -> KeyHistogram:
        return key_histogram(self._store, table)

    def is_in_key_order(self, table: Table) -> bool:
        return self._store.is_in_key_order(table)


class PositionState:
    """Tables at a position not before the cut of `batch`, the batch that views and indexes show."""

    def __init__(self, store: Store, position: int, batch: Batch | None) -> None:
        self._store, self._position = store, position
        self._batch = batch or Batch(0, position, {})
        self.catalog = store.catalog()

    def scan(
        self, table: Table, columns: Sequence[str], start: bytes | None, stop: bytes | None, limit: int | None
    ) -> Iterator[pa.Table]:
        keys = [c.name for c in table.key_columns]
        stored = list(dict.fromkeys([*columns, *keys, *([COUNT] if table.is_bag else [])]))
        found = list(self._store.scan_at(table, stored, self._position, start=start, stop=stop))
        schema = pa.schema([*(table.arrow.field(c) for c in stored), pa.field(WEIGHT, pa.int64())])
        rows = pa.Table.from_batches([b.select(schema.names) for b in found], schema)
        if (rows[WEIGHT].to_numpy() != 1).any():
            rows = consolidate_rows(self._store, rows)
            rows = rows if (order := key_order(encode_keys(table, rows))) is None else rows.take(pa.array(order))
        yield rows.select(list(columns)) if limit is None else rows.select(list(columns)).slice(0, limit)

    def find(self, table: Table, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        return self._store.find_at(table, keys, columns, self._position)

    def view_overlay(self, table: Table) -> ChangedKeys | None:
        return None

    def index_overlay(self, table: Table) -> ChangedKeys | None:
        """The changes up to now, so that a batch published meanwhile does not matter: for every other row, an index
        shows what it showed at the position."""
        now, cut = self._store.head(), self._batch.cut
        if not table.is_changed_by_writes or now <= cut:
            return None
        names = [c.name for c in table.key_columns]
        if self._store.capabilities.before_images:
            keys = self._store.changes(table, names, cut, now).select(names)
        else:
            found, _ = self._store.changed_keys(table, names, cut, now, self._batch.capture_marks.get(table.id))
            if found.keys is None:
                return found
            keys = found.keys
        if not keys.num_rows:
            return None
        unique = keys.group_by(names).aggregate([]).combine_chunks()
        return ChangedKeys(unique, self.find(table, unique, table.arrow.names))

    def count(self, table: Table) -> int:
        return self._store.count(table)

    def estimate_rows(self, table: Table, start: bytes | None, stop: bytes | None, limit: int) -> int:
        found = 0
        for batch in self._store.scan(table, [c.name for c in table.key_columns], start=start, stop=stop, limit=limit):
            found += batch.num_rows
        return found

    def key_histogram(self, table: Table) -> KeyHistogram:
        return key_histogram(self._store, table)

    def is_in_key_order(self, table: Table) -> bool:
        return self._store.is_in_key_order(table)
