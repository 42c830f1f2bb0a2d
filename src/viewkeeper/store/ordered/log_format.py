"""The change log: what every write call and every commit did, with the rows as they were before and after.

    key      position (u64, big-endian), chunk (u32, big-endian): a call of many rows or tables has several chunks
    entry    02 | flags u8 | check u16 | table id u32 | time f64 | rows u32 | crc32 u32        (little-endian; 24 bytes)
             ends of the keys u32 × rows; of the before-images, if flag 1; of the after-images, if flag 2
             the keys, the before-images, the after-images: encoded as in the table

A position is what is elsewhere called an offset. An empty before-image is an insert, an empty after-image a delete.
Images lie one after another, so a chunk is decoded like a scan, only the wanted columns. The checksum covers the
whole entry, the check the rest of the header: who passes an entry over because it is another table's must know that
it is. (Version 01 had zeros there, and is read without that check.) The positions up to `floor` are forgotten.
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
from viewkeeper.store.contract.commits import Touched
from viewkeeper.store.ordered.maps import OrderedMap
from viewkeeper.store.ordered.row_images import Images, binary

CHUNK_BYTES = 512 << 10
"""Images a chunk, about. Memory for longer ones is taken from the system anew each time, which takes twice as long."""

GATHER_BYTES = 4 << 20
"""Chunks decoded together: few enough for the processor's cache (256 MB at once took 1.7 times as long)."""

_PIECE = 1024
"""Positions whose bytes are counted together."""

_KEY = struct.Struct(">QI")
_HEADER = struct.Struct("<BBHIdII")
_CHECKED = _HEADER.size - 4
_ENDS = 3 * 4
_VERSION, _UNCHECKED, _BEFORE, _AFTER = 2, 1, 1, 2
_END = struct.Struct("<I").unpack_from

Bytes = memoryview | bytes


Place = tuple[int, int]
"""Of a chunk: its call's position, and its number there."""


class Entry(NamedTuple):
    """One chunk as it lies in the log; `body` is valid while its transaction is open."""

    position: int
    table: int
    time: float
    rows: int
    body: Bytes


# -- writing ----------------------------------------------------------------------------------------------------------


def append(
    log: OrderedMap, position: int, chunk: int, table: int, time: float, images: Images, most: int = CHUNK_BYTES
) -> int:
    """Append the images as chunks of about `most` bytes from number `chunk` on; the next free number."""
    return put(log, position, chunk, encoded(table, time, images, most))


def put(log: OrderedMap, position: int, chunk: int, entries: Iterable[bytes]) -> int:
    """Append chunks that are encoded already; the next free number."""
    for entry in entries:
        log.put(_KEY.pack(position, chunk), entry, last=True)
        chunk += 1
    return chunk


def append_few(
    log: OrderedMap,
    position: int,
    chunk: int,
    table: int,
    time: float,
    sides: tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]],
    most: int = CHUNK_BYTES,
) -> int:
    """The same for keys and images that Python has: where they are one chunk, no array is made."""
    whole = [b"".join(side) for side in sides]
    rows = len(sides[0])
    if sum(map(len, whole)) + _ENDS * rows > most:
        return append(log, position, chunk, table, time, Images(*map(binary, sides)), most)
    there = [side for side, data in enumerate(whole) if not side or data]
    form = struct.Struct(f"<{rows}I")
    body = b"".join(
        [*(form.pack(*accumulate(map(len, sides[side]))) for side in there), *(whole[side] for side in there)]
    )
    head = _head(sum(there), table, time, rows)
    checksum = zlib.crc32(body, zlib.crc32(head))
    log.put(_KEY.pack(position, chunk), b"".join((head, checksum.to_bytes(4, "little"), body)), last=True)
    return chunk + 1


