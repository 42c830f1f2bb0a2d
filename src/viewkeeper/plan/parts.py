"""A flow in parts by its views: for processes that run one each.

    part = some views, and every operator behind them

What views of several parts need is in each of those, and each works it out for itself: arrangements of base tables, and
lookups that views share. (Of the 22 TPC-H views in two parts that is a twentieth of all work.) The state of such an
operator is kept by the first part that has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from viewkeeper.plan.flow import Flow


@dataclass(frozen=True)
class Part:
    """A flow of some of the views. `keeps`: the slots whose new runs count."""

    flow: Flow
    keeps: frozenset[str]


def divided(flow: Flow, seconds: Mapping[str, float], count: int) -> tuple[Part, ...]:
    """So many parts that take about as long, by what operators took; fewer if there are fewer views.

    The views that take longest are dealt out first, each to the part that is then done soonest: one that has done most
    of what the view needs is.
    """

    def took(names: Set[str]) -> float:
        return sum(seconds.get(name, 0.0) for name in names)

    behind = {view: flow.behind(made.operators) for view, made in flow.views.items()}
    parts: list[set[str]] = [set() for _ in range(min(count, len(behind)))]
    views: list[list[int]] = [[] for _ in parts]
    each = {view: took(names) for view, names in behind.items()}
    sums = [0.0] * len(parts)
    for view in sorted(behind, key=lambda v: (-each[v], v)):
        after = [done + took(behind[view] - part) for done, part in zip(sums, parts, strict=True)]
        chosen = min(range(len(parts)), key=lambda i: (after[i], len(views[i]), i))
        parts[chosen] |= behind[view]
        views[chosen].append(view)
        sums[chosen] = after[chosen]
    if parts:  # what no view needs is kept for later ones
        parts[0] |= flow.behind(flow.operators.keys() - set().union(*parts))
    found: list[Part] = []
    kept: set[str] = set()
    for names, mine in zip(parts, views, strict=True):
        one = _only(flow, names, frozenset(mine))
        found.append(Part(one, frozenset(one.slots) - kept))
        kept |= one.slots.keys()
    return tuple(found)


def _only(flow: Flow, names: Set[str], views: frozenset[int]) -> Flow:
    mine = {view: made for view, made in flow.views.items() if view in views}
    needed = Counter(name for made in mine.values() for name in made.operators)
    return replace(
        flow,
        operators={name: operator for name, operator in flow.operators.items() if name in names},
        views=mine,
        consumers={
            name: [way for way in ways if way[0] in names] for name, ways in flow.consumers.items() if name in names
        },
        images={table: [i for i in images if i.id in names] for table, images in flow.images.items()},
        slots={slot: name for slot, name in flow.slots.items() if name in names},
        counted=replace(flow.counted, operators=needed),
    )
