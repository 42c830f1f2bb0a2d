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
from viewkeeper.maintain.definitions.catalog_changes import join_names, refuse_parameter_table, refuse_used, scans
from viewkeeper.maintain.definitions.indexes import update_index_texts
from viewkeeper.maintain.definitions.planning import replan_views
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
from viewkeeper.syntax.view_text import can_mean, exact_query, save_names

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
        refuse_parameter_table(table)
        if statement.column.name.lower() in table.by_name:
            raise NameTaken(f"{table.name} has a column {statement.column.name} already.", hint="Choose another name.")
        catalog = save_names(catalog, table, [statement.column.name])
        return catalog.with_columns(table.with_column(statement.column))

    store.change_catalog(change)
    failpoints.hit("table.changed")


def rename_column(store: Store, statement: alter.RenameColumn) -> None:
    """Stored rows, state and plans know the column by its name inside; texts of views keep what they mean by it."""

    def change(catalog: Catalog) -> Catalog:
        table, column = _find_column(catalog, statement.table, statement.column)
        if statement.to.lower() != column.name.lower() and statement.to.lower() in table.by_name:
            raise NameTaken(f"{table.name} has a column {statement.to} already.", hint="Choose another name.")
        _refuse_clustered(catalog, table)
        catalog = save_names(catalog, table, [column.name, statement.to])
        return update_index_texts(catalog.with_columns(table.with_renamed_column(column.name, statement.to)), table.id)

    store.change_catalog(change)
    failpoints.hit("table.changed")


def _refuse_clustered(catalog: Catalog, table: Table) -> None:
    """The columns of a clustered view are called after its tables and their columns."""
    readers = (catalog.views_by_id[number] for number in catalog.readers.get(table.id, ()))
    if users := sorted(view.table.name for view in readers if view.cluster is not None):
        raise InUse(
            f"{table.name} is in the clustered view {join_names(users)}, whose columns are called after it.",
            hint="Drop it, rename, and create it again.",
        )


def widen_column(
    store: Store,
    get_maintainer: Callable[[], Maintainer],
    spark: Callable[[], Any],
    statement: alter.AlterType,
    progress: Progress | None,
) -> None:
    """Rows that are there keep their bytes, and show the same values. Views that read the column are planned again and
    loaded again, and switch with the table in one batch."""
    catalog = store.catalog()
    table, column = _plan_widening(catalog, statement)
    if column.type == statement.type:
        return
    users = [view for view in catalog.views if _is_column_read(view, catalog.tables_by_id[table.id], column)]
    if not users:

        def change(now: Catalog) -> Catalog:
            if any(_is_column_read(view, table, column) for view in now.views):
                raise InUse(f"Views were made while {table.name} was altered.", hint="Try again.")
            return now.with_columns(_plan_widening(now, statement)[0])

        store.change_catalog(change)
        failpoints.hit("table.changed")
        return
    _refuse_fixed(catalog, table, column, users)
    maintainer = get_maintainer()
    with maintainer.publisher.definition_lock:
        maintainer.refresh()
        catalog = store.catalog()
        table, column = _plan_widening(catalog, statement)
        users = [view for view in catalog.views if _is_column_read(view, table, column)]
        _refuse_fixed(catalog, table, column, users)
        again = replan_views(store, spark, catalog.with_columns(table), users)
        maintainer.definer.widen(catalog.tables_by_id[table.id], table, again, progress=progress)
    failpoints.hit("table.changed")


def _plan_widening(catalog: Catalog, statement: alter.AlterType) -> tuple[Table, Column]:
    """The table as it will be, and the column as it is."""
    table, column = _find_column(catalog, statement.table, statement.column)
    if column.type == statement.type:
        return table, column
    if not types.is_widening(column.type, statement.type):
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
    return table.with_wider_column(column.name, statement.type), column


def _refuse_fixed(catalog: Catalog, table: Table, column: Column, users: Sequence[View]) -> None:
    """Those among the users of a column that are not made again for another type."""
    fixed = [v for v in users if _is_fixed(v)]
    members = [m.table.name for v in fixed for m in catalog.members.get(v.table.id, ())]
    if names := sorted([*(v.table.name for v in fixed if not v.is_hidden_family), *members]):
        raise InUse(
            f"{table.name}.{column.name} is used by {join_names(names)}, which are not planned again for another type:"
            " indexes, clustered, synchronous, lazy, scheduled and suspended views, families and their members.",
            hint="Drop them first, and create them again.",
        )


