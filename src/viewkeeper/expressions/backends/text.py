"""An expression as text, for people and for golden tests: as one would write it, with as few parentheses as needed."""

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
_STRENGTH = {"or": 1, "and": 2, "not": 3, "+": 5, "-": 5, "&": 5, "|": 5, "^": 5, "*": 6, "/": 6, "%": 6, "div": 6}
_COMPARE = 4
_ATOM = 9


def expr_text(expr: Expr) -> str:
    return _expr(expr)[0]


def _expr(expr: Expr) -> tuple[str, int]:
    """The text, and how strongly it holds together."""
    args = expr.args
    match expr.op:
        case "column":
            return str(expr.value), _ATOM
        case "literal":
            return _literal(expr), _ATOM
        case "Cast":
            mode = "" if expr.value in (("ANSI",), None) else f"{expr.value[0].lower()}_"
            return f"{mode}cast({expr_text(args[0])} as {expr.type})", _ATOM
        case "IsNull":
            return f"{_held(args[0], _COMPARE + 1)} is null", _COMPARE
        case "IsNotNull":
            return f"{_held(args[0], _COMPARE + 1)} is not null", _COMPARE
        case "Not":
            return f"not {_held(args[0], 4)}", 3
        case "In":
            return f"{_held(args[0], _COMPARE + 1)} in ({', '.join(map(expr_text, args[1:]))})", _COMPARE
        case "Like" if expr.value in (("\\",), None):
            return f"{_held(args[0], _COMPARE + 1)} like {_held(args[1], _COMPARE + 1)}", _COMPARE
        case "CaseWhen":
            return _case(args), _ATOM
        case op if op in _INFIX and expr.value in (("ANSI",), None):
            sign = _INFIX[op]
            strength = _STRENGTH.get(sign, _COMPARE)
            left = _held(args[0], strength if sign in _STRENGTH else strength + 1)
            return f"{left} {sign} {_held(args[1], strength + (sign not in ('and', 'or')))}", strength
    return f"{function_text(expr.op)}({', '.join([*map(expr_text, args), *_parameters(expr)])})", _ATOM


def _held(expr: Expr, least: int) -> str:
    text, strength = _expr(expr)
    return text if strength >= least else f"({text})"


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
    """`DateAdd` → `date_add`."""
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
