"""The change log: the changes of every write call and commit, with the row images before and after.

    key      position (u64, big-endian), chunk (u32, big-endian): a call of many rows or tables has several chunks
    entry    02 | flags u8 | check u16 | table id u32 | time f64 | rows u32 | crc32 u32        (little-endian; 24 bytes)
             ends of the keys u32 × rows; of the before-images, if flag 1; of the after-images, if flag 2
             the keys, the before-images, the after-images: encoded as in the table

Other systems call a position an offset. An empty before-image is an insert, an empty after-image a delete. Images are
stored contiguously, so a chunk is decoded like a scan, only the requested columns. The checksum covers the whole entry;
the check covers the rest of the header, so that a reader which skips an entry of another table knows that the table id
is right. (Version 01 has zeros there and is read without that check.) Positions up to `floor` are deleted.
"""

from __future__ import annotations

import struct
import threading
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from viewkeeper.errors import CorruptState
from viewkeeper.model.encoding.keys import value_bytes
from viewkeeper.store.contract.commits import ChangedTable
from viewkeeper.store.ordered.maps import OrderedMap
from viewkeeper.store.ordered.row_images import RowImages, binary_array

CHUNK_BYTES = 512 << 10
"""Approximate bytes of images in a chunk. Larger buffers are allocated from the system each time, which takes twice as
long."""

DECODE_BYTES = 4 << 20
"""Bytes of chunks decoded together, so that they stay in the processor cache (256 MB at once took 1.7 times as
long)."""

_POSITIONS_PER_BUCKET = 1024
"""Number of consecutive positions whose bytes are counted in one bucket."""

_KEY = struct.Struct(">QI")
_HEADER = struct.Struct("<BBHIdII")
_CHECKSUM_OFFSET = _HEADER.size - 4
_END_BYTES = 3 * 4
_VERSION, _VERSION_WITHOUT_CHECK, _HAS_BEFORE, _HAS_AFTER = 2, 1, 1, 2
_read_end = struct.Struct("<I").unpack_from

Bytes = memoryview | bytes


ChunkPosition = tuple[int, int]
"""Position of a chunk: the call's position, and the chunk's number in the call."""


class LogEntry(NamedTuple):
    """One chunk of the log; `body` is valid while its transaction is open."""

    position: int
    table_id: int
    time: float
    rows: int
    body: Bytes


# -- writing ----------------------------------------------------------------------------------------------------------


def append_images(
    log: OrderedMap,
    position: int,
    chunk: int,
    table: int,
    time: float,
    images: RowImages,
    chunk_bytes: int = CHUNK_BYTES,
) -> int:
    """Append images as chunks of about `chunk_bytes`, numbered from `chunk` on, and return the next free number."""
    return put_chunks(log, position, chunk, encode_chunks(table, time, images, chunk_bytes))


def put_chunks(log: OrderedMap, position: int, chunk: int, chunks: Iterable[bytes]) -> int:
    """Append encoded chunks and return the next free number."""
    for entry in chunks:
        log.put(_KEY.pack(position, chunk), entry, append=True)
        chunk += 1
    return chunk


def append_rows(
    log: OrderedMap,
    position: int,
    chunk: int,
    table: int,
    time: float,
    sides: tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]],
    chunk_bytes: int = CHUNK_BYTES,
) -> int:
    """Append images that are bytes objects; if they fit into one chunk, no Arrow array is built."""
    joined = [b"".join(side) for side in sides]
    rows = len(sides[0])
    if sum(map(len, joined)) + _END_BYTES * rows > chunk_bytes:
        return append_images(log, position, chunk, table, time, RowImages(*map(binary_array, sides)), chunk_bytes)
    present = [side for side, data in enumerate(joined) if not side or data]
    ends_format = struct.Struct(f"<{rows}I")
    body = b"".join(
        [
            *(ends_format.pack(*accumulate(map(len, sides[side]))) for side in present),
            *(joined[side] for side in present),
        ]
    )
    head = _encode_header(sum(present), table, time, rows)
    checksum = zlib.crc32(body, zlib.crc32(head))
    log.put(_KEY.pack(position, chunk), b"".join((head, checksum.to_bytes(4, "little"), body)), append=True)
    return chunk + 1


