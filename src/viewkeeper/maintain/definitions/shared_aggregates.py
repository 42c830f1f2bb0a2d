"""Views whose last aggregates become one when another comes (`plan.united`), and come apart again.

Who takes part: views that batches keep with all others, that are not told to be apart (`share = false`), are of no
family, and are read by no other view (those have the aggregate too, each as it is by itself).

    CREATE v2 ─▶ v2, and v1 with another plan ─▶ what v2 and v1 will need is loaded ─▶ one batch publishes both plans
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.catalog.strategies import strategy_of
from viewkeeper.model.schema import LAZY
from viewkeeper.operators.kinds import Input
from viewkeeper.plan.compile.compiled_view import compile_view, plan_of
from viewkeeper.plan.compile.compiler import ViewPlan
from viewkeeper.plan.dataflow.cache import CatalogPlans
from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.plan.dataflow.shared_aggregates import (
    SharedMeasures,
    ViewMeasures,
    plan_shared_measures,
    restrict_to_read,
)


@dataclass(frozen=True)
class SharedAggregateChange:
    """New views as they will be, and the plans of views that are there, before and after."""

    new_views: list[View]
    moved_views: tuple[tuple[View, View], ...] = ()

    def apply(self, catalog: Catalog) -> Catalog:
        """The catalog in which views have moved over; one that has changed meanwhile stays where it is."""
        for before, after in self.moved_views:
            found = catalog.views_by_id.get(before.table.id)
            if found is not None and found.plan == before.plan and _can_share(catalog, found):
                catalog = catalog.with_replaced_view(replace(found, plan=after.plan))
        return catalog


def share_aggregates(catalog: Catalog, dataflow: Dataflow, views: Sequence[View]) -> SharedAggregateChange:
    """Views that come, and who moves over to what they keep together. `coming` has them; `flow` is that of before."""
    tables = {i: t.internal for i, t in catalog.tables_by_id.items()}
    plans = CatalogPlans(catalog)
    fresh = [view.table.id for view in views if _can_share(catalog, view)]
    new = {number: ViewMeasures(compile_view(number, tables, plans), None) for number in fresh}
    wanted = {one.aggregation_input_id for one in new.values()} - {None}
    if not wanted:
        return SharedAggregateChange(list(views))
    found = plan_shared_measures(
        {
            n: one
            for n, one in _shareable_views(catalog, dataflow).items()
            if n not in new and one.aggregation_input_id in wanted
        },
        new,
    )
    return SharedAggregateChange(
        [with_shared_aggregate(v, found[v.table.id]) if v.table.id in found else v for v in views],
        _moved_views(catalog, {n: kept for n, kept in found.items() if n not in new}),
    )


def release_column(catalog: Catalog, dataflow: Dataflow, table: int, column: str) -> SharedAggregateChange:
    """Who keeps something of a table's column for views that are gone, without that."""
    there = {n: one for n, one in _shareable_views(catalog, dataflow).items() if one.shared_measures is not None}
    source = Input(table).id
    found: dict[int, SharedMeasures | None] = {}
    for kept in {one.shared_measures for one in there.values()}:
        views = {n: one for n, one in there.items() if one.shared_measures == kept}
        last = next(iter(views.values())).compiled_view.last_aggregate
        if last is not None and any(s.source == source and column in s.used_columns() for s in last.segments()):
            found |= dict.fromkeys(views, restrict_to_read(views.values()))
    return SharedAggregateChange([], _moved_views(catalog, found))


def _shareable_views(catalog: Catalog, dataflow: Dataflow) -> dict[int, ViewMeasures]:
    """Views that are kept already and may be one with others."""
    known = ((number, made) for number, made in dataflow.views.items() if made.last_aggregate is not None)
    found = ((number, made, catalog.views_by_id.get(number)) for number, made in known)
    return {
        number: ViewMeasures(made, plan_of(view).shared_measures)
        for number, made, view in found
        if view is not None and _can_share(catalog, view)
    }


def _moved_views(
    catalog: Catalog, shared_measures: Mapping[int, SharedMeasures | None]
) -> tuple[tuple[View, View], ...]:
    views = [(catalog.views_by_id[number], kept) for number, kept in shared_measures.items()]
    return tuple(
        (view, with_shared_aggregate(view, kept)) for view, kept in views if plan_of(view).shared_measures != kept
    )


def with_shared_aggregate(view: View, shared_measures: SharedMeasures | None) -> View:
    """The view with a plan that keeps this with others."""
    plan = ViewPlan(plan_of(view).query, plan_of(view).sizes, None, shared_measures)
    own: Mapping[str, object] = {k: v for k, v in view.plan.items() if k != "united"}
    return replace(view, plan={**own, **plan.to_json()})


def _can_share(catalog: Catalog, view: View) -> bool:
    beside = view.synchronous_state is not None or view.is_member or strategy_of(view).has_own_cut
    other = view.parameter_table_id or view.index is not None or view.cluster is not None
    apart = not view.is_shared or view.options.get("store") == LAZY or view.suspended is not None
    return not (beside or other or apart or catalog.readers.get(view.table.id))
