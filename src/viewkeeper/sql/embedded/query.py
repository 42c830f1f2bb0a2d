"""A query that is proven to have Spark's meaning, ready to run in DuckDB over the rows of its tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from viewkeeper import expressions
from viewkeeper.model import types
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.names import quoted
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.prepared_statements import PreparedStatements, connect
from viewkeeper.sql.embedded.builder import StatementBuilder, TableInput
from viewkeeper.sql.embedded.coercion import UnparsableQuery, UnprovenQuery
from viewkeeper.sql.embedded.typing import ScopeField
from viewkeeper.sql.query_limits import QueryLimits
from viewkeeper.syntax.cursor import split_statements

# From Spark's spelling to a tree: Viewkeeper's lexer splits the text as Spark does, DuckDB's parser parses it.
#
# Names in backticks become names in double quotes, and texts keep their value whatever their escapes were. Syntax that
# the two do not share (`<=>`, `div`, `RLIKE`, hints, LATERAL VIEW) does not parse, or gives a node that is refused.


_LOCATION_KEYS = ("query_location", "query_location_length")


def parse_query(connection: Any, query: str) -> dict[str, Any]:
    """DuckDB's parse tree of the query, without empty values and source locations."""
    import duckdb

    try:
        (text,) = connection.execute("SELECT json_serialize_sql(?)", [spell_for_duckdb(query)]).fetchone()
    except duckdb.Error as error:
        raise UnparsableQuery(f"DuckDB does not read it ({str(error).splitlines()[0]})") from error
    found = json.loads(text)
    if found.get("error") or len(found["statements"]) != 1:
        raise UnparsableQuery(f"DuckDB does not read it ({found.get('error_message', 'not one query')})")
    node: dict[str, Any] = _prune_tree(found["statements"][0])["node"]
    return node


def spell_for_duckdb(query: str) -> str:
    """The text in DuckDB's spelling."""
    statements = list(split_statements(query))
    if len(statements) != 1:
        raise UnparsableQuery("it is not one query")
    parts: list[str] = []
    end = statements[0][0].start
    for token in statements[0]:
        if token.start > end:
            parts.append(" ")
        end = token.end
        written = query[token.start : token.end]
        if token.kind == "name":
            parts.append(quoted(token.value))
        elif token.kind == "text":
            parts.append("'" + token.value.replace("'", "''") + "'")
        elif token.kind == "bytes" or (token.kind == "number" and written != token.value):
            raise UnprovenQuery(f"{written} is a literal of Spark's own kind")
        elif token.kind == "sign" and written in "$?#@":
            raise UnprovenQuery(f"{written} means something else to DuckDB")
        else:
            parts.append(written)
    return "".join(parts)


def _prune_tree(node: Any) -> Any:
    if isinstance(node, dict):
        return {
            k: _prune_tree(v) for k, v in node.items() if k not in _LOCATION_KEYS and v not in ("", None, [], False)
        }
    return [_prune_tree(v) for v in node] if isinstance(node, list) else node


_PIECE_ROWS = 50_000
"""Rows of an answer between two checks of the query limits."""


@dataclass(frozen=True)
class EmbeddedQuery:
    """`sql` reads the inputs by their names; its columns have the internal names in `fields`."""

    sql: str
    inputs: tuple[TableInput, ...]
    fields: tuple[ScopeField, ...]

    def run(
        self,
        read: Callable[[Sequence[TableInput]], Sequence[pa.Table]],
        memory: MemoryBudget,
        query_limits: QueryLimits | None = None,
    ) -> pa.Table:
        """Run the query. `read` returns the rows of the inputs, with the columns that they name, all of one state."""
        tables = {i.name: _internal_rows(i, rows) for i, rows in zip(self.inputs, read(self.inputs), strict=True)}
        schema = pa.schema([pa.field(f.name, types.external_type(f.type), f.nullable) for f in self.fields])
        internal = pa.schema([pa.field(f.name, types.arrow(f.type)) for f in self.fields])
        if query_limits is None:
            with PreparedStatements(expressions.register_functions, memory=memory) as statements:
                found = statements.run(self.sql, **tables)
        else:
            with (
                PreparedStatements(expressions.register_functions, memory=memory) as statements,
                query_limits.on_stop(statements.interrupt),
            ):
                found = query_limits.collect(statements.stream(self.sql, _PIECE_ROWS, **tables), internal)
        return found.rename_columns(schema.names).cast(internal).cast(schema)


def compile_embedded(catalog: Catalog, query: str) -> EmbeddedQuery:
    """Compile the query for DuckDB. Raises UnprovenQuery, with the reason, if Spark must run it."""
    builder = StatementBuilder(catalog)
    try:
        with connect(threads=1) as connection:
            node = parse_query(connection, query)
        built = builder.build_query(node, {})
    except RecursionError:
        raise UnprovenQuery("it is nested too deeply") from None
    names = [f.name.lower() for f in built.fields]
    if len(set(names)) < len(names):
        raise UnprovenQuery("two columns of one name")
    return EmbeddedQuery(built.text, tuple(_prune_input(i, builder) for i in builder.inputs), built.fields)


def _prune_input(table_input: TableInput, builder: StatementBuilder) -> TableInput:
    """Keep only the used columns (at least one, for the number of rows), and add the terms on the table's rows."""
    used = {q: name for q, name in table_input.columns.items() if q in builder.used_columns}
    terms = tuple(
        replace(t, column=table_input.columns[t.column]) for t in builder.terms if t.column in table_input.columns
    )
    return TableInput(table_input.name, table_input.table, used or dict(list(table_input.columns.items())[:1]), terms)


def _internal_rows(table_input: TableInput, rows: pa.Table) -> pa.Table:
    selected = rows.select(list(table_input.columns.values()))
    schema = pa.schema(
        [pa.field(c, types.arrow(table_input.table.by_name[c.lower()].type)) for c in table_input.columns.values()]
    )
    return selected.cast(schema).rename_columns(list(table_input.columns))
