"""One state to read from.

    Pins        a pinned state: views at its batch; base tables at its cut, or as they are in it
    Positions   a log position, for readers in several processes and for stores that pin only views

An index shows the published batch, a base table that is read as it is may be ahead of it: `later` says by what.
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
from viewkeeper.read.access.key_ranges import Spread, spread_of
from viewkeeper.read.position_state import consolidated
from viewkeeper.store.contract.commits import Batch, Changed, Pinned
from viewkeeper.store.contract.store import Store


class Source(Protocol):
    catalog: Catalog

    def scan(
        self, table: Table, columns: Sequence[str], start: bytes | None, stop: bytes | None, limit: int | None
    ) -> Iterator[pa.Table]:
        """Stored rows of a key range in key order."""

    def find(self, table: Table, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Stored rows by key, in any order."""

    def later(self, table: Table) -> Changed | None:
        """What was done to a table after the state that its indexes show; None if nothing."""

    def ahead(self, table: Table) -> Changed | None:
        """What is not in the rows of `scan` and `find` either, and belongs to the state; None if nothing."""

    def count(self, table: Table) -> int:
        """Rows of a table, about."""

    def size(self, table: Table, start: bytes | None, stop: bytes | None, most: int) -> int:
        """Rows of a key range, about; counted up to `most`."""

    def spread(self, table: Table) -> Spread:
        """How its rows lie over its keys."""

    def in_key_order(self, table: Table) -> bool:
        """Whether `scan` knows ranges of keys, and gives rows in their order."""


class Pins:
    """`at_cut`: base tables as views saw them. `ahead`: by view, what it has ahead of its batch."""

    def __init__(
        self, store: Store, pinned: Pinned, *, at_cut: bool, ahead: Mapping[int, Changed] | None = None
    ) -> None:
        self._store, self._pinned, self._at_cut = store, pinned, at_cut
        self._ahead = ahead or {}
        self.catalog = pinned.catalog

    def scan(
        self, table: Table, columns: Sequence[str], start: bytes | None, stop: bytes | None, limit: int | None
    ) -> Iterator[pa.Table]:
        how = {"start": start, "stop": stop}
        for batch in self._pinned.scan(table, columns=columns, limit=limit, at_cut=self._at_cut, **how):
            yield pa.Table.from_batches([batch])

    def find(self, table: Table, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        return self._pinned.find(table, keys, columns, at_cut=self._at_cut)

    def later(self, table: Table) -> Changed | None:
        if not table.with_writes:
            return self.ahead(table)
        return None if self._at_cut else self._pinned.later(table)

    def ahead(self, table: Table) -> Changed | None:
        return self._ahead.get(table.id)

    def count(self, table: Table) -> int:
        return self._store.count(table)

    def size(self, table: Table, start: bytes | None, stop: bytes | None, most: int) -> int:
        return self._pinned.size(table, start, stop, most)

    def spread(self, table: Table) -> Spread:
        return spread_of(self._store, table)

    def in_key_order(self, table: Table) -> bool:
        return self._store.in_key_order(table)


class Positions:
    """Tables at a position not before the cut of `batch`, which views and indexes show."""

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
            rows = consolidated(self._store, rows)
            rows = rows if (order := key_order(encode_keys(table, rows))) is None else rows.take(pa.array(order))
        yield rows.select(list(columns)) if limit is None else rows.select(list(columns)).slice(0, limit)

    def find(self, table: Table, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        return self._store.find_at(table, keys, columns, self._position)

    def ahead(self, table: Table) -> Changed | None:
        return None

    def later(self, table: Table) -> Changed | None:
        """Up to now, so that it does not matter whether a batch was published since: what an index shows of any other
        row, it showed at the position too."""
        now, cut = self._store.head(), self._batch.cut
        if not table.with_writes or now <= cut:
            return None
        names = [c.name for c in table.key_columns]
        if self._store.capabilities.before_images:
            keys = self._store.changes(table, names, cut, now).select(names)
        else:
            found, _ = self._store.changed(table, names, cut, now, self._batch.seen.get(table.id))
            if found.keys is None:
                return found
            keys = found.keys
        if not keys.num_rows:
            return None
        unique = keys.group_by(names).aggregate([]).combine_chunks()
        return Changed(unique, self.find(table, unique, table.arrow.names))

    def count(self, table: Table) -> int:
        return self._store.count(table)

    def size(self, table: Table, start: bytes | None, stop: bytes | None, most: int) -> int:
        found = 0
        for batch in self._store.scan(table, [c.name for c in table.key_columns], start=start, stop=stop, limit=most):
            found += batch.num_rows
        return found

    def spread(self, table: Table) -> Spread:
        return spread_of(self._store, table)

    def in_key_order(self, table: Table) -> bool:
        return self._store.in_key_order(table)
