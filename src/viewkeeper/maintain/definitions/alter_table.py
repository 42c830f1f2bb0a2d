"""ALTER TABLE and renaming: changes of the catalog that rewrite no stored row.

Columns can be added, renamed, dropped and widened; tables, views and indexes can be renamed. Stored rows, state and
plans identify tables by id and columns by their internal name (`model.schema`), and texts of views keep their meaning
(`syntax.view_text`). Only a wider type makes the views that read the column load again.
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
    """Add a column. Existing rows show its default or NULL: a stored row contains its number of columns."""

    def add(catalog: Catalog) -> Catalog:
        entry = catalog.find(statement.table)
        if isinstance(entry, View):
            raise BadValue(f"{statement.table} is a materialized view.", hint="Write CREATE OR REPLACE.")
        table = catalog.table(statement.table)
        refuse_parameter_table(table)
        if statement.column.name.lower() in table.by_name:
            raise NameTaken(f"{table.name} has a column {statement.column.name} already.", hint="Choose another name.")
        catalog = save_names(catalog, table, [statement.column.name])
        return catalog.with_columns(table.with_column(statement.column))

    store.change_catalog(add)
    failpoints.hit("table.changed")


def rename_column(store: Store, statement: alter.RenameColumn) -> None:
    """Rename a column. Stored rows, state and plans use its internal name; texts of views keep their meaning."""

    def rename_in_catalog(catalog: Catalog) -> Catalog:
        table, column = _find_column(catalog, statement.table, statement.column)
        if statement.to.lower() != column.name.lower() and statement.to.lower() in table.by_name:
            raise NameTaken(f"{table.name} has a column {statement.to} already.", hint="Choose another name.")
        _refuse_clustered(catalog, table)
        catalog = save_names(catalog, table, [column.name, statement.to])
        return update_index_texts(catalog.with_columns(table.with_renamed_column(column.name, statement.to)), table.id)

    store.change_catalog(rename_in_catalog)
    failpoints.hit("table.changed")


def _refuse_clustered(catalog: Catalog, table: Table) -> None:
    """Raise InUse if a clustered view reads the table, since its columns have the names of the table and columns."""
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
    """Change a column to a wider type. Stored rows keep their bytes, and show the same values.

    Views that read the column are planned and loaded again, and switch with the table in one batch.
    """
    catalog = store.catalog()
    table, column = _plan_widening(catalog, statement)
    if column.type == statement.type:
        return
    users = [view for view in catalog.views if _is_column_read(view, catalog.tables_by_id[table.id], column)]
    if not users:

        def widen(current: Catalog) -> Catalog:
            if any(_is_column_read(view, table, column) for view in current.views):
                raise InUse(f"Views were made while {table.name} was altered.", hint="Try again.")
            return current.with_columns(_plan_widening(current, statement)[0])

        store.change_catalog(widen)
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
        replanned = replan_views(store, spark, catalog.with_columns(table), users)
        maintainer.definer.widen(catalog.tables_by_id[table.id], table, replanned, progress=progress)
    failpoints.hit("table.changed")


def _plan_widening(catalog: Catalog, statement: alter.AlterType) -> tuple[Table, Column]:
    """Return the table with the wider column, and the column before the change."""
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
    """Raise InUse if one of these views cannot be planned again for another type."""
    fixed = [view for view in users if _is_fixed(view)]
    members = [member.table.name for view in fixed for member in catalog.members.get(view.table.id, ())]
    if names := sorted([*(view.table.name for view in fixed if not view.is_hidden_family), *members]):
        raise InUse(
            f"{table.name}.{column.name} is used by {join_names(names)}, which are not planned again for another type:"
            " indexes, clustered, synchronous, lazy, scheduled and suspended views, families and their members.",
            hint="Drop them first, and create them again.",
        )


def _is_fixed(view: View) -> bool:
    is_special = (
        view.index is not None
        or view.cluster is not None
        or view.synchronous_state is not None
        or bool(view.parameter_table_id)
    )
    return is_special or view.suspended is not None or view.table.is_lazy or strategy_of(view).has_own_cut


def set_default(store: Store, statement: alter.SetDefault) -> None:
    """Set or drop a default for new rows; existing rows do not change."""

    def update(catalog: Catalog) -> Catalog:
        table, column = _find_column(catalog, statement.table, statement.column)
        default = None
        if statement.cursor is not None:
            statement.cursor.index = 0
            default = read_default(statement.cursor, column)
            statement.cursor.expect_end()
        return catalog.with_columns(table.with_default(column.name, default))

    store.change_catalog(update)
    failpoints.hit("table.changed")


def rename(store: Store, statement: alter.Rename) -> None:
    """Rename a table or view. The texts of its indexes are updated; texts of views keep their meaning."""

    def rename_entry(catalog: Catalog) -> Catalog:
        entry = catalog.find(statement.name)
        table = catalog.view(statement.name).table if statement.is_view else catalog.table(statement.name)
        if isinstance(entry, View) and not statement.is_view:
            raise BadValue(f"{statement.name} is a materialized view.", hint="Write ALTER MATERIALIZED VIEW.")
        catalog.refuse_index(statement.name, "ALTER INDEX")
        refuse_parameter_table(table)
        if isinstance(entry, View) and entry.parameter_table_id:
            raise Unsupported(
                f"{table.name} is a family of views, whose name its table of parameters has too.",
                hint="Create it under the other name, put its parameters there, and drop this one.",
            )
        _refuse_clustered(catalog, table)
        catalog = save_names(catalog, table, [table.name])
        return update_index_texts(catalog.with_renamed_entry(table, statement.to), table.id)

    store.change_catalog(rename_entry)
    failpoints.hit("table.changed")


def rename_index(store: Store, statement: syntax_indexes.RenameIndex) -> None:
    def rename_entry(catalog: Catalog) -> Catalog:
        index = catalog.index(statement.name)
        refuse_used(catalog, index.table)
        return catalog.with_renamed_entry(index.table, statement.to)

    store.change_catalog(rename_entry)
    failpoints.hit("table.changed")


def _find_column(catalog: Catalog, table: str, column: str) -> tuple[Table, Column]:
    if isinstance(catalog.find(table), View):
        raise BadValue(f"{table} is a materialized view.", hint="Write CREATE OR REPLACE.")
    base_table = catalog.table(table)
    refuse_parameter_table(base_table)
    if column.lower() not in base_table.by_name:
        raise UnknownName(f"{base_table.name} has no column {column!r}.", hint=f"DESCRIBE {base_table.name}.")
    return base_table, base_table.by_name[column.lower()]


def _queries(catalog: Catalog) -> dict[int, str]:
    return {v.table.id: v.query for v in (*catalog.views, *catalog.user_views_and_indexes)}


def column_users(store: Store, spark: Callable[[], Any], statement: alter.DropColumn) -> tuple[list[str], list[str]]:
    """Return the names of views that use a column, directly or through views, and of indexes that contain it."""
    catalog = store.catalog()
    table = _table_without_column(catalog, statement)
    if table is None:
        return [], []
    users = _column_views(catalog, spark, table, table.dropped_columns[-1][1])
    dependents = (catalog.views_by_id[number] for number in catalog.dependents(view.table.id for view in users))
    views = {view.table.id: view for view in (*users, *dependents)}.values()
    names = ([view.table.name for view in views if (view.index is not None) is is_index] for is_index in (False, True))
    view_names, indexes = names
    remaining_indexes = {
        view.table.name
        for view in views
        if view.index is not None and view.index.table_id not in {user.table.id for user in views}
    }
    # The indexes of a listed view are dropped with it.
    return view_names, [name for name in indexes if name in remaining_indexes]


def _column_views(catalog: Catalog, spark: Callable[[], Any], table: Table, column: Column) -> list[View]:
    """Return the views whose queries change, or become invalid, without this column of the table."""
    users = [
        view
        for view in catalog.views
        if not view.is_hidden_family and _is_column_needed(catalog, spark, view, table, column)
    ]
    for family, members in catalog.members.items():
        reads = table.id in catalog.views_by_id[family].reads
        is_read = _is_column_read(catalog.views_by_id[family], table, column)
        users += [member for member in members if is_read or (reads and _can_name_column(member, table, column))]
    return users


def release_column(store: Store, get_maintainer: Callable[[], Maintainer], statement: alter.DropColumn) -> None:
    """Remove a column from shared aggregates that only dropped views needed."""
    catalog = store.catalog()
    table = catalog.find(statement.table)
    column = table.by_name.get(statement.column.lower()) if isinstance(table, Table) else None
    if isinstance(table, Table) and column is not None and any("united" in v.plan for v in catalog.views):
        maintainer = get_maintainer()
        maintainer.refresh()
        maintainer.definer.release_column(table, column.internal_name)


def drop_column(store: Store, spark: Callable[[], Any], statement: alter.DropColumn) -> None:
    """Drop a column from the catalog. Stored rows are not rewritten and keep its field.

    Raises InUse while a view uses the column: reads it, or has a query that changes or becomes invalid without it.
    """

    while not _try_drop_column(store, spark, statement):
        pass


def _table_without_column(catalog: Catalog, statement: alter.DropColumn) -> Table | None:
    """Return the table without the column; None if it has no such column and `IF EXISTS` is given."""
    if statement.if_exists and statement.column.lower() not in catalog.table(statement.table).by_name:
        return None
    table, column = _find_column(catalog, statement.table, statement.column)
    if column in table.key_columns:
        raise InUse(f"{column.name} is in the key of {table.name}.", hint="Make another table with another key.")
    return table.without_column(column.name)


def _try_drop_column(store: Store, spark: Callable[[], Any], statement: alter.DropColumn) -> bool:
    """Check for users of the column and drop it; False if views have changed meanwhile and the caller must retry."""
    catalog = store.catalog()
    table = _table_without_column(catalog, statement)
    if table is None:
        return True
    dropped = table.dropped_columns[-1][1]
    if users := sorted(view.table.name for view in _column_views(catalog, spark, table, dropped)):
        raise InUse(
            f"{table.name}.{dropped.name} is used by {join_names(users)}.",
            hint="Drop what uses it first, or write CASCADE behind the column to drop it too.",
        )
    queries = _queries(catalog)

    def drop(current: Catalog) -> Catalog:
        without_column = _table_without_column(current, statement) if _queries(current) == queries else None
        return current if without_column is None else current.with_columns(without_column)

    changed = next(
        (current_table for current_table in store.change_catalog(drop).tables if current_table.id == table.id), table
    )
    failpoints.hit("table.changed")
    return dropped.internal_name not in {c.internal_name for c in changed.columns}


def _is_column_needed(catalog: Catalog, spark: Callable[[], Any], view: View, table: Table, column: Column) -> bool:
    """Whether a view's query changes, or becomes invalid, over the table without the dropped column."""
    if table.id not in view.reads:
        return False
    if _is_column_read(view, table, column):
        return True
    # The text may name a column that the optimiser has removed from the plan, and audits run the text: read it again.
    if view.index is not None or not _can_name_column(view, table, column):
        return False
    try:
        return _reread_query(catalog, spark, view) != _reread_query(catalog.with_columns(table), spark, view)
    except ViewkeeperError:
        return True


