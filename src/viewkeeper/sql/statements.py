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
from viewkeeper.model.display import list_text
from viewkeeper.model.intake import arguments
from viewkeeper.model.names import backticked
from viewkeeper.model.schema import Column, Table
from viewkeeper.sql.query_limits import QueryLimits
from viewkeeper.sql.result import Result
from viewkeeper.sql.run_ddl import create_views, define
from viewkeeper.sql.script import ScriptStep, count_lines_from_text, split_steps
from viewkeeper.sql.store_assignment import cast_for_assignment
from viewkeeper.syntax import cursor as spelling
from viewkeeper.syntax import statements as spelt
from viewkeeper.syntax.cursor import TokenCursor
from viewkeeper.syntax.literals import read_value

if TYPE_CHECKING:
    from viewkeeper.capture.snapshot import Progress

QUERY_STARTS = ("SELECT", "WITH", "VALUES", "FROM", "(")
ENGINES = ("auto", "embedded", "spark")
STATEMENTS = f"{spelling.SUPPORTED}, INSERT, UPSERT, UPDATE, DELETE, SELECT"


def required_permission(text: str) -> str:
    """What a text asks to be allowed: "read", "write" rows, or "define" tables and views. The most that one needs."""
    asked = {_statement_permission(TokenCursor(text, tokens)) for tokens in spelling.split_statements(text)}
    return next((what for what in ("define", "write") if what in asked), "read" if asked else "define")


def _statement_permission(cursor: TokenCursor) -> str:
    if any(cursor.is_at(word) for word in (*QUERY_STARTS, *_READ_KEYWORDS)):
        return "read"
    return "write" if any(cursor.is_at(start[0]) for start, _ in _WRITE_STATEMENTS) else "define"


def create_views_together(db: Any, texts: Sequence[str], progress: Progress | None = None) -> Result:
    """CREATE MATERIALIZED VIEW statements that follow each other in a script: all are made, or none."""
    made = create_views(db, texts, progress)
    there = len(texts) - len(made)
    return Result(done=f"{list_text(made, 'view')} created" + (f", {there} there already" if there else ""))


def run(
    db: Any,
    text: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    engine: str = "auto",
    query_limits: QueryLimits | None = None,
    progress: Progress | None = None,
    stale: bool = False,
) -> Result:
    """Run the statements of a text; new views that follow each other are one batch.

    `parameters`: values for its open names. `engine`: who answers a query. `leash`: it is run for somebody who
    may only reach the database's own rows, and only so many. `progress` is told how far the load of a view is. `stale`:
    a query may read the old rows of suspended views, which else is an error.
    """
    text = arguments.check_text(text, "A statement", f"Statements: {STATEMENTS}.")
    arguments.check_choice(engine, "engine", ENGINES)
    found = split_steps(text, parameters)
    if not found:
        raise BadStatement("There is no statement in the text.", hint=f"Statements: {STATEMENTS}.")
    asking = StatementContext(db, engine, query_limits, stale)
    results = []
    for step in found:
        with step.locate_errors():
            results.append(_run_step(asking, step, progress))
    return Result.of(results)


def _run_step(context: StatementContext, step: ScriptStep, progress: Progress | None) -> Result:
    written = [TokenCursor(step.text, tokens) for tokens in spelling.split_statements(step.text)]
    with count_lines_from_text(step.text, written):
        if len(written) > 1:
            return create_views_together(context.db, spelt.split(step.text), progress)
        return _run_statement(context, written[0], progress)


def _run_statement(context: StatementContext, cursor: TokenCursor, progress: Progress | None) -> Result:
    for start, write in _WRITE_STATEMENTS:
        if cursor.accept(*start):
            return write(context, cursor)
    if any(cursor.is_at(word) for word in QUERY_STARTS):
        return Result(*context.select(cursor.read_rest()))
    if cursor.is_at("EXPLAIN") and any(cursor.token_text(1).upper() == word for word in QUERY_STARTS):
        from viewkeeper.sql.query import explain

        cursor.accept("EXPLAIN")
        return Result(pa.table({"plan": explain(context.db, cursor.read_rest())}))
    if not any(cursor.is_at(word) for word in _DDL_KEYWORDS):
        raise BadStatement(
            f"{cursor.describe_token()} starts no statement known here.", hint=f"Statements: {STATEMENTS}."
        )
    return Result(*define(context.db, cursor.text, progress))


