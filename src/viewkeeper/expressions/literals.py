"""Literals and columns as DuckDB text. A literal always carries its type: a bare 1.5 would be a decimal in DuckDB."""

from __future__ import annotations

from collections.abc import Sequence

from viewkeeper.expressions.rule import cast, duck, quote
from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.names import quoted


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
    return f"CAST({int(value)} AS {duck(type_)})"
