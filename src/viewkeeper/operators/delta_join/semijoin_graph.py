"""Graph of a semijoin reduction: the lookups and conditions that decide whether a row can reach an exit.

It is read off the path. A lookup whose key consists of one relation's columns decides for each row of that relation
whether it finds a match. A lookup in an optional relation decides nothing, because rows without a match stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from viewkeeper.operators.delta_join.plan import JoinPath, PathFilter, PathStep, all_steps, column_refs


@dataclass(frozen=True)
class SemijoinModes:
    """The exits with semijoin reduction, as bits."""

    local_exits: int = 0
    global_exits: int = 0
    """Reduction to the end of the path."""
    forced_exits: int = 0
    """Reduction whatever it costs; the other exits are reduced only where it pays."""

    @property
    def enabled_exits(self) -> int:
        return self.local_exits | self.global_exits


@dataclass(frozen=True)
class SemijoinNode:
    """What decides for the rows of one relation: the conditions on them alone, and the lookups by their columns
    alone."""

    step: PathStep
    relation_filter: PathFilter | None
    children: tuple[tuple[tuple[str, ...], SemijoinNode], ...]

    @cached_property
    def cache_key(self) -> str:
        """Equal for nodes with equal bits, in the old or the new state: a row that is reachable in one of them counts
        as reachable."""
        own_key = [
            self.step.arrangement,
            self.step.exit_mask,
            "" if self.relation_filter is None else self.relation_filter.sql,
        ]
        child_keys = [(columns, child.step.arrangement_key, child.cache_key) for columns, child in self.children]
        return sha256(repr((own_key, child_keys)).encode()).hexdigest()

    def walk(self) -> Iterator[SemijoinNode]:
        yield self
        for _, child in self.children:
            yield from child.walk()


def build_semijoin_nodes(path: JoinPath) -> Mapping[int, SemijoinNode]:
    """Return the nodes by relation; relations without conditions and lookups of their own are left out."""
    steps = [step for step in all_steps(path) if step.optional is None]
    next_steps: dict[int, list[tuple[tuple[str, ...], PathStep]]] = {}
    for step in steps:
        relations = {relation for relation, _ in step.key}
        if len(relations) == 1:
            next_steps.setdefault(relations.pop(), []).append((tuple(name for _, name in step.key), step))

    def build_node(step: PathStep) -> SemijoinNode:
        children = tuple((columns, build_node(child)) for columns, child in next_steps.get(step.relation, ()))
        return SemijoinNode(step, _relation_filter(step), children)

    nodes = (build_node(step) for step in steps)
    return {node.step.relation: node for node in nodes if node.relation_filter is not None or node.children}


def _relation_filter(step: PathStep) -> PathFilter | None:
    """Return the conditions on the rows of the step's relation alone. No condition of a path can raise."""
    tests = []
    for path_filter in step.filters:
        for conjuncts, exits in path_filter.tests:
            own_conjuncts = tuple(
                c for c in conjuncts if {relation for relation, _ in column_refs([c])} == {step.relation}
            )
            if own_conjuncts:
                tests.append((own_conjuncts, exits))
    return PathFilter(tuple(tests)) if tests else None
