"""From a CREATE MATERIALIZED VIEW to the view that the catalog will list: its query read, its plan made, its id taken.

Several at once are planned one after the other, each over those before it; nothing is listed yet, but their ids are
taken, with one change of the catalog. Those that differ in constants alone may become members of a family
(`gathering`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from viewkeeper import failpoints
from viewkeeper.errors import BadStatement, InUse, NameTaken, Unsupported, ViewkeeperError
from viewkeeper.maintain.definitions.catalog_changes import checked_options, same_shape, scans
from viewkeeper.maintain.definitions.families import Candidate, Gathered, closed, gather
from viewkeeper.maintain.definitions.new_views import fresh_ids
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.catalog.strategies import USUAL, strategy_named
from viewkeeper.model.catalog.view import TextNames
from viewkeeper.model.schema import LAZY, Table
from viewkeeper.plan.dataflow.cache import Plans
from viewkeeper.plan.depth import to_any_depth
from viewkeeper.plan.families.detect import opened
from viewkeeper.plan.families.lift import lift
from viewkeeper.plan.families.plan_templates import Templates
from viewkeeper.plan.logical.nodes import Query, Sort
from viewkeeper.plan.planner import attempt, plan_view
from viewkeeper.plan.rules.preaggregation import USUAL_PRESUM, presummed
from viewkeeper.store.contract.store import Store
from viewkeeper.syntax import statements
from viewkeeper.syntax.family_text import lateral, parameters_name
from viewkeeper.syntax.view_text import exact_query, names_of

Spark = Callable[[], Any]

_WORD = re.compile(r"\w+")


def plan(
    store: Store, spark: Spark, statement: statements.CreateView, templates: Templates, old: View | None = None
) -> View:
    """The view that a statement defines. In place of `old`, it takes its id if it has the same columns and key.

    `templates` knows the plans of queries that differ in constants: for those Catalyst is not asked.
    """
    catalog = store.catalog()
    if old is not None:
        catalog = catalog.without(old.table.id, *catalog.dependents([old.table.id]))
    query = _read(spark, statement.query, templates, catalog)
    view = _made(statement, query, _options(store, statement), catalog, catalog.next_id, _sizes(store, catalog))
    if old is not None and same_shape(view.table, old.table):
        number = old.table.id
    else:
        # Taken now: while the view is loaded, other processes make tables.
        number = fresh_ids(store, 1)
    failpoints.point("view.planned")
    return replace(view, table=replace(view.table, id=number))


@dataclass(frozen=True)
class Planned:
    """Views to load, among them new families, and members to list."""

    views: list[View]
    gathered: Gathered


class ReadsMembers(Unsupported):
    """A query reads members of families, which must be views by themselves first."""

    def __init__(self, members: Sequence[View]) -> None:
        names = ", ".join(m.table.name for m in members)
        super().__init__(f"It reads {names}, kept together with views like it.", hint="Make it WITH (share = false).")
        self.members = members


def once(wanted: Sequence[statements.CreateView]) -> list[statements.CreateView]:
    """Each view once: a second one of the name is refused, or does nothing if it may be there."""
    found: dict[str, statements.CreateView] = {}
    for statement in wanted:
        first = found.setdefault(statement.name.lower(), statement)
        if first is not statement and not statement.if_not_exists:
            raise NameTaken(
                f"Two of the views to be made are called {statement.name!r}"
                + (f" and {first.name!r}: names do not differ by case." if first.name != statement.name else "."),
                hint="Nothing was made. Rename one of them.",
            )
    return list(found.values())


def plan_many(
    store: Store, spark: Spark, wanted: Sequence[statements.CreateView], templates: Templates, *, named: bool = True
) -> Planned:
    """The views that statements define, in their order: one may read another before it. None of them is there yet.

    `named`: an error says of which it is.
    """
    catalog = store.catalog()
    sizes, words = _sizes(store, catalog), Counter(word for s in wanted for word in _words(s.query))
    found: list[View] = []
    candidates: list[Candidate] = []
    first = fresh_ids(store, len(wanted))
    for number, statement in enumerate(wanted, first):
        try:
            if statement.parameters:
                raise BadStatement("A family of views is made by a statement of its own.", hint="Run it by itself.")
            options = _options(store, statement)
            may = store.keeps_members and not options and not _may_be_read(statement, words)
            member = templates.member(statement.query, catalog, statement.key) if may else None
            if member is None:
                query = _read(spark, statement.query, templates, catalog)
                member = opened(query, statement.key) if may else None
            if member is not None:
                candidates.append(Candidate(statement, member, number))
                continue
            found.append(_made(statement, query, options, catalog, number, sizes))
            catalog = catalog.with_view(found[-1])
        except ViewkeeperError as error:
            error.view = statement.name
            if named:
                error.message = f"{statement.name}: {error.message}"
            raise
    gathered = gather(store, catalog, candidates, sizes)
    for one in gathered.rest:
        made = _made(one.statement, one.opened.closed, {}, catalog, one.number, sizes)
        found.append(replace(made, template=one.opened.template))
    failpoints.point("view.planned")
    return Planned([*found, *gathered.families], gathered)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


def _may_be_read(statement: statements.CreateView, words: Mapping[str, int]) -> bool:
    """Whether another of the statements may read this one's view: all words of its name are in their queries."""
    own = _words(statement.query)
    return all(words.get(word, 0) > (word in own) for word in _words(statement.name))


