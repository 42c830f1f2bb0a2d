"""States that are kept for readers who page through them.

A page's cursor names the state (its log position) and where to go on; the state itself is kept here, one for all
cursors of the same position, until nobody asked for it for a while. A kept state costs the store space, so there are
only so many, and none grows old.

    cursor ::= base64url of the JSON  [database, position, table id, next key, rows to leave out, end, what is selected]
"""

from __future__ import annotations

import base64
import binascii
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from viewkeeper.errors import SnapshotGone
from viewkeeper.server.errors import Refused
from viewkeeper.store.contract.store import Pinned, Store

IDLE_SECONDS, OLDEST_SECONDS, MOST = 60.0, 600.0, 32


@dataclass(frozen=True)
class Cursor:
    """Where a paged read goes on: from `start` on, without its first `skip` rows, to `stop`."""

    uuid: str
    position: int
    table: int
    start: bytes
    skip: int
    stop: bytes | None
    chosen: str = ""
    """Of a read by conditions: which (`selected.digest`)."""

    def text(self) -> str:
        stop = None if self.stop is None else self.stop.hex()
        data = [self.uuid, self.position, self.table, self.start.hex(), self.skip, stop, self.chosen]
        return base64.urlsafe_b64encode(json.dumps(data, separators=(",", ":")).encode()).decode().rstrip("=")

    @staticmethod
    def parse(text: str) -> Cursor:
        try:
            data = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
            uuid, position, table, start, skip, stop, chosen = data
            numbers = (position, table, skip)
            texts = isinstance(uuid, str) and isinstance(chosen, str)
            if not texts or any(type(n) is not int or not 0 <= n < 1 << 62 for n in numbers):
                raise ValueError
            end = None if stop is None else bytes.fromhex(stop)
            return Cursor(uuid, position, table, bytes.fromhex(start), skip, end, chosen)
        except (ValueError, TypeError, binascii.Error, RecursionError):
            raise Refused(400, f"{text[:60]!r} is no cursor.", "Use the one of the page before.") from None


@dataclass
class _Kept:
    pinned: Pinned
    made: float = field(default_factory=time.monotonic)
    used: float = field(default_factory=time.monotonic)
    readers: int = 0
    wanted: bool = False
    """Whether a cursor names it."""


class Pins:
    """The states that are kept."""

    def __init__(self, store: Store, *, now: Callable[[], float] = time.monotonic) -> None:
        self._store, self._now = store, now
        self._kept: dict[int, _Kept] = {}
        self._lock = threading.Lock()

    def newest(self) -> Pinned:
        """The state as it is now; `done` when it has been read."""
        head = self._store.head()
        with self._lock:
            self._tidy()
            found = self._kept.get(head)
            if found is None:
                pinned = self._store.pin()
                found = self._kept.setdefault(pinned.head, _Kept(pinned))
                if found.pinned is not pinned:
                    pinned.close()
            return self._used(found)

    def at(self, position: int) -> Pinned:
        """The state of a cursor, or SnapshotGone."""
        with self._lock:
            self._tidy()
            found = self._kept.get(position)
            if found is None:
                raise SnapshotGone(
                    f"The state at position {position} is no longer kept.",
                    hint=f"Read from the first page again, and each page within {IDLE_SECONDS:g} s of the one before.",
                )
            return self._used(found)

    def done(self, pinned: Pinned, *, keep: bool) -> None:
        """A read is over. `keep`: a cursor was given out for it."""
        with self._lock:
            found = self._kept.get(pinned.head)
            if found is not None and found.pinned is pinned:
                found.readers -= 1
                found.wanted = found.wanted or keep
                found.used = self._now()
            self._tidy()

    def tidy(self) -> None:
        """Let go of what is no longer needed, also when nobody reads any more."""
        with self._lock:
            self._tidy()

    def close(self) -> None:
        with self._lock:
            for kept in self._kept.values():
                kept.pinned.close()
            self._kept.clear()

    def _used(self, kept: _Kept) -> Pinned:
        kept.readers += 1
        kept.used = self._now()
        return kept.pinned

    def _tidy(self) -> None:
        """Let go of states that nobody reads: unwanted, idle or old ones, and the longest unused of too many."""
        now = self._now()
        idle = sorted((k for k, v in self._kept.items() if not v.readers), key=lambda k: self._kept[k].used)
        over = len(self._kept) - MOST
        for place, position in enumerate(idle):
            kept = self._kept[position]
            if place < over or not kept.wanted or now - kept.used > IDLE_SECONDS or now - kept.made > OLDEST_SECONDS:
                kept.pinned.close()
                del self._kept[position]
