"""Definitions: what CREATE, ALTER and DROP do to the catalog, and how a query becomes a view.

options of a view    store = 'none'       keep no rows; changes stream to subscribers, `read` works the rows out
                     store = 'lazy'       keep no rows either: what is asked for is worked out (`plan.narrowing`)
                     load_rate = n        scan at most n rows a second when the view is loaded
                     share = false        look its rows up and add them up by itself, and not together with other views
                     lookahead = 'none'   how far lookups see whether a row leads anywhere: none, local, global, auto
                     presum = 'none'      whether rows are summed before they are joined: none, auto, always
                     sync = true          keep it in the transaction of each write to its table (`synchronous`)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from viewkeeper import faults
from viewkeeper.commit.afterwards import Afterwards
from viewkeeper.errors import BadValue, InUse, NameTaken, UnknownName, Unsupported, ViewkeeperError
from viewkeeper.maintain.indexes import following
from viewkeeper.model.catalog import Catalog, View
from viewkeeper.model.schema import LAZY, Column, KeyPart, Table
from viewkeeper.model.strategies import STRATEGIES, USUAL, strategy_named, strategy_of
from viewkeeper.model.views import LOOKAHEAD, USUAL_LOOKAHEAD
from viewkeeper.plan import alterations, indexing, statements
from viewkeeper.plan.columns import read_default
from viewkeeper.plan.compiled import plan_of
from viewkeeper.plan.families.lifting import lift
from viewkeeper.plan.families.texts import FAMILY, parameters_name
from viewkeeper.plan.nodes import Node, Scan
from viewkeeper.plan.presums import PRESUM, USUAL_PRESUM
from viewkeeper.store.base import Store

STORE = ("table", "none", "lazy")
_NAMED = 10
"""Views that a refusal names."""
_KNOWN = frozenset(
    {"store", "load_rate", "strategy", "interval", "hbase.encoding", "share", "lookahead", "presum", "sync"}
)


def create_table(store: Store, statement: statements.CreateTable) -> None:
    def change(catalog: Catalog) -> Catalog:
        if statement.if_not_exists and isinstance(catalog.find(statement.name), Table):
            return catalog
        key = tuple(KeyPart(name) for name in statement.key)
        options = tuple(sorted(statement.options.items()))
        return catalog.with_table(Table(catalog.next_id, statement.name, statement.columns, key, options=options))

    store.change_catalog(change)


def drop_table(store: Store, table: Table) -> None:
    """Of a table without indexes: nobody maintains anything of it."""

    def change(catalog: Catalog) -> Catalog:
        refuse_used(catalog, table)
        return catalog.without(table.id)

    store.change_catalog(change)
    Afterwards(store).drop(table, "table.dropped")


def add_column(store: Store, statement: alterations.AddColumn) -> None:
    """Rows that are there show NULL: a stored row says how many columns it was written with."""

    def change(catalog: Catalog) -> Catalog:
        found = catalog.find(statement.table)
        if isinstance(found, View):
            raise BadValue(f"{statement.table} is a materialized view.", hint="Write CREATE OR REPLACE.")
        table = catalog.table(statement.table)
        refuse_parameters(table)
        if statement.column.name.lower() in table.by_name:
            raise NameTaken(f"{table.name} has a column {statement.column.name} already.", hint="Choose another name.")
        return catalog.with_columns(table.adding(statement.column))

    store.change_catalog(change)
    faults.point("table.changed")


def rename_column(store: Store, spark: Callable[[], Any], statement: alterations.RenameColumn) -> None:
    """Stored rows and state know the column by its first name. Refused while a view's query names it."""

    def altered(catalog: Catalog) -> Table:
        table, column = _column_of(catalog, statement.table, statement.column)
        if statement.to.lower() != column.name.lower() and statement.to.lower() in table.by_name:
            raise NameTaken(f"{table.name} has a column {statement.to} already.", hint="Choose another name.")
        return table.renaming(column.name, statement.to)

    catalog = store.catalog()
    table, column = _column_of(catalog, statement.table, statement.column)
    _refuse_needed(catalog, spark, altered(catalog), column)
    queries = _queries(catalog)

    def change(now: Catalog) -> Catalog:
        if _queries(now) != queries:
            raise InUse(f"Views were made while {table.name} was altered.", hint="Try again.")
        return following(now.with_columns(altered(now)), table.id)

    store.change_catalog(change)
    faults.point("table.changed")


