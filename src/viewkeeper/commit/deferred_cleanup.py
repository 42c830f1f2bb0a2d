"""After publication: what is left to do never fails the batch, which has happened.

    of(what)        a piece of clean-up; if it fails the batch is published all the same
    owe(what, …)    one that is not done again by itself: kept, and tried again after a later batch
    drop(table)     … the rows of a dropped table: also tried again by the next maintainer

Nothing of it is silent. A failure is in the batch's report, in Python's log, and in a note of the store, from which
`status` and `doctor` show it, until the same piece of work has been done.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from viewkeeper import failpoints
from viewkeeper.errors import CorruptState, PublicationUnknown, ViewkeeperError
from viewkeeper.model.schema import Table
from viewkeeper.store.contract.store import Batch, Store

NOTE = "afterwards"
"""The store's record of clean-up that failed: {time, failed: {what: error}, drop: [table]}."""

_log = logging.getLogger("viewkeeper")


class Afterwards:
    """What a maintainer still has to clean up."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._failed: dict[str, str] = {}
        self._owed: dict[str, Callable[[], object]] = {}
        self._drops: dict[str, Table] = {}
        self._dropped: set[int] = set()
        self.damage: CorruptState | None = None
        """Damage that clean-up came across: the next batch begins with it."""

    @property
    def failed(self) -> tuple[str, ...]:
        """What has not been done yet, and why."""
        return tuple(f"{what}: {error}" for what, error in self._failed.items())

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Do this; if it fails, say so and go on."""
        try:
            yield
        except Exception as error:
            if isinstance(error, CorruptState):
                self.damage = error
            self.add(what, error)
        else:
            self.done(what)

    def owe(self, what: str, work: Callable[[], object]) -> None:
        """Do this, now or, if it fails, after a later batch."""
        self._owed[what] = work
        with self.of(what):
            work()
            del self._owed[what]

    def drop(self, table: Table, point: str | None = None) -> None:
        """Free the rows of a table that the catalog no longer lists. What fails is left to the next maintainer too."""
        self._drops[_dropping(table)] = table
        self.owe(_dropping(table), partial(self._drop, table, point))

    def again(self) -> None:
        """Try once more what is owed: by this maintainer, an earlier one, or whoever dropped a table."""
        noted = False
        with self.of("looking for what is left to do"):
            note = self._store.note(NOTE)
            noted = note is not None
            for table in _drops(note):
                self._owed.setdefault(_dropping(table), partial(self._drop, table))
        for what, work in list(self._owed.items()):
            self.owe(what, work)
        if noted and not self._failed:
            self._note()

    def _drop(self, table: Table, point: str | None = None) -> None:
        if point is not None:
            failpoints.point(point)
        catalog = self._store.catalog()
        if catalog.of(table.id) is None:
            self._store.drop_rows(table)
        self._dropped.add(table.id)

    def add(self, what: str, error: Exception) -> None:
        """A failure that has been dealt with: it is told, and that is all."""
        said = error.message if isinstance(error, ViewkeeperError) else f"{type(error).__name__}: {error}"
        level = logging.DEBUG if self._failed.get(what) == said else logging.WARNING  # once, while it stays the same
        _log.log(level, "%s: what came after a published batch failed and is tried again: %s: %s", self._at, what, said)
        self._failed[what] = said
        self._note()

    def done(self, what: str) -> None:
        """It has been done, if it was not before."""
        self._drops.pop(what, None)
        if self._failed.pop(what, None) is not None:
            _log.info("%s: done after all: %s", self._at, what)
            self._note()

    def _note(self) -> None:
        try:
            others = {t.id: t for t in _drops(self._store.note(NOTE)) if t.id not in self._dropped}
            drops = [t.to_json() for t in (others | {t.id: t for t in self._drops.values()}).values()]
            some = bool(self._failed or drops)
            note = {"time": time.time(), "failed": dict(self._failed), "drop": drops} if some else None
            self._store.put_note(NOTE, note)
        except Exception as error:  # the report and the log have it
            _log.warning("%s: no note of it can be left: %s", self._at, error)

    @property
    def _at(self) -> str:
        return self._store.url


def has_happened(store: Store, batch: Batch, error: Exception) -> bool:
    """Whether a commit that failed has published its batch all the same; PublicationUnknown if nobody says."""
    try:
        found = store.published()
    except Exception as silent:
        raise PublicationUnknown(
            f"Whether batch {batch.number} of {store.url} is published is not known: {error} Then: {silent}"
        ) from error
    return found is not None and found.record.get("attempt") == batch.record["attempt"]


def in_words(note: Mapping[str, Any] | None) -> str | None:
    """The note in words; None if there is none."""
    if note is None:
        return None
    failed = {_dropping(table): "not done yet" for table in _drops(note)} | note["failed"]
    return "; ".join(f"{what}: {error}" for what, error in failed.items())


def _drops(note: Mapping[str, Any] | None) -> list[Table]:
    return [Table.from_json(data) for data in note["drop"]] if note is not None else []


def _dropping(table: Table) -> str:
    return f"dropping the rows of {table.name} (number {table.id})"