def family(store: Store, spark: Spark, statement: statements.CreateView) -> View:
    """A family: its table of parameters is there already."""
    from viewkeeper.plan.catalyst import read_family

    options = checked_options(statement.options)
    if options.get("store") == LAZY:
        raise Unsupported(
            "A family of views is not lazy.", hint="Make its members lazy views, or leave the option out."
        )
    if strategy_named(options.get("strategy", USUAL)) != strategy_named(USUAL):
        raise Unsupported("A family of views has no strategy of its own.", hint="Leave the option out.")
    catalog = store.catalog()
    tables = {t.id: t for t in (*catalog.tables, *(v.table for v in catalog.views))}
    parameters = catalog.table(parameters_name(statement.name))
    names = [c.name for c in parameters.columns]
    text = lateral(statement.name, statement.query, names)
    member = read_family(spark(), text, _there(catalog), len(names))
    _refuse_members(catalog, member)
    query = lift(member, parameters)
    key = (*names, *statement.key) if statement.key or not isinstance(query.root, Sort) else ()
    sizes = {t.id: store.count(t) for t in catalog.tables}
    planned = (statement.name, catalog.next_id, query, key)
    table, made = plan_view(*planned, tables, Plans(catalog), sizes, options, attempt)
    table = replace(table, id=fresh_ids(store, 1))
    failpoints.point("view.planned")
    family = View(table, text, made.to_json(), options)
    named = _names(catalog.without(parameters.id), query)
    return replace(family, parameters=parameters.id, given=len(names), body=statement.query, names=named)


def _options(store: Store, statement: statements.CreateView) -> dict[str, str]:
    options, can = checked_options(statement.options), store.capabilities
    if options.get("store") == LAZY and not (store.answers_lazily and (can.snapshot_scan or can.cell_versions)):
        raise Unsupported(
            f"{store.url} cannot show one state of tables and views, so {statement.name} cannot be worked out from it.",
            hint="Leave out store = 'lazy'.",
        )
    return options


def _made(
    statement: statements.CreateView,
    query: Query,
    options: Mapping[str, str],
    catalog: Catalog,
    number: int,
    sizes: Mapping[int, int],
) -> View:
    scanned = (catalog.views_by_id.get(scan.table) for scan in scans(query.root))
    tables = {t.id: t for t in (*catalog.tables, *(v.table for v in scanned if v is not None))}
    presum = "none" if options.get("store") == LAZY else options.get("presum", USUAL_PRESUM).lower()
    query = to_any_depth(lambda: presummed(query, tables, sizes, presum))
    named = (statement.name, number, query, statement.key)
    table, made = to_any_depth(lambda: plan_view(*named, tables, Plans(catalog), sizes, options, attempt))
    return View(table, statement.query, to_any_depth(made.to_json), options, names=_names(catalog, query))


def _names(catalog: Catalog, query: Query) -> tuple[TextNames, ...]:
    """What a text means by the names of the tables that its query reads."""
    read = map(catalog.table_of, dict.fromkeys(scan.table for scan in scans(query.root)))
    return tuple(names_of(table) for table in read if table is not None)


def _read(spark: Spark, text: str, templates: Templates, catalog: Catalog) -> Query:
    known = templates.find(text, catalog)
    if known is not None:
        return known
    from viewkeeper.plan.catalyst import read_query

    query = read_query(spark(), text, _there(catalog))
    _refuse_members(catalog, query)
    templates.learn(text, catalog, query)
    return query


def _there(catalog: Catalog) -> dict[str, Table]:
    """What a query may name."""
    return {t.name: t for t in (*catalog.named_tables, *(v.table for v in catalog.shown_views))}


def _refuse_members(catalog: Catalog, query: Query) -> None:
    read = map(catalog.of, dict.fromkeys(s.table for s in scans(query.root)))
    if members := [v for v in read if isinstance(v, View) and v.is_member]:
        raise ReadsMembers(members)


def plan_again(store: Store, spark: Spark, catalog: Catalog, views: Sequence[View]) -> list[tuple[View, View]]:
    """Views, each with what its text gives over the tables of a catalog. One that has the same columns and key keeps
    its id; another is refused if views read it."""
    from viewkeeper.plan.catalyst import read_query

    found = []
    for view in views:
        others = catalog.without(view.table.id, *catalog.dependents([view.table.id]))
        query = read_query(spark(), exact_query(catalog, view), _there(others))
        key = () if any(k.descending or k.nulls_last for k in view.table.key) else view.table.key
        statement = statements.CreateView(view.table.name, view.query, tuple(k.column for k in key))
        made = _made(statement, query, view.options, catalog, view.table.id, _sizes(store, catalog))
        made = replace(made, names=view.names, template=view.template)
        if same_shape(made.table, view.table):
            made = replace(made, table=view.table)
        elif readers := sorted(catalog.views_by_id[i].table.name for i in catalog.readers.get(view.table.id, ())):
            raise InUse(
                f"{view.table.name} would have columns of other types, and is used by {', '.join(readers)}.",
                hint="Drop what uses it first, and create it again.",
            )
        else:
            made = replace(made, table=replace(made.table, id=fresh_ids(store, 1)))
        found.append((view, made))
    failpoints.point("view.planned")
    return found


def alone(store: Store, spark: Spark, member: View, templates: Templates) -> View:
    """A member of a family as the view by itself that it becomes, under its name and number."""
    catalog = store.catalog()
    query = closed(catalog, member) or _read(spark, exact_query(catalog, member), templates, catalog)
    table = member.table
    key = () if any(k.descending or k.nulls_last for k in table.key) else tuple(k.column for k in table.key)
    statement = statements.CreateView(table.name, member.query, key)
    made = _made(statement, query, {}, catalog, table.id, _sizes(store, catalog))
    kept = {names.table: names for names in (*made.names, *member.names)}
    return replace(made, names=tuple(kept.values()))


def _sizes(store: Store, catalog: Catalog) -> dict[int, int]:
    return {t.id: store.count(t) for t in catalog.tables}
