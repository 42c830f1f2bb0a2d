"""Step 5 of a batch: runs are merged, and the log and the files that nobody needs any more go.

Merging begins after every batch, in the background; the rest is done once in a while. None of it is part of the batch:
what fails here is tried again later (`afterwards`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from viewkeeper import failpoints
from viewkeeper.commit.publisher import COLLECTING, Publisher
from viewkeeper.state.manifest import files_of

_TRUNCATING = "cutting the log"

_TIDY_SECONDS = 0.5
"""Between two clean-ups of log and files: each is a durable write of its own."""


class Tidying:
    """`retention`: seconds for which log entries are kept after the views have them, for subscribers that come back."""

    def __init__(self, publisher: Publisher, retention: float) -> None:
        self._publisher = publisher
        self.retention = retention
        self._tidied = 0.0
        self.in_use: Callable[[], frozenset[str]] = frozenset
        """Files of state beside that of the batches which no published record lists yet."""

    def after(self, changed: Iterable[str], now: bool = False) -> None:
        """After a batch that wrote runs into the `changed` slots."""
        publisher = self._publisher
        if (now or time.monotonic() - self._tidied >= _TIDY_SECONDS) and not publisher.lease.lost:
            self._tidy()  # whoever has the lease by now does it else
        with publisher.afterwards.of("beginning to merge"):  # last: it works beside whatever comes after
            failpoints.point("commit.5.merge")
            publisher.merger.start(publisher.flow, publisher.batch.number, changed)

    def _tidy(self) -> None:
        publisher = self._publisher
        afterwards, published = publisher.afterwards, publisher.state.manifest
        self._tidied = time.monotonic()
        with afterwards.of(_TRUNCATING):
            self._truncate()
        with afterwards.of(COLLECTING):
            failpoints.point("commit.5.collect")
            publisher.store.collect()
            if not publisher.loading:
                kept = published.files() | publisher.merger.files | files_of(publisher.sets.values()) | self.in_use()
                publisher.state.collect(keep=kept, upto=publisher.batch.number)
        afterwards.again()

    def _truncate(self) -> None:
        failpoints.point("commit.5.truncate")
        publisher, cuts, upto = self._publisher, self._publisher.cuts, None
        while cuts and cuts[0][0] <= self._tidied - self.retention:
            upto = cuts.popleft()[1]
        if upto is not None:
            cuts.appendleft((self._tidied - self.retention, upto))
            tracked = [v.at.low for v in publisher.catalog.special if v.at is not None and v.suspended is None]
            publisher.store.truncate(min([upto, *tracked, *publisher.loading.values()]))
