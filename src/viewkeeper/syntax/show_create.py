"""Tables and views as the statements that make them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from viewkeeper.errors import Defect
from viewkeeper.model import types
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.names import backticked
from viewkeeper.model.schema import Column, Table
from viewkeeper.syntax.view_text import shown_query


def created(catalog: Catalog, found: Table | View) -> str:
    """The statement that makes a table, view or index as it is now."""
    if isinstance(found, Table):
        return create_table(found)
    return create_view(catalog, found) if found.index is None else create_index(catalog, found)


def create_table(table: Table) -> str:
    """CREATE TABLE … for a table as it is now."""
    lines = [f"  {_column(c)}" for c in table.columns]
    lines.append(f"  PRIMARY KEY ({', '.join(backticked(k.column) for k in table.key)})")
    return f"CREATE TABLE {backticked(table.name)} (\n" + ",\n".join(lines) + "\n)" + _options(dict(table.options))


def create_view(catalog: Catalog, view: View) -> str:
    """CREATE MATERIALIZED VIEW … with the query as it would be written now."""
    if view.cluster is not None:
        by, of = (", ".join(map(backticked, names)) for names in (view.cluster.by, view.cluster.of))
        name = backticked(view.table.name)
        return f"CREATE MATERIALIZED VIEW {name} CLUSTER BY ({by}){_options(view.options)} OF {of}"
    key, shown = "", view.table.key
    if parameters := view.table.columns[: view.given]:
        own = {c.name.lower() for c in parameters}
        listed = ", ".join(f"{backticked(c.name)} {c.type.sql}" for c in parameters)
        key, shown = f" PARAMETERS ({listed})", tuple(k for k in shown if k.column.lower() not in own)
    if not view.table.is_bag and shown and not any(k.descending or k.nulls_last for k in view.table.key):
        key += f" KEY ({', '.join(backticked(k.column) for k in shown)})"
    query = shown_query(catalog, view)
    return f"CREATE MATERIALIZED VIEW {backticked(view.table.name)}{key}{_options(view.options)} AS\n{query}"


def create_index(catalog: Catalog, view: View) -> str:
    """CREATE INDEX … with the names that its table and columns have now."""
    listed = ", ".join(index_columns(catalog, view, backticked))
    include = ", ".join(index_included(catalog, view, backticked))
    text = f"CREATE INDEX {backticked(view.table.name)} ON {backticked(indexed(catalog, view).name)} ({listed})"
    return text + (f" INCLUDE ({include})" if include else "") + _options(view.options)


def indexed(catalog: Catalog, view: View) -> Table:
    """The table or view that an index is of."""
    found = None if view.index is None else catalog.table_of(view.index.on)
    if found is None:
        raise Defect(f"{view.table.name} is an index of nothing.")
    return found


def index_columns(catalog: Catalog, view: View, spelt: Callable[[str], str] = str) -> list[str]:
    """The columns that an index was made for, each with its direction."""
    count = view.index.keys if view.index is not None else 0
    parts = view.table.key[:count]
    return [spelt(n) + (" DESC" if p.descending else "") for n, p in zip(_names(catalog, view), parts, strict=False)]


def index_included(catalog: Catalog, view: View, spelt: Callable[[str], str] = str) -> list[str]:
    """The columns that an index holds beside them."""
    count = view.index.included if view.index is not None else 0
    return [spelt(n) for n in _names(catalog, view)[-count:]] if count else []


def _names(catalog: Catalog, view: View) -> list[str]:
    """For each column of an index the column that it holds, by its name now."""
    now = {c.inside: c.name for c in indexed(catalog, view).columns}
    return [now[inside] for inside in (view.index.columns if view.index is not None else ())]


def _column(column: Column) -> str:
    text = f"{backticked(column.name)} {column.type.sql}"
    text += "" if column.nullable else " NOT NULL"
    return text if column.default is None else f"{text} DEFAULT {_literal(column)}"


def _literal(column: Column) -> str:
    word = column.default or ""
    if column.type == types.BINARY:
        return f"X'{word}'"
    digits = types.is_integer(column.type) or types.decimal_digits(column.type) or types.is_float(column.type)
    if column.type == types.BOOLEAN or (digits and word.lstrip("-")[0].isdigit()):
        return word.upper()
    quoted = word.replace("\\", "\\\\").replace("'", "''")
    return f"{column.type.sql} '{quoted}'" if column.type in (types.DATE, types.TIMESTAMP) else f"'{quoted}'"


def _options(options: Mapping[str, str]) -> str:
    given = [f"{name} = '{value}'" for name, value in sorted(options.items()) if not name.startswith("_")]
    return f" WITH ({', '.join(given)})" if given else ""
