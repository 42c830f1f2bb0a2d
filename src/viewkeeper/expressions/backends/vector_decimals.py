"""Sums, differences and products of decimals in words of 64 bits: for types that Arrow has not, and small values.

A price times a discount times a tax has 49 digits by its type, so Spark gives it 38 and looks for an overflow in every
row; Arrow refuses it. The values have twelve digits. How great a result can be follows from how great the columns'
values are at hand: as long as that fits a word and the result's type, words say exactly what a statement says.
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
    """Numbers without their scale, each in a word, and one that none of them exceeds, whatever its sign."""

    value: Any
    bound: int


def is_word_product(expr: Expr) -> bool:
    """Whether `product_of` works it out where values are small: no digit behind the point may be rounded."""
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
    """An expression's value for every row; None where one may be too great for a word, or NULL."""
    if not rows.num_rows:
        return pa.array([], types.arrow(expr.type))
    found = _evaluate_words(expr, rows)
    if found is None:
        return None
    words = np.empty((rows.num_rows, 2), np.int64)
    words[:, 0] = found.value
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
    most = left.bound * right.bound if expr.op == "Multiply" else left.bound + right.bound
    if most >= min(_WORD_LIMIT, 10 ** _precision(expr)):
        return None
    if expr.op == "Multiply":
        return _WordValues(left.value * right.value, most)
    return _WordValues(left.value + right.value if expr.op == "Add" else left.value - right.value, most)


def _column_words(array: pa.Array) -> _WordValues | None:
    if array.null_count or not pa.types.is_decimal128(array.type):
        return None
    wide = Int128Array.from_decimals(array)
    if array.type.precision > _WORD_DIGITS and not wide.fits_int64.all():
        return None
    value: Ints = wide.low.view(np.int64)
    return _WordValues(value, max(int(value.max()), -int(value.min())))


def _rescale(values: _WordValues, digits: int) -> _WordValues:
    """The same with more digits behind the point. Too great a number is not worked out: whoever adds it sees `most`."""
    most = values.bound * 10**digits
    is_worth = 0 < most < _WORD_LIMIT  # zeros are as they are, and 10**digits alone may be too great for a word
    return _WordValues(values.value * 10**digits if is_worth else values.value, most)


def _scale(expr: Expr) -> int:
    return (types.decimal_digits(expr.type) or (0, 0))[1]


def _precision(expr: Expr) -> int:
    return (types.decimal_digits(expr.type) or (0, 0))[0]
