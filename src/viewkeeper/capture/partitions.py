"""A table in parts, each read at a time of its own, brought to one cut: the cut-off rules of the hybrids.

    part                 the rows of keys [k_l, k_h) as they were found after position p: every call up to p is in them
    u, p < t(u) ≤ c      the calls since, as far as they touched keys of the part; their keys are its MK tree

    1   t(u) ≤ p  and k_l ≤ u.K < k_h         u is dropped: the part has it        (6.3.2, 6.3.5; 6.3.10, H_key = p)
    2   r.K in the MK tree                    r is dropped: u has a newer row      (6.3.7, 6.3.13)
    3   what is left of both is the part at c

Dissertation 6.3.2. A scan that takes long, on a store that cannot show the past, finds each row as it was at some time
after p: rule 2 drops just the rows of which that is not known to be c's. Each part has a cut-off of its own, so what
was read before a crash is a part like any other.
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
"""Rows of a part, about."""

MIN_PARTITIONS = 8
"""Parts from which a table is read in parts: a smaller one is read again in the time that keeping it would take."""

Consolidator = Callable[[pa.Table], pa.Table]
KeyRange = tuple[bytes | None, bytes | None]


class CutMoved(Exception):
    """What was read is not what the cut's batch saw: a batch comes first, then it is read again."""


@dataclass(frozen=True)
class TablePartition:
    """Rows, with the key's columns, of the keys from `start` (included) to `stop` (excluded; None: no end)."""

    start: bytes | None
    stop: bytes | None
    position: int
    rows: pa.Table
    end_position: int | None = None
    """Where the log was when the last row had been read, if that is later: nothing after it is in the part."""
    file: str = ""
    """Where it is kept (`kept.part_in`), if it is."""

    @property
    def last_position(self) -> int:
        return self.position if self.end_position is None else self.end_position


def partition_bounds(store: Store, table: Table) -> list[bytes]:
    """The keys at which a large table is cut into parts."""
    return store.split_points(table, store.count(table) // PARTITION_ROWS) if is_large(store, table) else []


def is_large(store: Store, table: Table) -> bool:
    return store.count(table) >= MIN_PARTITIONS * PARTITION_ROWS


def missing_ranges(partitions: Iterable[TablePartition], bounds: Sequence[bytes]) -> Iterator[KeyRange]:
    """The key ranges that no part covers, cut at these points too. Parts do not overlap."""
    at: bytes | None = b""
    for part in sorted(partitions, key=lambda p: p.start or b""):
        if at is not None and (part.start or b"") > at:
            yield from _split_range(at, part.start, bounds)
        at = part.stop
    if at is not None:
        yield from _split_range(at, None, bounds)


def _split_range(start: bytes, stop: bytes | None, bounds: Sequence[bytes]) -> Iterator[KeyRange]:
    inside = [p for p in bounds if p > start and (stop is None or p < stop)]
    yield from pairwise([start or None, *inside, stop])


def partition_at_cut(
    store: Store, table: Table, columns: Sequence[str], partition: TablePartition, cut: int, consolidate: Consolidator
) -> pa.Table | None:
    """The part's rows at a cut; None if it cannot be brought there, or the log does not reach back so far."""
    if cut < partition.last_position:
        # Commits of views move the log too. If it was more than that, the part may show what came after the cut.
        waiting = store.pending(cut, [table.id])
        if waiting.calls and (waiting.first_position is None or waiting.first_position <= partition.last_position):
            return None
    if cut <= partition.position:
        return partition.rows.select(list(columns))
    wanted = list(dict.fromkeys([*columns, *(c.name for c in table.key_columns)]))
    try:
        changed = _read_changed_rows(store, table, wanted, partition.position, cut, consolidate)
    except SnapshotGone:
        return None
    new = changed.rows
    inside = _range_mask(store.range_keys(table, new), partition)
    new = new if inside is None else new.filter(inside)
    if changed.keys is None:
        return new.select(list(columns))
    old = partition.rows.select(wanted)
    if changed.keys.num_rows:
        old = old.filter(pc.invert(pc.is_in(encode_keys(table, old), value_set=encode_keys(table, changed.keys))))
    return pa.concat_tables([old, new.select(wanted).cast(old.schema)]).select(list(columns))


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
        below = pc.less(keys, pa.scalar(partition.stop, pa.binary()))
        inside = below if inside is None else pc.and_(inside, below)
    return inside
