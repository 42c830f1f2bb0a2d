"""Conditions on columns, without a statement.

A statement costs half a millisecond before its first row; Arrow compares a thousand dates in ten microseconds, and
numpy, which gives a byte a row and not a bit, in one. What they compare as Spark does is here: integers, dates,
decimals and strings (by their bytes) with a constant or a column of the same type, lists of constants, how a string
begins, ends or what it contains, whether something is NULL, and what AND and OR make of these. A comparison with NULL
does not hold, nor does its opposite.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.expressions.backends.vector_values import is_exact, value_of
from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.arrow_buffers import integer, integers, one_chunk

_HOLDS = {
    "EqualTo": (pc.equal, np.equal),
    "LessThan": (pc.less, np.less),
    "LessThanOrEqual": (pc.less_equal, np.less_equal),
    "GreaterThan": (pc.greater, np.greater),
    "GreaterThanOrEqual": (pc.greater_equal, np.greater_equal),
}
_DIFFERS = (pc.not_equal, np.not_equal)
_FEW_VALUES = 3
"""In a list of so many constants each is compared by itself: sooner than they are all looked up."""
_KNOWN = {"IsNull": pc.is_null, "IsNotNull": pc.is_valid}
_WITHIN = {"StartsWith": pc.starts_with, "EndsWith": pc.ends_with, "Contains": pc.match_substring}
_OTHER = "Not"
"""Of what is not equal."""
_JOINED = {"And": np.logical_and, "Or": np.logical_or}

Side = str | Expr
"""A column's name, or what `projecting` works out."""


class Known(NamedTuple):
    """Whether it has a value."""

    side: Side
    op: str


class Constant(NamedTuple):
    """Compared with a constant."""

    side: Side
    op: str
    value: pa.Scalar


class Beside(NamedTuple):
    """Compared with another column."""

    side: Side
    op: str
    other: str


class Listed(NamedTuple):
    """Whether it is one of these constants."""

    side: Side
    values: pa.Array


class Opposite(NamedTuple):
    """What holds where a comparison with constants does not, and what is compared has a value."""

    of: Constant | Listed


class Joined(NamedTuple):
    """Several conditions as AND or OR joins them."""

    op: str
    parts: tuple[Comparison, ...]


Comparison = Known | Constant | Beside | Listed | Opposite | Joined


def comparison(expr: Expr) -> Comparison | None:
    """None if the condition is something else."""
    op, args = expr.op, expr.args
    if op in _JOINED:
        return _joined(op, [comparison(arg) for arg in args])
    if op == "In" and len(args) == 2:
        op = "EqualTo"
    if op == "Not" and args[0].op == "EqualTo":
        args = args[0].args
    elif op == "Not":
        return _opposite(comparison(args[0]))
    elif op not in _HOLDS and op not in _KNOWN and op not in _WITHIN and op != "In":
        return None
    column, *others = args
    if not is_exact(column) or any(other.type != column.type for other in others):
        return None
    side = str(column.value) if column.op == "column" else column
    if op in _KNOWN:
        return Known(side, op)
    if op in _WITHIN and column.type != types.STRING:
        return None
    if [other.op for other in others] == ["column"]:
        known = _is_compared(column.type) and (op in _HOLDS or op == _OTHER)
        return Beside(side, op, str(others[0].value)) if known else None
    values = [_value(other) for other in others]
    if not values or any(value is None for value in values):
        return None
    return Listed(side, pa.array(values, types.arrow(column.type))) if op == "In" else Constant(side, op, values[0])


def _opposite(found: Comparison | None) -> Comparison | None:
    if isinstance(found, Listed) or (isinstance(found, Constant) and found.op != _OTHER):
        return Opposite(found)
    return None


def _joined(op: str, parts: Sequence[Comparison | None]) -> Joined | None:
    known = tuple(part for part in parts if part is not None)
    return Joined(op, known) if len(known) == len(parts) else None


def renamed(found: Comparison, names: Mapping[str, str]) -> Comparison | None:
    """The same of columns that are called otherwise; None if it is of others too, or of what has to be worked out."""
    match found:
        case Joined(op, parts):
            return _joined(op, [renamed(part, names) for part in parts])
        case Opposite(of):
            return _opposite(renamed(of, names))
        case Known(side) | Constant(side) | Listed(side) if isinstance(side, str) and side in names:
            return found._replace(side=names[side])
    return None


