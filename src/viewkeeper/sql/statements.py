"""SQL over rows, beside the statements of the core (`plan.statements`): what `db.sql`, `vk sql` and the server run.

    INSERT INTO table [( columns )] VALUES ( values ), … | query     keys that are there already are refused
    UPSERT INTO table [( columns )] VALUES ( values ), … | query     puts rows, or replaces whole rows of the same key
    UPDATE table SET column = expression, … [WHERE condition]        rows as the query finds them
    DELETE FROM table WHERE condition
    SELECT … | WITH … | VALUES … | FROM …                            over tables and views at one state
    EXPLAIN SELECT …                                                 who would answer it, and what is read

Values are read by `plan.values`. A statement is one write call: all of its rows become visible together. INSERT looks
for its keys, UPDATE and DELETE for their rows just before they write; what another writer does to the same rows in that
moment is not told apart, and the later write stays. (`db.update` changes columns of one row in one transaction.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from viewkeeper.errors import BadStatement, NameTaken, UnknownName, ViewkeeperError
from viewkeeper.model.display import listed
from viewkeeper.model.intake import arguments
from viewkeeper.model.names import backticked
from viewkeeper.model.schema import Column, Table
from viewkeeper.sql.query_limits import Leash
from viewkeeper.sql.result import Result
from viewkeeper.sql.run_ddl import create_views, define
from viewkeeper.sql.script import Step, counting_lines, steps
from viewkeeper.sql.store_assignment import assigned
from viewkeeper.syntax import cursor as spelling
from viewkeeper.syntax import statements as spelt
from viewkeeper.syntax.cursor import Words
from viewkeeper.syntax.literals import read_value

if TYPE_CHECKING:
    from viewkeeper.capture.snapshot import Progress

QUERY = ("SELECT", "WITH", "VALUES", "FROM", "(")
ENGINES = ("auto", "embedded", "spark")
STATEMENTS = f"{spelling.SUPPORTED}, INSERT, UPSERT, UPDATE, DELETE, SELECT"


def needs(text: str) -> str:
    """What a text asks to be allowed: "read", "write" rows, or "define" tables and views. The most that one needs."""
    asked = {_needs(Words(text, tokens)) for tokens in spelling.statements(text)}
    return next((what for what in ("define", "write") if what in asked), "read" if asked else "define")


def _needs(words: Words) -> str:
    if any(words.at(word) for word in (*QUERY, *_LOOKING)):
        return "read"
    return "write" if any(words.at(start[0]) for start, _ in _WRITES) else "define"


def create_together(db: Any, texts: Sequence[str], progress: Progress | None = None) -> Result:
    """CREATE MATERIALIZED VIEW statements that follow each other in a script: all are made, or none."""
    made = create_views(db, texts, progress)
    there = len(texts) - len(made)
    return Result(done=f"{listed(made, 'view')} created" + (f", {there} there already" if there else ""))


def run(
    db: Any,
    text: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    engine: str = "auto",
    leash: Leash | None = None,
    progress: Progress | None = None,
    stale: bool = False,
) -> Result:
    """Run the statements of a text; new views that follow each other are one batch.

    `parameters`: values for its open names. `engine`: who answers a query. `leash`: it is run for somebody who
    may only reach the database's own rows, and only so many. `progress` is told how far the load of a view is. `stale`:
    a query may read the old rows of suspended views, which else is an error.
    """
    text = arguments.text(text, "A statement", f"Statements: {STATEMENTS}.")
    arguments.one_of(engine, "engine", ENGINES)
    found = steps(text, parameters)
    if not found:
        raise BadStatement("There is no statement in the text.", hint=f"Statements: {STATEMENTS}.")
    asking = Asking(db, engine, leash, stale)
    results = []
    for step in found:
        with step.naming_errors():
            results.append(_run_step(asking, step, progress))
    return Result.of(results)


def _run_step(asking: Asking, step: Step, progress: Progress | None) -> Result:
    written = [Words(step.text, tokens) for tokens in spelling.statements(step.text)]
    with counting_lines(step.text, written):
        if len(written) > 1:
            return create_together(asking.db, spelt.split(step.text), progress)
        return _run_statement(asking, written[0], progress)


def _run_statement(asking: Asking, words: Words, progress: Progress | None) -> Result:
    for start, write in _WRITES:
        if words.take(*start):
            return write(asking, words)
    if any(words.at(word) for word in QUERY):
        return Result(*asking.select(words.rest()))
    if words.at("EXPLAIN") and any(words.written(1).upper() == word for word in QUERY):
        from viewkeeper.sql.query import explain

        words.take("EXPLAIN")
        return Result(pa.table({"plan": explain(asking.db, words.rest())}))
    if not any(words.at(word) for word in _CORE):
        raise BadStatement(f"{words.shown()} starts no statement known here.", hint=f"Statements: {STATEMENTS}.")
    return Result(*define(asking.db, words.text, progress))


@dataclass(frozen=True)
class Asking:
    """Who asks: the database, and how the queries of a statement are answered."""

    db: Any
    engine: str
    leash: Leash | None
    stale: bool = False

    def select(self, query: str) -> tuple[pa.Table, str, str]:
        from viewkeeper.sql.query import select

        rows, engine = select(self.db, query, engine=self.engine, leash=self.leash, stale=self.stale)
        return rows, "", engine

    def rows(self, query: str) -> pa.Table:
        return self.select(query)[0]


def _insert(asking: Asking, words: Words) -> Result:
    db = asking.db
    table, rows = _rows(asking, words)
    keys = [c.name for c in table.key_columns]
    there = db._store.get_many(table, rows.select(keys), keys)
    if there.num_rows:
        first = ", ".join(f"{k} = {v}" for k, v in there.slice(0, 1).to_pylist()[0].items())
        raise NameTaken(
            f"{table.name} has {there.num_rows} of these keys already, such as {first}; nothing was written.",
            hint="Write UPSERT to replace whole rows.",
        )
    db.put(table.name, rows)
    return Result(done=f"{rows.num_rows} inserted")


def _upsert(asking: Asking, words: Words) -> Result:
    table, rows = _rows(asking, words)
    asking.db.put(table.name, rows)
    return Result(done=f"{rows.num_rows} put")


def _rows(asking: Asking, words: Words) -> tuple[Table, pa.Table]:
    """The rows of INSERT or UPSERT in the table's own types, the last of a key if there are several."""
    from viewkeeper.model.intake.rows import last_by_key, rows_table

    table = asking.db._writes.table(words.name("table"), "insert into")
    names = words.names("column") if words.at("(") else tuple(c.name for c in table.columns)
    columns = [_column(table, name) for name in names]
    if twice := [c.name for i, c in enumerate(columns) if c in columns[:i]]:
        raise BadStatement(f"{table.name}: {twice[0]} is there twice.", hint="Name each column once.")
    if words.at("VALUES"):
        words.take("VALUES")
        listed = [_values(words, table, columns)]
        while words.take(","):
            listed.append(_values(words, table, columns))
        words.end()
        rows: Any = [dict(zip(names, row, strict=True)) for row in listed]
    elif any(words.at(word) for word in QUERY):
        rows = asking.rows(words.rest())
        if rows.num_columns != len(names):
            raise BadStatement(
                f"{table.name}: the query has {rows.num_columns} columns, {len(names)} are written.",
                hint=f"They are, by position: {', '.join(names)}.",
            )
        rows = assigned(table, rows.rename_columns(list(names)))
    else:
        raise BadStatement(f"{words.shown()} is where VALUES or a query should be.", hint="Write one of them.")
    return table, last_by_key(table, rows_table(table, rows))


