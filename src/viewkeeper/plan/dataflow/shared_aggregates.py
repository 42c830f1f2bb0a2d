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

from viewkeeper.operators.aggregation.shared_measures import SharedMeasure
from viewkeeper.operators.aggregation.spec import Measure

if TYPE_CHECKING:
    from viewkeeper.operators.kinds import Aggregate
    from viewkeeper.plan.compile.compiled_view import CompiledView

_MAX_MEASURES = 64
"""Measures that are kept together: each is made anew when another comes to them."""


@dataclass(frozen=True)
class SharedMeasures:
    """Of which rows by which keys (`Operator.adds_up`), and what is kept of them."""

    aggregation_input_id: str
    measures: tuple[SharedMeasure, ...]

    def find_aggregate(self, own: Aggregate) -> tuple[Aggregate, list[Measure]] | None:
        """The aggregate that has the measures of this one for several views, and which they are there; None if it is of
        other rows, or has them not."""
        if own.aggregation_input_id != self.aggregation_input_id or not set(own.shared_measures.values()) <= set(
            self.measures
        ):
            return None
        shared = own.with_measures(self.measures)
        known = dict(zip(self.measures, shared.spec.measures, strict=True))
        return shared, [known[own.shared_measures[m.name]] for m in own.spec.measures]

    def to_json(self) -> dict[str, Any]:
        return {"rows": self.aggregation_input_id, "facts": [f.to_json() for f in self.measures]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> SharedMeasures:
        return SharedMeasures(data["rows"], tuple(map(SharedMeasure.from_json, data["facts"])))


@dataclass(frozen=True)
class ViewMeasures:
    """A view as it is there: its operators, and what it keeps with others."""

    compiled_view: CompiledView
    shared_measures: SharedMeasures | None

    @property
    def aggregation_input_id(self) -> str | None:
        """Which rows its last aggregate adds up; None if that cannot be one with others."""
        last = self.compiled_view.last_aggregate
        return None if last is None else last.aggregation_input_id

    def read_measures(self) -> set[SharedMeasure]:
        """What it reads of its last aggregate."""
        last = self.compiled_view.last_aggregate
        read = self.compiled_view.sink.source[0].used_columns()
        return set() if last is None else {fact for name, fact in last.shared_measures.items() if name in read}


def plan_shared_measures(
    existing: Mapping[int, ViewMeasures], new: Mapping[int, ViewMeasures]
) -> dict[int, SharedMeasures]:
    """What views will keep together, by view: new ones, and those that are there and move over."""
    groups: dict[str, dict[int, ViewMeasures]] = defaultdict(dict)
    for view, one in new.items():
        if one.aggregation_input_id is not None:
            groups[one.aggregation_input_id][view] = one
    others: dict[str, dict[int, ViewMeasures]] = {rows: {} for rows in groups}
    for view, one in existing.items():
        if one.aggregation_input_id in others:
            others[one.aggregation_input_id][view] = one
    found: dict[int, SharedMeasures] = {}
    for rows, views in groups.items():
        found |= _plan_for_input(rows, views, others[rows])
    return found


def restrict_to_read(views: Collection[ViewMeasures]) -> SharedMeasures | None:
    """What these views, which keep the same, still read of it; None of one view, which is by itself then."""
    kept = next(one.shared_measures for one in views)
    return (
        None
        if kept is None or len(views) == 1
        else SharedMeasures(kept.aggregation_input_id, _sort_measures(_collect_measures(views)))
    )


def _plan_for_input(
    aggregation_input_id: str, new: Mapping[int, ViewMeasures], existing: Mapping[int, ViewMeasures]
) -> dict[int, SharedMeasures]:
    """Of new views of the same rows, and of those that are there."""
    wanted = _collect_measures(new.values())
    for known in dict.fromkeys(one.shared_measures for one in existing.values()):
        if known is not None and known.aggregation_input_id == aggregation_input_id and wanted <= set(known.measures):
            return dict.fromkeys(new, known)
    views = {**existing, **new}
    if len({one.compiled_view.sink.source[0].source for one in views.values()}) == 1:
        return {}  # equal aggregates are one as they are
    together = wanted | _collect_measures(existing.values())
    if len(together) > _MAX_MEASURES:
        return {}
    return dict.fromkeys(views, SharedMeasures(aggregation_input_id, _sort_measures(together)))


def _collect_measures(views: Iterable[ViewMeasures]) -> set[SharedMeasure]:
    return {fact for one in views for fact in one.read_measures()}


def _sort_measures(measures: Iterable[SharedMeasure]) -> tuple[SharedMeasure, ...]:
    return tuple(sorted(measures, key=lambda fact: json.dumps(fact.to_json())))