def _is_fixed(view: View) -> bool:
    kind = (
        view.index is not None
        or view.cluster is not None
        or view.synchronous_state is not None
        or bool(view.parameter_table_id)
    )
    return kind or view.suspended is not None or view.table.is_lazy or strategy_of(view).has_own_cut


def set_default(store: Store, statement: alter.SetDefault) -> None:
    """For rows that come; those that are there stay as they are."""

    def change(catalog: Catalog) -> Catalog:
        table, column = _find_column(catalog, statement.table, statement.column)
        default = None
        if statement.cursor is not None:
            statement.cursor.index = 0
            default = read_default(statement.cursor, column)
            statement.cursor.expect_end()
        return catalog.with_columns(table.with_default(column.name, default))

    store.change_catalog(change)
    failpoints.hit("table.changed")


def rename(store: Store, statement: alter.Rename) -> None:
    """A table or view by another name, which its indexes follow; texts of views keep what they mean by the old one."""

    def change(catalog: Catalog) -> Catalog:
        found = catalog.find(statement.name)
        table = catalog.view(statement.name).table if statement.is_view else catalog.table(statement.name)
        if isinstance(found, View) and not statement.is_view:
            raise BadValue(f"{statement.name} is a materialized view.", hint="Write ALTER MATERIALIZED VIEW.")
        catalog.refuse_index(statement.name, "ALTER INDEX")
        refuse_parameter_table(table)
        if isinstance(found, View) and found.parameter_table_id:
            raise Unsupported(
                f"{table.name} is a family of views, whose name its table of parameters has too.",
                hint="Create it under the other name, put its parameters there, and drop this one.",
            )
        _refuse_clustered(catalog, table)
        catalog = save_names(catalog, table, [table.name])
        return update_index_texts(catalog.with_renamed_entry(table, statement.to), table.id)

    store.change_catalog(change)
    failpoints.hit("table.changed")


def rename_index(store: Store, statement: syntax_indexes.RenameIndex) -> None:
    def change(catalog: Catalog) -> Catalog:
        index = catalog.index(statement.name)
        refuse_used(catalog, index.table)
        return catalog.with_renamed_entry(index.table, statement.to)

    store.change_catalog(change)
    failpoints.hit("table.changed")


def _find_column(catalog: Catalog, table: str, column: str) -> tuple[Table, Column]:
    if isinstance(catalog.find(table), View):
        raise BadValue(f"{table} is a materialized view.", hint="Write CREATE OR REPLACE.")
    found = catalog.table(table)
    refuse_parameter_table(found)
    if column.lower() not in found.by_name:
        raise UnknownName(f"{found.name} has no column {column!r}.", hint=f"DESCRIBE {found.name}.")
    return found, found.by_name[column.lower()]


def _queries(catalog: Catalog) -> dict[int, str]:
    return {v.table.id: v.query for v in (*catalog.views, *catalog.user_views_and_indexes)}


def column_users(store: Store, spark: Callable[[], Any], statement: alter.DropColumn) -> tuple[list[str], list[str]]:
    """The names of the views that use a column, or read a view that does, and of the indexes that have it."""
    catalog = store.catalog()
    table = _table_without_column(catalog, statement)
    if table is None:
        return [], []
    users = _column_views(catalog, spark, table, table.dropped_columns[-1][1])
    known = (catalog.views_by_id[number] for number in catalog.dependents(v.table.id for v in users))
    views = {v.table.id: v for v in (*users, *known)}.values()
    names = ([v.table.name for v in views if (v.index is not None) is is_index] for is_index in (False, True))
    own, indexes = names
    kept = {v.table.name for v in views if v.index is not None and v.index.table_id not in {u.table.id for u in views}}
    return own, [name for name in indexes if name in kept]  # the index of a view goes with it


def _column_views(catalog: Catalog, spark: Callable[[], Any], table: Table, column: Column) -> list[View]:
    """The views whose queries are others, or none, over a table that has lost this column."""
    users = [v for v in catalog.views if not v.is_hidden_family and _is_column_needed(catalog, spark, v, table, column)]
    for family, members in catalog.members.items():
        reads = table.id in catalog.views_by_id[family].reads
        read = _is_column_read(catalog.views_by_id[family], table, column)
        users += [m for m in members if read or (reads and _can_name_column(m, table, column))]
    return users


