"""What a definition needs before it is made: ids that nobody else has, and of a plan that is written here, and not read
by Spark (an index, a clustered view), the proof that it compiles."""

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
    """The first of so many ids that nobody else has."""
    return store.change_catalog(lambda catalog: catalog.with_reserved_ids(count)).next_id - count


def compile_written_plan(store: Store, catalog: Catalog, query: Query) -> ViewPlan:
    plan = ViewPlan(query, {t.id: store.count(t) for t in catalog.tables})
    tables = {t.id: t for t in (*catalog.tables, *(v.table for v in catalog.views))}
    compile_plan(catalog.next_id, plan, tables, CatalogPlans(catalog))
    return plan


def refuse_options(subject: str, options: Iterable[str], allowed: Iterable[str]) -> None:
    """Unsupported if there are others than those that are known. `what` has them, in the plural."""
    if unknown := sorted(set(options) - set(allowed)):
        raise Unsupported(
            f"{subject} have no option {', '.join(unknown)}.", hint=f"Options: {', '.join(sorted(allowed))}."
        )
