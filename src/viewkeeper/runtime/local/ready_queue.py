"""The order of a batch's operators: each runs after its dependencies, and the start of the longest chain runs first.

Several threads cannot work in parallel once only a single chain of dependent operators remains. The chain that took
longest in the last batch of the same order therefore begins as early as possible. The order affects only when an
operator runs, not its input.
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
"""Orders that are cached for a dataflow: one for each set of active operators and changed inputs."""


@dataclass(frozen=True)
class OperatorOrder:
    """Each operator's rank, its number of dependencies, and the operators that depend on it."""

    ranks: Mapping[str, int]
    source_counts: Mapping[str, int]
    successors: Mapping[str, Sequence[str]]
    sequence: Sequence[str]
    """All operators, each after its dependencies."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by operator, of the last batch that ran in this order."""

    def chain_seconds(self) -> Mapping[str, float]:
        """Return for each operator the seconds of the longest chain of dependent operators that begins with it."""
        longest: dict[str, float] = {}
        for name in reversed(self.sequence):
            remaining = max((longest[successor] for successor in self.successors.get(name, ())), default=0.0)
            longest[name] = self.seconds.get(name, 0.0) + remaining
        return longest


def operator_order(dataflow: Dataflow, active: frozenset[str], starting: frozenset[str]) -> OperatorOrder:
    """Return the order of the operators that rows can reach from the `starting` ones.

    Operators of views over unchanged tables are not part of it. The order is cached with the dataflow, because most
    batches differ only in their rows.
    """
    cached: dict[Any, OperatorOrder] = dataflow.derived_cache.setdefault(_ORDERS_KEY, {})
    order = cached.get((active, starting))
    if order is None:
        ranks = {name: rank for rank, name in enumerate(dataflow.sort_operators(dataflow.reachable(starting, active)))}
        source_counts: dict[str, int] = {}
        successors: dict[str, list[str]] = defaultdict(list)
        dependencies = _dependencies(dataflow, ranks)
        for name in ranks:
            sources = dependencies[name]
            source_counts[name] = len(sources)
            for source in sources:
                successors[source].append(name)
        if len(cached) >= _MAX_ORDERS:
            cached.pop(next(iter(cached)))
        order = cached[active, starting] = OperatorOrder(
            ranks, source_counts, successors, list(TopologicalSorter(dependencies).static_order())
        )
    return order


def _dependencies(dataflow: Dataflow, ranks: Mapping[str, int]) -> Mapping[str, set[str]]:
    """Return for each operator the operators that must run before it.

    A lookup also waits for the arrangements that the lookups after it read in new state. Its output, however large, can
    then pass through them piece by piece. An arrangement that is computed from that output is excepted.
    """
    direct = {
        name: {source for source in _direct_dependencies(dataflow, dataflow.operators[name]) if source in ranks}
        for name in ranks
    }
    lookup_dependencies: dict[str, set[str]] = {}
    for name in reversed(list(ranks)):
        operator = dataflow.operators[name]
        if operator.probed_arrangement is not None:
            next_lookups = [
                consumer for consumer, _, _ in dataflow.edges.get(name, ()) if consumer in lookup_dependencies
            ]
            lookup_dependencies[name] = {
                arrangement for arrangement in operator.new_state_lookups if arrangement in ranks
            }.union(*(lookup_dependencies[consumer] for consumer in next_lookups))
    dependencies = {name: sources | lookup_dependencies.get(name, set()) for name, sources in direct.items()}
    for name in lookup_dependencies:
        dependencies[name] = {
            source for source in dependencies[name] if source in direct[name] or name not in dataflow.upstream([source])
        }
    try:
        TopologicalSorter(dependencies).prepare()
    except CycleError:
        return direct
    return dependencies


def _direct_dependencies(dataflow: Dataflow, operator: Operator) -> Iterator[str]:
    """Yield the operator's sources, and the arrangements that it looks up in new state."""
    yield from dataflow.input_operators(operator.id) if operator.ports else operator.upstream_ids
    yield from operator.new_state_lookups
