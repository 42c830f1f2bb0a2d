"""ALTER TABLE: what it does to the catalog. No row is rewritten, and no view is loaded again.

A column that is added, renamed or dropped, and a table or view that is renamed: stored rows, state and plans know
tables by number and columns by their name inside (`model.schema`), texts of views keep what they mean
(`plan.view_text`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from viewkeeper import failpoints
from viewkeeper.errors import BadValue, InUse, NameTaken, UnknownName, Unsupported, ViewkeeperError
from viewkeeper.maintain.definitions.catalog_changes import listed, refuse_parameters, refuse_used, scans
from viewkeeper.maintain.definitions.indexes import following
from viewkeeper.maintain.definitions.planning import plan_again
from viewkeeper.model import types
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.catalog.strategies import strategy_of
from viewkeeper.model.schema import Column, Table
from viewkeeper.plan.compile.compiled_view import plan_of
from viewkeeper.plan.families.lift import lift
from viewkeeper.plan.logical.nodes import Query
from viewkeeper.store.contract.store import Store
from viewkeeper.syntax import alter
from viewkeeper.syntax import indexes as syntax_indexes
from viewkeeper.syntax.alter import read_default
from viewkeeper.syntax.view_text import exact_query, keep_names, may_mean

if TYPE_CHECKING:
    from viewkeeper.capture.snapshot import Progress
    from viewkeeper.maintain.maintainer import Maintainer


def add_column(store: Store, statement: alter.AddColumn) -> None:
    """Rows that are there show the default, or NULL: a stored row says how many columns it was written with."""

    def change(catalog: Catalog) -> Catalog:
        found = catalog.find(statement.table)
        if isinstance(found, View):
            raise BadValue(f"{statement.table} is a materialized view.", hint="Write CREATE OR REPLACE.")
        table = catalog.table(statement.table)
        refuse_parameters(table)
        if statement.column.name.lower() in table.by_name:
            raise NameTaken(f"{table.name} has a column {statement.column.name} already.", hint="Choose another name.")
        catalog = keep_names(catalog, table, [statement.column.name])
        return catalog.with_columns(table.adding(statement.column))

    store.change_catalog(change)
    failpoints.point("table.changed")


def rename_column(store: Store, statement: alter.RenameColumn) -> None:
    """Stored rows, state and plans know the column by its name inside; texts of views keep what they mean by it."""

    def change(catalog: Catalog) -> Catalog:
        table, column = _column_of(catalog, statement.table, statement.column)
        if statement.to.lower() != column.name.lower() and statement.to.lower() in table.by_name:
            raise NameTaken(f"{table.name} has a column {statement.to} already.", hint="Choose another name.")
        _refuse_clustered(catalog, table)
        catalog = keep_names(catalog, table, [column.name, statement.to])
        return following(catalog.with_columns(table.renaming(column.name, statement.to)), table.id)

    store.change_catalog(change)
    failpoints.point("table.changed")


def _refuse_clustered(catalog: Catalog, table: Table) -> None:
    """The columns of a clustered view are called after its tables and their columns."""
    readers = (catalog.views_by_id[number] for number in catalog.readers.get(table.id, ()))
    if users := sorted(view.table.name for view in readers if view.cluster is not None):
        raise InUse(
            f"{table.name} is in the clustered view {listed(users)}, whose columns are called after it.",
            hint="Drop it, rename, and create it again.",
        )


def widen_column(
    store: Store,
    maintain: Callable[[], Maintainer],
    spark: Callable[[], Any],
    statement: alter.AlterType,
    progress: Progress | None,
) -> None:
    """Rows that are there keep their bytes, and show the same values. Views that read the column are planned again and
    loaded again, and switch with the table in one batch."""
    catalog = store.catalog()
    table, column = _widened(catalog, statement)
    if column.type == statement.type:
        return
    users = [view for view in catalog.views if _reads(view, catalog.tables_by_id[table.id], column)]
    if not users:

        def change(now: Catalog) -> Catalog:
            if any(_reads(view, table, column) for view in now.views):
                raise InUse(f"Views were made while {table.name} was altered.", hint="Try again.")
            return now.with_columns(_widened(now, statement)[0])

        store.change_catalog(change)
        failpoints.point("table.changed")
        return
    _refuse_fixed(catalog, table, column, users)
    maintainer = maintain()
    with maintainer.publisher.defining:
        maintainer.refresh()
        catalog = store.catalog()
        table, column = _widened(catalog, statement)
        users = [view for view in catalog.views if _reads(view, table, column)]
        _refuse_fixed(catalog, table, column, users)
        again = plan_again(store, spark, catalog.with_columns(table), users)
        maintainer.definer.widen(catalog.tables_by_id[table.id], table, again, progress=progress)
    failpoints.point("table.changed")


def _widened(catalog: Catalog, statement: alter.AlterType) -> tuple[Table, Column]:
    """The table as it will be, and the column as it is."""
    table, column = _column_of(catalog, statement.table, statement.column)
    if column.type == statement.type:
        return table, column
    if not types.widens(column.type, statement.type):
        raise Unsupported(
            f"{table.name}.{column.name} is {column.type.sql}, which is not changed to {statement.type.sql}:"
            " values that are there may not be values of that type.",
            hint="A type becomes a wider one: TINYINT, SMALLINT, INT, BIGINT; FLOAT, DOUBLE; DECIMAL with more digits;"
            " DATE, TIMESTAMP. Else ADD COLUMN, and UPDATE it from this one.",
        )
    if column in table.key_columns:
        raise InUse(
            f"{column.name} is in the key of {table.name}, by whose bytes its rows are ordered.",
            hint="Make another table with another key.",
        )
    return table.widening(column.name, statement.type), column


def _refuse_fixed(catalog: Catalog, table: Table, column: Column, users: Sequence[View]) -> None:
    """Those among the users of a column that are not made again for another type."""
    fixed = [v for v in users if _is_fixed(v)]
    members = [m.table.name for v in fixed for m in catalog.members.get(v.table.id, ())]
    if names := sorted([*(v.table.name for v in fixed if not v.gathers), *members]):
        raise InUse(
            f"{table.name}.{column.name} is used by {listed(names)}, which are not planned again for another type:"
            " indexes, clustered, synchronous, lazy, scheduled and suspended views, families and their members.",
            hint="Drop them first, and create them again.",
        )


def _is_fixed(view: View) -> bool:
    kind = view.index is not None or view.cluster is not None or view.sync is not None or bool(view.parameters)
    return kind or view.suspended is not None or view.table.is_lazy or strategy_of(view).runs_alone


def set_default(store: Store, statement: alter.SetDefault) -> None:
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
    failpoints.point("table.changed")


def rename(store: Store, statement: alter.Rename) -> None:
    """A table or view by another name, which its indexes follow; texts of views keep what they mean by the old one."""

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
        _refuse_clustered(catalog, table)
        catalog = keep_names(catalog, table, [table.name])
        return following(catalog.renaming(table, statement.to), table.id)

    store.change_catalog(change)
    failpoints.point("table.changed")


def rename_index(store: Store, statement: syntax_indexes.RenameIndex) -> None:
    def change(catalog: Catalog) -> Catalog:
        index = catalog.index(statement.name)
        refuse_used(catalog, index.table)
        return catalog.renaming(index.table, statement.to)

    store.change_catalog(change)
    failpoints.point("table.changed")


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


def users_of(store: Store, spark: Callable[[], Any], statement: alter.DropColumn) -> tuple[list[str], list[str]]:
    """The names of the views that use a column, or read a view that does, and of the indexes that have it."""
    catalog = store.catalog()
    table = _without(catalog, statement)
    if table is None:
        return [], []
    users = _users(catalog, spark, table, table.gone[-1][1])
    known = (catalog.views_by_id[number] for number in catalog.dependents(v.table.id for v in users))
    views = {v.table.id: v for v in (*users, *known)}.values()
    names = ([v.table.name for v in views if (v.index is not None) is is_index] for is_index in (False, True))
    own, indexes = names
    kept = {v.table.name for v in views if v.index is not None and v.index.on not in {u.table.id for u in views}}
    return own, [name for name in indexes if name in kept]  # the index of a view goes with it


def _users(catalog: Catalog, spark: Callable[[], Any], table: Table, column: Column) -> list[View]:
    """The views whose queries are others, or none, over a table that has lost this column."""
    users = [v for v in catalog.views if not v.gathers and _needs(catalog, spark, v, table, column)]
    for family, members in catalog.members.items():
        reads = table.id in catalog.views_by_id[family].reads
        read = _reads(catalog.views_by_id[family], table, column)
        users += [m for m in members if read or (reads and _may_name(m, table, column))]
    return users


def let_go(store: Store, maintain: Callable[[], Maintainer], statement: alter.DropColumn) -> None:
    """Views keep nothing of a column for others that are gone."""
    catalog = store.catalog()
    table = catalog.find(statement.table)
    column = table.by_name.get(statement.column.lower()) if isinstance(table, Table) else None
    if isinstance(table, Table) and column is not None and any("united" in v.plan for v in catalog.views):
        maintainer = maintain()
        maintainer.refresh()
        maintainer.definer.let_go(table, column.inside)


def drop_column(store: Store, spark: Callable[[], Any], statement: alter.DropColumn) -> None:
    """The column keeps its place in stored rows, which are not touched; who looks the table up from now on sees none.

    Refused while a view uses it: reads it, or names it in a query that means something else, or nothing, without it.
    """

    while not _dropped(store, spark, statement):
        pass


def _without(catalog: Catalog, statement: alter.DropColumn) -> Table | None:
    """The table as it will be; None if the column is not there, and need not be."""
    if statement.if_exists and statement.column.lower() not in catalog.table(statement.table).by_name:
        return None
    table, column = _column_of(catalog, statement.table, statement.column)
    if column in table.key_columns:
        raise InUse(f"{column.name} is in the key of {table.name}.", hint="Make another table with another key.")
    return table.dropping(column.name)


def _dropped(store: Store, spark: Callable[[], Any], statement: alter.DropColumn) -> bool:
    """Look for views that use the column, and alter the table if no view has changed since; False if one has."""
    catalog = store.catalog()
    table = _without(catalog, statement)
    if table is None:
        return True
    gone = table.gone[-1][1]
    if users := sorted(v.table.name for v in _users(catalog, spark, table, gone)):
        raise InUse(
            f"{table.name}.{gone.name} is used by {listed(users)}.",
            hint="Drop what uses it first, or write CASCADE behind the column to drop it too.",
        )
    known = _queries(catalog)

    def change(now: Catalog) -> Catalog:
        found = _without(now, statement) if _queries(now) == known else None
        return now if found is None else now.with_columns(found)

    changed = next((t for t in store.change_catalog(change).tables if t.id == table.id), table)
    failpoints.point("table.changed")
    return gone.inside not in {c.inside for c in changed.columns}


def _needs(catalog: Catalog, spark: Callable[[], Any], view: View, table: Table, gone: Column) -> bool:
    """Whether a view's query is another one, or none, over the table without the column that is gone."""
    if table.id not in view.reads:
        return False
    if _reads(view, table, gone):
        return True
    # What the optimiser left out is in the text still, from which `audit` runs it: one that may mean it is read again.
    if view.index is not None or not _may_name(view, table, gone):
        return False
    try:
        return _read_again(catalog, spark, view) != _read_again(catalog.with_columns(table), spark, view)
    except ViewkeeperError:
        return True


