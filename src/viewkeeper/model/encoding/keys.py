"""Key encoding: bytes whose order is the order of the values.

A key is the bytes of its columns, one after another. A column is a marker and, unless it is NULL, its value:

    marker      01 value; NULL is 00 where NULLs come first and 02 where they come last
    integer     big-endian, its type's width, sign bit flipped          boolean      one byte
    decimal     likewise with 16 bytes: the unscaled value at the declared scale
    date        a 4-byte integer: days since 1970                       timestamp    an 8-byte one: microseconds
    float       the IEEE bits big-endian; sign bit flipped if positive, all bits if negative; −0.0 is 0.0, one NaN,
                the greatest
    string      UTF-8 (binary: the bytes), 00 written as 00 FF, ended by 00 00
    DESC        all bytes of the column inverted; the marker is chosen before, so that NULLs are sorted as declared

A table without key columns has at most one row, whose key is 00. No value's bytes are a prefix of another value's, so a
key prefix is a byte prefix, and a prefix scan is a range scan. `encode_keys` encodes whole Arrow columns with numpy,
`encode_key` one Python tuple; both produce the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import BadValue, Defect
from viewkeeper.model import types
from viewkeeper.model.arrow_buffers import one_chunk
from viewkeeper.model.intake.scalars import scalar_reader
from viewkeeper.model.schema import KeyPart, Table
from viewkeeper.model.types import Type

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_VALUE_MARKER = 1
_INVERTED_BYTES = bytes(255 - b for b in range(256))
WIDTHS = {
    types.BOOLEAN: 1,
    types.TINYINT: 1,
    types.SMALLINT: 2,
    types.INT: 4,
    types.BIGINT: 8,
    types.DATE: 4,
    types.TIMESTAMP: 8,
    types.TIMESTAMP_NTZ: 8,
}


def encode_keys(table: Table, rows: pa.Table) -> pa.BinaryArray:
    """Return the key of every row; `rows` needs only the table's key columns."""
    if not table.key:
        key = table.key_prefix or b"\x00"
        return _fixed_width_array(np.broadcast_to(np.frombuffer(key, np.uint8), (rows.num_rows, len(key))))
    parts = [_encode_column(p, rows.column(p.name)) for p in _key_encoders(table)]
    widths = [part.width for part in parts if part.width is not None]
    if table.key_prefix:
        prefixed = pc.binary_join_element_wise(pa.scalar(table.key_prefix), *(p.to_array() for p in parts), b"")
        return pa.concat_arrays(prefixed.chunks) if isinstance(prefixed, pa.ChunkedArray) else prefixed
    if len(widths) == len(parts):
        matrices = [part.data.reshape(rows.num_rows, width) for part, width in zip(parts, widths, strict=True)]
        return _fixed_width_array(np.concatenate(matrices, axis=1))
    joined = (
        parts[0].to_array() if len(parts) == 1 else pc.binary_join_element_wise(*(p.to_array() for p in parts), b"")
    )
    return joined


def encode_key(table: Table, values: Sequence[Any]) -> bytes:
    """Return the bytes of one key, or of a prefix of a key, from Python values."""
    parts = _key_encoders(table)
    if len(values) > len(parts):
        raise BadValue(f"The key of {table.name} has {len(parts)} column(s), {len(values)} values were given.")
    # zip stops at the shorter one: a prefix.
    return table.key_prefix + b"".join([part.encode_scalar(value) for part, value in zip(parts, values, strict=False)])


def encode_whole_key(table: Table, values: Sequence[Any]) -> bytes:
    """Return the bytes of one complete key; a prefix is an error."""
    if len(values) != len(table.key):
        names = ", ".join(part.column for part in table.key)
        raise BadValue(
            f"The key of {table.name} has {len(table.key)} column(s) ({names}), {len(values)} value(s) were given.",
            hint="Give one value per key column, a composite key as a tuple.",
        )
    return encode_key(table, values) or b"\x00"


def prefix_range(table: Table, prefix: Sequence[Any]) -> tuple[bytes | None, bytes | None]:
    """Return the range `start` ≤ key < `stop` of all keys that begin with these values; None means unbounded."""
    start = encode_key(table, prefix)
    return start or None, successor(start)


def key_range(
    table: Table, start: Sequence[Any] | None, stop: Sequence[Any] | None
) -> tuple[bytes | None, bytes | None]:
    """Return byte bounds of `start` ≤ key < `stop`, in key order. Either may be a prefix of a key, or None.

    A prefix as `stop` excludes every key that begins with it.
    """
    return restrict_to_prefix(
        table,
        None if start is None else encode_key(table, start) or None,
        None if stop is None else encode_key(table, stop),
    )


def restrict_to_prefix(table: Table, start: bytes | None, stop: bytes | None) -> tuple[bytes | None, bytes | None]:
    """Restrict a range of encoded keys to the rows of a family member; for other tables, return it unchanged."""
    if not table.key_prefix:
        return start, stop
    return start or table.key_prefix, successor(table.key_prefix) if stop is None else stop


