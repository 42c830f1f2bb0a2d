"""How the rows of a table lie over its keys, and how wide they are: what a range with many rows is weighed by.

Counting a range costs about a third of reading it, so it is not counted beyond a few rows. Keys that cut the table into
parts of similar size are looked up once and kept while it has about as many rows; how many of them lie in a range says
what part of the table it is.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from viewkeeper.model.schema import Table
from viewkeeper.store.base import Store
from viewkeeper.store.inherited import module_lock

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
