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
from viewkeeper.commit.batch_history import Recent
from viewkeeper.commit.compactor import Merger
from viewkeeper.commit.deferred_cleanup import Afterwards, has_happened
from viewkeeper.errors import CorruptState, MaintainerBusy
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.plan.dataflow import cache
from viewkeeper.plan.dataflow.dataflow import Flow
from viewkeeper.resources.memory import Memory, forget_spilled, release
from viewkeeper.runtime.error_attribution import storing
from viewkeeper.state.manifest import Manifest, files_of
from viewkeeper.state.open_state import State
from viewkeeper.store.contract.store import Batch, Begun, Seen, Store, StreamChange, ViewChange

_LOST = {"runs": {}, "fingerprint": ""}
"""The manifest of a batch whose record is damaged: all state is made anew."""

_MANY_ROWS = 200_000
"""Changed rows of views from which it is worth giving memory back before they are written."""

COLLECTING = "removing files that no batch lists"
_PUBLISHING = "an error of the store while it published"


@dataclass(frozen=True)
class Mark:
    """A published batch as a load sees it."""

    catalog: Catalog
    batch: Batch
    manifest: Manifest


class Publisher:
    """Owns the lease, the graph of all views, and the open state. One at a time for each database.

    `memory`: the database's whole budget, which the batch record tells.
    """

    def __init__(self, store: Store, *, durable: bool, memory: Memory) -> None:
        self.store = store
        self.memory = memory
        self.lock = threading.RLock()
        self.defining = threading.RLock()
        self.recent = Recent()
        self.lease = store.acquire_lease()
        try:
            try:
                batch = store.published()
            except CorruptState:
                batch = store.salvaged()
            manifest = Manifest(fingerprint=expressions.fingerprint())
            if batch is not None:
                manifest = Manifest.from_json(batch.record.get("manifest", _LOST))
            self.batch = batch or Batch(0, store.head(), {})
            self.state = State(store.state_path, manifest)
            forget_spilled(self.state.directory)
            self.merger = Merger(self.state, durable, memory.divided(4))
            self.sets = {int(v): Manifest.from_json(m) for v, m in self.batch.record.get("sets", {}).items()}
            """The state of views that run alone, by view."""
            self.afterwards = Afterwards(store)
            with self.afterwards.of(COLLECTING):
                self.state.collect(keep=files_of(self.sets.values()))
                if not self.state.directory.is_far and (failed := self.state.collected()) is not None:
                    raise failed  # else a note that an earlier maintainer has left would be taken for settled
            self.afterwards.again()
            self.cuts: deque[tuple[float, int]] = deque([(time.monotonic(), self.batch.cut)])
            """When which cut was published: the log before it may be needed for a while."""
            self.loading: dict[object, int] = {}
            """The cuts of loads that go on: the log after them is needed."""
            self._adopt(store.catalog())
        except BaseException:
            self.lease.release()
            raise

    def close(self) -> None:
        self.merger.close()
        failed = self.state.collected()
        if isinstance(failed, Exception) and not self.lease.lost:
            self.afterwards.add(COLLECTING, failed)
        self.lease.release()

    # -- what is published --------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Other processes may add tables; views change only here. A commit that failed may have happened after all."""
        self.check_lease()
        batch = self.store.published()
        if batch is not None and batch.number > self.batch.number:
            self.batch = batch
            self.state.adopt(Manifest.from_json(batch.record["manifest"]))
        current = self.store.catalog()
        if current.version != self.catalog.version:
            self._adopt(current)

    def check_lease(self) -> None:
        """Whoever was asleep while another process took over must not go on."""
        if self.lease.lost:
            raise MaintainerBusy(
                f"The lease on {self.store.url} is lost; another process may maintain it.", hint="Open it again."
            )

    def mark(self) -> Mark:
        with self.lock:
            self.follow()
            return Mark(self.catalog, self.batch, self.state.manifest)

    @contextmanager
    def keeping(self) -> Iterator[Mark]:
        """The published batch, for a load: until it is left, the log after its cut is kept, and every file."""
        ticket = object()  # held in the dict, so no other load has the same one
        with self.lock:
            mark = self.mark()
            self.loading[ticket] = mark.batch.cut
        try:
            yield mark
        finally:
            del self.loading[ticket]

    def behind(self) -> bool:
        """Whether a change waits that the published batch has not seen."""
        return self.store.pending(self.batch.cut, [t.id for t in self.catalog.tables]).calls > 0

    def flow_of(self, catalog: Catalog) -> Flow:
        """The graph of the views that are maintained."""
        return cache.maintained(self.store, catalog)

    def view(self, view_id: int) -> View | None:
        """A view of the catalog as it is now."""
        return self.catalog.views_by_id.get(view_id)

    def _adopt(self, catalog: Catalog) -> None:
        self.flow = self.flow_of(catalog)
        self.catalog = catalog

    # -- steps 3 and 4 ------------------------------------------------------------------------------------------------

    def publish(
        self,
        number: int,
        cut: int,
        manifest: Manifest,
        views: list[ViewChange | StreamChange],
        change: Callable[[Catalog], Catalog] | None = None,
        seen: Mapping[int, Seen] | None = None,
        begun: Begun | None = None,
    ) -> None:
        """Steps 3 and 4. `seen`: by the capture that led to the cut; None: it is the last batch's cut. `begun`: what
        the store was given of it already."""
        catalog, flow = self.catalog, self.flow
        if change is not None:
            catalog = change(catalog)
            flow = self.flow_of(catalog)
        record = {
            "manifest": manifest.to_json(),
            "plan": flow.fingerprint,
            "time": time.time(),
            "recent": self.recent.summary(),
            "attempt": secrets.token_hex(8),
            "memory": self.memory.given,
            "batches": self.recent.listed(),
            "merges": self.merger.counts(),
        }
        if skipped := self.recent.skipped():
            record["skipped"] = skipped
        if self.sets:
            self.sets = {v: m for v, m in self.sets.items() if v in catalog.views_by_id}
            record["sets"] = {str(v): m.to_json() for v, m in self.sets.items()}
        batch = Batch(number, cut, record, self.batch.seen if seen is None else seen)
        failpoints.point("commit.3.before")
        if sum(map(size_of, views)) >= _MANY_ROWS:
            release()  # what the rounds needed is free now, and the store is about to need as much
        try:
            with storing(v.table for v in views):
                self.store.commit(batch, views, change, begun)  # steps 3 and 4
            self.afterwards.done(_PUBLISHING)
        except MaintainerBusy:
            raise
        except Exception as error:
            if not has_happened(self.store, batch, error):
                raise
            self.afterwards.add(_PUBLISHING, error)
        self.batch = batch
        self.state.adopt(manifest)
        self.cuts.append((time.monotonic(), cut))
        with self.afterwards.of("reading the catalog again"):  # or else the next batch does
            failpoints.point("commit.4.after")
            if change is not None:
                self._adopt(self.store.catalog())

    def publish_views(self, change: Callable[[Catalog], Catalog]) -> None:
        """A batch without changes that alters the views; state that none of them needs any more is let go."""
        flow = self.flow_of(change(self.catalog))
        manifest = self.state.manifest.only(flow.slots.keys())
        self.publish(self.batch.number + 1, self.batch.cut, manifest, [], change)


def size_of(change: ViewChange | StreamChange) -> int:
    """How many rows of a view change."""
    if isinstance(change, StreamChange):
        return int(change.delta.num_rows)
    return int(change.puts.num_rows + change.deletes.num_rows)
