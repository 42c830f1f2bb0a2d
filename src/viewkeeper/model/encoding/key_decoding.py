"""Decoding of encoded keys: the values shared by all keys of a range, and whole key columns.

The key encoding is prefix-free: no value's bytes are a prefix of another value's. So the columns of a range can be
decoded one after another from its first key, as long as all keys of the range share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model import types
from viewkeeper.model.encoding.keys import WIDTHS, successor
from viewkeeper.model.encoding.row_fields import to_decimal
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.model.types import Type

_INVERTED_BYTES = bytes(255 - b for b in range(256))
_VALUE_MARKER = 1

SharedKeyValues = tuple[bytes, Sequence[pa.Array | None]]
"""The common prefix of all keys of a range, and its values, one array with one value per column. The value is None for
NULL, and for floats, whose equality differs from that of their bytes."""


def shared_key_values(table: Table, start: bytes | None, stop: bytes | None) -> SharedKeyValues:
    """Return the shared values of the keys from `start` (inclusive) to `stop` (exclusive)."""
    values: list[pa.Array | None] = []
    offset = 0
    for part, column in zip(table.key, table.key_columns, strict=True):
        decoded = None if start is None else _decode_column(part, column, start, offset)
        if start is None or decoded is None or not _is_shared_prefix(start[: decoded[0]], stop):
            break
        offset = decoded[0]
        values.append(decoded[1])
    return (start or b"")[:offset], values


def _is_shared_prefix(prefix: bytes, stop: bytes | None) -> bool:
    after = successor(prefix)
    return after is None or (stop is not None and stop <= after)


def _decode_column(part: KeyPart, column: Column, data: bytes, offset: int) -> tuple[int, pa.Array | None] | None:
    """Return the end of a column's bytes and its value; None if the bytes are incomplete."""
    encoded = data[offset:].translate(_INVERTED_BYTES) if part.descending else data[offset:]
    if not encoded:
        return None
    if encoded[0] != _VALUE_MARKER:
        return offset + 1, None
    if column.type in (types.STRING, types.BINARY):
        return _decode_text(column.type, encoded, offset)
    width = _value_width(column.type)
    body = encoded[1 : 1 + width]
    if len(body) < width:
        return None
    return offset + 1 + width, None if column.type in types.FLOATS else _decode_number(column.type, body)


def _decode_text(type_: Type, encoded: bytes, offset: int) -> tuple[int, pa.Array] | None:
    end = encoded.find(b"\0", 1)
    while end >= 0 and encoded[end + 1 : end + 2] == b"\xff":
        end = encoded.find(b"\0", end + 2)
    if end < 0 or encoded[end : end + 2] != b"\0\0":
        return None
    value = encoded[1:end].replace(b"\0\xff", b"\0")
    return offset + end + 2, pa.array([value], pa.binary()).cast(types.arrow(type_))


def _value_width(type_: Type) -> int:
    if type_ in types.FLOATS:
        return 4 if type_ == types.FLOAT else 8
    return WIDTHS.get(type_, 16)


def _decode_number(type_: Type, body: bytes) -> pa.Array:
    if type_ == types.BOOLEAN:
        return pa.array([body != b"\0"])
    value = int.from_bytes(body, "big") - (1 << (8 * len(body) - 1))
    arrow = types.arrow(type_)
    if digits := types.decimal_digits(type_):
        return pa.array([to_decimal(value, digits[1])], arrow)
    plain = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}[len(body)]
    return pa.array([value], plain).cast(arrow)


# Decoding of whole key arrays into columns: the inverse of `keys.encode_keys`.
#
# Each column of a key follows the previous one and begins with its marker. The start of a column is known for all rows
# at once: a fixed-width column is gathered as a matrix of bytes, and a string ends at the next terminator, found by one
# search for all rows. A malformed key is reported in a mask, not by an exception, because other programs may write to
# the table.


Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

FIELD_WIDTHS = {
    types.BOOLEAN: 1,
    types.TINYINT: 1,
    types.SMALLINT: 2,
    types.INT: 4,
    types.BIGINT: 8,
    types.DATE: 4,
    types.TIMESTAMP: 8,
    types.TIMESTAMP_NTZ: 8,
    types.FLOAT: 4,
    types.DOUBLE: 8,
}
"""Width in bytes of the fixed-width types."""


