"""`vk sql`: the statements of the core, and those that write and read rows.

    INSERT INTO table [( columns )] VALUES ( values ), … | query     keys that are there already are refused
    UPSERT INTO table [( columns )] VALUES ( values ), … | query     puts rows, or replaces whole rows of the same key
    DELETE FROM table WHERE key = value AND … | key IN ( values )    by the whole key
    SELECT … | WITH … | VALUES … | FROM …                            over tables and views at one state

    value ::= NULL | TRUE | FALSE | [-] number | 'text' | DATE 'text' | TIMESTAMP 'text' | X'hex'

Two quotes within a text are one, as in Spark; for a float 'NaN', 'Infinity' and '-Infinity' are values too.

A statement is one write call: all of its rows become visible together. INSERT looks for its keys just before it writes;
two inserts of one key at the same moment are not told apart, and the later one stays. Queries run in
Spark, because Spark SQL is what a view's query means, but for those that only name columns, an order and a limit of one
table (`cli.simple`); the other statements need no Spark, but for creating a view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pyarrow as pa

from viewkeeper.cli.output import typed
from viewkeeper.errors import BadStatement, NameTaken, UnknownName
from viewkeeper.model import types
from viewkeeper.model.schema import Column, Table
from viewkeeper.plan import words as spelling
from viewkeeper.plan.words import Words

QUERY = ("SELECT", "WITH", "VALUES", "FROM", "(")
STATEMENTS = f"{spelling.SUPPORTED}, INSERT, UPSERT, DELETE, SELECT"


@dataclass(frozen=True)
class Answer:
    """What a statement gave: rows, or a line that says what was done (empty: nothing to say)."""

    rows: pa.Table | None = None
    done: str = ""


def run(db: Any, text: str) -> Answer:
    """Run one statement of any kind."""
    found = list(spelling.statements(text))
    if not found:
        raise BadStatement("There is no statement in the text.", hint=f"Statements: {STATEMENTS}.")
    if len(found) == 1:
        words = Words(text, found[0])
        for start, write in _WRITES:
            if words.take(*start):
                return write(db, words)
        if any(words.at(word) for word in QUERY):
            from viewkeeper.cli.query import select

            return Answer(select(db, words.rest()))
        if not any(words.at(word) for word in _CORE):
            raise BadStatement(f"{words.shown()} starts no statement known here.", hint=f"Statements: {STATEMENTS}.")
    return Answer(db.sql(text))


def _insert(db: Any, words: Words) -> Answer:
    table, rows = _rows(db, words)
    keys = [c.name for c in table.key_columns]
    there = db._store.get_many(table, rows.select(keys), keys)
    if there.num_rows:
        first = ", ".join(f"{k} = {v}" for k, v in there.slice(0, 1).to_pylist()[0].items())
        raise NameTaken(
            f"{table.name} has {there.num_rows} of these keys already, such as {first}; nothing was written.",
            hint="Write UPSERT to replace whole rows.",
        )
    db.put(table.name, rows)
    return Answer(done=f"{rows.num_rows} inserted")


def _upsert(db: Any, words: Words) -> Answer:
    table, rows = _rows(db, words)
    db.put(table.name, rows)
    return Answer(done=f"{rows.num_rows} put")


def _rows(db: Any, words: Words) -> tuple[Table, pa.Table]:
    """The rows of INSERT or UPSERT in the table's own types, the last of a key if there are several."""
    from viewkeeper.model.rows import last_by_key, rows_table

    table = db._base_table(words.name("table"), "insert into")
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
        from viewkeeper.cli.query import select

        rows = select(db, words.rest())
        if rows.num_columns != len(names):
            raise BadStatement(
                f"{table.name}: the query has {rows.num_columns} columns, {len(names)} are written.",
                hint=f"They are, by position: {', '.join(names)}.",
            )
        rows = rows.rename_columns(list(names))
    else:
        raise BadStatement(f"{words.shown()} is where VALUES or a query should be.", hint=f"Statements: {STATEMENTS}.")
    return table, last_by_key(table, rows_table(table, rows))


