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

from viewkeeper.expressions.backends.vector_values import evaluate_value, is_vectorised_value
from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.arrow_buffers import integer_value, integer_view, one_chunk

_COMPARISON_FUNCTIONS = {
    "EqualTo": (pc.equal, np.equal),
    "LessThan": (pc.less, np.less),
    "LessThanOrEqual": (pc.less_equal, np.less_equal),
    "GreaterThan": (pc.greater, np.greater),
    "GreaterThanOrEqual": (pc.greater_equal, np.greater_equal),
}
_NOT_EQUAL_FUNCTIONS = (pc.not_equal, np.not_equal)
_MAX_INLINE_VALUES = 3
"""In a list of so many constants each is compared by itself: sooner than they are all looked up."""
_NULL_TESTS = {"IsNull": pc.is_null, "IsNotNull": pc.is_valid}
_STRING_TESTS = {"StartsWith": pc.starts_with, "EndsWith": pc.ends_with, "Contains": pc.match_substring}
_NOT_EQUAL = "Not"
"""Of what is not equal."""
_CONNECTIVES = {"And": np.logical_and, "Or": np.logical_or}

Operand = str | Expr
"""A column's name, or what `projecting` works out."""


class NullTest(NamedTuple):
    """Whether it has a value."""

    operand: Operand
    op: str


class ConstantComparison(NamedTuple):
    """Compared with a constant."""

    operand: Operand
    op: str
    value: pa.Scalar


class ColumnComparison(NamedTuple):
    """Compared with another column."""

    operand: Operand
    op: str
    other_column: str


class InList(NamedTuple):
    """Whether it is one of these constants."""

    operand: Operand
    values: pa.Array


class Negation(NamedTuple):
    """What holds where a comparison with constants does not, and what is compared has a value."""

    predicate: ConstantComparison | InList


class Connective(NamedTuple):
    """Several conditions as AND or OR joins them."""

    op: str
    parts: tuple[VectorPredicate, ...]


VectorPredicate = NullTest | ConstantComparison | ColumnComparison | InList | Negation | Connective


def compile_predicate(expr: Expr) -> VectorPredicate | None:
    """None if the condition is something else."""
    op, args = expr.op, expr.args
    if op in _CONNECTIVES:
        return _combine(op, [compile_predicate(arg) for arg in args])
    if op == "In" and len(args) == 2:
        op = "EqualTo"
    if op == "Not" and args[0].op == "EqualTo":
        args = args[0].args
    elif op == "Not":
        return _negate(compile_predicate(args[0]))
    elif op not in _COMPARISON_FUNCTIONS and op not in _NULL_TESTS and op not in _STRING_TESTS and op != "In":
        return None
    column, *others = args
    if not is_vectorised_value(column) or any(other.type != column.type for other in others):
        return None
    side = str(column.value) if column.op == "column" else column
    if op in _NULL_TESTS:
        return NullTest(side, op)
    if op in _STRING_TESTS and column.type != types.STRING:
        return None
    if [other.op for other in others] == ["column"]:
        known = _is_comparable(column.type) and (op in _COMPARISON_FUNCTIONS or op == _NOT_EQUAL)
        return ColumnComparison(side, op, str(others[0].value)) if known else None
    values = [_literal_scalar(other) for other in others]
    if not values or any(value is None for value in values):
        return None
    return (
        InList(side, pa.array(values, types.arrow(column.type)))
        if op == "In"
        else ConstantComparison(side, op, values[0])
    )


def _negate(predicate: VectorPredicate | None) -> VectorPredicate | None:
    if isinstance(predicate, InList) or (isinstance(predicate, ConstantComparison) and predicate.op != _NOT_EQUAL):
        return Negation(predicate)
    return None


def _combine(op: str, parts: Sequence[VectorPredicate | None]) -> Connective | None:
    known = tuple(part for part in parts if part is not None)
    return Connective(op, known) if len(known) == len(parts) else None


def rename_predicate(predicate: VectorPredicate, names: Mapping[str, str]) -> VectorPredicate | None:
    """The same of columns that are called otherwise; None if it is of others too, or of what has to be worked out."""
    match predicate:
        case Connective(op, parts):
            return _combine(op, [rename_predicate(part, names) for part in parts])
        case Negation(of):
            return _negate(rename_predicate(of, names))
        case NullTest(side) | ConstantComparison(side) | InList(side) if isinstance(side, str) and side in names:
            return predicate._replace(operand=names[side])
    return None


