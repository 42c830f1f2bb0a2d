"""Shared aggregates in definitions: moves views to an aggregate with shared measures, and back.

Views can share their last aggregate if they are maintained by ordinary batches, without `share = false`, belong to no
family, and are read by no other view (readers contain the aggregate too, in its unshared form).

    CREATE v2 ─▶ plan v2, and v1 with another plan ─▶ load the state that both need ─▶ one batch publishes both plans
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
    """New views with their final plans, and existing views as pairs before and after the change of their plans."""

    new_views: list[View]
    moved_views: tuple[tuple[View, View], ...] = ()

    def apply(self, catalog: Catalog) -> Catalog:
        """Return the catalog with the moved views; a view that has changed meanwhile is not moved."""
        for before, after in self.moved_views:
            view = catalog.views_by_id.get(before.table.id)
            if view is not None and view.plan == before.plan and _can_share(catalog, view):
                catalog = catalog.with_replaced_view(replace(view, plan=after.plan))
        return catalog


def share_aggregates(catalog: Catalog, dataflow: Dataflow, views: Sequence[View]) -> SharedAggregateChange:
    """Plan shared aggregates for new views.

    `catalog` includes the new views; `dataflow` is that of the existing ones.
    """
    tables = {i: t.internal for i, t in catalog.tables_by_id.items()}
    plans = CatalogPlans(catalog)
    new_ids = [view.table.id for view in views if _can_share(catalog, view)]
    new = {number: ViewMeasures(compile_view(number, tables, plans), None) for number in new_ids}
    input_ids = {measures.aggregation_input_id for measures in new.values()} - {None}
    if not input_ids:
        return SharedAggregateChange(list(views))
    shared = plan_shared_measures(
        {
            n: measures
            for n, measures in _shareable_views(catalog, dataflow).items()
            if n not in new and measures.aggregation_input_id in input_ids
        },
        new,
    )
    return SharedAggregateChange(
        [with_shared_aggregate(v, shared[v.table.id]) if v.table.id in shared else v for v in views],
        _moved_views(catalog, {n: shared_measures for n, shared_measures in shared.items() if n not in new}),
    )


def release_column(catalog: Catalog, dataflow: Dataflow, table: int, column: str) -> SharedAggregateChange:
    """Plan shared aggregates that no longer read a column, which only dropped views needed."""
    sharing_views = {
        n: measures
        for n, measures in _shareable_views(catalog, dataflow).items()
        if measures.shared_measures is not None
    }
    source = Input(table).id
    changed: dict[int, SharedMeasures | None] = {}
    for shared_measures in {measures.shared_measures for measures in sharing_views.values()}:
        views = {n: measures for n, measures in sharing_views.items() if measures.shared_measures == shared_measures}
        last = next(iter(views.values())).compiled_view.last_aggregate
        if last is not None and any(s.source == source and column in s.used_columns() for s in last.segments()):
            changed |= dict.fromkeys(views, restrict_to_read(views.values()))
    return SharedAggregateChange([], _moved_views(catalog, changed))


def _shareable_views(catalog: Catalog, dataflow: Dataflow) -> dict[int, ViewMeasures]:
    """Return the existing views that can share their last aggregate, with their measures."""
    aggregates = (
        (number, compiled) for number, compiled in dataflow.views.items() if compiled.last_aggregate is not None
    )
    candidates = ((number, compiled, catalog.views_by_id.get(number)) for number, compiled in aggregates)
    return {
        number: ViewMeasures(compiled, plan_of(view).shared_measures)
        for number, compiled, view in candidates
        if view is not None and _can_share(catalog, view)
    }


def _moved_views(
    catalog: Catalog, shared_measures: Mapping[int, SharedMeasures | None]
) -> tuple[tuple[View, View], ...]:
    views = [(catalog.views_by_id[number], measures) for number, measures in shared_measures.items()]
    return tuple(
        (view, with_shared_aggregate(view, measures))
        for view, measures in views
        if plan_of(view).shared_measures != measures
    )


def with_shared_aggregate(view: View, shared_measures: SharedMeasures | None) -> View:
    """Return the view with a plan that uses these shared measures; None for an unshared aggregate."""
    plan = ViewPlan(plan_of(view).query, plan_of(view).sizes, None, shared_measures)
    own: Mapping[str, object] = {k: v for k, v in view.plan.items() if k != "united"}
    return replace(view, plan={**own, **plan.to_json()})


def _can_share(catalog: Catalog, view: View) -> bool:
    is_separate = view.synchronous_state is not None or view.is_member or strategy_of(view).has_own_cut
    is_special = view.parameter_table_id or view.index is not None or view.cluster is not None
    is_excluded = not view.is_shared or view.options.get("store") == LAZY or view.suspended is not None
    return not (is_separate or is_special or is_excluded or catalog.readers.get(view.table.id))
