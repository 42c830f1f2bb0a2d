"""Names and keys in a URL's path, segment by segment.

    /v1/orders/rows/17/2024-02-29        a composite key has a segment for each column
    /v1/by_city/rows/S%C3%A3o%20Paulo    percent-encoded UTF-8; a slash is %2F
    /v1/by_city/rows/~null               NULL
    /v1/by_city/rows/~..                 after ~ the rest is literal: "..", "~null"
    /v1/~views/rows                      a table whose name is also a path of the interface

Browsers and proxies remove "." and ".." from a path, encoded or not, so these keys need the ~. BINARY is base64, with
either alphabet.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any
from urllib.parse import unquote_to_bytes

from viewkeeper.errors import BadValue
from viewkeeper.model import types
from viewkeeper.model.intake.text import NULL, parse_value
from viewkeeper.model.schema import Column, Table
from viewkeeper.server.errors import HttpStatusError


def decode_segment(segment: str) -> str:
    """Decode a segment."""
    if "%" in segment:
        try:
            segment = unquote_to_bytes(segment).decode("utf-8")
        except UnicodeDecodeError:
            raise HttpStatusError(
                400, "The path is not percent-encoded UTF-8.", "Encode each segment by itself."
            ) from None
    return segment


def name_of(segment: str) -> str:
    """The name of a table or view in a segment."""
    text = decode_segment(segment)
    return text[1:] if text.startswith("~") else text


def key_of(table: Table, segments: list[str]) -> tuple[Any, ...]:
    """The values of a whole key."""
    columns = table.key_columns
    if not columns and segments == [""]:
        return ()
    if len(segments) != len(columns):
        names = ", ".join(column.name for column in columns)
        raise BadValue(
            f"The key of {table.name} has {len(columns)} column(s), {len(segments)} segment(s) were given.",
            hint=f"The key is: {names}." if names else "It has one row: name no key.",
        )
    return tuple(key_value_of(table, c, decode_segment(s)) for c, s in zip(columns, segments, strict=True))


def key_prefix_of(table: Table, texts: list[str]) -> tuple[Any, ...]:
    """The values of a key's first columns, from query parameters."""
    if len(texts) > len(table.key_columns):
        raise BadValue(
            f"The key of {table.name} has {len(table.key_columns)} column(s), {len(texts)} values were given.", hint=""
        )
    return tuple(key_value_of(table, c, text) for c, text in zip(table.key_columns, texts, strict=False))


def key_value_of(table: Table, column: Column, text: str) -> Any:
    """Parse a text as the value of a key column."""
    if text.startswith("~"):
        if text == NULL:
            return None
        text = text[1:]
    if column.type == types.STRING:
        return text
    if column.type == types.BINARY:
        try:
            return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
        except (binascii.Error, ValueError):
            raise BadValue(f"{table.name}.{column.name}: {text[:60]!r} is no base64.", hint="") from None
    if not text.isascii() or len(text) > 100:
        raise BadValue(f"{table.name}.{column.name}: {text[:60]!r} is no {column.type.sql} value.", hint="")
    return parse_value(table.name, column.name, column.type, text)
