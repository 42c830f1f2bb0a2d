"""Subscriptions over HTTP: a view's rows now, then every batch once, as Server-Sent Events or as an Arrow stream.

    since=TOKEN, Last-Event-ID    only what follows; a number is taken for a position of this database
    since=now                     only what comes from now on

    1  the rows that are there, from one state, in pieces; or with since, what was missed, from the log
    2  join the hub: it hands out what comes after a position P
    3  what lies between the own position and P, from the log; then whether the view is suspended
    4  the queue that the hub fills
    5  when the view was made anew after a suspension: the event `reset`, and again from 1

A view that is suspended already is refused (409), unless level=stale asks for its old rows, or the client comes back
with since: then it gets the event `suspended`, and waits.

A client that does not read holds nobody up: its queue has a limit (`hub`), and a write to it has a time limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, suppress
from typing import Any

import numpy as np
import pyarrow as pa

from viewkeeper.errors import BadToken, ViewkeeperError
from viewkeeper.model.schema import Table
from viewkeeper.model.token import Token
from viewkeeper.read.freshness import Level, position_of
from viewkeeper.read.rows import to_visible_rows
from viewkeeper.read.subscribe import Delta, check_since, deltas_by_call, reset_delta, suspension_delta
from viewkeeper.read.suspension import refuse_suspended
from viewkeeper.server.context import ServerContext
from viewkeeper.server.http import event_formats, formats
from viewkeeper.server.http.request import Reply, Request

_NOW = "now"
PositionedEvent = tuple[int, bytes]
"""An event, and the position behind it."""


async def subscribe(context: ServerContext, request: Request) -> Reply:
    """A table's or view's changes."""
    store = context.store
    table = store.catalog().table(request.name)
    media = formats.choose_media_type(request.header("accept"), (formats.EVENTS, formats.ARROW))
    form = (
        event_formats.ARROW_FORMAT
        if media == formats.ARROW
        else event_formats.SSE_NATIVE
        if request.native
        else event_formats.SSE
    )
    given = request.header("last-event-id") or request.parameter("since")
    context.check_subscribers()
    now = store.settled_position(table)  # a table that cannot be subscribed to says so now
    if given is None:
        refuse_suspended(store.catalog().find_by_id(table.id), stale=request.parameter("level") == Level.STALE.value)
        return _stream_reply(media, _stream_rows_and_changes(context, table, form))
    since = now if given == _NOW else _parse_position(context, given)
    check_since(store, table, since)
    missed = deltas_by_call(store, table, since, now) if since < now else iter(())
    first = await context.run_in_thread(
        _encode_next, form, table, missed
    )  # what the log no longer has is a problem, not an event
    return _stream_reply(media, _stream_missed_and_changes(context, table, form, max(since, now), first, missed))


def _stream_reply(media: str, body: AsyncIterator[bytes]) -> Reply:
    return Reply(200, body, media, {"cache-control": "no-store", "x-accel-buffering": "no"})


def _parse_position(context: ServerContext, since: str | None) -> int:
    text = since or ""
    if text.isascii() and text.isdigit() and len(text) <= 20:
        text = str(Token(context.store.uuid, int(text)))
    found = position_of(context.store, text)
    if found is None:
        raise BadToken(f"{text[:60]!r} is no token.")
    return found


async def _stream_rows_and_changes(context: ServerContext, table: Table, event_format: str) -> AsyncIterator[bytes]:
    """The rows of one state, then what follows it. The state is kept while the client takes them, and no longer."""
    with context.count_subscriber():
        yield event_formats.encode_stream_start(event_format, table)
        async with aclosing(_stream_changes(context, table, event_format, None)) as following:
            async for data in following:
                yield data


async def _stream_missed_and_changes(
    context: ServerContext,
    table: Table,
    event_format: str,
    position: int,
    first_event: PositionedEvent | None,
    missed_deltas: Iterator[tuple[int, Delta]],
) -> AsyncIterator[bytes]:
    """What was missed up to a position, then what follows it."""
    with context.count_subscriber():
        yield event_formats.encode_stream_start(event_format, table)
        found = first_event
        while found is not None:
            yield found[1]
            found = await context.run_in_thread(_encode_next, event_format, table, missed_deltas)
        async with aclosing(_stream_changes(context, table, event_format, position)) as following:
            async for data in following:
                yield data


async def _stream_changes(
    context: ServerContext, table: Table, event_format: str, since: int | None
) -> AsyncGenerator[bytes, None]:
    """All rows unless there is a position to go on from, then what comes, and again when the view was made anew.

    What was missed is encoded as it is taken: nothing of it waits for a client that reads slowly."""
    subscriber, at = None, since or 0
    try:
        while True:
            if since is None:
                async with aclosing(_stream_table_rows(context, table, event_format)) as pieces:
                    async for at, data in pieces:  # noqa: B007 - the last one is where to go on
                        yield data
            subscriber, upto = context.hub.subscribe(table, event_format, at)
            context.metrics.reads["changes"].inc()
            missed = deltas_by_call(context.store, table, at, upto) if at < upto else iter(())
            while (found := await context.run_in_thread(_encode_next, event_format, table, missed)) is not None:
                at, data = found
                yield data
            if subscriber.suspended is not None:
                told = suspension_delta(context.store, table, subscriber.suspended, max(at, upto))
                yield event_formats.encode_delta(event_format, table, told)
            if context.stopping.is_set():  # who joins now was not there when goodbye was said
                yield event_formats.encode_stream_end(
                    event_format, table, None, Token(context.store.uuid, at), event_formats.STOPPING_REASON
                )
                return
            while data := await subscriber.wait_for_events():
                yield data
            if not subscriber.reset:
                return
            context.hub.unsubscribe(table, subscriber)
            table, since = context.store.catalog().find_table_by_id(table.id) or table, None
            yield event_formats.encode_delta(
                event_format, table, reset_delta(context.store, table, subscriber.position)
            )
    except ViewkeeperError as error:
        yield event_formats.encode_stream_end(event_format, table, error, Token(context.store.uuid, at))
    finally:
        if subscriber is not None:
            context.hub.unsubscribe(table, subscriber)


def _encode_next(event_format: str, table: Table, deltas: Iterator[tuple[int, Delta]]) -> PositionedEvent | None:
    """The next delta and its position."""
    found = next(deltas, None)
    return None if found is None else (found[0], event_formats.encode_delta(event_format, table, found[1]))


async def _stream_table_rows(
    context: ServerContext, table: Table, event_format: str
) -> AsyncGenerator[tuple[int, bytes], None]:
    """The rows of one state in pieces, each with the state's position."""
    store = context.store
    source = store.logged_table(table)
    if not source.is_stored:
        from viewkeeper.read.lazy.evaluate import read_virtual_view

        rows, position = await context.run_in_thread(read_virtual_view, store, source.name)
        yield position, _encode_rows_event(context, table, event_format, rows, position, True)
    else:
        pinned = await context.run_in_thread(store.open_snapshot)
        try:
            position = pinned.batch.cut if source.is_changed_by_writes else pinned.head
            batches = pinned.scan(source)
            piece = await context.run_in_thread(_read_next_piece, batches, source)
            while True:
                following = await context.run_in_thread(_read_next_piece, batches, source) if piece.num_rows else piece
                last = not following.num_rows
                yield (
                    position,
                    await context.run_in_thread(
                        _encode_rows_event, context, table, event_format, piece, position, last
                    ),
                )
                if last:
                    break
                piece = following
        finally:
            pinned.close()


def _read_next_piece(batches: Any, table: Table) -> pa.Table:
    """About as many rows as an event has; none at the end."""
    found, count = [], 0
    for batch in batches:
        found.append(batch)
        count += batch.num_rows
        if count >= event_formats.PIECE_ROWS:
            break
    return to_visible_rows(table, pa.Table.from_batches(found, table.arrow))


def _encode_rows_event(
    context: ServerContext, table: Table, event_format: str, rows: pa.Table, position: int, last: bool
) -> bytes:
    rows = rows.select(table.external_schema.names).cast(
        table.external_schema
    )  # as a view tells them that is just the table
    weighted = rows.append_column(table.weight_column, pa.array(np.ones(rows.num_rows, np.int64)))
    delta = Delta("rows", table.name, weighted, Token(context.store.uuid, position), time.time(), table)
    return event_formats.encode_delta(event_format, table, delta, is_last=last)


async def send_heartbeats(context: ServerContext) -> None:
    """A sign of life to all subscribers, every so often; and old states are let go."""
    while not context.stopping.is_set():
        await asyncio.sleep(context.limits.heartbeat)
        context.hub.send_heartbeat()
        with suppress(ViewkeeperError):
            await context.run_in_thread(context.snapshots.evict)
