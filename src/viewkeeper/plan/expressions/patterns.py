"""LIKE and regular expressions."""

from __future__ import annotations

from viewkeeper.plan.expressions.rule import Texts, parameter, quote
from viewkeeper.plan.nodes import Expr


def like(expr: Expr, args: Texts) -> str:
    return f"({args[0]} LIKE {args[1]} ESCAPE {quote(parameter(expr, default=chr(92)))})"
