"""One write call: Arrow rows are encoded, applied to their tables, and the changes are appended to the log."""

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
"""Limits of a slice, so that it stays in the processor cache while it is encoded, looked up, written and logged."""
_MIN_PARALLEL_SLICES, _MIN_PARALLEL_BYTES = 4, 1 << 20
"""From this many slices on, two threads encode them; from this many slices and bytes on, two threads encode their log
chunks."""
_SLICES_PER_ROUND = 8
_LARGE_KEY_BYTES = 128 << 20
_LARGE_CALL_FRACTION = 16
"""A call of more than this fraction of the memory budget is large: its log entries, twice as large, are written so that
they need not stay in memory until the commit. That takes several times as long."""

_PENDING_FRACTION = 1 / 16
"""Fraction of the memory budget that images may take before they are appended to the log."""
_MAX_PREPARED_SLICES = 4
"""Maximum number of slices whose log chunks are encoded ahead of the chunks being written."""

EncodedRows = tuple[pa.BinaryArray, pa.BinaryArray]
"""Encoded keys and their encoded rows."""
_SliceEncoder = Callable[[Table, pa.Table], EncodedRows]


class WriteCall:
    """One write call or commit inside its transaction: it has one position, for any number of tables."""

    def __init__(self, state: State, size: int = 0) -> None:
        """Begin the call. `size`: approximate bytes of the rows that it will change."""
        self.state = state
        in_page = state.log.max_inline_value if _is_large(size) else None
        self._chunk_bytes = log_format.CHUNK_BYTES if in_page is None else in_page
        self._is_log_deferred = in_page is None
        self._pending_images: deque[tuple[int, RowImages]] = deque()
        """Images that are not in the log yet, by table. They are appended after all rows: a map that allocates pages in
        ascending order then places the pages of the rows side by side and those of the log behind them (decision
        73)."""
        self._pending_bytes = 0
        self.time = time.time()
        self.head: int = metadata.read_counter(state.meta, metadata.HEAD)
        self.changed_rows = self.next_chunk = 0

    def apply(self, table: Table, keys: pa.BinaryArray, after: pa.BinaryArray) -> RowImages:
        """Change rows, and log those that really changed."""
        images = self.state.rows(table.id).apply(table, keys, after)
        self.append(table, images)
        return images

    def append(self, table: Table, images: RowImages) -> None:
        """Append changed rows to the log."""
        if len(images):
            self.changed_rows += len(images)
            self._pending_images.append((table.id, images))
            self._pending_bytes += int(images.before.nbytes + images.after.nbytes)
            if not self._is_log_deferred or (
                self._pending_bytes >= MIN_BUDGET and self._pending_bytes >= process_budget() * _PENDING_FRACTION
            ):
                self._flush_log()

    def append_rows(self, table: Table, keys: list[bytes], before: list[bytes], after: list[bytes]) -> None:
        """Append changed rows, as bytes objects, to the log."""
        self._flush_log()
        header = (self.head + 1, self.next_chunk, table.id, self.time)
        self.next_chunk = log_format.append_rows(self.state.log, *header, (keys, before, after), self._chunk_bytes)
        self.changed_rows += len(keys)

    def finish(self, *, always: bool = False) -> WriteResult:
        """End the call and return its result. A call that changed nothing uses no position, unless `always`."""
        if not self.changed_rows and not always:
            return WriteResult(self.head, 0, atomic=True)
        self._flush_log()
        metadata.put_counter(self.state.meta, metadata.HEAD, self.head + 1)
        return WriteResult(self.head + 1, self.changed_rows, atomic=True)

    def _flush_log(self) -> None:
        """Append the pending images to the log; if there are many slices, two threads encode the next chunks
        meanwhile."""
        pending, size = self._pending_images, self._pending_bytes
        self._pending_bytes = 0
        if len(pending) < _MIN_PARALLEL_SLICES or size < _MIN_PARALLEL_BYTES:
            while pending:
                self._put_chunks(self._encode_chunks(*pending.popleft()))
            return
        with ThreadPool(2, thread_name_prefix="viewkeeper-log") as threads:
            futures: deque[Future[list[bytes]]] = deque()
            while pending or futures:
                while pending and len(futures) < _MAX_PREPARED_SLICES:
                    futures.append(threads.submit(self._encode_chunks, *pending.popleft()))
                self._put_chunks(futures.popleft().result())

    def _encode_chunks(self, table: int, images: RowImages) -> list[bytes]:
        return list(log_format.encode_chunks(table, self.time, images, self._chunk_bytes))

    def _put_chunks(self, chunks: list[bytes]) -> None:
        self.next_chunk = log_format.put_chunks(self.state.log, self.head + 1, self.next_chunk, chunks)


