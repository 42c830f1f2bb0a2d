"""Planning of CREATE MATERIALIZED VIEW: reads the query, plans it, and reserves the view's id.

Several statements are planned in their order, each over the views before it. Nothing is added to the catalog yet, but
all ids are reserved with one catalog change. Views that differ only in constants may become members of a family
(`families`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from viewkeeper import failpoints
from viewkeeper.errors import BadStatement, InUse, NameTaken, Unsupported, ViewkeeperError
from viewkeeper.maintain.definitions.catalog_changes import check_options, has_same_shape, scans
from viewkeeper.maintain.definitions.families import FamilyAssignment, MemberCandidate, assign_families, member_query
from viewkeeper.maintain.definitions.new_views import reserve_ids
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.catalog.strategies import DEFAULT_STRATEGY, find_strategy
from viewkeeper.model.catalog.view import TextNames
from viewkeeper.model.schema import LAZY, Table
from viewkeeper.plan.dataflow.cache import CatalogPlans
from viewkeeper.plan.depth import to_any_depth
from viewkeeper.plan.families.detect import make_query_template
from viewkeeper.plan.families.lift import lift
from viewkeeper.plan.families.plan_templates import TemplateCache
from viewkeeper.plan.logical.nodes import Query, Sort
from viewkeeper.plan.planner import dry_run_operators, plan_view
from viewkeeper.plan.rules.preaggregation import DEFAULT_PRESUM, preaggregate
from viewkeeper.store.contract.store import Store
from viewkeeper.syntax import statements
from viewkeeper.syntax.family_text import lateral_query, parameter_table_name
from viewkeeper.syntax.view_text import current_names, exact_query

SessionFactory = Callable[[], Any]

_WORD = re.compile(r"\w+")


def plan_definition(
    store: Store,
    spark: SessionFactory,
    statement: statements.CreateView,
    templates: TemplateCache,
    replaced: View | None = None,
) -> View:
    """Plan the view that a statement defines.

    If it replaces the view `replaced` and has the same columns and key, it keeps that view's id. `templates` caches the
    plans of queries that differ only in constants, so that Catalyst need not plan them again.
    """
    catalog = store.catalog()
    if replaced is not None:
        catalog = catalog.without(replaced.table.id, *catalog.dependents([replaced.table.id]))
    query = _read_query_text(spark, statement.query, templates, catalog)
    view = _make_view(
        statement, query, _check_view_options(store, statement), catalog, catalog.next_id, _row_counts(store, catalog)
    )
    if replaced is not None and has_same_shape(view.table, replaced.table):
        view_id = replaced.table.id
    else:
        # Reserved now, because other processes may create tables while the view is loaded.
        view_id = reserve_ids(store, 1)
    failpoints.hit("view.planned")
    return replace(view, table=replace(view.table, id=view_id))


@dataclass(frozen=True)
class PlannedViews:
    """Views to load, including new families, and the assignment with the members to add to the catalog."""

    views: list[View]
    families: FamilyAssignment


class MemberReadError(Unsupported):
    """A query reads family members, which must first become separate views."""

    def __init__(self, members: Sequence[View]) -> None:
        names = ", ".join(m.table.name for m in members)
        super().__init__(f"It reads {names}, kept together with views like it.", hint="Make it WITH (share = false).")
        self.members = members


def unique_definitions(definitions: Sequence[statements.CreateView]) -> list[statements.CreateView]:
    """Return each view once: a second one of the same name raises NameTaken; with IF NOT EXISTS it is ignored."""
    by_name: dict[str, statements.CreateView] = {}
    for statement in definitions:
        first = by_name.setdefault(statement.name.lower(), statement)
        if first is not statement and not statement.if_not_exists:
            raise NameTaken(
                f"Two of the views to be made are called {statement.name!r}"
                + (f" and {first.name!r}: names do not differ by case." if first.name != statement.name else "."),
                hint="Nothing was made. Rename one of them.",
            )
    return list(by_name.values())


def plan_definitions(
    store: Store,
    spark: SessionFactory,
    definitions: Sequence[statements.CreateView],
    templates: TemplateCache,
    *,
    name_errors: bool = True,
) -> PlannedViews:
    """Plan the views that statements define, in their order: a view may read one before it. None of them exists yet.

    With `name_errors`, the message of an error begins with the view's name.
    """
    catalog = store.catalog()
    sizes, words = (
        _row_counts(store, catalog),
        Counter(word for definition in definitions for word in _words(definition.query)),
    )
    views: list[View] = []
    candidates: list[MemberCandidate] = []
    first = reserve_ids(store, len(definitions))
    for number, statement in enumerate(definitions, first):
        try:
            if statement.parameters:
                raise BadStatement("A family of views is made by a statement of its own.", hint="Run it by itself.")
            options = _check_view_options(store, statement)
            may_be_member = store.can_store_family_members and not options and not _can_be_read(statement, words)
            member = templates.find_member(statement.query, catalog, statement.key) if may_be_member else None
            if member is None:
                query = _read_query_text(spark, statement.query, templates, catalog)
                member = make_query_template(query, statement.key) if may_be_member else None
            if member is not None:
                candidates.append(MemberCandidate(statement, member, number))
                continue
            views.append(_make_view(statement, query, options, catalog, number, sizes))
            catalog = catalog.with_view(views[-1])
        except ViewkeeperError as error:
            error.view = statement.name
            if name_errors:
                error.message = f"{statement.name}: {error.message}"
            raise
    assignment = assign_families(store, catalog, candidates, sizes)
    for candidate in assignment.standalone:
        view = _make_view(
            candidate.statement, candidate.query_template.bound_query, {}, catalog, candidate.view_id, sizes
        )
        views.append(replace(view, template=candidate.query_template.template_key))
    failpoints.hit("view.planned")
    return PlannedViews([*views, *assignment.families], assignment)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


def _can_be_read(statement: statements.CreateView, words: Mapping[str, int]) -> bool:
    """Whether another statement may read this one's view, because all words of its name occur in their queries."""
    own_words = _words(statement.query)
    return all(words.get(word, 0) > (word in own_words) for word in _words(statement.name))