def encode_plain_column(table: Table, key_index: int, value: Any) -> bytes:
    """Return the bytes of a key column's plain value (see `intake.scalars`); None means NULL."""
    return _key_encoders(table)[key_index].encode_plain(value)


def plain_encoders(table: Table) -> list[tuple[str, Callable[[Any], bytes]]]:
    """Return for each key column its name and the encoder of its plain values."""
    return [(part.name, part.encode_plain) for part in _key_encoders(table)]


def encode_plain_key(table: Table, row: Mapping[str, Any], columns: int | None = None) -> bytes:
    """Return the key of a row of plain values, or its first `columns` columns."""
    parts = _key_encoders(table)
    return b"".join([part.encode_plain(row[part.name]) for part in parts[:columns]]) or b"\x00"


def value_marker(table: Table, key_index: int) -> bytes:
    """Return the first byte of a key column that is not NULL."""
    return (
        bytes([_VALUE_MARKER]).translate(_INVERTED_BYTES) if table.key[key_index].descending else bytes([_VALUE_MARKER])
    )


def successor(prefix: bytes) -> bytes | None:
    """Return the least byte string greater than all that begin with `prefix`; None if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


# -- columns ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _KeyColumnEncoder:
    """The encoder of one key column."""

    name: str
    type: Type
    null_marker: bytes
    descending: bool
    encode_scalar: Callable[[Any], bytes]
    encode_plain: Callable[[Any], bytes]
    """Encodes a plain value, the result of `scalar_reader`."""


@dataclass(frozen=True)
class _EncodedColumn:
    """The bytes of one column: fixed `width`, or variable with `offsets`."""

    data: Bytes
    width: int | None
    offsets: np.ndarray[Any, np.dtype[np.int32]] | None

    def to_array(self) -> pa.BinaryArray:
        if self.width is not None:
            return _fixed_width_array(self.data.reshape(-1, self.width))
        if self.offsets is None:
            raise Defect("Keys have neither a width nor offsets.")
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary(), len(self.offsets) - 1, buffers)


_encoders: dict[int, tuple[Table, tuple[_KeyColumnEncoder, ...]]] = {}


def _key_encoders(table: Table) -> tuple[_KeyColumnEncoder, ...]:
    # Cached by identity: hashing a Table hashes all its columns, which would cost more than a point get.
    cached = _encoders.get(id(table))
    if cached is not None and cached[0] is table:
        return cached[1]
    if len(_encoders) > 10_000:
        _encoders.clear()
    parts = tuple(
        _make_key_encoder(table, part, column.name, column.type)
        for part, column in zip(table.key, table.key_columns, strict=True)
    )
    _encoders[id(table)] = (table, parts)
    return parts


def _make_key_encoder(table: Table, key_part: KeyPart, name: str, type_name: Type) -> _KeyColumnEncoder:
    # The marker is chosen before the inversion: inverted, 00 sorts after 01.
    null = b"\x02" if key_part.nulls_last != key_part.descending else b"\x00"
    if key_part.descending:
        null = null.translate(_INVERTED_BYTES)
    pack = _scalar_packer(type_name)
    read = scalar_reader(table.name, name, type_name)

    def encode(value: Any) -> bytes:
        return null if value is None else pack(read(value))

    def encode_inverted(value: Any) -> bytes:
        return null if value is None else pack(read(value)).translate(_INVERTED_BYTES)

    def encode_plain(value: Any) -> bytes:
        encoded = null if value is None else pack(value)
        return encoded.translate(_INVERTED_BYTES) if key_part.descending and value is not None else encoded

    return _KeyColumnEncoder(
        name, type_name, null, key_part.descending, encode_inverted if key_part.descending else encode, encode_plain
    )


def _scalar_packer(type_name: Type) -> Callable[[Any], bytes]:
    """Return the function from a plain value of `scalar_reader` to marker and bytes."""
    if type_name in WIDTHS:
        width = WIDTHS[type_name]
        if type_name == types.BOOLEAN:
            return lambda value: b"\x01\x01" if value else b"\x01\x00"
        return _integer_packer(width)
    if types.decimal_digits(type_name):
        return _integer_packer(16)
    if type_name == types.STRING:
        return lambda value: b"\x01" + value.encode().replace(b"\x00", b"\x00\xff") + b"\x00\x00"
    if type_name == types.BINARY:
        return lambda value: b"\x01" + value.replace(b"\x00", b"\x00\xff") + b"\x00\x00"
    return _float_packer(">f" if type_name == types.FLOAT else ">d")


def _integer_packer(width: int) -> Callable[[int], bytes]:
    # One integer holds the marker and the flipped sign bit: 01 followed by `value + 2^(bits-1)`.
    bias = (_VALUE_MARKER << (8 * width)) + (1 << (8 * width - 1))
    size = width + 1
    return lambda value: (value + bias).to_bytes(size, "big")


def _float_packer(form: str) -> Callable[[float], bytes]:
    nan = b"\x01" + _order_bits(struct.pack(form, float("nan")))

    def pack(value: float) -> bytes:
        if value != value:
            return nan
        return b"\x01" + _order_bits(struct.pack(form, value + 0.0))  # −0.0 + 0.0 is 0.0

    return pack


def _order_bits(big: bytes) -> bytes:
    return big.translate(_INVERTED_BYTES) if big[0] & 0x80 else bytes([big[0] | 0x80]) + big[1:]


def _encode_column(encoder: _KeyColumnEncoder, column: pa.ChunkedArray | pa.Array) -> _EncodedColumn:
    array = one_chunk(column)
    missing = np.asarray(array.is_null()) if array.null_count else None
    if encoder.type in (types.STRING, types.BINARY):
        encoded = _encode_variable(array, missing, encoder.null_marker)
    else:
        encoded = _encode_fixed(_order_preserving_bytes(encoder.type, array), missing, encoder.null_marker)
    if encoder.descending:
        # `null_marker` is inverted already.
        data = ~encoded.data
        if missing is not None and encoded.offsets is not None:
            data[encoded.offsets[:-1][missing]] = encoder.null_marker[0]
        return _EncodedColumn(data, encoded.width, encoded.offsets)
    return encoded


def _encode_fixed(values: Bytes, missing: np.ndarray[Any, Any] | None, null: bytes) -> _EncodedColumn:
    rows, width = values.shape
    matrix = np.empty((rows, width + 1), np.uint8)
    matrix[:, 0] = _VALUE_MARKER
    matrix[:, 1:] = values
    if missing is None:
        return _EncodedColumn(matrix.ravel(), width + 1, None)
    matrix[missing, 0] = null[0]
    keep = np.ones((rows, width + 1), bool)
    keep[missing, 1:] = False
    return _EncodedColumn(matrix[keep], None, _offsets_of(np.where(missing, 1, width + 1)))


def _encode_variable(array: pa.Array, missing: np.ndarray[Any, Any] | None, null: bytes) -> _EncodedColumn:
    array = array.view(pa.binary())
    if missing is not None:
        array = array.fill_null(b"")
    if not value_bytes(array).all():
        array = pc.replace_substring(array, pattern=b"\x00", replacement=b"\x00\xff")
    framed = pc.binary_join_element_wise(pa.scalar(b"\x01"), array, pa.scalar(b"\x00\x00"), b"")
    offsets = np.frombuffer(framed.buffers()[1], np.int32, len(framed) + 1, framed.offset * 4)
    data, offsets = value_bytes(framed), offsets - offsets[0]
    if missing is None:
        return _EncodedColumn(data, None, offsets)
    # A NULL was framed as 01 00 00: keep its first byte and replace it by the marker.
    data = data.copy()
    starts = offsets[:-1][missing]
    data[starts] = null[0]
    keep = np.ones(len(data), bool)
    keep[starts + 1] = False
    keep[starts + 2] = False
    return _EncodedColumn(data[keep], None, _offsets_of(np.where(missing, 1, np.diff(offsets))))


def value_bytes(array: pa.Array) -> Bytes:
    """Return the bytes of a binary or string array's values, without other bytes of the buffer."""
    data = array.buffers()[2]
    if not len(array) or data is None:
        return np.empty(0, np.uint8)
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
    return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]