def set_default(store: Store, statement: alterations.SetDefault) -> None:
    """For rows that come; those that are there stay as they are."""

    def change(catalog: Catalog) -> Catalog:
        table, column = _column_of(catalog, statement.table, statement.column)
        default = None
        if statement.words is not None:
            statement.words.next = 0
            default = read_default(statement.words, column)
            statement.words.end()
        return catalog.with_columns(table.with_default(column.name, default))

    store.change_catalog(change)
    faults.point("table.changed")


def rename(store: Store, statement: alterations.Rename) -> None:
    """A table or view by another name, which its indexes follow. Refused while a view's query has the name."""

    def change(catalog: Catalog) -> Catalog:
        found = catalog.find(statement.name)
        table = catalog.view(statement.name).table if statement.is_view else catalog.table(statement.name)
        if isinstance(found, View) and not statement.is_view:
            raise BadValue(f"{statement.name} is a materialized view.", hint="Write ALTER MATERIALIZED VIEW.")
        catalog.refuse_index(statement.name, "ALTER INDEX")
        refuse_parameters(table)
        if isinstance(found, View) and found.parameters:
            raise Unsupported(
                f"{table.name} is a family of views, whose name its table of parameters has too.",
                hint="Create it under the other name, put its parameters there, and drop this one.",
            )
        refuse_used(catalog, table)
        return following(catalog.renaming(table, statement.to), table.id)

    store.change_catalog(change)
    faults.point("table.changed")


def rename_index(store: Store, statement: indexing.RenameIndex) -> None:
    def change(catalog: Catalog) -> Catalog:
        index = catalog.index(statement.name)
        refuse_used(catalog, index.table)
        return catalog.renaming(index.table, statement.to)

    store.change_catalog(change)
    faults.point("table.changed")


def _column_of(catalog: Catalog, table: str, column: str) -> tuple[Table, Column]:
    if isinstance(catalog.find(table), View):
        raise BadValue(f"{table} is a materialized view.", hint="Write CREATE OR REPLACE.")
    found = catalog.table(table)
    refuse_parameters(found)
    if column.lower() not in found.by_name:
        raise UnknownName(f"{found.name} has no column {column!r}.", hint=f"DESCRIBE {found.name}.")
    return found, found.by_name[column.lower()]


def _queries(catalog: Catalog) -> dict[int, str]:
    return {v.table.id: v.query for v in (*catalog.views, *catalog.shown_views)}


def _refuse_needed(catalog: Catalog, spark: Callable[[], Any], table: Table, column: Column) -> None:
    """InUse if a view's query is another one, or none, over the table as it will be, without this column's name."""
    users = [v.table.name for v in catalog.views if not v.gathers and _needs(catalog, spark, v, table, column)]
    for family, members in catalog.members.items():
        reads = table.id in catalog.views_by_id[family].reads
        read = _reads(catalog.views_by_id[family], table, column)
        users += [m.table.name for m in members if read or (reads and _may_name(m, column))]
    if users:
        raise InUse(f"{table.name}.{column.name} is used by {_listed(sorted(users))}.", hint="Drop what uses it first.")


def drop_column(store: Store, spark: Callable[[], Any], statement: alterations.DropColumn) -> None:
    """The column keeps its place in stored rows, which are not touched; who looks the table up from now on sees none.

    Refused while a view uses it: reads it, or names it in a query that means something else, or nothing, without it.
    """

    def altered(catalog: Catalog) -> Table | None:
        there = catalog.table(statement.table).by_name
        if statement.if_exists and statement.column.lower() not in there:
            return None
        table, column = _column_of(catalog, statement.table, statement.column)
        if column in table.key_columns:
            raise InUse(f"{column.name} is in the key of {table.name}.", hint="Make another table with another key.")
        return table.dropping(column.name)

    while not _dropped(store, spark, altered):
        pass


def _dropped(store: Store, spark: Callable[[], Any], altered: Callable[[Catalog], Table | None]) -> bool:
    """Look, and alter the table if nobody has changed the views since; False if somebody has."""
    catalog = store.catalog()
    table = altered(catalog)
    if table is None:
        return True
    gone = table.gone[-1][1]
    _refuse_needed(catalog, spark, table, gone)
    known = _queries(catalog)

    def change(now: Catalog) -> Catalog:
        found = altered(now) if _queries(now) == known else None
        return now if found is None else now.with_columns(found)

    changed = next((t for t in store.change_catalog(change).tables if t.id == table.id), table)
    faults.point("table.changed")
    return gone.inside not in {c.inside for c in changed.columns}


