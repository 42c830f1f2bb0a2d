"""Tables and views as the statements that make them."""

from __future__ import annotations

from collections.abc import Mapping

from viewkeeper.model import types
from viewkeeper.model.catalog import View
from viewkeeper.model.names import MARK, backticked
from viewkeeper.model.schema import Column, Table


def create_table(table: Table) -> str:
    """CREATE TABLE … for a table as it is now."""
    lines = [f"  {_column(c)}" for c in table.columns]
    lines.append(f"  PRIMARY KEY ({', '.join(backticked(k.column) for k in table.key)})")
    return f"CREATE TABLE {backticked(table.name)} (\n" + ",\n".join(lines) + "\n)" + _options(dict(table.options))


def create_view(view: View) -> str:
    """CREATE MATERIALIZED VIEW … with the query as it was written."""
    key, shown = "", view.table.key
    if parameters := view.table.columns[: view.given]:
        own = {c.name.lower() for c in parameters}
        listed = ", ".join(f"{backticked(c.name)} {c.type.sql}" for c in parameters)
        key, shown = f" PARAMETERS ({listed})", tuple(k for k in shown if k.column.lower() not in own)
    if not view.table.is_bag and shown and not any(k.descending or k.nulls_last for k in view.table.key):
        key += f" KEY ({', '.join(backticked(k.column) for k in shown)})"
    query = view.body or view.query
    return f"CREATE MATERIALIZED VIEW {backticked(view.table.name)}{key}{_options(view.options)} AS\n{query}"


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
    given = [f"{name} = '{value}'" for name, value in sorted(options.items()) if not name.startswith(MARK)]
    return f" WITH ({', '.join(given)})" if given else ""
