"""CREATE statements of existing tables, views and indexes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from viewkeeper.errors import Defect
from viewkeeper.model import types
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.names import backticked
from viewkeeper.model.schema import Column, Table
from viewkeeper.syntax.view_text import display_query


def show_create(catalog: Catalog, definition: Table | View) -> str:
    """Return the statement that creates a table, view or index in its current form."""
    if isinstance(definition, Table):
        return create_table_sql(definition)
    return create_view_sql(catalog, definition) if definition.index is None else create_index_sql(catalog, definition)


def create_table_sql(table: Table) -> str:
    """Return the CREATE TABLE statement of a table in its current form."""
    lines = [f"  {_column_sql(c)}" for c in table.columns]
    lines.append(f"  PRIMARY KEY ({', '.join(backticked(k.column) for k in table.key)})")
    return f"CREATE TABLE {backticked(table.name)} (\n" + ",\n".join(lines) + "\n)" + _options_sql(dict(table.options))


def create_view_sql(catalog: Catalog, view: View) -> str:
    """Return the CREATE MATERIALIZED VIEW statement, with the query in its current form."""
    if view.cluster is not None:
        key_columns, tables = (
            ", ".join(map(backticked, names)) for names in (view.cluster.key_columns, view.cluster.tables)
        )
        name = backticked(view.table.name)
        return f"CREATE MATERIALIZED VIEW {name} CLUSTER BY ({key_columns}){_options_sql(view.options)} OF {tables}"
    key, key_parts = "", view.table.key
    if parameters := view.table.columns[: view.parameter_count]:
        parameter_names = {c.name.lower() for c in parameters}
        declarations = ", ".join(f"{backticked(c.name)} {c.type.sql}" for c in parameters)
        key, key_parts = (
            f" PARAMETERS ({declarations})",
            tuple(k for k in key_parts if k.column.lower() not in parameter_names),
        )
    if not view.table.is_bag and key_parts and not any(k.descending or k.nulls_last for k in view.table.key):
        key += f" KEY ({', '.join(backticked(k.column) for k in key_parts)})"
    query = display_query(catalog, view)
    return f"CREATE MATERIALIZED VIEW {backticked(view.table.name)}{key}{_options_sql(view.options)} AS\n{query}"


def create_index_sql(catalog: Catalog, view: View) -> str:
    """Return the CREATE INDEX statement, with the current names of its table and columns."""
    columns = ", ".join(index_columns(catalog, view, backticked))
    include = ", ".join(included_columns(catalog, view, backticked))
    text = f"CREATE INDEX {backticked(view.table.name)} ON {backticked(indexed_table(catalog, view).name)} ({columns})"
    return text + (f" INCLUDE ({include})" if include else "") + _options_sql(view.options)


def indexed_table(catalog: Catalog, view: View) -> Table:
    """Return the table or view of an index."""
    table = None if view.index is None else catalog.find_table_by_id(view.index.table_id)
    if table is None:
        raise Defect(f"{view.table.name} is an index of nothing.")
    return table


def index_columns(catalog: Catalog, view: View, quote: Callable[[str], str] = str) -> list[str]:
    """Return the indexed columns, each with its direction."""
    count = view.index.key_count if view.index is not None else 0
    parts = view.table.key[:count]
    return [
        quote(n) + (" DESC" if p.descending else "")
        for n, p in zip(_index_column_names(catalog, view), parts, strict=False)
    ]


def included_columns(catalog: Catalog, view: View, quote: Callable[[str], str] = str) -> list[str]:
    """Return the columns in the INCLUDE list of an index."""
    count = view.index.included_count if view.index is not None else 0
    return [quote(n) for n in _index_column_names(catalog, view)[-count:]] if count else []


def _index_column_names(catalog: Catalog, view: View) -> list[str]:
    """Return the current name of the indexed table's column for each column of an index."""
    current = {c.internal_name: c.name for c in indexed_table(catalog, view).columns}
    return [current[internal] for internal in (view.index.columns if view.index is not None else ())]


def _column_sql(column: Column) -> str:
    text = f"{backticked(column.name)} {column.type.sql}"
    text += "" if column.nullable else " NOT NULL"
    return text if column.default is None else f"{text} DEFAULT {_literal_sql(column)}"


def _literal_sql(column: Column) -> str:
    text = column.default or ""
    if column.type == types.BINARY:
        return f"X'{text}'"
    digits = types.is_integer(column.type) or types.decimal_digits(column.type) or types.is_float(column.type)
    if column.type == types.BOOLEAN or (digits and text.lstrip("-")[0].isdigit()):
        return text.upper()
    quoted = text.replace("\\", "\\\\").replace("'", "''")
    return f"{column.type.sql} '{quoted}'" if column.type in (types.DATE, types.TIMESTAMP) else f"'{quoted}'"


def _options_sql(options: Mapping[str, str]) -> str:
    settings = [f"{name} = '{value}'" for name, value in sorted(options.items()) if not name.startswith("_")]
    return f" WITH ({', '.join(settings)})" if settings else ""
