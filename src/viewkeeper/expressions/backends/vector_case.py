"""Vectorised CASE, whose conditions (`vector_predicates`) and values (`vector_values`) are all vectorised."""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.expressions.backends import vector_values
from viewkeeper.expressions.backends.vector_predicates import compile_predicate, evaluate_predicate
from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types

_compile_predicate = lru_cache(maxsize=1024)(compile_predicate)


def is_vectorised(expr: Expr) -> bool:
    """Return whether `evaluate_vectorised` supports the expression."""
    if expr.op != "CaseWhen":
        return vector_values.is_vectorised_value(expr)
    values = [*expr.args[1::2], expr.args[-1]]
    if len(expr.args) % 2 == 0 or not all(value.type == expr.type and _is_case_value(value) for value in values):
        return False
    return all(compile_predicate(condition) is not None for condition in expr.args[:-1:2])


def evaluate_vectorised(expr: Expr, rows: pa.Table) -> Any:
    """Return an expression's value for every row. The values of a vectorised CASE cannot fail, so all are evaluated."""
    if expr.op != "CaseWhen":
        return vector_values.evaluate_value(expr, rows)
    result = _evaluate_case_value(expr.args[-1], rows)
    for condition, value in reversed(list(zip(expr.args[:-1:2], expr.args[1::2], strict=True))):
        predicate = _compile_predicate(condition)
        if predicate is not None:
            result = pc.if_else(
                pa.array(evaluate_predicate(predicate, rows)), _evaluate_case_value(value, rows), result
            )
    return result


def _is_case_value(expr: Expr) -> bool:
    if expr.op != "literal":
        return vector_values.is_vectorised_value(expr)
    return expr.value is not None and (types.is_integer(expr.type) or types.decimal_digits(expr.type) is not None)


def _evaluate_case_value(expr: Expr, rows: pa.Table) -> Any:
    if expr.op != "literal":
        return vector_values.evaluate_value(expr, rows)
    number = int(expr.value) if types.is_integer(expr.type) else Decimal(expr.value)
    return pa.scalar(number, types.arrow(expr.type))
