"""What a range of encoded keys says of its columns: the values that all of its keys begin with.

`keys` writes a column so that no value's bytes are the beginning of another's; so from the first bytes of a range its
columns can be read one after the other, as long as all keys of the range have them.
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
"""The bytes that all keys of a range begin with, and the values that these are, one array of one value for each column;
None for NULL, and for floats, which equality knows otherwise than bytes do."""


def shared_key_values(table: Table, start: bytes | None, stop: bytes | None) -> SharedKeyValues:
    """Of the keys from `start`, included, to `stop`, excluded."""
    found: list[pa.Array | None] = []
    at = 0
    for part, column in zip(table.key, table.key_columns, strict=True):
        read = None if start is None else _decode_column(part, column, start, at)
        if start is None or read is None or not _is_shared_prefix(start[: read[0]], stop):
            break
        at = read[0]
        found.append(read[1])
    return (start or b"")[:at], found


def _is_shared_prefix(prefix: bytes, stop: bytes | None) -> bool:
    after = successor(prefix)
    return after is None or (stop is not None and stop <= after)


def _decode_column(part: KeyPart, column: Column, data: bytes, offset: int) -> tuple[int, pa.Array | None] | None:
    """Where a column's bytes end, and its value; None if they do not end."""
    own = data[offset:].translate(_INVERTED_BYTES) if part.descending else data[offset:]
    if not own:
        return None
    if own[0] != _VALUE_MARKER:
        return offset + 1, None
    if column.type in (types.STRING, types.BINARY):
        return _decode_text(column.type, own, offset)
    width = _value_width(column.type)
    body = own[1 : 1 + width]
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


# Row keys back into columns: the inverse of `model.keys.encode_keys`, for whole arrays.
#
# The columns of a key lie one after another, each with its marker. Where a column begins is known for every row at
# once; a fixed-width one is gathered as a matrix of bytes, a string ends at the next terminator, found by one search
# for all. A key that no encoder made is told by `bad`, not by an exception: others may write to the table.


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
"""Bytes of a value of the types that always take as many."""


def decode_keys(table: Table, keys: pa.Array) -> tuple[pa.Table, Mask]:
    """The key columns of every key, and which keys are not well formed (their columns hold anything)."""
    rows = len(keys)
    offsets = np.frombuffer(keys.buffers()[1], np.int32, rows + 1, keys.offset * 4).astype(np.int64)
    data = np.frombuffer(keys.buffers()[2], np.uint8) if rows else np.empty(0, np.uint8)
    at, end = offsets[:-1].copy(), offsets[1:]
    # Bytes behind the last key, so that reading a short key's missing columns stays inside the buffer.
    data = np.concatenate([data[: int(end[-1]) if rows else 0], np.zeros(40, np.uint8)])
    bad = np.zeros(rows, bool)
    arrays = []
    for part, column in zip(table.key, table.key_columns, strict=True):
        seen = ~data if part.descending else data
        null = 2 if part.nulls_last != part.descending else 0
        marker = seen[np.minimum(at, len(seen) - 1)]
        missing = marker == null
        bad |= (at >= end) | ~(missing | (marker == 1))
        start = at + 1
        if column.type in (types.STRING, types.BINARY):
            array, at, wrong = _decode_variable(seen, start, end, missing | bad, column.type)
        else:
            width = 16 if types.decimal_digits(column.type) else FIELD_WIDTHS[column.type]
            safe = np.minimum(start, len(seen) - width)
            array = _decode_fixed(column.type, seen[safe[:, None] + np.arange(width)], missing | bad)
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
    """Strings from `start` to their terminators. 00 inside a string is 00 FF, so the first 00 00 ends it."""
    start = np.minimum(start, end)  # a key that ended too early must not reach into the next one
    # Beyond the last key lies an end that is always too far, for a string without one.
    ends = np.append(np.flatnonzero((data[:-1] == 0) & (data[1:] == 0)), len(data))
    place = np.searchsorted(ends, start)
    stop = ends[np.minimum(place, len(ends) - 1)]
    wrong = stop + 2 > end
    stop = np.where(missing | wrong, start, stop)
    cuts = np.empty(2 * len(start), np.int32)
    cuts[0::2], cuts[1::2] = start, np.maximum(stop, start)
    # Ranges and the gaps between them are one binary array.
    whole = pa.Array.from_buffers(
        pa.binary(), max(len(cuts) - 1, 0), [None, pa.py_buffer(cuts), pa.py_buffer(np.ascontiguousarray(data))]
    )
    taken = whole.take(pa.array(np.arange(0, len(cuts), 2)))
    if pc.any(pc.match_substring(taken, b"\x00\xff")).as_py():
        taken = pc.replace_substring(taken, pattern=b"\x00\xff", replacement=b"\x00")
    if type_name == types.STRING:
        taken, invalid = decode_utf8(taken)
        wrong = wrong | invalid
    after = np.where(missing, start, stop + 2)
    return pc.if_else(pa.array(missing), pa.scalar(None, taken.type), taken), after, wrong


def decode_utf8(values: pa.Array) -> tuple[pa.Array, Mask]:
    """Binary as strings, and which are not UTF-8 (they become empty)."""
    try:
        return values.cast(pa.string()), np.zeros(len(values), bool)
    except pa.ArrowInvalid:
        if len(values) == 1:
            return pa.array([""]), np.ones(1, bool)
        half = len(values) // 2
        first, second = decode_utf8(values.slice(0, half)), decode_utf8(values.slice(half))
        return pa.concat_arrays([first[0], second[0]]), np.concatenate([first[1], second[1]])


def _decode_fixed(type_name: Type, matrix: Bytes, missing: Mask) -> pa.Array:
    """A matrix of order-preserving bytes as a column."""
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
