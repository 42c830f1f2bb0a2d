"""Writes over HTTP. All rows of a request are one write call, and the reply has its token.

The reply also has the number of rows that were put or updated, and for a delete, how many of them existed, if the store
knows.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, TypeVar

import pyarrow as pa

from viewkeeper.errors import BadValue, RowAbsent, TooLarge
from viewkeeper.maintain.writes import Writes
from viewkeeper.model.intake.json import convert_objects, convert_value, parse_json
from viewkeeper.model.intake.rows import last_by_key, rows_table
from viewkeeper.model.schema import Table
from viewkeeper.model.token import Token
from viewkeeper.server.context import Limits, ServerContext
from viewkeeper.server.errors import HttpStatusError
from viewkeeper.server.http import formats
from viewkeeper.server.http.arrow_limits import decoded_size, decompressed_size
from viewkeeper.server.http.formats import ARROW, JSON, LINES
from viewkeeper.server.http.json_values import encode_json
from viewkeeper.server.http.paths import key_of
from viewkeeper.server.http.request import Reply, Request

# Decoding of rows and keys from a request's body: JSON, JSON lines or an Arrow stream.


T = TypeVar("T", bound=Sized)
BODY_MEDIA_TYPES = (JSON, LINES, ARROW)
_MEDIA_ALIASES = {"application/jsonl": LINES, "application/json-lines": LINES, "application/ndjson": LINES}


def body_media_type(content_type: str | None, allowed: tuple[str, ...] = BODY_MEDIA_TYPES) -> str:
    """The media type of a body. A type that a page of another site could send without a preflight is refused."""
    found = (content_type or "").partition(";")[0].strip().lower()
    found = _MEDIA_ALIASES.get(found, found)
    if found not in allowed:
        raise HttpStatusError(
            415, f"A body of {found or 'no type'!r} is not understood.", f"Send {', '.join(allowed)}."
        )
    return found


def parse_rows(table: Table, media: str, body: bytes | bytearray, limits: Limits) -> Any:
    """The rows of a body, in a form that `put` accepts."""
    if media == ARROW:
        return parse_arrow(body, limits)
    found = _check_row_count(parse_json_values(media, body), limits)
    if not all(isinstance(row, dict) for row in found):
        raise HttpStatusError(400, "A row is a JSON object.", "Send an object, an array of them, or one a line.")
    return convert_objects(table, found)


def parse_keys(table: Table, media: str, body: bytes | bytearray, limits: Limits) -> pa.Table | list[Any]:
    """The keys of a body: objects with the key's columns, arrays of their values, or plain values of a single
    column."""
    if media == ARROW:
        return parse_arrow(body, limits)
    columns = table.key_columns
    found = _check_row_count(parse_json_values(media, body), limits)
    if len(columns) > 1 and found and not isinstance(found[0], (list, dict)):
        found = [found]  # one composite key is an array too
    return [_parse_key(table, key) for key in found]


def _parse_key(table: Table, key: Any) -> tuple[Any, ...]:
    columns = table.key_columns
    names = [c.name for c in columns]
    if isinstance(key, dict):
        values_by_name = {name.lower(): value for name, value in key.items()}
        if len(values_by_name) != len(key) or sorted(values_by_name) != sorted(name.lower() for name in names):
            raise BadValue(f"{table.name}: a key has exactly the columns {', '.join(names)}.", hint="")
        key = [values_by_name[name.lower()] for name in names]
    values = key if isinstance(key, list) else [key]
    if len(values) != len(columns) or any(isinstance(value, (dict, list)) for value in values):
        raise BadValue(f"{table.name}: a key is an object or an array of {', '.join(names)}.", hint="")
    return tuple(convert_value(table, c, value) for c, value in zip(columns, values, strict=True))


def parse_json_values(media: str, body: bytes | bytearray) -> list[Any]:
    """The values of a JSON body: an array's elements, or the one value."""
    try:
        text = body.decode("utf-8")
        if media == LINES:
            return [parse_json(line) for line in text.split("\n") if line.strip()]
        found = parse_json(text)
    except (ValueError, RecursionError, ArithmeticError) as error:
        raise HttpStatusError(
            400, f"The body is no JSON: {str(error)[:200]}.", "Check it, and its encoding: UTF-8."
        ) from None
    return found if isinstance(found, list) else [found]


