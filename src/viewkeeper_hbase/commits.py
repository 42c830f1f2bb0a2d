"""Commits batches of a database in HBase: a batch is claimed by a check-and-put, then written and published.

The steps are those of `viewkeeper.store.redo.claim`; `commit_steps` has what is specific to HBase. Any process
that finds a claimed batch can finish it from its redo file.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence

from viewkeeper.errors import MaintainerBusy
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.store.contract.commits import Batch, OpenCommit, StreamChange, ViewChange
from viewkeeper.store.contract.tables import BatchCommits
from viewkeeper.store.redo import claim, delta_files, redo_file
from viewkeeper.store.redo.redo_file import Redo
from viewkeeper_hbase import commit_steps
from viewkeeper_hbase.capture.feed import ChangeCapture
from viewkeeper_hbase.handle import HBaseHandle
from viewkeeper_hbase.lease import HBaseLeaseStore


class HBaseCommits(BatchCommits):
    """Commits batches. A batch that this process claimed but could not finish is finished before any other."""

    def __init__(self, handle: HBaseHandle, lease_store: HBaseLeaseStore, capture: ChangeCapture) -> None:
        self.url = handle.url
        self._handle, self._state_cache, self._lease_store, self._capture = (
            handle,
            handle.state_cache,
            lease_store,
            capture,
        )
        self._owner = f"process {os.getpid()} on {socket.gethostname()} ({secrets.token_hex(4)})"
        self._commit_lock = threading.Lock()
        self._has_unfinished_batch = False
        self._forgotten_position = 0

    def published_batch(self) -> Batch | None:
        self._handle.require_open()
        if self._has_unfinished_batch and self._commit_lock.acquire(blocking=False):
            try:
                self._finish_own()
            finally:
                self._commit_lock.release()
        # While this process holds the lease, no other process publishes; but another one may create tables.
        published = self._state_cache.published_batch(
            refresh=not (self._lease_store.is_holder and self._state_cache.is_fresh)
        )
        return None if published is None else published.batch

    def forget_deltas(self, up_to: int) -> None:
        """Let the next batch drop the delta files of views that are not stored, up to a position, unless a hold
        needs them."""
        self._forgotten_position = max(self._forgotten_position, up_to)

    def commit(
        self,
        batch: Batch,
        changes: Sequence[ViewChange | StreamChange],
        change_catalog: Callable[[Catalog], Catalog] | None = None,
        open_commit: OpenCommit | None = None,
    ) -> None:
        handle, namespace = self._handle, self._handle.namespace
        handle.require_writable()
        with self._commit_lock:
            if self._has_unfinished_batch:
                self._finish_own()
            if self._lease_store.is_lost:
                raise MaintainerBusy(
                    f"The lease on {namespace} ran out and another process has taken it.", hint="Open it again."
                )
            view_changes = [change for change in changes if isinstance(change, ViewChange)]
            layouts = [handle.layouts.layout_of(c.table) for c in view_changes]
            are_new = [x.name not in handle.existing_tables and not handle.client.admin.exists(x.name) for x in layouts]
            tables = tuple(
                commit_steps.encode_table_redo(*args) for args in zip(layouts, view_changes, are_new, strict=True)
            )
            stream_changes = [c for c in changes if isinstance(c, StreamChange)]
            new_delta_files = [
                (c.table.id, delta_files.write_delta_file(handle.delta_directory, batch.number, c))
                for c in stream_changes
            ]
            previous = self._state_cache.batch_before(batch.number)
            forgotten = (
                self._forgotten_position
                if previous is None
                else handle.log_holds.retention_floor(self._forgotten_position, previous.delta_files)
            )
            claimed_batch = None
            self._has_unfinished_batch = True  # set before the claim: its answer may be lost
            while claimed_batch is None:  # a claim fails if the catalog has changed since it was read
                version, difference = 0, None
                if change_catalog is not None:
                    current, _, difference = handle.meta_table.plan_catalog_change(
                        self._state_cache.catalog(refresh=True), change_catalog
                    )
                    version = current.version
                # The head is read after the catalog change, so that the positions of a view's deltas follow its
                # definition.
                head = self._capture.head()
                published = commit_steps.next_published_batch(previous, batch, head, new_delta_files, forgotten)
                redo = Redo(published.to_json(), None if difference is None else difference.to_json(), tables)
                claimed_batch = claim.claim_batch(handle.meta_table, handle.redo_directory, redo, self._owner, version)
            state = commit_steps.finish_claimed_batch(
                handle.meta_table, handle.redo_directory, claimed_batch, handle.url, self._capture.parallel_map, redo
            )
            self._has_unfinished_batch = False
            self._state_cache.set_published(published)
            self._state_cache.update(state)
            handle.existing_tables.update(layout.name for layout in layouts)
            self._capture.arrivals.record_commit(batch.cut, batch.capture_marks.values())
            for change in view_changes:
                handle.table_statistics.invalidate(change.table)

    def collect_garbage(self) -> None:
        self._handle.require_writable()
        published = self._state_cache.published_batch(refresh=False)
        if published is not None:
            redo_file.collect_redo_files(self._handle.redo_directory, published.batch.number)
            delta_files.collect_delta_files(self._handle.delta_directory, published.delta_files, published.batch.number)

    def _finish_own(self) -> None:
        """Finish a batch that this process claimed. A claimed batch is decided, so no other can precede it."""
        state = self._state_cache.state(refresh=True)
        if state.claim is not None and state.claim.owner == self._owner:
            commit_steps.finish_claimed_batch(self._handle.meta_table, self._handle.redo_directory, state.claim)
            self._state_cache.update(None)
        self._has_unfinished_batch = False