def plan_family_definition(store: Store, spark: SessionFactory, statement: statements.CreateView) -> View:
    """Plan a parameterised view, whose parameter table exists already."""
    from viewkeeper.plan.catalyst import read_family

    options = check_options(statement.options)
    if options.get("store") == LAZY:
        raise Unsupported(
            "A family of views is not lazy.", hint="Make its members lazy views, or leave the option out."
        )
    if find_strategy(options.get("strategy", DEFAULT_STRATEGY)) != find_strategy(DEFAULT_STRATEGY):
        raise Unsupported("A family of views has no strategy of its own.", hint="Leave the option out.")
    catalog = store.catalog()
    tables = {t.id: t for t in (*catalog.tables, *(v.table for v in catalog.views))}
    parameters = catalog.table(parameter_table_name(statement.name))
    names = [c.name for c in parameters.columns]
    text = lateral_query(statement.name, statement.query, names)
    member = read_family(spark(), text, _nameable_tables(catalog), len(names))
    _refuse_members(catalog, member)
    query = lift(member, parameters)
    key = (*names, *statement.key) if statement.key or not isinstance(query.root, Sort) else ()
    sizes = {t.id: store.count(t) for t in catalog.tables}
    arguments = (statement.name, catalog.next_id, query, key)
    table, plan = plan_view(*arguments, tables, CatalogPlans(catalog), sizes, options, dry_run_operators)
    table = replace(table, id=reserve_ids(store, 1))
    failpoints.hit("view.planned")
    family = View(table, text, plan.to_json(), options)
    text_names = _text_names(catalog.without(parameters.id), query)
    return replace(
        family,
        parameter_table_id=parameters.id,
        parameter_count=len(names),
        family_query=statement.query,
        text_names=text_names,
    )


def _check_view_options(store: Store, statement: statements.CreateView) -> dict[str, str]:
    options, capabilities = check_options(statement.options), store.capabilities
    if options.get("store") == LAZY and not (
        store.can_read_lazy_views and (capabilities.snapshot_scan or capabilities.cell_versions)
    ):
        raise Unsupported(
            f"{store.url} cannot show one state of tables and views, so {statement.name} cannot be worked out from it.",
            hint="Leave out store = 'lazy'.",
        )
    return options


