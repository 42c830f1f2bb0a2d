"""The first load of operators: a delta from nothing.

To load an operator is to run it on the whole of its input with no old state. Inputs give whole tables at the
published cut; operators that other views keep already stand for their whole state. So a load is a batch over a part
of the graph: the new operators and the stateless ones between them and what is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from viewkeeper.commit.manifest import Manifest
from viewkeeper.commit.state import State
from viewkeeper.plan.flow import Flow, slots


@dataclass(frozen=True)
class Load:
    """What a load runs: `new` operators get state, `whole` ones give theirs, `active` take part."""

    new: frozenset[str]
    whole: frozenset[str]
    active: frozenset[str]


def plan_load(flow: Flow, new: Iterable[str], on_spark: bool) -> Load:
    """The part of the graph that a load of these operators runs through, in the lane it runs in."""
    fresh = frozenset(new)
    active: set[str] = set()
    whole: set[str] = set()
    waiting = [name for name in fresh if flow.operators[name].takes_part(on_spark)]
    while waiting:
        name = waiting.pop()
        if name in active or name in whole:
            continue
        operator = flow.operators[name]
        if operator.stateful and name not in fresh:
            # An arrangement gives its rows to lookups as it is; other state stands for the operator's whole output.
            if not operator.is_arrangement:
                whole.add(name)
            continue
        active.add(name)
        waiting.extend(s for s in flow.sources(operator) if flow.operators[s].takes_part(on_spark))
    return Load(fresh, frozenset(whole), frozenset(active | whole))


def missing_state(flow: Flow, state: State) -> set[str]:
    """Operators whose state is not there, or is too narrow: a view uses more columns of a table than before."""
    found = unlisted(flow, state.manifest)
    for image in (i for images in flow.images.values() for i in images if i.id not in found):
        wanted = {c.name for c in flow.held[image.id]}
        if not all(wanted <= columns for columns in state.columns(slots(image)[0])):
            found.add(image.id)
    return found


def unlisted(flow: Flow, manifest: Manifest) -> set[str]:
    """Operators that have no state: not even their first arrangement is listed."""
    missing = flow.slots.keys() - manifest.runs.keys()
    return {name for slot in missing if slot == slots(flow.operators[name := flow.slots[slot]])[0]}


def loaded_tables(flow: Flow, load: Load) -> Mapping[str, int]:
    """The inputs that the load reads: operator → table."""
    return {name: t for name in load.active if (t := flow.operators[name].changes_of) is not None}