def encode_chunks(table: int, time: float, images: RowImages, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Yield the images as chunks of about `chunk_bytes`."""
    rows = len(images)
    sides = [_offsets_and_bytes(array) for array in (images.keys, images.before, images.after)]
    size = sum(len(data) for _, data in sides) + _END_BYTES * rows
    chunk_rows = max(1, rows * chunk_bytes // max(size, 1))
    ends = [_chunk_ends(offsets, chunk_rows) for offsets, _ in sides]
    offsets_by_chunk = [[*offsets[:-1:chunk_rows].tolist(), int(offsets[-1])] for offsets, _ in sides]
    heads: dict[tuple[int, int], tuple[bytes, int]] = {}
    for number, start in enumerate(range(0, rows, chunk_rows)):
        stop = min(start + chunk_rows, rows)
        spans = [slice(offsets[number], offsets[number + 1]) for offsets in offsets_by_chunk]
        present = [side for side, span in enumerate(spans) if not side or span.start < span.stop]
        body = [ends[side][4 * start : 4 * stop] for side in present]
        body += [sides[side][1][spans[side]] for side in present]
        shape = (sum(present), stop - start)  # the numbers of the sides are their flags
        if shape not in heads:
            head = _encode_header(shape[0], table, time, shape[1])
            heads[shape] = head, zlib.crc32(head)
        head, checksum = heads[shape]
        for piece in body:
            checksum = zlib.crc32(piece, checksum)
        yield b"".join((head, checksum.to_bytes(4, "little"), *body))


def _encode_header(flags: int, table: int, time: float, rows: int) -> bytes:
    """Encode a header up to the checksum."""
    head = _HEADER.pack(_VERSION, flags, 0, table, time, rows, 0)[:_CHECKSUM_OFFSET]
    return head[:2] + _header_checksum(head).to_bytes(2, "little") + head[4:]


def _offsets_and_bytes(array: pa.BinaryArray) -> tuple[np.ndarray[Any, np.dtype[np.int32]], memoryview]:
    """Return the offsets of the values, beginning at 0, and their bytes."""
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
    return offsets - offsets[0], value_bytes(array).data


def _chunk_ends(offsets: np.ndarray[Any, np.dtype[np.int32]], chunk_rows: int) -> memoryview:
    """Return where each value ends in its chunk, if each chunk has `chunk_rows` values."""
    ends = offsets[1:]
    if chunk_rows < len(ends):
        ends = ends - np.repeat(offsets[:-1:chunk_rows], chunk_rows)[: len(ends)]
    return ends.astype("<u4").data.cast("B")


# -- reading ----------------------------------------------------------------------------------------------------------


def entries(log: OrderedMap, after: int, up_to: int, tables: Sequence[int]) -> Iterator[LogEntry]:
    """Yield the chunks of these tables in (after, up_to]."""
    return entries_between(log, (after + 1, 0), (up_to + 1, 0), tables)


def entries_between(
    log: OrderedMap, start: ChunkPosition, stop: ChunkPosition, tables: Sequence[int]
) -> Iterator[LogEntry]:
    """Yield the chunks of these tables from `start` (included) to `stop` (excluded)."""
    table_ids = frozenset(tables)
    if start >= stop:
        return
    for key, body in log.items(_KEY.pack(*start)):
        chunk_position = _KEY.unpack(key)
        if chunk_position >= stop:
            return
        version, _, check, table, time, rows, _ = _HEADER.unpack_from(body)
        if version not in (_VERSION, _VERSION_WITHOUT_CHECK):
            raise CorruptState(f"Position {chunk_position[0]} of the change log has an unknown format.")
        if table not in table_ids:
            if version == _VERSION and _header_checksum(body) != check:
                raise _damage_error(chunk_position[0])
        else:
            yield LogEntry(chunk_position[0], table, time, rows, body)


def partition_bounds(
    log: OrderedMap, after: int, up_to: int, table: int, partition: int, partition_count: int
) -> tuple[ChunkPosition, ChunkPosition]:
    """Return where a partition of (after, up_to] begins and ends; each has about the same number of the table's chunks.

    Partitions are consecutive, because successive images of a key cancel only within one partition. A call may have
    many chunks: only its first two are read, and the number of chunks is found by probing for others.
    """
    calls = list(_calls_of_table(log, after, up_to, table)) if partition_count > 1 else []
    ends = [0, *accumulate(chunks for _, chunks in calls)]

    def boundary(number: int) -> ChunkPosition:
        if not 0 < number < partition_count:
            return (up_to + 1 if number else after + 1, 0)
        target = ends[-1] * number // partition_count
        call = bisect_right(ends, target) - 1
        return (calls[call][0], target - ends[call]) if call < len(calls) else (up_to + 1, 0)

    return boundary(partition), boundary(partition + 1)


def _calls_of_table(log: OrderedMap, after: int, up_to: int, table: int) -> Iterator[tuple[int, int]]:
    """Yield the calls in (after, up_to] that begin with a chunk of the table, and the number of their chunks."""
    start = (after + 1, 0)
    while start < (up_to + 1, 0):
        found, start, first = log.items(_KEY.pack(*start)), (up_to + 1, 0), (-1, False)
        for key, body in found:
            position, chunk = _KEY.unpack(key)
            if position > up_to:
                break
            if chunk == 0:
                if first[1]:
                    yield first[0], 1
                first = position, _HEADER.unpack_from(body)[3] == table
            else:
                if first[1]:
                    yield position, _count_chunks(log, position)
                first, start = (-1, False), (position + 1, 0)
                break
        if first[1]:
            yield first[0], 1


def _count_chunks(log: OrderedMap, position: int) -> int:
    """Return the number of chunks of a call, which are numbered from 0."""
    low, high = 1, 2
    while log.get(_KEY.pack(position, high - 1)) is not None:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if log.get(_KEY.pack(position, middle - 1)) is not None:
            low = middle
        else:
            high = middle
    return low


def find_changed_tables(log: OrderedMap, after: int, up_to: int) -> dict[int, ChangedTable]:
    """Return the tables changed in (after, up_to]; only the chunks' headers are read."""
    found: dict[int, ChangedTable] = {}
    if after >= up_to:
        return found
    for key, body in log.items(_KEY.pack(after + 1, 0)):
        position = _KEY.unpack(key)[0]
        if position > up_to:
            break
        _, _, _, table, _, rows, _ = _HEADER.unpack_from(body)
        previous = found.get(table)
        found[table] = ChangedTable(position, rows + (previous.changed_rows if previous is not None else 0))
    return found


def scan_chunks(log: OrderedMap, after: int = -1) -> Iterator[tuple[int, memoryview | bytes]]:
    """Yield the position and the bytes of every chunk after a position."""
    return ((_KEY.unpack(key)[0], body) for key, body in log.items(_KEY.pack(after + 1, 0)))


class LogSize:
    """Measures the size of a log whose map does not know it: new entries are added once, truncated ones are subtracted
    by buckets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._measured_up_to = 0
        self._buckets: dict[int, int] = {}

    def measure(self, log: OrderedMap, floor: int, head: int) -> int:
        with self._lock:
            for position, body in scan_chunks(log, max(self._measured_up_to, floor)):
                if position > head:
                    break
                bucket = position // _POSITIONS_PER_BUCKET
                self._buckets[bucket] = self._buckets.get(bucket, 0) + _KEY.size + len(body)
            self._measured_up_to = max(self._measured_up_to, head)
            first = (floor + 1) // _POSITIONS_PER_BUCKET if floor < head else self._measured_up_to
            self._buckets = {bucket: size for bucket, size in self._buckets.items() if bucket >= first}
            return sum(self._buckets.values())


def has_valid_checksum(body: memoryview | bytes) -> bool:
    """Return whether a chunk's checksum is right."""
    checksum = int.from_bytes(body[_CHECKSUM_OFFSET : _HEADER.size], "little")
    return zlib.crc32(body[_HEADER.size :], zlib.crc32(body[:_CHECKSUM_OFFSET])) == checksum


def decode_entries(entries: Iterable[LogEntry]) -> Iterator[RowImages]:
    """Yield the images of many chunks in groups, verified and copied out of the log."""
    group: list[LogEntry] = []
    size = 0
    for entry in entries:
        group.append(entry)
        size += len(entry.body)
        if size > DECODE_BYTES:
            yield concat_entries(group)
            group, size = [], 0
    if group:
        yield concat_entries(group)


def read_row_images(
    log: OrderedMap, after: int, up_to: int, table: int, limit: int
) -> list[tuple[bytes, bytes]] | None:
    """Return the images before and after of a table's chunks in (after, up_to], one by one, verified and copied; None
    if there are more than `limit`."""
    found: list[tuple[bytes, bytes]] = []
    for key, value in log.items(_KEY.pack(after + 1, 0)):
        position = int.from_bytes(key[:8], "big")
        if position > up_to:
            break
        body = bytes(value)
        version, flags, check, table_id, _, rows, _ = _HEADER.unpack_from(body)
        if version not in (_VERSION, _VERSION_WITHOUT_CHECK):
            raise CorruptState(f"Position {position} of the change log has an unknown format.")
        if table_id != table:
            if version == _VERSION and _header_checksum(body) != check:
                raise _damage_error(position)
            continue
        if len(found) + rows > limit:
            return None
        if not has_valid_checksum(body):
            raise _damage_error(position)
        sides = 1 + (flags & _HAS_BEFORE) + flags // _HAS_AFTER
        ends = struct.unpack_from(f"<{sides * rows}I", body, _HEADER.size)
        start = _HEADER.size + 4 * sides * rows + ends[rows - 1]
        images, index = [], rows
        for is_present in (flags & _HAS_BEFORE, flags & _HAS_AFTER):
            if not is_present:
                images.append([b""] * rows)
                continue
            side_ends = ends[index : index + rows]
            images.append(
                [body[start + low : start + high] for low, high in zip((0, *side_ends), side_ends, strict=False)]
            )
            start, index = start + side_ends[-1], index + rows
        found += zip(*images, strict=True)
    return found


def concat_entries(entries: Sequence[LogEntry]) -> RowImages:
    """Return the images of some chunks as one, verified and copied.

    A call of one row is a chunk, and a call of millions has many chunks. So no array is built for each chunk, and the
    bytes of each side are copied once.
    """
    ends: tuple[list[Bytes], ...] = ([], [], [])
    data: tuple[list[Bytes], ...] = ([], [], [])
    for position, _, _, rows, body in entries:
        if not has_valid_checksum(body):
            raise _damage_error(position)
        flags, size, offset = body[1], 4 * rows, _HEADER.size
        start = offset + size * (1 + (flags & _HAS_BEFORE) + flags // _HAS_AFTER)
        for kind, is_there in enumerate((True, flags & _HAS_BEFORE, flags & _HAS_AFTER)):
            if is_there:
                ends[kind].append(body[offset : offset + size])
                offset += size
                data[kind].append(body[start : (start := start + _read_end(body, offset - 4)[0])])
            else:
                ends[kind].append(bytes(size))
                data[kind].append(b"")
    counts = [entry.rows for entry in entries]
    return RowImages(*(_concat_values(counts, ends[kind], data[kind]) for kind in range(3)))


def _header_checksum(header: memoryview | bytes) -> int:
    """Return the check of a header: a checksum of its other fields up to the entry's checksum."""
    return zlib.crc32(header[4:_CHECKSUM_OFFSET], zlib.crc32(header[:2])) & 0xFFFF


def _damage_error(position: int) -> CorruptState:
    return CorruptState(
        f"Position {position} of the change log is damaged: its checksum is wrong.",
        hint="A refresh makes the views anew from the tables.",
    )


def _concat_values(counts: list[int], ends: list[Bytes], data: list[Bytes]) -> pa.BinaryArray:
    """Build one array from the values of many chunks. The ends in each chunk count from the beginning of its bytes."""
    sizes = np.fromiter(map(len, data), np.int64, len(data))
    offsets = np.zeros(sum(counts) + 1, np.int32)
    offsets[1:] = np.frombuffer(b"".join(ends), "<u4") + np.repeat(np.cumsum(sizes) - sizes, counts)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


# -- truncation -------------------------------------------------------------------------------------------------------


def truncate(log: OrderedMap, up_to: int) -> None:
    """Delete the entries up to and including a position."""
    log.delete_before(_KEY.pack(up_to + 1, 0))