def release_column(store: Store, get_maintainer: Callable[[], Maintainer], statement: alter.DropColumn) -> None:
    """Views keep nothing of a column for others that are gone."""
    catalog = store.catalog()
    table = catalog.find(statement.table)
    column = table.by_name.get(statement.column.lower()) if isinstance(table, Table) else None
    if isinstance(table, Table) and column is not None and any("united" in v.plan for v in catalog.views):
        maintainer = get_maintainer()
        maintainer.refresh()
        maintainer.definer.release_column(table, column.internal_name)


def drop_column(store: Store, spark: Callable[[], Any], statement: alter.DropColumn) -> None:
    """The column keeps its place in stored rows, which are not touched; who looks the table up from now on sees none.

    Refused while a view uses it: reads it, or names it in a query that means something else, or nothing, without it.
    """

    while not _try_drop_column(store, spark, statement):
        pass


def _table_without_column(catalog: Catalog, statement: alter.DropColumn) -> Table | None:
    """The table as it will be; None if the column is not there, and need not be."""
    if statement.if_exists and statement.column.lower() not in catalog.table(statement.table).by_name:
        return None
    table, column = _find_column(catalog, statement.table, statement.column)
    if column in table.key_columns:
        raise InUse(f"{column.name} is in the key of {table.name}.", hint="Make another table with another key.")
    return table.without_column(column.name)


def _try_drop_column(store: Store, spark: Callable[[], Any], statement: alter.DropColumn) -> bool:
    """Look for views that use the column, and alter the table if no view has changed since; False if one has."""
    catalog = store.catalog()
    table = _table_without_column(catalog, statement)
    if table is None:
        return True
    gone = table.dropped_columns[-1][1]
    if users := sorted(v.table.name for v in _column_views(catalog, spark, table, gone)):
        raise InUse(
            f"{table.name}.{gone.name} is used by {join_names(users)}.",
            hint="Drop what uses it first, or write CASCADE behind the column to drop it too.",
        )
    known = _queries(catalog)

    def change(now: Catalog) -> Catalog:
        found = _table_without_column(now, statement) if _queries(now) == known else None
        return now if found is None else now.with_columns(found)

    changed = next((t for t in store.change_catalog(change).tables if t.id == table.id), table)
    failpoints.hit("table.changed")
    return gone.internal_name not in {c.internal_name for c in changed.columns}


def _is_column_needed(catalog: Catalog, spark: Callable[[], Any], view: View, table: Table, column: Column) -> bool:
    """Whether a view's query is another one, or none, over the table without the column that is gone."""
    if table.id not in view.reads:
        return False
    if _is_column_read(view, table, column):
        return True
    # What the optimiser left out is in the text still, from which `audit` runs it: one that may mean it is read again.
    if view.index is not None or not _can_name_column(view, table, column):
        return False
    try:
        return _reread_query(catalog, spark, view) != _reread_query(catalog.with_columns(table), spark, view)
    except ViewkeeperError:
        return True


def _reread_query(catalog: Catalog, spark: Callable[[], Any], view: View) -> Query:
    """What Spark makes of a view's text over the tables of a catalog."""
    from viewkeeper.plan.catalyst import read_family, read_query

    tables = (t for t in (*catalog.tables, *(v.table for v in catalog.views)) if t.id != view.table.id)
    known, text = {t.name: t for t in tables}, exact_query(catalog, view)
    if (parameters := catalog.tables_by_id.get(view.parameter_table_id)) is not None:
        return lift(read_family(spark(), text, known, len(parameters.columns)), parameters)
    query: Query = read_query(spark(), text, known)
    return query


def _is_column_read(view: View, table: Table, column: Column) -> bool:
    """Whether a view's plan reads a column."""
    read = (s.fields for s in scans(plan_of(view).query.root) if s.table == table.id)
    return any(column.internal_name.lower() in (stored.lower() for _, stored in fields) for fields in read)


def _can_name_column(view: View, table: Table, column: Column) -> bool:
    """Whether a view's text may mean a column: it names it, or says `*` of all columns of the table that it names."""
    kept = next((n for n in view.text_names if n.table_id == table.id), None)
    called = (
        column.name
        if kept is None
        else {inside: name for name, inside in kept.columns}.get(table.first_internal_name(column.internal_name))
    )
    where = table.name if kept is None else kept.name
    return called is not None and can_mean(view.family_query or view.query, [called], where)
