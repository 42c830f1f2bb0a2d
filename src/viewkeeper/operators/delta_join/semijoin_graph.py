"""What can be seen from the rows that a lookup finds: read off the path, before there are any rows.

A lookup whose key is made of one place's columns alone says something about each row there: whether it finds anything.
One of an optional relation says nothing: the row stays where it finds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from viewkeeper.operators.delta_join.plan import JoinPath, PathFilter, PathStep, all_steps, column_refs


@dataclass(frozen=True)
class SemijoinModes:
    """For which exits there is look-ahead: as bits."""

    local_exits: int = 0
    global_exits: int = 0
    """To the end of the path."""
    forced_exits: int = 0
    """Whatever it costs; of the others only where it pays."""

    @property
    def enabled_exits(self) -> int:
        return self.local_exits | self.global_exits


@dataclass(frozen=True)
class SemijoinNode:
    """What can be seen from the rows of one place: conditions on them alone, and the lookups by their columns alone."""

    step: PathStep
    relation_filter: PathFilter | None
    children: tuple[tuple[tuple[str, ...], SemijoinNode], ...]

    @cached_property
    def cache_key(self) -> str:
        """The same for all that see the same, in an old or a new state: a row that is alive in one of them is alive."""
        told = [
            self.step.arrangement,
            self.step.exit_mask,
            "" if self.relation_filter is None else self.relation_filter.sql,
        ]
        parts = [(columns, child.step.arrangement_key, child.cache_key) for columns, child in self.children]
        return sha256(repr((told, parts)).encode()).hexdigest()

    def walk(self) -> Iterator[SemijoinNode]:
        yield self
        for _, child in self.children:
            yield from child.walk()


def build_semijoin_nodes(path: JoinPath) -> Mapping[int, SemijoinNode]:
    """By place; places from which nothing can be seen are left out."""
    steps = [step for step in all_steps(path) if step.optional is None]
    after: dict[int, list[tuple[tuple[str, ...], PathStep]]] = {}
    for step in steps:
        places = {place for place, _ in step.key}
        if len(places) == 1:
            after.setdefault(places.pop(), []).append((tuple(name for _, name in step.key), step))

    def seen(step: PathStep) -> SemijoinNode:
        onward = tuple((columns, seen(child)) for columns, child in after.get(step.relation, ()))
        return SemijoinNode(step, _relation_filter(step), onward)

    found = (seen(step) for step in steps)
    return {o.step.relation: o for o in found if o.relation_filter is not None or o.children}


def _relation_filter(step: PathStep) -> PathFilter | None:
    """The conditions on what the step finds alone. None of those that are judged on the way can raise."""
    tests = []
    for check in step.filters:
        for conjuncts, exits in check.tests:
            mine = tuple(c for c in conjuncts if {place for place, _ in column_refs([c])} == {step.relation})
            if mine:
                tests.append((mine, exits))
    return PathFilter(tuple(tests)) if tests else None
