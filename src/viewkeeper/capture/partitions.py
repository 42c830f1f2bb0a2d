"""Table partitions: rows of a table that were read at different times are brought to one cut (the hybrids' cut-off
rules).

    partition            the rows of keys [k_l, k_h) as they were found after position p: every call up to p is in them
    u, p < t(u) ≤ c      the calls since, restricted to keys of the partition; their keys are its MK tree

    1   t(u) ≤ p  and k_l ≤ u.K < k_h         u is dropped: the partition has it   (6.3.2, 6.3.5; 6.3.10, H_key = p)
    2   r.K in the MK tree                    r is dropped: u has a newer row      (6.3.7, 6.3.13)
    3   the remainder of both is the partition at c

Dissertation 6.3.2. A long scan of a store that cannot read the past finds each row in a state at some time after p:
rule 2 drops exactly the rows that may differ from the state at c. Each partition has a cut-off of its own, so rows that
were read before a crash are used like any other partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import SnapshotGone
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.schema import WEIGHT, Table
from viewkeeper.store.contract.store import ChangedKeys, Store

PARTITION_ROWS = 1_000_000
"""Approximate number of rows in a partition."""

MIN_PARTITIONS = 8
"""A table with fewer partitions than this is read as a whole: reading it again takes no longer than saving its
partitions."""

Consolidator = Callable[[pa.Table], pa.Table]
KeyRange = tuple[bytes | None, bytes | None]


class CutMoved(Exception):
    """Raised if the rows that were read are not those that the batch of the cut saw. The caller must run a batch and
    then read again."""


@dataclass(frozen=True)
class TablePartition:
    """Rows, including the key columns, of the keys from `start` (included) to `stop` (excluded; None: no end)."""

    start: bytes | None
    stop: bytes | None
    position: int
    rows: pa.Table
    end_position: int | None = None
    """Head of the log after the last row was read, if it is later than `position`: the partition has no later
    change."""
    file: str = ""
    """Path of the partition on disk (`partition_store`), if it has been saved."""

    @property
    def last_position(self) -> int:
        return self.position if self.end_position is None else self.end_position


def partition_bounds(store: Store, table: Table) -> list[bytes]:
    """Return the keys at which a large table is split into partitions."""
    return store.split_points(table, store.count(table) // PARTITION_ROWS) if is_large(store, table) else []


def is_large(store: Store, table: Table) -> bool:
    return store.count(table) >= MIN_PARTITIONS * PARTITION_ROWS


def missing_ranges(partitions: Iterable[TablePartition], bounds: Sequence[bytes]) -> Iterator[KeyRange]:
    """Yield the key ranges that no partition covers, split at `bounds`. Partitions must not overlap."""
    position: bytes | None = b""
    for partition in sorted(partitions, key=lambda p: p.start or b""):
        if position is not None and (partition.start or b"") > position:
            yield from _split_range(position, partition.start, bounds)
        position = partition.stop
    if position is not None:
        yield from _split_range(position, None, bounds)


def _split_range(start: bytes, stop: bytes | None, bounds: Sequence[bytes]) -> Iterator[KeyRange]:
    inside = [p for p in bounds if p > start and (stop is None or p < stop)]
    yield from pairwise([start or None, *inside, stop])


def partition_at_cut(
    store: Store, table: Table, columns: Sequence[str], partition: TablePartition, cut: int, consolidate: Consolidator
) -> pa.Table | None:
    """Return the partition's rows at a cut; None if it cannot be brought to the cut or the log does not reach back to
    it."""
    if cut < partition.last_position:
        # Commits of views advance the log, too. If the table itself was written, the partition may show later changes.
        pending = store.pending(cut, [table.id])
        if pending.calls and (pending.first_position is None or pending.first_position <= partition.last_position):
            return None
    if cut <= partition.position:
        return partition.rows.select(list(columns))
    read_columns = list(dict.fromkeys([*columns, *(c.name for c in table.key_columns)]))
    try:
        changed = _read_changed_rows(store, table, read_columns, partition.position, cut, consolidate)
    except SnapshotGone:
        return None
    new = changed.rows
    inside = _range_mask(store.range_keys(table, new), partition)
    new = new if inside is None else new.filter(inside)
    if changed.keys is None:
        return new.select(list(columns))
    old = partition.rows.select(read_columns)
    if changed.keys.num_rows:
        old = old.filter(pc.invert(pc.is_in(encode_keys(table, old), value_set=encode_keys(table, changed.keys))))
    return pa.concat_tables([old, new.select(read_columns).cast(old.schema)]).select(list(columns))


def _read_changed_rows(
    store: Store, table: Table, columns: list[str], after: int, cut: int, consolidate: Consolidator
) -> ChangedKeys:
    if not store.capabilities.before_images:
        return store.changed_keys(table, columns, after, cut)[0]
    delta = consolidate(store.changes(table, columns, after, cut))
    keys = delta.select([c.name for c in table.key_columns])
    return ChangedKeys(keys, delta.filter(pc.greater(delta[WEIGHT], 0)).drop_columns([WEIGHT]))


def _range_mask(keys: pa.Array, partition: TablePartition) -> pa.Array | None:
    inside = None if partition.start is None else pc.greater_equal(keys, pa.scalar(partition.start, pa.binary()))
    if partition.stop is not None:
        is_below = pc.less(keys, pa.scalar(partition.stop, pa.binary()))
        inside = is_below if inside is None else pc.and_(inside, is_below)
    return inside