def parse_arrow(body: bytes | bytearray, limits: Limits) -> pa.Table:
    """The rows of an Arrow stream. Text that is not UTF-8 and offsets out of range are refused here.

    Buffers may be compressed and columns encoded, so that a few bytes can stand for any number: the sizes after
    decompression and decoding are limited like the body itself.
    """
    try:
        if decompressed_size(body) > limits.body:
            raise _too_large("Unpacked", limits)
        found = pa.ipc.open_stream(body).read_all()
        _check_row_count(found, limits)  # a column of NULLs can claim any number of rows
        found.validate(full=True)
        if decoded_size(found) > limits.body:
            raise _too_large("Decoded", limits)
    except (pa.ArrowException, OSError, ValueError, TypeError, NotImplementedError, MemoryError) as error:
        line = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise HttpStatusError(400, f"The body is no Arrow stream: {line}.") from None
    return found


def _check_row_count(rows: T, limits: Limits) -> T:
    if len(rows) > limits.rows:
        raise TooLarge(
            f"The body has {len(rows)} rows, {limits.rows} are the limit.", hint="Send them in several requests."
        )
    return rows


def _too_large(stage: str, limits: Limits) -> TooLarge:
    return TooLarge(f"{stage}, the body has more than {limits.body} bytes.", hint="Send it in several requests.")


PRECONDITION_HEADERS = ("if-match", "if-none-match", "if-unmodified-since")


async def put(context: ServerContext, request: Request) -> Reply:
    """Insert rows, or replace whole rows of the same key."""
    return await _run_write(context, request, "put", _put_body)


async def update(context: ServerContext, request: Request) -> Reply:
    """Change the same columns of some rows, each named by its key."""
    return await _run_write(context, request, "update", _update_body)


async def update_row(context: ServerContext, request: Request) -> Reply:
    """Change columns of the row with a key."""
    return await _run_write(context, request, "update", _update_row_body, (formats.JSON,))


async def delete(context: ServerContext, request: Request) -> Reply:
    """Delete rows by their keys."""
    return await _run_write(context, request, "delete", _delete_body)


async def delete_row(context: ServerContext, request: Request) -> Reply:
    """Delete the row with a key."""
    _refuse_preconditions(context, request)
    table = context.db._writes.table(request.name, "delete from")
    key = key_of(table, request.key)
    if context.store.get(table, key) is None:
        raise _row_absent(table)
    return await context.run_in_thread(_delete_keys, context, table, key, one=True)


async def _run_write(
    context: ServerContext, request: Request, kind: str, write: Any, bodies: tuple[str, ...] = BODY_MEDIA_TYPES
) -> Reply:
    _refuse_preconditions(context, request)
    media = body_media_type(request.header("content-type"), bodies)
    table = context.db._writes.table(
        request.name, {"put": "put into", "update": "update", "delete": "delete from"}[kind]
    )
    with context.cancel_on_stop():
        body = await request.body(context.limits.body, context.limits.receive_seconds)
    return await context.run_in_thread(write, context, request, table, media, body)


def _refuse_preconditions(context: ServerContext, request: Request) -> None:
    """Refuse conditional headers: a write ignores conditions, so it must not pretend to obey one."""
    context.check_writable()
    for name in PRECONDITION_HEADERS:
        if request.header(name) is not None:
            raise HttpStatusError(
                400, f"A write here has no condition, and {name} is one.", "Send it without, or as SQL."
            )