def columns_of(found: Comparison) -> frozenset[str]:
    """The columns that a condition reads."""
    match found:
        case Joined(_, parts):
            return frozenset().union(*map(columns_of, parts))
        case Opposite(of):
            return columns_of(of)
    mine = found.side.columns() if isinstance(found.side, Expr) else frozenset({found.side})
    return mine | {found.other} if isinstance(found, Beside) else mine


def spelt(found: Comparison) -> str:
    """The same text of conditions that are the same."""
    match found:
        case Joined(op, parts):
            return f"{op}{[spelt(part) for part in parts]}"
        case Opposite(of):
            return f"not {spelt(of)}"
        case Known(side, op):
            return f"{side} {op}"
        case Beside(side, op, other):
            return f"{side} {op} {other}"
        case Listed(side, values):
            return f"{side} in {_plain(values).to_pylist()!r}"
        case Constant(side, op, value):
            return f"{side} {op} {_plain(value).as_py()!r}"


def _plain(value: Any) -> Any:
    """Dates as numbers: Python has none after 9999."""
    return value.cast(pa.int32()) if value.type == pa.date32() else value


def _is_compared(type_: types.Type) -> bool:
    return bool(types.decimal_digits(type_)) or types.is_integer(type_) or type_ in (types.DATE, types.STRING)


def _value(literal: Expr) -> pa.Scalar | None:
    if literal.op != "literal" or literal.value is None or not _is_compared(literal.type):
        return None
    value = Decimal(literal.value) if types.decimal_digits(literal.type) else literal.value
    return pa.scalar(value, types.arrow(literal.type))


def comparisons(conjuncts: Iterable[Expr]) -> tuple[Comparison, ...] | None:
    """Conditions that must all hold; None if one of them takes a statement."""
    found = [comparison(part) for conjunct in conjuncts for part in _parts(conjunct)]
    known = tuple(c for c in found if c is not None)
    return known if len(known) == len(found) else None


def _parts(condition: Expr) -> Iterator[Expr]:
    if condition.op != "And":
        yield condition
        return
    for arg in condition.args:
        yield from _parts(arg)


def all_hold(conditions: Sequence[Comparison], rows: pa.Table) -> npt.NDArray[np.bool_]:
    """For which rows all of them do."""
    found = np.ones(rows.num_rows, np.bool_)
    for condition in conditions:
        found &= holds(condition, rows)
    return found


def holds(condition: Comparison, rows: pa.Table) -> npt.NDArray[np.bool_]:
    """For which rows."""
    found: npt.NDArray[np.bool_]
    if isinstance(condition, Joined):
        found = _JOINED[condition.op].reduce([holds(part, rows) for part in condition.parts])
        return found
    if isinstance(condition, Opposite):
        found = ~holds(condition.of, rows) & np.asarray(pc.is_valid(_values(condition.of.side, rows)))
        return found
    column = _values(condition.side, rows)
    if isinstance(condition, Listed):
        if len(condition.values) > _FEW_VALUES:
            return np.asarray(pc.is_in(column, value_set=condition.values))
        found = np.logical_or.reduce([_compared("EqualTo", column, each) for each in condition.values])
        return found
    op = condition.op
    if isinstance(condition, Known):
        return np.asarray(_KNOWN[op](column))
    if isinstance(condition, Beside):
        return _compared(op, column, one_chunk(rows.column(condition.other)))
    return (
        _told(_WITHIN[op](column, condition.value.as_py())) if op in _WITHIN else _compared(op, column, condition.value)
    )


def _values(side: Side, rows: pa.Table) -> pa.Array:
    return one_chunk(rows.column(side) if isinstance(side, str) else value_of(side, rows))


def _compared(op: str, column: pa.Array, other: pa.Array | pa.Scalar) -> npt.NDArray[np.bool_]:
    """Where a column and another, or a constant, compare so."""
    by_arrow, by_numpy = _DIFFERS if op == _OTHER else _HOLDS[op]
    mine = integers(column)
    theirs = None if mine is None else integers(other) if isinstance(other, pa.Array) else integer(other)
    if mine is None or theirs is None:
        return _told(by_arrow(column, other))
    found: npt.NDArray[np.bool_] = by_numpy(mine, theirs)
    return found


def _told(found: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.fill_null(found, False) if found.null_count else found)
