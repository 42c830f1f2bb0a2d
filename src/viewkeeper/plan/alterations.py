"""ALTER: what may change about a table or view that is there.

    ALTER TABLE name ADD [COLUMN] column                         rows that are there show its DEFAULT, else NULL
                   | DROP [COLUMN] [IF EXISTS] column [CASCADE]  with CASCADE, the views and indexes that use it too
                   | RENAME TO name
                   | RENAME COLUMN column TO column
                   | ALTER [COLUMN] column SET DEFAULT value     for rows that come
                   | ALTER [COLUMN] column DROP DEFAULT
                   | ALTER [COLUMN] column [SET DATA] TYPE type  a wider one: rows that are there keep their values
    ALTER MATERIALIZED VIEW name SUSPEND | RESUME | RENAME TO name

What a view's query names keeps its name, and no row is rewritten.
"""

from __future__ import annotations

from dataclasses import dataclass

from viewkeeper.errors import BadStatement
from viewkeeper.model.names import refuse
from viewkeeper.model.schema import Column
from viewkeeper.model.types import Type
from viewkeeper.plan.columns import read_column, read_type
from viewkeeper.plan.words import Words


@dataclass(frozen=True)
class AddColumn:
    table: str
    column: Column


@dataclass(frozen=True)
class DropColumn:
    table: str
    column: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True)
class RenameColumn:
    table: str
    column: str
    to: str


@dataclass(frozen=True)
class SetDefault:
    table: str
    column: str
    words: Words | None
    """What follows SET DEFAULT, to be read by the column's type; None: the column has none any more."""


@dataclass(frozen=True)
class Rename:
    """Of a table, or of a view."""

    name: str
    to: str
    is_view: bool


@dataclass(frozen=True)
class AlterView:
    name: str
    action: str
    """suspend or resume"""


@dataclass(frozen=True)
class AlterType:
    table: str
    column: str
    type: Type


ColumnChange = AddColumn | DropColumn | RenameColumn | SetDefault | AlterType
AlterTable = ColumnChange | Rename


def alter_table(words: Words) -> AlterTable:
    """What follows ALTER TABLE."""
    name = words.name("table")
    if words.take("DROP"):
        words.take("COLUMN")
        absent_ok = words.take("IF", "EXISTS")
        column = words.name("column")
        cascade = words.take("CASCADE")
        if not cascade:
            words.take("RESTRICT")
        return DropColumn(name, column, absent_ok, cascade)
    if words.take("RENAME", "TO"):
        return Rename(name, words.new_name("table"), is_view=False)
    if words.take("RENAME"):
        words.need("COLUMN")
        column = words.name("column")
        words.need("TO")
        to = words.name("column")
        refuse(to, "Column")
        return RenameColumn(name, column, to)
    if words.take("ALTER"):
        words.take("COLUMN")
        return _alter_column(words, name, words.name("column"))
    if words.take("ADD"):
        words.take("COLUMN")
        return _add(words, name)
    raise BadStatement(
        f"A table is altered by ADD, DROP, RENAME or ALTER COLUMN, not by {words.shown(begins=False)}.",
        hint="Write one of them.",
    )


def _add(words: Words, table: str) -> AddColumn:
    column, is_key = read_column(words)
    if is_key:
        raise BadStatement(
            f"Column {column.name}: the key of {table} is the one that it was created with.",
            hint="Add it without PRIMARY KEY.",
        )
    if not column.nullable and column.default is None:
        raise BadStatement(
            f"Column {column.name}: rows that are there have no value for it, so NOT NULL needs a DEFAULT.",
            hint=f"Write {column.name} {column.type.sql} NOT NULL DEFAULT value, or leave NOT NULL out.",
        )
    return AddColumn(table, column)


def _alter_column(words: Words, table: str, column: str) -> SetDefault | AlterType:
    if words.take("TYPE") or words.take("SET", "DATA", "TYPE"):
        return AlterType(table, column, read_type(words, column))
    if words.take("DROP", "DEFAULT"):
        return SetDefault(table, column, None)
    if not words.take("SET", "DEFAULT"):
        raise BadStatement(
            f"A column is altered by TYPE, SET DEFAULT or DROP DEFAULT, not by {words.shown(begins=False)}.",
            hint="Write one of them; RENAME COLUMN, ADD and DROP stand behind the table.",
        )
    rest = Words(words.text, words.tokens[words.next :])
    words.next = len(words.tokens)
    return SetDefault(table, column, rest)


def alter_view(words: Words) -> AlterView | Rename:
    """What follows ALTER MATERIALIZED VIEW."""
    name = words.name("view")
    if words.take("RENAME"):
        words.need("TO")
        return Rename(name, words.new_name("view"), is_view=True)
    for action in ("SUSPEND", "RESUME"):
        if words.take(action):
            return AlterView(name, action.lower())
    raise BadStatement(
        f"A view is altered by SUSPEND, RESUME or RENAME TO, not by {words.shown(begins=False)}.",
        hint="Write one of them.",
    )
