"""Mending: state is derived, so a damaged file costs time and never an answer.

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

from collections.abc import Iterable

from viewkeeper.commit.manifest import Manifest
from viewkeeper.commit.state import State
from viewkeeper.errors import CorruptState
from viewkeeper.operators.runs import RunEntry, open_run
from viewkeeper.plan.dataflow import Arrange, Image
from viewkeeper.plan.flow import Flow, slots


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
    after = {name for name in broken if not isinstance(flow.operators[name], (Image, Arrange))}
    for name, operator in flow.operators.items():  # sources first
        if after & set(flow.sources(operator)):
            after.add(name)
    stateful = {o.id for o in flow.stateful()}
    views = frozenset(view for view, sink in flow.sinks.items() if sink.id in after)
    return frozenset((broken | after) & stateful), views


def without(manifest: Manifest, flow: Flow, operators: Iterable[str]) -> Manifest:
    """The manifest without the runs of these operators."""
    gone = {s for name in operators for s in slots(flow.operators[name])}
    return manifest.only(frozenset(manifest.runs) - gone)
