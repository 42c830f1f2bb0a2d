"""Sharing hints: view options that exclude a view from shared paths, or set the scope of its semijoin reduction.

Views with different `lookahead` options may need the same operator. The operator uses the strongest of their modes:

    global > auto > local > none            default: auto, which is global where it is cheaper
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
    """`unshared`: views that share no path. `lookahead`: the views with an explicit mode, and that mode."""

    unshared: frozenset[int] = frozenset()
    lookahead: tuple[tuple[int, str], ...] = ()

    def unshared_operators(self, dataflow: Dataflow) -> frozenset[str]:
        """Return the operators that only unshared views need."""
        needed = _hints_by_operator(dataflow, dict.fromkeys(self.unshared, ""))
        return frozenset(
            name for name, operator_hints in needed.items() if len(operator_hints) == dataflow.usage.operators.get(name)
        )

    def lookahead_modes(self, dataflow: Dataflow, consumers: Sequence[str]) -> SemijoinModes:
        """Return the modes for exits to these consumers, in their order."""
        needed = _hints_by_operator(dataflow, dict(self.lookahead))
        local = global_ = explicit = 0
        for number, name in enumerate(consumers):
            modes = {*needed.get(name, ())}
            if not modes or len(needed[name]) != dataflow.usage.operators.get(name):
                modes.add(DEFAULT_LOOKAHEAD)
            mode = max(modes, key=LOOKAHEAD.index)
            local |= (mode == "local") << number
            global_ |= (mode in ("auto", "global")) << number
            explicit |= (mode in ("local", "global")) << number
        return SemijoinModes(local, global_, explicit)


def sharing_hints(catalog: Catalog) -> SharingHints:
    """Return the sharing hints of a catalog's views."""
    modes = ((v.table.id, v.lookahead) for v in catalog.nonstandard_views)
    lookahead = tuple((view, mode) for view, mode in modes if mode != DEFAULT_LOOKAHEAD)
    return SharingHints(frozenset(v.table.id for v in catalog.nonstandard_views if not v.is_shared), lookahead)


def _hints_by_operator(dataflow: Dataflow, hints: Mapping[int, str]) -> Mapping[str, Sequence[str]]:
    """By operator: the hints of those of its views that have one."""
    by_operator: dict[str, list[str]] = defaultdict(list)
    for view in hints.keys() & dataflow.views.keys():
        for name in dataflow.views[view].operators:
            by_operator[name].append(hints[view])
    return by_operator
