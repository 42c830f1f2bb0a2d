"""One write call: rows in Arrow become bytes, are applied to their tables, and what changed is appended to the log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model.arrow_buffers import take_table_rows
from viewkeeper.model.delta import with_weight
from viewkeeper.model.encoding.key_order import RowIndices, key_order
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.encoding.rows import decode_rows, encode_rows
from viewkeeper.model.schema import COUNT, WEIGHT, Table
from viewkeeper.model.threads import ThreadPool
from viewkeeper.resources.memory import release_free_memory
from viewkeeper.resources.process_budget import MIN_BUDGET, process_budget
from viewkeeper.store.contract.commits import StreamChange, WriteResult
from viewkeeper.store.contract.tables import convert_rows
from viewkeeper.store.ordered import log_format, metadata
from viewkeeper.store.ordered.maps import State
from viewkeeper.store.ordered.row_images import RowImages, check_sizes, concat_images, drop_empty, empty_rows

_SLICE_ROWS, _SLICE_BYTES = 16_384, 8 << 20
"""Few enough for the processor's cache: a slice is encoded, looked up, written and logged while it is there."""
_MIN_PARALLEL_SLICES, _MIN_PARALLEL_BYTES = 4, 1 << 20
"""So many slices are encoded by two threads, and so are their chunks of the log, if they have so many bytes."""
_SLICES_PER_ROUND = 8
_LARGE_KEY_BYTES = 128 << 20
_LARGE_CALL_FRACTION = 16
"""A call of this part of the budget is much: its part of the log, twice as large, is written so that it need not wait
in memory until the commit. That takes several times as long."""

_PENDING_FRACTION = 1 / 16
"""Of the budget: what may wait to be noted in the log."""
_MAX_PREPARED_SLICES = 4
"""Slices whose chunks are made ahead of those that are written."""

EncodedRows = tuple[pa.BinaryArray, pa.BinaryArray]
"""Keys, and their rows."""
_SliceEncoder = Callable[[Table, pa.Table], EncodedRows]


class WriteCall:
    """One write call or commit inside its transaction: one position, however many tables."""

    def __init__(self, state: State, size: int = 0) -> None:
        """`size`: bytes of the rows that it is about to change, about."""
        self.state = state
        in_page = state.log.max_inline_value if _is_large(size) else None
        self._chunk_bytes = log_format.CHUNK_BYTES if in_page is None else in_page
        self._is_log_deferred = in_page is None
        self._pending_images: deque[tuple[int, RowImages]] = deque()
        """What is still to be noted, by table: after all rows. A map that gives out pages in ascending order then has
        those of the rows first, one beside the other, and those of the log behind them (decision 73)."""
        self._pending_bytes = 0
        self.time = time.time()
        self.head: int = metadata.read_counter(state.meta, metadata.HEAD)
        self.changed_rows = self.next_chunk = 0

    def apply(self, table: Table, keys: pa.BinaryArray, after: pa.BinaryArray) -> RowImages:
        """Change rows, and note in the log what really changed."""
        images = self.state.rows(table.id).apply(table, keys, after)
        self.append(table, images)
        return images

    def append(self, table: Table, images: RowImages) -> None:
        """Note changed rows in the log."""
        if len(images):
            self.changed_rows += len(images)
            self._pending_images.append((table.id, images))
            self._pending_bytes += int(images.before.nbytes + images.after.nbytes)
            if not self._is_log_deferred or (
                self._pending_bytes >= MIN_BUDGET and self._pending_bytes >= process_budget() * _PENDING_FRACTION
            ):
                self._flush_log()

    def append_rows(self, table: Table, keys: list[bytes], before: list[bytes], after: list[bytes]) -> None:
        """The same for rows that Python has."""
        self._flush_log()
        where = (self.head + 1, self.next_chunk, table.id, self.time)
        self.next_chunk = log_format.append_rows(self.state.log, *where, (keys, before, after), self._chunk_bytes)
        self.changed_rows += len(keys)

    def finish(self, *, always: bool = False) -> WriteResult:
        """The call's position; one that changed nothing has none, unless `always`."""
        if not self.changed_rows and not always:
            return WriteResult(self.head, 0, atomic=True)
        self._flush_log()
        metadata.put_counter(self.state.meta, metadata.HEAD, self.head + 1)
        return WriteResult(self.head + 1, self.changed_rows, atomic=True)

    def _flush_log(self) -> None:
        """Append to the log what waits for it; of many slices two threads make the chunks that come next."""
        later, held = self._pending_images, self._pending_bytes
        self._pending_bytes = 0
        if len(later) < _MIN_PARALLEL_SLICES or held < _MIN_PARALLEL_BYTES:
            while later:
                self._put_chunks(self._encode_chunks(*later.popleft()))
            return
        with ThreadPool(2, thread_name_prefix="viewkeeper-log") as threads:
            ahead: deque[Future[list[bytes]]] = deque()
            while later or ahead:
                while later and len(ahead) < _MAX_PREPARED_SLICES:
                    ahead.append(threads.submit(self._encode_chunks, *later.popleft()))
                self._put_chunks(ahead.popleft().result())

    def _encode_chunks(self, table: int, images: RowImages) -> list[bytes]:
        return list(log_format.encode_chunks(table, self.time, images, self._chunk_bytes))

    def _put_chunks(self, chunks: list[bytes]) -> None:
        self.next_chunk = log_format.put_chunks(self.state.log, self.head + 1, self.next_chunk, chunks)


