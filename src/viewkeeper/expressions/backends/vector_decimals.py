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
from viewkeeper.model.int128 import Ints, Wide

_WORD, _DIGITS = 1 << 63, 18
_SUMS = ("Add", "Subtract")


class _Small(NamedTuple):
    """Numbers without their scale, each in a word, and one that none of them exceeds, whatever its sign."""

    value: Any
    most: int


def is_product(expr: Expr) -> bool:
    """Whether `product_of` works it out where values are small: no digit behind the point may be rounded."""
    own = types.decimal_digits(expr.type)
    if own is None:
        return False
    if expr.op in ("column", "literal"):
        return expr.op == "column" or expr.value is not None
    if (expr.op not in _SUMS and expr.op != "Multiply") or len(expr.args) != 2 or not all(map(is_product, expr.args)):
        return False
    scales = [_scale(arg) for arg in expr.args]
    return own[1] == (sum(scales) if expr.op == "Multiply" else max(scales))


def product_of(expr: Expr, rows: pa.Table) -> pa.Array | None:
    """An expression's value for every row; None where one may be too great for a word, or NULL."""
    if not rows.num_rows:
        return pa.array([], types.arrow(expr.type))
    found = _small(expr, rows)
    if found is None:
        return None
    words = np.empty((rows.num_rows, 2), np.int64)
    words[:, 0] = found.value
    words[:, 1] = words[:, 0] >> 63
    return pa.Array.from_buffers(types.arrow(expr.type), rows.num_rows, [None, pa.py_buffer(words)])


def _small(expr: Expr, rows: pa.Table) -> _Small | None:
    if expr.op == "column":
        return _column(one_chunk(rows.column(str(expr.value))))
    if expr.op == "literal":
        number = int(Decimal(expr.value).scaleb(_scale(expr)))
        return _Small(number, abs(number)) if abs(number) < _WORD else None
    left, right = (_small(arg, rows) for arg in expr.args)
    if left is None or right is None:
        return None
    if expr.op in _SUMS:
        left, right = (_lifted(s, _scale(expr) - _scale(a)) for s, a in zip((left, right), expr.args, strict=True))
    most = left.most * right.most if expr.op == "Multiply" else left.most + right.most
    if most >= min(_WORD, 10 ** _precision(expr)):
        return None
    if expr.op == "Multiply":
        return _Small(left.value * right.value, most)
    return _Small(left.value + right.value if expr.op == "Add" else left.value - right.value, most)


def _column(array: pa.Array) -> _Small | None:
    if array.null_count or not pa.types.is_decimal128(array.type):
        return None
    wide = Wide.of(array)
    if array.type.precision > _DIGITS and not wide.is_long.all():
        return None
    value: Ints = wide.low.view(np.int64)
    return _Small(value, max(int(value.max()), -int(value.min())))


def _lifted(given: _Small, digits: int) -> _Small:
    """The same with more digits behind the point. Too great a number is not worked out: whoever adds it sees `most`."""
    most = given.most * 10**digits
    is_worth = 0 < most < _WORD  # zeros are as they are, and 10**digits alone may be too great for a word
    return _Small(given.value * 10**digits if is_worth else given.value, most)


def _scale(expr: Expr) -> int:
    return (types.decimal_digits(expr.type) or (0, 0))[1]


def _precision(expr: Expr) -> int:
    return (types.decimal_digits(expr.type) or (0, 0))[0]
