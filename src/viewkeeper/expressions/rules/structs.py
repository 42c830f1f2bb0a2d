"""Structs, arrays, and expressions that only Catalyst itself creates; also literals and columns.

A struct's fields are named by position (f0, f1, …), because Catalyst accesses them by ordinal.
"""

from __future__ import annotations

from collections.abc import Sequence

from viewkeeper.expressions.rules.decimals import digits, scaled, unscaled
from viewkeeper.expressions.rules.rule import Texts, cast, duckdb_type, parameter, quote
from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.names import quoted
from viewkeeper.model.types import Kind, Type


def create(expr: Expr, args: Texts) -> str:
    return "{" + ", ".join(f"'f{i}': {value}" for i, value in enumerate(args[1::2])) + "}"


def field(expr: Expr, args: Texts) -> str:
    return f"struct_extract({args[0]}, 'f{int(parameter(expr, 0, 0))}')"


def array(expr: Expr, args: Texts) -> str:
    return f"[{', '.join(args)}]"


def raise_error(expr: Expr, args: Texts) -> str:
    """Write the row's own error; a text that begins with one of Spark's conditions keeps it."""
    named = f"CASE WHEN regexp_matches({args[0]}, '^[A-Z_]+: ') THEN '' ELSE 'USER_RAISED_EXCEPTION: ' END"
    return f"error({named} || coalesce({args[0]}, 'null'))"


def make_decimal(expr: Expr, args: Texts) -> str:
    return scaled(f"CAST({args[0]} AS HUGEINT)", *digits(expr))


def unscaled_value(expr: Expr, args: Texts) -> str:
    return unscaled(args[0], *digits(expr.args[0]))


def sortable(text: str, type_: Type, depth: int = 0) -> str:
    """Return a value that DuckDB orders as Spark orders this one: inside a struct or an array, NULL is the least value.

    DuckDB orders NULL last there. So each part is preceded by a flag "is not NULL", and FALSE is less than TRUE.
    """
    name = f"part{depth}"
    if type_.kind is Kind.ARRAY:
        element = sortable(name, type_.element, depth + 1)
        return f"list_transform({text}, lambda {name}: {{'n': {name} IS NOT NULL, 'v': {element}}})"
    if type_.kind is not Kind.STRUCT:
        return text
    parts = []
    for i, part in enumerate(type_.nested_fields):
        value = f"struct_extract({name}, 'f{i}')"
        parts.append(f"'n{i}': {value} IS NOT NULL, 'f{i}': {sortable(value, part.type, depth + 1)}")
    ordered = f"CASE WHEN {name} IS NOT NULL THEN {{{', '.join(parts)}}} END"
    return f"list_transform([{text}], lambda {name}: {ordered})[1]"


# Literals and columns. A literal always has an explicit type: a bare 1.5 would be a decimal in DuckDB.


def column(expr: Expr, _: Sequence[str]) -> str:
    return quoted(str(expr.value))


def literal(expr: Expr, _: Sequence[str]) -> str:
    value, type_ = expr.value, expr.type
    if type_ == types.VOID:
        return "NULL"
    if value is None:
        return cast("NULL", type_)
    if type_ == types.BOOLEAN:
        return "TRUE" if value else "FALSE"
    if type_ == types.STRING:
        return cast(quote(value), type_)
    if type_ == types.BINARY:
        return f"from_hex('{value}')"
    if type_ == types.DATE:
        return f"(DATE '1970-01-01' + CAST({int(value)} AS INTEGER))"
    if type_ in (types.TIMESTAMP, types.TIMESTAMP_NTZ):
        return f"make_timestamp(CAST({int(value)} AS BIGINT))"
    if types.is_float(type_) or types.decimal_digits(type_):
        return cast(quote(str(value)), type_)
    return f"CAST({int(value)} AS {duckdb_type(type_)})"
