"""Subscriptions over HTTP: a view's current rows, then every batch once, as Server-Sent Events or an Arrow stream.

    since=TOKEN, Last-Event-ID    only the changes after it; a number is read as a position of this database
    since=now                     only the changes from now on

    1  send the current rows from one state, in pieces; or with since, the missed changes from the log
    2  subscribe to the hub, which delivers the changes after a position P
    3  send the changes between the own position and P from the log; then report a suspension
    4  send the events of the queue that the hub fills
    5  if the view was rebuilt after a suspension: send the event `reset`, and continue with 1

A view that is already suspended is refused (409), unless level=stale reads its old rows, or the client comes back with
since: it then gets the event `suspended`, and waits.

A client that does not read holds up no other: its queue has a limit (`hub`), and a write to it has a time limit.
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
"""The position after an event, and the encoded event."""


async def subscribe(context: ServerContext, request: Request) -> Reply:
    """A table's or view's changes."""
    store = context.store
    table = store.catalog().table(request.name)
    media = formats.choose_media_type(request.header("accept"), (formats.EVENTS, formats.ARROW))
    event_format = (
        event_formats.ARROW_FORMAT
        if media == formats.ARROW
        else event_formats.SSE_NATIVE
        if request.native
        else event_formats.SSE
    )
    since_text = request.header("last-event-id") or request.parameter("since")
    context.check_subscribers()
    now = store.settled_position(table)  # raises now for a table that cannot be subscribed to
    if since_text is None:
        refuse_suspended(store.catalog().find_by_id(table.id), stale=request.parameter("level") == Level.STALE.value)
        return _stream_reply(media, _stream_rows_and_changes(context, table, event_format))
    since = now if since_text == _NOW else _parse_position(context, since_text)
    check_since(store, table, since)
    missed = deltas_by_call(store, table, since, now) if since < now else iter(())
    first = await context.run_in_thread(
        _encode_next, event_format, table, missed
    )  # a position that the log no longer has is a problem document, not an event
    return _stream_reply(
        media, _stream_missed_and_changes(context, table, event_format, max(since, now), first, missed)
    )


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
    """The rows of one state, then the changes after it. The snapshot is closed once the client has received them."""
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
    """The missed changes up to a position, then the changes after it."""
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
    """All rows unless `since` is given, then the changes; again when the view was rebuilt.

    Missed changes are encoded as they are sent, so none of them is held for a client that reads slowly."""
    subscriber, position = None, since or 0
    try:
        while True:
            if since is None:
                async with aclosing(_stream_table_rows(context, table, event_format)) as pieces:
                    async for position, data in pieces:  # noqa: B007 - the last position is where the changes begin
                        yield data
            subscriber, hub_position = context.hub.subscribe(table, event_format, position)
            context.metrics.reads["changes"].inc()
            missed = (
                deltas_by_call(context.store, table, position, hub_position) if position < hub_position else iter(())
            )
            while (found := await context.run_in_thread(_encode_next, event_format, table, missed)) is not None:
                position, data = found
                yield data
            if subscriber.suspended is not None:
                delta = suspension_delta(context.store, table, subscriber.suspended, max(position, hub_position))
                yield event_formats.encode_delta(event_format, table, delta)
            if context.stopping.is_set():  # this subscriber joined after the hub ended its subscriptions
                yield event_formats.encode_stream_end(
                    event_format, table, None, Token(context.store.uuid, position), event_formats.STOPPING_REASON
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
        yield event_formats.encode_stream_end(event_format, table, error, Token(context.store.uuid, position))
    finally:
        if subscriber is not None:
            context.hub.unsubscribe(table, subscriber)


def _encode_next(event_format: str, table: Table, deltas: Iterator[tuple[int, Delta]]) -> PositionedEvent | None:
    """The next delta, encoded, and its position."""
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
        snapshot = await context.run_in_thread(store.open_snapshot)
        try:
            position = snapshot.batch.cut if source.is_changed_by_writes else snapshot.head
            batches = snapshot.scan(source)
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
            snapshot.close()


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
    )  # the types of the view's deltas, if the view is a plain copy of the table
    weighted = rows.append_column(table.weight_column, pa.array(np.ones(rows.num_rows, np.int64)))
    delta = Delta("rows", table.name, weighted, Token(context.store.uuid, position), time.time(), table)
    return event_formats.encode_delta(event_format, table, delta, is_last=last)


async def send_heartbeats(context: ServerContext) -> None:
    """Send a heartbeat to all subscribers at intervals, and evict old snapshots."""
    while not context.stopping.is_set():
        await asyncio.sleep(context.limits.heartbeat)
        context.hub.send_heartbeat()
        with suppress(ViewkeeperError):
            await context.run_in_thread(context.snapshots.evict)
