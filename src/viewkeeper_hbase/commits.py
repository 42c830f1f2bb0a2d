"""Batches of a database in HBase: claimed by a check-and-put, then finished by whoever can (`commit`, `store/redo`)."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence

from viewkeeper.errors import MaintainerBusy
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.store.contract.commits import Batch, Begun, StreamChange, ViewChange
from viewkeeper.store.contract.tables import Publishing
from viewkeeper.store.redo import claim, delta_files, redo_file
from viewkeeper.store.redo.redo_file import Redo
from viewkeeper_hbase import commit_steps
from viewkeeper_hbase.capture.feed import Feed
from viewkeeper_hbase.handle import Opened
from viewkeeper_hbase.lease import HBaseLeasing


class HBasePublishing(Publishing):
    """A batch that this process has claimed and could not finish is finished before anything else."""

    def __init__(self, opened: Opened, leasing: HBaseLeasing, feed: Feed) -> None:
        self.url = opened.url
        self._opened, self._known, self._leasing, self._feed = opened, opened.known, leasing, feed
        self._owner = f"process {os.getpid()} on {socket.gethostname()} ({secrets.token_hex(4)})"
        self._committing = threading.Lock()
        self._unfinished = False
        self._forgotten = 0

    def published(self) -> Batch | None:
        self._opened.live()
        if self._unfinished and self._committing.acquire(blocking=False):
            try:
                self._finish_own()
            finally:
                self._committing.release()
        # While this process holds the lease nobody else publishes, but tables may be made elsewhere.
        published = self._known.published(now=not (self._leasing.holds and self._known.is_fresh))
        return None if published is None else published.batch

    def forget(self, upto: int) -> None:
        """The next batch forgets the deltas up to a position of views that are not stored, but what is held."""
        self._forgotten = max(self._forgotten, upto)

    def commit(
        self,
        batch: Batch,
        changes: Sequence[ViewChange | StreamChange],
        change_catalog: Callable[[Catalog], Catalog] | None = None,
        begun: Begun | None = None,
    ) -> None:
        opened, namespace = self._opened, self._opened.namespace
        opened.writable()
        with self._committing:
            if self._unfinished:
                self._finish_own()
            if self._leasing.lost:
                raise MaintainerBusy(
                    f"The lease on {namespace} ran out and another process has taken it.", hint="Open it again."
                )
            stored = [change for change in changes if isinstance(change, ViewChange)]
            layouts = [opened.layouts.of(c.table) for c in stored]
            fresh = [x.name not in opened.there and not opened.client.tables.exists(x.name) for x in layouts]
            tables = tuple(commit_steps.table_redo(*one) for one in zip(layouts, stored, fresh, strict=True))
            told = [c for c in changes if isinstance(c, StreamChange)]
            streamed = [(c.table.id, delta_files.write(opened.streams, batch.number, c)) for c in told]
            before = self._known.before(batch.number)
            forgotten = self._forgotten if before is None else opened.holds.floor(self._forgotten, before.streams)
            claimed = None
            self._unfinished = True  # from here on: the answer to a claim may be lost
            while claimed is None:  # again if the catalog has changed meanwhile
                version, written = 0, None
                if change_catalog is not None:
                    current, _, written = opened.records.change(self._known.catalog(now=True), change_catalog)
                    version = current.version
                # After the catalog's change, whose positions are up to the head: a view's deltas follow its definition.
                head = self._feed.head()
                published = commit_steps.published_record(before, batch, head, streamed, forgotten)
                redo = Redo(published.to_json(), None if written is None else written.to_json(), tables)
                claimed = claim.claim(opened.records, opened.redos, redo, self._owner, version)
            state = commit_steps.finish(opened.records, opened.redos, claimed, opened.url, self._feed.spread, redo)
            self._unfinished = False
            self._known.adopt(published)
            self._known.learn(state)
            opened.there.update(layout.name for layout in layouts)
            self._feed.arrivals.committed(batch.cut, batch.seen.values())
            for change in stored:
                opened.sizes.forget(change.table)

    def collect(self) -> None:
        self._opened.writable()
        published = self._known.published(now=False)
        if published is not None:
            redo_file.collect(self._opened.redos, published.batch.number)
            delta_files.collect(self._opened.streams, published.streams, published.batch.number)

    def _finish_own(self) -> None:
        """A batch that this process claimed and could not finish: it has been decided, so it is finished first."""
        state = self._known.state(now=True)
        if state.claim is not None and state.claim.owner == self._owner:
            commit_steps.finish(self._opened.records, self._opened.redos, state.claim)
            self._known.learn(None)
        self._unfinished = False
