"""The push of a database in its maintainer's process: begins and ends with the lease.

agreement    the note of `vk hbase push enable`; read every few seconds, so a maintainer need not be restarted
status       a note for other processes: how changes are captured at present, rewritten when that changes
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress

from viewkeeper.errors import StoreError, Unsupported, ViewkeeperError
from viewkeeper_hbase.cached_state import StateCache
from viewkeeper_hbase.layout.layout_cache import Layouts
from viewkeeper_hbase.metadata import MetaTable
from viewkeeper_hbase.push import settings
from viewkeeper_hbase.push.arrivals import Arrivals
from viewkeeper_hbase.push.completeness import Completeness
from viewkeeper_hbase.push.inflow import PushInflow
from viewkeeper_hbase.push.settings import PushAgreement
from viewkeeper_hbase.push.spool import Spool

LOG = logging.getLogger("viewkeeper.push")

WINDOW_POLL_INTERVAL = 0.1
"""Seconds between two polls for changes, when HBase pushes none."""

PUSH_POLL_INTERVAL, IDLE_POLL_INTERVAL = 1.0, 5.0
"""Seconds between two polls while push notifies of changes, and after a long time without changes."""

_AGREEMENT_INTERVAL = 5.0
_SERVER_WAIT_TIMEOUT = 1.0
_STATUS_INTERVAL = 60.0


class PushAttachment:
    """Attaches an inflow to the capture's arrivals according to the agreement."""

    def __init__(
        self, meta_table: MetaTable, state_cache: StateCache, layouts: Layouts, state: str, capture: str
    ) -> None:
        self._meta_table, self._state_cache, self._layouts = meta_table, state_cache, layouts
        self._state, self._capture = state, capture
        self.arrivals = Arrivals()
        self.arrivals.on_completeness = self._record_completeness
        self._agreement: PushAgreement | None = None
        self._agreement_read_at = 0.0
        self._last_status: tuple[bool, tuple[str, ...], float] | None = None
        self._unwanted_cache: tuple[int, list[str]] = -1, []
        self._last_arrival = time.monotonic()
        self._is_attached = False
        self.on_changes: Callable[[], None] | None = None
        self.poll_interval = WINDOW_POLL_INTERVAL

    @property
    def is_complete(self) -> bool:
        """Whether push was complete at the last check; then every later change notifies the maintainer."""
        return self._last_status is not None and self._last_status[0]

    def begin(self) -> None:
        """Start push capture: this process maintains the database from now on."""
        self._is_attached = True
        self.attach_agreement(at_once=True)
        if self._capture == "push" and self.arrivals.inflow is None:
            raise Unsupported(
                f"capture=push, and HBase pushes nothing to the database {self._meta_table.namespace}.",
                hint="vk hbase push enable makes it so; capture=auto does without.",
            )

    def attach_agreement(self, *, at_once: bool = False) -> None:
        """Read the agreement and attach an inflow for it, if it has changed."""
        if (
            not self._is_attached
            or self._capture == "poll"
            or (not at_once and time.monotonic() - self._agreement_read_at < _AGREEMENT_INTERVAL)
        ):
            return
        self._agreement_read_at = time.monotonic()
        note = self._meta_table.read_note(settings.AGREEMENT_NOTE)
        agreement = None if note is None else PushAgreement.from_json(note)
        if agreement == self._agreement:
            return
        self._detach()
        if agreement is None:
            return
        directory = settings.push_directory(self._state)
        try:
            inflow = PushInflow(agreement, Spool(directory), settings.read_secret(directory), self._unwanted_tables)
        except ViewkeeperError as error:
            if self._capture == "push":
                raise
            LOG.warning("changes are not pushed: %s", error)
            self._write_status(Completeness(False, str(error)))
            self._agreement = agreement
            return
        self._agreement, self.arrivals.inflow = agreement, inflow
        published = self._state_cache.published_batch()
        if published is not None:
            self.arrivals.record_commit(published.batch.cut, published.batch.capture_marks.values())
        inflow.on_changes(self._notify_changes)
        self._wait_for_servers(inflow)

    def end(self) -> None:
        self._is_attached = False
        self._detach()

    def truncate(self, up_to: int) -> None:
        if self.arrivals.inflow is not None:
            self.arrivals.inflow.truncate(up_to)

    def _wait_for_servers(self, inflow: PushInflow) -> None:
        """Wait for the region servers. They reconnect a moment after a receiver restarts, so a first batch can use
        push."""
        deadline = time.monotonic() + _SERVER_WAIT_TIMEOUT
        while inflow.receivers and not inflow.receivers[0].servers and time.monotonic() < deadline:
            time.sleep(0.02)

    def _unwanted_tables(self) -> list[str]:
        """Return the tables whose changes are not needed: views, and the meta table."""
        catalog = self._state_cache.cached_catalog
        version, names = self._unwanted_cache
        if version != catalog.version or not names:
            views = (v.table for v in catalog.views if v.table.is_stored)
            names = [self._meta_table.table, *(self._layouts.layout_of(table).name for table in views)]
            self._unwanted_cache = catalog.version, names
        return names

    def _notify_changes(self) -> None:
        self._last_arrival = time.monotonic()
        if self.on_changes is not None:
            self.on_changes()

    def _record_completeness(self, completeness: Completeness) -> None:
        idle = (time.monotonic() - self._last_arrival) / 2
        self.poll_interval = (
            min(max(idle, PUSH_POLL_INTERVAL), IDLE_POLL_INTERVAL) if completeness.complete else WINDOW_POLL_INTERVAL
        )
        if (
            self._last_status is None
            or self._last_status[:2] != (completeness.complete, completeness.lost)
            or time.monotonic() - self._last_status[2] > _STATUS_INTERVAL
        ):
            self._write_status(completeness)

    def _write_status(self, completeness: Completeness) -> None:
        if self._last_status is not None and self._last_status[0] != completeness.complete:
            LOG.info("changes are %s", "pushed" if completeness.complete else f"scanned for: {completeness.reason}")
        if completeness.lost and (self._last_status is None or self._last_status[1] != completeness.lost):
            LOG.warning("every table is compared with its image: %s", completeness.reason)
        self._last_status = completeness.complete, completeness.lost, time.monotonic()
        inflow = self.arrivals.inflow
        with suppress(StoreError):
            self._meta_table.put_note(
                settings.STATUS_NOTE,
                {
                    "by": "push" if completeness.complete else "windows",
                    "reason": completeness.reason,
                    "time": time.time(),
                    "spooled": 0 if inflow is None else inflow.segment_count,
                },
            )

    def _detach(self) -> None:
        inflow, self.arrivals.inflow, self._agreement = self.arrivals.inflow, None, None
        self._last_status, self.poll_interval = None, WINDOW_POLL_INTERVAL
        if inflow is not None:
            inflow.close()
            with suppress(StoreError):
                self._meta_table.put_note(settings.STATUS_NOTE, None)


def describe_capture(meta_table: MetaTable) -> str:
    """Describe how the maintainer finds changes at present, from its status note."""
    note = meta_table.read_note(settings.STATUS_NOTE)
    if note is None:
        return "windows of time"
    return "pushed by HBase" if note["by"] == "push" else f"windows of time: {note['reason']}"
