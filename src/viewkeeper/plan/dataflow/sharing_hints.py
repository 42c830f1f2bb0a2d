"""What views' options say of how their rows are looked up: apart from others, and how far ahead.

Views that differ may need the same operator. What it does for several, it does as far as one of them wants it to:

    global > auto > local > none            without a word: auto, which is global where it pays
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.catalog.view import LOOKAHEAD, USUAL_LOOKAHEAD
from viewkeeper.operators.delta_join.semijoin_graph import Modes
from viewkeeper.plan.dataflow.dataflow import Flow


@dataclass(frozen=True)
class Wishes:
    """`apart`: views that share no path. `ahead`: those that say how far to look, with what they say."""

    apart: frozenset[int] = frozenset()
    ahead: tuple[tuple[int, str], ...] = ()

    def alone(self, flow: Flow) -> frozenset[str]:
        """The operators that only views apart need."""
        needed = _needed(flow, dict.fromkeys(self.apart, ""))
        return frozenset(name for name, found in needed.items() if len(found) == flow.counted.operators.get(name))

    def modes(self, flow: Flow, consumers: Sequence[str]) -> Modes:
        """For exits to these operators, in their order."""
        needed = _needed(flow, dict(self.ahead))
        local = whole = asked = 0
        for number, name in enumerate(consumers):
            said = {*needed.get(name, ())}
            if not said or len(needed[name]) != flow.counted.operators.get(name):
                said.add(USUAL_LOOKAHEAD)
            mode = max(said, key=LOOKAHEAD.index)
            local |= (mode == "local") << number
            whole |= (mode in ("auto", "global")) << number
            asked |= (mode in ("local", "global")) << number
        return Modes(local, whole, asked)


def wishes(catalog: Catalog) -> Wishes:
    said = ((v.table.id, v.lookahead) for v in catalog.special)
    ahead = tuple((view, mode) for view, mode in said if mode != USUAL_LOOKAHEAD)
    return Wishes(frozenset(v.table.id for v in catalog.special if not v.is_shared), ahead)


def _needed(flow: Flow, said: Mapping[int, str]) -> Mapping[str, Sequence[str]]:
    """For each operator, what those of its views say that say anything."""
    found: dict[str, list[str]] = defaultdict(list)
    for view in said.keys() & flow.views.keys():
        for name in flow.views[view].operators:
            found[name].append(said[view])
    return found
