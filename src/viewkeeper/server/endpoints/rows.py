"""Rows over HTTP: one by its key, or a range of one state in pages.

ETag            the position at which the table or view last changed; a matching If-None-Match reads nothing
after=, level=  how fresh the state must be: an overlay for views of one table, if this process does not maintain;
                otherwise the request waits, in the event loop and not in a thread
                level=stale: the old rows of a suspended view, which is otherwise refused (409), marked by the
                header viewkeeper-suspended
cursor=         the next page of the same state
where=, …       some rows, some columns, another order (`selection`)
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
from viewkeeper.read.access.key_ranges import KeyBounds
from viewkeeper.read.freshness import LATEST, Level
from viewkeeper.read.overlay import OverlaidView
from viewkeeper.read.reads import Reads
from viewkeeper.read.rows import check_key, scan_range, to_visible_rows
from viewkeeper.read.state import PositionState, ReadState, SnapshotState
from viewkeeper.read.suspension import (
    mark_suspended_rows,
    refuse_suspended,
    refuse_suspended_before,
    shown_epoch_and_position,
    suspension_summary,
    suspension_time,
)
from viewkeeper.server.context import ServerContext
from viewkeeper.server.endpoints import selection
from viewkeeper.server.errors import HttpStatusError
from viewkeeper.server.http import formats, json_values
from viewkeeper.server.http.paths import key_of, key_prefix_of
from viewkeeper.server.http.request import Reply, Request
from viewkeeper.server.pinned_snapshots import PageCursor
from viewkeeper.store.contract.commits import StoreSnapshot

PAGE_ROWS = 1_000
"""Default number of rows of a page."""

_LEASE_CHECK_SECONDS = 0.25


async def get_row(context: ServerContext, request: Request) -> Reply:
    """The row with a key."""
    media = formats.choose_media_type(request.header("accept"))
    table = context.store.catalog().table(request.name)
    key = check_key(table, key_of(table, request.key))
    latest = await _open_latest(context, request)
    if latest is not None:
        table = latest.table
        row, headers = await context.run_in_thread(latest.get, key), _token_header(context, latest.position)
    else:
        table = await wait_for_fresh_table(context, request)
        tag = etag_of(context, table, media, request)
        if request.has_etag(tag):
            return Reply(304, headers={"etag": tag or ""})
        row, headers = context.store.get(table, key), _row_headers(context, table, tag)
    context.metrics.reads["get"].inc()
    if row is None:
        raise RowAbsent(f"{table.name} has no row with this key.")
    if request.has_any_etag:
        return Reply(304, headers=headers)
    if media == formats.JSON:
        return Reply(
            200,
            json_values.encode_row(row, json_values.column_converters(table.external_schema, request.native)),
            media,
            headers,
        )
    rows = pa.Table.from_pylist([row], table.external_schema)
    return Reply(
        200, formats.create_writer(media, table.external_schema, request.native).write_all(rows, {}), media, headers
    )


async def get_page(context: ServerContext, request: Request) -> Reply:
    """A page of rows in key order, or as `where`, `columns` and `order_by` say."""
    media = formats.choose_media_type(request.header("accept"))
    cursor_text = request.parameter("cursor")
    latest = await _open_latest(context, request) if cursor_text is None else None
    if latest is not None:
        reply = await context.run_in_thread(_read_latest_page, context, request, latest, media)
        if reply is not None:
            context.metrics.reads["scan"].inc()
            return reply
    table = await wait_for_fresh_table(context, request)
    tag = etag_of(context, table, media, request) if cursor_text is None else None
    if request.has_etag(tag) or request.has_any_etag:
        return Reply(304, headers={"etag": tag or ""})
    limit = request.number("limit", PAGE_ROWS, maximum=context.limits.page)
    context.metrics.reads["scan"].inc()
    return await context.run_in_thread(_read_page, context, request, table, media, tag, cursor_text, limit)


def _read_page(
    context: ServerContext,
    request: Request,
    table: Table,
    media: str,
    etag: str | None,
    cursor_text: str | None,
    limit: int,
) -> Reply:
    digest = selection.selection_digest(request)
    if cursor_text is None:
        low, high = scan_range(
            table,
            _optional_key_prefix(table, request.parameter_values("prefix")),
            _optional_key_prefix(table, request.parameter_values("start")),
            _optional_key_prefix(table, request.parameter_values("stop")),
            limit,
        )
        snapshot, skip = context.snapshots.acquire_newest(), 0
    else:
        if request.parameter_values("prefix") or request.parameter_values("start") or request.parameter_values("stop"):
            raise HttpStatusError(
                400, "A cursor knows its range.", "Give the cursor without it, with a limit if you like."
            )
        cursor = PageCursor.parse(cursor_text)
        if (cursor.uuid, cursor.table, cursor.selection) != (context.store.uuid, table.id, digest):
            raise HttpStatusError(
                400, "The cursor is of another request.", "Use it with the request that it came from."
            )
        snapshot = context.snapshots.acquire_at(cursor.position)
        low, high, skip = cursor.start or None, cursor.stop, cursor.skip
    next_start = None
    try:
        current = snapshot.catalog.table(table.name) if cursor_text is not None else table
        if digest:
            found = _read_selected_page(context, request, snapshot, current, (low, high), skip, limit)
            rows, next_start = found.rows, found.next
        else:
            batches = snapshot.scan(current, start=low, stop=high, limit=limit + 1, at_cut=False)
            rows, next_start = _split_page(context, current, batches, limit, skip)
        epoch, position = shown_epoch_and_position(snapshot.catalog.find(table.name), snapshot.batch, snapshot.head)
        next_cursor = None
        if next_start is not None:
            next_cursor = PageCursor(
                context.store.uuid, snapshot.head, table.id, next_start[0], next_start[1], high, digest
            ).to_text()
        token = str(Token(context.store.uuid, position))
        headers = {"viewkeeper-token": token, "viewkeeper-epoch": str(epoch)}
        headers |= _suspension_header(snapshot.catalog, table.name)
        rows = mark_suspended_rows(rows, [snapshot.catalog.find(table.name)])
        metadata = {
            "next": next_cursor,
            "epoch": epoch,
            "token": token,
            **_suspension_json(snapshot.catalog, table.name),
        }
    finally:
        context.snapshots.release(snapshot, keep=next_start is not None)
    if next_cursor is not None:
        headers["viewkeeper-cursor"] = next_cursor
    if etag is not None:
        headers["etag"] = etag
    body = formats.create_writer(media, rows.schema, request.native).write_all(rows, metadata)
    return Reply(200, body, media, headers)


def _read_latest_page(context: ServerContext, request: Request, latest: OverlaidView, media: str) -> Reply | None:
    """A page of a view with its overlay, if one page holds all rows; further pages would need a published state."""
    table, limit = latest.table, request.number("limit", PAGE_ROWS, maximum=context.limits.page)
    try:
        prefix, start, stop = (
            _optional_key_prefix(table, request.parameter_values(name)) for name in ("prefix", "start", "stop")
        )
        row_request = selection.parse_row_request(request, table, scan_range(table, prefix, start, stop, limit))
    except BaseException:
        latest.close()
        raise
    rows = latest.read(replace(row_request, limit=limit + 1))
    if rows.num_rows > limit:
        return None
    headers = _token_header(context, latest.position)
    metadata = {"next": None, "epoch": latest.epoch, "token": headers["viewkeeper-token"]}
    body = formats.create_writer(media, rows.schema, request.native).write_all(rows, metadata)
    return Reply(200, body, media, {**headers, "viewkeeper-epoch": str(latest.epoch)})


def _read_selected_page(
    context: ServerContext,
    request: Request,
    snapshot: StoreSnapshot,
    table: Table,
    bounds: KeyBounds,
    skip: int,
    limit: int,
) -> selection.RowPage:
    row_request = selection.parse_row_request(request, table, bounds)
    state: ReadState = SnapshotState(context.store, snapshot, at_cut=False)
    if not table.is_view and not context.store.capabilities.snapshot_scan:
        state = PositionState(context.store, snapshot.head, snapshot.batch)
    return selection.read_page(context.store, state, row_request, bounds[0], skip, limit)


def _split_page(
    context: ServerContext, table: Table, batches: Iterable[pa.RecordBatch], limit: int, skip: int
) -> tuple[pa.Table, tuple[bytes, int] | None]:
    """The page, and where the next page begins: a key, and how many of the key's rows are in this page already.

    A bag's row may occur many times, so a page may end between its copies.
    """
    stored = pa.Table.from_batches(list(batches), table.arrow)
    if not table.is_bag:
        rows = to_visible_rows(table, stored.slice(0, limit))
        if stored.num_rows <= limit:
            return rows, None
        return rows, (_range_key(context, table, stored, limit), 0)
    ends = np.cumsum(stored[COUNT].to_numpy()) if stored.num_rows else np.zeros(0, np.int64)
    last = int(np.searchsorted(ends, skip + limit, side="left"))  # the row in which the page ends
    used = stored.slice(0, min(last + 1, stored.num_rows))
    rows = to_visible_rows(table, used).slice(skip, limit)
    total = int(ends[-1]) if len(ends) else 0
    if skip + limit >= total:
        return rows, None
    if int(ends[last]) == skip + limit:
        return rows, (_range_key(context, table, stored, last + 1), 0)
    before = int(ends[last - 1]) if last else 0
    return rows, (_range_key(context, table, stored, last), skip + limit - before)


def _range_key(context: ServerContext, table: Table, stored: pa.Table, row_index: int) -> bytes:
    found: bytes = context.store.range_keys(table, stored.slice(row_index, 1))[0].as_py()
    return found


def _optional_key_prefix(table: Table, texts: list[str]) -> tuple[Any, ...] | None:
    return key_prefix_of(table, texts) if texts else None


# -- freshness ---------------------------------------------------------------------------------------------------------


async def _open_latest(context: ServerContext, request: Request) -> OverlaidView | None:
    """A view that is fresh enough without waiting for a batch, as an open database reads it; None otherwise."""
    level, after = _requested_level(request), request.parameter("after")
    timeout = request.seconds("timeout", freshness.TIMEOUT, context.limits.seconds)
    reads: Reads = context.db._reads
    if level is not LATEST and after is None and not reads.has_shown_ahead:
        return None
    name = context.store.catalog().table(request.name).name
    return await context.run_in_thread(reads.open_latest, name, level, after, timeout)


def _requested_level(request: Request) -> Level:
    level = request.parameter("level")
    levels = {item.value: item for item in Level}
    if level is not None and level not in levels:
        raise BadValue(f"There is no level {level[:40]!r}.", hint=f"Levels: {', '.join(levels)}.")
    return Level.ANY if level is None else levels[level]


async def wait_for_fresh_table(context: ServerContext, request: Request) -> Table:
    """The table of a request, once it is fresh enough; raises Suspended for a suspended view."""
    catalog, level = context.store.catalog(), _requested_level(request)
    table = catalog.table(request.name)
    # The first page has reported whether the view is suspended; later pages are of the same state.
    stale = level is Level.STALE or request.parameter("cursor") is not None
    refuse_suspended(catalog.find(table.name), stale=stale)
    after = context.db._reads.require_shown(table.name, level, request.parameter("after"))
    if after is None and level is not LATEST:
        return table
    position = freshness.required_position(context.store, catalog, table.name, level, after)
    if position is not None:
        await _wait_for_position(
            context, table.name, position, request.seconds("timeout", freshness.TIMEOUT, context.limits.seconds)
        )
    catalog = context.store.catalog()
    refuse_suspended(catalog.find(table.name), stale=stale)
    return catalog.table(request.name)


async def _wait_for_position(context: ServerContext, name: str, position: int, timeout: float) -> None:
    store = context.store
    deadline, checked = time.monotonic() + timeout, 0.0
    while not freshness.has_position(store, store.catalog(), name, position):
        now = time.monotonic()
        if now - checked > _LEASE_CHECK_SECONDS:
            checked = now
            if store.lease_holder() is None:
                raise _late_error(
                    store, name, position, "nobody maintains it", "Start `vk run`, or `vk serve --maintain`."
                )
        if now >= deadline:
            raise _late_error(
                store, name, position, f"{timeout:g} s were not enough", "Ask again, or with a longer timeout=."
            )
        with context.cancel_on_stop():
            await context.hub.wait_for_commit(min(_LEASE_CHECK_SECONDS, deadline - now))
    refuse_suspended_before(store.catalog().find(name), position)


def _late_error(store: Any, name: str, position: int, reason: str, hint: str) -> Timeout:
    return Timeout(
        f"{name} is at position {freshness.cut_of(store, name)}, {position} was asked for: {reason}.", hint=hint
    )


# -- tags --------------------------------------------------------------------------------------------------------------


def etag_of(context: ServerContext, table: Table, media: str, request: Request) -> str | None:
    """The ETag of a read that begins now."""
    position = context.hub.last_change_position(table)
    if position is None:
        return None
    format_code = media.rpartition("/")[2][:1] + ("n" if request.native else "")
    return f'"{context.store.uuid[:8]}-{context.store.catalog().version}-{position}-{format_code}"'


def _row_headers(context: ServerContext, table: Table, etag: str | None) -> dict[str, str]:
    headers = {
        "viewkeeper-token": str(context.db.token(table.name)),
        **_suspension_header(context.store.catalog(), table.name),
    }
    return headers if etag is None else {**headers, "etag": etag}


def _suspension_header(catalog: Catalog, name: str) -> dict[str, str]:
    """The header of a reply with rows of a suspended view: the time of its suspension."""
    found = catalog.find(name)
    suspended = found.suspended if isinstance(found, View) else None
    return {} if suspended is None else {"viewkeeper-suspended": suspension_time(suspended)}


def _suspension_json(catalog: Catalog, name: str) -> dict[str, Any]:
    """The member of a JSON reply that describes the view's suspension."""
    found = catalog.find(name)
    suspended = found.suspended if isinstance(found, View) else None
    return {} if suspended is None else {"suspended": suspension_summary(suspended)}


def _token_header(context: ServerContext, position: int) -> dict[str, str]:
    return {"viewkeeper-token": str(Token(context.store.uuid, position))}
