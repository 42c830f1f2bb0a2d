"""The loader: what the views lack is loaded, for the first time, again, or in place of what is damaged.

The numbered steps are those of `loading`, beside the batches that go on or under the lock that stops them: from a state
that lacks something to a published batch that has it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper import expressions, failpoints
from viewkeeper.capture.partition_store import Kept
from viewkeeper.capture.partitions import CutMoved
from viewkeeper.capture.snapshot import Progress
from viewkeeper.commit.batch_history import MENDED
from viewkeeper.commit.cleanup import Tidying
from viewkeeper.commit.publisher import Mark, Publisher
from viewkeeper.maintain.load.backfill import Loaded, catch_up, load, scan_first
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.delta import weighted
from viewkeeper.model.schema import COUNT, WEIGHT, Table
from viewkeeper.plan.dataflow.dataflow import Flow
from viewkeeper.runtime.error_attribution import own_rows
from viewkeeper.runtime.executor import Resources, Stage
from viewkeeper.runtime.upserts import resolve
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.open_state import State

_log = logging.getLogger("viewkeeper")

_FINAL_ROWS = 20_000
"""Changed rows that a load leaves for its last step, in which no batch runs."""

_TRIES = 3
"""A table that cannot be read as of a cut and is written all the time never stands still: after so many attempts to
find it as the other views have seen it, all views are made anew from one look at it."""


class Loader:
    """Loads what is missing and publishes it.

    `stage` is the one of the batches, for whatever happens while none runs; `refresh` runs one.
    """

    def __init__(
        self,
        publisher: Publisher,
        tidying: Tidying,
        resources: Resources,
        stage: Stage,
        refresh: Callable[[], object],
    ) -> None:
        self.mended: list[str] = []
        """Why state was made anew, since the last report."""
        self._publisher = publisher
        self._tidying = tidying
        self._resources = resources
        self._stage = stage
        self._refresh = refresh

    def tell(self, why: Sequence[str]) -> None:
        """State is about to be made anew: in the log, the next report, and for status and doctor."""
        for reason in why:
            _log.warning("%s: state is made anew: %s", self._publisher.store.url, reason)
        self.mended += why
        self._publisher.afterwards.owe("noting what was mended", partial(self._note_mended, list(why)))

    def _note_mended(self, why: list[str]) -> None:
        before = self._publisher.store.note(MENDED) or {}
        note = {"time": time.time(), "damage": why, "count": before.get("count", 0) + 1}
        self._publisher.store.put_note(MENDED, note)

    def anew(self, base: Manifest, views: frozenset[int], cut: int | None = None) -> None:
        """Load what `base` lacks and these views, and publish them. The lock is held: no batch goes on meanwhile."""

        def change(catalog: Catalog, since: int) -> Catalog:
            for view in (v for v in catalog.special if v.table.id in views and not v.table.has_rows):
                catalog = catalog.replacing(restarted(view, since))
            return catalog

        if not all(self._publisher.store.shows_past(table) for table in self._publisher.flow.tables.values()):
            # Nobody can say what was there at the published cut: all views come to a later one together.
            base, views = Manifest(fingerprint=expressions.fingerprint()), frozenset(self._publisher.flow.views)
        self.load(views, change, "auto", None, base=base, cut=cut)

    def load(
        self,
        views: frozenset[int],
        change: Callable[[Catalog, int], Catalog],
        lane: str,
        progress: Progress | None,
        *,
        base: Manifest | None = None,
        cut: int | None = None,
    ) -> bool:
        """The numbered steps of `loading`; False if it must start over: what it shared with other views is gone, or
        they have not seen all that it read.

        `base`: the state to load beside, other than the published one, and `cut` where; the caller holds the lock.
        """
        for _ in range(_TRIES if base is None else 1):
            with suppress(CutMoved), self._publisher.keeping() as mark:
                return self._load_from(mark, views, change, lane, progress, base, cut)
            if base is None:
                self._refresh()
        # What the other views have seen cannot be read again: all of them come to what is there, together.
        with self._publisher.lock:
            self.tell(["what the other views had seen of the tables cannot be read again"])
            every = frozenset(self._publisher.flow_of(change(self._publisher.catalog, 0)).views)
            nothing = Manifest(fingerprint=expressions.fingerprint())
            return self.load(every, change, lane, progress, base=nothing, cut=cut)

    def _load_from(
        self,
        mark: Mark,
        views: frozenset[int],
        change: Callable[[Catalog, int], Catalog],
        lane: str,
        progress: Progress | None,
        base: Manifest | None,
        cut: int | None,
    ) -> bool:
        published = mark.manifest
        if base is not None:
            mark = replace(mark, manifest=base)
        state = State(str(self._publisher.state.directory), mark.manifest)
        memory = self._resources.memory if base is not None else self._resources.beside
        stage = self._resources.stage(state, memory)
        kept = Kept(self._publisher.store, state.directory) if base is None else None
        try:
            changed = change(mark.catalog, 0)
            flow = self._publisher.flow_of(changed)
            live = scan_first(stage, flow, views, lane, progress, kept)
            if live and (base is None or base is published):
                # The next batch sees all that was found: its cut is one to which that can be brought.
                with self._publisher.lock:
                    self._refresh()
                    mark = self._publisher.mark()
                state.adopt(mark.manifest)
                changed = change(mark.catalog, 0)
                flow = self._publisher.flow_of(changed)
            elif live:
                cut = self._publisher.store.head()
            names = changed.names
            at, number, alone = cut or mark.batch.cut, mark.batch.number + 1, base is not None and not base.runs
            loaded = load(  # 1
                stage,
                flow,
                views,
                at,
                number,
                names,
                lane,
                progress,
                seen=mark.batch.seen,
                alone=alone,
                live=live,
                kept=kept,
            )
            failpoints.point("load.1.after")
            while True:
                state.adopt(loaded.beside(flow, mark.manifest))
                if base is not None or self._publisher.store.pending(loaded.cut, list(flow.used)).rows <= _FINAL_ROWS:
                    break
                mark, loaded = self._caught_up(stage, flow, loaded, names, lane)  # 2
            failpoints.point("load.2.after")
            with self._publisher.lock:  # 3
                for attempt in range(_TRIES):
                    mark = self._publisher.mark() if base is None else mark
                    changed = change(mark.catalog, 0)
                    flow = self._publisher.flow_of(changed)
                    if loaded.misses(flow, mark.manifest):
                        return False
                    try:
                        if mark.batch.cut > loaded.cut:
                            loaded = catch_up(stage, flow, loaded, mark.batch, names, lane)
                        break
                    except CutMoved:
                        if attempt == _TRIES - 1:
                            raise
                        self._refresh()
                self._publish_loaded(loaded, flow, changed, mark.manifest, change)
            if kept is not None:
                self._publisher.afterwards.owe("forgetting parts of a load", lambda: kept.forget(frozenset(flow.used)))
            return True
        finally:
            with self._publisher.afterwards.of("closing a load"):
                stage.close()
                if kept is not None:
                    kept.close()

    def _caught_up(
        self, stage: Stage, flow: Flow, loaded: Loaded, names: Mapping[int, str], lane: str
    ) -> tuple[Mark, Loaded]:
        """Step 2, to a batch that has seen all that can be seen up to its cut."""
        for _ in range(_TRIES):
            with self._publisher.lock:
                self._refresh()
                mark = self._publisher.mark()
            with suppress(CutMoved):
                return mark, catch_up(stage, flow, loaded, mark.batch, names, lane)
        raise CutMoved

    def _publish_loaded(
        self,
        loaded: Loaded,
        flow: Flow,
        catalog: Catalog,
        shared: Manifest,
        change: Callable[[Catalog, int], Catalog],
    ) -> None:
        changes = []
        for view in (v for v in map(catalog.views_by_id.get, loaded.rows) if v is not None and v.table.is_stored):
            rows = list(loaded.rows[view.table.id])
            if self._publisher.view(view.table.id) is not None:
                rows.append(self.stored(view.table))
            with own_rows(view.table):
                left = [r for r in rows if r.num_rows]
                found = resolve(self._stage.duck, self._publisher.store, view.table, left, self._resources.memory)
            changes.extend([found] if found else [])
        manifest = loaded.beside(flow, shared)

        def changed(catalog: Catalog) -> Catalog:
            """The store calls this in its transaction: the commit's own position is the next one."""
            return change(catalog, self._publisher.store.head() + 1)

        self._publisher.publish(self._publisher.batch.number + 1, loaded.cut, manifest, changes, changed, loaded.seen)
        self._tidying.after((), now=True)

    def stored(self, table: Table) -> pa.Table:
        """What a view's table holds now, as the delta that takes it away."""
        rows = self._resources.memory.gathered(self._publisher.store.scan(table), table.arrow)
        names = [f"o{i}" for i in range(len(table.columns))]
        if table.is_bag:
            weights = pc.negate(rows[COUNT])
            return rows.drop_columns([COUNT]).append_column(WEIGHT, weights).rename_columns([*names, WEIGHT])
        return weighted(rows, -1).rename_columns([*names, WEIGHT])


def restarted(view: View, since: int) -> View:
    """A view whose state was made anew. What a stored one had is known, so its deltas go on; others start over."""
    return view if view.table.has_rows else replace(view, since=since)
