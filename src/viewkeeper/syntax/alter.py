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

from viewkeeper.errors import BadStatement, BadValue, Unsupported
from viewkeeper.model import types
from viewkeeper.model.intake.columns import column_values
from viewkeeper.model.names import refuse
from viewkeeper.model.schema import Column
from viewkeeper.model.types import Type
from viewkeeper.syntax.cursor import Words
from viewkeeper.syntax.literals import read_value

# A column as a statement writes it: its name, its type, and what is said of it.
#
#     column  ::= name type [NOT NULL] [PRIMARY KEY] [DEFAULT value]
#
# A default is for rows that do not name the column; rows that are there do not change with it. Types are returned by
# the names that `model.types` uses.


def read_column(words: Words) -> tuple[Column, bool]:
    """A column, and whether it says that it is the key."""
    name = words.name("column")
    refuse(name, "Column")
    type_ = read_type(words, name)
    nullable, is_key, default = True, False, None
    while True:
        if words.take("NOT", "NULL"):
            nullable = False
        elif words.take("PRIMARY", "KEY"):
            is_key = True
        elif words.take("DEFAULT"):
            default = read_default(words, Column(name, type_))
        else:
            break
    if not (words.at(",") or words.at(")") or words.done()):
        raise BadStatement(
            f"Column {name}: {words.shown()} after its type is not known here.",
            hint="A column has a name, a type and, if wanted, NOT NULL, PRIMARY KEY or DEFAULT with a value.",
        )
    return Column(name, type_, nullable, default=default), is_key


def read_default(words: Words, column: Column) -> str | None:
    """A default, as the word from which `model.written` reads it again; None for NULL."""
    written = words.written()
    try:
        value = read_value(words, "DEFAULT", column)
        (exact,) = column_values("DEFAULT", Column(column.name, column.type), [value]).to_pylist()
    except BadValue as error:
        raise BadStatement(f"Column {column.name}: {written} is no {column.type.sql}.", hint=error.hint) from None
    if exact is None:
        return None
    if isinstance(exact, bytes):
        return exact.hex()
    return str(exact).lower() if isinstance(exact, bool) else str(exact)


_TYPES = {
    **{str(type_): type_ for type_ in types.PLAIN},
    "bool": types.BOOLEAN,
    "byte": types.TINYINT,
    "short": types.SMALLINT,
    "integer": types.INT,
    "long": types.BIGINT,
    "real": types.FLOAT,
    "double precision": types.DOUBLE,
    "text": types.STRING,
    "varchar": types.STRING,
    "timestamp_ltz": types.TIMESTAMP,
}


def read_type(words: Words, column: str) -> Type:
    """A type, as `model.types` has it."""
    if words.done() or words.at(",") or words.at(")"):
        raise BadStatement(f"Column {column} has no type.", hint=f"Types are: {', '.join(types.NAMES).upper()}.")
    written = words.word().lower()
    for second in ("precision", "varying"):
        if words.take(second.upper()):
            written += f" {second}"
    digits = words.numbers() if words.take("(") else ()
    if written in ("decimal", "dec", "numeric"):
        precision, scale = (*digits, *(10, 0)[len(digits) :])[:2]
        if len(digits) > 2 or not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise BadStatement(
                f"Column {column}: DECIMAL({','.join(map(str, digits))}) is no type.",
                hint="DECIMAL(p,s) takes 1 to 38 digits, 0 to p of them after the point.",
            )
        return types.decimal(precision, scale)
    if written in ("varchar", "char", "character", "character varying") and digits:
        raise Unsupported(
            f"Column {column}: {written.upper()}({digits[0]}) is not supported, lengths are not enforced.",
            hint="Write STRING.",
        )
    if written not in _TYPES or digits or words.at("<"):
        raise Unsupported(
            f"Column {column}: type {written.upper()} is not supported.",
            hint=f"Supported types: {', '.join(types.NAMES).upper()}.",
        )
    return _TYPES[written]


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
