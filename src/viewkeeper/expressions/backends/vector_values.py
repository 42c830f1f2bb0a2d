"""Vectorised values with Spark's results: columns, years of dates, and sums, differences, products and widening casts
of decimals.

Spark and Arrow give the result of such an operation the same type as long as it has at most 38 digits. Then no value
can overflow or be rounded, and Arrow computes the same values as a DuckDB statement, which costs half a millisecond
before its first row. All other expressions are evaluated by a statement.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.arrow_buffers import one_chunk

_OPERATIONS = {"Add": pc.add, "Subtract": pc.subtract, "Multiply": pc.multiply}
_MAX_DIGITS = 38
_CALENDAR_CYCLE_YEARS, _CALENDAR_CYCLE_DAYS = 400, 146_097
"""The calendar repeats with this period. Arrow's years have 16 bits, but computed dates may be later."""

Digits = tuple[int, int]


def is_vectorised_value(expr: Expr) -> bool:
    """Return whether `evaluate_value` supports the expression."""
    return expr.op == "column" or _is_year(expr) or (expr.op != "literal" and _arrow_digits(expr) is not None)


def evaluate_value(expr: Expr, rows: pa.Table) -> Any:
    """Return an expression's value for every row; for a literal, a scalar."""
    if expr.op == "column":
        return rows.column(str(expr.value))
    if expr.op == "literal":
        return pa.scalar(Decimal(expr.value), types.arrow(expr.type))
    if expr.op == "Cast":
        return evaluate_value(expr.args[0], rows).cast(types.arrow(expr.type))
    if _is_year(expr):
        return _years_of_dates(one_chunk(evaluate_value(expr.args[0], rows)))
    return _OPERATIONS[expr.op](*(evaluate_value(arg, rows) for arg in expr.args))


def _years_of_dates(dates: pa.Array) -> pa.Array:
    cycles, days = np.divmod(np.asarray(dates.cast(pa.int32()).fill_null(0)), np.int32(_CALENDAR_CYCLE_DAYS))
    years = np.asarray(pc.year(pa.array(days).cast(pa.date32()))) + _CALENDAR_CYCLE_YEARS * cycles
    return pa.array(years.astype(np.int32), mask=np.asarray(dates.is_null()))


def _is_year(expr: Expr) -> bool:
    if expr.op != "Year" or expr.type != types.INT:
        return False
    return expr.args[0].op == "column" and expr.args[0].type == types.DATE


def _arrow_digits(expr: Expr) -> Digits | None:
    """Return precision and scale of Arrow's result if they are the expression's own, else None."""
    own = types.decimal_digits(expr.type)
    if own is None or expr.op == "column":
        return own
    if expr.op == "literal":
        return own if expr.value is not None else None
    if expr.op == "Cast":
        source = _arrow_digits(expr.args[0]) if expr.args[0].op != "literal" else None
        fits = source is not None and own[1] >= source[1] and own[0] - own[1] >= source[0] - source[1]
        return own if fits else None
    if expr.op not in _OPERATIONS or len(expr.args) != 2:
        return None
    left, right = map(_arrow_digits, expr.args)
    if left is None or right is None or all(arg.op == "literal" for arg in expr.args):
        return None
    if expr.op == "Multiply":
        result = left[0] + right[0] + 1, left[1] + right[1]
    else:
        scale = max(left[1], right[1])
        result = max(left[0] - left[1], right[0] - right[1]) + scale + 1, scale
    return result if result == own and result[0] <= _MAX_DIGITS else None