def _is_large(size: int) -> bool:
    return (
        size >= MIN_BUDGET // _LARGE_CALL_FRACTION and size >= process_budget() // _LARGE_CALL_FRACTION
    )  # what a small call has not to look up


def encode_change_rows(table: Table, puts: pa.Table, deletes: pa.Table) -> Iterator[EncodedRows]:
    """Keys and rows (empty: delete), some at a time."""
    yield from _encode_slices(table, puts, table.arrow.names, _encode_puts)
    yield from _encode_slices(table, deletes, [column.name for column in table.key_columns], _encode_deletes)


def _encode_slices(table: Table, rows: pa.Table, names: Sequence[str], encode: _SliceEncoder) -> Iterator[EncodedRows]:
    """A slice after the other, some at a time by two threads, which rest while those are written: there Python's lock
    changes hands at every row, and another thread would only be in the way. (All at once would be new memory.)"""
    if not rows.num_rows:
        return
    data = convert_rows(table, rows, names)
    slices = _slices(table, data)
    if not isinstance(slices[0], slice) and data.column(0).num_chunks > len(slices):
        data = data.combine_chunks()  # each slice would have rows of all of these small ones
    if len(slices) < _MIN_PARALLEL_SLICES:
        yield from (encode(table, _take_slice(data, places)) for places in slices)
        return
    with ThreadPool(2, thread_name_prefix="viewkeeper-rows") as threads:
        for start in range(0, len(slices), _SLICES_PER_ROUND):
            some = slices[start : start + _SLICES_PER_ROUND]
            made = list(threads.map(lambda places: encode(table, _take_slice(data, places)), some))
            made.reverse()
            while made:  # what is written is let go of
                yield made.pop()


def _encode_puts(table: Table, rows: pa.Table) -> EncodedRows:
    keys, after = encode_keys(table, rows), encode_rows(table, rows)
    check_sizes(table, rows, keys, after)
    return keys, after


def _encode_deletes(table: Table, keys_only: pa.Table) -> EncodedRows:
    keys = encode_keys(table, keys_only)
    return keys, empty_rows(len(keys))


def stream_images(change: StreamChange) -> RowImages:
    """The images of a delta whose rows are not stored: a negative weight is a row before, a positive one after."""
    table = change.table
    weights = change.delta[WEIGHT]
    data = change.delta.drop_columns([WEIGHT])
    if table.is_bag:
        data = data.append_column(COUNT, pc.abs(weights))
    pieces = []
    for gone in (True, False):
        part = convert_rows(table, data.filter((pc.less if gone else pc.greater)(weights, 0)), table.arrow.names)
        keys, images = encode_keys(table, part), encode_rows(table, part)
        none = empty_rows(len(keys))
        pieces.append(RowImages(keys, images, none) if gone else RowImages(keys, none, images))
    return concat_images(pieces)


def _slices(table: Table, data: pa.Table) -> Sequence[slice | RowIndices]:
    """Places that follow each other in key order, some at a time: a page that two touch is written twice."""
    parts = max(-(-data.num_rows // _SLICE_ROWS), -(-data.nbytes // _SLICE_BYTES))
    if parts <= 1 or data.num_rows < 2:
        return [slice(0, data.num_rows)]
    keys = encode_keys(table, data)
    large = keys.nbytes > _LARGE_KEY_BYTES
    order = key_order(keys)
    del keys
    if large:
        release_free_memory()  # all keys at once were much; from here on it is a slice at a time, and LMDB's own pages
    step = -(-data.num_rows // parts)
    ranges = [slice(start, start + step) for start in range(0, data.num_rows, step)]
    return ranges if order is None else [order[places] for places in ranges]


def _take_slice(data: pa.Table, indices: slice | RowIndices) -> pa.Table:
    if isinstance(indices, slice):
        return data.slice(indices.start, indices.stop - indices.start)
    return take_table_rows(data, indices)


def images_to_delta(table: Table, images: RowImages, columns: list[str], sign: int) -> pa.Table:
    """Before-images with weight −sign, after-images with weight sign."""
    before = with_weight(decode_rows(table, drop_empty(images.before), columns), -sign)
    after = with_weight(decode_rows(table, drop_empty(images.after), columns), sign)
    return pa.concat_tables([before, after]).combine_chunks()
