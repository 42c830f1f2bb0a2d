"""What views' options say of how their rows are looked up: apart from others, and how far ahead.

Views that differ may need the same operator. What it does for several, it does as far as one of them wants it to:

    global > auto > local > none            without a word: auto, which is global where it pays
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.catalog.view import DEFAULT_LOOKAHEAD, LOOKAHEAD
from viewkeeper.operators.delta_join.semijoin_graph import SemijoinModes
from viewkeeper.plan.dataflow.dataflow import Dataflow


@dataclass(frozen=True)
class SharingHints:
    """`apart`: views that share no path. `ahead`: those that say how far to look, with what they say."""

    unshared: frozenset[int] = frozenset()
    lookahead: tuple[tuple[int, str], ...] = ()

    def unshared_operators(self, dataflow: Dataflow) -> frozenset[str]:
        """The operators that only views apart need."""
        needed = _hints_by_operator(dataflow, dict.fromkeys(self.unshared, ""))
        return frozenset(name for name, found in needed.items() if len(found) == dataflow.usage.operators.get(name))

    def lookahead_modes(self, dataflow: Dataflow, consumers: Sequence[str]) -> SemijoinModes:
        """For exits to these operators, in their order."""
        needed = _hints_by_operator(dataflow, dict(self.lookahead))
        local = whole = asked = 0
        for number, name in enumerate(consumers):
            said = {*needed.get(name, ())}
            if not said or len(needed[name]) != dataflow.usage.operators.get(name):
                said.add(DEFAULT_LOOKAHEAD)
            mode = max(said, key=LOOKAHEAD.index)
            local |= (mode == "local") << number
            whole |= (mode in ("auto", "global")) << number
            asked |= (mode in ("local", "global")) << number
        return SemijoinModes(local, whole, asked)


def sharing_hints(catalog: Catalog) -> SharingHints:
    said = ((v.table.id, v.lookahead) for v in catalog.nonstandard_views)
    ahead = tuple((view, mode) for view, mode in said if mode != DEFAULT_LOOKAHEAD)
    return SharingHints(frozenset(v.table.id for v in catalog.nonstandard_views if not v.is_shared), ahead)


def _hints_by_operator(dataflow: Dataflow, hints: Mapping[int, str]) -> Mapping[str, Sequence[str]]:
    """For each operator, what those of its views say that say anything."""
    found: dict[str, list[str]] = defaultdict(list)
    for view in hints.keys() & dataflow.views.keys():
        for name in dataflow.views[view].operators:
            found[name].append(hints[view])
    return found
