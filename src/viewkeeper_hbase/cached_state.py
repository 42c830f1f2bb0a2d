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
from viewkeeper_hbase.metadata import MetaTable, Published, State

CACHE = 0.05
"""Seconds."""

_SURE = 0.5
"""Seconds in which no maintainer publishes as many batches as views keep: one takes several calls."""


class Known:
    """Used from several threads."""

    def __init__(self, records: MetaTable, state: State, cache: float) -> None:
        self._records, self._cache = records, cache
        self._lock = threading.Lock()
        self._state, self._at = state, time.monotonic()
        self._catalog = Catalog()
        self._published: Published | None = None

    def state(self, *, now: bool = False) -> State:
        """The state, at most as old as the cache allows; `now`: as it is."""
        if now or time.monotonic() - self._at > self._cache:
            self.learn(None)
        return self._state

    def learn(self, state: State | None) -> None:
        """Note a state that was just read or written; None asks for it."""
        asked = time.monotonic()
        found = state or self._records.state()
        with self._lock:
            # Answers may overtake one another: what is known never goes back.
            if found.published >= self._state.published and found.catalog >= self._state.catalog:
                self._state, self._at = found, asked

    def expire(self) -> None:
        """What is known is out of date: whoever needs it next asks."""
        with self._lock:
            self._at = float("-inf")

    @property
    def defined(self) -> Catalog:
        """The catalog as it was when last asked for."""
        return self._catalog

    @property
    def is_fresh(self) -> bool:
        """Whether the state was just read, or left so by a batch of this process."""
        return time.monotonic() - self._at < CACHE

    def catalog(self, *, now: bool = False) -> Catalog:
        if self.state(now=now).catalog != self._catalog.version:
            found = self._records.catalog(self._catalog)
            with self._lock:
                if found.version > self._catalog.version:
                    self._catalog = found
        return self._catalog

    def published(self, *, now: bool = True) -> Published | None:
        """The published batch as it is now; else, at most as old as the cache allows."""
        number = self.state(now=now).published
        if number and (self._published is None or self._published.batch.number < number):
            found = self._records.published()
            if found is not None:
                with self._lock:
                    self._published = found
        return self._published

    @property
    def last(self) -> Published | None:
        """The published batch as it was when last asked for, or published here."""
        return self._published

    def before(self, number: int) -> Published | None:
        """The batch that the one of this number follows, asked for only if it is not known."""
        published = self.last
        if published is not None and published.batch.number == number - 1:
            return published
        return self.published()

    def adopt(self, published: Published) -> None:
        """Note a batch that this process has just published."""
        with self._lock:
            if self._published is None or self._published.batch.number < published.batch.number:
                self._published = published

    def shown(self, number: int | None = None) -> Shown:
        """The batch at which views are read: the published one, or one that was published when last asked."""
        published = self.state().published
        return Shown(self, published if number is None else number, self._at)


class Shown:
    """A batch that is being read."""

    def __init__(self, known: Known, number: int, asked: float) -> None:
        self._known, self.number, self._asked = known, number, asked

    @property
    def span(self) -> tuple[int, int]:
        """The times of the cells that the batch can see."""
        return (0, self.number + 1)

    def check(self) -> None:
        """Raise SnapshotGone if what was just read may have lost versions. Call it after reading."""
        if time.monotonic() - self._asked < _SURE:
            return
        asked = time.monotonic()
        published = self._known.state(now=True).published
        # The next batch may be half written: its versions count.
        if published + 1 - self.number >= VIEW_VERSIONS:
            raise SnapshotGone(
                f"Batch {self.number} is no longer readable: {published - self.number} batches were published"
                " while it was read.",
                hint="Read again, or read less at once.",
            )
        self._asked = asked
