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

from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.chunks import integer, integers, one_chunk
from viewkeeper.operators.projecting import is_exact, value_of

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
_OPPOSITE = "opposite"
"""Of what else is not."""
_JOINED = {"And": np.logical_and, "Or": np.logical_or}


class Comparison(NamedTuple):
    """A column, or what `projecting` works out, how it is compared, and with what: a constant, several, or a column (by
    its name); with nothing: whether it has a value. Of no column: several conditions, joined."""

    column: str | Expr
    op: str
    value: Any


def comparison(expr: Expr) -> Comparison | None:
    """None if the condition is something else."""
    op, args = expr.op, expr.args
    if op in _JOINED:
        parts = [comparison(arg) for arg in args]
        known = tuple(part for part in parts if part is not None)
        return Comparison("", op, known) if len(known) == len(parts) else None
    if op == "Not" and args[0].op == "EqualTo":
        args = args[0].args
    elif op == "Not":
        return _opposite(comparison(args[0]))
    elif op not in _HOLDS and op not in _KNOWN and op not in _WITHIN and op != "In":
        return None
    column, *others = args
    if not is_exact(column) or any(other.type != column.type for other in others):
        return None
    name = str(column.value) if column.op == "column" else column
    if op in _KNOWN:
        return Comparison(name, op, None)
    if op in _WITHIN and column.type != types.STRING:
        return None
    if [other.op for other in others] == ["column"]:
        return Comparison(name, op, str(others[0].value)) if _is_compared(column.type) and op not in _WITHIN else None
    values = [_value(other) for other in others]
    if not values or any(value is None for value in values):
        return None
    return Comparison(name, op, pa.array(values, types.arrow(column.type)) if op == "In" else values[0])


def _opposite(found: Comparison | None) -> Comparison | None:
    """What holds where a comparison of a column with constants does not, and the column has a value."""
    if found is None or found.op not in (*_HOLDS, *_WITHIN, "In") or isinstance(found.value, str):
        return None
    return Comparison(found.column, _OPPOSITE, found)


def renamed(found: Comparison, names: Mapping[str, str]) -> Comparison | None:
    """The same of columns that are called otherwise; None if it is of others too, or of what has to be worked out."""
    name, op, value = found
    if op in _JOINED:
        parts = [renamed(part, names) for part in value]
        return None if None in parts else Comparison("", op, tuple(parts))
    if not isinstance(name, str) or name not in names or isinstance(value, str):
        return None
    return Comparison(names[name], op, renamed(value, names) if op == _OPPOSITE else value)


def columns_of(found: Comparison) -> frozenset[str]:
    """The columns that a condition of constants reads."""
    if found.op in _JOINED:
        return frozenset().union(*map(columns_of, found.value))
    return found.column.columns() if isinstance(found.column, Expr) else frozenset({found.column})


def spelt(found: Comparison) -> str:
    """The same text of conditions of constants that are the same."""
    column, op, value = found
    if op in _JOINED:
        return f"{op}{[spelt(part) for part in value]}"
    if op == _OPPOSITE:
        return f"{op} {spelt(value)}"
    if value is None:
        return f"{column} {op}"
    plain = value.cast(pa.int32()) if value.type == pa.date32() else value  # Python has no dates after 9999
    return f"{column} {op} {(plain.to_pylist() if isinstance(plain, pa.Array) else plain.as_py())!r}"


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
    name, op, value = condition
    if op in _JOINED:
        together: npt.NDArray[np.bool_] = _JOINED[op].reduce([holds(part, rows) for part in value])
        return together
    column: Any = one_chunk(rows.column(name) if isinstance(name, str) else value_of(name, rows))
    if op in _KNOWN:
        return np.asarray(_KNOWN[op](column))
    if op == _OPPOSITE:
        opposite: npt.NDArray[np.bool_] = ~holds(value, rows) & np.asarray(pc.is_valid(column))
        return opposite
    if op == "In" and len(value) > _FEW_VALUES:
        return np.asarray(pc.is_in(column, value_set=value))
    if op == "In":
        listed: npt.NDArray[np.bool_] = np.logical_or.reduce([_compared("EqualTo", column, each) for each in value])
        return listed
    if op in _WITHIN:
        return _told(_WITHIN[op](column, value.as_py()))
    return _compared(op, column, one_chunk(rows.column(value)) if isinstance(value, str) else value)


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
