"""Rows and keys out of a request's body: JSON, JSON lines or an Arrow stream, as a put takes them."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, TypeVar

import pyarrow as pa

from viewkeeper.errors import BadValue, TooLarge
from viewkeeper.model.objects import loads, typed_objects, typed_value
from viewkeeper.model.schema import Table
from viewkeeper.server.formats import ARROW, JSON, LINES
from viewkeeper.server.packed import decoded_size, unpacked_size
from viewkeeper.server.problems import Refused
from viewkeeper.server.serving import Limits

T = TypeVar("T", bound=Sized)
BODIES = (JSON, LINES, ARROW)
_SAME = {"application/jsonl": LINES, "application/json-lines": LINES, "application/ndjson": LINES}


def media_of(content_type: str | None, allowed: tuple[str, ...] = BODIES) -> str:
    """The kind of a body; anything that a page of another site could send unasked is refused."""
    found = (content_type or "").partition(";")[0].strip().lower()
    found = _SAME.get(found, found)
    if found not in allowed:
        raise Refused(415, f"A body of {found or 'no type'!r} is not understood.", f"Send {', '.join(allowed)}.")
    return found


def rows_in(table: Table, media: str, body: bytes | bytearray, limits: Limits) -> Any:
    """Rows in a shape that the engine takes."""
    if media == ARROW:
        return arrow_in(body, limits)
    found = _few(objects_in(media, body), limits)
    if not all(isinstance(row, dict) for row in found):
        raise Refused(400, "A row is a JSON object.", "Send an object, an array of them, or one a line.")
    return typed_objects(table, found)


def keys_in(table: Table, media: str, body: bytes | bytearray, limits: Limits) -> pa.Table | list[Any]:
    """Keys: objects with the key's columns, arrays of their values, or for a key of one column plain values."""
    if media == ARROW:
        return arrow_in(body, limits)
    columns = table.key_columns
    found = _few(objects_in(media, body), limits)
    if len(columns) > 1 and found and not isinstance(found[0], (list, dict)):
        found = [found]  # one composite key is an array too
    return [_key(table, key) for key in found]


def _key(table: Table, key: Any) -> tuple[Any, ...]:
    columns = table.key_columns
    names = [c.name for c in columns]
    if isinstance(key, dict):
        given = {name.lower(): value for name, value in key.items()}
        if len(given) != len(key) or sorted(given) != sorted(name.lower() for name in names):
            raise BadValue(f"{table.name}: a key has exactly the columns {', '.join(names)}.", hint="")
        key = [given[name.lower()] for name in names]
    values = key if isinstance(key, list) else [key]
    if len(values) != len(columns) or any(isinstance(value, (dict, list)) for value in values):
        raise BadValue(f"{table.name}: a key is an object or an array of {', '.join(names)}.", hint="")
    return tuple(typed_value(table, c, value) for c, value in zip(columns, values, strict=True))


def objects_in(media: str, body: bytes | bytearray) -> list[Any]:
    """The values of a JSON body: an array's elements, or the one value."""
    try:
        text = body.decode("utf-8")
        if media == LINES:
            return [loads(line) for line in text.split("\n") if line.strip()]
        found = loads(text)
    except (ValueError, RecursionError, ArithmeticError) as error:
        raise Refused(400, f"The body is no JSON: {str(error)[:200]}.", "Check it, and its encoding: UTF-8.") from None
    return found if isinstance(found, list) else [found]


def arrow_in(body: bytes | bytearray, limits: Limits) -> pa.Table:
    """An Arrow stream's rows; text that is no UTF-8 and offsets that lead nowhere are found here.

    Its buffers may be packed, its columns encoded, and a few bytes then stand for as many as one likes: no more are
    made of them than a body may have.
    """
    try:
        if unpacked_size(body) > limits.body:
            raise _too_large("Unpacked", limits)
        found = pa.ipc.open_stream(body).read_all()
        _few(found, limits)  # of NULLs one may claim any number
        found.validate(full=True)
        if decoded_size(found) > limits.body:
            raise _too_large("Decoded", limits)
    except (pa.ArrowException, OSError, ValueError, TypeError, NotImplementedError, MemoryError) as error:
        line = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise Refused(400, f"The body is no Arrow stream: {line}.") from None
    return found


def _few(rows: T, limits: Limits) -> T:
    if len(rows) > limits.rows:
        raise TooLarge(
            f"The body has {len(rows)} rows, {limits.rows} are the limit.", hint="Send them in several requests."
        )
    return rows


def _too_large(how: str, limits: Limits) -> TooLarge:
    return TooLarge(f"{how}, the body has more than {limits.body} bytes.", hint="Send it in several requests.")
