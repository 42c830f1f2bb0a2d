"""SQL over HTTP: what a statement needs is seen before it runs, and a SELECT's rows are sent piece by piece.

    reader   SELECT, SHOW, DESCRIBE, EXPLAIN
    writer   INSERT, UPSERT, UPDATE, DELETE
    admin    CREATE, ALTER, DROP

Several statements with semicolons between them are answered as JSON, with what each of them gave:

    {"statements": [{"done": "1 inserted"}, {"columns": […], "count": 2, "rows": […]}]}

With Accept: text/event-stream a statement that takes long tells of its progress:

    event: progress   {"what": "orders", "done": 120000, "of": 1500000}
    event: done       {"done": "…", "rows": […]}, or {"statements": […]}
    event: error      a problem
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa

from viewkeeper.capture.snapshot import Progress
from viewkeeper.errors import BadStatement, Forbidden, ViewkeeperError
from viewkeeper.model import types
from viewkeeper.read.suspension import MARK
from viewkeeper.server import errors
from viewkeeper.server.auth import allows
from viewkeeper.server.context import Serving
from viewkeeper.server.endpoints import write
from viewkeeper.server.http import event_formats, formats
from viewkeeper.server.http.json_values import distinct, dumps, rows_of
from viewkeeper.server.http.request import Asked, Reply
from viewkeeper.sql.query_limits import Leash
from viewkeeper.sql.result import Result
from viewkeeper.sql.script import steps
from viewkeeper.sql.statements import needs, run
from viewkeeper.syntax.cursor import Words, statements
from viewkeeper.syntax.literals import bound

SQL = "application/sql"
PIECE_ROWS = 10_000
LOAD_SECONDS = 24 * 3600.0
"""For a statement that loads a view."""

LONGEST = 1 << 20
"""Bytes of a statement; who may define views may send thousands of them at once."""

_ROLES = {"read": "reader", "write": "writer", "define": "admin"}
_log = logging.getLogger("viewkeeper.server")


async def statement(serving: Serving, asked: Asked) -> Reply:
    """Run statements; several CREATE MATERIALIZED VIEW that follow each other are one batch."""
    text, engine, stale = await _text(serving, asked)
    what = needs(text)
    if not allows(asked.role, _ROLES[what]):
        raise Forbidden(
            f"This statement needs the role {_ROLES[what]}; yours is {asked.role}.", hint="Ask for another token."
        )
    if what != "read":
        serving.writable()
    offered = formats.ROWS if len(steps(text)) < 2 else (formats.JSON,)
    media = formats.chosen(asked.header("accept"), (*offered, formats.EVENTS))
    (serving.metrics.reads if what == "read" else serving.metrics.writes)["sql"].inc()
    if media == formats.EVENTS:
        return Reply(200, _told(serving, text, engine, what, asked.native, stale), media, {"cache-control": "no-store"})
    answer = await asked.unless_left(_run(serving, text, engine, what, lambda what, done, of: None, stale))
    if len(answer.each) > 1 or not answer.has_rows:
        return Reply(200, dumps(_about(answer, asked.native)), formats.JSON)
    return Reply(200, _pieces(answer.to_arrow(), media, asked.native), media)


async def _text(serving: Serving, asked: Asked) -> tuple[str, str, bool]:
    """The statement with its values in their places, who answers it, and whether it may read suspended views."""
    media = write.media_of(asked.header("content-type"), (formats.JSON, SQL))
    most = serving.limits.body if allows(asked.role, "admin") else min(serving.limits.body, LONGEST)
    with serving.waiting():
        body = await asked.body(most, serving.limits.receive_seconds)
    if media == SQL:
        try:
            return body.decode("utf-8"), "auto", False
        except UnicodeDecodeError:
            raise BadStatement("The statement is not UTF-8 text.", hint="") from None
    found = write.objects_in(media, body)
    if len(found) != 1 or not isinstance(found[0], dict) or not isinstance(found[0].get("sql"), str):
        raise errors.Refused(400, "The statement is missing.", 'Send {"sql": "SELECT …"}.')
    given = found[0]
    if unknown := sorted(given.keys() - {"sql", "parameters", "engine", "stale"}):
        hint = "There are sql, parameters, engine and stale."
        raise errors.Refused(400, f"There is no {unknown[0][:40]!r} here.", hint)
    if not isinstance(given.get("stale", False), bool):
        raise errors.Refused(400, "stale is true or false.", "")
    parameters = given.get("parameters", {})
    if not isinstance(parameters, dict) or any(isinstance(v, (list, dict)) for v in parameters.values()):
        raise errors.Refused(400, "parameters is an object of names and values.", "")
    text = bound(given["sql"], parameters) if parameters else given["sql"]
    return text, str(given.get("engine", "auto")), bool(given.get("stale", False))


async def _run(serving: Serving, text: str, engine: str, what: str, tell: Progress, stale: bool) -> Result:
    """Run it. A query is stopped when nobody waits any more; what defines or writes may still happen."""
    async with serving.turn(what):
        with serving.leashed() as leash:
            seconds = LOAD_SECONDS if what == "define" else serving.limits.seconds * 4
            answer = await serving.call(_done, serving, text, engine, what, leash, tell, stale, seconds=seconds)
    serving.hub.wake()
    return answer


def _done(serving: Serving, text: str, engine: str, what: str, leash: Leash, tell: Progress, stale: bool) -> Result:
    try:
        with serving.loading(tell) as progress:
            return run(serving.db, text, engine=engine, leash=leash, progress=progress, stale=stale)
    finally:
        if what == "define" and not serving.settings.maintain:
            serving.db._holding.end()  # whoever maintains, or will, must not wait for a server that only serves


async def _pieces(rows: pa.Table, media: str, native: bool) -> AsyncIterator[bytes]:
    writer = formats.writer(media, rows.schema, native)
    yield writer.first()
    for start in range(0, rows.num_rows, PIECE_ROWS):
        yield writer.more(rows.slice(start, PIECE_ROWS))
        await asyncio.sleep(0)
    yield writer.last({"columns": _columns(rows), "count": rows.num_rows, **_suspended(rows)})


def _columns(rows: pa.Table) -> list[dict[str, str]]:
    names = distinct(rows.column_names)
    return [{"name": name, "type": types.written(f.type)} for name, f in zip(names, rows.schema, strict=True)]


async def _told(serving: Serving, text: str, engine: str, what: str, native: bool, stale: bool) -> AsyncIterator[bytes]:
    """The statement's progress and its end, as events."""
    queue: asyncio.Queue[bytes] = asyncio.Queue(1000)

    def tell(what: str, done: int, of: int) -> None:
        data = event_formats.event("progress", {"what": what, "done": done, "of": of})
        serving.loop.call_soon_threadsafe(_offer, queue, data)

    work = asyncio.create_task(_run(serving, text, engine, what, tell, stale))
    try:
        while not work.done():
            waiting = asyncio.create_task(queue.get())
            await asyncio.wait({work, waiting}, timeout=5, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                yield waiting.result()
                continue
            waiting.cancel()
            if not work.done():
                yield b": alive\n\n"
    finally:
        if what == "read":
            work.cancel()  # the reader has gone; a view that is being made goes on
    try:
        answer = work.result()
    except ViewkeeperError as error:
        yield event_formats.event("error", {**errors.document(error), **place_of(text, error)})
        return
    except Exception:
        _log.exception("A statement failed")
        yield event_formats.event("error", errors.document(errors.unexpected()))
        return
    yield event_formats.event("done", _about(answer, native))


def _about(answer: Result, native: bool) -> dict[str, Any]:
    """What one statement gave, or each of several."""
    if len(answer.each) > 1:
        return {"statements": [_about(one, native) for one in answer.each]}
    if not answer.has_rows:
        return {"done": answer.done}
    rows = answer.to_arrow()
    about = {"done": answer.done, "columns": _columns(rows), "count": rows.num_rows}
    return {**about, **_suspended(rows), "rows": rows_of(rows.slice(0, PIECE_ROWS), native)}


def _suspended(rows: pa.Table) -> dict[str, Any]:
    """The suspended views whose old rows an answer is made of."""
    mark = (rows.schema.metadata or {}).get(MARK)
    return {} if mark is None else {"suspended": json.loads(mark)}


def _offer(queue: asyncio.Queue[bytes], data: bytes) -> None:
    if not queue.full():
        queue.put_nowait(data)


def place_of(text: str, error: ViewkeeperError) -> dict[str, Any]:
    """The line that an error speaks of, as far as its message says: for an editor that marks it."""
    if found := re.search(r"\(line (\d+)\)|line (\d+)[, ]+pos(?:ition)? (\d+)", error.message):
        line = int(found[1] or found[2])
        return {"line": line, **({"column": int(found[3])} if found[3] else {})}
    quoted = re.search(r"[`'\"]([^`'\"]{1,80})[`'\"]", error.message)
    if quoted is not None:
        for tokens in statements(text):
            for token in Words(text, tokens).tokens:
                if token.value.lower() == quoted[1].lower():
                    return {"line": token.line, "offset": token.start, "length": token.end - token.start}
    return {}
