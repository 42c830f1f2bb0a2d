"""Deferred cleanup: work after publication. Its failure cannot fail the batch, which is published.

    attempt(label)           cleanup that every later run of the caller repeats
    run_or_defer(label, …)   cleanup that nothing else repeats: kept on failure, and tried again after a later batch
    drop_rows(table)         deletes the rows of a dropped table; on failure the next maintainer tries again too

A failure is reported in the batch's report, in Python's log, and in a note of the store, which `status` and `doctor`
show, until the same piece of work succeeds.
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
"""Name of the store's note about failed cleanup: {time, failed: {label: error}, drop: [table]}."""

_log = logging.getLogger("viewkeeper")


class DeferredCleanup:
    """The cleanup that one maintainer has still to do."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._failures: dict[str, str] = {}
        self._deferred: dict[str, Callable[[], object]] = {}
        self._pending_drops: dict[str, Table] = {}
        self._dropped_ids: set[int] = set()
        self.damage: CorruptState | None = None
        """Damage that cleanup found; the maintainer repairs it after this batch or at the start of the next."""

    @property
    def failures(self) -> tuple[str, ...]:
        """The cleanup that failed and is not done yet, each with its error."""
        return tuple(f"{label}: {error}" for label, error in self._failures.items())

    @contextmanager
    def attempt(self, label: str) -> Iterator[None]:
        """Run the block; record its failure and continue."""
        try:
            yield
        except Exception as error:
            if isinstance(error, CorruptState):
                self.damage = error
            self.record_failure(label, error)
        else:
            self.clear_failure(label)

    def run_or_defer(self, label: str, work: Callable[[], object]) -> None:
        """Run `work` now; if it fails, run it again after a later batch."""
        self._deferred[label] = work
        with self.attempt(label):
            work()
            del self._deferred[label]

    def drop_rows(self, table: Table, point: str | None = None) -> None:
        """Delete the rows of a table that the catalog no longer lists.

        A failure is recorded in the store's note, so that the next maintainer tries again too.
        """
        self._pending_drops[_drop_label(table)] = table
        self.run_or_defer(_drop_label(table), partial(self._drop_table_rows, table, point))

    def retry(self) -> None:
        """Run deferred cleanup again, including drops that other processes left in the store's note."""
        has_note = False
        with self.attempt("looking for what is left to do"):
            note = self._store.note(CLEANUP_NOTE)
            has_note = note is not None
            for table in _noted_drops(note):
                self._deferred.setdefault(_drop_label(table), partial(self._drop_table_rows, table))
        for label, work in list(self._deferred.items()):
            self.run_or_defer(label, work)
        if has_note and not self._failures:
            self._save_note()

    def _drop_table_rows(self, table: Table, point: str | None = None) -> None:
        if point is not None:
            failpoints.hit(point)
        catalog = self._store.catalog()
        if catalog.find_by_id(table.id) is None:
            self._store.drop_rows(table)
        self._dropped_ids.add(table.id)

    def record_failure(self, label: str, error: Exception) -> None:
        """Log a failure and save it in the store's note."""
        text = error.message if isinstance(error, ViewkeeperError) else f"{type(error).__name__}: {error}"
        # Warn once while the failure stays the same.
        level = logging.DEBUG if self._failures.get(label) == text else logging.WARNING
        _log.log(
            level, "%s: what came after a published batch failed and is tried again: %s: %s", self._url, label, text
        )
        self._failures[label] = text
        self._save_note()

    def clear_failure(self, label: str) -> None:
        """Remove the failure of this label, if there is one: the work has succeeded."""
        self._pending_drops.pop(label, None)
        if self._failures.pop(label, None) is not None:
            _log.info("%s: done after all: %s", self._url, label)
            self._save_note()

    def _save_note(self) -> None:
        try:
            other_drops = {
                table.id: table
                for table in _noted_drops(self._store.note(CLEANUP_NOTE))
                if table.id not in self._dropped_ids
            }
            drops = [
                table.to_json()
                for table in (other_drops | {table.id: table for table in self._pending_drops.values()}).values()
            ]
            is_needed = bool(self._failures or drops)
            note = {"time": time.time(), "failed": dict(self._failures), "drop": drops} if is_needed else None
            self._store.put_note(CLEANUP_NOTE, note)
        except Exception as error:  # the failure is in the report and in the log
            _log.warning("%s: no note of it can be left: %s", self._url, error)

    @property
    def _url(self) -> str:
        return self._store.url


def has_happened(store: Store, batch: Batch, error: Exception) -> bool:
    """Whether a failed commit has published its batch nevertheless.

    Raises PublicationUnknown if the store cannot be asked.
    """
    try:
        published = store.published_batch()
    except Exception as second_error:
        raise PublicationUnknown(
            f"Whether batch {batch.number} of {store.url} is published is not known: {error} Then: {second_error}"
        ) from error
    return published is not None and published.record.get("attempt") == batch.record["attempt"]


def describe_cleanup_note(note: Mapping[str, Any] | None) -> str | None:
    """Return the note as text; None if there is no note."""
    if note is None:
        return None
    failed = {_drop_label(table): "not done yet" for table in _noted_drops(note)} | note["failed"]
    return "; ".join(f"{label}: {error}" for label, error in failed.items())


def _noted_drops(note: Mapping[str, Any] | None) -> list[Table]:
    return [Table.from_json(data) for data in note["drop"]] if note is not None else []


def _drop_label(table: Table) -> str:
    return f"dropping the rows of {table.name} (number {table.id})"
