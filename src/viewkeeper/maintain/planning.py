"""From a CREATE MATERIALIZED VIEW to the view that the catalog will list: its query read, its plan made, its id taken.

Several at once are planned one after the other, each over those before it; nothing is listed yet, but their ids are
taken, with one change of the catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from viewkeeper import faults
from viewkeeper.errors import BadStatement, Unsupported, ViewkeeperError
from viewkeeper.maintain.definitions import checked_options, same_shape, scans
from viewkeeper.model.catalog import Catalog, View
from viewkeeper.model.strategies import USUAL, strategy_named
from viewkeeper.operators.attempts import attempt
from viewkeeper.plan import statements
from viewkeeper.plan.families.lifting import lift
from viewkeeper.plan.families.texts import lateral, parameters_name
from viewkeeper.plan.flows import Plans
from viewkeeper.plan.nodes import Query, Sort
from viewkeeper.plan.planner import plan_view
from viewkeeper.plan.presums import USUAL_PRESUM, presummed
from viewkeeper.plan.templates import Templates
from viewkeeper.store.base import Store

Spark = Callable[[], Any]


def plan(
    store: Store, spark: Spark, statement: statements.CreateView, templates: Templates, old: View | None = None
) -> View:
    """The view that a statement defines. In place of `old`, it takes its id if it has the same columns and key.

    `templates` knows the plans of queries that differ in constants: for those Catalyst is not asked.
    """
    catalog = store.catalog()
    if old is not None:
        catalog = catalog.without(old.table.id, *catalog.dependents([old.table.id]))
    view = _planned(store, spark, statement, templates, catalog, catalog.next_id, _sizes(store, catalog))
    if old is not None and same_shape(view.table, old.table):
        number = old.table.id
    else:
        # Taken now: while the view is loaded, other processes make tables.
        number = _ids(store, 1)
    faults.point("view.planned")
    return replace(view, table=replace(view.table, id=number))


def plan_many(store: Store, spark: Spark, wanted: Sequence[statements.CreateView], templates: Templates) -> list[View]:
    """The views that statements define, in their order: one may read another before it."""
    catalog = store.catalog()
    sizes, first = _sizes(store, catalog), _ids(store, len(wanted))
    found: list[View] = []
    for number, statement in enumerate(wanted, first):
        try:
            if statement.or_replace or statement.parameters:
                raise BadStatement("A family, or a view that may be there, has a statement of its own.", hint="")
            view = _planned(store, spark, statement, templates, catalog, number, sizes)
            catalog = catalog.with_view(view)
        except ViewkeeperError as error:
            error.message = f"{statement.name}: {error.message}"
            raise
        found.append(view)
    faults.point("view.planned")
    return found


def family(store: Store, spark: Spark, statement: statements.CreateView) -> View:
    """A family: its table of parameters is there already."""
    from viewkeeper.plan.catalyst import read_family

    options = checked_options(statement.options)
    if strategy_named(options.get("strategy", USUAL)) != strategy_named(USUAL):
        raise Unsupported("A family of views has no strategy of its own.", hint="Leave the option out.")
    catalog = store.catalog()
    tables = {t.id: t for t in (*catalog.tables, *(v.table for v in catalog.views))}
    parameters = catalog.table(parameters_name(statement.name))
    names = [c.name for c in parameters.columns]
    text = lateral(statement.name, statement.query, names)
    member = read_family(spark(), text, {t.name: t for t in tables.values()}, len(names))
    query = lift(member, parameters)
    key = (*names, *statement.key) if statement.key or not isinstance(query.root, Sort) else ()
    sizes = {t.id: store.count(t) for t in catalog.tables}
    planned = (statement.name, catalog.next_id, query, key)
    table, made = plan_view(*planned, tables, Plans(catalog), sizes, options, attempt)
    table = replace(table, id=_ids(store, 1))
    faults.point("view.planned")
    family = View(table, text, made.to_json(), options)
    return replace(family, parameters=parameters.id, given=len(names), body=statement.query)


def _planned(
    store: Store,
    spark: Spark,
    statement: statements.CreateView,
    templates: Templates,
    catalog: Catalog,
    number: int,
    sizes: Mapping[int, int],
) -> View:
    options = checked_options(statement.options)
    query = _read(spark, statement.query, templates, catalog)
    scanned = (catalog.views_by_id.get(scan.table) for scan in scans(query.root))
    tables = {t.id: t for t in (*catalog.tables, *(v.table for v in scanned if v is not None))}
    query = presummed(query, tables, sizes, options.get("presum", USUAL_PRESUM).lower())
    named = (statement.name, number, query, statement.key)
    table, made = plan_view(*named, tables, Plans(catalog), sizes, options, attempt)
    return View(table, statement.query, made.to_json(), options)


def _read(spark: Spark, text: str, templates: Templates, catalog: Catalog) -> Query:
    known = templates.find(text, catalog)
    if known is not None:
        return known
    from viewkeeper.plan.catalyst import read_query

    query = read_query(spark(), text, {t.name: t for t in (*catalog.tables, *(v.table for v in catalog.views))})
    templates.learn(text, catalog, query)
    return query


def _sizes(store: Store, catalog: Catalog) -> dict[int, int]:
    return {t.id: store.count(t) for t in catalog.tables}


def _ids(store: Store, count: int) -> int:
    """The first of so many ids that nobody else has."""
    return store.change_catalog(lambda catalog: catalog.with_ids_taken(count)).next_id - count
