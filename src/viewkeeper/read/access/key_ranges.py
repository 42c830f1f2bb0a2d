"""Terms over the columns of a key, as ranges of key bytes.

    key (a, b, c)     a = 1 and b >= 5 and c = 2     one range, from 1|5 to the end of 1; c is tested on its rows
                      a in (1, 2) and b = 5          two ranges

Points on the first columns multiply; the first column with another term ends it. NULLs have a marker of their own, so
a comparison's range never holds them.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model.encoding.keys import encode_keys, plain_bytes, successor, value_marker
from viewkeeper.model.schema import KeyPart, Table
from viewkeeper.read.access.predicates import EQUAL, NULL, PREFIX, Term
from viewkeeper.resources.fork_guard import module_lock
from viewkeeper.store.contract.store import Store

Bounds = tuple[bytes | None, bytes | None]
"""Encoded keys: from the first, included, to the second, excluded."""

MOST = 1_000
"""Ranges of one read; with more points than that, they and the following columns are tested on the rows."""


@dataclass(frozen=True)
class Ranges:
    """`pairs` in key order, none of which meet. `used`: the terms that they say."""

    pairs: tuple[Bounds, ...]
    used: tuple[Term, ...]
    points: int
    """How many of the key's first columns have one or several values."""

    @property
    def whole(self) -> bool:
        return self.pairs == ((None, None),)

    def within(self, bounds: Bounds) -> Ranges:
        """What of them lies between two keys."""
        found = []
        for low, high in self.pairs:
            start = max(low or b"", bounds[0] or b"") or None
            stop = min((s for s in (high, bounds[1]) if s is not None), default=None)
            if stop is None or (start or b"") < stop:
                found.append((start, stop))
        return replace(self, pairs=tuple(found))


def ranges(table: Table, terms: Sequence[Term], most: int = MOST) -> Ranges:
    """The ranges of a table's key that terms allow."""
    starts, used, place = [table.prefix], list[Term](), 0
    for place, part in enumerate(table.key):
        mine = [t for t in terms if t.column == part.column]
        point = next((t for t in mine if t.is_point), None)
        if point is None or len(starts) * len(point.values) > most:
            break
        values = (None,) if point.op == NULL else point.values
        ends = sorted({plain_bytes(table, place, v) for v in values})
        starts = [a + b for a, b in product(starts, ends)]
        used.append(point)
    else:
        place = len(table.key)
    if place == len(table.key) or not (mine := [t for t in terms if t.column == table.key[place].column]):
        if not used:
            return Ranges(((None, None),), (), 0)
        return Ranges(tuple((s, successor(s)) for s in starts), tuple(used), place)
    low, high = _within(table, place, [t for t in mine if not (t.is_point and len(t.values) != 1)])
    if low >= high:
        return Ranges((), (*used, *mine), place)
    taken = [t for t in mine if not (t.is_point and len(t.values) != 1)]
    return Ranges(tuple((s + low, s + high) for s in starts), (*used, *taken), place)


def _within(table: Table, place: int, terms: Sequence[Term]) -> tuple[bytes, bytes]:
    """What one column's bytes may be, from the first, included, to the second."""
    low = value_marker(table, place)
    high = _after(low)
    down = table.key[place].descending
    for term in terms:
        for value in term.values:
            at = plain_bytes(table, place, value)
            if term.op == PREFIX:
                at = at[:-2]  # without what ends a text
                low, high = max(low, at), min(high, _after(at))
                continue
            if term.op == EQUAL:
                low, high = max(low, at), min(high, _after(at))
            # Descending columns are stored inverted: a lower bound of values is an upper bound of keys.
            elif (term.op in (">", ">=")) != down:
                low = max(low, at if term.op in (">=", "<=") else _after(at))
            else:
                high = min(high, _after(at) if term.op in (">=", "<=") else at)
    return low, high


def _after(prefix: bytes) -> bytes:
    found = successor(prefix)
    return b"\xff" * (len(prefix) + 1) if found is None else found


_FEW = 8


def _ends(ends: Sequence[bytes]) -> np.ndarray[Any, np.dtype[np.object_]]:
    return np.array([*ends, None], dtype=object)[:-1]  # bytes alone would become a fixed width


def passing(table: Table, terms: Sequence[Term], rows: pa.Table) -> pa.Table:
    """The rows for which terms are true; `rows` has their columns."""
    for term in terms:
        alone = replace(table, key=(KeyPart(term.column),), is_bag=False)
        pairs = ranges(alone, [term], most=len(term.values)).pairs  # all of them: nobody tests them later
        rows = rows.filter(inside(encode_keys(alone, rows), pairs))
    return rows


def inside(keys: pa.BinaryArray, pairs: Sequence[Bounds]) -> pa.Array:
    """Which keys lie in one of the ranges."""
    if len(pairs) > _FEW:
        # They are in order and do not meet: a key lies in one if more of them have begun than ended before it.
        names = _ends(keys.to_pylist())
        begun = np.searchsorted(_ends([low or b"" for low, _ in pairs]), names, side="right")
        ended = np.searchsorted(_ends([high for _, high in pairs if high is not None]), names, side="right")
        return pa.array(begun > ended)
    found = np.zeros(len(keys), bool)
    for low, high in pairs:
        mine = np.ones(len(keys), bool)
        if low is not None:
            mine &= np.asarray(pc.greater_equal(keys, pa.scalar(low, pa.binary())))
        if high is not None:
            mine &= np.asarray(pc.less(keys, pa.scalar(high, pa.binary())))
        found |= mine
    return pa.array(found)


# How the rows of a table lie over its keys, and how wide they are: what a range with many rows is weighed by.
#
# Counting a range costs about a third of reading it, so it is not counted beyond a few rows. Keys that cut the table
# into parts of similar size are looked up once and kept while it has about as many rows; how many of them lie in a
# range says what part of the table it is.


_PARTS, _SAMPLED = 64, 64
_STALE = 0.25
"""A table that has grown or shrunk by more is looked at again."""


@dataclass(frozen=True)
class Spread:
    rows: int
    points: Sequence[bytes]
    width: float
    """Bytes of a row, of the first ones."""

    def within(self, start: bytes | None, stop: bytes | None) -> int:
        """About how many rows a range of encoded keys has."""
        low = 0 if start is None else bisect_left(self.points, start)
        high = len(self.points) if stop is None else bisect_left(self.points, stop)
        outside = (start is not None) + (stop is not None)
        parts = len(self.points) + 1
        return int(self.rows * min(1.0, max(0.5, high - low + 1 - outside / 2) / parts))


_known: weakref.WeakKeyDictionary[Store, dict[int, Spread]] = weakref.WeakKeyDictionary()
_lock = module_lock()


def spread_of(store: Store, table: Table) -> Spread:
    rows = max(1, store.count(table))
    with _lock:
        known = _known.setdefault(store, {}).get(table.id)
    if known is not None and abs(known.rows - rows) <= _STALE * known.rows:
        return known
    first = list(store.scan(table, limit=_SAMPLED))
    seen = sum(batch.num_rows for batch in first)
    width = sum(batch.nbytes for batch in first) / seen if seen else 1.0
    found = Spread(rows, store.split_points(table, _PARTS), width)
    with _lock:
        _known[store][table.id] = found
    return found
