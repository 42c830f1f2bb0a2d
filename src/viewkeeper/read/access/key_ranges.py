"""Terms over the columns of a key, as ranges of key bytes, and histograms of keys.

    key (a, b, c)     a = 1 and b >= 5 and c = 2     one range, from 1|5 to the end of 1; c is tested on its rows
                      a in (1, 2) and b = 5          two ranges

Points on the first columns multiply; the first column with another kind of term is the last that narrows the ranges.
NULLs have a marker byte of their own, so the range of a comparison never contains them.
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

from viewkeeper.model.encoding.keys import encode_keys, encode_plain_column, successor, value_marker
from viewkeeper.model.schema import KeyPart, Table
from viewkeeper.read.access.predicates import EQUAL, IS_NULL, PREFIX, SargableTerm
from viewkeeper.resources.fork_guard import module_lock
from viewkeeper.store.contract.store import Store

KeyBounds = tuple[bytes | None, bytes | None]
"""Encoded keys: from the first (included) to the second (excluded)."""

MAX_RANGES = 1_000
"""Maximum number of ranges of one read. Terms that would exceed it, and later columns' terms, are tested on rows."""


@dataclass(frozen=True)
class KeyRanges:
    """Disjoint `pairs` in key order. `used_terms`: the terms that the ranges express."""

    pairs: tuple[KeyBounds, ...]
    used_terms: tuple[SargableTerm, ...]
    point_columns: int
    """Number of leading key columns that have one or several fixed values."""

    @property
    def is_whole(self) -> bool:
        return self.pairs == ((None, None),)

    def intersect(self, bounds: KeyBounds) -> KeyRanges:
        """The part of the ranges between two keys."""
        found = []
        for low, high in self.pairs:
            start = max(low or b"", bounds[0] or b"") or None
            stop = min((s for s in (high, bounds[1]) if s is not None), default=None)
            if stop is None or (start or b"") < stop:
                found.append((start, stop))
        return replace(self, pairs=tuple(found))


def key_ranges(table: Table, terms: Sequence[SargableTerm], max_ranges: int = MAX_RANGES) -> KeyRanges:
    """The ranges of a table's key that the terms allow."""
    starts, used, key_index = [table.key_prefix], list[SargableTerm](), 0
    for key_index, part in enumerate(table.key):
        column_terms = [t for t in terms if t.column == part.column]
        point = next((t for t in column_terms if t.is_point), None)
        if point is None or len(starts) * len(point.values) > max_ranges:
            break
        values = (None,) if point.op == IS_NULL else point.values
        ends = sorted({encode_plain_column(table, key_index, v) for v in values})
        starts = [a + b for a, b in product(starts, ends)]
        used.append(point)
    else:
        key_index = len(table.key)
    if key_index == len(table.key) or not (
        column_terms := [t for t in terms if t.column == table.key[key_index].column]
    ):
        if not used:
            return KeyRanges(((None, None),), (), 0)
        return KeyRanges(tuple((s, successor(s)) for s in starts), tuple(used), key_index)
    low, high = _column_range(table, key_index, [t for t in column_terms if not (t.is_point and len(t.values) != 1)])
    if low >= high:
        return KeyRanges((), (*used, *column_terms), key_index)
    range_terms = [t for t in column_terms if not (t.is_point and len(t.values) != 1)]
    return KeyRanges(tuple((s + low, s + high) for s in starts), (*used, *range_terms), key_index)


def _column_range(table: Table, key_index: int, terms: Sequence[SargableTerm]) -> tuple[bytes, bytes]:
    """The bytes that one column may have: from the first (included) to the second (excluded)."""
    low = value_marker(table, key_index)
    high = _end_of_prefix(low)
    down = table.key[key_index].descending
    for term in terms:
        for value in term.values:
            encoded = encode_plain_column(table, key_index, value)
            if term.op == PREFIX:
                encoded = encoded[:-2]  # without the terminator of a text
                low, high = max(low, encoded), min(high, _end_of_prefix(encoded))
                continue
            if term.op == EQUAL:
                low, high = max(low, encoded), min(high, _end_of_prefix(encoded))
            # Descending columns are stored inverted: a lower bound of values is an upper bound of keys.
            elif (term.op in (">", ">=")) != down:
                low = max(low, encoded if term.op in (">=", "<=") else _end_of_prefix(encoded))
            else:
                high = min(high, _end_of_prefix(encoded) if term.op in (">=", "<=") else encoded)
    return low, high