def _make_view(
    statement: statements.CreateView,
    query: Query,
    options: Mapping[str, str],
    catalog: Catalog,
    view_id: int,
    sizes: Mapping[int, int],
) -> View:
    scanned = (catalog.views_by_id.get(scan.table) for scan in scans(query.root))
    tables = {t.id: t for t in (*catalog.tables, *(v.table for v in scanned if v is not None))}
    presum = "none" if options.get("store") == LAZY else options.get("presum", DEFAULT_PRESUM).lower()
    query = to_any_depth(lambda: preaggregate(query, tables, sizes, presum))
    arguments = (statement.name, view_id, query, statement.key)
    table, plan = to_any_depth(
        lambda: plan_view(*arguments, tables, CatalogPlans(catalog), sizes, options, dry_run_operators)
    )
    return View(table, statement.query, to_any_depth(plan.to_json), options, text_names=_text_names(catalog, query))


def _text_names(catalog: Catalog, query: Query) -> tuple[TextNames, ...]:
    """Return the tables and columns that the names in a query's text refer to."""
    tables = map(catalog.find_table_by_id, dict.fromkeys(scan.table for scan in scans(query.root)))
    return tuple(current_names(table) for table in tables if table is not None)


def _read_query_text(spark: SessionFactory, text: str, templates: TemplateCache, catalog: Catalog) -> Query:
    cached = templates.find(text, catalog)
    if cached is not None:
        return cached
    from viewkeeper.plan.catalyst import read_query

    query = read_query(spark(), text, _nameable_tables(catalog))
    _refuse_members(catalog, query)
    templates.learn(text, catalog, query)
    return query


def _nameable_tables(catalog: Catalog) -> dict[str, Table]:
    """Return the tables and views that a query may name, by name."""
    return {t.name: t for t in (*catalog.user_tables, *(v.table for v in catalog.user_views_and_indexes))}


def _refuse_members(catalog: Catalog, query: Query) -> None:
    entries = map(catalog.find_by_id, dict.fromkeys(s.table for s in scans(query.root)))
    if members := [v for v in entries if isinstance(v, View) and v.is_member]:
        raise MemberReadError(members)


def replan_views(
    store: Store, spark: SessionFactory, catalog: Catalog, views: Sequence[View]
) -> list[tuple[View, View]]:
    """Plan views again over the tables of a catalog; return pairs of old and new view.

    A new view with the same columns and key keeps the id. With other columns or key, InUse is raised if views read it.
    """
    from viewkeeper.plan.catalyst import read_query

    pairs = []
    for view in views:
        visible = catalog.without(view.table.id, *catalog.dependents([view.table.id]))
        query = read_query(spark(), exact_query(catalog, view), _nameable_tables(visible))
        key = () if any(k.descending or k.nulls_last for k in view.table.key) else view.table.key
        statement = statements.CreateView(view.table.name, view.query, tuple(k.column for k in key))
        new_view = _make_view(statement, query, view.options, catalog, view.table.id, _row_counts(store, catalog))
        new_view = replace(new_view, text_names=view.text_names, template=view.template)
        if has_same_shape(new_view.table, view.table):
            new_view = replace(new_view, table=view.table)
        elif readers := sorted(catalog.views_by_id[i].table.name for i in catalog.readers.get(view.table.id, ())):
            raise InUse(
                f"{view.table.name} would have columns of other types, and is used by {', '.join(readers)}.",
                hint="Drop what uses it first, and create it again.",
            )
        else:
            new_view = replace(new_view, table=replace(new_view.table, id=reserve_ids(store, 1)))
        pairs.append((view, new_view))
    failpoints.hit("view.planned")
    return pairs


def plan_detached_member(store: Store, spark: SessionFactory, member: View, templates: TemplateCache) -> View:
    """Plan the separate view that a family member becomes, with the member's name and id."""
    catalog = store.catalog()
    query = member_query(catalog, member) or _read_query_text(spark, exact_query(catalog, member), templates, catalog)
    table = member.table
    key = () if any(k.descending or k.nulls_last for k in table.key) else tuple(k.column for k in table.key)
    statement = statements.CreateView(table.name, member.query, key)
    view = _make_view(statement, query, {}, catalog, table.id, _row_counts(store, catalog))
    names_by_table = {names.table_id: names for names in (*view.text_names, *member.text_names)}
    return replace(view, text_names=tuple(names_by_table.values()))


def _row_counts(store: Store, catalog: Catalog) -> dict[int, int]:
    return {t.id: store.count(t) for t in catalog.tables}
