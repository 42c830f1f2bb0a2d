"""Structs, arrays and the few expressions that only Catalyst itself writes.

A struct's fields are named by their place (f0, f1, …): Catalyst reads them by ordinal.
"""

from __future__ import annotations

from viewkeeper.expressions.decimals import digits, scaled, unscaled
from viewkeeper.expressions.rule import Texts, parameter
from viewkeeper.expressions.tree import Expr


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
