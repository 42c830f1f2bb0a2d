"""The publisher: owns the lease and the published batch, and publishes the next one.

Steps of a batch, numbered the same in code, tests and docs:

    1  choose the cut (a watermark): the log's head, or the position after as many write calls as the batch may take
    2  run the operators in rounds; they write run files whose names have the batch's number
    3  write the view changes and the batch record {number, cut, manifest}
    4  publish; in a store with atomic batches, steps 3 and 4 are one transaction
    5  later: merge runs, truncate the log, and delete files that no manifest lists (`cleanup`)

The batch record (a checkpoint) alone decides what is published. Before step 4 nothing of the batch is visible; after
it the whole batch is.

Threads: `lock` is held during a batch and during every other publication. `definition_lock` is held while the views are
changed; most of that work runs at the same time as the batches (`maintain.load.loader`).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from viewkeeper import expressions, failpoints
from viewkeeper.commit.batch_history import BatchHistory
from viewkeeper.commit.compactor import Compactor
from viewkeeper.commit.deferred_cleanup import DeferredCleanup, has_happened
from viewkeeper.errors import CorruptState, MaintainerBusy
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.plan.dataflow import cache
from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.resources.memory import MemoryBudget, release_free_memory, remove_stale_spills
from viewkeeper.runtime.error_attribution import attribute_store_errors
from viewkeeper.state.manifest import Manifest, files_of
from viewkeeper.state.open_state import OpenState
from viewkeeper.store.contract.store import Batch, CaptureMark, OpenCommit, Store, StreamChange, ViewChange

_EMPTY_MANIFEST = {"runs": {}, "fingerprint": ""}
"""The manifest of a batch whose record is damaged: all state is rebuilt."""

_MEMORY_RELEASE_ROWS = 200_000
"""From this many changed rows of views on, free memory is returned to the system before they are written."""

GARBAGE_COLLECTION = "removing files that no batch lists"
_PUBLICATION = "an error of the store while it published"


@dataclass(frozen=True)
class Checkpoint:
    """A published batch with its catalog and manifest, from which a backfill starts."""

    catalog: Catalog
    batch: Batch
    manifest: Manifest


class Publisher:
    """Owns the lease, the dataflow of all views, and the open state. One at a time for each database.

    `memory` is the database's whole budget; the batch record contains its limit.
    """

    def __init__(self, store: Store, *, durable: bool, memory: MemoryBudget) -> None:
        self.store = store
        self.memory = memory
        self.lock = threading.RLock()
        self.definition_lock = threading.RLock()
        self.history = BatchHistory()
        self.lease = store.acquire_lease()
        try:
            try:
                batch = store.published_batch()
            except CorruptState:
                batch = store.salvage_batch()
            manifest = Manifest(fingerprint=expressions.fingerprint())
            if batch is not None:
                manifest = Manifest.from_json(batch.record.get("manifest", _EMPTY_MANIFEST))
            self.batch = batch or Batch(0, store.head(), {})
            self.state = OpenState(store.state_path, manifest)
            remove_stale_spills(self.state.directory)
            self.compactor = Compactor(self.state, durable, memory.divide(4))
            self.view_manifests = {
                int(view_id): Manifest.from_json(view_manifest)
                for view_id, view_manifest in self.batch.record.get("sets", {}).items()
            }
            """The manifests of views with state of their own (scheduled and per-call views), by view id."""
            self.deferred_cleanup = DeferredCleanup(store)
            with self.deferred_cleanup.attempt(GARBAGE_COLLECTION):
                self.state.collect_garbage(keep=files_of(self.view_manifests.values()))
                if (
                    not self.state.directory.is_object_store
                    and (failure := self.state.wait_for_collection()) is not None
                ):
                    raise failure  # else the `attempt` would remove the note that an earlier maintainer left
            self.deferred_cleanup.retry()
            self.published_cuts: deque[tuple[float, int]] = deque([(time.monotonic(), self.batch.cut)])
            """(Time, cut) of published batches: log retention keeps the log for some time after its publication."""
            self.load_cuts: dict[object, int] = {}
            """The cuts of running backfills: the log after them must be kept."""
            self._set_catalog(store.catalog())
        except BaseException:
            self.lease.release()
            raise

    def close(self) -> None:
        self.compactor.close()
        failure = self.state.wait_for_collection()
        if isinstance(failure, Exception) and not self.lease.is_lost:
            self.deferred_cleanup.record_failure(GARBAGE_COLLECTION, failure)
        self.lease.release()

    # -- what is published --------------------------------------------------------------------------------------------

    def reload(self) -> None:
        """Read the published batch and the catalog again.

        Other processes may have added tables (views change only here), and a commit that raised an error may have been
        published.
        """
        self.check_lease()
        batch = self.store.published_batch()
        if batch is not None and batch.number > self.batch.number:
            self.batch = batch
            self.state.adopt(Manifest.from_json(batch.record["manifest"]))
        current = self.store.catalog()
        if current.version != self.catalog.version:
            self._set_catalog(current)

    def check_lease(self) -> None:
        """Raise MaintainerBusy if the lease is lost: another process may have become the maintainer."""
        if self.lease.is_lost:
            raise MaintainerBusy(
                f"The lease on {self.store.url} is lost; another process may maintain it.", hint="Open it again."
            )

    def checkpoint(self) -> Checkpoint:
        with self.lock:
            self.reload()
            return Checkpoint(self.catalog, self.batch, self.state.manifest)

    @contextmanager
    def retain_checkpoint(self) -> Iterator[Checkpoint]:
        """Yield the published batch for a backfill.

        Until the block ends, the log after the batch's cut is kept, and no file is deleted.
        """
        ticket = object()  # a unique key in the dict
        with self.lock:
            checkpoint = self.checkpoint()
            self.load_cuts[ticket] = checkpoint.batch.cut
        try:
            yield checkpoint
        finally:
            del self.load_cuts[ticket]

    def is_behind(self) -> bool:
        """Whether there are pending changes after the published batch's cut."""
        return self.store.pending(self.batch.cut, [t.id for t in self.catalog.tables]).calls > 0

    def dataflow_of(self, catalog: Catalog) -> Dataflow:
        """Return the dataflow of the catalog's maintained views."""
        return cache.maintained_dataflow(self.store, catalog)

    def view(self, view_id: int) -> View | None:
        """Return the view with this id in the current catalog, or None."""
        return self.catalog.views_by_id.get(view_id)

    def _set_catalog(self, catalog: Catalog) -> None:
        self.dataflow = self.dataflow_of(catalog)
        self.catalog = catalog

    # -- steps 3 and 4 ------------------------------------------------------------------------------------------------

    def publish(
        self,
        number: int,
        cut: int,
        manifest: Manifest,
        changes: list[ViewChange | StreamChange],
        update_catalog: Callable[[Catalog], Catalog] | None = None,
        capture_marks: Mapping[int, CaptureMark] | None = None,
        open_commit: OpenCommit | None = None,
    ) -> None:
        """Run steps 3 and 4.

        `capture_marks` are those of the capture up to `cut`; None if the cut is the last batch's. `open_commit` is the
        pipelined commit that already contains some of the view changes.
        """
        catalog, dataflow = self.catalog, self.dataflow
        if update_catalog is not None:
            catalog = update_catalog(catalog)
            dataflow = self.dataflow_of(catalog)
        record = {
            "manifest": manifest.to_json(),
            "plan": dataflow.fingerprint,
            "time": time.time(),
            "recent": self.history.summary(),
            "attempt": secrets.token_hex(8),
            "memory": self.memory.process_limit,
            "batches": self.history.listed_batches(),
            "merges": self.compactor.statistics(),
        }
        if skipped := self.history.skipped_summary():
            record["skipped"] = skipped
        if self.view_manifests:
            self.view_manifests = {
                view_id: view_manifest
                for view_id, view_manifest in self.view_manifests.items()
                if view_id in catalog.views_by_id
            }
            record["sets"] = {
                str(view_id): view_manifest.to_json() for view_id, view_manifest in self.view_manifests.items()
            }
        batch = Batch(number, cut, record, self.batch.capture_marks if capture_marks is None else capture_marks)
        failpoints.hit("commit.3.before")
        if sum(map(changed_row_count, changes)) >= _MEMORY_RELEASE_ROWS:
            release_free_memory()  # the operators' memory is free now, and the store needs about as much
        try:
            with attribute_store_errors(view_id.table for view_id in changes):
                self.store.commit(batch, changes, update_catalog, open_commit)  # steps 3 and 4
            self.deferred_cleanup.clear_failure(_PUBLICATION)
        except MaintainerBusy:
            raise
        except Exception as error:
            if not has_happened(self.store, batch, error):
                raise
            self.deferred_cleanup.record_failure(_PUBLICATION, error)
        self.batch = batch
        self.state.adopt(manifest)
        self.published_cuts.append((time.monotonic(), cut))
        with self.deferred_cleanup.attempt("reading the catalog again"):  # if it fails, the next batch reads it
            failpoints.hit("commit.4.after")
            if update_catalog is not None:
                self._set_catalog(self.store.catalog())

    def publish_views(self, update_catalog: Callable[[Catalog], Catalog]) -> None:
        """Publish a batch without changes that updates the catalog; the manifest drops state that no view needs."""
        dataflow = self.dataflow_of(update_catalog(self.catalog))
        manifest = self.state.manifest.restricted_to(dataflow.slots.keys())
        self.publish(self.batch.number + 1, self.batch.cut, manifest, [], update_catalog)


def changed_row_count(change: ViewChange | StreamChange) -> int:
    """Return the number of rows that a view's change writes and deletes."""
    if isinstance(change, StreamChange):
        return int(change.delta.num_rows)
    return int(change.puts.num_rows + change.deletes.num_rows)
