"""What a range of encoded keys says of its columns: the values that all of its keys begin with.

`keys` writes a column so that no value's bytes are the beginning of another's; so from the first bytes of a range its
columns can be read one after the other, as long as all keys of the range have them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from viewkeeper.model import types
from viewkeeper.model.keys import WIDTHS, successor
from viewkeeper.model.readers import decimal_of
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.model.types import Type

_FLIP = bytes(255 - b for b in range(256))
_VALUE = 1

Known = tuple[bytes, Sequence[pa.Array | None]]
"""The bytes that all keys of a range begin with, and the values that these are, one array of one value for each column;
None for NULL, and for floats, which equality knows otherwise than bytes do."""


def known_columns(table: Table, start: bytes | None, stop: bytes | None) -> Known:
    """Of the keys from `start`, included, to `stop`, excluded."""
    found: list[pa.Array | None] = []
    at = 0
    for part, column in zip(table.key, table.key_columns, strict=True):
        read = None if start is None else _column(part, column, start, at)
        if start is None or read is None or not _all_begin(start[: read[0]], stop):
            break
        at = read[0]
        found.append(read[1])
    return (start or b"")[:at], found


def _all_begin(prefix: bytes, stop: bytes | None) -> bool:
    after = successor(prefix)
    return after is None or (stop is not None and stop <= after)


def _column(part: KeyPart, column: Column, data: bytes, at: int) -> tuple[int, pa.Array | None] | None:
    """Where a column's bytes end, and its value; None if they do not end."""
    own = data[at:].translate(_FLIP) if part.descending else data[at:]
    if not own:
        return None
    if own[0] != _VALUE:
        return at + 1, None
    if column.type in (types.STRING, types.BINARY):
        return _text(column.type, own, at)
    width = _width(column.type)
    body = own[1 : 1 + width]
    if len(body) < width:
        return None
    return at + 1 + width, None if column.type in types.FLOATS else _number(column.type, body)


def _text(type_: Type, own: bytes, at: int) -> tuple[int, pa.Array] | None:
    end = own.find(b"\0", 1)
    while end >= 0 and own[end + 1 : end + 2] == b"\xff":
        end = own.find(b"\0", end + 2)
    if end < 0 or own[end : end + 2] != b"\0\0":
        return None
    value = own[1:end].replace(b"\0\xff", b"\0")
    return at + end + 2, pa.array([value], pa.binary()).cast(types.arrow(type_))


def _width(type_: Type) -> int:
    if type_ in types.FLOATS:
        return 4 if type_ == types.FLOAT else 8
    return WIDTHS.get(type_, 16)


def _number(type_: Type, body: bytes) -> pa.Array:
    if type_ == types.BOOLEAN:
        return pa.array([body != b"\0"])
    value = int.from_bytes(body, "big") - (1 << (8 * len(body) - 1))
    arrow = types.arrow(type_)
    if digits := types.decimal_digits(type_):
        return pa.array([decimal_of(value, digits[1])], arrow)
    plain = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}[len(body)]
    return pa.array([value], plain).cast(arrow)
