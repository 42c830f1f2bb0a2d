"""How large an Arrow stream is when its buffers are unpacked, from its own words, before anything is.

A message of a stream is a flatbuffer, which says where the buffers lie in the body that follows. A packed one begins
with its size: 8 bytes, little-endian, -1 if it is not packed after all. What unpacks the buffers takes as much memory
as is said there, and refuses buffers that have another size.

    Message      header (2), of the kind in header_type (1)
    RecordBatch  buffers (2), compression (3)              a vector of (offset, length), each 8 bytes
    Dictionary   data (1), which is a RecordBatch
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

_DICTIONARY, _BATCH = 2, 3


def unpacked_size(stream: bytes) -> int:
    """Bytes of the packed buffers of a stream, unpacked; ValueError or an error of pyarrow if it is none."""
    size, messages = 0, pa.ipc.MessageReader.open_stream(stream)
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            return size
        try:
            size += _unpacked(memoryview(message.metadata), message.body)
        except (struct.error, IndexError):
            raise ValueError("a message is damaged") from None


def _unpacked(data: memoryview, body: Any) -> int:
    message = _reference(data, 0)
    kind, header = _field(data, message, 1), _field(data, message, 2)
    if kind is None or header is None or data[kind] not in (_DICTIONARY, _BATCH):
        return 0
    batch: int | None = _reference(data, header)
    if batch is not None and data[kind] == _DICTIONARY:
        inner = _field(data, batch, 1)
        batch = None if inner is None else _reference(data, inner)
    if batch is None or _field(data, batch, 3) is None:
        return 0
    buffers = _field(data, batch, 2)
    if buffers is None:
        return 0
    begin = _reference(data, buffers)
    (count,) = struct.unpack_from("<I", data, begin)
    packed, size = memoryview(body), 0
    for number in range(count):
        offset, length = struct.unpack_from("<qq", data, begin + 4 + 16 * number)
        if length >= 8:
            (told,) = struct.unpack_from("<q", packed, offset)
            size += max(told, 0)
    return size


def _reference(data: memoryview, at: int) -> int:
    """What the offset at a place leads to."""
    (offset,) = struct.unpack_from("<I", data, at)
    return at + int(offset)


def _field(data: memoryview, table: int, number: int) -> int | None:
    """The place of a field of a table; None if it is not there."""
    (back,) = struct.unpack_from("<i", data, table)
    places = table - int(back)
    (size,) = struct.unpack_from("<H", data, places)
    if 4 + 2 * number >= size:
        return None
    (place,) = struct.unpack_from("<H", data, places + 4 + 2 * number)
    return table + int(place) if place else None
