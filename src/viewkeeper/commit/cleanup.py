"""Step 5 of a batch: starts compaction, truncates the log, and deletes files that no manifest lists.

Compaction starts after every batch, in the background. Log truncation and garbage collection run at most every
`_MIN_INTERVAL` seconds. None of this is part of the batch: a failure is retried later (`deferred_cleanup`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from viewkeeper import failpoints
from viewkeeper.commit.publisher import GARBAGE_COLLECTION, Publisher
from viewkeeper.state.manifest import files_of

_LOG_TRUNCATION = "cutting the log"

_MIN_INTERVAL = 0.5
"""Minimum seconds between two cleanups of log and files: each of them is a durable write."""


class Cleanup:
    """Runs step 5.

    Log entries are kept for `retention` seconds after the views include them, so that subscribers can resume.
    """

    def __init__(self, publisher: Publisher, retention: float) -> None:
        self._publisher = publisher
        self.retention = retention
        self._last_run = 0.0
        self.files_in_use: Callable[[], frozenset[str]] = frozenset
        """Return the files of open per-call views' state; no published batch record may list them yet."""

    def after_batch(self, changed: Iterable[str], force: bool = False) -> None:
        """Run the cleanup after a batch that wrote runs into the `changed` slots."""
        publisher = self._publisher
        if (force or time.monotonic() - self._last_run >= _MIN_INTERVAL) and not publisher.lease.is_lost:
            self._clean_up()  # else the process that has the lease now cleans up
        # Compaction starts last, because it runs in the background from here on.
        with publisher.deferred_cleanup.attempt("beginning to merge"):
            failpoints.hit("commit.5.merge")
            publisher.compactor.start(publisher.dataflow, publisher.batch.number, changed)

    def _clean_up(self) -> None:
        publisher = self._publisher
        deferred_cleanup, published = publisher.deferred_cleanup, publisher.state.manifest
        self._last_run = time.monotonic()
        with deferred_cleanup.attempt(_LOG_TRUNCATION):
            self._truncate_log()
        with deferred_cleanup.attempt(GARBAGE_COLLECTION):
            failpoints.hit("commit.5.collect")
            publisher.store.collect_garbage()
            if not publisher.load_cuts:
                files_to_keep = (
                    published.files()
                    | publisher.compactor.files
                    | files_of(publisher.view_manifests.values())
                    | self.files_in_use()
                )
                publisher.state.collect_garbage(keep=files_to_keep, up_to_batch=publisher.batch.number)
        deferred_cleanup.retry()

    def _truncate_log(self) -> None:
        failpoints.hit("commit.5.truncate")
        publisher, cuts, cut = self._publisher, self._publisher.published_cuts, None
        while cuts and cuts[0][0] <= self._last_run - self.retention:
            cut = cuts.popleft()[1]
        if cut is not None:
            cuts.appendleft((self._last_run - self.retention, cut))
            own_cuts = [
                view.own_cut.low
                for view in publisher.catalog.nonstandard_views
                if view.own_cut is not None and view.suspended is None
            ]
            publisher.store.truncate(min([cut, *own_cuts, *publisher.load_cuts.values()]))
