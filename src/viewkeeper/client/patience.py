"""How long who follows a view waits: at most `timeout` for a change, with a mark every `progress` seconds."""

from __future__ import annotations

import time

from viewkeeper.model.schema import Table
from viewkeeper.read.subscribe import Delta, no_changes


class Patience:
    """Of one subscription, in seconds. `over`: nothing was heard for as long as was said."""

    def __init__(self, table: Table, timeout: float | None, progress: float | None) -> None:
        self._table, self._timeout, self._progress = table, timeout, progress
        self._heard = self._marked = time.monotonic()
        self._last: Delta | None = None
        self.over = False

    def left(self) -> float | None:
        """Until a mark is due or the time is over; None: without end."""
        now = time.monotonic()
        waits = [] if self._timeout is None else [self._heard + self._timeout - now]
        if self._progress is not None and self._last is not None:
            waits.append(self._marked + self._progress - now)
        return max(0.0, min(waits)) if waits else None

    def hear(self, delta: Delta) -> bool:
        """Whether what came is a change; a server's own sign of life is none."""
        self._last = delta
        if delta.kind == "progress":
            return False
        self._heard = self._marked = time.monotonic()
        return True

    def passed(self) -> Delta | None:
        """After a wait in which nothing came: the mark that is due."""
        now = time.monotonic()
        self.over = self._timeout is not None and now - self._heard >= self._timeout
        if self._progress is None or self._last is None or now - self._marked < self._progress:
            return None
        self._marked = now
        nothing = no_changes(self._table)
        return Delta("progress", self._table.name, nothing, self._last.token, time.time(), self._table)