def _order_preserving_bytes(type_name: Type, array: pa.Array) -> Bytes:
    """Return an (n, width) matrix of order-preserving bytes; the rows of NULLs are arbitrary."""
    rows = len(array)
    if type_name == types.BOOLEAN:
        return np.asarray(pc.fill_null(array, False).cast(pa.uint8())).reshape(rows, 1)
    buffer = array.buffers()[1]
    if type_name in WIDTHS:
        width = WIDTHS[type_name]
        values = np.frombuffer(buffer, f"u{width}", rows, array.offset * width) ^ (1 << (8 * width - 1))
        return _big_endian(values, width)
    if types.decimal_digits(type_name):
        words = np.frombuffer(buffer, "<u8", rows * 2, array.offset * 16).reshape(rows, 2)
        flipped = words[:, ::-1].astype(">u8")
        flipped[:, 0] ^= np.uint64(1 << 63)
        return np.ascontiguousarray(flipped).view(np.uint8).reshape(rows, 16)
    width = 4 if type_name == types.FLOAT else 8
    floats = np.frombuffer(buffer, f"f{width}", rows, array.offset * width) + 0.0
    floats[np.isnan(floats)] = np.nan
    bits = floats.view(f"u{width}")
    top = np.array(1 << (8 * width - 1), f"u{width}")
    return _big_endian(np.where(bits & top, ~bits, bits | top), width)


def _big_endian(values: np.ndarray[Any, Any], width: int) -> Bytes:
    return values.astype(f">u{width}").view(np.uint8).reshape(len(values), width)


def _fixed_width_array(matrix: Bytes) -> pa.BinaryArray:
    rows, width = matrix.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(matrix))]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _offsets_of(lengths: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.int32]]:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
