"""The status for the pages that watch it: read once a second for all of them, or less often if a read takes long.

    event: hello     the whole status, to a page that has just connected
    event: pulse     what changed since the last read: views, tables, totals, published batches

The same reads feed the metrics of batches and compactions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any

from viewkeeper.read.status import Status, database_status
from viewkeeper.server.context import ServerContext
from viewkeeper.server.http import event_formats, formats
from viewkeeper.server.http.request import Reply, Request
from viewkeeper.server.hub import Subscriber

MIN_PAUSE_SECONDS = 1.0
_MAX_BUSY_SHARE = 0.1
"""Maximum share of the time that reads of the status may take."""
_BATCH_HISTORY = 120
_log = logging.getLogger("viewkeeper.server")


def refresh_pause(seconds: float) -> float:
    """Seconds until the next read, when the last one took `seconds`: with thousands of views a read takes long."""
    return max(MIN_PAUSE_SECONDS, seconds / _MAX_BUSY_SHARE)


class StatusFeed:
    """Reads the status while pages watch, and follows the batches always."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._watchers: set[Subscriber] = set()
        self._views: dict[str, dict[str, Any]] = {}
        self._tables: dict[str, dict[str, Any]] = {}
        self._batches: deque[dict[str, Any]] = deque(maxlen=_BATCH_HISTORY)
        batch = context.store.published_batch()
        self._epoch = 0 if batch is None else batch.number
        self._totals: dict[str, Any] = {}

    async def run(self) -> None:
        duration = 0.0
        while True:
            await asyncio.sleep(refresh_pause(duration))
            start = time.monotonic()
            try:
                await self._publish_changes()
            except Exception as error:
                _log.warning("The pulse failed, and is tried again: %s", error)
            duration = time.monotonic() - start

    async def watch(self, context: ServerContext, request: Request) -> Reply:
        """The state of everything, and how it changes."""
        formats.choose_media_type(request.header("accept"), (formats.EVENTS,))
        context.check_subscribers()
        return Reply(
            200, self._stream_status(), formats.EVENTS, {"cache-control": "no-store", "x-accel-buffering": "no"}
        )

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    def end_streams(self, reason: str) -> None:
        for watcher in self._watchers:
            watcher.end(event_formats.encode_event("end", {"detail": reason}))

    async def _stream_status(self) -> AsyncIterator[bytes]:
        watcher = Subscriber(event_formats.SSE, 0)
        with self._context.count_subscriber():
            await self._read_status()
            yield b"retry: 1000\n\n" + event_formats.encode_event("hello", self._full_state())
            self._watchers.add(watcher)
            try:
                while data := await watcher.wait_for_events():
                    yield data
            finally:
                self._watchers.discard(watcher)

    # -- reads --------------------------------------------------------------------------------------------------------

    async def _publish_changes(self) -> None:
        new = await self._context.run_in_thread(self._read_new_batches)
        if not self._watchers:
            return
        views, tables = dict(self._views), dict(self._tables)
        await self._read_status()
        changes = {
            **self._totals,
            "batches": new,
            "views": [v for name, v in self._views.items() if views.get(name) != v],
            "tables": [t for name, t in self._tables.items() if tables.get(name) != t],
            "gone": [name for name in (*views, *tables) if name not in self._views and name not in self._tables],
            "loads": self._context.running_loads(),
        }
        data = event_formats.encode_event("pulse", changes)
        for watcher in list(self._watchers):
            watcher.enqueue(data)  # a page that does not keep up misses pulses, and sees the next

    def _read_new_batches(self) -> list[dict[str, Any]]:
        """The batches since the last read, for the timeline and the metrics."""
        batch = self._context.store.published_batch()
        maintainer = self._context.db._maintainer
        if batch is None or (batch.number == self._epoch and maintainer is None):
            return []
        batches = (
            maintainer.publisher.history.listed_batches() if maintainer is not None else batch.record.get("batches", ())
        )
        new = [dict(b) for b in batches if b["epoch"] > self._epoch and b["epoch"] <= batch.number]
        self._epoch = max([self._epoch, *(b["epoch"] for b in new)])
        for new_batch in new:
            self._context.metrics.record_batch(new_batch)
        self._batches.extend(new)
        merges = batch.record.get("merges", {})
        self._context.metrics.record_merges(merges.get("count", 0), merges.get("seconds", 0.0))
        return new

    async def _read_status(self) -> None:
        status: Status = await self._context.run_in_thread(
            lambda: database_status(self._context.store, self._context.store.catalog())
        )
        rows, catalog = self._context.hub.changed_rows, self._context.store.catalog()
        ids = {t.name: t.storage_id for t in (*catalog.tables, *(v.table for v in catalog.user_views_and_indexes))}
        kinds = {v.table.name: v for v in catalog.user_views_and_indexes}
        self._views = {
            v.name: {
                **_status_fields(v),
                "changed": rows.get(ids.get(v.name, -1), 0),
                "unique": not kinds[v.name].table.is_bag,
            }
            for v in status.views
            if v.name in kinds
        }
        self._tables = {
            t.name: {**_status_fields(t), "changed": rows.get(ids.get(t.name, -1), 0)} for t in status.tables
        }
        self._totals = _totals(status, self._context)

    def _full_state(self) -> Mapping[str, Any]:
        return {
            **self._totals,
            "views": list(self._views.values()),
            "tables": list(self._tables.values()),
            "batches": list(self._batches),
            "loads": self._context.running_loads(),
        }


def _status_fields(status: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(status).items() if name != "sql"}  # it does not change


def _totals(status: Status, context: ServerContext) -> dict[str, Any]:
    batch = context.store.published_batch()
    merges = {} if batch is None else dict(batch.record.get("merges", {}))
    return {
        "time": time.time(),
        "url": status.url,
        "epoch": status.epoch,
        "position": status.position,
        "lag_changes": status.lag_changes,
        "lag_seconds": status.lag_seconds,
        "catch_up_seconds": status.catch_up_seconds,
        "state_bytes": status.state_bytes,
        "log_bytes": context.store.log_bytes(),
        "maintainer": status.maintainer,
        "error": status.error,
        "recent": status.recent,
        "stages": [vars(stage) for stage in status.stages],
        "merges": merges,
        "subscribers": context.hub.subscribers,
        "read_only": context.settings.read_only,
    }
