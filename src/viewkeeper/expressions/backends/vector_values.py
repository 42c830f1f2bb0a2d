"""Columns that Arrow works out as Spark does: picked ones, the years of dates, and sums, differences and products of
decimals, which may be made longer.

Spark and Arrow give the result of such an operation the same type, digit for digit, as long as that has no more than 38
digits: then no value can overflow or be rounded, and a statement, which costs half a millisecond before its first row,
says nothing else. What is not here, a statement works out.
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
"""The calendar repeats itself after so many. Arrow tells years of 16 bits; dates that were worked out may be later."""

Digits = tuple[int, int]


def is_vectorised_value(expr: Expr) -> bool:
    """Whether `value_of` works it out."""
    return expr.op == "column" or _is_year(expr) or (expr.op != "literal" and _arrow_digits(expr) is not None)


def evaluate_value(expr: Expr, rows: pa.Table) -> Any:
    """An expression's value for every row; a literal's alone is a scalar."""
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
    times, days = np.divmod(np.asarray(dates.cast(pa.int32()).fill_null(0)), np.int32(_CALENDAR_CYCLE_DAYS))
    years = np.asarray(pc.year(pa.array(days).cast(pa.date32()))) + _CALENDAR_CYCLE_YEARS * times
    return pa.array(years.astype(np.int32), mask=np.asarray(dates.is_null()))


def _is_year(expr: Expr) -> bool:
    if expr.op != "Year" or expr.type != types.INT:
        return False
    return expr.args[0].op == "column" and expr.args[0].type == types.DATE


def _arrow_digits(expr: Expr) -> Digits | None:
    """Precision and scale of what Arrow gives, if that is the expression's own type."""
    own = types.decimal_digits(expr.type)
    if own is None or expr.op == "column":
        return own
    if expr.op == "literal":
        return own if expr.value is not None else None
    if expr.op == "Cast":
        given = _arrow_digits(expr.args[0]) if expr.args[0].op != "literal" else None
        fits = given is not None and own[1] >= given[1] and own[0] - own[1] >= given[0] - given[1]
        return own if fits else None
    if expr.op not in _OPERATIONS or len(expr.args) != 2:
        return None
    left, right = map(_arrow_digits, expr.args)
    if left is None or right is None or all(arg.op == "literal" for arg in expr.args):
        return None
    if expr.op == "Multiply":
        found = left[0] + right[0] + 1, left[1] + right[1]
    else:
        scale = max(left[1], right[1])
        found = max(left[0] - left[1], right[0] - right[1]) + scale + 1, scale
    return found if found == own and found[0] <= _MAX_DIGITS else None