def _put_body(context: ServerContext, request: Request, table: Table, media: str, body: bytes) -> Reply:
    return put_rows(context, table, media, body)


def put_rows(context: ServerContext, table: Table, media: str, body: bytes | bytearray) -> Reply:
    """Put the rows of a body in one write call. Runs in a thread."""
    rows = parse_rows(table, media, body, context.limits)
    return _token_reply(context, "put", context.db.put(table.name, rows), _row_count(rows))


def _delete_body(context: ServerContext, request: Request, table: Table, media: str, body: bytes) -> Reply:
    return _delete_keys(context, table, parse_keys(table, media, body, context.limits))


def _delete_keys(context: ServerContext, table: Table, keys: Any, *, one: bool = False) -> Reply:
    """Delete keys. `one`: the row existed a moment ago; another writer may have deleted it since."""
    writes: Writes = context.db._writes
    token, count = writes.delete_counted(table.name, keys)
    if one and not count:
        raise _row_absent(table)
    return _token_reply(context, "delete", token, count)


def _row_absent(table: Table) -> RowAbsent:
    return RowAbsent(f"{table.name} has no row with this key.")


def _update_body(context: ServerContext, request: Request, table: Table, media: str, body: bytes) -> Reply:
    rows: Any = parse_rows(table, media, body, context.limits)
    if isinstance(rows, list):
        if len({frozenset(name.lower() for name in item) for item in rows}) > 1:
            raise BadValue(f"{table.name}: all rows of an update name the same columns.", hint="Send the others alone.")
        named = {name.lower() for item in rows for name in item}
    else:
        named = {name.lower() for name in rows.column_names}
    if not _row_count(rows):
        raise BadValue(f"{table.name}: there are no rows to update.", hint="")
    return _update_rows(context, table, rows, named)


def _update_row_body(context: ServerContext, request: Request, table: Table, media: str, body: bytes) -> Reply:
    found = parse_json_values(media, body)
    if len(found) != 1 or not isinstance(found[0], dict):
        raise HttpStatusError(400, "The columns to change are one JSON object.", "")
    key, columns = key_of(table, request.key), convert_objects(table, found)[0]
    return _token_reply(context, "update", context.db.update(table.name, key, columns), 1)


def _update_rows(context: ServerContext, table: Table, input_rows: Any, named_columns: set[str]) -> Reply:
    """Update rows in one write call; `Database.update` updates a single row."""
    keys = [c.name for c in table.key_columns]
    columns = [c.name for c in table.columns if c.name.lower() in named_columns and c.name not in keys]
    names = {c.name.lower() for c in table.columns}
    if missing := [name for name in keys if name.lower() not in named_columns]:
        raise BadValue(f"{table.name}: the rows have no {missing[0]}, which is part of the key.", hint="")
    if unknown := sorted(named_columns - names):
        raise BadValue(f"{table.name} has no column {unknown[0][:60]!r}.", hint="")
    if not columns:
        raise BadValue(f"{table.name}: update needs the columns to change.", hint="Name them beside the key.")
    changed = tuple(c for c in table.columns if c.name in columns or c.name in keys)
    narrow = Table(table.id, table.name, changed, table.key)  # columns that are not named keep their values
    rows = last_by_key(narrow, rows_table(narrow, input_rows))
    writes: Writes = context.db._writes
    token = writes.run_write(lambda: context.store.update(table, rows.select(keys), rows.select(columns)))
    return _token_reply(context, "update", token, rows.num_rows)


def _row_count(rows: Any) -> int:
    return int(rows.num_rows) if isinstance(rows, pa.Table) else len(rows)


def _token_reply(context: ServerContext, kind: str, token: Token, count: int) -> Reply:
    context.metrics.writes[kind].inc()
    context.metrics.written_rows.inc(count)
    body = encode_json({"token": str(token), "rows": count, "atomic": token.atomic})
    return Reply(200, body, formats.JSON, {"viewkeeper-token": str(token)})
