"""Structs, arrays and the few expressions that only Catalyst itself writes.

A struct's fields are named by their place (f0, f1, …): Catalyst reads them by ordinal.
"""

from __future__ import annotations

from viewkeeper.expressions.decimals import digits, scaled, unscaled
from viewkeeper.expressions.rule import Texts, parameter
from viewkeeper.expressions.tree import Expr
from viewkeeper.model.types import Kind, Type


def create(expr: Expr, args: Texts) -> str:
    return "{" + ", ".join(f"'f{i}': {value}" for i, value in enumerate(args[1::2])) + "}"


def field(expr: Expr, args: Texts) -> str:
    return f"struct_extract({args[0]}, 'f{int(parameter(expr, 0, 0))}')"


def array(expr: Expr, args: Texts) -> str:
    return f"[{', '.join(args)}]"


def raise_error(expr: Expr, args: Texts) -> str:
    """The row's own error; a text that starts with one of Spark's conditions keeps it."""
    named = f"CASE WHEN regexp_matches({args[0]}, '^[A-Z_]+: ') THEN '' ELSE 'USER_RAISED_EXCEPTION: ' END"
    return f"error({named} || coalesce({args[0]}, 'null'))"


def make_decimal(expr: Expr, args: Texts) -> str:
    return scaled(f"CAST({args[0]} AS HUGEINT)", *digits(expr))


def unscaled_value(expr: Expr, args: Texts) -> str:
    return unscaled(args[0], *digits(expr.args[0]))


def sortable(text: str, type_: Type, depth: int = 0) -> str:
    """A value that DuckDB orders as Spark orders this one: inside of a struct or an array NULL is the least of all.

    DuckDB holds it the greatest there. So before each part stands whether it is there, and FALSE is less than TRUE.
    """
    name = f"part{depth}"
    if type_.kind is Kind.ARRAY:
        element = sortable(name, type_.element, depth + 1)
        return f"list_transform({text}, lambda {name}: {{'n': {name} IS NOT NULL, 'v': {element}}})"
    if type_.kind is not Kind.STRUCT:
        return text
    parts = []
    for i, part in enumerate(type_.parts):
        value = f"struct_extract({name}, 'f{i}')"
        parts.append(f"'n{i}': {value} IS NOT NULL, 'f{i}': {sortable(value, part.type, depth + 1)}")
    ordered = f"CASE WHEN {name} IS NOT NULL THEN {{{', '.join(parts)}}} END"
    return f"list_transform([{text}], lambda {name}: {ordered})[1]"
