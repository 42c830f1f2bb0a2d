"""Value encodings: a column's Arrow values as bytes of HBase cells, and back.

    type                     'bytes' (HBase's Bytes.toBytes)                       'text' (UTF-8)
    boolean                  FF or 00                                              true, false
    tinyint … bigint         two's complement, big-endian, its type's width        -12
    float, double            IEEE bits, big-endian                                 1.5
    decimal(p,s)             scale (4 bytes), unscaled value, both big-endian      12.30
    date                     days since 1970, 4 bytes                              2024-02-29
    timestamp                microseconds since 1970, 8 bytes                      2024-02-29 12:30:00.000000
    string, binary           UTF-8, the bytes                                      the same

NULL is a missing cell. Decoding accepts more than encoding produces, because other programs write cells too: a
decimal's unscaled value may have any number of bytes, and any scale that fits. A mask marks the cells that cannot
be decoded; their rows are rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model import types
from viewkeeper.model.arrow_buffers import one_chunk
from viewkeeper.model.encoding.key_decoding import Mask, decode_utf8
from viewkeeper.model.types import Type

ENCODINGS = ("bytes", "text")

_NUMBERS = {
    types.TINYINT: "i1",
    types.SMALLINT: "i2",
    types.INT: "i4",
    types.BIGINT: "i8",
    types.FLOAT: "f4",
    types.DOUBLE: "f8",
    types.DATE: "i4",
    types.TIMESTAMP: "i8",
    types.TIMESTAMP_NTZ: "i8",
}


WIDER_TYPES = {type_: tuple(other for other in _NUMBERS if types.is_widening(type_, other)) for type_ in _NUMBERS}
"""Types to which a column may be widened while a process still has its earlier definition."""


def encode(encoding: str, type_name: Type, values: Any) -> pa.Array:
    """Encode a column's values as cells; null stays null."""
    array = one_chunk(values)
    if type_name in (types.STRING, types.BINARY):
        return array.view(pa.binary())
    if encoding == "text":
        return array.cast(pa.string()).view(pa.binary())
    if type_name == types.BOOLEAN:
        matrix = np.where(np.asarray(pc.fill_null(array, False)), np.uint8(255), np.uint8(0)).reshape(-1, 1)
    elif digits := types.decimal_digits(type_name):
        words = np.frombuffer(array.buffers()[1], "<u8", 2 * len(array), array.offset * 16).reshape(-1, 2)
        matrix = np.empty((len(array), 20), np.uint8)
        matrix[:, :4] = np.frombuffer(digits[1].to_bytes(4, "big"), np.uint8)
        matrix[:, 4:] = np.ascontiguousarray(words[:, ::-1].astype(">u8")).view(np.uint8).reshape(-1, 16)
    else:
        form = _NUMBERS[type_name]
        width = int(form[1])
        numbers = np.frombuffer(array.buffers()[1], f"<{form}", len(array), array.offset * width)
        matrix = numbers.astype(f">{form}").view(np.uint8).reshape(-1, width)
    return _from_byte_matrix(matrix, array)


def decode(
    encoding: str, type_name: Type, cells: pa.Array, narrower_types: Sequence[Type] = ()
) -> tuple[pa.Array, Mask | None]:
    """Decode cells as a column's values; return them with a mask of the undecodable ones, which become null.

    `narrower_types` are further types of number that cells may have: they were written before the column was
    widened, or by a process that has the current definition while this one has an earlier one. The length of a
    number determines its type; text and decimals need no such distinction.
    """
    for narrower in narrower_types if encoding == "bytes" else ():
        is_narrower = pc.equal(pc.binary_length(cells), int(_NUMBERS[narrower][1])) if narrower in _NUMBERS else None
        if is_narrower is not None and pc.any(is_narrower).as_py():
            is_narrower = is_narrower.fill_null(False)
            narrow_values, _ = decode(encoding, narrower, pc.if_else(is_narrower, cells, pa.scalar(None, pa.binary())))
            values, undecodable = decode(
                encoding, type_name, pc.if_else(is_narrower, pa.scalar(None, pa.binary()), cells), narrower_types
            )
            widened, failed = _rescale(narrow_values, types.arrow(type_name))
            if failed.any():
                undecodable = failed if undecodable is None else undecodable | failed
            return pc.if_else(is_narrower, widened, values), undecodable
    if type_name == types.BINARY:
        return cells, None
    if type_name == types.STRING:
        strings, undecodable = decode_utf8(cells)
        return (strings, None) if not undecodable.any() else (_mask_nulls(strings, undecodable), undecodable)
    if encoding == "text":
        array, undecodable = _parse_text(cells, type_name)
        return array, undecodable if undecodable.any() else None
    if types.decimal_digits(type_name):
        return _decode_decimals(cells, type_name)
    width = 1 if type_name == types.BOOLEAN else int(_NUMBERS[type_name][1])
    lengths = np.asarray(pc.fill_null(pc.binary_length(cells), width))
    undecodable = lengths != width
    if undecodable.any():
        cells = _mask_nulls(cells, undecodable)
    dense = _byte_matrix(cells, width)
    if type_name == types.BOOLEAN:
        return pa.array(dense[:, 0] != 0, mask=np.asarray(cells.is_null())), undecodable if undecodable.any() else None
    form = _NUMBERS[type_name]
    numbers = np.ascontiguousarray(dense).view(f">{form}").reshape(-1).astype(f"<{form}")
    return _from_buffer(types.arrow(type_name), numbers, cells), undecodable if undecodable.any() else None


