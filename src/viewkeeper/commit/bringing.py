"""Bringing state in: what the views lack is loaded, for the first time, again, or in place of what is damaged.

The numbered steps are those of `loading`, beside the batches that go on or under the lock that stops them: from a state
that lacks something to a published batch that has it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper import faults
from viewkeeper.capture.kept import Kept
from viewkeeper.capture.parts import CutMoved
from viewkeeper.capture.snapshot import Progress
from viewkeeper.commit.batches import Batches, Mark
from viewkeeper.commit.isolation import own_rows
from viewkeeper.commit.load import missing_state
from viewkeeper.commit.loading import Loaded, catch_up, load, scan_first
from viewkeeper.commit.manifest import Manifest
from viewkeeper.commit.mending import damaged, spoiled, without
from viewkeeper.commit.report import MENDED
from viewkeeper.commit.sink import resolve
from viewkeeper.commit.stage import Stage
from viewkeeper.commit.state import State
from viewkeeper.errors import Contradiction, CorruptRun, CorruptState, StoreError
from viewkeeper.model.catalog import Catalog, View
from viewkeeper.model.delta import weighted
from viewkeeper.model.schema import COUNT, WEIGHT, Table
from viewkeeper.plan import expressions
from viewkeeper.plan.flow import Flow, slots

CONTRADICTION = "contradiction"
"""The store's record that state was found wrong though its checksums are right."""

_log = logging.getLogger("viewkeeper")

_FINAL_ROWS = 20_000
"""Changed rows that a load leaves for its last step, in which no batch runs."""