def _read_again(catalog: Catalog, spark: Callable[[], Any], view: View) -> Query:
    """What Spark makes of a view's text over the tables of a catalog."""
    from viewkeeper.plan.catalyst import read_family, read_query

    tables = (t for t in (*catalog.tables, *(v.table for v in catalog.views)) if t.id != view.table.id)
    known, text = {t.name: t for t in tables}, exact_query(catalog, view)
    if (parameters := catalog.tables_by_id.get(view.parameters)) is not None:
        return lift(read_family(spark(), text, known, len(parameters.columns)), parameters)
    query: Query = read_query(spark(), text, known)
    return query


def _reads(view: View, table: Table, column: Column) -> bool:
    """Whether a view's plan reads a column."""
    read = (s.fields for s in scans(plan_of(view).query.root) if s.table == table.id)
    return any(column.inside.lower() in (stored.lower() for _, stored in fields) for fields in read)


def _may_name(view: View, table: Table, column: Column) -> bool:
    """Whether a view's text may mean a column: it names it, or says `*` of all columns of the table that it names."""
    kept = next((n for n in view.names if n.table == table.id), None)
    called = (
        column.name
        if kept is None
        else {inside: name for name, inside in kept.columns}.get(table.first_inside(column.inside))
    )
    where = table.name if kept is None else kept.name
    return called is not None and may_mean(view.body or view.query, [called], where)
