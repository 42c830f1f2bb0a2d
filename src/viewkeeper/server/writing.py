"""Rows in over HTTP. All rows of a request are one write call, and its token is the answer.

With the token comes how many rows were put or updated, and of a delete how many were there, where the store knows.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from viewkeeper.errors import BadValue, RowAbsent
from viewkeeper.maintain.writes import Writes
from viewkeeper.model.objects import typed_objects
from viewkeeper.model.rows import last_by_key, rows_table
from viewkeeper.model.schema import Table
from viewkeeper.model.token import Token
from viewkeeper.server import formats, intake
from viewkeeper.server.asked import Asked, Reply
from viewkeeper.server.exact import dumps
from viewkeeper.server.paths import key_of
from viewkeeper.server.problems import Refused
from viewkeeper.server.serving import Serving

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


async def _written(
    serving: Serving, asked: Asked, kind: str, work: Any, bodies: tuple[str, ...] = intake.BODIES
) -> Reply:
    _refuse_conditions(serving, asked)
    media = intake.media_of(asked.header("content-type"), bodies)
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
    rows = intake.rows_in(table, media, body, serving.limits)
    return _told(serving, "put", serving.db.put(table.name, rows), _count(rows))


def _delete(serving: Serving, asked: Asked, table: Table, media: str, body: bytes) -> Reply:
    return _deleted(serving, table, intake.keys_in(table, media, body, serving.limits))


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
    given: Any = intake.rows_in(table, media, body, serving.limits)
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
    found = intake.objects_in(media, body)
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
