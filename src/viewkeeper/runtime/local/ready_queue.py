"""In which order the operators of a batch run: each after what it needs, and what begins the longest chain first.

Several threads have nothing left to do side by side when one chain of operators, each of which waits for the former, is
all that remains. So the chain that took longest in the last batch of its kind begins as early as it can. What an
operator is given does not depend on that, only when.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from viewkeeper.operators.operator import Operator
from viewkeeper.plan.dataflow.dataflow import Dataflow

_ORDERS_KEY = "orders"
_MAX_ORDERS = 64
"""Orders that a flow keeps: sets of tables that change together, and operators that are loaded."""


@dataclass(frozen=True)
class OperatorOrder:
    """Each operator's place, how many sources it waits for, and who waits for it."""

    ranks: Mapping[str, int]
    source_counts: Mapping[str, int]
    successors: Mapping[str, Sequence[str]]
    sequence: Sequence[str]
    """All of them, each behind what it waits for."""
    seconds: dict[str, float] = field(default_factory=dict)
    """What each took in the last batch that ran in this order."""

    def chain_seconds(self) -> Mapping[str, float]:
        """For each operator the seconds of the longest chain of those that wait for each other, from itself on."""
        found: dict[str, float] = {}
        for name in reversed(self.sequence):
            behind = max((found[c] for c in self.successors.get(name, ())), default=0.0)
            found[name] = self.seconds.get(name, 0.0) + behind
        return found


def operator_order(dataflow: Dataflow, active: frozenset[str], starting: frozenset[str]) -> OperatorOrder:
    """Of the operators that rows can reach from where they begin: views of tables that did not change cost nothing.
    Worked out once for a flow: most batches differ only in their rows."""
    known: dict[Any, OperatorOrder] = dataflow.derived_cache.setdefault(_ORDERS_KEY, {})
    found = known.get((active, starting))
    if found is None:
        place = {name: i for i, name in enumerate(dataflow.sort_operators(dataflow.reachable(starting, active)))}
        missing: dict[str, int] = {}
        after: dict[str, list[str]] = defaultdict(list)
        waits = _dependencies(dataflow, place)
        for name in place:
            sources = waits[name]
            missing[name] = len(sources)
            for source in sources:
                after[source].append(name)
        if len(known) >= _MAX_ORDERS:
            known.pop(next(iter(known)))
        found = known[active, starting] = OperatorOrder(
            place, missing, after, list(TopologicalSorter(waits).static_order())
        )
    return found


def _dependencies(dataflow: Dataflow, ranks: Mapping[str, int]) -> Mapping[str, set[str]]:
    """For each operator what must have run before it. A lookup waits also for what the lookups after it read: then its
    output can go through them piece by piece, however large it is. (Unless that is made of the output itself.)"""
    plain = {
        name: {s for s in _direct_dependencies(dataflow, dataflow.operators[name]) if s in ranks} for name in ranks
    }
    ahead: dict[str, set[str]] = {}
    for name in reversed(list(ranks)):
        operator = dataflow.operators[name]
        if operator.probed_arrangement is not None:
            after = [c for c, _, _ in dataflow.edges.get(name, ()) if c in ahead]
            ahead[name] = {a for a in operator.new_state_lookups if a in ranks}.union(*(ahead[c] for c in after))
    wanted = {name: found | ahead.get(name, set()) for name, found in plain.items()}
    for name in ahead:
        wanted[name] = {s for s in wanted[name] if s in plain[name] or name not in dataflow.upstream([s])}
    try:
        TopologicalSorter(wanted).prepare()
    except CycleError:
        return plain
    return wanted


def _direct_dependencies(dataflow: Dataflow, operator: Operator) -> Iterator[str]:
    """What must have run: what feeds it, and what it looks up in the state of this batch."""
    yield from dataflow.input_operators(operator.id) if operator.ports else operator.upstream_ids
    yield from operator.new_state_lookups
