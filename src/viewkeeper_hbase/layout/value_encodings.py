"""Values as cells: how a column's Arrow values become bytes in HBase, and back.

    type                     'bytes' (HBase's Bytes.toBytes)                       'text' (UTF-8)
    boolean                  FF or 00                                              true, false
    tinyint … bigint         two's complement, big-endian, its type's width        -12
    float, double            IEEE bits, big-endian                                 1.5
    decimal(p,s)             scale (4 bytes), unscaled value, both big-endian      12.30
    date                     days since 1970, 4 bytes                              2024-02-29
    timestamp                microseconds since 1970, 8 bytes                      2024-02-29 12:30:00.000000
    string, binary           UTF-8, the bytes                                      the same

NULL is a cell that is not there. Reading is more forgiving than writing where others write: a decimal's unscaled value
may have any number of bytes and any scale that fits. What cannot be read is told by a mask, and the row is put aside.
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
"""The types that a column's may become while a process knows it as it was."""


def encode(encoding: str, type_name: Type, values: Any) -> pa.Array:
    """A column's values as cells; null stays null."""
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
    """Cells as a column's values, and which of them cannot be read (those become null). `narrower`: types with which
    cells were written before, or are by a process that knows the table as it is now; the length of a number tells its
    type, text and decimals tell all that is needed."""
    for before in narrower_types if encoding == "bytes" else ():
        mine = pc.equal(pc.binary_length(cells), int(_NUMBERS[before][1])) if before in _NUMBERS else None
        if mine is not None and pc.any(mine).as_py():
            mine = mine.fill_null(False)
            read, _ = decode(encoding, before, pc.if_else(mine, cells, pa.scalar(None, pa.binary())))
            rest, wrong = decode(
                encoding, type_name, pc.if_else(mine, pa.scalar(None, pa.binary()), cells), narrower_types
            )
            fitting, failed = _rescale(read, types.arrow(type_name))
            if failed.any():
                wrong = failed if wrong is None else wrong | failed
            return pc.if_else(mine, fitting, rest), wrong
    if type_name == types.BINARY:
        return cells, None
    if type_name == types.STRING:
        strings, wrong = decode_utf8(cells)
        return (strings, None) if not wrong.any() else (_mask_nulls(strings, wrong), wrong)
    if encoding == "text":
        array, wrong = _parse_text(cells, type_name)
        return array, wrong if wrong.any() else None
    if types.decimal_digits(type_name):
        return _decode_decimals(cells, type_name)
    width = 1 if type_name == types.BOOLEAN else int(_NUMBERS[type_name][1])
    lengths = np.asarray(pc.fill_null(pc.binary_length(cells), width))
    wrong = lengths != width
    if wrong.any():
        cells = _mask_nulls(cells, wrong)
    dense = _byte_matrix(cells, width)
    if type_name == types.BOOLEAN:
        return pa.array(dense[:, 0] != 0, mask=np.asarray(cells.is_null())), wrong if wrong.any() else None
    form = _NUMBERS[type_name]
    numbers = np.ascontiguousarray(dense).view(f">{form}").reshape(-1).astype(f"<{form}")
    return _from_buffer(types.arrow(type_name), numbers, cells), wrong if wrong.any() else None


def _parse_text(cells: pa.Array, type_name: Type) -> tuple[pa.Array, Mask]:
    """Text as values. Where some of it cannot be parsed, halves are tried until the culprits are alone."""
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
    """Scale and unscaled value, each cell with its own."""
    arrow = types.arrow(type_name)
    lengths = np.asarray(pc.fill_null(pc.binary_length(cells), 20))
    wrong = (lengths < 5) | (lengths > 20)
    if wrong.any():
        cells = _mask_nulls(cells, wrong)
        lengths = np.where(wrong, 20, lengths)
    if (lengths == 20).all():
        dense = _byte_matrix(cells, 20)
        scales = np.ascontiguousarray(dense[:, :4]).view(">i4").reshape(-1)
        unscaled = dense[:, 4:]
    else:
        scales, unscaled = _decode_ragged_decimals(cells, lengths)
    present = np.asarray(cells.is_valid())
    words = np.ascontiguousarray(unscaled).view(">u8").reshape(-1, 2)[:, ::-1].astype("<u8")
    if (scales[present] == arrow.scale).all():
        return _from_buffer(arrow, np.ascontiguousarray(words), cells), wrong if wrong.any() else None
    out: pa.Array = pa.nulls(len(cells), arrow)
    for scale in np.unique(scales[present]):
        mine = present & (scales == scale)
        if not 0 <= int(scale) <= 38:
            wrong = wrong | mine
            continue
        part = _from_buffer(pa.decimal128(38, int(scale)), np.ascontiguousarray(words), cells)
        rescaled, failed = _rescale(part.filter(pa.array(mine)), arrow)
        places = np.flatnonzero(mine)
        wrong[places[failed]] = True
        out = pc.replace_with_mask(out, pa.array(mine), rescaled)
    return out, wrong if wrong.any() else None


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
    """Decimals of several lengths: their scales, and their unscaled values widened to 16 bytes by the sign."""
    filled = pc.fill_null(cells, bytes(20))
    offsets = np.frombuffer(filled.buffers()[1], np.int32, len(filled) + 1, filled.offset * 4).astype(np.int64)
    data = np.frombuffer(filled.buffers()[2], np.uint8)
    start, stop = offsets[:-1], offsets[1:]
    scales = np.ascontiguousarray(data[start[:, None] + np.arange(4)]).view(">i4").reshape(-1)
    places = stop[:, None] - 16 + np.arange(16)
    sign = np.where(data[start + 4] & 0x80, np.uint8(255), np.uint8(0))
    inside = places >= (start + 4)[:, None]
    return scales, np.where(inside, data[np.maximum(places, 0)], sign[:, None])


def _byte_matrix(cells: pa.Array, width: int) -> npt.NDArray[np.uint8]:
    """Cells of one width as a matrix; what a null holds does not matter."""
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
