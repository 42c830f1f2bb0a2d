"""Aggregates of different views over the same rows by the same keys are one, with the measures of all of them.

    v1  SELECT k, sum(x) FROM t GROUP BY k             ┐
    v2  SELECT k, count(*), max(y) FROM t GROUP BY k   ├─▶ aggregate of t by k: count(*), max(y), sum(x)
    v3  SELECT k, sum(x) / count(*) FROM t GROUP BY k  ┘

State is named after what is in it, so what views keep together has to stay as it is while it is there, whoever comes
and goes. It is a part of the plans of all of them: a view that wants nothing new joins what is there, and reads its
first rows from it, without the tables. One that wants more is loaded with what the others have, which move over in the
batch that publishes it; a load reads the tables once, whatever it adds up. Who goes leaves what it wanted behind, until
the next one that wants more takes it away.

Only a view's last aggregate, which nothing but the view reads: then a view that moves keeps its rows, and no other
state of it is named after what it left.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from viewkeeper.operators.aggregation.shared_measures import Fact
from viewkeeper.operators.aggregation.spec import Measure

if TYPE_CHECKING:
    from viewkeeper.operators.kinds import Aggregate
    from viewkeeper.plan.compile.compiled_view import Compiled

_MOST = 64
"""Measures that are kept together: each is made anew when another comes to them."""


@dataclass(frozen=True)
class United:
    """Of which rows by which keys (`Operator.adds_up`), and what is kept of them."""

    rows: str
    facts: tuple[Fact, ...]

    def place(self, own: Aggregate) -> tuple[Aggregate, list[Measure]] | None:
        """The aggregate that has the measures of this one for several views, and which they are there; None if it is of
        other rows, or has them not."""
        if own.adds_up != self.rows or not set(own.facts.values()) <= set(self.facts):
            return None
        shared = own.of_facts(self.facts)
        known = dict(zip(self.facts, shared.spec.measures, strict=True))
        return shared, [known[own.facts[m.name]] for m in own.spec.measures]

    def to_json(self) -> dict[str, Any]:
        return {"rows": self.rows, "facts": [f.to_json() for f in self.facts]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> United:
        return United(data["rows"], tuple(map(Fact.from_json, data["facts"])))


@dataclass(frozen=True)
class Keeping:
    """A view as it is there: its operators, and what it keeps with others."""

    made: Compiled
    united: United | None

    @property
    def rows(self) -> str | None:
        """Which rows its last aggregate adds up; None if that cannot be one with others."""
        last = self.made.last_aggregate
        return None if last is None else last.adds_up

    def facts(self) -> set[Fact]:
        """What it reads of its last aggregate."""
        last = self.made.last_aggregate
        read = self.made.sink.source[0].used()
        return set() if last is None else {fact for name, fact in last.facts.items() if name in read}


def united(there: Mapping[int, Keeping], new: Mapping[int, Keeping]) -> dict[int, United]:
    """What views will keep together, by view: new ones, and those that are there and move over."""
    groups: dict[str, dict[int, Keeping]] = defaultdict(dict)
    for view, one in new.items():
        if one.rows is not None:
            groups[one.rows][view] = one
    others: dict[str, dict[int, Keeping]] = {rows: {} for rows in groups}
    for view, one in there.items():
        if one.rows in others:
            others[one.rows][view] = one
    found: dict[int, United] = {}
    for rows, views in groups.items():
        found |= _of_rows(rows, views, others[rows])
    return found


def only_read(views: Collection[Keeping]) -> United | None:
    """What these views, which keep the same, still read of it; None of one view, which is by itself then."""
    kept = next(one.united for one in views)
    return None if kept is None or len(views) == 1 else United(kept.rows, _ordered(_facts(views)))


def _of_rows(rows: str, new: Mapping[int, Keeping], there: Mapping[int, Keeping]) -> dict[int, United]:
    """Of new views of the same rows, and of those that are there."""
    wanted = _facts(new.values())
    for known in dict.fromkeys(one.united for one in there.values()):
        if known is not None and known.rows == rows and wanted <= set(known.facts):
            return dict.fromkeys(new, known)
    views = {**there, **new}
    if len({one.made.sink.source[0].source for one in views.values()}) == 1:
        return {}  # equal aggregates are one as they are
    together = wanted | _facts(there.values())
    if len(together) > _MOST:
        return {}
    return dict.fromkeys(views, United(rows, _ordered(together)))


def _facts(views: Iterable[Keeping]) -> set[Fact]:
    return {fact for one in views for fact in one.facts()}


def _ordered(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    return tuple(sorted(facts, key=lambda fact: json.dumps(fact.to_json())))
