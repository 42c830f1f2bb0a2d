"""What can be seen from the rows that a lookup finds: read off the path, before there are any rows.

A lookup whose key is made of one place's columns alone says something about each row there: whether it finds anything.
One of an optional relation says nothing: the row stays where it finds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from viewkeeper.operators.delta_join.plan import Check, PathStep, Stretch, refs_of, steps_of


@dataclass(frozen=True)
class Modes:
    """For which exits there is look-ahead: as bits."""

    local: int = 0
    whole: int = 0
    """To the end of the path."""
    asked: int = 0
    """Whatever it costs; of the others only where it pays."""

    @property
    def any(self) -> int:
        return self.local | self.whole


@dataclass(frozen=True)
class Outlook:
    """What can be seen from the rows of one place: conditions on them alone, and the lookups by their columns alone."""

    step: PathStep
    own: Check | None
    onward: tuple[tuple[tuple[str, ...], Outlook], ...]

    @cached_property
    def name(self) -> str:
        """The same for all that see the same, in an old or a new state: a row that is alive in one of them is alive."""
        told = [self.step.arrangement, self.step.exits, "" if self.own is None else self.own.sql]
        parts = [(columns, child.step.by, child.name) for columns, child in self.onward]
        return sha256(repr((told, parts)).encode()).hexdigest()

    def all(self) -> Iterator[Outlook]:
        yield self
        for _, child in self.onward:
            yield from child.all()


def outlooks(stretch: Stretch) -> Mapping[int, Outlook]:
    """By place; places from which nothing can be seen are left out."""
    steps = [step for step in steps_of(stretch) if step.optional is None]
    after: dict[int, list[tuple[tuple[str, ...], PathStep]]] = {}
    for step in steps:
        places = {place for place, _ in step.key}
        if len(places) == 1:
            after.setdefault(places.pop(), []).append((tuple(name for _, name in step.key), step))

    def seen(step: PathStep) -> Outlook:
        onward = tuple((columns, seen(child)) for columns, child in after.get(step.place, ()))
        return Outlook(step, _own(step), onward)

    found = (seen(step) for step in steps)
    return {o.step.place: o for o in found if o.own is not None or o.onward}


def _own(step: PathStep) -> Check | None:
    """The conditions on what the step finds alone. None of those that are judged on the way can raise."""
    tests = []
    for check in step.checks:
        for conjuncts, exits in check.tests:
            mine = tuple(c for c in conjuncts if {place for place, _ in refs_of([c])} == {step.place})
            if mine:
                tests.append((mine, exits))
    return Check(tuple(tests)) if tests else None
