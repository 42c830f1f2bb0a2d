"""Why an operator is of its kind and no cheaper one, and what a change costs there: the second line of EXPLAIN.

The kinds, cheapest first: a segment (no state), a lookup (no state of its own), sums by group (one row a group), values
by group (one row a distinct value), rows by key that are recomputed slice by slice, and all rows in one slice.
"""

from __future__ import annotations

from collections.abc import Mapping

from viewkeeper.plan import levels
from viewkeeper.plan.dataflow import Aggregate, Arrange, Image, Lookup, Operator, Recompute, TopK
from viewkeeper.plan.flow import Flow, slots
from viewkeeper.plan.levels import Sizes, is_small

FanOut = Mapping[str, float]
"""Rows that one probe finds, by the arrangement's id, as far as they are known."""

_VALUES = ("Min", "Max")


def reason(flow: Flow, operator: Operator, fan_out: FanOut, sizes: Sizes) -> str | None:
    """One sentence, or None where the kind says it all."""
    if isinstance(operator, Lookup):
        return _lookup(flow, operator, fan_out) + _broadcast(flow, operator, sizes)
    if isinstance(operator, Aggregate):
        return _aggregate(operator)
    if isinstance(operator, TopK):
        return "keeps all rows: when one of the first goes, the next takes its place; a margin answers most batches"
    if isinstance(operator, Recompute):
        return _recompute(operator)
    if isinstance(operator, Image):
        return f"holds {', '.join(c.name for c in flow.held[operator.id])}"
    if isinstance(operator, Arrange) and operator.source[0].ordered:
        return "kept in order because it is compared with a threshold that moves"
    if isinstance(operator, Arrange):
        return "kept because its rows are computed: no base table can be looked up in its place"
    return None


def _lookup(flow: Flow, operator: Lookup, fan_out: FanOut) -> str:
    arranged = flow.operators[operator.arrangement]
    if isinstance(arranged, Image):
        primary = {k.column for k in flow.tables[arranged.table].key}
        if primary <= set(arranged.key):
            return "at most one row a probe: the key is unique"
    if operator.reach:
        return "a threshold: only the rows between its old and its new value, not all rows"
    if not operator.probe[0].key:
        return "no equality to look up by: every probe meets all rows, so the cost follows the data"
    rows = fan_out.get(operator.arrangement)
    return "rows a probe: not known yet" if rows is None else f"about {rows:,.1f} rows a probe"


def _broadcast(flow: Flow, operator: Lookup, sizes: Sizes) -> str:
    """Which side is broadcast, and why; nothing where that is not known yet or not a question."""
    rows, size = sizes.get(slots(flow.operators[operator.arrangement])[0], (0, 0))
    if is_small(flow, operator.arrangement, sizes):
        return f"; broadcast: with {rows:,} rows every task reads it whole, so that the probes need not travel"
    if size > levels.BROADCAST_BYTES:
        return (
            f"; not broadcast: over {levels.BROADCAST_BYTES >> 20} MB, so on a cluster the probes travel to its parts"
        )
    return ""


def _aggregate(operator: Aggregate) -> str:
    values = [m for m in operator.spec.measures if m.distinct or m.function in _VALUES]
    if values:
        calls = sorted({"DISTINCT" if m.distinct else m.function.lower() for m in values})
        return f"keeps each group's values with their counts: {', '.join(calls)} cannot be taken back from a sum"
    if not operator.spec.measures:
        return "one row a group: its count"
    return "sums and counts, one row a group: a change is added or subtracted"


def _recompute(operator: Recompute) -> str:
    if not operator.inputs[0][0].key:
        return "no key to divide the rows by: every change computes all of them anew, so the cost follows the data"
    return "no law gives the change of the result from the change of the rows: the changed keys are computed anew"
