"""A process's cache of the database's state: the catalog and the published batch, read again when they are too old.

A view is read at the batch that was published when the process last read the state. This batch stays readable
while fewer than `VIEW_VERSIONS` later ones are published. A reader that took longer than the fastest
`VIEW_VERSIONS` batches could take reads the state again, and raises SnapshotGone if its batch is no longer
readable. So a point read costs one call, and no read returns a wrong result.
"""

from __future__ import annotations

import threading
import time

from viewkeeper.errors import SnapshotGone
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper_hbase.layout.layout import VIEW_VERSIONS
from viewkeeper_hbase.metadata import DatabaseState, MetaTable, PublishedBatch

MAX_AGE = 0.05
"""Default maximum age of the cached state, in seconds."""

_SAFE_READ_TIME = 0.5
"""Seconds in which no maintainer can publish as many batches as views keep versions: a batch takes several calls."""


class StateCache:
    """The cached state of one database. It may be used from any thread."""

    def __init__(self, meta_table: MetaTable, state: DatabaseState, max_age: float) -> None:
        self._meta_table, self._max_age = meta_table, max_age
        self._lock = threading.Lock()
        self._state, self._read_at = state, time.monotonic()
        self._catalog = Catalog()
        self._published: PublishedBatch | None = None

    def state(self, *, refresh: bool = False) -> DatabaseState:
        """Return the state, at most as old as the cache allows; with `refresh`, read it now."""
        if refresh or time.monotonic() - self._read_at > self._max_age:
            self.update(None)
        return self._state

    def update(self, state: DatabaseState | None) -> None:
        """Store a state that was just read or written; None reads it."""
        read_at = time.monotonic()
        found = state or self._meta_table.read_state()
        with self._lock:
            # Answers may arrive out of order: the cached state never goes back.
            if found.published >= self._state.published and found.catalog >= self._state.catalog:
                self._state, self._read_at = found, read_at

    def expire(self) -> None:
        """Declare the cached state out of date, so that its next use reads it."""
        with self._lock:
            self._read_at = float("-inf")

    @property
    def cached_catalog(self) -> Catalog:
        """The catalog as it was last read."""
        return self._catalog

    @property
    def is_fresh(self) -> bool:
        """Whether the state was read just now, or written by a batch of this process."""
        return time.monotonic() - self._read_at < MAX_AGE

    def catalog(self, *, refresh: bool = False) -> Catalog:
        if self.state(refresh=refresh).catalog != self._catalog.version:
            found = self._meta_table.read_catalog(self._catalog)
            with self._lock:
                if found.version > self._catalog.version:
                    self._catalog = found
        return self._catalog

    def published_batch(self, *, refresh: bool = True) -> PublishedBatch | None:
        """Return the published batch; without `refresh`, it is at most as old as the cache allows."""
        number = self.state(refresh=refresh).published
        if number and (self._published is None or self._published.batch.number < number):
            found = self._meta_table.read_published_batch()
            if found is not None:
                with self._lock:
                    self._published = found
        return self._published

    @property
    def cached_batch(self) -> PublishedBatch | None:
        """The published batch as it was last read, or published by this process."""
        return self._published

    def batch_before(self, number: int) -> PublishedBatch | None:
        """Return the predecessor of batch `number`; it is read only if it is not cached."""
        published = self.cached_batch
        if published is not None and published.batch.number == number - 1:
            return published
        return self.published_batch()

    def set_published(self, published: PublishedBatch) -> None:
        """Store a batch that this process has just published."""
        with self._lock:
            if self._published is None or self._published.batch.number < published.batch.number:
                self._published = published

    def readable_batch(self, number: int | None = None) -> ReadableBatch:
        """Return the batch at which views are read: `number`, or by default the published batch of the cached state."""
        published = self.state().published
        return ReadableBatch(self, published if number is None else number, self._read_at)


class ReadableBatch:
    """A batch at which views are being read."""

    def __init__(self, state_cache: StateCache, number: int, checked_at: float) -> None:
        self._state_cache, self.number, self._checked_at = state_cache, number, checked_at

    @property
    def time_range(self) -> tuple[int, int]:
        """The time range of the cells that belong to the batch's state."""
        return (0, self.number + 1)

    def check_readable(self) -> None:
        """Raise SnapshotGone if the rows just read may have lost versions. A reader calls it after reading."""
        if time.monotonic() - self._checked_at < _SAFE_READ_TIME:
            return
        checked_at = time.monotonic()
        published = self._state_cache.state(refresh=True).published
        # The next batch may be partly written, so its versions count too.
        if published + 1 - self.number >= VIEW_VERSIONS:
            raise SnapshotGone(
                f"Batch {self.number} is no longer readable: {published - self.number} batches were published"
                " while it was read.",
                hint="Read again, or read less at once.",
            )
        self._checked_at = checked_at
