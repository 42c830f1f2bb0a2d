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
from viewkeeper.read.rows import outside
from viewkeeper.read.subscribe import Delta, calls, check_since, reset, suspension
from viewkeeper.read.suspension import refuse
from viewkeeper.server.context import Serving
from viewkeeper.server.http import event_formats, formats
from viewkeeper.server.http.request import Asked, Reply

_NOW = "now"
Event = tuple[int, bytes]
"""An event, and the position behind it."""


async def subscribe(serving: Serving, asked: Asked) -> Reply:
    """A table's or view's changes."""
    store = serving.store
    table = store.catalog().table(asked.name)
    media = formats.chosen(asked.header("accept"), (formats.EVENTS, formats.ARROW))
    form = (
        event_formats.ARROW_FORM
        if media == formats.ARROW
        else event_formats.SSE_NATIVE
        if asked.native
        else event_formats.SSE
    )
    given = asked.header("last-event-id") or asked.one("since")
    serving.check_subscribers()
    now = store.settled(table)  # a table that cannot be subscribed to says so now
    if given is None:
        refuse(store.catalog().of(table.id), stale=asked.one("level") == Level.STALE.value)
        return _reply(media, _with_rows(serving, table, form))
    since = now if given == _NOW else _position(serving, given)
    check_since(store, table, since)
    missed = calls(store, table, since, now) if since < now else iter(())
    first = await serving.call(_encoded, form, table, missed)  # what the log no longer has is a problem, not an event
    return _reply(media, _following(serving, table, form, max(since, now), first, missed))


def _reply(media: str, body: AsyncIterator[bytes]) -> Reply:
    return Reply(200, body, media, {"cache-control": "no-store", "x-accel-buffering": "no"})


def _position(serving: Serving, given: str | None) -> int:
    text = given or ""
    if text.isascii() and text.isdigit() and len(text) <= 20:
        text = str(Token(serving.store.uuid, int(text)))
    found = position_of(serving.store, text)
    if found is None:
        raise BadToken(f"{text[:60]!r} is no token.")
    return found


async def _with_rows(serving: Serving, table: Table, form: str) -> AsyncIterator[bytes]:
    """The rows of one state, then what follows it. The state is kept while the client takes them, and no longer."""
    with serving.subscribed():
        yield event_formats.opening(form, table)
        async with aclosing(_followed(serving, table, form, None)) as following:
            async for data in following:
                yield data


async def _following(
    serving: Serving, table: Table, form: str, upto: int, first: Event | None, missed: Iterator[tuple[int, Delta]]
) -> AsyncIterator[bytes]:
    """What was missed up to a position, then what follows it."""
    with serving.subscribed():
        yield event_formats.opening(form, table)
        found = first
        while found is not None:
            yield found[1]
            found = await serving.call(_encoded, form, table, missed)
        async with aclosing(_followed(serving, table, form, upto)) as following:
            async for data in following:
                yield data


async def _followed(serving: Serving, table: Table, form: str, since: int | None) -> AsyncGenerator[bytes, None]:
    """All rows unless there is a position to go on from, then what comes, and again when the view was made anew.

    What was missed is encoded as it is taken: nothing of it waits for a client that reads slowly."""
    subscriber, at = None, since or 0
    try:
        while True:
            if since is None:
                async with aclosing(_rows(serving, table, form)) as pieces:
                    async for at, data in pieces:  # noqa: B007 - the last one is where to go on
                        yield data
            subscriber, upto = serving.hub.join(table, form, at)
            serving.metrics.reads["changes"].inc()
            missed = calls(serving.store, table, at, upto) if at < upto else iter(())
            while (found := await serving.call(_encoded, form, table, missed)) is not None:
                at, data = found
                yield data
            if subscriber.suspended is not None:
                told = suspension(serving.store, table, subscriber.suspended, max(at, upto))
                yield event_formats.encode(form, table, told)
            if serving.stopping.is_set():  # who joins now was not there when goodbye was said
                yield event_formats.ending(form, table, None, Token(serving.store.uuid, at), event_formats.STOPPING)
                return
            while data := await subscriber.taken():
                yield data
            if not subscriber.reset:
                return
            serving.hub.leave(table, subscriber)
            table, since = serving.store.catalog().table_of(table.id) or table, None
            yield event_formats.encode(form, table, reset(serving.store, table, subscriber.after))
    except ViewkeeperError as error:
        yield event_formats.ending(form, table, error, Token(serving.store.uuid, at))
    finally:
        if subscriber is not None:
            serving.hub.leave(table, subscriber)


def _encoded(form: str, table: Table, deltas: Iterator[tuple[int, Delta]]) -> Event | None:
    """The next delta and its position."""
    found = next(deltas, None)
    return None if found is None else (found[0], event_formats.encode(form, table, found[1]))


async def _rows(serving: Serving, table: Table, form: str) -> AsyncGenerator[tuple[int, bytes], None]:
    """The rows of one state in pieces, each with the state's position."""
    store = serving.store
    source = store.told_by(table)
    if not source.is_stored:
        from viewkeeper.read.lazy.evaluate import read_regenerated

        rows, position = await serving.call(read_regenerated, store, source.name)
        yield position, _rows_event(serving, table, form, rows, position, True)
    else:
        pinned = await serving.call(store.pin)
        try:
            position = pinned.batch.cut if source.with_writes else pinned.head
            batches = pinned.scan(source)
            piece = await serving.call(_next_piece, batches, source)
            while True:
                following = await serving.call(_next_piece, batches, source) if piece.num_rows else piece
                last = not following.num_rows
                yield position, await serving.call(_rows_event, serving, table, form, piece, position, last)
                if last:
                    break
                piece = following
        finally:
            pinned.close()


def _next_piece(source: Any, table: Table) -> pa.Table:
    """About as many rows as an event has; none at the end."""
    found, count = [], 0
    for batch in source:
        found.append(batch)
        count += batch.num_rows
        if count >= event_formats.PIECE_ROWS:
            break
    return outside(table, pa.Table.from_batches(found, table.arrow))


def _rows_event(serving: Serving, table: Table, form: str, rows: pa.Table, position: int, last: bool) -> bytes:
    rows = rows.select(table.outside.names).cast(table.outside)  # as a view tells them that is just the table
    weighted = rows.append_column(table.weight, pa.array(np.ones(rows.num_rows, np.int64)))
    delta = Delta("rows", table.name, weighted, Token(serving.store.uuid, position), time.time(), table)
    return event_formats.encode(form, table, delta, last=last)


async def keep_alive(serving: Serving) -> None:
    """A sign of life to all subscribers, every so often; and old states are let go."""
    while not serving.stopping.is_set():
        await asyncio.sleep(serving.limits.heartbeat)
        serving.hub.beat()
        with suppress(ViewkeeperError):
            await serving.call(serving.pins.tidy)