def _needs(catalog: Catalog, spark: Callable[[], Any], view: View, table: Table, gone: Column) -> bool:
    """Whether a view's query is another one, or none, over the table without the column that is gone."""
    if table.id not in view.reads:
        return False
    plan = plan_of(view).query
    if _reads(view, table, gone):
        return view.index is None or gone in dict(table.gone).values()  # an index follows a new name
    if view.index is not None:
        return False
    # What the optimiser left out is in the text still, from which `audit` runs it: one that may mean it is read again.
    if not _may_name(view, gone):
        return False
    from viewkeeper.plan.catalyst import read_family, read_query

    others = (t for t in (*catalog.tables, *(v.table for v in catalog.views)) if t.id not in (table.id, view.table.id))
    known = {t.name: t for t in (*others, table)}
    try:
        if (parameters := catalog.tables_by_id.get(view.parameters)) is not None:
            member = read_family(spark(), view.query, known, len(parameters.columns))
            return lift(member, parameters) != plan
        return read_query(spark(), view.query, known) != plan
    except ViewkeeperError:
        return True


def _listed(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")


def _reads(view: View, table: Table, column: Column) -> bool:
    """Whether a view's plan reads a column."""
    read = (s.fields for s in scans(plan_of(view).query.root) if s.table == table.id)
    return any(column.inside.lower() in (stored.lower() for _, stored in fields) for fields in read)


def _may_name(view: View, column: Column) -> bool:
    """Whether a view's text may mean a column: it names it, or says `*` of all columns of the table that it names."""
    text = view.body or view.query
    words = {w.lower() for w in re.findall(r"\w+", text)}
    plain = re.fullmatch(r"\w+", column.name) and not words & {column.name.lower(), "natural"}
    return not plain or re.search(r"(select|distinct|all|,|\.)\s*\*", text, re.IGNORECASE) is not None


def create_parameters(store: Store, statement: statements.CreateView) -> Table:
    """The table of a family's parameters. One that an interrupted CREATE or DROP has left goes first."""
    name = parameters_name(statement.name)
    found = store.catalog().find(name)
    if isinstance(found, Table) and FAMILY in dict(found.options) and not _readers(store.catalog(), found):
        drop_table(store, store.catalog().table(name))
    names = tuple(c.name for c in statement.parameters)
    create_table(store, statements.CreateTable(name, statement.parameters, names, {FAMILY: statement.name}))
    faults.point("family.parameters")
    return store.catalog().table(name)


def refuse_parameters(table: Table) -> None:
    """A family's parameters are those that it was created with."""
    if FAMILY in dict(table.options):
        raise BadValue(
            f"{table.name} has the parameters of a family of views, whose columns do not change.",
            hint="Put and delete its rows; drop the family and create it again for other parameters.",
        )


def refuse_parameters_gone(catalog: Catalog, table: Table) -> None:
    """A family's parameters go with it, and not before."""
    family = dict(table.options).get(FAMILY)
    if family is not None and catalog.find(family) is not None:
        raise InUse(
            f"{table.name} has the parameters of the family {family}, and goes with it.",
            hint=f"DROP MATERIALIZED VIEW {family} drops both; DELETE FROM {table.name} takes members out.",
        )


def scans(root: Node) -> list[Scan]:
    return [node for node in root.walk() if isinstance(node, Scan)]


def refuse_altered(catalog: Catalog, view: View) -> None:
    """While a view was planned and loaded, tables and columns that it reads may have been dropped."""
    for scan in scans(plan_of(view).query.root):
        table = catalog.table_of(scan.table)
        if table is None:
            raise InUse(f"A table of {view.table.name} was dropped while it was made.", hint="Look at its query.")
        for _, name in scan.fields:
            if name.lower() not in table.inside.by_name:
                raise InUse(
                    f"The column {name} of {table.name} was dropped while {view.table.name} was made.",
                    hint="Look at its query.",
                )


def refuse_used(catalog: Catalog, table: Table) -> None:
    """InUse if a view reads it, or one of its indexes."""
    indexes = {v.table.id: v.table for v in catalog.indexes.get(table.id, ())}
    users = [n for n in _readers(catalog, table) if catalog.table(n).id not in indexes]
    users += [name for index in indexes.values() for name in _readers(catalog, index)]
    if users:
        raise InUse(f"{table.name} is used by {_listed(users)}.", hint="Drop what uses it first.")


def refuse_reshaped(catalog: Catalog, old: View, new: View) -> None:
    """A view that others read may be replaced only by one with the same columns and key."""
    if strategy_of(old).runs_alone or strategy_of(new).runs_alone:
        raise Unsupported(
            f"{old.table.name} runs at intervals or call by call, before or after; it cannot be replaced in one batch.",
            hint="Drop it and create it again.",
        )
    if new.table.id == old.table.id:
        return
    users = _readers(catalog, old.table)
    if users:
        raise InUse(
            f"{old.table.name} is used by {', '.join(users)}, and the new definition has other columns or"
            f" another key ({_shape(new.table)}; before: {_shape(old.table)}).",
            hint="Keep its columns, their types and its key, or drop what uses it first.",
        )


def _readers(catalog: Catalog, table: Table) -> list[str]:
    """The names of the views whose queries name it, as users know them."""
    read = (catalog.views_by_id[i] for i in catalog.readers.get(table.id, ()))
    return sorted(m.table.name for v in read for m in (catalog.members.get(v.table.id, ()) if v.gathers else (v,)))


def load_rate(view: View) -> float | None:
    rate = view.options.get("load_rate")
    return None if rate is None else float(rate)


def checked_options(given: Mapping[str, str]) -> dict[str, str]:
    options = dict(given)
    if unknown := sorted(set(options) - _KNOWN):
        raise Unsupported(f"Views have no option {', '.join(unknown)}.", hint=f"Options: {', '.join(sorted(_KNOWN))}.")
    asked = options.get("strategy", USUAL)
    strategy = strategy_named(asked)
    if strategy is None:
        raise BadValue(f"There is no strategy {asked.upper()!r}.", hint=f"Strategies: {', '.join(STRATEGIES)}.")
    if options.get("store") == LAZY:
        _refuse_beside_lazy(options)
    if strategy.is_scheduled and options.get("store") == "none":
        raise BadValue(
            f"A view with strategy {strategy.name} must be stored: what changed is the difference to its rows."
        )
    if options.get("store", "table") not in STORE:
        raise BadValue(f"store = {options['store']!r} is unknown.", hint=f"Write one of {', '.join(STORE)}.")
    for name in ("share", "sync"):
        if options.get(name, "true").lower() not in ("true", "false"):
            raise BadValue(f"{name} = {options[name]!r} is unknown.", hint="Write true or false.")
    if options.get("lookahead", USUAL_LOOKAHEAD).lower() not in LOOKAHEAD:
        raise BadValue(
            f"lookahead = {options['lookahead']!r} is unknown.", hint=f"Write one of {', '.join(LOOKAHEAD)}."
        )
    if options.get("presum", USUAL_PRESUM).lower() not in PRESUM:
        raise BadValue(f"presum = {options['presum']!r} is unknown.", hint=f"Write one of {', '.join(PRESUM)}.")
    for name in ("load_rate", "interval"):
        try:
            if float(options.get(name, 1)) <= 0:
                raise ValueError
        except ValueError:
            raise BadValue(f"{name} must be a number more than 0, not {options[name]!r}.") from None
    return options


def _refuse_beside_lazy(options: Mapping[str, str]) -> None:
    """What says how a view is kept, which a lazy one is not."""
    unfit = [name for name in ("strategy", "interval", "sync", "lookahead", "presum") if name in options]
    if unfit:
        raise Unsupported(
            f"A lazy view is worked out when it is read: {', '.join(unfit)} would say how it is kept.",
            hint=f"Leave out {', '.join(unfit)}, or store = 'lazy'.",
        )


def same_shape(new: Table, old: Table) -> bool:
    kept, before = (new.is_stored, new.is_lazy), (old.is_stored, old.is_lazy)
    return (new.columns, new.key, new.is_bag, kept) == (old.columns, old.key, old.is_bag, before)


def _shape(table: Table) -> str:
    columns = ", ".join(f"{c.name} {c.type.sql}" for c in table.columns)
    return f"{columns}; key {', '.join(k.column for k in table.key)}"
