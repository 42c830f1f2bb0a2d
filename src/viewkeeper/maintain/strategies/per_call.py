"""A view that shows every write call's state runs by itself: the others need not go call by call with it.

It has its own arrangements, its own DuckDB and its own cut, which follows that of the batches: from one call that
touches its tables to the next, each a commit of its rows alone.

Where the store knows no rows from before (HBase) a call is what was written at one time, changes are found against the
view's own images, and what was seen of the last seconds is remembered while the view is open. Who does not remember
reads those seconds again, and what is known already falls out: nothing has to be published for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from viewkeeper.commit.compactor import Compactor
from viewkeeper.errors import CorruptState, Defect
from viewkeeper.maintain.strategies.remake import RemakeResult
from viewkeeper.model.catalog.catalog import View
from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.runtime.error_attribution import BrokenViews, broken_views
from viewkeeper.runtime.executor import BatchExecutor, memory_inputs
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.open_state import OpenState
from viewkeeper.store.contract.store import CaptureMark, PendingChanges, Store

_log = logging.getLogger("viewkeeper")
_SINGLE_CALL = PendingChanges(0, 1, None)
"""Its changes are read by one thread: others work beside it."""


class PerCallView:
    """One such view, open. `known`: its published runs."""

    def __init__(
        self,
        store: Store,
        dataflow: Dataflow,
        manifest: Manifest,
        spark: Callable[[], Any],
        durable: bool,
        memory: MemoryBudget,
    ) -> None:
        self.dataflow = dataflow
        self._store = store
        self._state = OpenState(store.state_path, manifest)
        self._executor = BatchExecutor(store, self._state, spark, durable=durable, threads=1, memory=memory)
        self._compactor = Compactor(self._state, durable, memory.divide(4))
        self._last_capture: tuple[int, Mapping[int, CaptureMark]] = (-1, {})
        """A cut, and what was seen of the tables up to it."""

    @property
    def files(self) -> frozenset[str]:
        """What must not be collected."""
        return self._state.manifest.files() | self._compactor.files

    def step(self, view: View, up_to: int, number: int) -> RemakeResult | None:
        """The next call's changes; None if no call up to there changes its tables."""
        if view.own_cut is None:
            raise Defect(f"{view.table.name} has no cut to go on from.")
        tables = list(self.dataflow.used_columns)
        after = view.own_cut.cut
        cut = self._store.cut_after(after, tables, 1)
        if cut > up_to:  # after the last call of all it is the head, also where there is none
            # Where calls can become visible late, only what they did says whether there was one.
            counts = self._store.capabilities.before_images
            if counts and self._store.pending(after, tables).calls == self._store.pending(up_to, tables).calls:
                return None
            cut = up_to
        try:
            for failure in self._compactor.adopt():
                raise broken_views(self.dataflow, {view.table.id: view.table.name}, failure) from failure
        except (BrokenViews, CorruptState):
            raise
        except Exception as error:  # the runs that were to be merged are there and count
            _log.warning(
                "%s: merging runs of %s failed and is tried again: %s", self._store.url, view.table.name, error
            )
        at, seen = self._last_capture
        deltas, now = self._executor.capture.read_changes(
            self.dataflow, after, cut, seen if at == after else {}, tables, _SINGLE_CALL
        )
        self._last_capture = cut, now
        if cut == up_to and not any(d.num_rows for d in deltas.values()):
            return None
        names = {view.table.id: view.table.name}
        outcome = self._executor.run(
            number, "driver", self.dataflow, self.dataflow.batch_operators, memory_inputs(deltas), names
        )
        manifest = self._state.manifest.with_entries(outcome.entries)
        return RemakeResult(
            cut, cut, list(outcome.deltas.get(view.table.id, ())), False, manifest, len(outcome.entries)
        )

    def adopt_published(self, result: RemakeResult, number: int) -> None:
        if result.manifest is None:
            raise Defect("A view that runs by itself was made without state.")
        changed = {s for s, r in result.manifest.runs.items() if r != self._state.manifest.runs.get(s)}
        self._state.adopt(result.manifest)
        self._compactor.start(self.dataflow, number, changed)

    def close(self) -> None:
        self._compactor.close()
        self._executor.close()
