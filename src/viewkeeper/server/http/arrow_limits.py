"""The size of an Arrow stream after decompression and decoding, computed before it is decompressed or decoded.

`decompressed_size` reads the stream's own metadata. A message of a stream is -1 (not in old streams), a length, a
flatbuffer of that length, and a body. The flatbuffer contains the body's length and the positions of the buffers in it.
A compressed buffer begins with its uncompressed size: 8 bytes, little-endian, -1 if it is not compressed after all. The
decompressor allocates exactly that size, and refuses buffers that turn out to have another size.

    Message      header (2), of the kind in header_type (1), bodyLength (3)
    RecordBatch  buffers (2), compression (3)              a vector of (offset, length), each 8 bytes
    Dictionary   data (1), which is a RecordBatch, is_delta (2)

A delta adds entries to a dictionary, and the reader builds a new dictionary of all entries: each delta counts as all
entries before it.

`decoded_size` is about columns that store a value once and refer to it many times: dictionaries, runs and views.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_DICTIONARY, _BATCH = 2, 3
_SHORT, _INT, _COUNT, _LONG, _BUFFER = map(struct.Struct, ("<H", "<i", "<I", "<q", "<qq"))
_TEXTS = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


def decompressed_size(stream: bytes | bytearray) -> int:
    """Bytes that a stream needs beyond its own; ValueError if it is damaged. pyarrow reports data that is no stream."""
    size = dictionary_bytes = position = 0
    try:
        while position + 4 <= len(stream):
            (length,) = _INT.unpack_from(stream, position)
            position += 4
            if length == -1:
                (length,) = _INT.unpack_from(stream, position)
                position += 4
            if length <= 0:
                return size  # the end of the stream, or data that pyarrow does not read
            kind, header, body_length = _read_header(stream, position)
            position += length
            if not 0 <= body_length <= len(stream) - position:
                raise ValueError("a message ends too early")
            if kind == _BATCH:
                size += _decompressed_bytes(stream, header, position, body_length)
            elif kind == _DICTIONARY:
                inner, delta = _field_offset(stream, header, 1), _field_offset(stream, header, 2)
                added = (
                    0
                    if inner is None
                    else _decompressed_bytes(stream, _follow_offset(stream, inner), position, body_length)
                )
                size += added
                if delta is not None and stream[delta]:
                    size += dictionary_bytes
                dictionary_bytes += added + body_length
            position += body_length
    except (struct.error, IndexError):
        raise ValueError("a message is damaged") from None
    return size


def decoded_size(rows: pa.Table) -> int:
    """Bytes of the values of encoded columns, each value as often as rows refer to it; the rows must be validated."""
    return sum(
        _decoded_bytes(chunk) for column in rows.columns if _is_encoded_type(column.type) for chunk in column.chunks
    )


# -- after decoding ----------------------------------------------------------------------------------------------------


def _is_encoded_type(type_: pa.DataType) -> bool:
    return pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_) or _is_view(type_)


def _is_view(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(type_) or pa.types.is_binary_view(type_))


def _decoded_bytes(values: pa.Array) -> int:
    if not pa.types.is_run_end_encoded(values.type):
        return int(_value_lengths(values).sum())
    ends = np.clip(values.run_ends.to_numpy().astype(np.int64) - values.offset, 0, len(values))
    return int((np.diff(ends, prepend=0) * _value_lengths(values.values)).sum())


def _value_lengths(values: pa.Array) -> Any:
    """Bytes of each value, 0 for NULL."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        lengths = np.append(_value_lengths(values.dictionary), 0)
        return lengths[values.indices.fill_null(len(values.dictionary)).to_numpy(zero_copy_only=False)]
    if _is_view(kind):  # 16 bytes each; the first 4 are the length
        views = np.frombuffer(values.buffers()[1] or b"", np.int32)[4 * values.offset :: 4][: len(values)]
        return np.where(values.is_valid().to_numpy(zero_copy_only=False), views, 0).astype(np.int64)
    if kind in _TEXTS:
        return pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if not pa.types.is_primitive(kind) and not pa.types.is_fixed_size_binary(kind) and not pa.types.is_null(kind):
        raise TypeError(f"a column of {kind} cannot be encoded")
    return np.full(len(values), max(1, getattr(kind, "bit_width", 0) // 8), np.int64)


# -- after decompression -----------------------------------------------------------------------------------------------


def _read_header(data: bytes | bytearray, offset: int) -> tuple[int, int, int]:
    """The kind of a message, the offset of its header, and the length of its body. Kind 0: a message without rows."""
    message = _follow_offset(data, offset)
    kind, header, length_field = (
        _field_offset(data, message, 1),
        _field_offset(data, message, 2),
        _field_offset(data, message, 3),
    )
    length: int = 0 if length_field is None else _LONG.unpack_from(data, length_field)[0]
    if kind is None or header is None or data[kind] not in (_DICTIONARY, _BATCH):
        return 0, 0, length
    return data[kind], _follow_offset(data, header), length


def _decompressed_bytes(data: bytes | bytearray, batch: int, body: int, length: int) -> int:
    """Decompressed bytes of a batch whose buffers are in the `length` bytes from `body` on."""
    buffers = _field_offset(data, batch, 2)
    if _field_offset(data, batch, 3) is None or buffers is None:
        return 0
    begin, size = _follow_offset(data, buffers), 0
    (count,) = _COUNT.unpack_from(data, begin)
    for number in range(count):
        offset, compressed = _BUFFER.unpack_from(data, begin + 4 + 16 * number)
        if compressed >= 8:
            if not 0 <= offset <= length - 8:
                raise ValueError("a buffer lies elsewhere")
            size += max(_LONG.unpack_from(data, body + offset)[0], 0)
    return size


def _follow_offset(data: bytes | bytearray, offset: int) -> int:
    """The position that the relative offset at `offset` points to."""
    return offset + int(_COUNT.unpack_from(data, offset)[0])


def _field_offset(data: bytes | bytearray, table: int, number: int) -> int | None:
    """The position of a field of a table; None if the field is absent."""
    vtable = table - int(_INT.unpack_from(data, table)[0])
    if 4 + 2 * number >= _SHORT.unpack_from(data, vtable)[0]:
        return None
    (field,) = _SHORT.unpack_from(data, vtable + 4 + 2 * number)
    return table + int(field) if field else None
