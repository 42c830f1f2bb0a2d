"""The common type of several expressions: Spark's silent conversions, as far as they lose nothing.

    integers            the widest of them
    numbers             a decimal that holds both, or a double if one is a double
    a text constant     the date or time type of the other side, if the text is written out in full

Any other combination is `UnprovenQuery`.
"""

from __future__ import annotations

import re
from datetime import datetime

from viewkeeper.model import types
from viewkeeper.model.types import Family, Type
from viewkeeper.plan.logical.nodes import Expr

INTEGERS = types.INTEGERS
_DIGITS = {types.TINYINT: 3, types.SMALLINT: 5, types.INT: 10, types.BIGINT: 20}
_DATE_FAMILIES = (Family.DATE, Family.TIME)
MAX_DECIMAL_DIGITS = 38
_DATE_PATTERN = re.compile(r"\d{4}-\d\d-\d\d")


class UnprovenQuery(Exception):
    """There is no proof that DuckDB gives Spark's result; the text says why."""


class UnparsableQuery(UnprovenQuery):
    """DuckDB's parser rejects the text: it is wrong in any SQL, or Spark's own syntax."""


class UnknownColumn(UnprovenQuery):
    """No column has this name."""


def cast(value: Expr, type_: Type) -> Expr:
    if value.type == type_:
        return value
    if value.op == "literal" and value.type in INTEGERS and type_ in INTEGERS[INTEGERS.index(value.type) :]:
        return Expr("literal", type_, value=value.value, nullable=False)
    if value.op == "literal" and value.type == types.STRING and type_.family in _DATE_FAMILIES:
        return _date_literal(str(value.value), type_)
    return Expr("Cast", type_, (value,), ("ANSI",), value.nullable)


def _date_literal(text: str, type_: Type) -> Expr:
    """A date or time constant, if the text is written out in full, so that its value is unambiguous."""
    try:
        moment = datetime.strptime(text, "%Y-%m-%d" if _DATE_PATTERN.fullmatch(text) else "%Y-%m-%d %H:%M:%S")
    except ValueError:
        raise UnprovenQuery(f"the {type_} {text!r}") from None
    seconds = int((moment - datetime(1970, 1, 1)).total_seconds())
    value = seconds // 86_400 if type_ == types.DATE else seconds * 1_000_000
    if type_ == types.DATE and not _DATE_PATTERN.fullmatch(text):
        raise UnprovenQuery(f"the date {text!r}")
    return Expr("literal", type_, value=value, nullable=False)


def coerce_to_common(*exprs: Expr, read_texts_as_dates: bool = True) -> tuple[Expr, ...]:
    """Cast the expressions to the one type in which Spark compares them or chooses between them.

    `read_texts_as_dates`: whether a text constant beside a date or time is read as one.
    """
    type_, read_texts_as_dates = (
        exprs[0].type,
        read_texts_as_dates and all(e.op == "literal" for e in exprs if e.type == types.STRING),
    )
    for expr in exprs[1:]:
        type_ = _common_type(type_, expr.type, read_texts_as_dates)
    return tuple(cast(e, type_) for e in exprs)


def _common_type(left: Type, right: Type, read_texts_as_dates: bool) -> Type:
    if left == right:
        return left
    if left in INTEGERS and right in INTEGERS:
        return max(left, right, key=INTEGERS.index)
    for text, dated in ((left, right), (right, left)):
        if text == types.STRING and dated.family in _DATE_FAMILIES and read_texts_as_dates:
            return dated
        if text == types.TIMESTAMP and dated == types.TIMESTAMP_NTZ:
            return types.TIMESTAMP
        if text == types.DOUBLE and (dated in INTEGERS or types.decimal_digits(dated)):
            return types.DOUBLE
    a, b = _decimal_digits(left), _decimal_digits(right)
    if a is None or b is None:
        raise UnprovenQuery(f"{left} with {right}")
    scale = max(a[1], b[1])
    precision = scale + max(a[0] - a[1], b[0] - b[1])
    if precision > MAX_DECIMAL_DIGITS:
        raise UnprovenQuery(f"{left} with {right}")
    return types.decimal(precision, scale)


def _decimal_digits(type_: Type) -> tuple[int, int] | None:
    return (_DIGITS[type_], 0) if type_ in _DIGITS else types.decimal_digits(type_)


def cast_to_decimal(number: Expr) -> Expr:
    """Cast an integer beside a decimal to a decimal: a constant has its own digits, a column those of its type."""
    if number.type not in INTEGERS:
        return number
    digits = len(str(abs(number.value))) if number.op == "literal" else _DIGITS[number.type]
    return cast(number, types.decimal(digits, 0))


def bounded_decimal(precision: int, scale: int) -> Type:
    """The decimal type with these digits; if there are too many, fewer digits after the point, down to six."""
    if precision > MAX_DECIMAL_DIGITS:
        scale = max(MAX_DECIMAL_DIGITS - (precision - scale), min(scale, 6))
        precision = MAX_DECIMAL_DIGITS
    return types.decimal(precision, scale)
