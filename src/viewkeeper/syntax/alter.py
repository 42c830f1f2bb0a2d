"""ALTER statements: changes of an existing table or view.

    ALTER TABLE name ADD [COLUMN] column                         existing rows show its DEFAULT, else NULL
                   | DROP [COLUMN] [IF EXISTS] column [CASCADE]  with CASCADE, also the views and indexes that use it
                   | RENAME TO name
                   | RENAME COLUMN column TO column
                   | ALTER [COLUMN] column SET DEFAULT value     for new rows
                   | ALTER [COLUMN] column DROP DEFAULT
                   | ALTER [COLUMN] column [SET DATA] TYPE type  a wider type: existing rows keep their values
    ALTER MATERIALIZED VIEW name SUSPEND | RESUME | RENAME TO name

The statements rewrite no rows, and do not change what the queries of views refer to.
"""

from __future__ import annotations

from dataclasses import dataclass

from viewkeeper.errors import BadStatement, BadValue, Unsupported
from viewkeeper.model import types
from viewkeeper.model.intake.columns import column_values
from viewkeeper.model.names import check_column_name
from viewkeeper.model.schema import Column
from viewkeeper.model.types import Type
from viewkeeper.syntax.cursor import TokenCursor
from viewkeeper.syntax.literals import read_value

# A column definition: its name, its type and its constraints.
#
#     column  ::= name type [NOT NULL] [PRIMARY KEY] [DEFAULT value]
#
# A default applies to rows that do not name the column; it does not change existing rows. Types have the names that
# `model.types` uses.


def read_column(cursor: TokenCursor) -> tuple[Column, bool]:
    """Read a column definition; also return whether it contains PRIMARY KEY."""
    name = cursor.read_name("column")
    check_column_name(name, "Column")
    type_ = read_type(cursor, name)
    nullable, is_key, default = True, False, None
    while True:
        if cursor.accept("NOT", "NULL"):
            nullable = False
        elif cursor.accept("PRIMARY", "KEY"):
            is_key = True
        elif cursor.accept("DEFAULT"):
            default = read_default(cursor, Column(name, type_))
        else:
            break
    if not (cursor.is_at(",") or cursor.is_at(")") or cursor.is_at_end()):
        raise BadStatement(
            f"Column {name}: {cursor.describe_token()} after its type is not known here.",
            hint="A column has a name, a type and, if wanted, NOT NULL, PRIMARY KEY or DEFAULT with a value.",
        )
    return Column(name, type_, nullable, default=default), is_key


def read_default(cursor: TokenCursor, column: Column) -> str | None:
    """Read a default value; return it as text for `parse_value`, or None for NULL."""
    text = cursor.token_text()
    try:
        value = read_value(cursor, "DEFAULT", column)
        (converted,) = column_values("DEFAULT", Column(column.name, column.type), [value]).to_pylist()
    except BadValue as error:
        raise BadStatement(f"Column {column.name}: {text} is no {column.type.sql}.", hint=error.hint) from None
    if converted is None:
        return None
    if isinstance(converted, bytes):
        return converted.hex()
    return str(converted).lower() if isinstance(converted, bool) else str(converted)


