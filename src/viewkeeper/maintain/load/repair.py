"""Mending and making anew: state is derived, so damage costs time and never an answer.

A run's checksum is compared when the run is first opened, before any row of it is used. When it is wrong (or the file
is cut short, or gone), the batch stops with nothing published, and

    1  every run that the manifest lists is checked: whatever else is damaged is found now
    2  the operators of the damaged runs are loaded anew at the published cut, from the table images and tables; with
       an operator that computes also everything that was computed from it, down to the views' rows
    3  the new runs are published in place of the old; where a view's rows differ they are written with them

and the batch is run again. A damaged entry of the change log cannot be made anew: then all state is loaded from the
tables as they are now, which is where the log would have led.
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
"""The store's record that state was found wrong though its checksums are right."""


class StateRepair:
    """Makes anew what is damaged, what another version made, and what an audit found wrong."""

    def __init__(self, publisher: Publisher, loader: Loader) -> None:
        self._publisher = publisher
        self._loader = loader

    def run_with_repair(self, work: Callable[[], T]) -> T:
        """Do it; if state or log turn out to be damaged, mend them and do it again."""
        try:
            return work()
        except Contradiction:
            raise
        except CorruptState as damage:
            self.repair_damage(damage)
            return work()

    def repair_damage(self, damage: CorruptState) -> None:
        """Make anew what is damaged (`mending`)."""
        with self._publisher.lock:
            found = find_damaged_runs(self._publisher.state)
            if not found and isinstance(damage, CorruptRun):
                raise StoreError(
                    f"State that is whole here could not be read where it was needed: {damage.message}",
                    hint="Look at that worker's mount and disk; nothing was published, and nothing made anew.",
                ) from damage
            self._loader.report_rebuild(list(dict.fromkeys(d.message for d in found.values())) or [damage.message])
            failpoints.hit("mend.before")
            try:
                if not found:
                    raise damage
                operators, views = affected_state(self._publisher.dataflow, [e.slot.split("/")[0] for e in found])
                self._loader.rebuild(
                    manifest_without(self._publisher.state.manifest, self._publisher.dataflow, operators), views
                )
            except CorruptState as log_too:
                if log_too is not damage:
                    self._loader.report_rebuild([log_too.message])
                self.rebuild(self._publisher.store.head())
            with self._publisher.deferred_cleanup.attempt("going on after mending"):
                failpoints.hit("mend.after")

    def rebuild(self, cut: int | None = None) -> None:
        """Make all state anew, at the published cut or a later one, and bring the views' tables in line with it."""
        publisher = self._publisher
        with publisher.lock:
            self._loader.rebuild(
                Manifest(fingerprint=expressions.fingerprint()), frozenset(publisher.dataflow.views), cut
            )
            publisher.deferred_cleanup.run_or_defer(
                "taking the note of a contradiction away", self._forget_contradiction
            )

    def repair_views(self, views: frozenset[int]) -> None:
        """Make these views anew, with all state behind them and whatever else was computed from it.

        Rows that are right already are not written.
        """
        publisher = self._publisher
        with publisher.lock:
            publisher.reload()
            flow = publisher.dataflow
            mine = views & flow.views.keys()
            operators, others = affected_state(flow, flow.upstream([flow.sink(v).id for v in mine]))
            self._loader.rebuild(manifest_without(publisher.state.manifest, flow, operators), others | mine)

    def load_missing(self) -> None:
        """Load the state of operators that have none: this version makes others of the views than the one before."""
        publisher = self._publisher
        with publisher.lock:
            flow, manifest = publisher.dataflow, publisher.state.manifest
            operators, views = affected_state(flow, operators_without_state(flow, manifest))
            kept = frozenset(slot for slot, name in flow.slots.items() if name not in operators)
            self._loader.report_rebuild(["this version makes other operators of the views than the one before"])
            self._loader.rebuild(manifest.restricted_to(kept), views)

    @contextmanager
    def watch_contradictions(self) -> Iterator[None]:
        """No file is damaged and the state is wrong all the same: nobody can say how much of it."""
        try:
            yield
        except Contradiction as broken:
            if isinstance(broken.__cause__, Contradiction) and not isinstance(broken, Contradicted):
                raise  # it has been noted
            self.note_contradiction(broken)
            raise Contradiction(
                f"The state of the views contradicts itself ({broken.message}); nothing was published.",
                hint="Run vk audit --repair: it makes anew what is wrong.",
            ) from broken

    def note_contradiction(self, error: Contradiction) -> None:
        self._publisher.check_lease()  # or state that another process has changed meanwhile
        note = {"time": time.time(), "error": error.message}
        noted = partial(self._publisher.store.put_note, CONTRADICTION_NOTE, note)
        self._publisher.deferred_cleanup.run_or_defer("noting a contradiction", noted)

    def _forget_contradiction(self) -> None:
        if self._publisher.store.note(CONTRADICTION_NOTE) is not None:
            self._publisher.store.put_note(CONTRADICTION_NOTE, None)


def find_damaged_runs(state: OpenState) -> dict[RunEntry, CorruptState]:
    """Step 1: the runs of the manifest whose files are not as they were written."""
    found = {}
    for entry in (e for runs in state.manifest.runs.values() for e in runs):
        try:
            open_run(state.directory, entry, verify=True)
        except CorruptState as damage:
            found[entry] = damage
    return found


def affected_state(dataflow: Dataflow, operators: Iterable[str]) -> tuple[frozenset[str], frozenset[int]]:
    """Step 2: with these operators, all that must be loaded anew, and the views whose rows must be compared.

    An arrangement holds the rows of its input, whatever was looked up in it: those are the same again. What an operator
    computed is in the operators and views after it, so they are made anew together and cannot contradict each other.
    """
    broken = set(operators) & set(dataflow.operators)
    after = {name for name in broken if not dataflow.operators[name].is_arrangement}
    for name, operator in dataflow.operators.items():  # sources first
        if after & set(dataflow.dependencies(operator)):
            after.add(name)
    views = frozenset(view for view, made in dataflow.views.items() if made.sink.id in after)
    return frozenset((broken | after).intersection(dataflow.slots.values())), views


def manifest_without(manifest: Manifest, dataflow: Dataflow, operators: Iterable[str]) -> Manifest:
    """The manifest without the runs of these operators."""
    gone = {s for name in operators for s in slot_names(dataflow.operators[name])}
    return manifest.restricted_to(frozenset(manifest.runs) - gone)
