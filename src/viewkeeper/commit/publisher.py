"""The published batch, and how the next one takes its place: the lease, the batch record, the state that it lists.

Steps of a batch, numbered the same in code, tests and docs:

    1  choose the cut (elsewhere a watermark): the log's head, or as many write calls as the batch may have
    2  run the rounds; they leave a file of runs tagged with the batch
    3  write the view changes and the batch record {number, cut, manifest}
    4  publish: where the store has atomic batches, 3 and 4 are one transaction
    5  later: merge runs, forget log entries and files that nobody needs (`tidying`)

The batch record (elsewhere a checkpoint) is the only truth. Until step 4 nothing has happened; after it, everything
has.

Threads: `lock` is held for a batch and for whatever else publishes; `defining` for a change of the views, most of
which happens beside the batches (`maintain.loader`).
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
"""The manifest of a batch whose record is damaged: all state is made anew."""

_MEMORY_RELEASE_ROWS = 200_000
"""Changed rows of views from which it is worth giving memory back before they are written."""

GARBAGE_COLLECTION = "removing files that no batch lists"
_PUBLICATION = "an error of the store while it published"


@dataclass(frozen=True)
class Checkpoint:
    """A published batch as a load sees it."""

    catalog: Catalog
    batch: Batch
    manifest: Manifest


class Publisher:
    """Owns the lease, the graph of all views, and the open state. One at a time for each database.

    `memory`: the database's whole budget, which the batch record tells.
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
            self.view_manifests = {int(v): Manifest.from_json(m) for v, m in self.batch.record.get("sets", {}).items()}
            """The state of views that run alone, by view."""
            self.deferred_cleanup = DeferredCleanup(store)
            with self.deferred_cleanup.attempt(GARBAGE_COLLECTION):
                self.state.collect_garbage(keep=files_of(self.view_manifests.values()))
                if (
                    not self.state.directory.is_object_store
                    and (failed := self.state.wait_for_collection()) is not None
                ):
                    raise failed  # else a note that an earlier maintainer has left would be taken for settled
            self.deferred_cleanup.retry()
            self.published_cuts: deque[tuple[float, int]] = deque([(time.monotonic(), self.batch.cut)])
            """When which cut was published: the log before it may be needed for a while."""
            self.load_cuts: dict[object, int] = {}
            """The cuts of loads that go on: the log after them is needed."""
            self._set_catalog(store.catalog())
        except BaseException:
            self.lease.release()
            raise

    def close(self) -> None:
        self.compactor.close()
        failed = self.state.wait_for_collection()
        if isinstance(failed, Exception) and not self.lease.is_lost:
            self.deferred_cleanup.record_failure(GARBAGE_COLLECTION, failed)
        self.lease.release()

    # -- what is published --------------------------------------------------------------------------------------------

    def reload(self) -> None:
        """Other processes may add tables; views change only here. A commit that failed may have happened after all."""
        self.check_lease()
        batch = self.store.published_batch()
        if batch is not None and batch.number > self.batch.number:
            self.batch = batch
            self.state.adopt(Manifest.from_json(batch.record["manifest"]))
        current = self.store.catalog()
        if current.version != self.catalog.version:
            self._set_catalog(current)

    def check_lease(self) -> None:
        """Whoever was asleep while another process took over must not go on."""
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
        """The published batch, for a load: until it is left, the log after its cut is kept, and every file."""
        ticket = object()  # held in the dict, so no other load has the same one
        with self.lock:
            mark = self.checkpoint()
            self.load_cuts[ticket] = mark.batch.cut
        try:
            yield mark
        finally:
            del self.load_cuts[ticket]

    def is_behind(self) -> bool:
        """Whether a change waits that the published batch has not seen."""
        return self.store.pending(self.batch.cut, [t.id for t in self.catalog.tables]).calls > 0

    def dataflow_of(self, catalog: Catalog) -> Dataflow:
        """The graph of the views that are maintained."""
        return cache.maintained_dataflow(self.store, catalog)

    def view(self, view_id: int) -> View | None:
        """A view of the catalog as it is now."""
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
        """Steps 3 and 4. `seen`: by the capture that led to the cut; None: it is the last batch's cut. `begun`: what
        the store was given of it already."""
        catalog, flow = self.catalog, self.dataflow
        if update_catalog is not None:
            catalog = update_catalog(catalog)
            flow = self.dataflow_of(catalog)
        record = {
            "manifest": manifest.to_json(),
            "plan": flow.fingerprint,
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
            self.view_manifests = {v: m for v, m in self.view_manifests.items() if v in catalog.views_by_id}
            record["sets"] = {str(v): m.to_json() for v, m in self.view_manifests.items()}
        batch = Batch(number, cut, record, self.batch.capture_marks if capture_marks is None else capture_marks)
        failpoints.hit("commit.3.before")
        if sum(map(changed_row_count, changes)) >= _MEMORY_RELEASE_ROWS:
            release_free_memory()  # what the rounds needed is free now, and the store is about to need as much
        try:
            with attribute_store_errors(v.table for v in changes):
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
        with self.deferred_cleanup.attempt("reading the catalog again"):  # or else the next batch does
            failpoints.hit("commit.4.after")
            if update_catalog is not None:
                self._set_catalog(self.store.catalog())

    def publish_views(self, update_catalog: Callable[[Catalog], Catalog]) -> None:
        """A batch without changes that alters the views; state that none of them needs any more is let go."""
        flow = self.dataflow_of(update_catalog(self.catalog))
        manifest = self.state.manifest.restricted_to(flow.slots.keys())
        self.publish(self.batch.number + 1, self.batch.cut, manifest, [], update_catalog)


def changed_row_count(change: ViewChange | StreamChange) -> int:
    """How many rows of a view change."""
    if isinstance(change, StreamChange):
        return int(change.delta.num_rows)
    return int(change.puts.num_rows + change.deletes.num_rows)