def predicate_columns(predicate: VectorPredicate) -> frozenset[str]:
    """The columns that a condition reads."""
    match predicate:
        case Connective(_, parts):
            return frozenset().union(*map(predicate_columns, parts))
        case Negation(of):
            return predicate_columns(of)
    mine = predicate.operand.columns() if isinstance(predicate.operand, Expr) else frozenset({predicate.operand})
    return mine | {predicate.other_column} if isinstance(predicate, ColumnComparison) else mine


def predicate_key(predicate: VectorPredicate) -> str:
    """The same text of conditions that are the same."""
    match predicate:
        case Connective(op, parts):
            return f"{op}{[predicate_key(part) for part in parts]}"
        case Negation(of):
            return f"not {predicate_key(of)}"
        case NullTest(side, op):
            return f"{side} {op}"
        case ColumnComparison(side, op, other):
            return f"{side} {op} {other}"
        case InList(side, values):
            return f"{side} in {_dates_as_integers(values).to_pylist()!r}"
        case ConstantComparison(side, op, value):
            return f"{side} {op} {_dates_as_integers(value).as_py()!r}"


def _dates_as_integers(value: Any) -> Any:
    """Dates as numbers: Python has none after 9999."""
    return value.cast(pa.int32()) if value.type == pa.date32() else value


def _is_comparable(type_: types.Type) -> bool:
    return bool(types.decimal_digits(type_)) or types.is_integer(type_) or type_ in (types.DATE, types.STRING)


def _literal_scalar(literal: Expr) -> pa.Scalar | None:
    if literal.op != "literal" or literal.value is None or not _is_comparable(literal.type):
        return None
    value = Decimal(literal.value) if types.decimal_digits(literal.type) else literal.value
    return pa.scalar(value, types.arrow(literal.type))


def compile_predicates(conjuncts: Iterable[Expr]) -> tuple[VectorPredicate, ...] | None:
    """Conditions that must all hold; None if one of them takes a statement."""
    found = [compile_predicate(part) for conjunct in conjuncts for part in _conjuncts(conjunct)]
    known = tuple(c for c in found if c is not None)
    return known if len(known) == len(found) else None


def _conjuncts(condition: Expr) -> Iterator[Expr]:
    if condition.op != "And":
        yield condition
        return
    for arg in condition.args:
        yield from _conjuncts(arg)


def evaluate_all(conditions: Sequence[VectorPredicate], rows: pa.Table) -> npt.NDArray[np.bool_]:
    """For which rows all of them do."""
    found = np.ones(rows.num_rows, np.bool_)
    for condition in conditions:
        found &= evaluate_predicate(condition, rows)
    return found


def evaluate_predicate(predicate: VectorPredicate, rows: pa.Table) -> npt.NDArray[np.bool_]:
    """For which rows."""
    found: npt.NDArray[np.bool_]
    if isinstance(predicate, Connective):
        found = _CONNECTIVES[predicate.op].reduce([evaluate_predicate(part, rows) for part in predicate.parts])
        return found
    if isinstance(predicate, Negation):
        found = ~evaluate_predicate(predicate.predicate, rows) & np.asarray(
            pc.is_valid(_operand_values(predicate.predicate.operand, rows))
        )
        return found
    column = _operand_values(predicate.operand, rows)
    if isinstance(predicate, InList):
        if len(predicate.values) > _MAX_INLINE_VALUES:
            return np.asarray(pc.is_in(column, value_set=predicate.values))
        found = np.logical_or.reduce([_compare("EqualTo", column, each) for each in predicate.values])
        return found
    op = predicate.op
    if isinstance(predicate, NullTest):
        return np.asarray(_NULL_TESTS[op](column))
    if isinstance(predicate, ColumnComparison):
        return _compare(op, column, one_chunk(rows.column(predicate.other_column)))
    return (
        _null_as_false(_STRING_TESTS[op](column, predicate.value.as_py()))
        if op in _STRING_TESTS
        else _compare(op, column, predicate.value)
    )


def _operand_values(operand: Operand, rows: pa.Table) -> pa.Array:
    return one_chunk(rows.column(operand) if isinstance(operand, str) else evaluate_value(operand, rows))


def _compare(op: str, column: pa.Array, other: pa.Array | pa.Scalar) -> npt.NDArray[np.bool_]:
    """Where a column and another, or a constant, compare so."""
    by_arrow, by_numpy = _NOT_EQUAL_FUNCTIONS if op == _NOT_EQUAL else _COMPARISON_FUNCTIONS[op]
    mine = integer_view(column)
    theirs = None if mine is None else integer_view(other) if isinstance(other, pa.Array) else integer_value(other)
    if mine is None or theirs is None:
        return _null_as_false(by_arrow(column, other))
    found: npt.NDArray[np.bool_] = by_numpy(mine, theirs)
    return found


def _null_as_false(flags: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.fill_null(flags, False) if flags.null_count else flags)
