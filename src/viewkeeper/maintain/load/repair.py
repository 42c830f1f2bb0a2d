"""Repair and rebuild: state is derived from the tables, so damaged state costs time, but no data.

A run's checksum is compared when the run is first opened, before any of its rows is used. If it is wrong, or the file
is truncated or missing, the batch stops with nothing published, and

    1  every run that the manifest lists is checked, so that all damage is found at once
    2  the operators of the damaged runs are reloaded at the published cut, from table images and tables; if such an
       operator is no arrangement, everything computed from it is reloaded too, including the views' rows
    3  the new runs are published in place of the old ones, with the differences of the views' rows

Then the batch is run again. A damaged entry of the change log cannot be rebuilt: in that case all state is loaded from
the current tables, which already include the logged changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from viewkeeper import expressions, failpoints
from viewkeeper.commit.publisher import Publisher
from viewkeeper.errors import Contradiction, CorruptRun, CorruptState, StoreError
from viewkeeper.maintain.load.backfill import operators_without_state
from viewkeeper.maintain.load.loader import Loader
from viewkeeper.plan.dataflow.dataflow import Dataflow, slot_names
from viewkeeper.runtime.error_attribution import Contradicted
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.open_state import OpenState
from viewkeeper.state.run_file import RunEntry, open_run

T = TypeVar("T")

CONTRADICTION_NOTE = "contradiction"
"""Name of the store's note that state is wrong although its checksums are right."""


class StateRepair:
    """Rebuilds damaged state, state of another version, and views that an audit found wrong."""

    def __init__(self, publisher: Publisher, loader: Loader) -> None:
        self._publisher = publisher
        self._loader = loader

    def run_with_repair(self, work: Callable[[], T]) -> T:
        """Run `work`; if state or log turn out to be damaged, repair them and run it again."""
        try:
            return work()
        except Contradiction:
            raise
        except CorruptState as damage:
            self.repair_damage(damage)
            return work()

    def repair_damage(self, damage: CorruptState) -> None:
        """Repair damaged state by steps 1 to 3."""
        with self._publisher.lock:
            damaged = find_damaged_runs(self._publisher.state)
            if not damaged and isinstance(damage, CorruptRun):
                raise StoreError(
                    f"State that is whole here could not be read where it was needed: {damage.message}",
                    hint="Look at that worker's mount and disk; nothing was published, and nothing made anew.",
                ) from damage
            self._loader.report_rebuild(
                list(dict.fromkeys(error.message for error in damaged.values())) or [damage.message]
            )
            failpoints.hit("mend.before")
            try:
                if not damaged:
                    raise damage
                operators, views = affected_state(
                    self._publisher.dataflow, [entry.slot.split("/")[0] for entry in damaged]
                )
                self._loader.rebuild(
                    manifest_without(self._publisher.state.manifest, self._publisher.dataflow, operators), views
                )
            except CorruptState as second_damage:
                if second_damage is not damage:
                    self._loader.report_rebuild([second_damage.message])
                self.rebuild(self._publisher.store.head())
            with self._publisher.deferred_cleanup.attempt("going on after mending"):
                failpoints.hit("mend.after")

    def rebuild(self, cut: int | None = None) -> None:
        """Rebuild all state, at the published cut or a later one, and update the views' tables accordingly."""
        publisher = self._publisher
        with publisher.lock:
            self._loader.rebuild(
                Manifest(fingerprint=expressions.fingerprint()), frozenset(publisher.dataflow.views), cut
            )
            publisher.deferred_cleanup.run_or_defer(
                "taking the note of a contradiction away", self._forget_contradiction
            )

    def repair_views(self, views: frozenset[int]) -> None:
        """Rebuild these views, all state behind them, and everything else that was computed from it.

        Rows that are correct already are not written.
        """
        publisher = self._publisher
        with publisher.lock:
            publisher.reload()
            dataflow = publisher.dataflow
            maintained = views & dataflow.views.keys()
            operators, affected = affected_state(
                dataflow, dataflow.upstream([dataflow.sink(view).id for view in maintained])
            )
            self._loader.rebuild(manifest_without(publisher.state.manifest, dataflow, operators), affected | maintained)

    def load_missing(self) -> None:
        """Load operators without state, after an upgrade to a version that compiles views to different operators."""
        publisher = self._publisher
        with publisher.lock:
            dataflow, manifest = publisher.dataflow, publisher.state.manifest
            operators, views = affected_state(dataflow, operators_without_state(dataflow, manifest))
            kept_slots = frozenset(slot for slot, name in dataflow.slots.items() if name not in operators)
            self._loader.report_rebuild(["this version makes other operators of the views than the one before"])
            self._loader.rebuild(manifest.restricted_to(kept_slots), views)

    @contextmanager
    def watch_contradictions(self) -> Iterator[None]:
        """Record and raise a contradiction: state is wrong to an unknown extent, although no file is damaged."""
        try:
            yield
        except Contradiction as contradiction:
            if isinstance(contradiction.__cause__, Contradiction) and not isinstance(contradiction, Contradicted):
                raise  # noted already
            self.note_contradiction(contradiction)
            raise Contradiction(
                f"The state of the views contradicts itself ({contradiction.message}); nothing was published.",
                hint="Run vk audit --repair: it makes anew what is wrong.",
            ) from contradiction

    def note_contradiction(self, error: Contradiction) -> None:
        self._publisher.check_lease()  # without the lease, another process may have changed the state
        note = {"time": time.time(), "error": error.message}
        noted = partial(self._publisher.store.put_note, CONTRADICTION_NOTE, note)
        self._publisher.deferred_cleanup.run_or_defer("noting a contradiction", noted)

    def _forget_contradiction(self) -> None:
        if self._publisher.store.note(CONTRADICTION_NOTE) is not None:
            self._publisher.store.put_note(CONTRADICTION_NOTE, None)


def find_damaged_runs(state: OpenState) -> dict[RunEntry, CorruptState]:
    """Step 1: return the manifest's damaged runs with their errors."""
    damaged = {}
    for entry in (e for runs in state.manifest.runs.values() for e in runs):
        try:
            open_run(state.directory, entry, verify=True)
        except CorruptState as damage:
            damaged[entry] = damage
    return damaged


def affected_state(dataflow: Dataflow, operators: Iterable[str]) -> tuple[frozenset[str], frozenset[int]]:
    """Step 2: return the operators that must be reloaded with these, and the views whose rows must be compared.

    A reloaded arrangement contains the same rows again, so the operators that look it up need no reload. The results of
    any other operator are part of the state of operators and views downstream, so these are reloaded with it and cannot
    contradict it.
    """
    reloaded = set(operators) & set(dataflow.operators)
    downstream = {name for name in reloaded if not dataflow.operators[name].is_arrangement}
    for name, operator in dataflow.operators.items():  # sources first
        if downstream & set(dataflow.dependencies(operator)):
            downstream.add(name)
    views = frozenset(view for view, compiled in dataflow.views.items() if compiled.sink.id in downstream)
    return frozenset((reloaded | downstream).intersection(dataflow.slots.values())), views


def manifest_without(manifest: Manifest, dataflow: Dataflow, operators: Iterable[str]) -> Manifest:
    """Return the manifest without the runs of these operators."""
    dropped_slots = {s for name in operators for s in slot_names(dataflow.operators[name])}
    return manifest.restricted_to(frozenset(manifest.runs) - dropped_slots)
