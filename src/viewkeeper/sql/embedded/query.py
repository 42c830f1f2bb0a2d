"""A query that is known to mean the same, ready to run over the rows of its tables."""

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

# From Spark's spelling to a tree: our lexer cuts the text as Spark does, DuckDB's parser reads it.
#
# Names in backticks become names in double quotes, and texts keep their value whatever their escapes were. What the two
# write otherwise (`<=>`, `div`, `RLIKE`, hints, LATERAL VIEW) does not parse, or is a node that nobody here knows.


_LOCATION_KEYS = ("query_location", "query_location_length")


def parse_query(connection: Any, query: str) -> dict[str, Any]:
    """The parser's tree of the query, without what is empty or says only where a thing stands."""
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
    """The text as DuckDB spells it."""
    found = list(split_statements(query))
    if len(found) != 1:
        raise UnparsableQuery("it is not one query")
    parts: list[str] = []
    end = found[0][0].start
    for token in found[0]:
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
"""How often an answer for somebody else is looked at."""


@dataclass(frozen=True)
class EmbeddedQuery:
    """`sql` reads the inputs by their names; its columns are called as in `fields` inside."""

    sql: str
    inputs: tuple[TableInput, ...]
    fields: tuple[ScopeField, ...]

    def run(
        self,
        read: Callable[[Sequence[TableInput]], Sequence[pa.Table]],
        memory: MemoryBudget,
        query_limits: QueryLimits | None = None,
    ) -> pa.Table:
        """The answer. `read` gives the rows of the inputs, with the columns that they name, all of one state."""
        tables = {i.name: _internal_rows(i, rows) for i, rows in zip(self.inputs, read(self.inputs), strict=True)}
        schema = pa.schema([pa.field(f.name, types.external_type(f.type), f.nullable) for f in self.fields])
        inside = pa.schema([pa.field(f.name, types.arrow(f.type)) for f in self.fields])
        if query_limits is None:
            with PreparedStatements(expressions.register_functions, memory=memory) as duck:
                found = duck.run(self.sql, **tables)
        else:
            with (
                PreparedStatements(expressions.register_functions, memory=memory) as duck,
                query_limits.on_stop(duck.interrupt),
            ):
                found = query_limits.collect(duck.stream(self.sql, _PIECE_ROWS, **tables), inside)
        return found.rename_columns(schema.names).cast(inside).cast(schema)


def compile_embedded(catalog: Catalog, query: str) -> EmbeddedQuery:
    """The query for DuckDB; raises NotProven, with the reason, if it is Spark's to answer."""
    builder = StatementBuilder(catalog)
    try:
        with connect(threads=1) as connection:
            node = parse_query(connection, query)
        made = builder.build_query(node, {})
    except RecursionError:
        raise UnprovenQuery("it is nested too deeply") from None
    names = [f.name.lower() for f in made.fields]
    if len(set(names)) < len(names):
        raise UnprovenQuery("two columns of one name")
    return EmbeddedQuery(made.text, tuple(_prune_input(i, builder) for i in builder.inputs), made.fields)


def _prune_input(table_input: TableInput, builder: StatementBuilder) -> TableInput:
    """With the columns that are used (one, at least, says how many rows there are), and the rows that are wanted."""
    wanted = {q: name for q, name in table_input.columns.items() if q in builder.used_columns}
    terms = tuple(
        replace(t, column=table_input.columns[t.column]) for t in builder.terms if t.column in table_input.columns
    )
    return TableInput(table_input.name, table_input.table, wanted or dict(list(table_input.columns.items())[:1]), terms)


def _internal_rows(table_input: TableInput, rows: pa.Table) -> pa.Table:
    chosen = rows.select(list(table_input.columns.values()))
    schema = pa.schema(
        [pa.field(c, types.arrow(table_input.table.by_name[c.lower()].type)) for c in table_input.columns.values()]
    )
    return chosen.cast(schema).rename_columns(list(table_input.columns))
