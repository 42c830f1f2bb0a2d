"""SQL over HTTP: the permission that a statement needs is determined before it runs, and a SELECT's rows are streamed.

    reader   SELECT, SHOW, DESCRIBE, EXPLAIN
    writer   INSERT, UPSERT, UPDATE, DELETE
    admin    CREATE, ALTER, DROP

Several statements, separated by semicolons, are answered as JSON with the result of each:

    {"statements": [{"done": "1 inserted"}, {"columns": […], "count": 2, "rows": […]}]}

With Accept: text/event-stream a long statement reports its progress:

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
from viewkeeper.read.suspension import SUSPENDED_METADATA
from viewkeeper.server import errors
from viewkeeper.server.auth import is_role_sufficient
from viewkeeper.server.context import ServerContext
from viewkeeper.server.endpoints import write
from viewkeeper.server.http import event_formats, formats
from viewkeeper.server.http.json_values import encode_json, json_rows, number_duplicate_names
from viewkeeper.server.http.request import Reply, Request
from viewkeeper.sql.query_limits import QueryLimits
from viewkeeper.sql.result import Result
from viewkeeper.sql.script import split_steps
from viewkeeper.sql.statements import required_permission, run
from viewkeeper.syntax.cursor import TokenCursor, split_statements
from viewkeeper.syntax.literals import bind_parameters

SQL = "application/sql"
PIECE_ROWS = 10_000
LOAD_SECONDS = 24 * 3600.0
"""Time limit of a statement that loads a view."""

MAX_STATEMENT_BYTES = 1 << 20
"""Maximum size of a statement; an admin may send thousands of view definitions at once, up to the body limit."""

_ROLE_BY_PERMISSION = {"read": "reader", "write": "writer", "define": "admin"}
_log = logging.getLogger("viewkeeper.server")


async def run_statement(context: ServerContext, request: Request) -> Reply:
    """Run statements; several CREATE MATERIALIZED VIEW that follow each other are one batch."""
    text, engine, stale = await _read_statement(context, request)
    permission = required_permission(text)
    if not is_role_sufficient(request.role, _ROLE_BY_PERMISSION[permission]):
        raise Forbidden(
            f"This statement needs the role {_ROLE_BY_PERMISSION[permission]}; yours is {request.role}.",
            hint="Ask for another token.",
        )
    if permission != "read":
        context.check_writable()
    media_types = formats.ROWS if len(split_steps(text)) < 2 else (formats.JSON,)
    media = formats.choose_media_type(request.header("accept"), (*media_types, formats.EVENTS))
    (context.metrics.reads if permission == "read" else context.metrics.writes)["sql"].inc()
    if media == formats.EVENTS:
        return Reply(
            200,
            _progress_events(context, text, engine, permission, request.native, stale),
            media,
            {"cache-control": "no-store"},
        )
    answer = await request.cancel_if_disconnected(
        _run_in_turn(context, text, engine, permission, lambda permission, done, total: None, stale)
    )
    if len(answer.each) > 1 or not answer.has_rows:
        return Reply(200, encode_json(_result_json(answer, request.native)), formats.JSON)
    return Reply(200, _stream_rows(answer.to_arrow(), media, request.native), media)


async def _read_statement(context: ServerContext, request: Request) -> tuple[str, str, bool]:
    """The statement with its values bound, the engine, and whether it may read suspended views."""
    media = write.body_media_type(request.header("content-type"), (formats.JSON, SQL))
    max_bytes = (
        context.limits.body
        if is_role_sufficient(request.role, "admin")
        else min(context.limits.body, MAX_STATEMENT_BYTES)
    )
    with context.cancel_on_stop():
        body = await request.body(max_bytes, context.limits.receive_seconds)
    if media == SQL:
        try:
            return body.decode("utf-8"), "auto", False
        except UnicodeDecodeError:
            raise BadStatement("The statement is not UTF-8 text.", hint="") from None
    found = write.parse_json_values(media, body)
    if len(found) != 1 or not isinstance(found[0], dict) or not isinstance(found[0].get("sql"), str):
        raise errors.HttpStatusError(400, "The statement is missing.", 'Send {"sql": "SELECT …"}.')
    statement = found[0]
    if unknown := sorted(statement.keys() - {"sql", "parameters", "engine", "stale"}):
        hint = "There are sql, parameters, engine and stale."
        raise errors.HttpStatusError(400, f"There is no {unknown[0][:40]!r} here.", hint)
    if not isinstance(statement.get("stale", False), bool):
        raise errors.HttpStatusError(400, "stale is true or false.", "")
    parameters = statement.get("parameters", {})
    if not isinstance(parameters, dict) or any(isinstance(v, (list, dict)) for v in parameters.values()):
        raise errors.HttpStatusError(400, "parameters is an object of names and values.", "")
    text = bind_parameters(statement["sql"], parameters) if parameters else statement["sql"]
    return text, str(statement.get("engine", "auto")), bool(statement.get("stale", False))


async def _run_in_turn(
    context: ServerContext, text: str, engine: str, permission: str, report_progress: Progress, stale: bool
) -> Result:
    """Run the statements. A query is stopped when its client disconnects; a definition or a write may still
    complete."""
    async with context.statement_slot(permission):
        with context.limit_query() as limits:
            seconds = LOAD_SECONDS if permission == "define" else context.limits.seconds * 4
            answer = await context.run_in_thread(
                _execute, context, text, engine, permission, limits, report_progress, stale, seconds=seconds
            )
    context.hub.wake()
    return answer


def _execute(
    context: ServerContext,
    text: str,
    engine: str,
    permission: str,
    query_limits: QueryLimits,
    report_progress: Progress,
    stale: bool,
) -> Result:
    try:
        with context.track_load(report_progress) as progress:
            return run(context.db, text, engine=engine, query_limits=query_limits, progress=progress, stale=stale)
    finally:
        if permission == "define" and not context.settings.maintain:
            context.db._maintainer_ref.end()  # a server that only serves must not keep the lease


async def _stream_rows(rows: pa.Table, media: str, native: bool) -> AsyncIterator[bytes]:
    writer = formats.create_writer(media, rows.schema, native)
    yield writer.begin()
    for start in range(0, rows.num_rows, PIECE_ROWS):
        yield writer.write(rows.slice(start, PIECE_ROWS))
        await asyncio.sleep(0)
    yield writer.finish({"columns": _column_descriptions(rows), "count": rows.num_rows, **_suspended_views(rows)})


def _column_descriptions(rows: pa.Table) -> list[dict[str, str]]:
    names = number_duplicate_names(rows.column_names)
    return [{"name": name, "type": types.sql_type_name(f.type)} for name, f in zip(names, rows.schema, strict=True)]


async def _progress_events(
    context: ServerContext, text: str, engine: str, permission: str, native: bool, stale: bool
) -> AsyncIterator[bytes]:
    """The statement's progress and its result, as events."""
    queue: asyncio.Queue[bytes] = asyncio.Queue(1000)

    def send_progress(what: str, done: int, of: int) -> None:
        data = event_formats.encode_event("progress", {"what": what, "done": done, "of": of})
        context.loop.call_soon_threadsafe(_enqueue, queue, data)

    work = asyncio.create_task(_run_in_turn(context, text, engine, permission, send_progress, stale))
    try:
        while not work.done():
            next_event = asyncio.create_task(queue.get())
            await asyncio.wait({work, next_event}, timeout=5, return_when=asyncio.FIRST_COMPLETED)
            if next_event.done():
                yield next_event.result()
                continue
            next_event.cancel()
            if not work.done():
                yield b": alive\n\n"
    finally:
        if permission == "read":
            work.cancel()  # the client has disconnected; the load of a view continues
    try:
        answer = work.result()
    except ViewkeeperError as error:
        yield event_formats.encode_event("error", {**errors.problem_document(error), **error_location(text, error)})
        return
    except Exception:
        _log.exception("A statement failed")
        yield event_formats.encode_event("error", errors.problem_document(errors.server_fault()))
        return
    yield event_formats.encode_event("done", _result_json(answer, native))


