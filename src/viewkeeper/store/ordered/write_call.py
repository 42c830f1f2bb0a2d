"""One write call: rows in Arrow become bytes, are applied to their tables, and what changed is appended to the log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model.arrow_buffers import rows_at
from viewkeeper.model.delta import weighted
from viewkeeper.model.encoding.key_order import Places, key_order
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.encoding.rows import decode_rows, encode_rows
from viewkeeper.model.schema import COUNT, WEIGHT, Table
from viewkeeper.model.threads import Threads
from viewkeeper.resources.memory import release
from viewkeeper.resources.process_budget import LEAST, budget
from viewkeeper.store.contract.commits import StreamChange, Written
from viewkeeper.store.contract.tables import typed
from viewkeeper.store.ordered import log_format, metadata
from viewkeeper.store.ordered.maps import State
from viewkeeper.store.ordered.row_images import Images, join, no_rows, present, refuse_large

_SLICE_ROWS, _SLICE_BYTES = 16_384, 8 << 20
"""Few enough for the processor's cache: a slice is encoded, looked up, written and logged while it is there."""
_SLICES_FOR_MORE, _BYTES_FOR_MORE = 4, 1 << 20
"""So many slices are encoded by two threads, and so are their chunks of the log, if they have so many bytes."""
_SLICES_AT_ONCE = 8
_LARGE = 128 << 20
_MUCH = 16
"""A call of this part of the budget is much: its part of the log, twice as large, is written so that it need not wait
in memory until the commit. That takes several times as long."""

_HELD = 1 / 16
"""Of the budget: what may wait to be noted in the log."""
_AHEAD = 4
"""Slices whose chunks are made ahead of those that are written."""

Bytes = tuple[pa.BinaryArray, pa.BinaryArray]
"""Keys, and their rows."""
_Work = Callable[[Table, pa.Table], Bytes]


class Call:
    """One write call or commit inside its transaction: one position, however many tables."""

    def __init__(self, state: State, size: int = 0) -> None:
        """`size`: bytes of the rows that it is about to change, about."""
        self.state = state
        in_page = state.log.most_in_page if _is_much(size) else None
        self._chunk_bytes = log_format.CHUNK_BYTES if in_page is None else in_page
        self._waits = in_page is None
        self._later: deque[tuple[int, Images]] = deque()
        """What is still to be noted, by table: after all rows. A map that gives out pages in ascending order then has
        those of the rows first, one beside the other, and those of the log behind them (decision 73)."""
        self._held = 0
        self.time = time.time()
        self.head: int = metadata.read_number(state.meta, metadata.HEAD)
        self.changed = self.chunk = 0

    def apply(self, table: Table, keys: pa.BinaryArray, after: pa.BinaryArray) -> Images:
        """Change rows, and note in the log what really changed."""
        images = self.state.rows(table.id).apply(table, keys, after)
        self.append(table, images)
        return images

    def append(self, table: Table, images: Images) -> None:
        """Note changed rows in the log."""
        if len(images):
            self.changed += len(images)
            self._later.append((table.id, images))
            self._held += int(images.before.nbytes + images.after.nbytes)
            if not self._waits or (self._held >= LEAST and self._held >= budget() * _HELD):
                self._note()

    def append_few(self, table: Table, keys: list[bytes], before: list[bytes], after: list[bytes]) -> None:
        """The same for rows that Python has."""
        self._note()
        where = (self.head + 1, self.chunk, table.id, self.time)
        self.chunk = log_format.append_few(self.state.log, *where, (keys, before, after), self._chunk_bytes)
        self.changed += len(keys)

    def finish(self, *, always: bool = False) -> Written:
        """The call's position; one that changed nothing has none, unless `always`."""
        if not self.changed and not always:
            return Written(self.head, 0, atomic=True)
        self._note()
        metadata.put_number(self.state.meta, metadata.HEAD, self.head + 1)
        return Written(self.head + 1, self.changed, atomic=True)

    def _note(self) -> None:
        """Append to the log what waits for it; of many slices two threads make the chunks that come next."""
        later, held = self._later, self._held
        self._held = 0
        if len(later) < _SLICES_FOR_MORE or held < _BYTES_FOR_MORE:
            while later:
                self._put(self._chunks(*later.popleft()))
            return
        with Threads(2, thread_name_prefix="viewkeeper-log") as threads:
            ahead: deque[Future[list[bytes]]] = deque()
            while later or ahead:
                while later and len(ahead) < _AHEAD:
                    ahead.append(threads.submit(self._chunks, *later.popleft()))
                self._put(ahead.popleft().result())

    def _chunks(self, table: int, images: Images) -> list[bytes]:
        return list(log_format.encoded(table, self.time, images, self._chunk_bytes))

    def _put(self, chunks: list[bytes]) -> None:
        self.chunk = log_format.put(self.state.log, self.head + 1, self.chunk, chunks)


