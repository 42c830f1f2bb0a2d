"""Sargable terms: the parts of a condition that are exactly ranges of one column.

    a = 3     a IN (3, 5)     a >= 3     a < 5     a IS NULL     a IS NOT NULL     a LIKE 'x%'     a BETWEEN 3 AND 5

The order of key bytes is Spark's order of values (NaN is the greatest, −0.0 is 0.0), so such a part is a range of
bytes. Where it is not part of the access path, it is tested as such a range. Spark compares in the wider of two types;
this module converts the constant to the column's type: `small = 70000` is true for no row, and `price < 1.005` is
`price <= 1.00` where price has two digits after the point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from viewkeeper.errors import UnknownName
from viewkeeper.expressions.rules.logic import operands
from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.encoding.row_fields import to_decimal
from viewkeeper.model.intake.scalars import scalar_reader
from viewkeeper.model.schema import Column, Table
from viewkeeper.model.types import Family, Type

EQUAL, IS_NULL, NOT_NULL, PREFIX = "in", "null", "not null", "prefix"
"""Operators beside the four comparisons. `in` has any number of values; None among several is NULL. An `in` without
values is never true."""


@dataclass(frozen=True)
class SargableTerm:
    """`column op values`; the values have the form that `model.scalars` reads."""

    column: str
    type: Type
    op: str
    values: tuple[Any, ...] = ()

    @property
    def is_point(self) -> bool:
        return self.op in (EQUAL, IS_NULL)

    def __str__(self) -> str:
        values = [_value_text(self.type, v) for v in self.values]
        if self.op == EQUAL:
            return f"{self.column} = {values[0]}" if len(values) == 1 else f"{self.column} in ({', '.join(values)})"
        if self.op == PREFIX:
            return f"{self.column} begins with {values[0]}"
        return f"{self.column} is {self.op}" if not values else f"{self.column} {self.op} {values[0]}"


@dataclass(frozen=True)
class RequestPredicate:
    """A condition: the conjunction of its `terms` and its `residual` expressions."""

    terms: tuple[SargableTerm, ...] = ()
    residual: tuple[Expr, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.terms or self.residual)

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(t.column for t in self.terms).union(*(e.columns() for e in self.residual))


def predicate_from_values(table: Table, column_values: Mapping[str, Any]) -> RequestPredicate:
    """The predicate for columns and their values: one, None for NULL, or several in a list, tuple or set.

    Several values select the rows of each. None among them selects NULL, unlike SQL's IN, which never does.
    """
    columns = {c.name.lower(): c for c in table.columns}
    terms = []
    for name, value in column_values.items():
        column = columns.get(str(name).lower())
        if column is None:
            raise UnknownName(
                f"{table.name} has no column {name!r}.", hint=f"It has: {', '.join(c.name for c in table.columns)}."
            )
        read = scalar_reader(table.name, column.name, column.type)
        items = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
        values = tuple(dict.fromkeys(None if v is None else read(v) for v in items))
        terms.append(SargableTerm(column.name, column.type, *((IS_NULL,) if values == (None,) else (EQUAL, values))))
    return RequestPredicate(tuple(terms))


def predicate_from_condition(condition: Expr) -> RequestPredicate:
    """The predicate of a condition over the table's column names. A part that no term expresses becomes residual."""
    terms: list[SargableTerm] = []
    residual: list[Expr] = []
    for part in operands(condition) if condition.op == "And" else [condition]:
        term, exact = _read_term(part)
        if term is not None:
            terms.append(term)
        if not exact:
            residual.append(part)
    return RequestPredicate(tuple(terms), tuple(residual))


def comparison_term(column: Column, op: str, value: Any) -> SargableTerm | None:
    """The term that compares a column with a user's value; None if the column's type has no such value."""
    read = scalar_reader("", column.name, column.type)
    try:
        return SargableTerm(column.name, column.type, op, (read(value),))
    except Exception:
        return None


# -- from expressions --------------------------------------------------------------------------------------------------

