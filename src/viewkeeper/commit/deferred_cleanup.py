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

CLEANUP_NOTE = "afterwards"
"""The store's record of clean-up that failed: {time, failed: {what: error}, drop: [table]}."""

_log = logging.getLogger("viewkeeper")


class DeferredCleanup:
    """What a maintainer still has to clean up."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._failures: dict[str, str] = {}
        self._deferred: dict[str, Callable[[], object]] = {}
        self._pending_drops: dict[str, Table] = {}
        self._dropped_ids: set[int] = set()
        self.damage: CorruptState | None = None
        """Damage that clean-up came across: the next batch begins with it."""

    @property
    def failures(self) -> tuple[str, ...]:
        """What has not been done yet, and why."""
        return tuple(f"{what}: {error}" for what, error in self._failures.items())

    @contextmanager
    def attempt(self, label: str) -> Iterator[None]:
        """Do this; if it fails, say so and go on."""
        try:
            yield
        except Exception as error:
            if isinstance(error, CorruptState):
                self.damage = error
            self.record_failure(label, error)
        else:
            self.clear_failure(label)

    def run_or_defer(self, label: str, work: Callable[[], object]) -> None:
        """Do this, now or, if it fails, after a later batch."""
        self._deferred[label] = work
        with self.attempt(label):
            work()
            del self._deferred[label]

    def drop_rows(self, table: Table, point: str | None = None) -> None:
        """Free the rows of a table that the catalog no longer lists. What fails is left to the next maintainer too."""
        self._pending_drops[_drop_label(table)] = table
        self.run_or_defer(_drop_label(table), partial(self._drop_table_rows, table, point))

    def retry(self) -> None:
        """Try once more what is owed: by this maintainer, an earlier one, or whoever dropped a table."""
        noted = False
        with self.attempt("looking for what is left to do"):
            note = self._store.note(CLEANUP_NOTE)
            noted = note is not None
            for table in _noted_drops(note):
                self._deferred.setdefault(_drop_label(table), partial(self._drop_table_rows, table))
        for what, work in list(self._deferred.items()):
            self.run_or_defer(what, work)
        if noted and not self._failures:
            self._save_note()

    def _drop_table_rows(self, table: Table, point: str | None = None) -> None:
        if point is not None:
            failpoints.hit(point)
        catalog = self._store.catalog()
        if catalog.find_by_id(table.id) is None:
            self._store.drop_rows(table)
        self._dropped_ids.add(table.id)

    def record_failure(self, label: str, error: Exception) -> None:
        """A failure that has been dealt with: it is told, and that is all."""
        said = error.message if isinstance(error, ViewkeeperError) else f"{type(error).__name__}: {error}"
        level = logging.DEBUG if self._failures.get(label) == said else logging.WARNING  # once, while it stays the same
        _log.log(
            level, "%s: what came after a published batch failed and is tried again: %s: %s", self._url, label, said
        )
        self._failures[label] = said
        self._save_note()

    def clear_failure(self, label: str) -> None:
        """It has been done, if it was not before."""
        self._pending_drops.pop(label, None)
        if self._failures.pop(label, None) is not None:
            _log.info("%s: done after all: %s", self._url, label)
            self._save_note()

    def _save_note(self) -> None:
        try:
            others = {t.id: t for t in _noted_drops(self._store.note(CLEANUP_NOTE)) if t.id not in self._dropped_ids}
            drops = [t.to_json() for t in (others | {t.id: t for t in self._pending_drops.values()}).values()]
            some = bool(self._failures or drops)
            note = {"time": time.time(), "failed": dict(self._failures), "drop": drops} if some else None
            self._store.put_note(CLEANUP_NOTE, note)
        except Exception as error:  # the report and the log have it
            _log.warning("%s: no note of it can be left: %s", self._url, error)

    @property
    def _url(self) -> str:
        return self._store.url


def has_happened(store: Store, batch: Batch, error: Exception) -> bool:
    """Whether a commit that failed has published its batch all the same; PublicationUnknown if nobody says."""
    try:
        found = store.published_batch()
    except Exception as silent:
        raise PublicationUnknown(
            f"Whether batch {batch.number} of {store.url} is published is not known: {error} Then: {silent}"
        ) from error
    return found is not None and found.record.get("attempt") == batch.record["attempt"]


def describe_cleanup_note(note: Mapping[str, Any] | None) -> str | None:
    """The note in words; None if there is none."""
    if note is None:
        return None
    failed = {_drop_label(table): "not done yet" for table in _noted_drops(note)} | note["failed"]
    return "; ".join(f"{what}: {error}" for what, error in failed.items())


def _noted_drops(note: Mapping[str, Any] | None) -> list[Table]:
    return [Table.from_json(data) for data in note["drop"]] if note is not None else []


def _drop_label(table: Table) -> str:
    return f"dropping the rows of {table.name} (number {table.id})"