def _is_much(size: int) -> bool:
    return size >= LEAST // _MUCH and size >= budget() // _MUCH  # what a small call has not to look up


def encoded_entries(table: Table, puts: pa.Table, deletes: pa.Table) -> Iterator[Bytes]:
    """Keys and rows (empty: delete), some at a time."""
    yield from _encoded(table, puts, table.arrow.names, _as_bytes)
    yield from _encoded(table, deletes, [column.name for column in table.key_columns], _as_keys)


def _encoded(table: Table, given: pa.Table, names: Sequence[str], work: _Work) -> Iterator[Bytes]:
    """A slice after the other, some at a time by two threads, which rest while those are written: there Python's lock
    changes hands at every row, and another thread would only be in the way. (All at once would be new memory.)"""
    if not given.num_rows:
        return
    data = typed(table, given, names)
    slices = _slices(table, data)
    if not isinstance(slices[0], slice) and data.column(0).num_chunks > len(slices):
        data = data.combine_chunks()  # each slice would have rows of all of these small ones
    if len(slices) < _SLICES_FOR_MORE:
        yield from (work(table, _taken(data, places)) for places in slices)
        return
    with Threads(2, thread_name_prefix="viewkeeper-rows") as threads:
        for start in range(0, len(slices), _SLICES_AT_ONCE):
            some = slices[start : start + _SLICES_AT_ONCE]
            made = list(threads.map(lambda places: work(table, _taken(data, places)), some))
            made.reverse()
            while made:  # what is written is let go of
                yield made.pop()


def _as_bytes(table: Table, piece: pa.Table) -> Bytes:
    keys, after = encode_keys(table, piece), encode_rows(table, piece)
    refuse_large(table, piece, keys, after)
    return keys, after


def _as_keys(table: Table, piece: pa.Table) -> Bytes:
    keys = encode_keys(table, piece)
    return keys, no_rows(len(keys))


def stream(change: StreamChange) -> Images:
    """The images of a delta whose rows are not stored: a negative weight is a row before, a positive one after."""
    table = change.table
    weights = change.delta[WEIGHT]
    data = change.delta.drop_columns([WEIGHT])
    if table.is_bag:
        data = data.append_column(COUNT, pc.abs(weights))
    pieces = []
    for gone in (True, False):
        part = typed(table, data.filter((pc.less if gone else pc.greater)(weights, 0)), table.arrow.names)
        keys, images = encode_keys(table, part), encode_rows(table, part)
        none = no_rows(len(keys))
        pieces.append(Images(keys, images, none) if gone else Images(keys, none, images))
    return join(pieces)


def _slices(table: Table, data: pa.Table) -> Sequence[slice | Places]:
    """Places that follow each other in key order, some at a time: a page that two touch is written twice."""
    parts = max(-(-data.num_rows // _SLICE_ROWS), -(-data.nbytes // _SLICE_BYTES))
    if parts <= 1 or data.num_rows < 2:
        return [slice(0, data.num_rows)]
    keys = encode_keys(table, data)
    large = keys.nbytes > _LARGE
    order = key_order(keys)
    del keys
    if large:
        release()  # all keys at once were much; from here on it is a slice at a time, and LMDB's own pages
    step = -(-data.num_rows // parts)
    ranges = [slice(start, start + step) for start in range(0, data.num_rows, step)]
    return ranges if order is None else [order[places] for places in ranges]


def _taken(data: pa.Table, places: slice | Places) -> pa.Table:
    if isinstance(places, slice):
        return data.slice(places.start, places.stop - places.start)
    return rows_at(data, places)


def delta(table: Table, images: Images, wanted: list[str], sign: int) -> pa.Table:
    """Before-images with weight −sign, after-images with weight sign."""
    before = weighted(decode_rows(table, present(images.before), wanted), -sign)
    after = weighted(decode_rows(table, present(images.after), wanted), sign)
    return pa.concat_tables([before, after]).combine_chunks()