def _values(words: Words, table: Table, columns: Sequence[Column]) -> list[Any]:
    words.need("(")
    found = [_value(words, table, columns[0])]
    while words.take(","):
        if len(found) == len(columns):
            raise BadStatement(f"A row has more than {len(columns)} values.", hint="Give one for each column.")
        found.append(_value(words, table, columns[len(found)]))
    words.need(")")
    if len(found) < len(columns):
        raise BadStatement(f"A row has {len(found)} values, not {len(columns)}.", hint="Give one for each column.")
    return found


def _value(words: Words, table: Table, column: Column) -> Any:
    for word, value in (("NULL", None), ("TRUE", True), ("FALSE", False)):
        if words.take(word):
            return value
    for word in ("DATE", "TIMESTAMP"):  # the intake reads the text, by the column's type
        if words.at(word):
            words.take(word)
            break
    sign = "-" if words.take("-") else "+" if words.take("+") else ""
    if words.done():
        raise BadStatement("The text ends where a value should be.", hint="Write it.")
    token = words.tokens[words.next]
    words.next += 1
    text = token.value
    if token.kind == "text" and not sign:
        return typed(table.name, column.name, column.type, text) if _is_no_number(column, text) else text
    if token.kind == "bytes" and not sign:
        return bytes.fromhex("0" * (len(text) % 2) + text)
    if token.kind == "number" and types.arrow(column.type) != pa.string():
        return typed(table.name, column.name, column.type, sign + text)
    words.next -= 1
    raise BadStatement(
        f"{words.shown()} is no value for {column.name} ({column.type.upper()}).",
        hint="Values are NULL, TRUE, FALSE, numbers, 'text', DATE '…', TIMESTAMP '…' and X'…'.",
    )


def _is_no_number(column: Column, text: str) -> bool:
    """Whether this is one of the floats that have no digits."""
    return types.is_float(column.type) and text.lower().lstrip("+-") in ("nan", "inf", "infinity")


def _delete(db: Any, words: Words) -> Answer:
    table = db._base_table(words.name("table"), "delete from")
    wanted: dict[str, list[Any]] = {}
    if words.take("WHERE"):
        while True:
            column = _column(table, words.name("key column"))
            if column.name in wanted:
                raise BadStatement(f"{column.name} is there twice.", hint="Write it once, with IN for several values.")
            if not (words.at("=") or words.at("IN")):
                raise BadStatement(
                    f"{words.shown()} is where = or IN should be: DELETE names rows by their key.",
                    hint="For other conditions, SELECT the keys first.",
                )
            wanted[column.name] = _listed(words, table, column)
            if not words.take("AND"):
                break
        words.end()
    keys = [c.name for c in table.key_columns]
    if sorted(wanted) != sorted(keys):
        raise BadStatement(
            f"DELETE FROM {table.name} names rows by their whole key: {', '.join(keys)}.",
            hint=f"Write WHERE {' AND '.join(f'{k} = …' for k in keys)}.",
        )
    rows = db._store.get_many(table, _keys(table, list(product(*(wanted[k] for k in keys)))), keys)
    if rows.num_rows:
        db.delete(table.name, rows)
    return Answer(done=f"{rows.num_rows} deleted")


def _keys(table: Table, keys: list[tuple[Any, ...]]) -> pa.Table:
    from viewkeeper.model.rows import keys_table, last_by_key

    return last_by_key(table, keys_table(table, keys))


def _listed(words: Words, table: Table, column: Column) -> list[Any]:
    if words.take("="):
        return [_value(words, table, column)]
    words.need("IN")
    words.need("(")
    found = [_value(words, table, column)]
    while words.take(","):
        found.append(_value(words, table, column))
    words.need(")")
    return found


def _column(table: Table, name: str) -> Column:
    column = table.by_name.get(name.lower())
    if column is None:
        raise UnknownName(
            f"{table.name} has no column {name!r}.", hint=f"Its columns: {', '.join(c.name for c in table.columns)}."
        )
    return column


_WRITES = (
    (("INSERT", "INTO"), _insert),
    (("UPSERT", "INTO"), _upsert),
    (("DELETE", "FROM"), _delete),
)
_CORE = {statement.split()[0] for statement in spelling.SUPPORTED.split(", ")}
