"""A view that fails on its own rows, or whose state contradicts itself, is taken out; the others go on without it.

Who maintains in the background takes it out by itself, and so does a statement (CREATE, RESUME) that needs a batch
first and has nothing to do with it. Who asks for a batch and nothing else is told.
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
from viewkeeper.maintain.load_plan import missing_state
from viewkeeper.maintain.loader import Loader
from viewkeeper.maintain.mending import Mender
from viewkeeper.model.catalog import Catalog, OwnCut, Suspension

T = TypeVar("T")

_log = logging.getLogger("viewkeeper")


class Suspender:
    """`by_itself`: whether views that fail are taken out without being asked, as background maintenance does."""

    def __init__(self, publisher: Publisher, loader: Loader, mender: Mender) -> None:
        self.by_itself = False
        self._publisher = publisher
        self._loader = loader
        self._mender = mender
        self._statements: list[int] = []
        """Threads that run one."""

    @contextmanager
    def in_statement(self) -> Iterator[None]:
        """Until it is left, this thread takes views that fail out."""
        self._statements.append(threading.get_ident())
        try:
            yield
        finally:
            self._statements.remove(threading.get_ident())

    def going_on(self, work: Callable[[], T], *, always: bool = False) -> T:
        """Do it again without the views that fail, if they are to be taken out (or `always`)."""
        while True:
            try:
                return work()
            except (BrokenViews, Contradicted) as broken:
                self.taken_out(broken, always=always)

    def taken_out(self, broken: BrokenViews | Contradicted, *, always: bool = False) -> list[str]:
        """The views that an error is of, suspended, or the error. Wrong state may show in others too, and is noted."""
        acts = always or self.by_itself or threading.get_ident() in self._statements
        names = self.suspend(broken.views, broken.message) if acts else []
        if not names:
            raise broken
        _log.warning("%s: suspended: %s", self._publisher.store.url, broken.message)
        if isinstance(broken, Contradicted):
            self._mender.note_contradiction(broken)
        return names

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
