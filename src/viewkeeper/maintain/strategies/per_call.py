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

from viewkeeper.commit.compactor import Merger
from viewkeeper.errors import CorruptState, Defect
from viewkeeper.maintain.strategies.remake import Remade
from viewkeeper.model.catalog.catalog import View
from viewkeeper.plan.dataflow.dataflow import Flow
from viewkeeper.resources.memory import Memory
from viewkeeper.runtime.error_attribution import BrokenViews, broken_by
from viewkeeper.runtime.executor import Stage, given_rows
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.open_state import State
from viewkeeper.store.contract.store import Pending, Seen, Store

_log = logging.getLogger("viewkeeper")
_FEW = Pending(0, 1, None)
"""Its changes are read by one thread: others work beside it."""


class Alone:
    """One such view, open. `known`: its published runs."""

    def __init__(
        self, store: Store, flow: Flow, known: Manifest, spark: Callable[[], Any], durable: bool, memory: Memory
    ) -> None:
        self.flow = flow
        self._store = store
        self._state = State(store.state_path, known)
        self._stage = Stage(store, self._state, spark, durable=durable, threads=1, memory=memory)
        self._merger = Merger(self._state, durable, memory.divided(4))
        self._seen: tuple[int, Mapping[int, Seen]] = (-1, {})
        """A cut, and what was seen of the tables up to it."""

    @property
    def files(self) -> frozenset[str]:
        """What must not be collected."""
        return self._state.manifest.files() | self._merger.files

    def step(self, view: View, upto: int, number: int) -> Remade | None:
        """The next call's changes; None if no call up to there changes its tables."""
        if view.at is None:
            raise Defect(f"{view.table.name} has no cut to go on from.")
        tables = list(self.flow.used)
        after = view.at.cut
        cut = self._store.cut_after(after, tables, 1)
        if cut > upto:  # after the last call of all it is the head, also where there is none
            # Where calls can become visible late, only what they did says whether there was one.
            counts = self._store.capabilities.before_images
            if counts and self._store.pending(after, tables).calls == self._store.pending(upto, tables).calls:
                return None
            cut = upto
        try:
            for failure in self._merger.adopt():
                raise broken_by(self.flow, {view.table.id: view.table.name}, failure) from failure
        except (BrokenViews, CorruptState):
            raise
        except Exception as error:  # the runs that were to be merged are there and count
            _log.warning(
                "%s: merging runs of %s failed and is tried again: %s", self._store.url, view.table.name, error
            )
        at, seen = self._seen
        deltas, now = self._stage.capture.changes(self.flow, after, cut, seen if at == after else {}, tables, _FEW)
        self._seen = cut, now
        if cut == upto and not any(d.num_rows for d in deltas.values()):
            return None
        names = {view.table.id: view.table.name}
        outcome = self._stage.run(number, "driver", self.flow, self.flow.in_batches, given_rows(deltas), names)
        manifest = self._state.manifest.plus(outcome.entries)
        return Remade(cut, cut, list(outcome.reached.get(view.table.id, ())), False, manifest, len(outcome.entries))

    def published(self, made: Remade, number: int) -> None:
        if made.manifest is None:
            raise Defect("A view that runs by itself was made without state.")
        changed = {s for s, r in made.manifest.runs.items() if r != self._state.manifest.runs.get(s)}
        self._state.adopt(made.manifest)
        self._merger.start(self.flow, number, changed)

    def close(self) -> None:
        self._merger.close()
        self._stage.close()
