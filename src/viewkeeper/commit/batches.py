"""Batches: every view is brought to a cut of the log, one batch at a time.

Steps of a batch, numbered the same in code, tests and docs:

    1  choose the cut: the log's head, or as many write calls as the batch may have
    2  run the rounds; they leave a file of runs tagged with the batch
    3  write the view changes and the batch record {number, cut, manifest}
    4  publish: where the store has atomic batches, 3 and 4 are one transaction
    5  later: merge runs, forget log entries and files that nobody needs

The batch record is the only truth. Until step 4 nothing has happened; after it, everything has.

Threads: `lock` is held for a batch and for whatever else publishes; `defining` for a change of the views, most of
which happens beside the batches (`maintainer`).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa

from viewkeeper import faults
from viewkeeper.commit.afterwards import Afterwards, has_happened
from viewkeeper.commit.isolation import BrokenViews, own_rows, storing
from viewkeeper.commit.manifest import Manifest, files_of
from viewkeeper.commit.memory import RAN_OUT, fitting, out_of_memory
from viewkeeper.commit.merge import Merger
from viewkeeper.commit.recent import Recent
from viewkeeper.commit.report import BatchReport
from viewkeeper.commit.sink import resolve
from viewkeeper.commit.stage import Stage, choose_lane, in_batches
from viewkeeper.commit.state import State
from viewkeeper.errors import CorruptState, MaintainerBusy, ViewkeeperError
from viewkeeper.model.catalog import Catalog, OwnCut, Suspension, View
from viewkeeper.model.strategies import is_complete, runs_alone
from viewkeeper.operators.duck import Duck
from viewkeeper.plan import expressions
from viewkeeper.plan.compiler import ViewPlan
from viewkeeper.plan.flow import Flow, assemble, slots
from viewkeeper.store.base import Batch, Seen, Store, StreamChange, ViewChange
from viewkeeper.store.files import Directory
from viewkeeper.store.memory import Memory, budget, forget_spilled

T = TypeVar("T")

_LOST = {"runs": {}, "fingerprint": ""}
"""The manifest of a batch whose record is damaged: all state is made anew."""

_MERGING, _TRUNCATING, _COLLECTING = "merging runs", "cutting the log", "removing files that no batch lists"
_PUBLISHING = "an error of the store while it published"

_TIDY_SECONDS = 0.5
"""Between two clean-ups of log and files: each is a durable write of its own."""


@dataclass(frozen=True)
class Mark:
    """A published batch as a load sees it."""

    catalog: Catalog
    batch: Batch
    manifest: Manifest


class Batches:
    """Owns the lease, the graph of all views, and the open state. One at a time for each database.

    `retention`: seconds for which log entries are kept after the views have them, for subscribers that come back.
    `memory`: what all of it may take (`store.memory`).
    """

    def __init__(
        self,
        store: Store,
        spark: Callable[[], Any],
        *,
        durable: bool = True,
        threads: int = 2,
        retention: float = 0.0,
        memory: int | str | None = None,
    ) -> None:
        self.store = store
        self.lock = threading.RLock()
        self.defining = threading.RLock()
        self.retention = retention
        self.suspends = False
        self.on_batch: Callable[[BatchReport], None] | None = None
        self.recent = Recent()
        self.mended: list[str] = []
        self.memory = Memory(budget(memory)).beside(Directory(store.state_path))
        self._tried = 0
        self._fits: int | None = None
        self.lease = store.acquire_lease()
        try:
            self._spark, self._durable, self._threads = spark, durable, threads
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
            self.stage = Stage(store, self.state, spark, durable=durable, threads=threads, memory=self.memory)
            self._merger = Merger(self.state, durable, self.memory.divided(4))
            self._sets = {int(v): Manifest.from_json(m) for v, m in self.batch.record.get("sets", {}).items()}
            self._looked: dict[int, float] = {}
            self.afterwards = Afterwards(store)
            with self.afterwards.of(_COLLECTING):
                self.state.collect(keep=files_of(self._sets.values()))
            self.afterwards.again()
            self._loading: dict[object, int] = {}
            self._cuts: deque[tuple[float, int]] = deque([(time.monotonic(), self.batch.cut)])
            self._tidied = 0.0
            self._defined: tuple[Any, ...] | None = None
            self._adopt_catalog(store.catalog())
        except BaseException:
            self.lease.release()
            raise

    @property
    def beside(self) -> Memory:
        """What work beside the batches may take."""
        return self.memory.divided(2)

    def close(self) -> None:
        with self.lock:
            self._merger.close()
            self.stage.close()
            self.lease.release()

    # -- batches ------------------------------------------------------------------------------------------------------

    def refresh(self, lane: str = "auto", *, max_changes: int | None = None) -> BatchReport:
        """Bring every view to the head of the log, or `max_changes` further, in one batch.

        A view that fails on its own rows stops the batch; if this maintainer `suspends`, it is taken out and the others
        go on.
        """
        stopped: list[str] = []
        with self.lock, self.stage.capturing(lane):
            target = self.store.head()
            while True:
                try:
                    report = self._refresh(lane, 1 if self._complete else max_changes)
                    # Batches that show every call, or that do not fit into memory at once: on to where the log was.
                    while max_changes is None and self.batch.cut < target and self._behind():
                        report = self._refresh(lane, 1 if self._complete else None)
                    report = replace(report, suspended=tuple(stopped), mended=tuple(self.mended))
                    self.mended.clear()
                    if self.on_batch is not None and (report.lane != "none" or stopped or report.mended):
                        self.on_batch(report)
                    return report
                except BrokenViews as broken:
                    taken_out = self.suspend(broken.views, broken.message) if self.suspends else []
                    if not taken_out:
                        raise
                    stopped += taken_out
                except RAN_OUT as short:
                    if self._tried <= 1:
                        raise short if isinstance(short, ViewkeeperError) else out_of_memory("a batch") from short
                    self._fits = self._tried // 2

    def _refresh(self, lane: str, max_changes: int | None) -> BatchReport:
        started = time.perf_counter()
        choose_lane(lane, 0)  # a wrong name is refused also when nothing waits
        if self.afterwards.damage is not None:
            damage, self.afterwards.damage = self.afterwards.damage, None
            raise damage
        self._follow_catalog()
        faults.point("commit.1.before")
        tables = [t.id for t in self.catalog.tables]
        cut = self.store.head()  # step 1
        waiting = self.store.pending(self.batch.cut, tables)
        if waiting.calls == 0:
            seconds = time.perf_counter() - started
            return BatchReport(self.batch.number, 0, "none", seconds, afterwards=self.afterwards.failed)
        if (instead := self._made_anew(waiting.rows, started)) is not None:
            return instead
        limits = [n for n in (max_changes, self._fits, fitting(waiting, self.memory.total)) if n is not None]
        self._tried = min([waiting.rows, *limits])
        if self._tried < waiting.rows:
            cut = self.store.cut_after(self.batch.cut, tables, self._tried)
        faults.point("commit.1.after")
        with self.afterwards.of(_MERGING):
            self._merger.adopt()
        number = self.batch.number + 1
        expected = choose_lane(lane, self._tried)
        before = self.batch
        deltas, seen = self.stage.captured(expected, self.flow, before.cut, cut, self._tried, before.seen)  # step 2
        changes = sum(d.count or 0 for d in deltas.values())
        chosen = choose_lane(lane, changes)
        faults.point("commit.2.before")
        captured = time.perf_counter()
        outcome = self.stage.run(number, chosen, self.flow, in_batches(self.flow), deltas, self._names)
        faults.point("commit.2.after")
        ran = time.perf_counter()
        views = self._resolve(outcome.reached)
        self.recent.begun(number, changes, chosen, captured - started, ran - captured)
        self._publish(number, cut, self.state.manifest.plus(outcome.entries), views, seen=seen)
        done = time.perf_counter()
        self.recent.committed(done - ran)
        self.recent.timed(self.stage.clock, self.stage.made)
        self.recent.add(done - started, waiting.rows, (captured - started, ran - captured, done - ran))
        if self._fits is not None:  # what was short may not be any more
            self._fits = 2 * self._fits if 2 * self._fits < waiting.rows else None
        self._tidy({e.slot for e in outcome.entries})
        changed = {c.table.name: _size(c) for c in views}
        seconds = time.perf_counter() - started
        return BatchReport(number, changes, chosen, seconds, changed, afterwards=self.afterwards.failed)

    def _files_of_others(self) -> frozenset[str]:
        """Files of state beside that of the batches which no published record lists yet."""
        return frozenset()

    def _made_anew(self, rows: int, started: float) -> BatchReport | None:
        """Whatever is cheaper than a batch of so many changes, if there is such a thing."""
        return None

    def going_on(self, work: Callable[[], T], *, always: bool = False) -> T:
        """Do it again without the views that fail on their own rows, if this maintainer `suspends` (or `always`)."""
        while True:
            try:
                return work()
            except BrokenViews as broken:
                if not (self.suspends or always) or not self.suspend(broken.views, broken.message):
                    raise

    def suspend(self, views: frozenset[int], reason: str) -> list[str]:
        """Stop maintaining these views; they keep showing this batch, and their state is freed."""
        with self.lock:
            now = time.time()
            stopped = [v for v in self.catalog.views if v.table.id in views and v.suspended is None]

            def change(catalog: Catalog) -> Catalog:
                for view in stopped:
                    at = view.at or OwnCut(self.batch.number, 0, self.batch.cut, now)
                    stop = Suspension(reason, at.epoch, at.cut, now)
                    catalog = catalog.replacing(replace(view, suspended=stop))
                return catalog

            self._publish_only(change)
            return [v.table.name for v in stopped]

    # -- inside -------------------------------------------------------------------------------------------------------

    def _flow(self, catalog: Catalog) -> Flow:
        """The graph of the views that are maintained; a suspended view is still a definition that others may use."""
        tables = {t.id: t for t in catalog.tables}
        plans = {v.table.id: ViewPlan.from_json(v.plan) for v in catalog.views}
        active = [v.table.id for v in catalog.views if v.suspended is None and not self.runs_alone(v)]
        return assemble(tables, plans, active, not self.store.capabilities.before_images, self.store.selects)

    def runs_alone(self, view: View) -> bool:
        return runs_alone(view, self.store.capabilities.before_images)

    def _adopt_catalog(self, catalog: Catalog) -> None:
        if self._defined != (defined := catalog.defined):  # a view's own cut moves often, and changes nothing here
            self.flow = self._flow(catalog)
            self._defined = defined
        self.catalog = catalog
        self._names = {v.table.id: v.table.name for v in catalog.views}
        # One view in the flow that shows every write call's state makes all do so: a batch is one cut for all.
        mine = (v for v in catalog.views if not self.runs_alone(v))
        self._complete = any(is_complete(v) and v.suspended is None for v in mine)

    def _behind(self) -> bool:
        return self.store.pending(self.batch.cut, [t.id for t in self.catalog.tables]).calls > 0

    def _follow_catalog(self) -> None:
        """Other processes may add tables; views change only here. A commit that failed may have happened after all."""
        self._check_lease()
        batch = self.store.published()
        if batch is not None and batch.number > self.batch.number:
            self.batch = batch
            self.state.adopt(Manifest.from_json(batch.record["manifest"]))
        current = self.store.catalog()
        if current.version != self.catalog.version:
            self._adopt_catalog(current)

    def _check_lease(self) -> None:
        """Whoever was asleep while another process took over must not go on."""
        if self.lease.lost:
            raise MaintainerBusy(
                f"The lease on {self.store.url} is lost; another process may maintain it.", hint="Open it again."
            )

    def _mark(self) -> Mark:
        with self.lock:
            self._follow_catalog()
            return Mark(self.catalog, self.batch, self.state.manifest)

    @contextmanager
    def _keeping(self) -> Iterator[Mark]:
        """The published batch, for a load: until it is left, the log after its cut is kept, and every file."""
        ticket = object()  # held in the dict, so no other load has the same one
        with self.lock:
            mark = self._mark()
            self._loading[ticket] = mark.batch.cut
        try:
            yield mark
        finally:
            del self._loading[ticket]

    def _resolve(self, reached: Mapping[int, list[pa.Table]]) -> list[ViewChange | StreamChange]:
        tables = {v.table.id: v.table for v in self.catalog.views}

        def change(duck: Duck, view: int) -> ViewChange | StreamChange | None:
            with own_rows(tables[view]):
                return resolve(duck, self.store, tables[view], reached[view], self.memory)

        return [c for c in self.stage.crew.map(change, list(reached)) if c is not None]

    def _publish_only(self, change: Callable[[Catalog], Catalog]) -> None:
        """A batch without changes that alters the views; state that none of them needs any more is let go."""
        flow = self._flow(change(self.catalog))
        kept = frozenset(s for o in flow.stateful() for s in slots(o))
        self._publish(self.batch.number + 1, self.batch.cut, self.state.manifest.only(kept), [], change)

    def _publish(
        self,
        number: int,
        cut: int,
        manifest: Manifest,
        views: list[ViewChange | StreamChange],
        change: Callable[[Catalog], Catalog] | None = None,
        seen: Mapping[int, Seen] | None = None,
    ) -> None:
        """Steps 3 and 4. `seen`: by the capture that led to the cut; None: it is the last batch's cut."""
        catalog, flow = self.catalog, self.flow
        if change is not None:
            catalog = change(catalog)
            flow = flow if catalog.defined == self._defined else self._flow(catalog)
        record = {
            "manifest": manifest.to_json(),
            "plan": flow.fingerprint,
            "time": time.time(),
            "recent": self.recent.summary(),
            "attempt": secrets.token_hex(8),
            "memory": self.memory.total,
            "batches": self.recent.listed(),
            "merges": self._merger.counts(),
        }
        if self._sets:
            known = {v.table.id for v in catalog.views}
            self._sets = {v: m for v, m in self._sets.items() if v in known}
            record["sets"] = {str(v): m.to_json() for v, m in self._sets.items()}
        batch = Batch(number, cut, record, self.batch.seen if seen is None else seen)
        faults.point("commit.3.before")
        try:
            with storing(v.table for v in views):
                self.store.commit(batch, views, change)  # steps 3 and 4
            self.afterwards.done(_PUBLISHING)
        except MaintainerBusy:
            raise
        except Exception as error:
            if not has_happened(self.store, batch, error):
                raise
            self.afterwards.add(_PUBLISHING, error)
        self.batch = batch
        self.state.adopt(manifest)
        self._cuts.append((time.monotonic(), cut))
        with self.afterwards.of("reading the catalog again"):  # or else the next batch does
            faults.point("commit.4.after")
            if change is not None:
                self._adopt_catalog(self.store.catalog())

    def _tidy(self, changed: Iterable[str], now: bool = False) -> None:
        """Step 5. Merging begins after every batch, in the background; the rest is done once in a while."""
        published = self.state.manifest.files()
        with self.afterwards.of("beginning to merge"):
            faults.point("commit.5.merge")
            self._merger.start(self.flow, self.batch.number, changed)
        if (not now and time.monotonic() - self._tidied < _TIDY_SECONDS) or self.lease.lost:
            return  # whoever has the lease by now tidies up
        self._tidied = time.monotonic()
        with self.afterwards.of(_TRUNCATING):
            self._truncate()
        with self.afterwards.of(_COLLECTING):
            faults.point("commit.5.collect")
            self.store.collect()
            if not self._loading:
                kept = published | self._merger.files | files_of(self._sets.values()) | self._files_of_others()
                self.state.collect(keep=kept, upto=self.batch.number)
        self.afterwards.again()

    def _truncate(self) -> None:
        faults.point("commit.5.truncate")
        upto = None
        while self._cuts and self._cuts[0][0] <= self._tidied - self.retention:
            upto = self._cuts.popleft()[1]
        if upto is not None:
            self._cuts.appendleft((self._tidied - self.retention, upto))
            tracked = [v.at.low for v in self.catalog.views if v.at is not None and v.suspended is None]
            self.store.truncate(min([upto, *tracked, *self._loading.values()]))


def _size(change: ViewChange | StreamChange) -> int:
    if isinstance(change, StreamChange):
        return int(change.delta.num_rows)
    return int(change.puts.num_rows + change.deletes.num_rows)