_TYPES_BY_NAME = {
    **{str(type_): type_ for type_ in types.SCALAR_TYPES},
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


def read_type(cursor: TokenCursor, column: str) -> Type:
    """Read a type."""
    if cursor.is_at_end() or cursor.is_at(",") or cursor.is_at(")"):
        raise BadStatement(
            f"Column {column} has no type.", hint=f"Types are: {', '.join(types.COLUMN_TYPE_NAMES).upper()}."
        )
    name = cursor.read_word().lower()
    for suffix in ("precision", "varying"):
        if cursor.accept(suffix.upper()):
            name += f" {suffix}"
    digits = cursor.read_numbers() if cursor.accept("(") else ()
    if name in ("decimal", "dec", "numeric"):
        precision, scale = (*digits, *(10, 0)[len(digits) :])[:2]
        if len(digits) > 2 or not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise BadStatement(
                f"Column {column}: DECIMAL({','.join(map(str, digits))}) is no type.",
                hint="DECIMAL(p,s) takes 1 to 38 digits, 0 to p of them after the point.",
            )
        return types.decimal(precision, scale)
    if name in ("varchar", "char", "character", "character varying") and digits:
        raise Unsupported(
            f"Column {column}: {name.upper()}({digits[0]}) is not supported, lengths are not enforced.",
            hint="Write STRING.",
        )
    if name not in _TYPES_BY_NAME or digits or cursor.is_at("<"):
        raise Unsupported(
            f"Column {column}: type {name.upper()} is not supported.",
            hint=f"Supported types: {', '.join(types.COLUMN_TYPE_NAMES).upper()}.",
        )
    return _TYPES_BY_NAME[name]


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
    cursor: TokenCursor | None
    """The tokens after SET DEFAULT, which are read by the column's type; None removes the default."""


@dataclass(frozen=True)
class Rename:
    """A new name for a table or a view."""

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


def parse_alter_table(cursor: TokenCursor) -> AlterTable:
    """Parse the rest of a statement after ALTER TABLE."""
    name = cursor.read_name("table")
    if cursor.accept("DROP"):
        cursor.accept("COLUMN")
        if_exists = cursor.accept("IF", "EXISTS")
        column = cursor.read_name("column")
        cascade = cursor.accept("CASCADE")
        if not cascade:
            cursor.accept("RESTRICT")
        return DropColumn(name, column, if_exists, cascade)
    if cursor.accept("RENAME", "TO"):
        return Rename(name, cursor.read_new_name("table"), is_view=False)
    if cursor.accept("RENAME"):
        cursor.expect("COLUMN")
        column = cursor.read_name("column")
        cursor.expect("TO")
        to = cursor.read_name("column")
        check_column_name(to, "Column")
        return RenameColumn(name, column, to)
    if cursor.accept("ALTER"):
        cursor.accept("COLUMN")
        return _parse_alter_column(cursor, name, cursor.read_name("column"))
    if cursor.accept("ADD"):
        cursor.accept("COLUMN")
        return _parse_add_column(cursor, name)
    raise BadStatement(
        f"A table is altered by ADD, DROP, RENAME or ALTER COLUMN, not by {cursor.describe_token(begins=False)}.",
        hint="Write one of them.",
    )


def _parse_add_column(cursor: TokenCursor, table: str) -> AddColumn:
    column, is_key = read_column(cursor)
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


def _parse_alter_column(cursor: TokenCursor, table: str, column: str) -> SetDefault | AlterType:
    if cursor.accept("TYPE") or cursor.accept("SET", "DATA", "TYPE"):
        return AlterType(table, column, read_type(cursor, column))
    if cursor.accept("DROP", "DEFAULT"):
        return SetDefault(table, column, None)
    if not cursor.accept("SET", "DEFAULT"):
        raise BadStatement(
            f"A column is altered by TYPE, SET DEFAULT or DROP DEFAULT, not by {cursor.describe_token(begins=False)}.",
            hint="Write one of them; RENAME COLUMN, ADD and DROP stand behind the table.",
        )
    rest = TokenCursor(cursor.text, cursor.tokens[cursor.index :])
    cursor.index = len(cursor.tokens)
    return SetDefault(table, column, rest)


def parse_alter_view(cursor: TokenCursor) -> AlterView | Rename:
    """Parse the rest of a statement after ALTER MATERIALIZED VIEW."""
    name = cursor.read_name("view")
    if cursor.accept("RENAME"):
        cursor.expect("TO")
        return Rename(name, cursor.read_new_name("view"), is_view=True)
    for action in ("SUSPEND", "RESUME"):
        if cursor.accept(action):
            return AlterView(name, action.lower())
    raise BadStatement(
        f"A view is altered by SUSPEND, RESUME or RENAME TO, not by {cursor.describe_token(begins=False)}.",
        hint="Write one of them.",
    )
