"""A call's rows as bytes, in the order of their keys, a slice at a time.

    rows      c a b d     as the user gave them
    keys      c a b d     all of them, which gives the order: 1 2 0 3
    bytes     c a b d     of each row, made slice by slice in the order given: columns are read from begin to end
    slices    a b │ c d   each row is fetched once, by its place

Neighbours in a slice are neighbours in the map: a page that two slices touch is written twice. Of a call that is much,
not all bytes are held at once: its rows are brought into order first, a slice at a time, where each is fetched column
by column, which takes twice as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from viewkeeper.model.chunks import rows_at
from viewkeeper.model.codec import encode_rows, layout_of
from viewkeeper.model.keys import encode_keys, value_bytes
from viewkeeper.model.order import Places, key_order
from viewkeeper.model.schema import Table
from viewkeeper.model.threads import Threads
from viewkeeper.store.arrow import typed
from viewkeeper.store.budget import LEAST, budget
from viewkeeper.store.memory import release
from viewkeeper.store.ordered.images import no_rows, refuse_large

SLICES_FOR_MORE = 4
"""So many slices are worth two threads."""

_SLICE_ROWS, _SLICE_BYTES = 16_384, 8 << 20
"""Few enough for the processor's cache: a slice is looked up, written and logged while it is there."""
_SLICES_AT_ONCE = 8
_LARGE = 128 << 20
_MUCH = 16
"""A call of this part of the budget is much."""
_LONGEST = (1 << 31) - 1
"""Bytes of one of Arrow's arrays."""

Bytes = tuple[pa.BinaryArray, pa.BinaryArray]
"""Keys, and their rows."""
_Work = Callable[[Table, pa.Table, pa.BinaryArray], Bytes]


def encoded(table: Table, puts: pa.Table, deletes: pa.Table) -> Iterator[Bytes]:
    """Keys and rows (empty: delete), some at a time."""
    yield from _encoded(table, puts, table.arrow.names, _with_rows)
    yield from _encoded(table, deletes, [column.name for column in table.key_columns], _without)


def is_much(size: int) -> bool:
    """Whether a call of so many bytes is much."""
    return size >= LEAST // _MUCH and size >= budget() // _MUCH  # what a small call has not to look up


def _encoded(table: Table, given: pa.Table, names: Sequence[str], work: _Work) -> Iterator[Bytes]:
    if not given.num_rows:
        return iter(())
    data = typed(table, given, names)
    slices = _slices(data)
    keys = encode_keys(table, data)
    order = key_order(keys) if len(slices) > 1 else None
    if len(slices) == 1 or _fits(table, data):
        return _fetched(table, data, keys, order, slices, work)
    large = keys.nbytes > _LARGE
    del keys
    if large:
        release()  # all keys at once were much; from here on it is a slice at a time, and LMDB's own pages
    return _ordered_first(table, data, order, slices, work)


def _fetched(
    table: Table, data: pa.Table, keys: pa.BinaryArray, order: Places | None, slices: Sequence[slice], work: _Work
) -> Iterator[Bytes]:
    def made(part: slice) -> Bytes:
        return work(table, data[part], keys[part])

    if order is None:
        return _by_two(made, slices)
    rows = _one((after for _, after in _by_two(made, slices)), len(keys), _most(table, data))

    def fetched(part: slice) -> Bytes:
        places = pa.array(order[part])
        return keys.take(places), rows.take(places)

    return _by_two(fetched, slices)


def _ordered_first(
    table: Table, data: pa.Table, order: Places | None, slices: Sequence[slice], work: _Work
) -> Iterator[Bytes]:
    if order is not None and data.column(0).num_chunks > len(slices):
        data = data.combine_chunks()  # each slice would have rows of all of these small ones

    def made(part: slice) -> Bytes:
        rows = data[part] if order is None else rows_at(data, order[part])
        return work(table, rows, encode_keys(table, rows))

    return _by_two(made, slices)


def _by_two(made: Callable[[slice], Bytes], slices: Sequence[slice]) -> Iterator[Bytes]:
    """A slice after the other, some at a time by two threads, which rest while those are written: there Python's lock
    changes hands at every row, and another thread would only be in the way. (All at once would be new memory.)"""
    if len(slices) < SLICES_FOR_MORE:
        yield from map(made, slices)
        return
    with Threads(2, thread_name_prefix="viewkeeper-rows") as threads:
        for start in range(0, len(slices), _SLICES_AT_ONCE):
            some = list(threads.map(made, slices[start : start + _SLICES_AT_ONCE]))
            some.reverse()
            while some:  # what is written is let go of
                yield some.pop()


def _slices(data: pa.Table) -> list[slice]:
    parts = max(1, -(-data.num_rows // _SLICE_ROWS), min(data.num_rows, -(-data.nbytes // _SLICE_BYTES)))
    step = -(-data.num_rows // parts)
    return [slice(start, start + step) for start in range(0, data.num_rows, step)]


def _fits(table: Table, data: pa.Table) -> bool:
    """Whether the bytes of all rows may be held at once."""
    size = _most(table, data)
    return size <= _LONGEST and not is_much(size)


def _most(table: Table, data: pa.Table) -> int:
    """Bytes that rows take at most."""
    return int(data.nbytes + data.num_rows * layout_of(table, len(table.places)).width)


def _one(pieces: Iterator[pa.BinaryArray], rows: int, most: int) -> pa.BinaryArray:
    """The pieces as one array. Each is let go of when it is copied, so the next ones lie where it has been."""
    offsets, data = np.zeros(rows + 1, np.int32), np.empty(most, np.uint8)
    row = end = 0
    for piece in pieces:
        values = value_bytes(piece)
        starts = np.frombuffer(piece.buffers()[1], np.int32, len(piece) + 1, piece.offset * 4)
        offsets[row : row + len(starts)] = starts + np.int32(end - starts[0])
        data[end : end + len(values)] = values
        row, end = row + len(piece), end + len(values)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _with_rows(table: Table, piece: pa.Table, keys: pa.BinaryArray) -> Bytes:
    after = encode_rows(table, piece)
    refuse_large(table, piece, keys, after)
    return keys, after


def _without(table: Table, piece: pa.Table, keys: pa.BinaryArray) -> Bytes:
    return keys, no_rows(len(keys))
