"""Evaluators that need no statement take an expression only if they can work it out: they give None for all others."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from viewkeeper.expressions import render_predicate
from viewkeeper.expressions.backends import vector_case, vector_values
from viewkeeper.expressions.backends.vector_decimals import evaluate_word_product, is_word_product
from viewkeeper.expressions.backends.vector_predicates import VectorPredicate, compile_predicate, evaluate_predicate
from viewkeeper.expressions.rules.table import RULES
from viewkeeper.expressions.tree import Expr, column
from viewkeeper.model import types
from viewkeeper.operators.aggregation.row_groups import compile_selection
from viewkeeper.operators.segment import Segment
from viewkeeper.resources.prepared_statements import PreparedStatements

MONEY = types.parse_type("decimal(8,2)")
VALUES: dict[types.Type, list[Any]] = {
    types.INT: [1, 2, None, 2],
    types.STRING: ["a", "ab", None, "ab"],
    types.DATE: [9_000, 9_001, None, 9_001],
    MONEY: ["1.00", "2.00", None, "2.00"],
    types.DOUBLE: [1.0, 2.0, None, 2.0],
    types.BOOLEAN: [True, False, None, False],
}
SHAPES = ("c", "cc", "cl", "lc", "ll", "ccc", "ccl", "clc", "cll", "llc", "cccc", "clll")
"""Arguments: `c` is a column, `l` a literal."""


def made(type_: types.Type, values: list[Any]) -> pa.Array:
    if types.decimal_digits(type_):
        values = [None if v is None else Decimal(v) for v in values]
    return pa.array(values, types.arrow(type_))


ROWS = pa.table(
    {f"{type_}{i}": made(type_, values[i:] + values[:i]) for type_, values in VALUES.items() for i in range(4)}
)


def arguments(type_: types.Type, shape: str) -> Iterator[Expr]:
    for place, letter in enumerate(shape):
        value = VALUES[type_][1 if place % 2 else 0]
        if letter == "c":
            yield column(f"{type_}{place}", type_)
        else:
            yield Expr("literal", type_, value=str(value) if type_ == types.DOUBLE else value, nullable=False)


def expressions() -> Iterator[Expr]:
    """Every class of the table over columns and literals, with each type of result."""
    ops = [op for op in RULES if op not in ("column", "literal")]
    for op, type_, shape, of in product(ops, VALUES, SHAPES, (types.BOOLEAN, types.INT, MONEY)):
        if op in ("And", "Or", "Not") and type_ != types.BOOLEAN:
            continue
        yield Expr(op, of, tuple(arguments(type_, shape)))


@pytest.fixture(scope="module")
def duck() -> Iterator[PreparedStatements]:
    with PreparedStatements() as opened:
        yield opened


def by_statement(duck: PreparedStatements, expr: Expr) -> list[bool]:
    sql = f"SELECT coalesce({render_predicate(expr)}, false) AS found FROM rows"
    return [bool(found) for found in duck.run(sql, rows=ROWS)["found"].to_pylist()]


def test_every_expression_that_comparisons_take_is_compared_as_a_statement_does(duck: PreparedStatements) -> None:
    taken = set()
    for expr in expressions():
        if expr.type != types.BOOLEAN:
            continue
        for asked in (expr, Expr("Not", types.BOOLEAN, (expr,))):
            found: VectorPredicate | None = compile_predicate(asked)
            if found is None:
                continue
            taken.add((asked.op, expr.op))
            assert evaluate_predicate(found, ROWS).tolist() == by_statement(duck, asked), asked
    assert {("In", "In"), ("Not", "In"), ("LessThan", "LessThan")} <= taken


def test_every_expression_that_is_called_exact_is_worked_out() -> None:
    for expr in expressions():
        if vector_values.is_vectorised_value(expr):
            vector_values.evaluate_value(expr, ROWS)
        if vector_case.is_vectorised(expr):
            vector_case.evaluate_vectorised(expr, ROWS)
        if is_word_product(expr):
            evaluate_word_product(expr, ROWS)


def test_every_condition_that_few_rows_are_tested_by_can_be_tested() -> None:
    rows = ROWS.to_pylist()
    for expr in expressions():
        found = compile_selection(Segment("t", (expr,), (), None))
        if found is not None and found.predicate is not None:
            assert all(found.predicate(row) in (True, False) for row in rows)
