"""A column as a statement writes it: its name, its type, and what is said of it.

    column  ::= name type [NOT NULL] [PRIMARY KEY] [DEFAULT value]

A default is for rows that do not name the column; rows that are there do not change with it. Types are returned by the
names that `model.types` uses.
"""

from __future__ import annotations

from viewkeeper.errors import BadStatement, BadValue, Unsupported
from viewkeeper.model import types
from viewkeeper.model.names import refuse
from viewkeeper.model.schema import Column
from viewkeeper.model.types import Type
from viewkeeper.model.values import column_values
from viewkeeper.plan.values import read_value
from viewkeeper.plan.words import Words


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
