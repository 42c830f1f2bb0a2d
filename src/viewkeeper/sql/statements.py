"""SQL over rows, beside the DDL statements (`syntax.statements`): what `db.sql`, `vk sql` and the server run.

    INSERT INTO table [( columns )] VALUES ( values ), … | query     existing keys are refused
    UPSERT INTO table [( columns )] VALUES ( values ), … | query     puts rows, or replaces whole rows of the same key
    UPDATE table SET column = expression, … [WHERE condition]        rows as the query finds them
    DELETE FROM table WHERE condition
    SELECT … | WITH … | VALUES … | FROM …                            over tables and views at one state
    EXPLAIN SELECT …                                                 the engine that would run it, and what it reads

Values are parsed by `syntax.literals`. A statement is one write call: all of its rows become visible together. INSERT
looks up its keys, UPDATE and DELETE their rows, just before they write. A write of another process to the same rows in
between is not detected; the later write wins. (`db.update` changes columns of one row in one transaction.)
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
    """The permission that a text needs: "read", "write" rows, or "define" tables and views; the highest of all its
    statements."""
    needed = {_statement_permission(TokenCursor(text, tokens)) for tokens in spelling.split_statements(text)}
    return next(
        (permission for permission in ("define", "write") if permission in needed), "read" if needed else "define"
    )


def _statement_permission(cursor: TokenCursor) -> str:
    if any(cursor.is_at(word) for word in (*QUERY_STARTS, *_READ_KEYWORDS)):
        return "read"
    return "write" if any(cursor.is_at(start[0]) for start, _ in _WRITE_STATEMENTS) else "define"


def create_views_together(db: Any, texts: Sequence[str], progress: Progress | None = None) -> Result:
    """Run consecutive CREATE MATERIALIZED VIEW statements of a script: all views are created, or none."""
    created = create_views(db, texts, progress)
    existing = len(texts) - len(created)
    return Result(done=f"{list_text(created, 'view')} created" + (f", {existing} there already" if existing else ""))


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
    """Run the statements of a text; consecutive new views are one batch.

    `parameters`: values for its parameters. `engine`: the engine that runs a query. `query_limits`: the text is
    untrusted and may read only the database's own rows, up to a limit. `progress` is called with the progress of a
    view's load. `stale`: a query may read the old rows of suspended views, which is otherwise an error.
    """
    text = arguments.check_text(text, "A statement", f"Statements: {STATEMENTS}.")
    arguments.check_choice(engine, "engine", ENGINES)
    steps = split_steps(text, parameters)
    if not steps:
        raise BadStatement("There is no statement in the text.", hint=f"Statements: {STATEMENTS}.")
    context = StatementContext(db, engine, query_limits, stale)
    results = []
    for step in steps:
        with step.locate_errors():
            results.append(_run_step(context, step, progress))
    return Result.of(results)


def _run_step(context: StatementContext, step: ScriptStep, progress: Progress | None) -> Result:
    cursors = [TokenCursor(step.text, tokens) for tokens in spelling.split_statements(step.text)]
    with count_lines_from_text(step.text, cursors):
        if len(cursors) > 1:
            return create_views_together(context.db, spelt.split(step.text), progress)
        return _run_statement(context, cursors[0], progress)


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
    """The database, and how a statement's queries are run."""

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
    existing = db._store.get_rows(table, rows.select(keys), keys)
    if existing.num_rows:
        first = ", ".join(f"{k} = {v}" for k, v in existing.slice(0, 1).to_pylist()[0].items())
        raise NameTaken(
            f"{table.name} has {existing.num_rows} of these keys already, such as {first}; nothing was written.",
            hint="Write UPSERT to replace whole rows.",
        )
    db.put(table.name, rows)
    return Result(done=f"{rows.num_rows} inserted")


def _upsert(context: StatementContext, cursor: TokenCursor) -> Result:
    table, rows = _read_rows(context, cursor)
    context.db.put(table.name, rows)
    return Result(done=f"{rows.num_rows} put")