def _parse_text(cells: pa.Array, type_name: Type) -> tuple[pa.Array, Mask]:
    """Parse text as values. If a part cannot be parsed, it is halved until the bad cells are isolated."""
    arrow = types.arrow(type_name)
    try:
        return cells.cast(pa.string()).cast(arrow), np.zeros(len(cells), bool)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if len(cells) == 1:
            return pa.nulls(1, arrow), np.ones(1, bool)
        half = len(cells) // 2
        first, second = _parse_text(cells.slice(0, half), type_name), _parse_text(cells.slice(half), type_name)
        return pa.concat_arrays([first[0], second[0]]), np.concatenate([first[1], second[1]])


def _decode_decimals(cells: pa.Array, type_name: Type) -> tuple[pa.Array, Mask | None]:
    """Decode scale and unscaled value; each cell may have a scale of its own."""
    arrow = types.arrow(type_name)
    lengths = np.asarray(pc.fill_null(pc.binary_length(cells), 20))
    undecodable = (lengths < 5) | (lengths > 20)
    if undecodable.any():
        cells = _mask_nulls(cells, undecodable)
        lengths = np.where(undecodable, 20, lengths)
    if (lengths == 20).all():
        dense = _byte_matrix(cells, 20)
        scales = np.ascontiguousarray(dense[:, :4]).view(">i4").reshape(-1)
        unscaled = dense[:, 4:]
    else:
        scales, unscaled = _decode_ragged_decimals(cells, lengths)
    present = np.asarray(cells.is_valid())
    words = np.ascontiguousarray(unscaled).view(">u8").reshape(-1, 2)[:, ::-1].astype("<u8")
    if (scales[present] == arrow.scale).all():
        return _from_buffer(arrow, np.ascontiguousarray(words), cells), undecodable if undecodable.any() else None
    out: pa.Array = pa.nulls(len(cells), arrow)
    for scale in np.unique(scales[present]):
        has_scale = present & (scales == scale)
        if not 0 <= int(scale) <= 38:
            undecodable = undecodable | has_scale
            continue
        part = _from_buffer(pa.decimal128(38, int(scale)), np.ascontiguousarray(words), cells)
        rescaled, failed = _rescale(part.filter(pa.array(has_scale)), arrow)
        positions = np.flatnonzero(has_scale)
        undecodable[positions[failed]] = True
        out = pc.replace_with_mask(out, pa.array(has_scale), rescaled)
    return out, undecodable if undecodable.any() else None


def _rescale(values: pa.Array, arrow: pa.DataType) -> tuple[pa.Array, Mask]:
    try:
        return values.cast(arrow), np.zeros(len(values), bool)
    except pa.ArrowInvalid:
        if len(values) == 1:
            return pa.nulls(1, arrow), np.ones(1, bool)
        half = len(values) // 2
        first, second = _rescale(values.slice(0, half), arrow), _rescale(values.slice(half), arrow)
        return pa.concat_arrays([first[0], second[0]]), np.concatenate([first[1], second[1]])


def _decode_ragged_decimals(
    cells: pa.Array, lengths: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """Return the scales of decimals of several lengths, and their unscaled values sign-extended to 16 bytes."""
    filled = pc.fill_null(cells, bytes(20))
    offsets = np.frombuffer(filled.buffers()[1], np.int32, len(filled) + 1, filled.offset * 4).astype(np.int64)
    data = np.frombuffer(filled.buffers()[2], np.uint8)
    start, stop = offsets[:-1], offsets[1:]
    scales = np.ascontiguousarray(data[start[:, None] + np.arange(4)]).view(">i4").reshape(-1)
    positions = stop[:, None] - 16 + np.arange(16)
    sign = np.where(data[start + 4] & 0x80, np.uint8(255), np.uint8(0))
    inside = positions >= (start + 4)[:, None]
    return scales, np.where(inside, data[np.maximum(positions, 0)], sign[:, None])


def _byte_matrix(cells: pa.Array, width: int) -> npt.NDArray[np.uint8]:
    """Return cells of one width as a matrix; rows of nulls are undefined."""
    filled = pc.fill_null(cells, bytes(width)) if cells.null_count else cells
    if not len(filled):
        return np.empty((0, width), np.uint8)
    first = int(np.frombuffer(filled.buffers()[1], np.int32, 1, filled.offset * 4)[0])
    return np.frombuffer(filled.buffers()[2], np.uint8, len(filled) * width, first).reshape(-1, width)


def _from_buffer(arrow: pa.DataType, values: npt.NDArray[Any], like: pa.Array) -> pa.Array:
    valid = None
    if like.null_count:
        valid = pa.py_buffer(np.packbits(np.asarray(like.is_valid()), bitorder="little"))
    return pa.Array.from_buffers(arrow, len(like), [valid, pa.py_buffer(values)])


def _from_byte_matrix(matrix: npt.NDArray[np.uint8], like: pa.Array) -> pa.Array:
    rows, width = matrix.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    valid = None
    if like.null_count:
        valid = pa.py_buffer(np.packbits(np.asarray(like.is_valid()), bitorder="little"))
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(matrix))]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _mask_nulls(array: pa.Array, wrong: Mask) -> pa.Array:
    return pc.if_else(pa.array(wrong), pa.scalar(None, array.type), array)
