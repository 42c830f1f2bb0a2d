"""Snapshots that are kept open for readers of pages.

A page's cursor names the state (its log position) and where to continue. The snapshot itself is cached here, one for
all cursors of the same position, until no reader has used it for a while. An open snapshot costs the store space, so
their number and age are limited.

    cursor ::= base64url of the JSON  [database, position, table id, next key, rows to skip, end, selection digest]
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
from viewkeeper.server.errors import HttpStatusError
from viewkeeper.store.contract.store import Store, StoreSnapshot

IDLE_SECONDS, MAX_AGE_SECONDS, MAX_SNAPSHOTS = 60.0, 600.0, 32


@dataclass(frozen=True)
class PageCursor:
    """Where a paged read continues: from `start`, without its first `skip` rows, to `stop`."""

    uuid: str
    position: int
    table: int
    start: bytes
    skip: int
    stop: bytes | None
    selection: str = ""
    """The digest of the read's selection (`selection.selection_digest`)."""

    def to_text(self) -> str:
        stop = None if self.stop is None else self.stop.hex()
        data = [self.uuid, self.position, self.table, self.start.hex(), self.skip, stop, self.selection]
        return base64.urlsafe_b64encode(json.dumps(data, separators=(",", ":")).encode()).decode().rstrip("=")

    @staticmethod
    def parse(text: str) -> PageCursor:
        try:
            data = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
            uuid, position, table, start, skip, stop, selection = data
            numbers = (position, table, skip)
            texts = isinstance(uuid, str) and isinstance(selection, str)
            if not texts or any(type(n) is not int or not 0 <= n < 1 << 62 for n in numbers):
                raise ValueError
            end = None if stop is None else bytes.fromhex(stop)
            return PageCursor(uuid, position, table, bytes.fromhex(start), skip, end, selection)
        except (ValueError, TypeError, binascii.Error, RecursionError):
            raise HttpStatusError(400, f"{text[:60]!r} is no cursor.", "Use the one of the page before.") from None


@dataclass
class _CachedSnapshot:
    snapshot: StoreSnapshot
    created_at: float = field(default_factory=time.monotonic)
    used_at: float = field(default_factory=time.monotonic)
    readers: int = 0
    has_cursor: bool = False
    """Whether a cursor refers to it."""


class SnapshotCache:
    """The cached snapshots."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._snapshots: dict[int, _CachedSnapshot] = {}
        self._lock = threading.Lock()

    def acquire_newest(self) -> StoreSnapshot:
        """A snapshot of the current state; call `release` when it has been read."""
        head = self._store.head()
        with self._lock:
            self._evict()
            found = self._snapshots.get(head)
            if found is None:
                snapshot = self._store.open_snapshot()
                found = self._snapshots.setdefault(snapshot.head, _CachedSnapshot(snapshot))
                if found.snapshot is not snapshot:
                    snapshot.close()
            return self._acquire(found)

    def acquire_at(self, position: int) -> StoreSnapshot:
        """The snapshot of a cursor, or SnapshotGone."""
        with self._lock:
            self._evict()
            found = self._snapshots.get(position)
            if found is None:
                raise SnapshotGone(
                    f"The state at position {position} is no longer kept.",
                    hint=f"Read from the first page again, and each page within {IDLE_SECONDS:g} s of the one before.",
                )
            return self._acquire(found)

    def release(self, snapshot: StoreSnapshot, *, keep: bool) -> None:
        """End a read. `keep`: the reply has a cursor to this snapshot."""
        with self._lock:
            found = self._snapshots.get(snapshot.head)
            if found is not None and found.snapshot is snapshot:
                found.readers -= 1
                found.has_cursor = found.has_cursor or keep
                found.used_at = self._clock()
            self._evict()

    def evict(self) -> None:
        """Close snapshots that are no longer needed, also when there are no reads."""
        with self._lock:
            self._evict()

    def close(self) -> None:
        with self._lock:
            for cached in self._snapshots.values():
                cached.snapshot.close()
            self._snapshots.clear()

    def _acquire(self, cached: _CachedSnapshot) -> StoreSnapshot:
        cached.readers += 1
        cached.used_at = self._clock()
        return cached.snapshot

    def _evict(self) -> None:
        """Close snapshots without readers: those without a cursor, idle or old ones, and the longest unused of too
        many."""
        now = self._clock()
        idle = sorted(
            (k for k, v in self._snapshots.items() if not v.readers), key=lambda k: self._snapshots[k].used_at
        )
        excess = len(self._snapshots) - MAX_SNAPSHOTS
        for index, position in enumerate(idle):
            cached = self._snapshots[position]
            if (
                index < excess
                or not cached.has_cursor
                or now - cached.used_at > IDLE_SECONDS
                or now - cached.created_at > MAX_AGE_SECONDS
            ):
                cached.snapshot.close()
                del self._snapshots[position]