class Bringing(Batches):
    """Adds loads, and mending, which is loading again."""

    def rebuild(self, cut: int | None = None) -> None:
        """Make all state anew, at the published cut or a later one, and bring the views' tables in line with it."""
        with self.lock:
            self._anew(Manifest(fingerprint=expressions.fingerprint()), frozenset(self.flow.sinks), cut)
            self.afterwards.owe("taking the note of a contradiction away", self._forget_contradiction)

    @contextmanager
    def _noting_contradictions(self) -> Iterator[None]:
        """No file is damaged and the state is wrong all the same: nobody can say how much of it."""
        try:
            yield
        except Contradiction as broken:
            if isinstance(broken.__cause__, Contradiction):
                raise  # it has been noted
            self._check_lease()  # or state that another process has changed meanwhile
            note = {"time": time.time(), "error": broken.message}
            self.afterwards.owe("noting a contradiction", partial(self.store.put_note, CONTRADICTION, note))
            raise Contradiction(
                f"The state of the views contradicts itself ({broken.message}); nothing was published.",
                hint="Run vk audit --repair: it makes anew what is wrong.",
            ) from broken

    def _forget_contradiction(self) -> None:
        if self.store.note(CONTRADICTION) is not None:
            self.store.put_note(CONTRADICTION, None)

    def _adapt(self) -> None:
        """Load the state of operators that have none: this version makes others of the views than the one before."""
        with self.lock:
            missing = [o.id for o in self.flow.stateful() if slots(o)[0] not in self.state.manifest.runs]
            operators, views = spoiled(self.flow, missing)
            kept = frozenset(s for o in self.flow.stateful() if o.id not in operators for s in slots(o))
            self._tell(["this version makes other operators of the views than the one before"])
            self._anew(self.state.manifest.only(kept), views)

    def _tell(self, why: Sequence[str]) -> None:
        """State is about to be made anew: in the log, the next report, and for status and doctor."""
        for reason in why:
            _log.warning("%s: state is made anew: %s", self.store.url, reason)
        self.mended += why
        self.afterwards.owe("noting what was mended", partial(self._note_mended, list(why)))

    def _note_mended(self, why: list[str]) -> None:
        before = self.store.note(MENDED) or {}
        note = {"time": time.time(), "damage": why, "count": before.get("count", 0) + 1}
        self.store.put_note(MENDED, note)

    def mend(self, damage: CorruptState) -> None:
        """Make anew what is damaged (`mending`)."""
        with self.lock:
            found = damaged(self.state)
            if not found and isinstance(damage, CorruptRun):
                raise StoreError(
                    f"State that is whole here could not be read where it was needed: {damage.message}",
                    hint="Look at that worker's mount and disk; nothing was published, and nothing made anew.",
                ) from damage
            self._tell(list(dict.fromkeys(d.message for d in found.values())) or [damage.message])
            faults.point("mend.before")
            try:
                if not found:
                    raise damage
                operators, views = spoiled(self.flow, [e.slot.split("/")[0] for e in found])
                self._anew(without(self.state.manifest, self.flow, operators), views)
            except CorruptState as log_too:
                if log_too is not damage:
                    self._tell([log_too.message])
                self.rebuild(self.store.head())
            with self.afterwards.of("going on after mending"):
                faults.point("mend.after")

    def _publish_only(self, change: Callable[[Catalog], Catalog]) -> None:
        """Without some view another arrangement may have to serve as a table's image, which is then loaded first."""
        try:
            missing = missing_state(self._flow(change(self.catalog)), self.state)
        except CorruptState as damage:
            self.mend(damage)
            missing = missing_state(self._flow(change(self.catalog)), self.state)
        if missing:
            self._load(frozenset(), lambda catalog, _: change(catalog), "auto", None, base=self.state.manifest)
        else:
            super()._publish_only(change)

    def _anew(self, base: Manifest, views: frozenset[int], cut: int | None = None) -> None:
        """Load what `base` lacks and these views, and publish them. The lock is held: no batch goes on meanwhile."""

        def change(catalog: Catalog, since: int) -> Catalog:
            for view in (v for v in catalog.views if v.table.id in views and not v.table.is_stored):
                catalog = catalog.replacing(restarted(view, since))
            return catalog

        if not all(self.store.shows_past(table) for table in self.flow.tables.values()):
            # Nobody can say what was there at the published cut: all views come to a later one together.
            base, views = Manifest(fingerprint=expressions.fingerprint()), frozenset(self.flow.sinks)
        self._load(views, change, "auto", None, base=base, cut=cut)

    def _bring_in(
        self,
        views: frozenset[int],
        change: Callable[[Catalog, int], Catalog],
        lane: str,
        progress: Progress | None,
    ) -> None:
        """Load views beside the batches that go on, catch up, and publish them with the catalog's change."""
        with self.defining, self._noting_contradictions():
            done = False
            while not done:
                try:
                    done = self._load(views, change, lane, progress)
                except Contradiction:
                    raise
                except CorruptState as damage:
                    self.mend(damage)
                    done = self._load(views, change, lane, progress)

    def _load(
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
        with self._keeping() as mark:
            return self._load_from(mark, views, change, lane, progress, base, cut)

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
        state = State(str(self.state.directory), mark.manifest)
        memory = self.memory if base is not None else self.beside
        stage = Stage(self.store, state, self._spark, durable=self._durable, threads=self._threads, memory=memory)
        kept = Kept(self.store, state.directory) if base is None else None
        try:
            changed = change(mark.catalog, 0)
            flow = self._flow(changed)
            live = scan_first(stage, flow, views, lane, progress, kept)
            if live and (base is None or base is published):
                # The next batch sees all that was found: its cut is one to which that can be brought.
                with self.lock:
                    self.refresh()
                    mark = self._mark()
                state.adopt(mark.manifest)
                changed = change(mark.catalog, 0)
                flow = self._flow(changed)
            elif live:
                cut = self.store.head()
            names = {v.table.id: v.table.name for v in changed.views}
            at, number, alone = cut or mark.batch.cut, mark.batch.number + 1, base is not None and not base.runs
            try:
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
            except CutMoved:
                if base is None:
                    self.refresh()
                    return False
                # What the other views have seen cannot be read again: all of them come to what is there, together.
                self._tell(["what the other views had seen of the tables cannot be read again"])
                nothing = Manifest(fingerprint=expressions.fingerprint())
                return self._load(frozenset(flow.sinks), change, lane, progress, base=nothing, cut=cut)
            faults.point("load.1.after")
            while True:
                state.adopt(loaded.beside(flow, mark.manifest))
                if base is not None or self.store.pending(loaded.cut, list(flow.used)).rows <= _FINAL_ROWS:
                    break
                mark, loaded = self._caught_up(stage, flow, loaded, names, lane)  # 2
            faults.point("load.2.after")
            with self.lock:  # 3
                while True:
                    mark = self._mark() if base is None else mark
                    changed = change(mark.catalog, 0)
                    flow = self._flow(changed)
                    if loaded.misses(flow, mark.manifest):
                        return False
                    try:
                        if mark.batch.cut > loaded.cut:
                            loaded = catch_up(stage, flow, loaded, mark.batch, names, lane)
                        break
                    except CutMoved:
                        self.refresh()
                self._publish_loaded(loaded, flow, changed, mark.manifest, change)
            if kept is not None:
                self.afterwards.owe("forgetting parts of a load", lambda: kept.forget(frozenset(flow.used)))
            return True
        finally:
            with self.afterwards.of("closing a load"):
                stage.close()
                if kept is not None:
                    kept.close()

    def _caught_up(
        self, stage: Stage, flow: Flow, loaded: Loaded, names: Mapping[int, str], lane: str
    ) -> tuple[Mark, Loaded]:
        """Step 2, to a batch that has seen all that can be seen up to its cut."""
        while True:
            with self.lock:
                self.refresh()
                mark = self._mark()
            with suppress(CutMoved):
                return mark, catch_up(stage, flow, loaded, mark.batch, names, lane)

    def _publish_loaded(
        self,
        loaded: Loaded,
        flow: Flow,
        catalog: Catalog,
        shared: Manifest,
        change: Callable[[Catalog, int], Catalog],
    ) -> None:
        there = {v.table.id: v.table for v in self.catalog.views}
        changes = []
        for view in (v for v in catalog.views if v.table.id in loaded.rows and v.table.is_stored):
            rows = list(loaded.rows[view.table.id])
            if view.table.id in there:
                rows.append(self._stored(view.table))
            with own_rows(view.table):
                left = [r for r in rows if r.num_rows]
                found = resolve(self.stage.duck, self.store, view.table, left, self.memory)
            changes.extend([found] if found else [])
        manifest = loaded.beside(flow, shared)

        def changed(catalog: Catalog) -> Catalog:
            """The store calls this in its transaction: the commit's own position is the next one."""
            return change(catalog, self.store.head() + 1)

        self._publish(self.batch.number + 1, loaded.cut, manifest, changes, changed, loaded.seen)
        self._tidy((), now=True)

    def _stored(self, table: Table) -> pa.Table:
        """What a view's table holds now, as the delta that takes it away."""
        rows = self.memory.gathered(self.store.scan(table), table.arrow)
        names = [f"o{i}" for i in range(len(table.columns))]
        if table.is_bag:
            weights = pc.negate(rows[COUNT])
            return rows.drop_columns([COUNT]).append_column(WEIGHT, weights).rename_columns([*names, WEIGHT])
        return weighted(rows, -1).rename_columns([*names, WEIGHT])


def restarted(view: View, since: int) -> View:
    """A view whose state was made anew. What a stored one had is known, so its deltas go on; others start over."""
    return view if view.table.is_stored else replace(view, since=since)