def _is_large(size: int) -> bool:
    # The first comparison spares small calls the lookup of the budget.
    return size >= MIN_BUDGET // _LARGE_CALL_FRACTION and size >= process_budget() // _LARGE_CALL_FRACTION


def encode_change_rows(table: Table, puts: pa.Table, deletes: pa.Table) -> Iterator[EncodedRows]:
    """Yield encoded keys and rows (empty: delete), slice by slice."""
    yield from _encode_slices(table, puts, table.arrow.names, _encode_puts)
    yield from _encode_slices(table, deletes, [column.name for column in table.key_columns], _encode_deletes)


def _encode_slices(table: Table, rows: pa.Table, names: Sequence[str], encode: _SliceEncoder) -> Iterator[EncodedRows]:
    """Yield encoded slices in order.

    Two threads encode several slices per round and are idle while the caller writes them: writing switches the GIL at
    every row, and another thread would slow it down. Encoding all slices at once would need more memory.
    """
    if not rows.num_rows:
        return
    data = convert_rows(table, rows, names)
    slices = _slices(table, data)
    if not isinstance(slices[0], slice) and data.column(0).num_chunks > len(slices):
        data = data.combine_chunks()  # otherwise each slice would have rows of many small chunks
    if len(slices) < _MIN_PARALLEL_SLICES:
        yield from (encode(table, _take_slice(data, indices)) for indices in slices)
        return
    with ThreadPool(2, thread_name_prefix="viewkeeper-rows") as threads:
        for start in range(0, len(slices), _SLICES_PER_ROUND):
            round_slices = slices[start : start + _SLICES_PER_ROUND]
            encoded = list(threads.map(lambda indices: encode(table, _take_slice(data, indices)), round_slices))
            encoded.reverse()
            while encoded:  # frees each slice after it is written
                yield encoded.pop()


def _encode_puts(table: Table, rows: pa.Table) -> EncodedRows:
    keys, after = encode_keys(table, rows), encode_rows(table, rows)
    check_sizes(table, rows, keys, after)
    return keys, after


def _encode_deletes(table: Table, keys_only: pa.Table) -> EncodedRows:
    keys = encode_keys(table, keys_only)
    return keys, empty_rows(len(keys))


def stream_images(change: StreamChange) -> RowImages:
    """Return the images of a delta whose rows are not stored: a negative weight is a before-image, a positive one an
    after-image."""
    table = change.table
    weights = change.delta[WEIGHT]
    data = change.delta.drop_columns([WEIGHT])
    if table.is_bag:
        data = data.append_column(COUNT, pc.abs(weights))
    pieces = []
    for is_before in (True, False):
        rows = convert_rows(table, data.filter((pc.less if is_before else pc.greater)(weights, 0)), table.arrow.names)
        keys, images = encode_keys(table, rows), encode_rows(table, rows)
        empty = empty_rows(len(keys))
        pieces.append(RowImages(keys, images, empty) if is_before else RowImages(keys, empty, images))
    return concat_images(pieces)


def _slices(table: Table, data: pa.Table) -> Sequence[slice | RowIndices]:
    """Split the rows into slices of consecutive keys: a page that belongs to two slices would be written twice."""
    slice_count = max(-(-data.num_rows // _SLICE_ROWS), -(-data.nbytes // _SLICE_BYTES))
    if slice_count <= 1 or data.num_rows < 2:
        return [slice(0, data.num_rows)]
    keys = encode_keys(table, data)
    is_large = keys.nbytes > _LARGE_KEY_BYTES
    order = key_order(keys)
    del keys
    if is_large:
        release_free_memory()  # of all keys; from here on only single slices and LMDB's pages are in memory
    step = -(-data.num_rows // slice_count)
    ranges = [slice(start, start + step) for start in range(0, data.num_rows, step)]
    return ranges if order is None else [order[indices] for indices in ranges]


def _take_slice(data: pa.Table, indices: slice | RowIndices) -> pa.Table:
    if isinstance(indices, slice):
        return data.slice(indices.start, indices.stop - indices.start)
    return take_table_rows(data, indices)


def images_to_delta(table: Table, images: RowImages, columns: list[str], sign: int) -> pa.Table:
    """Return before-images with weight −sign, and after-images with weight sign."""
    before = with_weight(decode_rows(table, drop_empty(images.before), columns), -sign)
    after = with_weight(decode_rows(table, drop_empty(images.after), columns), sign)
    return pa.concat_tables([before, after]).combine_chunks()
