"""A view that fails on its own rows, or whose state contradicts itself, is taken out; the others go on without it.

So it is in every batch, whoever asked for it: background maintenance, a refresh by hand, a statement that needs a batch
first, a read that must show all writes. Who would rather have no batch than one without that view says so (`refusing`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from viewkeeper.commit.isolation import BrokenViews, Contradicted
from viewkeeper.commit.publisher import Publisher
from viewkeeper.maintain.expelling import Expelling
from viewkeeper.maintain.load_plan import missing_state
from viewkeeper.maintain.loader import Loader
from viewkeeper.maintain.mending import Mender
from viewkeeper.model.catalog import Catalog
from viewkeeper.model.views import OwnCut, Suspension

T = TypeVar("T")

_log = logging.getLogger("viewkeeper")


class Suspender:
    """Suspends views that fail, and knows those that no report has named yet."""

    def __init__(self, publisher: Publisher, loader: Loader, mender: Mender, reach: Callable[[int], None]) -> None:
        self._publisher = publisher
        self._loader = loader
        self._mender = mender
        self._refusing: list[int] = []
        """Threads that would rather have the error."""
        self._untold: dict[str, str] = {}
        self.expelling = Expelling(publisher, reach)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Until it is left, what a view of this thread's batches fails on is raised, and nothing published."""
        self._refusing.append(threading.get_ident())
        try:
            yield
        finally:
            self._refusing.remove(threading.get_ident())

    def going_on(self, work: Callable[[], T], *, always: bool = False) -> T:
        """Do it again without the views that fail (`always`: also if that is to be refused)."""
        while True:
            try:
                return work()
            except (BrokenViews, Contradicted) as broken:
                self.take_out(broken, always=always)

    def take_out(self, broken: BrokenViews | Contradicted, *, always: bool = False) -> None:
        """Suspend the views that an error is of, or raise it. Wrong state may show in others too, and is noted.

        Of a family of views that were made by name, the members that it failed for.
        """
        if threading.get_ident() in self._refusing and not always:
            raise broken
        told = self.expelling.expel(broken) if isinstance(broken, BrokenViews) else None
        if told is None:
            told = dict.fromkeys(self.suspend(broken.views, broken.message), broken.message)
            if not told:
                raise broken
        for reason in dict.fromkeys(told.values()):
            _log.warning("%s: suspended: %s", self._publisher.store.url, reason)
        self._untold |= told
        self._dissolve()
        if isinstance(broken, Contradicted):
            self._mender.note_contradiction(broken)

    def told(self) -> dict[str, str]:
        """The views that were taken out since the last report, each with why: the row, and what it does."""
        told, self._untold = self._untold, {}
        return told

    def suspend(self, views: frozenset[int], reason: str) -> list[str]:
        """Stop maintaining these views; they keep showing this batch, and their state is freed."""
        publisher = self._publisher
        with publisher.lock:
            now = time.time()
            known = (publisher.view(view) for view in sorted(views))
            stopped = [v for v in known if v is not None and v.suspended is None]
            if not stopped:
                return []

            def change(catalog: Catalog) -> Catalog:
                for view in stopped:
                    at = view.at or OwnCut(publisher.batch.number, 0, publisher.batch.cut, now)
                    stop = Suspension(reason, at.epoch, at.cut, now)
                    catalog = catalog.replacing(replace(view, suspended=stop))
                return catalog

            self.leave_out(change)
            return [v.table.name for v in stopped]

    def _dissolve(self) -> None:
        """Families whose last member has left go."""
        publisher = self._publisher
        with publisher.lock:
            left = [v for v in publisher.catalog.views if v.gathers and not publisher.catalog.has_members(v.table.id)]
            for family in left:
                self.leave_out(lambda catalog, gone=family: catalog.without(gone.table.id))  # type: ignore[misc]
                publisher.afterwards.drop(family.table, "view.dropped")

    def leave_out(self, change: Callable[[Catalog], Catalog]) -> None:
        """Publish a catalog with fewer views to maintain; the lock is held.

        Without some view another arrangement may have to serve as a table's image, which is then loaded first.
        """
        publisher = self._publisher
        flow = publisher.flow_of(change(publisher.catalog))
        if self._mender.mending(lambda: missing_state(flow, publisher.state)):
            self._loader.load(
                frozenset(), lambda catalog, _: change(catalog), "auto", None, base=publisher.state.manifest
            )
        else:
            publisher.publish_views(change)