def _values(words: Words, table: Table, columns: Sequence[Column]) -> list[Any]:
    words.need("(")
    found = [read_value(words, table.name, columns[0], is_written=True)]
    while words.take(","):
        if len(found) == len(columns):
            raise BadStatement(f"A row has more than {len(columns)} values.", hint="Give one for each column.")
        found.append(read_value(words, table.name, columns[len(found)], is_written=True))
    words.need(")")
    if len(found) < len(columns):
        raise BadStatement(f"A row has {len(found)} values, not {len(columns)}.", hint="Give one for each column.")
    return found


def _delete(asking: Asking, words: Words) -> Result:
    table = asking.db._writes.table(words.name("table"), "delete from")
    if not words.take("WHERE"):
        raise BadStatement(
            f"DELETE FROM {table.name} says not which rows.", hint="Write WHERE and a condition; WHERE TRUE for all."
        )
    keys = [c.name for c in table.key_columns]
    named = _named_keys(words, table)
    if named is not None:
        rows = asking.db._store.get_many(table, _keys(table, named), keys)
    else:
        rows = asking.rows(f"SELECT {_listing(keys)} FROM {backticked(table.name)} WHERE {words.rest()}")
    if rows.num_rows:
        asking.db.delete(table.name, rows)
    return Result(done=f"{rows.num_rows} deleted")


