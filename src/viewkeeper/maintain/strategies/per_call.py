"""Per-call views: a view that shows the state after every write call is maintained separately from the batches.

It has its own arrangements, its own DuckDB connection, and its own cut, which follows that of the batches: from one
call that changes its tables to the next, with a commit for each.

In a store without before-images (HBase), a call is all that was written at one time, and changes are computed against
the view's own images. The capture marks of the last step are kept while the view is open. Without them the last seconds
are read again, and changes that are known already cancel out, so the marks need not be published.
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
"""Pending changes of one call: capture then reads them with one thread, since batches run at the same time."""


class PerCallView:
    """An open per-call view. `manifest` lists its published runs."""

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
        """The cut of the last step, and the tables' capture marks at it."""

    @property
    def files(self) -> frozenset[str]:
        """Files that garbage collection must keep."""
        return self._state.manifest.files() | self._compactor.files

    def step(self, view: View, up_to: int, number: int) -> RemakeResult | None:
        """Return the result of the next call; None if no call up to `up_to` changes the view's tables."""
        if view.own_cut is None:
            raise Defect(f"{view.table.name} has no cut to go on from.")
        tables = list(self.dataflow.used_columns)
        after = view.own_cut.cut
        cut = self._store.cut_after(after, tables, 1)
        if cut > up_to:  # `cut_after` returns the head if there is no later call
            # In a store whose calls may become visible late, only the changes show whether there was a call.
            can_count = self._store.capabilities.before_images
            if can_count and self._store.pending(after, tables).calls == self._store.pending(up_to, tables).calls:
                return None
            cut = up_to
        try:
            for failure in self._compactor.adopt():
                raise broken_views(self.dataflow, {view.table.id: view.table.name}, failure) from failure
        except (BrokenViews, CorruptState):
            raise
        except Exception as error:  # the unmerged runs are still valid
            _log.warning(
                "%s: merging runs of %s failed and is tried again: %s", self._store.url, view.table.name, error
            )
        captured_cut, marks = self._last_capture
        deltas, new_marks = self._executor.capture.read_changes(
            self.dataflow, after, cut, marks if captured_cut == after else {}, tables, _SINGLE_CALL
        )
        self._last_capture = cut, new_marks
        if cut == up_to and not any(delta.num_rows for delta in deltas.values()):
            return None
        names = {view.table.id: view.table.name}
        result = self._executor.run(
            number, "driver", self.dataflow, self.dataflow.batch_operators, memory_inputs(deltas), names
        )
        manifest = self._state.manifest.with_entries(result.entries)
        return RemakeResult(cut, cut, list(result.deltas.get(view.table.id, ())), False, manifest, len(result.entries))

    def adopt_published(self, result: RemakeResult, number: int) -> None:
        if result.manifest is None:
            raise Defect("A view that runs by itself was made without state.")
        changed = {slot for slot, runs in result.manifest.runs.items() if runs != self._state.manifest.runs.get(slot)}
        self._state.adopt(result.manifest)
        self._compactor.start(self.dataflow, number, changed)

    def close(self) -> None:
        self._compactor.close()
        self._executor.close()
