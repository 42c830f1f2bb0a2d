"""Shared aggregates: one aggregate state with the measures of several views over the same rows by the same keys.

    v1  SELECT k, sum(x) FROM t GROUP BY k             ┐
    v2  SELECT k, count(*), max(y) FROM t GROUP BY k   ├─▶ aggregate of t by k: count(*), max(y), sum(x)
    v3  SELECT k, sum(x) / count(*) FROM t GROUP BY k  ┘

State is named after its content, so the set of shared measures must not change while the state exists, even if views
are created or dropped. The set is therefore part of the plan of each of the views:

- A new view whose measures are all in the set joins the shared aggregate and reads its first rows from it, without
  reading the tables.
- A new view with other measures is backfilled with the union of its measures and those of the existing views. These
  move to the new aggregate in the batch that publishes it. A backfill reads the tables once, whatever it aggregates.
- A dropped view leaves its measures behind, until the next view with other measures causes a new set.

Only a view's last aggregate is shared, and only if nothing but the view reads it: then a view that moves keeps its
rows, and none of its other state is named after the aggregate that it leaves.
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
"""Maximum number of measures in a shared aggregate: adding one means to backfill all of them."""


@dataclass(frozen=True)
class SharedMeasures:
    """The measures that several views share, and the input rows and keys that they aggregate
    (`aggregation_input_id`)."""

    aggregation_input_id: str
    measures: tuple[SharedMeasure, ...]

    def find_aggregate(self, own: Aggregate) -> tuple[Aggregate, list[Measure]] | None:
        """Return the shared aggregate that replaces `own`, and the measures of `own` in it.

        Return None if `own` aggregates another input or has measures that are not shared.
        """
        if own.aggregation_input_id != self.aggregation_input_id or not set(own.shared_measures.values()) <= set(
            self.measures
        ):
            return None
        shared = own.with_measures(self.measures)
        measure_by_content = dict(zip(self.measures, shared.spec.measures, strict=True))
        return shared, [measure_by_content[own.shared_measures[m.name]] for m in own.spec.measures]

    def to_json(self) -> dict[str, Any]:
        return {"rows": self.aggregation_input_id, "facts": [f.to_json() for f in self.measures]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> SharedMeasures:
        return SharedMeasures(data["rows"], tuple(map(SharedMeasure.from_json, data["facts"])))


@dataclass(frozen=True)
class ViewMeasures:
    """A view's operators, and the shared measures that it uses, if any."""

    compiled_view: CompiledView
    shared_measures: SharedMeasures | None

    @property
    def aggregation_input_id(self) -> str | None:
        """Identifies the input and keys of the view's last aggregate; None if the aggregate cannot be shared."""
        last = self.compiled_view.last_aggregate
        return None if last is None else last.aggregation_input_id

    def read_measures(self) -> set[SharedMeasure]:
        """Return the measures that the view reads from its last aggregate."""
        last = self.compiled_view.last_aggregate
        read = self.compiled_view.sink.source[0].used_columns()
        return set() if last is None else {measure for name, measure in last.shared_measures.items() if name in read}


def plan_shared_measures(
    existing: Mapping[int, ViewMeasures], new: Mapping[int, ViewMeasures]
) -> dict[int, SharedMeasures]:
    """Return the shared measures by view, for new views and for existing views that move to another aggregate."""
    groups: dict[str, dict[int, ViewMeasures]] = defaultdict(dict)
    for view, view_measures in new.items():
        if view_measures.aggregation_input_id is not None:
            groups[view_measures.aggregation_input_id][view] = view_measures
    existing_groups: dict[str, dict[int, ViewMeasures]] = {rows: {} for rows in groups}
    for view, view_measures in existing.items():
        if view_measures.aggregation_input_id in existing_groups:
            existing_groups[view_measures.aggregation_input_id][view] = view_measures
    planned: dict[int, SharedMeasures] = {}
    for rows, views in groups.items():
        planned |= _plan_for_input(rows, views, existing_groups[rows])
    return planned


def restrict_to_read(views: Collection[ViewMeasures]) -> SharedMeasures | None:
    """Return the shared measures that these views still read; None if there is one view, which needs no sharing.

    All `views` must use the same shared measures.
    """
    shared = next(view.shared_measures for view in views)
    return (
        None
        if shared is None or len(views) == 1
        else SharedMeasures(shared.aggregation_input_id, _sort_measures(_collect_measures(views)))
    )


def _plan_for_input(
    aggregation_input_id: str, new: Mapping[int, ViewMeasures], existing: Mapping[int, ViewMeasures]
) -> dict[int, SharedMeasures]:
    """Plan the shared measures of the new and existing views over one aggregation input."""
    required = _collect_measures(new.values())
    for shared in dict.fromkeys(view.shared_measures for view in existing.values()):
        if (
            shared is not None
            and shared.aggregation_input_id == aggregation_input_id
            and required <= set(shared.measures)
        ):
            return dict.fromkeys(new, shared)
    views = {**existing, **new}
    if len({view.compiled_view.sink.source[0].source for view in views.values()}) == 1:
        return {}  # equal aggregates are one operator without sharing
    combined = required | _collect_measures(existing.values())
    if len(combined) > _MAX_MEASURES:
        return {}
    return dict.fromkeys(views, SharedMeasures(aggregation_input_id, _sort_measures(combined)))


def _collect_measures(views: Iterable[ViewMeasures]) -> set[SharedMeasure]:
    return {measure for view in views for measure in view.read_measures()}


def _sort_measures(measures: Iterable[SharedMeasure]) -> tuple[SharedMeasure, ...]:
    return tuple(sorted(measures, key=lambda fact: json.dumps(fact.to_json())))
