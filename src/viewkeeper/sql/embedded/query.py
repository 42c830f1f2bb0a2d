"""A query that is known to mean the same, ready to run over the rows of its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from viewkeeper import expressions
from viewkeeper.model import types
from viewkeeper.model.catalog import Catalog
from viewkeeper.operators.duck import Duck
from viewkeeper.sql.embedded.block import Builder, Input
from viewkeeper.sql.embedded.coercion import NotProven
from viewkeeper.sql.embedded.syntax import tree
from viewkeeper.sql.embedded.typing import Field
from viewkeeper.sql.leash import Leash
from viewkeeper.store.ducks import connect
from viewkeeper.store.memory import Memory

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
