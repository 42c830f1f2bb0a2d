"""What a process knows of the database's state: the catalog and the published batch, asked for anew when too old.

A view is read at the batch that was published when the process last asked. That batch stays readable while fewer than
`VIEW_VERSIONS` later ones are published: whoever took longer than batches can take in that time asks again, and is told
by SnapshotGone when it was too slow. So a point read costs one call, and none is ever wrong.
"""

from __future__ import annotations

import threading
import time

from viewkeeper.errors import SnapshotGone
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper_hbase.layout.layout import VIEW_VERSIONS
from viewkeeper_hbase.metadata import DatabaseState, MetaTable, PublishedBatch

MAX_AGE = 0.05
"""Seconds."""

_SAFE_READ_TIME = 0.5
"""Seconds in which no maintainer publishes as many batches as views keep: one takes several calls."""


class StateCache:
    """Used from several threads."""

    def __init__(self, meta_table: MetaTable, state: DatabaseState, max_age: float) -> None:
        self._meta_table, self._max_age = meta_table, max_age
        self._lock = threading.Lock()
        self._state, self._read_at = state, time.monotonic()
        self._catalog = Catalog()
        self._published: PublishedBatch | None = None

    def state(self, *, refresh: bool = False) -> DatabaseState:
        """The state, at most as old as the cache allows; `now`: as it is."""
        if refresh or time.monotonic() - self._read_at > self._max_age:
            self.update(None)
        return self._state

    def update(self, state: DatabaseState | None) -> None:
        """Note a state that was just read or written; None asks for it."""
        asked = time.monotonic()
        found = state or self._meta_table.read_state()
        with self._lock:
            # Answers may overtake one another: what is known never goes back.
            if found.published >= self._state.published and found.catalog >= self._state.catalog:
                self._state, self._read_at = found, asked

    def expire(self) -> None:
        """What is known is out of date: whoever needs it next asks."""
        with self._lock:
            self._read_at = float("-inf")

    @property
    def cached_catalog(self) -> Catalog:
        """The catalog as it was when last asked for."""
        return self._catalog

    @property
    def is_fresh(self) -> bool:
        """Whether the state was just read, or left so by a batch of this process."""
        return time.monotonic() - self._read_at < MAX_AGE

    def catalog(self, *, refresh: bool = False) -> Catalog:
        if self.state(refresh=refresh).catalog != self._catalog.version:
            found = self._meta_table.read_catalog(self._catalog)
            with self._lock:
                if found.version > self._catalog.version:
                    self._catalog = found
        return self._catalog

    def published_batch(self, *, refresh: bool = True) -> PublishedBatch | None:
        """The published batch as it is now; else, at most as old as the cache allows."""
        number = self.state(refresh=refresh).published
        if number and (self._published is None or self._published.batch.number < number):
            found = self._meta_table.read_published_batch()
            if found is not None:
                with self._lock:
                    self._published = found
        return self._published

    @property
    def cached_batch(self) -> PublishedBatch | None:
        """The published batch as it was when last asked for, or published here."""
        return self._published

    def batch_before(self, number: int) -> PublishedBatch | None:
        """The batch that the one of this number follows, asked for only if it is not known."""
        published = self.cached_batch
        if published is not None and published.batch.number == number - 1:
            return published
        return self.published_batch()

    def set_published(self, published: PublishedBatch) -> None:
        """Note a batch that this process has just published."""
        with self._lock:
            if self._published is None or self._published.batch.number < published.batch.number:
                self._published = published

    def readable_batch(self, number: int | None = None) -> ReadableBatch:
        """The batch at which views are read: the published one, or one that was published when last asked."""
        published = self.state().published
        return ReadableBatch(self, published if number is None else number, self._read_at)


class ReadableBatch:
    """A batch that is being read."""

    def __init__(self, state_cache: StateCache, number: int, checked_at: float) -> None:
        self._state_cache, self.number, self._checked_at = state_cache, number, checked_at

    @property
    def time_range(self) -> tuple[int, int]:
        """The times of the cells that the batch can see."""
        return (0, self.number + 1)

    def check_readable(self) -> None:
        """Raise SnapshotGone if what was just read may have lost versions. Call it after reading."""
        if time.monotonic() - self._checked_at < _SAFE_READ_TIME:
            return
        asked = time.monotonic()
        published = self._state_cache.state(refresh=True).published
        # The next batch may be half written: its versions count.
        if published + 1 - self.number >= VIEW_VERSIONS:
            raise SnapshotGone(
                f"Batch {self.number} is no longer readable: {published - self.number} batches were published"
                " while it was read.",
                hint="Read again, or read less at once.",
            )
        self._checked_at = asked
