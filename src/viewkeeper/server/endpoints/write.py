"""Rows in over HTTP. All rows of a request are one write call, and its token is the answer.

With the token comes how many rows were put or updated, and of a delete how many were there, where the store knows.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, TypeVar

import pyarrow as pa

from viewkeeper.errors import BadValue, RowAbsent, TooLarge
from viewkeeper.maintain.writes import Writes
from viewkeeper.model.intake.json import loads, typed_objects, typed_value
from viewkeeper.model.intake.rows import last_by_key, rows_table
from viewkeeper.model.schema import Table
from viewkeeper.model.token import Token
from viewkeeper.server.context import Limits, Serving
from viewkeeper.server.errors import Refused
from viewkeeper.server.http import formats
from viewkeeper.server.http.arrow_limits import decoded_size, unpacked_size
from viewkeeper.server.http.formats import ARROW, JSON, LINES
from viewkeeper.server.http.json_values import dumps
from viewkeeper.server.http.paths import key_of
from viewkeeper.server.http.request import Asked, Reply

# Rows and keys out of a request's body: JSON, JSON lines or an Arrow stream, as a put takes them.


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


CONDITIONS = ("if-match", "if-none-match", "if-unmodified-since")


async def put(serving: Serving, asked: Asked) -> Reply:
    """Insert rows, or replace whole rows of the same key."""
    return await _written(serving, asked, "put", _put)


async def update(serving: Serving, asked: Asked) -> Reply:
    """Change the same columns of some rows, each named by its key."""
    return await _written(serving, asked, "update", _update)


async def update_one(serving: Serving, asked: Asked) -> Reply:
    """Change columns of the row with a key."""
    return await _written(serving, asked, "update", _update_one, (formats.JSON,))


async def delete(serving: Serving, asked: Asked) -> Reply:
    """Delete rows by their keys."""
    return await _written(serving, asked, "delete", _delete)


async def delete_one(serving: Serving, asked: Asked) -> Reply:
    """Delete the row with a key."""
    _refuse_conditions(serving, asked)
    table = serving.db._writes.table(asked.name, "delete from")
    key = key_of(table, asked.key)
    if serving.store.get(table, key) is None:
        raise _absent(table)
    return await serving.call(_deleted, serving, table, key, one=True)


async def _written(serving: Serving, asked: Asked, kind: str, work: Any, bodies: tuple[str, ...] = BODIES) -> Reply:
    _refuse_conditions(serving, asked)
    media = media_of(asked.header("content-type"), bodies)
    table = serving.db._writes.table(asked.name, {"put": "put into", "update": "update", "delete": "delete from"}[kind])
    with serving.waiting():
        body = await asked.body(serving.limits.body, serving.limits.receive_seconds)
    return await serving.call(work, serving, asked, table, media, body)


def _refuse_conditions(serving: Serving, asked: Asked) -> None:
    """What would be written whatever its condition says is not written."""
    serving.writable()
    for name in CONDITIONS:
        if asked.header(name) is not None:
            raise Refused(400, f"A write here has no condition, and {name} is one.", "Send it without, or as SQL.")


def _put(serving: Serving, asked: Asked, table: Table, media: str, body: bytes) -> Reply:
    return put_rows(serving, table, media, body)


def put_rows(serving: Serving, table: Table, media: str, body: bytes | bytearray) -> Reply:
    """The rows of a body as one write call. In a thread."""
    rows = rows_in(table, media, body, serving.limits)
    return _told(serving, "put", serving.db.put(table.name, rows), _count(rows))


def _delete(serving: Serving, asked: Asked, table: Table, media: str, body: bytes) -> Reply:
    return _deleted(serving, table, keys_in(table, media, body, serving.limits))


def _deleted(serving: Serving, table: Table, keys: Any, *, one: bool = False) -> Reply:
    """`one`: it was there a moment ago, but somebody else may have been faster."""
    writes: Writes = serving.db._writes
    token, count = writes.deleted(table.name, keys)
    if one and not count:
        raise _absent(table)
    return _told(serving, "delete", token, count)


def _absent(table: Table) -> RowAbsent:
    return RowAbsent(f"{table.name} has no row with this key.")


def _update(serving: Serving, asked: Asked, table: Table, media: str, body: bytes) -> Reply:
    given: Any = rows_in(table, media, body, serving.limits)
    if isinstance(given, list):
        if len({frozenset(name.lower() for name in row) for row in given}) > 1:
            raise BadValue(f"{table.name}: all rows of an update name the same columns.", hint="Send the others alone.")
        named = {name.lower() for row in given for name in row}
    else:
        named = {name.lower() for name in given.column_names}
    if not _count(given):
        raise BadValue(f"{table.name}: there are no rows to update.", hint="")
    return _changed(serving, table, given, named)


def _update_one(serving: Serving, asked: Asked, table: Table, media: str, body: bytes) -> Reply:
    found = objects_in(media, body)
    if len(found) != 1 or not isinstance(found[0], dict):
        raise Refused(400, "The columns to change are one JSON object.", "")
    key, columns = key_of(table, asked.key), typed_objects(table, found)[0]
    return _told(serving, "update", serving.db.update(table.name, key, columns), 1)


def _changed(serving: Serving, table: Table, given: Any, named: set[str]) -> Reply:
    """One write call for all rows, where `Database.update` takes one."""
    keys = [c.name for c in table.key_columns]
    columns = [c.name for c in table.columns if c.name.lower() in named and c.name not in keys]
    known = {c.name.lower() for c in table.columns}
    if missing := [name for name in keys if name.lower() not in named]:
        raise BadValue(f"{table.name}: the rows have no {missing[0]}, which is part of the key.", hint="")
    if unknown := sorted(named - known):
        raise BadValue(f"{table.name} has no column {unknown[0][:60]!r}.", hint="")
    if not columns:
        raise BadValue(f"{table.name}: update needs the columns to change.", hint="Name them beside the key.")
    changed = tuple(c for c in table.columns if c.name in columns or c.name in keys)
    narrow = Table(table.id, table.name, changed, table.key)  # columns that are not named keep what they have
    rows = last_by_key(narrow, rows_table(narrow, given))
    writes: Writes = serving.db._writes
    token = writes.made(lambda: serving.store.update(table, rows.select(keys), rows.select(columns)))
    return _told(serving, "update", token, rows.num_rows)


def _count(rows: Any) -> int:
    return int(rows.num_rows) if isinstance(rows, pa.Table) else len(rows)


def _told(serving: Serving, kind: str, token: Token, count: int) -> Reply:
    serving.metrics.writes[kind].inc()
    serving.metrics.written.inc(count)
    body = dumps({"token": str(token), "rows": count, "atomic": token.atomic})
    return Reply(200, body, formats.JSON, {"viewkeeper-token": str(token)})