@dataclass(frozen=True)
class StatementContext:
    """Who asks: the database, and how the queries of a statement are answered."""

    db: Any
    engine: str
    query_limits: QueryLimits | None
    stale: bool = False

    def select(self, query: str) -> tuple[pa.Table, str, str]:
        from viewkeeper.sql.query import select

        rows, engine = select(self.db, query, engine=self.engine, query_limits=self.query_limits, stale=self.stale)
        return rows, "", engine

    def read_rows(self, query: str) -> pa.Table:
        return self.select(query)[0]


def _insert(context: StatementContext, cursor: TokenCursor) -> Result:
    db = context.db
    table, rows = _read_rows(context, cursor)
    keys = [c.name for c in table.key_columns]
    there = db._store.get_rows(table, rows.select(keys), keys)
    if there.num_rows:
        first = ", ".join(f"{k} = {v}" for k, v in there.slice(0, 1).to_pylist()[0].items())
        raise NameTaken(
            f"{table.name} has {there.num_rows} of these keys already, such as {first}; nothing was written.",
            hint="Write UPSERT to replace whole rows.",
        )
    db.put(table.name, rows)
    return Result(done=f"{rows.num_rows} inserted")


def _upsert(context: StatementContext, cursor: TokenCursor) -> Result:
    table, rows = _read_rows(context, cursor)
    context.db.put(table.name, rows)
    return Result(done=f"{rows.num_rows} put")


def _read_rows(context: StatementContext, cursor: TokenCursor) -> tuple[Table, pa.Table]:
    """The rows of INSERT or UPSERT in the table's own types, the last of a key if there are several."""
    from viewkeeper.model.intake.rows import last_by_key, rows_table

    table = context.db._writes.table(cursor.read_name("table"), "insert into")
    names = cursor.read_names("column") if cursor.is_at("(") else tuple(c.name for c in table.columns)
    columns = [_find_column(table, name) for name in names]
    if twice := [c.name for i, c in enumerate(columns) if c in columns[:i]]:
        raise BadStatement(f"{table.name}: {twice[0]} is there twice.", hint="Name each column once.")
    if cursor.is_at("VALUES"):
        cursor.accept("VALUES")
        listed = [_read_values(cursor, table, columns)]
        while cursor.accept(","):
            listed.append(_read_values(cursor, table, columns))
        cursor.expect_end()
        rows: Any = [dict(zip(names, row, strict=True)) for row in listed]
    elif any(cursor.is_at(word) for word in QUERY_STARTS):
        rows = context.read_rows(cursor.read_rest())
        if rows.num_columns != len(names):
            raise BadStatement(
                f"{table.name}: the query has {rows.num_columns} columns, {len(names)} are written.",
                hint=f"They are, by position: {', '.join(names)}.",
            )
        rows = cast_for_assignment(table, rows.rename_columns(list(names)))
    else:
        raise BadStatement(
            f"{cursor.describe_token()} is where VALUES or a query should be.", hint="Write one of them."
        )
    return table, last_by_key(table, rows_table(table, rows))


def _read_values(cursor: TokenCursor, table: Table, columns: Sequence[Column]) -> list[Any]:
    cursor.expect("(")
    found = [read_value(cursor, table.name, columns[0], is_stored=True)]
    while cursor.accept(","):
        if len(found) == len(columns):
            raise BadStatement(f"A row has more than {len(columns)} values.", hint="Give one for each column.")
        found.append(read_value(cursor, table.name, columns[len(found)], is_stored=True))
    cursor.expect(")")
    if len(found) < len(columns):
        raise BadStatement(f"A row has {len(found)} values, not {len(columns)}.", hint="Give one for each column.")
    return found


def _delete(context: StatementContext, cursor: TokenCursor) -> Result:
    table = context.db._writes.table(cursor.read_name("table"), "delete from")
    if not cursor.accept("WHERE"):
        raise BadStatement(
            f"DELETE FROM {table.name} says not which rows.", hint="Write WHERE and a condition; WHERE TRUE for all."
        )
    keys = [c.name for c in table.key_columns]
    named = _read_named_keys(cursor, table)
    if named is not None:
        rows = context.db._store.get_rows(table, _unique_keys(table, named), keys)
    else:
        rows = context.read_rows(
            f"SELECT {_column_list(keys)} FROM {backticked(table.name)} WHERE {cursor.read_rest()}"
        )
    if rows.num_rows:
        context.db.delete(table.name, rows)
    return Result(done=f"{rows.num_rows} deleted")


