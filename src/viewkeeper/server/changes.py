"""Subscriptions over HTTP: a view's rows now, then every batch once, as Server-Sent Events or as an Arrow stream.

    since=TOKEN, Last-Event-ID    only what follows; a number is taken for a position of this database
    since=now                     only what comes from now on

    1  the rows that are there, from one state, in pieces       (without since)
    2  join the hub: it hands out what comes after a position P
    3  what lies between the own position and P, from the log
    4  the queue that the hub fills

A client that does not read holds nobody up: its queue has a limit (`hub`), and a write to it has a time limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from viewkeeper.errors import BadToken, ViewkeeperError
from viewkeeper.model.schema import WEIGHT, Table
from viewkeeper.model.token import Token
from viewkeeper.read.levels import position_of
from viewkeeper.read.reader import outside
from viewkeeper.read.subscribe import Delta, calls, check_since
from viewkeeper.server import events, formats
from viewkeeper.server.asked import Asked, Reply
from viewkeeper.server.serving import Serving

_NOW = "now"


async def subscribe(serving: Serving, asked: Asked) -> Reply:
    """A table's or view's changes."""
    store = serving.store
    table = store.catalog().table(asked.name)
    media = formats.chosen(asked.header("accept"), (formats.EVENTS, formats.ARROW))
    form = events.ARROW_FORM if media == formats.ARROW else events.SSE_NATIVE if asked.native else events.SSE
    given = asked.header("last-event-id") or asked.one("since")
    serving.take_subscriber()
    since = None if given in (None, _NOW) else _position(serving, given)
    store.settled(table)  # a table that cannot be subscribed to says so now
    if since is not None:
        check_since(store, table, since)
    elif given is None:
        return _reply(media, _with_rows(serving, table, form))
    return _reply(media, _following(serving, table, form, since, await _caught_up(serving, table, form, since)))


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


class _Joined:
    """A subscriber, and what it has to read by itself."""

    def __init__(self, subscriber: Any, missed: list[bytes]) -> None:
        self.subscriber, self.missed = subscriber, missed


async def _caught_up(serving: Serving, table: Table, form: str, since: int | None) -> _Joined:
    subscriber, upto = serving.hub.join(table, form, since)
    try:
        if since is None or since >= upto:
            return _Joined(subscriber, [])
        missed = await serving.call(_missed, serving, table, form, since, upto)
        return _Joined(subscriber, missed)
    except BaseException:
        serving.hub.leave(table, subscriber)
        raise


def _missed(serving: Serving, table: Table, form: str, since: int, upto: int) -> list[bytes]:
    return [events.encode(form, table, delta) for _, delta in calls(serving.store, table, since, upto)]


async def _with_rows(serving: Serving, table: Table, form: str) -> AsyncIterator[bytes]:
    """The rows of one state, then what follows it. The state is kept while the client takes them, and no longer."""
    store = serving.store
    yield events.opening(form, table)
    if not table.is_stored:
        from viewkeeper.read.regenerate import read_regenerated

        rows, position = await serving.call(read_regenerated, store, table.name)
        pieces: list[pa.Table] = [rows]
        for place, piece in enumerate(pieces):
            yield _rows_event(serving, table, form, piece, position, place == len(pieces) - 1)
    else:
        pinned = await serving.call(store.pin)
        try:
            position = pinned.head if table.is_view else pinned.batch.cut
            source = pinned.scan(table)
            piece = await serving.call(_next_piece, source, table)
            while True:
                following = await serving.call(_next_piece, source, table) if piece.num_rows else piece
                last = not following.num_rows
                yield await serving.call(_rows_event, serving, table, form, piece, position, last)
                if last:
                    break
                piece = following
        finally:
            pinned.close()
    try:
        joined = await _caught_up(serving, table, form, position)
    except ViewkeeperError as error:
        yield events.ending(form, table, error, Token(store.uuid, position))
        return
    async for data in _queue(serving, table, joined):
        yield data


def _next_piece(source: Any, table: Table) -> pa.Table:
    """About as many rows as an event has; none at the end."""
    found, count = [], 0
    for batch in source:
        found.append(batch)
        count += batch.num_rows
        if count >= events.PIECE_ROWS:
            break
    return outside(table, pa.Table.from_batches(found, table.arrow))


def _rows_event(serving: Serving, table: Table, form: str, rows: pa.Table, position: int, last: bool) -> bytes:
    weighted = rows.append_column(WEIGHT, pa.array(np.ones(rows.num_rows, np.int64)))
    delta = Delta("rows", table.name, weighted, Token(serving.store.uuid, position), time.time(), table)
    return events.encode(form, table, delta, last=last)


async def _following(
    serving: Serving, table: Table, form: str, since: int | None, joined: _Joined
) -> AsyncIterator[bytes]:
    yield events.opening(form, table)
    async for data in _queue(serving, table, joined):
        yield data


async def _queue(serving: Serving, table: Table, joined: _Joined) -> AsyncIterator[bytes]:
    subscriber = joined.subscriber
    serving.metrics.reads["changes"].inc()
    try:
        for data in joined.missed:
            yield data
        joined.missed.clear()
        while data := await subscriber.taken():
            yield data
    finally:
        serving.hub.leave(table, subscriber)


async def keep_alive(serving: Serving) -> None:
    """A sign of life to all subscribers, every so often; and old states are let go."""
    while True:
        await asyncio.sleep(serving.limits.heartbeat)
        serving.hub.beat()
        with suppress(ViewkeeperError):
            await serving.call(serving.pins.tidy)
