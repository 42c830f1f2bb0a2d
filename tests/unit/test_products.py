"""Decimals in words of 64 bits: what the statement says, or None."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from viewkeeper import expressions
from viewkeeper.expressions.backends.vector_decimals import evaluate_word_product, is_word_product
from viewkeeper.expressions.tree import Expr, Named, column
from viewkeeper.model import types
from viewkeeper.operators import segment_execution
from viewkeeper.operators.segment import Segment
from viewkeeper.resources.prepared_statements import PreparedStatements


def decimal(digits: int, scale: int) -> types.Type:
    return types.parse_type(f"decimal({digits},{scale})")


COLUMNS = {
    "price": decimal(15, 2),
    "tax": decimal(15, 2),
    "rate": decimal(6, 4),
    "wide": decimal(38, 6),
    "long": decimal(20, 0),
}
ONE = Expr("literal", decimal(1, 0), value="1", nullable=False)
SMALL = Expr("literal", decimal(5, 4), value="-0.0500", nullable=False)
NOTHING = Expr("literal", decimal(5, 4), value=None)


@pytest.fixture(scope="module")
def duck() -> Iterator[PreparedStatements]:
    with PreparedStatements(expressions.register_functions, threads=1) as duck:
        yield duck


def operation(op: str, left: Expr, right: Expr) -> Expr:
    """With the type that Spark gives it."""
    (p, s), (q, t) = (types.decimal_digits(arg.type) or (0, 0) for arg in (left, right))
    scale = s + t if op == "Multiply" else max(s, t)
    digits = p + q + 1 if op == "Multiply" else max(p - s, q - t) + scale + 1
    if digits > 38:
        digits, scale = 38, max(38 - (digits - scale), min(scale, 6))
    return Expr(op, decimal(digits, scale), (left, right))


LEAVES = st.sampled_from([*(column(name, type_) for name, type_ in COLUMNS.items()), ONE, SMALL])
TREES = st.recursive(
    LEAVES,
    lambda inner: st.builds(operation, st.sampled_from(["Add", "Subtract", "Multiply"]), inner, inner),
    max_leaves=4,
)
PRICE, TAX = (column(name, COLUMNS[name]) for name in ("price", "tax"))
CHARGE = operation(
    "Multiply", operation("Multiply", PRICE, operation("Subtract", ONE, TAX)), operation("Add", ONE, TAX)
)


def numbers(type_: types.Type) -> st.SearchStrategy[Decimal | None]:
    digits, scale = types.decimal_digits(type_) or (0, 0)
    most = 10**digits - 1
    near = [n for n in (0, 1, -1, 9_999, 2**63 - 1, -(2**63), 2**63, most, -most) if abs(n) <= most]
    whole = st.sampled_from(near) | st.integers(-(10**6), 10**6).filter(lambda n: abs(n) <= most)
    return whole.map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -scale)))


ROW = st.fixed_dictionaries({name: numbers(type_) for name, type_ in COLUMNS.items()})
PLAIN = {
    "price": Decimal("1.00"),
    "tax": Decimal("0.04"),
    "rate": Decimal("0.0400"),
    "wide": Decimal("3.000000"),
    "long": Decimal(2),
}


def table(rows: list[dict[str, Any]]) -> pa.Table:
    columns = {name: pa.array([r[name] for r in rows], types.arrow(type_)) for name, type_ in COLUMNS.items()}
    return pa.table({**columns, "¤w": pa.array([1] * len(rows), pa.int64())})


@given(expr=TREES, rows=st.lists(ROW, min_size=1, max_size=4), start=st.integers(0, 2))
@example(expr=CHARGE, rows=[PLAIN], start=0)
def test_what_fits_is_exact(duck: PreparedStatements, expr: Expr, rows: list[dict[str, Any]], start: int) -> None:
    given_ = table(rows).slice(min(start, len(rows) - 1))
    if not is_word_product(expr):
        return
    found = evaluate_word_product(expr, given_)
    if found is not None:  # then the statement does not raise either
        told = duck.run(f"SELECT {expressions.render(expr)} AS v FROM input", input=given_)["v"]
        assert found.type == types.arrow(expr.type)
        assert found.to_pylist() == told.cast(found.type).to_pylist()
    else:
        columns = {str(part.value) for part in _leaves(expr) if part.op == "column"}
        assert any(abs(int(str(row[c]).replace(".", ""))) > 10_000 for row in rows for c in columns) or not columns


def test_what_gets_more_digits_than_a_word_has() -> None:
    """Twenty digits more: of zeros nothing comes, of anything else too much."""
    fine, least = decimal(25, 22), Decimal("0.0000000000000000000001")
    expr = operation("Add", PRICE, column("fine", fine))
    assert is_word_product(expr)

    def found(price: str) -> pa.Array | None:
        rows = {
            "price": pa.array([Decimal(price)], types.arrow(PRICE.type)),
            "fine": pa.array([least], types.arrow(fine)),
        }
        return evaluate_word_product(expr, pa.table(rows))

    zero = found("0.00")
    assert zero is not None
    assert zero.to_pylist() == [least]
    assert found("0.01") is None


LONG = Expr("literal", decimal(25, 0), value=str(10**20), nullable=False)
NARROW = Expr("Multiply", decimal(6, 4), (PRICE, TAX))


@pytest.mark.parametrize(
    ("expr", "price"),
    [
        (NARROW, "10.00"),  # 100.0000 has seven digits, however small it is for a word
        (Expr("Add", decimal(3, 2), (PRICE, TAX)), "0.00"),
        (operation("Multiply", LONG, PRICE), "0.00"),  # nothing comes of it, but a word cannot say the factor
        (LONG, "0.00"),
    ],
)
def test_what_fits_no_word_or_not_its_type_is_left_to_the_statement(expr: Expr, price: str) -> None:
    assert is_word_product(expr)
    assert evaluate_word_product(expr, table([{**PLAIN, "price": Decimal(price), "tax": Decimal("10.00")}])) is None


def test_a_result_that_just_fits_its_type_needs_no_statement() -> None:
    found = evaluate_word_product(NARROW, table([{**PLAIN, "price": Decimal("-9.99"), "tax": Decimal("10.00")}]))
    assert found is not None
    assert found.to_pylist() == [Decimal("-99.9000")]


def _leaves(expr: Expr) -> Iterator[Expr]:
    if not expr.args:
        yield expr
    for arg in expr.args:
        yield from _leaves(arg)


def test_a_product_beyond_arrow_needs_no_statement(duck: PreparedStatements) -> None:
    segment = Segment("x", (), (Named("v", CHARGE), Named("k", column("rate", COLUMNS["rate"]))), ("k",))
    assert segment.is_vectorised
    assert segment.product_columns == {"v"}
    fits = table([PLAIN, {**PLAIN, "price": Decimal("-104949.50")}])
    found = segment_execution.run_segment_vectorised(duck, segment, fits)
    assert found is not None
    assert found.to_pylist() == duck.run(segment.sql, input=fits).to_pylist()
    for other in (table([PLAIN, {**PLAIN, "price": Decimal("9999999999999.99")}]), table([{**PLAIN, "price": None}])):
        assert segment_execution.run_segment_vectorised(duck, segment, other) is None
        assert (
            segment_execution.run_segment(duck, segment, other).to_pylist()
            == duck.run(segment.sql, input=other).to_pylist()
        )
    nothing = segment_execution.run_segment_vectorised(duck, segment, fits.slice(0, 0))
    assert nothing is not None
    assert nothing.schema.equals(found.schema)


def test_what_is_rounded_or_of_another_type_is_left_to_the_statement() -> None:
    wide, double = column("wide", COLUMNS["wide"]), column("x", types.DOUBLE)
    assert is_word_product(CHARGE)
    assert not is_word_product(operation("Multiply", wide, wide))
    assert not is_word_product(Expr("Multiply", decimal(32, 4), (PRICE, double)))
    assert not is_word_product(Expr("Multiply", types.DOUBLE, (double, double)))
    assert not is_word_product(Expr("Divide", decimal(32, 4), (PRICE, PRICE)))
    assert not is_word_product(operation("Add", PRICE, NOTHING))
