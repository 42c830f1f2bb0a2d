"""Rows over HTTP: one by its key, or a range of one state in pages.

ETag            the position at which the table or view last changed; If-None-Match then reads nothing
after=, level=  how new the state must be: worked out, for views of one table where this process does not maintain;
                else the request waits, in the event loop and not in a thread
                level=stale: of a suspended view, which else is refused (409), the rows that it had, marked by the
                header viewkeeper-suspended
cursor=         the next page of the same state
where=, …       some rows, some columns, another order (`selected`)
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from viewkeeper.errors import BadValue, RowAbsent, Timeout
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.schema import COUNT, Table
from viewkeeper.model.token import Token
from viewkeeper.read import freshness
from viewkeeper.read.access.key_ranges import Bounds
from viewkeeper.read.freshness import LATEST, Level
from viewkeeper.read.overlay import Latest
from viewkeeper.read.reads import Reads
from viewkeeper.read.rows import checked_key, outside, scan_range
from viewkeeper.read.state import Pins, Positions, Source
from viewkeeper.read.suspension import marked, refuse, refuse_behind, shown_state, told, when
from viewkeeper.server.context import Serving
from viewkeeper.server.endpoints import selection
from viewkeeper.server.errors import Refused
from viewkeeper.server.http import formats, json_values
from viewkeeper.server.http.paths import first_of, key_of
from viewkeeper.server.http.request import Asked, Reply
from viewkeeper.server.pinned_snapshots import Cursor
from viewkeeper.store.contract.commits import Pinned

PAGE = 1_000
"""Rows of a page, unless the request says how many."""

_LEASE_SECONDS = 0.25


async def one(serving: Serving, asked: Asked) -> Reply:
    """The row with a key."""
    media = formats.chosen(asked.header("accept"))
    table = serving.store.catalog().table(asked.name)
    key = checked_key(table, key_of(table, asked.key))
    latest = await _latest(serving, asked)
    if latest is not None:
        table = latest.table
        row, headers = await serving.call(latest.get, key), _token(serving, latest.position)
    else:
        table = await fresh(serving, asked)
        tag = tag_of(serving, table, media, asked)
        if asked.has(tag):
            return Reply(304, headers={"etag": tag or ""})
        row, headers = serving.store.get(table, key), _headers(serving, table, tag)
    serving.metrics.reads["get"].inc()
    if row is None:
        raise RowAbsent(f"{table.name} has no row with this key.")
    if asked.has_any:
        return Reply(304, headers=headers)
    if media == formats.JSON:
        return Reply(
            200, json_values.row_bytes(row, json_values.converters(table.outside, asked.native)), media, headers
        )
    rows = pa.Table.from_pylist([row], table.outside)
    return Reply(200, formats.writer(media, table.outside, asked.native).whole(rows, {}), media, headers)


async def page(serving: Serving, asked: Asked) -> Reply:
    """A page of rows in key order, or as `where`, `columns` and `order_by` say."""
    media = formats.chosen(asked.header("accept"))
    text = asked.one("cursor")
    latest = await _latest(serving, asked) if text is None else None
    if latest is not None:
        found = await serving.call(_page_ahead, serving, asked, latest, media)
        if found is not None:
            serving.metrics.reads["scan"].inc()
            return found
    table = await fresh(serving, asked)
    tag = tag_of(serving, table, media, asked) if text is None else None
    if asked.has(tag) or asked.has_any:
        return Reply(304, headers={"etag": tag or ""})
    limit = asked.number("limit", PAGE, most=serving.limits.page)
    serving.metrics.reads["scan"].inc()
    return await serving.call(_page, serving, asked, table, media, tag, text, limit)


def _page(
    serving: Serving, asked: Asked, table: Table, media: str, tag: str | None, text: str | None, limit: int
) -> Reply:
    chosen = selection.digest(asked)
    if text is None:
        low, high = scan_range(
            table,
            _given(table, asked.many("prefix")),
            _given(table, asked.many("start")),
            _given(table, asked.many("stop")),
            limit,
        )
        pinned, skip = serving.pins.newest(), 0
    else:
        if asked.many("prefix") or asked.many("start") or asked.many("stop"):
            raise Refused(400, "A cursor knows its range.", "Give the cursor without it, with a limit if you like.")
        cursor = Cursor.parse(text)
        if (cursor.uuid, cursor.table, cursor.chosen) != (serving.store.uuid, table.id, chosen):
            raise Refused(400, "The cursor is of another request.", "Use it with the request that it came from.")
        pinned = serving.pins.at(cursor.position)
        low, high, skip = cursor.start or None, cursor.stop, cursor.skip
    more = None
    try:
        current = pinned.catalog.table(table.name) if text is not None else table
        if chosen:
            found = _selected(serving, asked, pinned, current, (low, high), skip, limit)
            rows, more = found.rows, found.next
        else:
            batches = pinned.scan(current, start=low, stop=high, limit=limit + 1, at_cut=False)
            rows, more = _cut(serving, current, batches, limit, skip)
        epoch, position = shown_state(pinned.catalog.find(table.name), pinned.batch, pinned.head)
        following = None
        if more is not None:
            following = Cursor(serving.store.uuid, pinned.head, table.id, more[0], more[1], high, chosen).text()
        token = str(Token(serving.store.uuid, position))
        headers = {"viewkeeper-token": token, "viewkeeper-epoch": str(epoch)}
        headers |= _mark(pinned.catalog, table.name)
        rows = marked(rows, [pinned.catalog.find(table.name)])
        about = {"next": following, "epoch": epoch, "token": token, **_told(pinned.catalog, table.name)}
    finally:
        serving.pins.done(pinned, keep=more is not None)
    if following is not None:
        headers["viewkeeper-cursor"] = following
    if tag is not None:
        headers["etag"] = tag
    body = formats.writer(media, rows.schema, asked.native).whole(rows, about)
    return Reply(200, body, media, headers)


def _page_ahead(serving: Serving, asked: Asked, latest: Latest, media: str) -> Reply | None:
    """A view ahead of its batch, if a page holds it; the state of a second page is that of a batch."""
    table, limit = latest.table, asked.number("limit", PAGE, most=serving.limits.page)
    try:
        prefix, start, stop = (_given(table, asked.many(name)) for name in ("prefix", "start", "stop"))
        wanted = selection.wanted_of(asked, table, scan_range(table, prefix, start, stop, limit))
    except BaseException:
        latest.close()
        raise
    rows = latest.read(replace(wanted, limit=limit + 1))
    if rows.num_rows > limit:
        return None
    headers = _token(serving, latest.position)
    about = {"next": None, "epoch": latest.epoch, "token": headers["viewkeeper-token"]}
    body = formats.writer(media, rows.schema, asked.native).whole(rows, about)
    return Reply(200, body, media, {**headers, "viewkeeper-epoch": str(latest.epoch)})


def _selected(
    serving: Serving, asked: Asked, pinned: Pinned, table: Table, within: Bounds, skip: int, limit: int
) -> selection.Page:
    wanted = selection.wanted_of(asked, table, within)
    source: Source = Pins(serving.store, pinned, at_cut=False)
    if not table.is_view and not serving.store.capabilities.snapshot_scan:
        source = Positions(serving.store, pinned.head, pinned.batch)
    return selection.page_of(serving.store, source, wanted, within[0], skip, limit)


def _cut(
    serving: Serving, table: Table, batches: Iterable[pa.RecordBatch], limit: int, skip: int
) -> tuple[pa.Table, tuple[bytes, int] | None]:
    """The page, and where the next one begins: a key, and how many of its rows are in this page already.

    A bag's row may be there many times, so a page may end in the middle of it.
    """
    stored = pa.Table.from_batches(list(batches), table.arrow)
    if not table.is_bag:
        rows = outside(table, stored.slice(0, limit))
        if stored.num_rows <= limit:
            return rows, None
        return rows, (_key(serving, table, stored, limit), 0)
    ends = np.cumsum(stored[COUNT].to_numpy()) if stored.num_rows else np.zeros(0, np.int64)
    last = int(np.searchsorted(ends, skip + limit, side="left"))  # the row in which the page ends
    used = stored.slice(0, min(last + 1, stored.num_rows))
    rows = outside(table, used).slice(skip, limit)
    total = int(ends[-1]) if len(ends) else 0
    if skip + limit >= total:
        return rows, None
    if int(ends[last]) == skip + limit:
        return rows, (_key(serving, table, stored, last + 1), 0)
    before = int(ends[last - 1]) if last else 0
    return rows, (_key(serving, table, stored, last), skip + limit - before)


def _key(serving: Serving, table: Table, stored: pa.Table, place: int) -> bytes:
    found: bytes = serving.store.range_keys(table, stored.slice(place, 1))[0].as_py()
    return found


def _given(table: Table, texts: list[str]) -> tuple[Any, ...] | None:
    return first_of(table, texts) if texts else None


# -- how new -----------------------------------------------------------------------------------------------------------


async def _latest(serving: Serving, asked: Asked) -> Latest | None:
    """A view as new as asked for, if that needs no batch to be waited for: as an open database reads it."""
    level, after = _level(asked), asked.one("after")
    timeout = asked.seconds("timeout", freshness.TIMEOUT, serving.limits.seconds)
    reads: Reads = serving.db._reads
    if level is not LATEST and after is None and not reads.ahead:
        return None
    name = serving.store.catalog().table(asked.name).name
    return await serving.call(reads.latest, name, level, after, timeout)


def _level(asked: Asked) -> Level:
    level = asked.one("level")
    known = {one.value: one for one in Level}
    if level is not None and level not in known:
        raise BadValue(f"There is no level {level[:40]!r}.", hint=f"Levels: {', '.join(known)}.")
    return Level.ANY if level is None else known[level]


async def fresh(serving: Serving, asked: Asked) -> Table:
    """The table of a request, as new as it asks for; Suspended if it is a view that is not maintained."""
    catalog, level = serving.store.catalog(), _level(asked)
    table = catalog.table(asked.name)
    # The first page has said whether the view is suspended; the others are of the same state.
    stale = level is Level.STALE or asked.one("cursor") is not None
    refuse(catalog.find(table.name), stale=stale)
    after = serving.db._reads.not_before(table.name, level, asked.one("after"))
    if after is None and level is not LATEST:
        return table
    wanted = freshness.wanted_of(serving.store, catalog, table.name, level, after)
    if wanted is not None:
        await _wait(serving, table.name, wanted, asked.seconds("timeout", freshness.TIMEOUT, serving.limits.seconds))
    catalog = serving.store.catalog()
    refuse(catalog.find(table.name), stale=stale)
    return catalog.table(asked.name)


async def _wait(serving: Serving, name: str, wanted: int, timeout: float) -> None:
    store = serving.store
    deadline, looked = time.monotonic() + timeout, 0.0
    while not freshness.has(store, store.catalog(), name, wanted):
        now = time.monotonic()
        if now - looked > _LEASE_SECONDS:
            looked = now
            if store.lease_holder() is None:
                raise _late(store, name, wanted, "nobody maintains it", "Start `vk run`, or `vk serve --maintain`.")
        if now >= deadline:
            raise _late(store, name, wanted, f"{timeout:g} s were not enough", "Ask again, or with a longer timeout=.")
        with serving.waiting():
            await serving.hub.news(min(_LEASE_SECONDS, deadline - now))
    refuse_behind(store.catalog().find(name), wanted)


def _late(store: Any, name: str, wanted: int, why: str, hint: str) -> Timeout:
    return Timeout(f"{name} is at position {freshness.cut_of(store, name)}, {wanted} was asked for: {why}.", hint=hint)


# -- tags --------------------------------------------------------------------------------------------------------------


def tag_of(serving: Serving, table: Table, media: str, asked: Asked) -> str | None:
    """The ETag of a read that begins now."""
    position = serving.hub.changed_at(table)
    if position is None:
        return None
    form = media.rpartition("/")[2][:1] + ("n" if asked.native else "")
    return f'"{serving.store.uuid[:8]}-{serving.store.catalog().version}-{position}-{form}"'


def _headers(serving: Serving, table: Table, tag: str | None) -> dict[str, str]:
    found = {"viewkeeper-token": str(serving.db.token(table.name)), **_mark(serving.store.catalog(), table.name)}
    return found if tag is None else {**found, "etag": tag}


def _mark(catalog: Catalog, name: str) -> dict[str, str]:
    """The header of an answer with rows of a suspended view: since when it is suspended."""
    found = catalog.find(name)
    suspended = found.suspended if isinstance(found, View) else None
    return {} if suspended is None else {"viewkeeper-suspended": when(suspended)}


def _told(catalog: Catalog, name: str) -> dict[str, Any]:
    """What a JSON answer says of the suspension of a view."""
    found = catalog.find(name)
    suspended = found.suspended if isinstance(found, View) else None
    return {} if suspended is None else {"suspended": told(suspended)}


def _token(serving: Serving, position: int) -> dict[str, str]:
    return {"viewkeeper-token": str(Token(serving.store.uuid, position))}