def _reread_query(catalog: Catalog, spark: Callable[[], Any], view: View) -> Query:
    """Return the query that Spark reads from a view's text over the tables of a catalog."""
    from viewkeeper.plan.catalyst import read_family, read_query

    tables = (t for t in (*catalog.tables, *(v.table for v in catalog.views)) if t.id != view.table.id)
    tables_by_name, text = {t.name: t for t in tables}, exact_query(catalog, view)
    if (parameters := catalog.tables_by_id.get(view.parameter_table_id)) is not None:
        return lift(read_family(spark(), text, tables_by_name, len(parameters.columns)), parameters)
    query: Query = read_query(spark(), text, tables_by_name)
    return query


def _is_column_read(view: View, table: Table, column: Column) -> bool:
    """Whether a view's plan reads the column."""
    scanned_fields = (scan.fields for scan in scans(plan_of(view).query.root) if scan.table == table.id)
    return any(column.internal_name.lower() in (stored.lower() for _, stored in fields) for fields in scanned_fields)


def _can_name_column(view: View, table: Table, column: Column) -> bool:
    """Whether a view's text may refer to a column: by its name, or by `*` for all columns of its table."""
    text_names = next((names for names in view.text_names if names.table_id == table.id), None)
    column_name = (
        column.name
        if text_names is None
        else {internal_name: name for name, internal_name in text_names.columns}.get(
            table.first_internal_name(column.internal_name)
        )
    )
    table_name = table.name if text_names is None else text_names.name
    return column_name is not None and can_mean(view.family_query or view.query, [column_name], table_name)