def _result_json(result: Result, native: bool) -> dict[str, Any]:
    """The result of one statement, or of each of several."""
    if len(result.each) > 1:
        return {"statements": [_result_json(item, native) for item in result.each]}
    if not result.has_rows:
        return {"done": result.done}
    rows = result.to_arrow()
    header = {"done": result.done, "columns": _column_descriptions(rows), "count": rows.num_rows}
    return {**header, **_suspended_views(rows), "rows": json_rows(rows.slice(0, PIECE_ROWS), native)}


def _suspended_views(rows: pa.Table) -> dict[str, Any]:
    """The suspended views whose old rows a result contains."""
    mark = (rows.schema.metadata or {}).get(SUSPENDED_METADATA)
    return {} if mark is None else {"suspended": json.loads(mark)}


def _enqueue(queue: asyncio.Queue[bytes], data: bytes) -> None:
    if not queue.full():
        queue.put_nowait(data)


def error_location(text: str, error: ViewkeeperError) -> dict[str, Any]:
    """The line that an error's message names, for an editor that marks it; empty if it names none."""
    if found := re.search(r"\(line (\d+)\)|line (\d+)[, ]+pos(?:ition)? (\d+)", error.message):
        line = int(found[1] or found[2])
        return {"line": line, **({"column": int(found[3])} if found[3] else {})}
    quoted = re.search(r"[`'\"]([^`'\"]{1,80})[`'\"]", error.message)
    if quoted is not None:
        for tokens in split_statements(text):
            for token in TokenCursor(text, tokens).tokens:
                if token.value.lower() == quoted[1].lower():
                    return {"line": token.line, "offset": token.start, "length": token.end - token.start}
    return {}