def _named_keys(words: Words, table: Table) -> list[tuple[Any, ...]] | None:
    """The keys that a condition names one by one: key = value AND … | key IN ( values ); None if it says more."""
    first, wanted = words.next, {}
    try:
        while True:
            column = _column(table, words.name("key column"))
            if column.name in wanted or not (words.at("=") or words.at("IN")):
                raise BadStatement("It is another condition.")
            wanted[column.name] = _listed(words, table, column)
            if not words.take("AND"):
                break
        words.end()
    except ViewkeeperError:
        words.next = first
        return None
    keys = [c.name for c in table.key_columns]
    if sorted(wanted) != sorted(keys):
        words.next = first
        return None
    return list(product(*(wanted[k] for k in keys)))


def _update(asking: Asking, words: Words) -> Result:
    table = asking.db._writes.table(words.name("table"), "update")
    words.need("SET")
    new: dict[str, str] = {}
    while True:
        column = _column(table, words.name("column"))
        if column in table.key_columns:
            raise BadStatement(
                f"{table.name}.{column.name} is part of the key and cannot be changed.",
                hint="Delete the row and put it under the new key.",
            )
        if column.name in new:
            raise BadStatement(f"{column.name} is set twice.", hint="Set it once.")
        words.need("=")
        new[column.name] = _expression(words)
        if not words.take(","):
            break
    condition = f" WHERE {words.rest()}" if words.take("WHERE") else ""
    words.end()
    listed = ", ".join(
        f"{new[c.name]} AS {backticked(c.name)}" if c.name in new else backticked(c.name) for c in table.columns
    )
    rows = asking.rows(f"SELECT {listed} FROM {backticked(table.name)}{condition}")
    if rows.num_rows:
        asking.db.put(table.name, assigned(table, rows))
    return Result(done=f"{rows.num_rows} updated")


def _expression(words: Words) -> str:
    """The text up to a comma or WHERE that is not inside of it."""
    first, depth = words.next, 0
    while not words.done() and (depth or not (words.at(",") or words.at("WHERE"))):
        depth += {"(": 1, ")": -1}.get(words.written(), 0)
        words.next += 1
    if words.next == first:
        raise BadStatement(f"{words.shown()} is where a value should be.", hint="Write SET column = value.")
    return words.text[words.tokens[first].start : words.tokens[words.next - 1].end]


def _listing(names: Sequence[str]) -> str:
    return ", ".join(map(backticked, names))


def _keys(table: Table, keys: list[tuple[Any, ...]]) -> pa.Table:
    from viewkeeper.model.intake.rows import keys_table, last_by_key

    return last_by_key(table, keys_table(table, keys))


def _listed(words: Words, table: Table, column: Column) -> list[Any]:
    if words.take("="):
        return [read_value(words, table.name, column)]
    words.need("IN")
    words.need("(")
    found = [read_value(words, table.name, column)]
    while words.take(","):
        found.append(read_value(words, table.name, column))
    words.need(")")
    return found


def _column(table: Table, name: str) -> Column:
    column = table.by_name.get(name.lower())
    if column is None:
        raise UnknownName(
            f"{table.name} has no column {name!r}.", hint=f"Its columns: {', '.join(c.name for c in table.columns)}."
        )
    return column


_WRITES: tuple[tuple[tuple[str, ...], Callable[[Asking, Words], Result]], ...] = (
    (("INSERT", "INTO"), _insert),
    (("UPSERT", "INTO"), _upsert),
    (("UPDATE",), _update),
    (("DELETE", "FROM"), _delete),
)
_LOOKING = ("SHOW", "DESCRIBE", "DESC", "EXPLAIN")
_CORE = {statement.split()[0] for statement in spelling.SUPPORTED.split(", ")}