_COMPARISONS = {"LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">", "GreaterThanOrEqual": ">="}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _read_term(expr: Expr) -> tuple[SargableTerm | None, bool]:
    """A term that follows from a part of the condition, and whether the two are equivalent."""
    if expr.op in ("IsNull", "IsNotNull") and expr.args[0].op == "column":
        return SargableTerm(expr.args[0].value, expr.args[0].type, IS_NULL if expr.op == "IsNull" else NOT_NULL), True
    if expr.op == "column":
        return SargableTerm(expr.value, expr.type, EQUAL, (True,)), True
    if expr.op == "Not" and expr.args[0].op == "column":
        return SargableTerm(expr.args[0].value, expr.args[0].type, EQUAL, (False,)), True
    if expr.op == "Or":
        found = _combine_points(expr)
        return found, found is not None
    if expr.op == "Like":
        return _like_term(expr)
    if expr.op == "StartsWith" and expr.args[0].op == "column" and expr.args[1].op == "literal":
        return SargableTerm(expr.args[0].value, types.STRING, PREFIX, (expr.args[1].value,)), True
    found = _compare_to_constant(expr)
    return found, found is not None


def _combine_points(expr: Expr) -> SargableTerm | None:
    """The term of a disjunction of points: `a = 1 OR a = 2` is `a IN (1, 2)`."""
    found = [_compare_to_constant(p) for p in operands(expr)]
    first = found[0]
    if first is None or any(t is None or t.op != EQUAL or t.column != first.column for t in found):
        return None
    return SargableTerm(first.column, first.type, EQUAL, tuple(v for t in found if t is not None for v in t.values))


def _like_term(expr: Expr) -> tuple[SargableTerm | None, bool]:
    column, pattern = expr.args
    if column.op != "column" or pattern.op != "literal" or "\\" in str(pattern.value):
        return None, False
    text = str(pattern.value)
    end = min((text.index(w) for w in "%_" if w in text), default=len(text))
    if end == len(text):
        return SargableTerm(column.value, column.type, EQUAL, (text,)), True
    if not end:
        return None, False
    return SargableTerm(column.value, column.type, PREFIX, (text[:end],)), text[end:] == "%"


def _compare_to_constant(expr: Expr) -> SargableTerm | None:
    if expr.op == "In":
        column, constants = _bare_column(expr.args[0]), [_constant_value(a) for a in expr.args[1:]]
        if column is None or any(c is None for c in constants):
            return None
        ends = [_bound_in_type(column.type, c[0], "=") for c in constants if c is not None]
        if any(e is None for e in ends):
            return None
        values = tuple(v for e in ends if e is not None for v in e[1])
        return SargableTerm(column.value, column.type, EQUAL, values)
    if expr.op not in _COMPARISONS and expr.op != "EqualTo":
        return None
    left, right = expr.args
    column, constant, op = _bare_column(left), _constant_value(right), _COMPARISONS.get(expr.op, "=")
    if column is None or constant is None:
        column, constant, op = _bare_column(right), _constant_value(left), _MIRRORED.get(op, "=")
    if column is None or constant is None:
        return None
    found = _bound_in_type(column.type, constant[0], op)
    return None if found is None else SargableTerm(column.value, column.type, *found)


def _bare_column(expr: Expr) -> Expr | None:
    """The column of an expression that is a column, or a cast of one to a wider type that preserves equality and
    order; None otherwise."""
    if expr.op == "column":
        return expr
    if expr.op != "Cast" or expr.args[0].op != "column":
        return None
    inner = expr.args[0]
    return inner if _is_embeddable(inner.type, expr.type) else None


def _is_embeddable(narrow: Type, wide: Type) -> bool:
    narrow_digits, wide_digits = _digits(narrow), _digits(wide)
    if narrow_digits is None:
        return False
    if wide_digits is not None:
        return (
            wide_digits[1] >= narrow_digits[1]
            and wide_digits[0] - wide_digits[1] >= narrow_digits[0] - narrow_digits[1]
        )
    return wide == types.DOUBLE and narrow in (types.TINYINT, types.SMALLINT, types.INT)


_INTEGERS = {types.TINYINT: 3, types.SMALLINT: 5, types.INT: 10, types.BIGINT: 19}


def _digits(type_: Type) -> tuple[int, int] | None:
    return (_INTEGERS[type_], 0) if type_ in _INTEGERS else types.decimal_digits(type_)


def _constant_value(expr: Expr) -> tuple[Any] | None:
    """The value of a constant as a 1-tuple: an exact number, or the plain value of its type; None if unknown."""
    if expr.op == "Cast" and expr.args[0].op == "literal" and _digits(expr.args[0].type) is not None:
        inner = _constant_value(expr.args[0])
        if inner is None:
            return None
        if expr.type == types.DOUBLE:
            return (float(inner[0]),)
        wide = _digits(expr.type)
        return inner if wide is not None and _is_embeddable(expr.args[0].type, expr.type) else None
    if expr.op != "literal" or expr.value is None:
        return None
    if _digits(expr.type) is not None:
        return (Fraction(Decimal(expr.value)) if isinstance(expr.value, str) else Fraction(expr.value),)
    if types.is_float(expr.type):
        return (float(expr.value),)
    return (bytes.fromhex(expr.value) if expr.type == types.BINARY else expr.value,)


def _bound_in_type(type_: Type, value: Any, op: str) -> tuple[str, tuple[Any, ...]] | None:
    """The comparison in the column's own type, as an operator and its values."""
    digits = _digits(type_)
    if digits is None:
        if types.is_float(type_) and not isinstance(value, float):
            return None
        return (EQUAL if op == "=" else op), (value,)
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        value = Fraction(value)
    if not isinstance(value, Fraction):
        return None
    scaled = value * 10 ** digits[1]
    below = math.floor(scaled)
    limit = 1 << types.bit_width(type_) - 1 if types.is_integer(type_) else 10 ** digits[0]
    if not -limit < below < limit - 1:
        return None  # near or beyond the type's limits: the condition stays residual
    if scaled == below:
        return (EQUAL if op == "=" else op), (below,)
    if op == "=":
        return EQUAL, ()
    return ("<=", (below,)) if op in ("<", "<=") else (">=", (below + 1,))


# -- as text -----------------------------------------------------------------------------------------------------------

_VALUE_FORMATS: Mapping[Family, Callable[[Any], str]] = {
    Family.DATE: lambda v: str(date(1970, 1, 1) + timedelta(days=v)),
    Family.TIME: lambda v: str(datetime(1970, 1, 1) + timedelta(microseconds=v)),
}


def _value_text(type_: Type, value: Any) -> str:
    if value is None:
        return "NULL"
    try:
        if type_.family in _VALUE_FORMATS:
            return _VALUE_FORMATS[type_.family](value)
    except OverflowError:
        return str(value)
    if digits := types.decimal_digits(type_):
        return str(to_decimal(value, digits[1]))
    return repr(value)


def describe_terms(terms: Iterable[SargableTerm], residual: Sequence[Expr] = ()) -> str:
    from viewkeeper.expressions.backends.text import expr_text

    return ", ".join([*map(str, terms), *map(expr_text, residual)])
