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
from viewkeeper.plan.compile.compiled_view import compiled, plan_of
from viewkeeper.plan.compile.compiler import ViewPlan
from viewkeeper.plan.dataflow.cache import Plans
from viewkeeper.plan.dataflow.dataflow import Flow
from viewkeeper.plan.dataflow.shared_aggregates import Keeping, United, only_read, united


@dataclass(frozen=True)
class Uniting:
    """New views as they will be, and the plans of views that are there, before and after."""

    new: list[View]
    moving: tuple[tuple[View, View], ...] = ()

    def moved(self, catalog: Catalog) -> Catalog:
        """The catalog in which views have moved over; one that has changed meanwhile stays where it is."""
        for before, after in self.moving:
            found = catalog.views_by_id.get(before.table.id)
            if found is not None and found.plan == before.plan and _takes_part(catalog, found):
                catalog = catalog.replacing(replace(found, plan=after.plan))
        return catalog


def unite(coming: Catalog, flow: Flow, views: Sequence[View]) -> Uniting:
    """Views that come, and who moves over to what they keep together. `coming` has them; `flow` is that of before."""
    tables = {i: t.inside for i, t in coming.tables_by_id.items()}
    plans = Plans(coming)
    fresh = [view.table.id for view in views if _takes_part(coming, view)]
    new = {number: Keeping(compiled(number, tables, plans), None) for number in fresh}
    wanted = {one.rows for one in new.values()} - {None}
    if not wanted:
        return Uniting(list(views))
    found = united({n: one for n, one in _there(coming, flow).items() if n not in new and one.rows in wanted}, new)
    return Uniting(
        [planned(v, found[v.table.id]) if v.table.id in found else v for v in views],
        _moving(coming, {n: kept for n, kept in found.items() if n not in new}),
    )


def narrowed(catalog: Catalog, flow: Flow, table: int, column: str) -> Uniting:
    """Who keeps something of a table's column for views that are gone, without that."""
    there = {n: one for n, one in _there(catalog, flow).items() if one.united is not None}
    source = Input(table).id
    found: dict[int, United | None] = {}
    for kept in {one.united for one in there.values()}:
        views = {n: one for n, one in there.items() if one.united == kept}
        last = next(iter(views.values())).made.last_aggregate
        if last is not None and any(s.source == source and column in s.used() for s in last.segments()):
            found |= dict.fromkeys(views, only_read(views.values()))
    return Uniting([], _moving(catalog, found))


def _there(catalog: Catalog, flow: Flow) -> dict[int, Keeping]:
    """Views that are kept already and may be one with others."""
    known = ((number, made) for number, made in flow.views.items() if made.last_aggregate is not None)
    found = ((number, made, catalog.views_by_id.get(number)) for number, made in known)
    return {
        number: Keeping(made, plan_of(view).united)
        for number, made, view in found
        if view is not None and _takes_part(catalog, view)
    }


def _moving(catalog: Catalog, found: Mapping[int, United | None]) -> tuple[tuple[View, View], ...]:
    views = [(catalog.views_by_id[number], kept) for number, kept in found.items()]
    return tuple((view, planned(view, kept)) for view, kept in views if plan_of(view).united != kept)


def planned(view: View, kept: United | None) -> View:
    """The view with a plan that keeps this with others."""
    plan = ViewPlan(plan_of(view).query, plan_of(view).sizes, None, kept)
    own: Mapping[str, object] = {k: v for k, v in view.plan.items() if k != "united"}
    return replace(view, plan={**own, **plan.to_json()})


def _takes_part(catalog: Catalog, view: View) -> bool:
    beside = view.sync is not None or view.is_member or strategy_of(view).runs_alone
    other = view.parameters or view.index is not None or view.cluster is not None
    apart = not view.is_shared or view.options.get("store") == LAZY or view.suspended is not None
    return not (beside or other or apart or catalog.readers.get(view.table.id))
