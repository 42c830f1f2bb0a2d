"""A database's push in the process that maintains it: begun with the lease, ended with it, and looked after meanwhile.

agreed?      the note of `vk hbase push enable`; looked for every few seconds, so a maintainer need not be restarted
status       how changes are captured just now is left as a note for others, whenever that changes
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress

from viewkeeper.errors import StoreError, Unsupported, ViewkeeperError
from viewkeeper_hbase.cached_state import Known
from viewkeeper_hbase.layout.layout_cache import Layouts
from viewkeeper_hbase.metadata import MetaTable
from viewkeeper_hbase.push import settings
from viewkeeper_hbase.push.arrivals import Arrivals
from viewkeeper_hbase.push.completeness import Reached
from viewkeeper_hbase.push.inflow import Inflow
from viewkeeper_hbase.push.settings import Agreed
from viewkeeper_hbase.push.spool import Spool

LOG = logging.getLogger("viewkeeper.push")

POLL_PAUSE = 0.1
"""Seconds between two looks for changes, where nobody tells."""

PUSH_PAUSE, IDLE_PAUSE = 1.0, 5.0
"""Seconds between two where what is pushed tells, and when nothing has come for long."""

_LOOKED = 5.0
_WAITED = 1.0
_TOLD = 60.0


class Attached:
    """Joins the feed's arrivals with what is agreed."""

    def __init__(self, records: MetaTable, known: Known, layouts: Layouts, state: str, capture: str) -> None:
        self._records, self._known, self._layouts = records, known, layouts
        self._state, self._capture = state, capture
        self.arrivals = Arrivals()
        self.arrivals.on_reach = self._reached
        self._agreed: Agreed | None = None
        self._looked = 0.0
        self._told: tuple[bool, tuple[str, ...], float] | None = None
        self._without: tuple[int, list[str]] = -1, []
        self._came = time.monotonic()
        self._began = False
        self.on_news: Callable[[], None] | None = None
        self.pause = POLL_PAUSE

    @property
    def whole(self) -> bool:
        """Whether everything came, when last asked: what comes then tells of itself."""
        return self._told is not None and self._told[0]

    def begin(self) -> None:
        """This process maintains from now on."""
        self._began = True
        self.follow(now=True)
        if self._capture == "push" and self.arrivals.inflow is None:
            raise Unsupported(
                f"capture=push, and HBase pushes nothing to the database {self._records.namespace}.",
                hint="vk hbase push enable makes it so; capture=auto does without.",
            )

    def follow(self, *, now: bool = False) -> None:
        """Attach what is agreed by now, if it is another than before."""
        if not self._began or self._capture == "poll" or (not now and time.monotonic() - self._looked < _LOOKED):
            return
        self._looked = time.monotonic()
        note = self._records.note(settings.NOTE)
        agreed = None if note is None else Agreed.from_json(note)
        if agreed == self._agreed:
            return
        self._detach()
        if agreed is None:
            return
        directory = settings.place(self._state)
        try:
            inflow = Inflow(agreed, Spool(directory), settings.secret(directory), self._unwanted)
        except ViewkeeperError as error:
            if self._capture == "push":
                raise
            LOG.warning("changes are not pushed: %s", error)
            self._tell(Reached(False, str(error)))
            self._agreed = agreed
            return
        self._agreed, self.arrivals.inflow = agreed, inflow
        published = self._known.published()
        if published is not None:
            self.arrivals.committed(published.batch.cut, published.batch.seen.values())
        inflow.on_news(self._news)
        self._wait_for_servers(inflow)

    def end(self) -> None:
        self._began = False
        self._detach()

    def truncate(self, upto: int) -> None:
        if self.arrivals.inflow is not None:
            self.arrivals.inflow.truncate(upto)

    def _wait_for_servers(self, inflow: Inflow) -> None:
        """Region servers call again a moment after a receiver has come back: a first batch need not do without them."""
        deadline = time.monotonic() + _WAITED
        while inflow.receivers and not inflow.receivers[0].servers and time.monotonic() < deadline:
            time.sleep(0.02)

    def _unwanted(self) -> list[str]:
        """The tables whose changes nobody asks for: views, and the database's own."""
        catalog = self._known.defined
        version, names = self._without
        if version != catalog.version or not names:
            views = (v.table for v in catalog.views if v.table.is_stored)
            names = [self._records.table, *(self._layouts.of(table).name for table in views)]
            self._without = catalog.version, names
        return names

    def _news(self) -> None:
        self._came = time.monotonic()
        if self.on_news is not None:
            self.on_news()

    def _reached(self, found: Reached) -> None:
        idle = (time.monotonic() - self._came) / 2
        self.pause = min(max(idle, PUSH_PAUSE), IDLE_PAUSE) if found.complete else POLL_PAUSE
        if (
            self._told is None
            or self._told[:2] != (found.complete, found.lost)
            or time.monotonic() - self._told[2] > _TOLD
        ):
            self._tell(found)

    def _tell(self, found: Reached) -> None:
        if self._told is not None and self._told[0] != found.complete:
            LOG.info("changes are %s", "pushed" if found.complete else f"scanned for: {found.reason}")
        if found.lost and (self._told is None or self._told[1] != found.lost):
            LOG.warning("every table is compared with its image: %s", found.reason)
        self._told = found.complete, found.lost, time.monotonic()
        inflow = self.arrivals.inflow
        with suppress(StoreError):
            self._records.put_note(
                settings.STATUS,
                {
                    "by": "push" if found.complete else "windows",
                    "reason": found.reason,
                    "time": time.time(),
                    "spooled": 0 if inflow is None else inflow.segments,
                },
            )

    def _detach(self) -> None:
        inflow, self.arrivals.inflow, self._agreed = self.arrivals.inflow, None, None
        self._told, self.pause = None, POLL_PAUSE
        if inflow is not None:
            inflow.close()
            with suppress(StoreError):
                self._records.put_note(settings.STATUS, None)


def capture_text(records: MetaTable) -> str:
    """How who maintains finds changes just now, as its note says."""
    note = records.note(settings.STATUS)
    if note is None:
        return "windows of time"
    return "pushed by HBase" if note["by"] == "push" else f"windows of time: {note['reason']}"