def _end_of_prefix(prefix: bytes) -> bytes:
    found = successor(prefix)
    return b"\xff" * (len(prefix) + 1) if found is None else found


_MAX_LINEAR_RANGES = 8


def _bounds_array(bounds: Sequence[bytes]) -> np.ndarray[Any, np.dtype[np.object_]]:
    return np.array([*bounds, None], dtype=object)[:-1]  # bytes alone would become a fixed width


def filter_by_terms(table: Table, terms: Sequence[SargableTerm], rows: pa.Table) -> pa.Table:
    """The rows for which the terms are true; `rows` must have their columns."""
    for term in terms:
        alone = replace(table, key=(KeyPart(term.column),), is_bag=False)
        pairs = key_ranges(alone, [term], max_ranges=len(term.values)).pairs  # no limit: nothing tests the rest later
        rows = rows.filter(mask_in_ranges(encode_keys(alone, rows), pairs))
    return rows


def mask_in_ranges(keys: pa.BinaryArray, pairs: Sequence[KeyBounds]) -> pa.Array:
    """Which keys lie in one of the ranges."""
    if len(pairs) > _MAX_LINEAR_RANGES:
        # The ranges are sorted and disjoint: a key lies in one if more ranges have begun than ended before it.
        names = _bounds_array(keys.to_pylist())
        started = np.searchsorted(_bounds_array([low or b"" for low, _ in pairs]), names, side="right")
        ended = np.searchsorted(_bounds_array([high for _, high in pairs if high is not None]), names, side="right")
        return pa.array(started > ended)
    found = np.zeros(len(keys), bool)
    for low, high in pairs:
        inside = np.ones(len(keys), bool)
        if low is not None:
            inside &= np.asarray(pc.greater_equal(keys, pa.scalar(low, pa.binary())))
        if high is not None:
            inside &= np.asarray(pc.less(keys, pa.scalar(high, pa.binary())))
        found |= inside
    return pa.array(found)


# Key histograms: the distribution of a table's rows over its keys, and the row width, for the cost of large ranges.
#
# Counting a range costs about a third of reading it, so ranges are counted only up to a few rows. Split keys that cut
# the table into parts of similar size are read once and cached while the table has about as many rows; the number of
# split keys within a range gives the range's share of the table.


_HISTOGRAM_PARTS, _SAMPLE_ROWS = 64, 64
_MAX_DRIFT = 0.25
"""Relative change of the row count after which the histogram is computed again."""


@dataclass(frozen=True)
class KeyHistogram:
    row_count: int
    split_keys: Sequence[bytes]
    row_bytes: float
    """Bytes per row, measured on the first rows."""

    def estimate_rows(self, start: bytes | None, stop: bytes | None) -> int:
        """The approximate number of rows in a range of encoded keys."""
        low = 0 if start is None else bisect_left(self.split_keys, start)
        high = len(self.split_keys) if stop is None else bisect_left(self.split_keys, stop)
        bounded_ends = (start is not None) + (stop is not None)
        parts = len(self.split_keys) + 1
        return int(self.row_count * min(1.0, max(0.5, high - low + 1 - bounded_ends / 2) / parts))


_histograms: weakref.WeakKeyDictionary[Store, dict[int, KeyHistogram]] = weakref.WeakKeyDictionary()
_lock = module_lock()


def key_histogram(store: Store, table: Table) -> KeyHistogram:
    rows = max(1, store.count(table))
    with _lock:
        cached = _histograms.setdefault(store, {}).get(table.id)
    if cached is not None and abs(cached.row_count - rows) <= _MAX_DRIFT * cached.row_count:
        return cached
    first = list(store.scan(table, limit=_SAMPLE_ROWS))
    sampled = sum(batch.num_rows for batch in first)
    width = sum(batch.nbytes for batch in first) / sampled if sampled else 1.0
    found = KeyHistogram(rows, store.split_points(table, _HISTOGRAM_PARTS), width)
    with _lock:
        _histograms[store][table.id] = found
    return found
