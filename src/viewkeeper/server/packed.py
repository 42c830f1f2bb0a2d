"""How large an Arrow stream becomes, before it does: its buffers unpacked, then its columns decoded.

`unpacked_size` is from its own words. A message of a stream is a flatbuffer, which says where the buffers lie in the
body that follows. A packed one begins with its size: 8 bytes, little-endian, -1 if it is not packed after all. What
unpacks the buffers takes as much memory as is said there, and refuses buffers that have another size.

    Message      header (2), of the kind in header_type (1)
    RecordBatch  buffers (2), compression (3)              a vector of (offset, length), each 8 bytes
    Dictionary   data (1), which is a RecordBatch, is_delta (2)

A delta adds some words to a dictionary, and who reads it makes a new one of all words: each counts as all before it.

`decoded_size` is of columns that say a value once and name it many times: dictionaries, runs and views.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_DICTIONARY, _BATCH = 2, 3
_TEXTS = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


def unpacked_size(stream: bytes) -> int:
    """Bytes that a stream takes beyond its own; ValueError or an error of pyarrow if it is none."""
    size = words = 0
    messages = pa.ipc.MessageReader.open_stream(stream)
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            return size
        try:
            data, body = memoryview(message.metadata), message.body
            kind, header = _header(data)
            batch = header
            if header is not None and kind == _DICTIONARY:
                inner, delta = _field(data, header, 1), _field(data, header, 2)
                batch = None if inner is None else _reference(data, inner)
                if delta is not None and data[delta]:
                    size += words
                words += _unpacked(data, batch, body) + (0 if body is None else body.size)
            size += _unpacked(data, batch, body)
        except (struct.error, IndexError):
            raise ValueError("a message is damaged") from None


def decoded_size(rows: pa.Table) -> int:
    """Bytes of the values of encoded columns, each value as often as it is named; of rows that were looked through."""
    return sum(_decoded(chunk) for column in rows.columns if _encoded(column.type) for chunk in column.chunks)


# -- decoded -----------------------------------------------------------------------------------------------------------


def _encoded(kind: pa.DataType) -> bool:
    return pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind) or _is_view(kind)


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _decoded(values: pa.Array) -> int:
    if not pa.types.is_run_end_encoded(values.type):
        return int(_lengths(values).sum())
    ends = np.clip(values.run_ends.to_numpy().astype(np.int64) - values.offset, 0, len(values))
    return int((np.diff(ends, prepend=0) * _lengths(values.values)).sum())


def _lengths(values: pa.Array) -> Any:
    """Bytes of each value, 0 for NULL."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        words = np.append(_lengths(values.dictionary), 0)
        return words[values.indices.fill_null(len(values.dictionary)).to_numpy(zero_copy_only=False)]
    if _is_view(kind):  # 16 bytes each, of which the first 4 are the length
        views = np.frombuffer(values.buffers()[1] or b"", np.int32)[4 * values.offset :: 4][: len(values)]
        return np.where(values.is_valid().to_numpy(zero_copy_only=False), views, 0).astype(np.int64)
    if kind in _TEXTS:
        return pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if not pa.types.is_primitive(kind) and not pa.types.is_fixed_size_binary(kind) and not pa.types.is_null(kind):
        raise TypeError(f"a column of {kind} cannot be encoded")
    return np.full(len(values), max(1, getattr(kind, "bit_width", 0) // 8), np.int64)


# -- unpacked ----------------------------------------------------------------------------------------------------------


def _header(data: memoryview) -> tuple[int, int | None]:
    """The kind of a message and where its header is; None: a kind without rows."""
    message = _reference(data, 0)
    kind, header = _field(data, message, 1), _field(data, message, 2)
    if kind is None or header is None or data[kind] not in (_DICTIONARY, _BATCH):
        return 0, None
    return data[kind], _reference(data, header)


def _unpacked(data: memoryview, batch: int | None, body: Any) -> int:
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