def _read_rows(context: StatementContext, cursor: TokenCursor) -> tuple[Table, pa.Table]:
    """The rows of INSERT or UPSERT in the table's own types; of several rows with one key, the last."""
    from viewkeeper.model.intake.rows import last_by_key, rows_table

    table = context.db._writes.table(cursor.read_name("table"), "insert into")
    names = cursor.read_names("column") if cursor.is_at("(") else tuple(c.name for c in table.columns)
    columns = [_find_column(table, name) for name in names]
    if repeated := [c.name for i, c in enumerate(columns) if c in columns[:i]]:
        raise BadStatement(f"{table.name}: {repeated[0]} is there twice.", hint="Name each column once.")
    if cursor.is_at("VALUES"):
        cursor.accept("VALUES")
        value_lists = [_read_values(cursor, table, columns)]
        while cursor.accept(","):
            value_lists.append(_read_values(cursor, table, columns))
        cursor.expect_end()
        rows: Any = [dict(zip(names, row, strict=True)) for row in value_lists]
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
    named_keys = _read_named_keys(cursor, table)
    if named_keys is not None:
        rows = context.db._store.get_rows(table, _unique_keys(table, named_keys), keys)
    else:
        rows = context.read_rows(
            f"SELECT {_column_list(keys)} FROM {backticked(table.name)} WHERE {cursor.read_rest()}"
        )
    if rows.num_rows:
        context.db.delete(table.name, rows)
    return Result(done=f"{rows.num_rows} deleted")


def _read_named_keys(cursor: TokenCursor, table: Table) -> list[tuple[Any, ...]] | None:
    """The keys that a condition lists: key = value AND … | key IN ( values ); None for any other condition."""
    start, values = cursor.index, {}
    try:
        while True:
            column = _find_column(table, cursor.read_name("key column"))
            if column.name in values or not (cursor.is_at("=") or cursor.is_at("IN")):
                raise BadStatement("It is another condition.")
            values[column.name] = _read_value_list(cursor, table, column)
            if not cursor.accept("AND"):
                break
        cursor.expect_end()
    except ViewkeeperError:
        cursor.index = start
        return None
    keys = [c.name for c in table.key_columns]
    if sorted(values) != sorted(keys):
        cursor.index = start
        return None
    return list(product(*(values[k] for k in keys)))


def _update(context: StatementContext, cursor: TokenCursor) -> Result:
    table = context.db._writes.table(cursor.read_name("table"), "update")
    cursor.expect("SET")
    assignments: dict[str, str] = {}
    while True:
        column = _find_column(table, cursor.read_name("column"))
        if column in table.key_columns:
            raise BadStatement(
                f"{table.name}.{column.name} is part of the key and cannot be changed.",
                hint="Delete the row and put it under the new key.",
            )
        if column.name in assignments:
            raise BadStatement(f"{column.name} is set twice.", hint="Set it once.")
        cursor.expect("=")
        assignments[column.name] = _read_expression(cursor)
        if not cursor.accept(","):
            break
    condition = f" WHERE {cursor.read_rest()}" if cursor.accept("WHERE") else ""
    cursor.expect_end()
    select_list = ", ".join(
        f"{assignments[c.name]} AS {backticked(c.name)}" if c.name in assignments else backticked(c.name)
        for c in table.columns
    )
    rows = context.read_rows(f"SELECT {select_list} FROM {backticked(table.name)}{condition}")
    if rows.num_rows:
        context.db.put(table.name, cast_for_assignment(table, rows))
    return Result(done=f"{rows.num_rows} updated")


def _read_expression(cursor: TokenCursor) -> str:
    """Read the text up to a comma or WHERE outside of parentheses."""
    start, depth = cursor.index, 0
    while not cursor.is_at_end() and (depth or not (cursor.is_at(",") or cursor.is_at("WHERE"))):
        depth += {"(": 1, ")": -1}.get(cursor.token_text(), 0)
        cursor.index += 1
    if cursor.index == start:
        raise BadStatement(f"{cursor.describe_token()} is where a value should be.", hint="Write SET column = value.")
    return cursor.text[cursor.tokens[start].start : cursor.tokens[cursor.index - 1].end]


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
