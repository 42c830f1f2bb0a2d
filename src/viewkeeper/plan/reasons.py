"""Why an operator is of its kind and no cheaper one, and what a change costs there: the second line of EXPLAIN.

The kinds, cheapest first: a segment (no state), a lookup (no state of its own), sums by group (one row a group), values
by group (one row a distinct value), rows by key that are recomputed slice by slice, and all rows in one slice. Each
says its reason itself; where it runs on a cluster is added here.
"""

from __future__ import annotations

from viewkeeper.operators.operator import Operator, slots
from viewkeeper.operators.telling import Told
from viewkeeper.plan import levels
from viewkeeper.plan.flow import Flow
from viewkeeper.plan.levels import Sizes, is_small


def reason(flow: Flow, operator: Operator, told: Told, sizes: Sizes) -> str | None:
    """One sentence, or None where the kind says it all."""
    found = operator.reason(told)
    return found if found is None or operator.probes is None else found + _broadcast(flow, operator.probes, sizes)


def _broadcast(flow: Flow, arrangement: str, sizes: Sizes) -> str:
    """Which side is broadcast, and why; nothing where that is not known yet or not a question."""
    rows, size = sizes.get(slots(flow.operators[arrangement])[0], (0, 0))
    if is_small(flow, arrangement, sizes):
        return f"; broadcast: with {rows:,} rows every task reads it whole, so that the probes need not travel"
    if size > levels.BROADCAST_BYTES:
        return (
            f"; not broadcast: over {levels.BROADCAST_BYTES >> 20} MB, so on a cluster the probes travel to its parts"
        )
    return ""
