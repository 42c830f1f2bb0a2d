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
from viewkeeper.maintain.load.backfill import unlisted
from viewkeeper.maintain.load.loader import Loader
from viewkeeper.plan.dataflow.dataflow import Flow, slots
from viewkeeper.runtime.error_attribution import Contradicted
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.open_state import State
from viewkeeper.state.run_file import RunEntry, open_run

T = TypeVar("T")

CONTRADICTION = "contradiction"
"""The store's record that state was found wrong though its checksums are right."""


class Mender:
    """Makes anew what is damaged, what another version made, and what an audit found wrong."""

    def __init__(self, publisher: Publisher, loader: Loader) -> None:
        self._publisher = publisher
        self._loader = loader

    def mending(self, work: Callable[[], T]) -> T:
        """Do it; if state or log turn out to be damaged, mend them and do it again."""
        try:
            return work()
        except Contradiction:
            raise
        except CorruptState as damage:
            self.mend(damage)
            return work()

    def mend(self, damage: CorruptState) -> None:
        """Make anew what is damaged (`mending`)."""
        with self._publisher.lock:
            found = damaged(self._publisher.state)
            if not found and isinstance(damage, CorruptRun):
                raise StoreError(
                    f"State that is whole here could not be read where it was needed: {damage.message}",
                    hint="Look at that worker's mount and disk; nothing was published, and nothing made anew.",
                ) from damage
            self._loader.tell(list(dict.fromkeys(d.message for d in found.values())) or [damage.message])
            failpoints.point("mend.before")
            try:
                if not found:
                    raise damage
                operators, views = spoiled(self._publisher.flow, [e.slot.split("/")[0] for e in found])
                self._loader.anew(without(self._publisher.state.manifest, self._publisher.flow, operators), views)
            except CorruptState as log_too:
                if log_too is not damage:
                    self._loader.tell([log_too.message])
                self.rebuild(self._publisher.store.head())
            with self._publisher.afterwards.of("going on after mending"):
                failpoints.point("mend.after")

    def rebuild(self, cut: int | None = None) -> None:
        """Make all state anew, at the published cut or a later one, and bring the views' tables in line with it."""
        publisher = self._publisher
        with publisher.lock:
            self._loader.anew(Manifest(fingerprint=expressions.fingerprint()), frozenset(publisher.flow.views), cut)
            publisher.afterwards.owe("taking the note of a contradiction away", self._forget_contradiction)

    def repair(self, views: frozenset[int]) -> None:
        """Make these views anew, with all state behind them and whatever else was computed from it.

        Rows that are right already are not written.
        """
        publisher = self._publisher
        with publisher.lock:
            publisher.follow()
            flow = publisher.flow
            mine = views & flow.views.keys()
            operators, others = spoiled(flow, flow.behind([flow.sink(v).id for v in mine]))
            self._loader.anew(without(publisher.state.manifest, flow, operators), others | mine)

    def adapt(self) -> None:
        """Load the state of operators that have none: this version makes others of the views than the one before."""
        publisher = self._publisher
        with publisher.lock:
            flow, manifest = publisher.flow, publisher.state.manifest
            operators, views = spoiled(flow, unlisted(flow, manifest))
            kept = frozenset(slot for slot, name in flow.slots.items() if name not in operators)
            self._loader.tell(["this version makes other operators of the views than the one before"])
            self._loader.anew(manifest.only(kept), views)

    @contextmanager
    def noting_contradictions(self) -> Iterator[None]:
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

    def note_contradiction(self, broken: Contradiction) -> None:
        self._publisher.check_lease()  # or state that another process has changed meanwhile
        note = {"time": time.time(), "error": broken.message}
        noted = partial(self._publisher.store.put_note, CONTRADICTION, note)
        self._publisher.afterwards.owe("noting a contradiction", noted)

    def _forget_contradiction(self) -> None:
        if self._publisher.store.note(CONTRADICTION) is not None:
            self._publisher.store.put_note(CONTRADICTION, None)


def damaged(state: State) -> dict[RunEntry, CorruptState]:
    """Step 1: the runs of the manifest whose files are not as they were written."""
    found = {}
    for entry in (e for runs in state.manifest.runs.values() for e in runs):
        try:
            open_run(state.directory, entry, verify=True)
        except CorruptState as damage:
            found[entry] = damage
    return found


def spoiled(flow: Flow, operators: Iterable[str]) -> tuple[frozenset[str], frozenset[int]]:
    """Step 2: with these operators, all that must be loaded anew, and the views whose rows must be compared.

    An arrangement holds the rows of its input, whatever was looked up in it: those are the same again. What an operator
    computed is in the operators and views after it, so they are made anew together and cannot contradict each other.
    """
    broken = set(operators) & set(flow.operators)
    after = {name for name in broken if not flow.operators[name].is_arrangement}
    for name, operator in flow.operators.items():  # sources first
        if after & set(flow.sources(operator)):
            after.add(name)
    views = frozenset(view for view, made in flow.views.items() if made.sink.id in after)
    return frozenset((broken | after).intersection(flow.slots.values())), views


def without(manifest: Manifest, flow: Flow, operators: Iterable[str]) -> Manifest:
    """The manifest without the runs of these operators."""
    gone = {s for name in operators for s in slots(flow.operators[name])}
    return manifest.only(frozenset(manifest.runs) - gone)
