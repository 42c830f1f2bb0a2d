"""Expressions as text for users and golden tests, with as few parentheses as possible."""

from __future__ import annotations

import datetime
import re

from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.types import Kind

_INFIX = {
    "Add": "+",
    "Subtract": "-",
    "Multiply": "*",
    "Divide": "/",
    "IntegralDivide": "div",
    "Remainder": "%",
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "And": "and",
    "Or": "or",
    "BitwiseAnd": "&",
    "BitwiseOr": "|",
    "BitwiseXor": "^",
}
_PRECEDENCE = {"or": 1, "and": 2, "not": 3, "+": 5, "-": 5, "&": 5, "|": 5, "^": 5, "*": 6, "/": 6, "%": 6, "div": 6}
_COMPARISON_PRECEDENCE = 4
_ATOM_PRECEDENCE = 9


def expr_text(expr: Expr) -> str:
    return _expr_with_precedence(expr)[0]


def _expr_with_precedence(expr: Expr) -> tuple[str, int]:
    """Return the text and the precedence of its outermost operator."""
    args = expr.args
    match expr.op:
        case "column":
            return str(expr.value), _ATOM_PRECEDENCE
        case "literal":
            return _literal(expr), _ATOM_PRECEDENCE
        case "Cast":
            mode = "" if expr.value in (("ANSI",), None) else f"{expr.value[0].lower()}_"
            return f"{mode}cast({expr_text(args[0])} as {expr.type})", _ATOM_PRECEDENCE
        case "IsNull":
            return f"{_parenthesize(args[0], _COMPARISON_PRECEDENCE + 1)} is null", _COMPARISON_PRECEDENCE
        case "IsNotNull":
            return f"{_parenthesize(args[0], _COMPARISON_PRECEDENCE + 1)} is not null", _COMPARISON_PRECEDENCE
        case "Not":
            return f"not {_parenthesize(args[0], 4)}", 3
        case "In":
            return (
                f"{_parenthesize(args[0], _COMPARISON_PRECEDENCE + 1)} in ({', '.join(map(expr_text, args[1:]))})",
                _COMPARISON_PRECEDENCE,
            )
        case "Like" if expr.value in (("\\",), None):
            value, pattern = (_parenthesize(arg, _COMPARISON_PRECEDENCE + 1) for arg in args[:2])
            return f"{value} like {pattern}", _COMPARISON_PRECEDENCE
        case "CaseWhen":
            return _case(args), _ATOM_PRECEDENCE
        case op if op in _INFIX and expr.value in (("ANSI",), None):
            sign = _INFIX[op]
            precedence = _PRECEDENCE.get(sign, _COMPARISON_PRECEDENCE)
            left = _parenthesize(args[0], precedence if sign in _PRECEDENCE else precedence + 1)
            return f"{left} {sign} {_parenthesize(args[1], precedence + (sign not in ('and', 'or')))}", precedence
    return f"{function_text(expr.op)}({', '.join([*map(expr_text, args), *_parameters(expr)])})", _ATOM_PRECEDENCE


def _parenthesize(expr: Expr, min_precedence: int) -> str:
    text, precedence = _expr_with_precedence(expr)
    return text if precedence >= min_precedence else f"({text})"


def _case(args: tuple[Expr, ...]) -> str:
    pairs = zip(args[0::2], args[1::2], strict=False)
    parts = [f"when {expr_text(condition)} then {expr_text(value)}" for condition, value in pairs]
    if len(args) % 2:
        parts.append(f"else {expr_text(args[-1])}")
    return f"case {' '.join(parts)} end"


def _parameters(expr: Expr) -> list[str]:
    if expr.value is None:
        return []
    return [str(v).lower() for v in expr.value if v not in ("ANSI", None)]


def function_text(name: str) -> str:
    """Return a class name as a function name: `DateAdd` → `date_add`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _literal(expr: Expr) -> str:
    value, type_ = expr.value, expr.type
    if value is None:
        return "null"
    if type_ == types.BOOLEAN:
        return str(value).lower()
    if type_ == types.STRING:
        return "'" + str(value).replace("'", "''") + "'"
    if type_ == types.DATE and -719162 <= value <= 2932896:
        return f"date '{datetime.date(1970, 1, 1) + datetime.timedelta(value)}'"
    if type_ in (types.INT, types.BIGINT) or type_.kind is Kind.DECIMAL:
        return str(value)
    return f"{type_} '{value}'"
