"""A view that fails on its own rows is taken out, and the others go on without it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from viewkeeper.commit.isolation import BrokenViews
from viewkeeper.commit.publisher import Publisher
from viewkeeper.maintain.load_plan import missing_state
from viewkeeper.maintain.loader import Loader
from viewkeeper.maintain.mending import Mender
from viewkeeper.model.catalog import Catalog, OwnCut, Suspension

T = TypeVar("T")


class Suspender:
    """`by_itself`: whether views that fail are taken out without being asked, as background maintenance does."""

    def __init__(self, publisher: Publisher, loader: Loader, mender: Mender) -> None:
        self.by_itself = False
        self._publisher = publisher
        self._loader = loader
        self._mender = mender

    def going_on(self, work: Callable[[], T], *, always: bool = False) -> T:
        """Do it again without the views that fail on their own rows, if that is done `by_itself` (or `always`)."""
        while True:
            try:
                return work()
            except BrokenViews as broken:
                if not (self.by_itself or always) or not self.suspend(broken.views, broken.message):
                    raise

    def suspend(self, views: frozenset[int], reason: str) -> list[str]:
        """Stop maintaining these views; they keep showing this batch, and their state is freed."""
        publisher = self._publisher
        with publisher.lock:
            now = time.time()
            known = (publisher.view(view) for view in sorted(views))
            stopped = [v for v in known if v is not None and v.suspended is None]

            def change(catalog: Catalog) -> Catalog:
                for view in stopped:
                    at = view.at or OwnCut(publisher.batch.number, 0, publisher.batch.cut, now)
                    stop = Suspension(reason, at.epoch, at.cut, now)
                    catalog = catalog.replacing(replace(view, suspended=stop))
                return catalog

            self.leave_out(change)
            return [v.table.name for v in stopped]

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