def decode_keys(table: Table, keys: pa.Array) -> tuple[pa.Table, Mask]:
    """Return the key columns of every key, and a mask of malformed keys, whose column values are arbitrary."""
    rows = len(keys)
    offsets = np.frombuffer(keys.buffers()[1], np.int32, rows + 1, keys.offset * 4).astype(np.int64)
    data = np.frombuffer(keys.buffers()[2], np.uint8) if rows else np.empty(0, np.uint8)
    at, end = offsets[:-1].copy(), offsets[1:]
    # Padding after the last key, so that reading the missing columns of a short key stays inside the buffer.
    data = np.concatenate([data[: int(end[-1]) if rows else 0], np.zeros(40, np.uint8)])
    bad = np.zeros(rows, bool)
    arrays = []
    for part, column in zip(table.key, table.key_columns, strict=True):
        encoded = ~data if part.descending else data
        null = 2 if part.nulls_last != part.descending else 0
        marker = encoded[np.minimum(at, len(encoded) - 1)]
        missing = marker == null
        bad |= (at >= end) | ~(missing | (marker == 1))
        start = at + 1
        if column.type in (types.STRING, types.BINARY):
            array, at, wrong = _decode_variable(encoded, start, end, missing | bad, column.type)
        else:
            width = 16 if types.decimal_digits(column.type) else FIELD_WIDTHS[column.type]
            safe = np.minimum(start, len(encoded) - width)
            array = _decode_fixed(column.type, encoded[safe[:, None] + np.arange(width)], missing | bad)
            at = np.where(missing, start, start + width)
            wrong = at > end
        bad |= wrong & ~missing
        arrays.append(array)
    if table.key:
        bad |= at != end
    return pa.Table.from_arrays(arrays, schema=pa.schema([table.arrow.field(c.name) for c in table.key_columns])), bad


def _decode_variable(
    data: Bytes, start: npt.NDArray[np.int64], end: npt.NDArray[np.int64], missing: Mask, type_name: Type
) -> tuple[pa.Array, npt.NDArray[np.int64], Mask]:
    """Decode strings from `start` to their terminators. 00 in a string is written 00 FF, so the first 00 00 ends it."""
    start = np.minimum(start, end)  # a key that ended too early must not read bytes of the next one
    # The appended end is beyond all keys; it marks a string without a terminator as malformed.
    ends = np.append(np.flatnonzero((data[:-1] == 0) & (data[1:] == 0)), len(data))
    index = np.searchsorted(ends, start)
    stop = ends[np.minimum(index, len(ends) - 1)]
    wrong = stop + 2 > end
    stop = np.where(missing | wrong, start, stop)
    cuts = np.empty(2 * len(start), np.int32)
    cuts[0::2], cuts[1::2] = start, np.maximum(stop, start)
    # The strings and the gaps between them form one binary array.
    ranges = pa.Array.from_buffers(
        pa.binary(), max(len(cuts) - 1, 0), [None, pa.py_buffer(cuts), pa.py_buffer(np.ascontiguousarray(data))]
    )
    values = ranges.take(pa.array(np.arange(0, len(cuts), 2)))
    if pc.any(pc.match_substring(values, b"\x00\xff")).as_py():
        values = pc.replace_substring(values, pattern=b"\x00\xff", replacement=b"\x00")
    if type_name == types.STRING:
        values, invalid = decode_utf8(values)
        wrong = wrong | invalid
    after = np.where(missing, start, stop + 2)
    return pc.if_else(pa.array(missing), pa.scalar(None, values.type), values), after, wrong


def decode_utf8(values: pa.Array) -> tuple[pa.Array, Mask]:
    """Cast binary to strings; also return a mask of values that are not UTF-8, which become empty."""
    try:
        return values.cast(pa.string()), np.zeros(len(values), bool)
    except pa.ArrowInvalid:
        if len(values) == 1:
            return pa.array([""]), np.ones(1, bool)
        half = len(values) // 2
        first, second = decode_utf8(values.slice(0, half)), decode_utf8(values.slice(half))
        return pa.concat_arrays([first[0], second[0]]), np.concatenate([first[1], second[1]])


def _decode_fixed(type_name: Type, matrix: Bytes, missing: Mask) -> pa.Array:
    """Return a matrix of order-preserving bytes as a column."""
    rows, width = matrix.shape
    matrix = np.ascontiguousarray(matrix)
    arrow = types.arrow(type_name)
    if type_name == types.BOOLEAN:
        values: Any = matrix[:, 0] != 0
        return pa.array(values, mask=missing)
    if types.decimal_digits(type_name):
        words = matrix.view(">u8").reshape(rows, 2).astype(np.uint64)
        words[:, 0] ^= np.uint64(1 << 63)
        values = np.ascontiguousarray(words[:, ::-1])
    else:
        bits = matrix.view(f">u{width}").reshape(rows).astype(f"u{width}")
        top = np.array(1 << (8 * width - 1), f"u{width}")
        values = np.where(bits & top, bits ^ top, ~bits) if types.is_float(type_name) else bits ^ top
    valid = pa.py_buffer(np.packbits(~missing, bitorder="little")) if missing.any() else None
    return pa.Array.from_buffers(arrow, rows, [valid, pa.py_buffer(np.ascontiguousarray(values))])
