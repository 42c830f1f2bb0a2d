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
from viewkeeper.store.contract.store import Changed, Store

ROWS = 1_000_000
"""Rows of a part, about."""

FEWEST = 8
"""Parts from which a table is read in parts: a smaller one is read again in the time that keeping it would take."""

Consolidate = Callable[[pa.Table], pa.Table]
Range = tuple[bytes | None, bytes | None]


class CutMoved(Exception):
    """What was read is not what the cut's batch saw: a batch comes first, then it is read again."""


@dataclass(frozen=True)
class Part:
    """Rows, with the key's columns, of the keys from `start` (included) to `stop` (excluded; None: no end)."""

    start: bytes | None
    stop: bytes | None
    position: int
    rows: pa.Table
    end: int | None = None
    """Where the log was when the last row had been read, if that is later: nothing after it is in the part."""
    file: str = ""
    """Where it is kept (`kept.part_in`), if it is."""

    @property
    def last(self) -> int:
        return self.position if self.end is None else self.end


def edges(store: Store, table: Table) -> list[bytes]:
    """The keys at which a large table is cut into parts."""
    return store.split_points(table, store.count(table) // ROWS) if is_large(store, table) else []


def is_large(store: Store, table: Table) -> bool:
    return store.count(table) >= FEWEST * ROWS


def gaps(parts: Iterable[Part], points: Sequence[bytes]) -> Iterator[Range]:
    """The key ranges that no part covers, cut at these points too. Parts do not overlap."""
    at: bytes | None = b""
    for part in sorted(parts, key=lambda p: p.start or b""):
        if at is not None and (part.start or b"") > at:
            yield from _cut(at, part.start, points)
        at = part.stop
    if at is not None:
        yield from _cut(at, None, points)


def _cut(start: bytes, stop: bytes | None, points: Sequence[bytes]) -> Iterator[Range]:
    inside = [p for p in points if p > start and (stop is None or p < stop)]
    yield from pairwise([start or None, *inside, stop])


def at_cut(
    store: Store, table: Table, columns: Sequence[str], part: Part, cut: int, consolidate: Consolidate
) -> pa.Table | None:
    """The part's rows at a cut; None if it cannot be brought there, or the log does not reach back so far."""
    if cut < part.last:
        # Commits of views move the log too. If it was more than that, the part may show what came after the cut.
        waiting = store.pending(cut, [table.id])
        if waiting.calls and (waiting.first is None or waiting.first <= part.last):
            return None
    if cut <= part.position:
        return part.rows.select(list(columns))
    wanted = list(dict.fromkeys([*columns, *(c.name for c in table.key_columns)]))
    try:
        changed = _touched(store, table, wanted, part.position, cut, consolidate)
    except SnapshotGone:
        return None
    new = changed.rows
    inside = _within(store.range_keys(table, new), part)
    new = new if inside is None else new.filter(inside)
    if changed.keys is None:
        return new.select(list(columns))
    old = part.rows.select(wanted)
    if changed.keys.num_rows:
        old = old.filter(pc.invert(pc.is_in(encode_keys(table, old), value_set=encode_keys(table, changed.keys))))
    return pa.concat_tables([old, new.select(wanted).cast(old.schema)]).select(list(columns))


def _touched(
    store: Store, table: Table, columns: list[str], after: int, upto: int, consolidate: Consolidate
) -> Changed:
    if not store.capabilities.before_images:
        return store.changed(table, columns, after, upto)[0]
    delta = consolidate(store.changes(table, columns, after, upto))
    keys = delta.select([c.name for c in table.key_columns])
    return Changed(keys, delta.filter(pc.greater(delta[WEIGHT], 0)).drop_columns([WEIGHT]))


def _within(keys: pa.Array, part: Part) -> pa.Array | None:
    inside = None if part.start is None else pc.greater_equal(keys, pa.scalar(part.start, pa.binary()))
    if part.stop is not None:
        below = pc.less(keys, pa.scalar(part.stop, pa.binary()))
        inside = below if inside is None else pc.and_(inside, below)
    return inside