def _read_named_keys(cursor: TokenCursor, table: Table) -> list[tuple[Any, ...]] | None:
    """The keys that a condition names one by one: key = value AND … | key IN ( values ); None if it says more."""
    first, wanted = cursor.index, {}
    try:
        while True:
            column = _find_column(table, cursor.read_name("key column"))
            if column.name in wanted or not (cursor.is_at("=") or cursor.is_at("IN")):
                raise BadStatement("It is another condition.")
            wanted[column.name] = _read_value_list(cursor, table, column)
            if not cursor.accept("AND"):
                break
        cursor.expect_end()
    except ViewkeeperError:
        cursor.index = first
        return None
    keys = [c.name for c in table.key_columns]
    if sorted(wanted) != sorted(keys):
        cursor.index = first
        return None
    return list(product(*(wanted[k] for k in keys)))


def _update(context: StatementContext, cursor: TokenCursor) -> Result:
    table = context.db._writes.table(cursor.read_name("table"), "update")
    cursor.expect("SET")
    new: dict[str, str] = {}
    while True:
        column = _find_column(table, cursor.read_name("column"))
        if column in table.key_columns:
            raise BadStatement(
                f"{table.name}.{column.name} is part of the key and cannot be changed.",
                hint="Delete the row and put it under the new key.",
            )
        if column.name in new:
            raise BadStatement(f"{column.name} is set twice.", hint="Set it once.")
        cursor.expect("=")
        new[column.name] = _read_expression(cursor)
        if not cursor.accept(","):
            break
    condition = f" WHERE {cursor.read_rest()}" if cursor.accept("WHERE") else ""
    cursor.expect_end()
    listed = ", ".join(
        f"{new[c.name]} AS {backticked(c.name)}" if c.name in new else backticked(c.name) for c in table.columns
    )
    rows = context.read_rows(f"SELECT {listed} FROM {backticked(table.name)}{condition}")
    if rows.num_rows:
        context.db.put(table.name, cast_for_assignment(table, rows))
    return Result(done=f"{rows.num_rows} updated")


def _read_expression(cursor: TokenCursor) -> str:
    """The text up to a comma or WHERE that is not inside of it."""
    first, depth = cursor.index, 0
    while not cursor.is_at_end() and (depth or not (cursor.is_at(",") or cursor.is_at("WHERE"))):
        depth += {"(": 1, ")": -1}.get(cursor.token_text(), 0)
        cursor.index += 1
    if cursor.index == first:
        raise BadStatement(f"{cursor.describe_token()} is where a value should be.", hint="Write SET column = value.")
    return cursor.text[cursor.tokens[first].start : cursor.tokens[cursor.index - 1].end]


def _column_list(names: Sequence[str]) -> str:
    return ", ".join(map(backticked, names))


def _unique_keys(table: Table, keys: list[tuple[Any, ...]]) -> pa.Table:
    from viewkeeper.model.intake.rows import keys_table, last_by_key

    return last_by_key(table, keys_table(table, keys))


def _read_value_list(cursor: TokenCursor, table: Table, column: Column) -> list[Any]:
    if cursor.accept("="):
        return [read_value(cursor, table.name, column)]
    cursor.expect("IN")
    cursor.expect("(")
    found = [read_value(cursor, table.name, column)]
    while cursor.accept(","):
        found.append(read_value(cursor, table.name, column))
    cursor.expect(")")
    return found


def _find_column(table: Table, name: str) -> Column:
    column = table.by_name.get(name.lower())
    if column is None:
        raise UnknownName(
            f"{table.name} has no column {name!r}.", hint=f"Its columns: {', '.join(c.name for c in table.columns)}."
        )
    return column


_WRITE_STATEMENTS: tuple[tuple[tuple[str, ...], Callable[[StatementContext, TokenCursor], Result]], ...] = (
    (("INSERT", "INTO"), _insert),
    (("UPSERT", "INTO"), _upsert),
    (("UPDATE",), _update),
    (("DELETE", "FROM"), _delete),
)
_READ_KEYWORDS = ("SHOW", "DESCRIBE", "DESC", "EXPLAIN")
_DDL_KEYWORDS = {statement.split()[0] for statement in spelling.SUPPORTED.split(", ")}
