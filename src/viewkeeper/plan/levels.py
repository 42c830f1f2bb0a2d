"""In which round an operator runs, and which lookups need no exchange.

A *round* (level) is a stage of the Spark job. An input is level 0; an operator with a key comes one level after its
last source, because its rows must travel to the task that owns their hash; a lookup in the fresh state of an
arrangement comes no earlier than the arrangement itself. Segments and sinks run where their source ran.

    fully partitioned       Δ travels: each row meets the arrangement at the task that owns its key
    partially partitioned   Δ stays: every task reads the whole arrangement (the seeds, 4.4.2 and 5.2)

A lookup that *stays* is in its source's round. With n tasks it costs n times the arrangement's rows and changes instead
of the delta's: right for a small side (a broadcast), and for any side that is on the tasks' own machine (`placing`).
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from viewkeeper.operators.operator import slots
from viewkeeper.plan.flow import Flow

BROADCAST_BYTES = 8 << 20
"""Up to here an arrangement is read whole by every task, wherever the tasks are."""

Sizes = Mapping[str, tuple[int, int]]
"""Slot → (rows, bytes)."""


def levels(
    flow: Flow, staying: Set[str] = frozenset(), among: Set[str] | None = None, later: Set[str] = frozenset()
) -> dict[str, int]:
    """The round of each operator (of those `among`, as if there were no others); `later`: sources, and
    arrangements of their tables, that begin in the second one."""
    found: dict[str, int] = {}
    for name in flow.operators if among is None else flow.ordered(among):
        operator = flow.operators[name]
        level = max((found[s] for s in flow.feeders(name) if s in found), default=int(name in later))
        if name not in staying:
            level = max([level + operator.keyed, *(found[a] for a in operator.looked_up if a in found)])
        found[name] = level
    return found


def broadcast(flow: Flow, sizes: Sizes) -> frozenset[str]:
    """The lookups in base tables that are small enough to be read whole by every task."""
    return frozenset(
        name for name, o in flow.operators.items() if o.probes is not None and is_small(flow, o.probes, sizes)
    )


def is_small(flow: Flow, arrangement: str, sizes: Sizes) -> bool:
    """Whether a base table's arrangement is known to be small. A computed one may change in any round."""
    operator = flow.operators[arrangement]
    return operator.arranges is not None and 0 < sizes.get(slots(operator)[0], (0, 0))[1] <= BROADCAST_BYTES
