"""Step 5 of a batch: runs are merged, and the log and the files that nobody needs any more go.

Merging begins after every batch, in the background; the rest is done once in a while. None of it is part of the batch:
what fails here is tried again later (`afterwards`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from viewkeeper import failpoints
from viewkeeper.commit.publisher import GARBAGE_COLLECTION, Publisher
from viewkeeper.state.manifest import files_of

_LOG_TRUNCATION = "cutting the log"

_MIN_INTERVAL = 0.5
"""Between two clean-ups of log and files: each is a durable write of its own."""


class Cleanup:
    """`retention`: seconds for which log entries are kept after the views have them, for subscribers that come back."""

    def __init__(self, publisher: Publisher, retention: float) -> None:
        self._publisher = publisher
        self.retention = retention
        self._last_run = 0.0
        self.files_in_use: Callable[[], frozenset[str]] = frozenset
        """Files of state beside that of the batches which no published record lists yet."""

    def after_batch(self, changed: Iterable[str], force: bool = False) -> None:
        """After a batch that wrote runs into the `changed` slots."""
        publisher = self._publisher
        if (force or time.monotonic() - self._last_run >= _MIN_INTERVAL) and not publisher.lease.is_lost:
            self._clean_up()  # whoever has the lease by now does it else
        with publisher.deferred_cleanup.attempt("beginning to merge"):  # last: it works beside whatever comes after
            failpoints.hit("commit.5.merge")
            publisher.compactor.start(publisher.dataflow, publisher.batch.number, changed)

    def _clean_up(self) -> None:
        publisher = self._publisher
        afterwards, published = publisher.deferred_cleanup, publisher.state.manifest
        self._last_run = time.monotonic()
        with afterwards.attempt(_LOG_TRUNCATION):
            self._truncate_log()
        with afterwards.attempt(GARBAGE_COLLECTION):
            failpoints.hit("commit.5.collect")
            publisher.store.collect_garbage()
            if not publisher.load_cuts:
                kept = (
                    published.files()
                    | publisher.compactor.files
                    | files_of(publisher.view_manifests.values())
                    | self.files_in_use()
                )
                publisher.state.collect_garbage(keep=kept, up_to_batch=publisher.batch.number)
        afterwards.retry()

    def _truncate_log(self) -> None:
        failpoints.hit("commit.5.truncate")
        publisher, cuts, upto = self._publisher, self._publisher.published_cuts, None
        while cuts and cuts[0][0] <= self._last_run - self.retention:
            upto = cuts.popleft()[1]
        if upto is not None:
            cuts.appendleft((self._last_run - self.retention, upto))
            tracked = [
                v.own_cut.low
                for v in publisher.catalog.nonstandard_views
                if v.own_cut is not None and v.suspended is None
            ]
            publisher.store.truncate(min([upto, *tracked, *publisher.load_cuts.values()]))
