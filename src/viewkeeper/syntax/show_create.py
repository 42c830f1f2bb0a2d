"""Tables and views as the statements that make them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from viewkeeper.errors import Defect
from viewkeeper.model import types
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.names import backticked
from viewkeeper.model.schema import Column, Table
from viewkeeper.syntax.view_text import display_query


def show_create(catalog: Catalog, definition: Table | View) -> str:
    """The statement that makes a table, view or index as it is now."""
    if isinstance(definition, Table):
        return create_table_sql(definition)
    return create_view_sql(catalog, definition) if definition.index is None else create_index_sql(catalog, definition)


def create_table_sql(table: Table) -> str:
    """CREATE TABLE … for a table as it is now."""
    lines = [f"  {_column_sql(c)}" for c in table.columns]
    lines.append(f"  PRIMARY KEY ({', '.join(backticked(k.column) for k in table.key)})")
    return f"CREATE TABLE {backticked(table.name)} (\n" + ",\n".join(lines) + "\n)" + _options_sql(dict(table.options))


def create_view_sql(catalog: Catalog, view: View) -> str:
    """CREATE MATERIALIZED VIEW … with the query as it would be written now."""
    if view.cluster is not None:
        by, of = (", ".join(map(backticked, names)) for names in (view.cluster.key_columns, view.cluster.tables))
        name = backticked(view.table.name)
        return f"CREATE MATERIALIZED VIEW {name} CLUSTER BY ({by}){_options_sql(view.options)} OF {of}"
    key, shown = "", view.table.key
    if parameters := view.table.columns[: view.parameter_count]:
        own = {c.name.lower() for c in parameters}
        listed = ", ".join(f"{backticked(c.name)} {c.type.sql}" for c in parameters)
        key, shown = f" PARAMETERS ({listed})", tuple(k for k in shown if k.column.lower() not in own)
    if not view.table.is_bag and shown and not any(k.descending or k.nulls_last for k in view.table.key):
        key += f" KEY ({', '.join(backticked(k.column) for k in shown)})"
    query = display_query(catalog, view)
    return f"CREATE MATERIALIZED VIEW {backticked(view.table.name)}{key}{_options_sql(view.options)} AS\n{query}"


def create_index_sql(catalog: Catalog, view: View) -> str:
    """CREATE INDEX … with the names that its table and columns have now."""
    listed = ", ".join(index_columns(catalog, view, backticked))
    include = ", ".join(included_columns(catalog, view, backticked))
    text = f"CREATE INDEX {backticked(view.table.name)} ON {backticked(indexed_table(catalog, view).name)} ({listed})"
    return text + (f" INCLUDE ({include})" if include else "") + _options_sql(view.options)


def indexed_table(catalog: Catalog, view: View) -> Table:
    """The table or view that an index is of."""
    found = None if view.index is None else catalog.find_table_by_id(view.index.table_id)
    if found is None:
        raise Defect(f"{view.table.name} is an index of nothing.")
    return found


def index_columns(catalog: Catalog, view: View, quote: Callable[[str], str] = str) -> list[str]:
    """The columns that an index was made for, each with its direction."""
    count = view.index.key_count if view.index is not None else 0
    parts = view.table.key[:count]
    return [
        quote(n) + (" DESC" if p.descending else "")
        for n, p in zip(_index_column_names(catalog, view), parts, strict=False)
    ]


def included_columns(catalog: Catalog, view: View, quote: Callable[[str], str] = str) -> list[str]:
    """The columns that an index holds beside them."""
    count = view.index.included_count if view.index is not None else 0
    return [quote(n) for n in _index_column_names(catalog, view)[-count:]] if count else []


def _index_column_names(catalog: Catalog, view: View) -> list[str]:
    """For each column of an index the column that it holds, by its name now."""
    now = {c.internal_name: c.name for c in indexed_table(catalog, view).columns}
    return [now[inside] for inside in (view.index.columns if view.index is not None else ())]


def _column_sql(column: Column) -> str:
    text = f"{backticked(column.name)} {column.type.sql}"
    text += "" if column.nullable else " NOT NULL"
    return text if column.default is None else f"{text} DEFAULT {_literal_sql(column)}"


def _literal_sql(column: Column) -> str:
    word = column.default or ""
    if column.type == types.BINARY:
        return f"X'{word}'"
    digits = types.is_integer(column.type) or types.decimal_digits(column.type) or types.is_float(column.type)
    if column.type == types.BOOLEAN or (digits and word.lstrip("-")[0].isdigit()):
        return word.upper()
    quoted = word.replace("\\", "\\\\").replace("'", "''")
    return f"{column.type.sql} '{quoted}'" if column.type in (types.DATE, types.TIMESTAMP) else f"'{quoted}'"


def _options_sql(options: Mapping[str, str]) -> str:
    given = [f"{name} = '{value}'" for name, value in sorted(options.items()) if not name.startswith("_")]
    return f" WITH ({', '.join(given)})" if given else ""
