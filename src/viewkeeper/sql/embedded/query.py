"""A query that is known to mean the same, ready to run over the rows of its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from viewkeeper.model import types
from viewkeeper.model.catalog import Catalog
from viewkeeper.model.schema import Table
from viewkeeper.operators.duck import Duck
from viewkeeper.plan import expressions
from viewkeeper.sql.embedded.block import Builder, Input
from viewkeeper.sql.embedded.syntax import tree
from viewkeeper.sql.embedded.typing import Field, NotProven


@dataclass(frozen=True)
class Embedded:
    """`sql` reads the inputs by their names; its columns are called as in `fields` inside."""

    sql: str
    inputs: tuple[Input, ...]
    fields: tuple[Field, ...]

    def run(self, read: Callable[[Mapping[str, tuple[str, ...]]], Mapping[str, pa.Table]]) -> pa.Table:
        """The answer. `read` gives the asked columns of the tables and views by name, all of one state."""
        asked: dict[str, tuple[str, ...]] = {}
        for one in self.inputs:
            known = asked.get(one.table.name, ())
            asked[one.table.name] = tuple(dict.fromkeys([*known, *one.columns.values()]))
        rows = read(asked)
        tables = {i.name: _inside(i.table, rows[i.table.name], i.columns) for i in self.inputs}
        with Duck(expressions.setup) as duck:
            found = duck.run(self.sql, **tables)
        schema = pa.schema([pa.field(f.name, types.outside(f.type), f.nullable) for f in self.fields])
        inside = pa.schema([pa.field(f.name, types.arrow(f.type)) for f in self.fields])
        return found.rename_columns(schema.names).cast(inside).cast(schema)


def embedded(catalog: Catalog, query: str) -> Embedded:
    """The query for DuckDB; raises NotProven, with the reason, if it is Spark's to answer."""
    import duckdb

    builder = Builder(catalog)
    with duckdb.connect(":memory:") as connection:
        node = tree(connection, query)
    made = builder.query(node, {})
    names = [f.name.lower() for f in made.fields]
    if len(set(names)) < len(names):
        raise NotProven("two columns of one name")
    return Embedded(made.text, tuple(_narrowed(i, builder.used) for i in builder.inputs), made.fields)


def _narrowed(one: Input, used: set[str]) -> Input:
    """With the columns that are used; one, at least, says how many rows there are."""
    wanted = {q: name for q, name in one.columns.items() if q in used}
    return Input(one.name, one.table, wanted or dict(list(one.columns.items())[:1]))


def _inside(table: Table, rows: pa.Table, columns: Mapping[str, str]) -> pa.Table:
    chosen = rows.select(list(columns.values()))
    schema = pa.schema([pa.field(c, types.arrow(table.by_name[c.lower()].type)) for c in columns.values()])
    return chosen.cast(schema).rename_columns(list(columns))
