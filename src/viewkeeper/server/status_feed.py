"""The state of everything for the pages that look at it: one look a second for all of them, or fewer if looks are long.

    event: hello     all of it, to a page that has just come
    event: pulse     what changed since the last second: views, tables, totals, batches that were published

The same looks feed the metrics of batches and merges.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any

from viewkeeper.read.status import Status, database_status
from viewkeeper.server.context import Serving
from viewkeeper.server.http import event_formats, formats
from viewkeeper.server.http.request import Asked, Reply
from viewkeeper.server.hub import Subscriber

SECONDS = 1.0
_SHARE = 0.1
"""How much of the time looks may take."""
_KEPT_BATCHES = 120
_log = logging.getLogger("viewkeeper.server")


def pause_after(took: float) -> float:
    """Seconds until the next look, when the last one took so many: one at thousands of views takes long."""
    return max(SECONDS, took / _SHARE)


class Pulse:
    """Looks at the database while somebody watches, and follows its batches always."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._watchers: set[Subscriber] = set()
        self._views: dict[str, dict[str, Any]] = {}
        self._tables: dict[str, dict[str, Any]] = {}
        self._batches: deque[dict[str, Any]] = deque(maxlen=_KEPT_BATCHES)
        batch = serving.store.published()
        self._epoch = 0 if batch is None else batch.number
        self._totals: dict[str, Any] = {}

    async def run(self) -> None:
        took = 0.0
        while True:
            await asyncio.sleep(pause_after(took))
            began = time.monotonic()
            try:
                await self._beat()
            except Exception as error:
                _log.warning("The pulse failed, and is tried again: %s", error)
            took = time.monotonic() - began

    async def watch(self, serving: Serving, asked: Asked) -> Reply:
        """The state of everything, and how it changes."""
        formats.chosen(asked.header("accept"), (formats.EVENTS,))
        serving.check_subscribers()
        return Reply(200, self._watched(), formats.EVENTS, {"cache-control": "no-store", "x-accel-buffering": "no"})

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    def say_goodbye(self, reason: str) -> None:
        for watcher in self._watchers:
            watcher.end(event_formats.event("end", {"detail": reason}))

    async def _watched(self) -> AsyncIterator[bytes]:
        watcher = Subscriber(event_formats.SSE, 0)
        with self._serving.subscribed():
            await self._look()
            yield b"retry: 1000\n\n" + event_formats.event("hello", self._whole())
            self._watchers.add(watcher)
            try:
                while data := await watcher.taken():
                    yield data
            finally:
                self._watchers.discard(watcher)

    # -- looking ------------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        new = await self._serving.call(self._follow)
        if not self._watchers:
            return
        views, tables = dict(self._views), dict(self._tables)
        await self._look()
        told = {
            **self._totals,
            "batches": new,
            "views": [v for name, v in self._views.items() if views.get(name) != v],
            "tables": [t for name, t in self._tables.items() if tables.get(name) != t],
            "gone": [name for name in (*views, *tables) if name not in self._views and name not in self._tables],
            "loads": self._serving.loads(),
        }
        data = event_formats.event("pulse", told)
        for watcher in list(self._watchers):
            watcher.give(data)  # a page that does not keep up misses beats, and sees the next

    def _follow(self) -> list[dict[str, Any]]:
        """Batches since the last look, for the timeline and the metrics."""
        batch = self._serving.store.published()
        maintainer = self._serving.db._maintainer
        if batch is None or (batch.number == self._epoch and maintainer is None):
            return []
        listed = maintainer.publisher.recent.listed() if maintainer is not None else batch.record.get("batches", ())
        new = [dict(b) for b in listed if b["epoch"] > self._epoch and b["epoch"] <= batch.number]
        self._epoch = max([self._epoch, *(b["epoch"] for b in new)])
        for one in new:
            self._serving.metrics.batch(one)
        self._batches.extend(new)
        merges = batch.record.get("merges", {})
        self._serving.metrics.merged(merges.get("count", 0), merges.get("seconds", 0.0))
        return new

    async def _look(self) -> None:
        now: Status = await self._serving.call(
            lambda: database_status(self._serving.store, self._serving.store.catalog())
        )
        rows, catalog = self._serving.hub.rows, self._serving.store.catalog()
        ids = {t.name: t.home for t in (*catalog.tables, *(v.table for v in catalog.shown_views))}
        kinds = {v.table.name: v for v in catalog.shown_views}
        self._views = {
            v.name: {
                **_listed(v),
                "changed": rows.get(ids.get(v.name, -1), 0),
                "unique": not kinds[v.name].table.is_bag,
            }
            for v in now.views
            if v.name in kinds
        }
        self._tables = {t.name: {**_listed(t), "changed": rows.get(ids.get(t.name, -1), 0)} for t in now.tables}
        self._totals = _totals(now, self._serving)

    def _whole(self) -> Mapping[str, Any]:
        return {
            **self._totals,
            "views": list(self._views.values()),
            "tables": list(self._tables.values()),
            "batches": list(self._batches),
            "loads": self._serving.loads(),
        }


def _listed(status: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(status).items() if name != "sql"}  # it does not change


def _totals(now: Status, serving: Serving) -> dict[str, Any]:
    batch = serving.store.published()
    merges = {} if batch is None else dict(batch.record.get("merges", {}))
    return {
        "time": time.time(),
        "url": now.url,
        "epoch": now.epoch,
        "position": now.position,
        "lag_changes": now.lag_changes,
        "lag_seconds": now.lag_seconds,
        "catch_up_seconds": now.catch_up_seconds,
        "state_bytes": now.state_bytes,
        "log_bytes": serving.store.log_bytes(),
        "maintainer": now.maintainer,
        "error": now.error,
        "recent": now.recent,
        "stages": [vars(stage) for stage in now.stages],
        "merges": merges,
        "subscribers": serving.hub.subscribers,
        "read_only": serving.settings.read_only,
    }
