"""Sums, differences and products of small decimals in 64-bit words, also for result types that Arrow does not support.

A price times a discount times a tax has 49 digits by its type. Spark limits the result to 38 digits and checks every
row for overflow; Arrow rejects the operation. The actual values have about twelve digits. The bound of a result follows
from the largest values of the columns. If the bound fits into a word and into the result's type, the words are exact.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.arrow_buffers import one_chunk
from viewkeeper.model.int128 import Int128Array, Ints

_WORD_LIMIT, _WORD_DIGITS = 1 << 63, 18
_ADDITIVE_OPS = ("Add", "Subtract")


class _WordValues(NamedTuple):
    """Unscaled numbers, each in a word, and a bound of their absolute values."""

    value: Any
    bound: int


def is_word_product(expr: Expr) -> bool:
    """Return whether `evaluate_word_product` supports the expression for small values: it must not round any digit."""
    own = types.decimal_digits(expr.type)
    if own is None:
        return False
    if expr.op in ("column", "literal"):
        return expr.op == "column" or expr.value is not None
    if (
        (expr.op not in _ADDITIVE_OPS and expr.op != "Multiply")
        or len(expr.args) != 2
        or not all(map(is_word_product, expr.args))
    ):
        return False
    scales = [_scale(arg) for arg in expr.args]
    return own[1] == (sum(scales) if expr.op == "Multiply" else max(scales))


def evaluate_word_product(expr: Expr, rows: pa.Table) -> pa.Array | None:
    """Return an expression's value for every row; None if a value may be NULL or too large for a word."""
    if not rows.num_rows:
        return pa.array([], types.arrow(expr.type))
    result = _evaluate_words(expr, rows)
    if result is None:
        return None
    words = np.empty((rows.num_rows, 2), np.int64)
    words[:, 0] = result.value
    words[:, 1] = words[:, 0] >> 63
    return pa.Array.from_buffers(types.arrow(expr.type), rows.num_rows, [None, pa.py_buffer(words)])


def _evaluate_words(expr: Expr, rows: pa.Table) -> _WordValues | None:
    if expr.op == "column":
        return _column_words(one_chunk(rows.column(str(expr.value))))
    if expr.op == "literal":
        number = int(Decimal(expr.value).scaleb(_scale(expr)))
        return _WordValues(number, abs(number)) if abs(number) < _WORD_LIMIT else None
    left, right = (_evaluate_words(arg, rows) for arg in expr.args)
    if left is None or right is None:
        return None
    if expr.op in _ADDITIVE_OPS:
        left, right = (_rescale(s, _scale(expr) - _scale(a)) for s, a in zip((left, right), expr.args, strict=True))
    bound = left.bound * right.bound if expr.op == "Multiply" else left.bound + right.bound
    if bound >= min(_WORD_LIMIT, 10 ** _precision(expr)):
        return None
    if expr.op == "Multiply":
        return _WordValues(left.value * right.value, bound)
    return _WordValues(left.value + right.value if expr.op == "Add" else left.value - right.value, bound)


def _column_words(array: pa.Array) -> _WordValues | None:
    if array.null_count or not pa.types.is_decimal128(array.type):
        return None
    values = Int128Array.from_decimals(array)
    if array.type.precision > _WORD_DIGITS and not values.fits_int64.all():
        return None
    value: Ints = values.low.view(np.int64)
    return _WordValues(value, max(int(value.max()), -int(value.min())))


def _rescale(values: _WordValues, digits: int) -> _WordValues:
    """Return the values with `digits` more digits after the point. If the bound exceeds a word, the values are not
    rescaled, because the caller rejects the bound."""
    bound = values.bound * 10**digits
    needs_factor = 0 < bound < _WORD_LIMIT  # zeros stay zeros, and 10**digits alone may be too large for a word
    return _WordValues(values.value * 10**digits if needs_factor else values.value, bound)


def _scale(expr: Expr) -> int:
    return (types.decimal_digits(expr.type) or (0, 0))[1]


def _precision(expr: Expr) -> int:
    return (types.decimal_digits(expr.type) or (0, 0))[0]
