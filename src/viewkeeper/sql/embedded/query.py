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
from viewkeeper.resources.memory import Memory
from viewkeeper.resources.prepared_statements import Duck, connect
from viewkeeper.sql.embedded.builder import Builder, Input
from viewkeeper.sql.embedded.coercion import NotProven, NotRead
from viewkeeper.sql.embedded.typing import Field
from viewkeeper.sql.query_limits import Leash
from viewkeeper.syntax.cursor import statements

# From Spark's spelling to a tree: our lexer cuts the text as Spark does, DuckDB's parser reads it.
#
# Names in backticks become names in double quotes, and texts keep their value whatever their escapes were. What the two
# write otherwise (`<=>`, `div`, `RLIKE`, hints, LATERAL VIEW) does not parse, or is a node that nobody here knows.


_PLACES = ("query_location", "query_location_length")


def tree(connection: Any, query: str) -> dict[str, Any]:
    """The parser's tree of the query, without what is empty or says only where a thing stands."""
    import duckdb

    try:
        (text,) = connection.execute("SELECT json_serialize_sql(?)", [respelled(query)]).fetchone()
    except duckdb.Error as error:
        raise NotRead(f"DuckDB does not read it ({str(error).splitlines()[0]})") from error
    found = json.loads(text)
    if found.get("error") or len(found["statements"]) != 1:
        raise NotRead(f"DuckDB does not read it ({found.get('error_message', 'not one query')})")
    node: dict[str, Any] = _pruned(found["statements"][0])["node"]
    return node


def respelled(query: str) -> str:
    """The text as DuckDB spells it."""
    found = list(statements(query))
    if len(found) != 1:
        raise NotRead("it is not one query")
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
            raise NotProven(f"{written} is a literal of Spark's own kind")
        elif token.kind == "sign" and written in "$?#@":
            raise NotProven(f"{written} means something else to DuckDB")
        else:
            parts.append(written)
    return "".join(parts)


def _pruned(node: Any) -> Any:
    if isinstance(node, dict):
        return {k: _pruned(v) for k, v in node.items() if k not in _PLACES and v not in ("", None, [], False)}
    return [_pruned(v) for v in node] if isinstance(node, list) else node


_PIECE_ROWS = 50_000
"""How often an answer for somebody else is looked at."""


@dataclass(frozen=True)
class Embedded:
    """`sql` reads the inputs by their names; its columns are called as in `fields` inside."""

    sql: str
    inputs: tuple[Input, ...]
    fields: tuple[Field, ...]

    def run(
        self,
        read: Callable[[Sequence[Input]], Sequence[pa.Table]],
        memory: Memory,
        leash: Leash | None = None,
    ) -> pa.Table:
        """The answer. `read` gives the rows of the inputs, with the columns that they name, all of one state."""
        tables = {i.name: _inside(i, rows) for i, rows in zip(self.inputs, read(self.inputs), strict=True)}
        schema = pa.schema([pa.field(f.name, types.outside(f.type), f.nullable) for f in self.fields])
        inside = pa.schema([pa.field(f.name, types.arrow(f.type)) for f in self.fields])
        if leash is None:
            with Duck(expressions.setup, memory=memory) as duck:
                found = duck.run(self.sql, **tables)
        else:
            with Duck(expressions.setup, memory=memory) as duck, leash.held(duck.interrupt):
                found = leash.gathered(duck.stream(self.sql, _PIECE_ROWS, **tables), inside)
        return found.rename_columns(schema.names).cast(inside).cast(schema)


def embedded(catalog: Catalog, query: str) -> Embedded:
    """The query for DuckDB; raises NotProven, with the reason, if it is Spark's to answer."""
    builder = Builder(catalog)
    try:
        with connect(threads=1) as connection:
            node = tree(connection, query)
        made = builder.query(node, {})
    except RecursionError:
        raise NotProven("it is nested too deeply") from None
    names = [f.name.lower() for f in made.fields]
    if len(set(names)) < len(names):
        raise NotProven("two columns of one name")
    return Embedded(made.text, tuple(_narrowed(i, builder) for i in builder.inputs), made.fields)


def _narrowed(one: Input, builder: Builder) -> Input:
    """With the columns that are used (one, at least, says how many rows there are), and the rows that are wanted."""
    wanted = {q: name for q, name in one.columns.items() if q in builder.used}
    terms = tuple(replace(t, column=one.columns[t.column]) for t in builder.terms if t.column in one.columns)
    return Input(one.name, one.table, wanted or dict(list(one.columns.items())[:1]), terms)


def _inside(one: Input, rows: pa.Table) -> pa.Table:
    chosen = rows.select(list(one.columns.values()))
    schema = pa.schema([pa.field(c, types.arrow(one.table.by_name[c.lower()].type)) for c in one.columns.values()])
    return chosen.cast(schema).rename_columns(list(one.columns))