def encoded(table: int, time: float, images: Images, most: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The images as chunks of about so many bytes."""
    rows = len(images)
    sides = [_pieces(array) for array in (images.keys, images.before, images.after)]
    size = sum(len(data) for _, data in sides) + _ENDS * rows
    each = max(1, rows * most // max(size, 1))
    ends = [_ends(offsets, each) for offsets, _ in sides]
    marks = [[*offsets[:-1:each].tolist(), int(offsets[-1])] for offsets, _ in sides]
    heads: dict[tuple[int, int], tuple[bytes, int]] = {}
    for number, start in enumerate(range(0, rows, each)):
        stop = min(start + each, rows)
        spans = [slice(marked[number], marked[number + 1]) for marked in marks]
        there = [side for side, span in enumerate(spans) if not side or span.start < span.stop]
        body = [ends[side][4 * start : 4 * stop] for side in there]
        body += [sides[side][1][spans[side]] for side in there]
        shape = (sum(there), stop - start)  # the numbers of the sides are their flags
        if shape not in heads:
            head = _head(shape[0], table, time, shape[1])
            heads[shape] = head, zlib.crc32(head)
        head, checksum = heads[shape]
        for part in body:
            checksum = zlib.crc32(part, checksum)
        yield b"".join((head, checksum.to_bytes(4, "little"), *body))


def _head(flags: int, table: int, time: float, rows: int) -> bytes:
    """A header up to the checksum."""
    head = _HEADER.pack(_VERSION, flags, 0, table, time, rows, 0)[:_CHECKED]
    return head[:2] + _check(head).to_bytes(2, "little") + head[4:]


def _pieces(array: pa.BinaryArray) -> tuple[np.ndarray[Any, np.dtype[np.int32]], memoryview]:
    """Where values begin, and the last one ends, and their bytes."""
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
    return offsets - offsets[0], value_bytes(array).data


def _ends(offsets: np.ndarray[Any, np.dtype[np.int32]], each: int) -> memoryview:
    """Where values end in their chunk, if each has so many."""
    ends = offsets[1:]
    if each < len(ends):
        ends = ends - np.repeat(offsets[:-1:each], each)[: len(ends)]
    return ends.astype("<u4").data.cast("B")


# -- reading ----------------------------------------------------------------------------------------------------------


def entries(log: OrderedMap, after: int, upto: int, tables: Sequence[int]) -> Iterator[Entry]:
    """The chunks of these tables in (after, upto]."""
    return between(log, (after + 1, 0), (upto + 1, 0), tables)


def between(log: OrderedMap, start: Place, stop: Place, tables: Sequence[int]) -> Iterator[Entry]:
    """The chunks of these tables from one on, before another."""
    wanted = frozenset(tables)
    if start >= stop:
        return
    for key, body in log.items(_KEY.pack(*start)):
        place = _KEY.unpack(key)
        if place >= stop:
            return
        version, _, check, table, time, rows, _ = _HEADER.unpack_from(body)
        if version not in (_VERSION, _UNCHECKED):
            raise CorruptState(f"Position {place[0]} of the change log has an unknown format.")
        if table not in wanted:
            if version == _VERSION and _check(body) != check:
                raise _damaged(place[0])
        else:
            yield Entry(place[0], table, time, rows, body)


def share(log: OrderedMap, after: int, upto: int, table: int, part: int, parts: int) -> tuple[Place, Place]:
    """Where one of `parts` shares of (after, upto] begins and ends; each has about as many chunks of the table.

    They follow each other: what lies between two states of a key cancels only then. Of a call of many chunks the first
    two are looked at, and how many there are is found by asking for some of the others.
    """
    calls = list(_calls(log, after, upto, table)) if parts > 1 else []
    ends = [0, *accumulate(chunks for _, chunks in calls)]

    def edge(number: int) -> Place:
        if not 0 < number < parts:
            return (upto + 1 if number else after + 1, 0)
        target = ends[-1] * number // parts
        call = bisect_right(ends, target) - 1
        return (calls[call][0], target - ends[call]) if call < len(calls) else (upto + 1, 0)

    return edge(part), edge(part + 1)


def _calls(log: OrderedMap, after: int, upto: int, table: int) -> Iterator[tuple[int, int]]:
    """The calls in (after, upto] that begin with a chunk of the table, and how many chunks each has."""
    start = (after + 1, 0)
    while start < (upto + 1, 0):
        found, start, first = log.items(_KEY.pack(*start)), (upto + 1, 0), (-1, False)
        for key, body in found:
            position, chunk = _KEY.unpack(key)
            if position > upto:
                break
            if chunk == 0:
                if first[1]:
                    yield first[0], 1
                first = position, _HEADER.unpack_from(body)[3] == table
            else:
                if first[1]:
                    yield position, _chunks(log, position)
                first, start = (-1, False), (position + 1, 0)
                break
        if first[1]:
            yield first[0], 1


def _chunks(log: OrderedMap, position: int) -> int:
    """How many chunks a call has: they are numbered from 0 on."""
    least, beyond = 1, 2
    while log.get(_KEY.pack(position, beyond - 1)) is not None:
        least, beyond = beyond, 2 * beyond
    while beyond - least > 1:
        middle = (least + beyond) // 2
        if log.get(_KEY.pack(position, middle - 1)) is not None:
            least = middle
        else:
            beyond = middle
    return least


def touched(log: OrderedMap, after: int, upto: int) -> dict[int, Touched]:
    """The tables of the chunks in (after, upto]: from the chunks' headers alone."""
    found: dict[int, Touched] = {}
    if after >= upto:
        return found
    for key, body in log.items(_KEY.pack(after + 1, 0)):
        position = _KEY.unpack(key)[0]
        if position > upto:
            break
        _, _, _, table, _, rows, _ = _HEADER.unpack_from(body)
        known = found.get(table)
        found[table] = Touched(position, rows + (known.rows if known is not None else 0))
    return found


def raw(log: OrderedMap, after: int = -1) -> Iterator[tuple[int, memoryview | bytes]]:
    """Every chunk after a position as it lies there, with its own."""
    return ((_KEY.unpack(key)[0], body) for key, body in log.items(_KEY.pack(after + 1, 0)))


class Measured:
    """What a log takes, where its map does not say: what came is added up once, what went is taken off by pieces."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._upto = 0
        self._pieces: dict[int, int] = {}

    def bytes(self, log: OrderedMap, floor: int, head: int) -> int:
        with self._lock:
            for position, body in raw(log, max(self._upto, floor)):
                if position > head:
                    break
                piece = position // _PIECE
                self._pieces[piece] = self._pieces.get(piece, 0) + _KEY.size + len(body)
            self._upto = max(self._upto, head)
            first = (floor + 1) // _PIECE if floor < head else self._upto
            self._pieces = {piece: size for piece, size in self._pieces.items() if piece >= first}
            return sum(self._pieces.values())


def is_whole(body: memoryview | bytes) -> bool:
    """Whether a chunk's checksum is right."""
    checksum = int.from_bytes(body[_CHECKED : _HEADER.size], "little")
    return zlib.crc32(body[_HEADER.size :], zlib.crc32(body[:_CHECKED])) == checksum


def gather(found: Iterable[Entry]) -> Iterator[Images]:
    """The images of many chunks, checked and copied out of the log, some at a time."""
    group: list[Entry] = []
    size = 0
    for entry in found:
        group.append(entry)
        size += len(entry.body)
        if size > GATHER_BYTES:
            yield images(group)
            group, size = [], 0
    if group:
        yield images(group)


def few(log: OrderedMap, after: int, upto: int, table: int, most: int) -> list[tuple[bytes, bytes]] | None:
    """The rows before and after of a table's chunks in (after, upto], one by one, checked and copied; None if there are
    more than `most`."""
    found: list[tuple[bytes, bytes]] = []
    for key, part in log.items(_KEY.pack(after + 1, 0)):
        position = int.from_bytes(key[:8], "big")
        if position > upto:
            break
        body = bytes(part)
        version, flags, check, of, _, rows, _ = _HEADER.unpack_from(body)
        if version not in (_VERSION, _UNCHECKED):
            raise CorruptState(f"Position {position} of the change log has an unknown format.")
        if of != table:
            if version == _VERSION and _check(body) != check:
                raise _damaged(position)
            continue
        if len(found) + rows > most:
            return None
        if not is_whole(body):
            raise _damaged(position)
        sides = 1 + (flags & _BEFORE) + flags // _AFTER
        ends = struct.unpack_from(f"<{sides * rows}I", body, _HEADER.size)
        start = _HEADER.size + 4 * sides * rows + ends[rows - 1]
        images, place = [], rows
        for there in (flags & _BEFORE, flags & _AFTER):
            if not there:
                images.append([b""] * rows)
                continue
            own = ends[place : place + rows]
            images.append([body[start + low : start + high] for low, high in zip((0, *own), own, strict=False)])
            start, place = start + own[-1], place + rows
        found += zip(*images, strict=True)
    return found


def images(found: Sequence[Entry]) -> Images:
    """The images of some chunks as one, checked and copied. A call of one row is a chunk too, and one of millions has
    a chunk for every few: no array for each, and each side is copied once."""
    ends: tuple[list[Bytes], ...] = ([], [], [])
    data: tuple[list[Bytes], ...] = ([], [], [])
    for position, _, _, rows, body in found:
        if not is_whole(body):
            raise _damaged(position)
        flags, size, at = body[1], 4 * rows, _HEADER.size
        start = at + size * (1 + (flags & _BEFORE) + flags // _AFTER)
        for kind, is_there in enumerate((True, flags & _BEFORE, flags & _AFTER)):
            if is_there:
                ends[kind].append(body[at : at + size])
                at += size
                data[kind].append(body[start : (start := start + _END(body, at - 4)[0])])
            else:
                ends[kind].append(bytes(size))
                data[kind].append(b"")
    counts = [entry.rows for entry in found]
    return Images(*(_array(counts, ends[kind], data[kind]) for kind in range(3)))


def _check(header: memoryview | bytes) -> int:
    """Of a header's other fields up to the checksum."""
    return zlib.crc32(header[4:_CHECKED], zlib.crc32(header[:2])) & 0xFFFF


def _damaged(position: int) -> CorruptState:
    return CorruptState(
        f"Position {position} of the change log is damaged: its checksum is wrong.",
        hint="A refresh makes the views anew from the tables.",
    )


def _array(counts: list[int], ends: list[Bytes], data: list[Bytes]) -> pa.BinaryArray:
    """One array of many chunks' values: each chunk's ends count from where its bytes begin."""
    sizes = np.fromiter(map(len, data), np.int64, len(data))
    offsets = np.zeros(sum(counts) + 1, np.int32)
    offsets[1:] = np.frombuffer(b"".join(ends), "<u4") + np.repeat(np.cumsum(sizes) - sizes, counts)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


# -- forgetting -------------------------------------------------------------------------------------------------------


def forget(log: OrderedMap, upto: int) -> None:
    """Delete the entries up to and including a position."""
    log.delete_before(_KEY.pack(upto + 1, 0))
