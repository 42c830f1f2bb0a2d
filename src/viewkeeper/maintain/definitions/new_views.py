"""Reservation of ids, and plans that are built without Spark (indexes, clustered views)."""

from __future__ import annotations

from collections.abc import Iterable

from viewkeeper.errors import Unsupported
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.plan.compile.compiler import ViewPlan
from viewkeeper.plan.dataflow.cache import CatalogPlans
from viewkeeper.plan.logical.nodes import Query
from viewkeeper.plan.planner import compile_plan
from viewkeeper.store.contract.store import Store


def reserve_ids(store: Store, count: int) -> int:
    """Reserve `count` ids in the catalog, and return the first."""
    return store.change_catalog(lambda catalog: catalog.with_reserved_ids(count)).next_id - count


def compile_written_plan(store: Store, catalog: Catalog, query: Query) -> ViewPlan:
    plan = ViewPlan(query, {t.id: store.count(t) for t in catalog.tables})
    tables = {t.id: t for t in (*catalog.tables, *(v.table for v in catalog.views))}
    compile_plan(catalog.next_id, plan, tables, CatalogPlans(catalog))
    return plan


def refuse_options(subject: str, options: Iterable[str], allowed: Iterable[str]) -> None:
    """Raise Unsupported for options that are not allowed. `subject` is the plural noun for the message."""
    if unknown := sorted(set(options) - set(allowed)):
        raise Unsupported(
            f"{subject} have no option {', '.join(unknown)}.", hint=f"Options: {', '.join(sorted(allowed))}."
        )
