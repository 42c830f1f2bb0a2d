"""The renderer without Spark: evaluation order, what can fail, what is refused, what errors are called."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

from viewkeeper.errors import EvaluationError, Unsupported
from viewkeeper.expressions import (
    SUPPORTED,
    can_raise,
    check,
    register_functions,
    render,
    render_predicate,
    translate_error,
)
from viewkeeper.expressions.rules.regex import UntranslatablePattern, translate
from viewkeeper.model import types
from viewkeeper.plan.logical.nodes import Expr, column


@pytest.fixture(scope="module")
def connection() -> Any:
    found = duckdb.connect()
    register_functions(found)
    return found


def lit(value: Any, type_: str = "int") -> Expr:
    return Expr("literal", types.parse_type(type_), value=value, nullable=value is None)


def op(name: str, type_: str, *args: Expr, value: Any = ("ANSI",)) -> Expr:
    return Expr(name, types.parse_type(type_), args, value)


X = column("x", types.INT)
Y = column("y", types.INT)
PRICE = column("price", types.decimal(15, 2))
DISCOUNT = column("discount", types.decimal(15, 2))
NOT_ZERO = op("Not", "boolean", op("EqualTo", "boolean", X, lit(0)))
TEN_BY_X = op("Remainder", "int", lit(10), X)
TEST = op("GreaterThan", "boolean", TEN_BY_X, lit(1))


def run(connection: Any, expr: Expr, write: Any = render, **row: int | str | None) -> Any:
    values = ", ".join(f"CAST(? AS {'VARCHAR' if isinstance(v, str) else 'INTEGER'}) AS {k}" for k, v in row.items())
    return connection.execute(f"SELECT {write(expr)} FROM (SELECT {values})", list(row.values())).fetchone()[0]


def fails(connection: Any, expr: Expr, write: Any = render, **row: int | str | None) -> EvaluationError:
    with pytest.raises(duckdb.Error) as caught:
        run(connection, expr, write, **row)
    found = translate_error(caught.value)
    assert found is not None, caught.value
    return found


# --- Evaluation order -----------------------------------------------------------------------------------------------


def test_and_guards_the_division_to_its_right(connection: Any) -> None:
    assert run(connection, op("And", "boolean", NOT_ZERO, TEST), x=0) is False
    assert run(connection, op("And", "boolean", NOT_ZERO, TEST), x=3) is False
    assert run(connection, op("And", "boolean", NOT_ZERO, TEST), x=4) is True


def test_and_fails_when_the_division_comes_first(connection: Any) -> None:
    assert "DIVIDE_BY_ZERO" in fails(connection, op("And", "boolean", TEST, NOT_ZERO), x=0).message


def test_or_stops_at_true(connection: Any) -> None:
    is_zero = op("EqualTo", "boolean", X, lit(0))
    assert run(connection, op("Or", "boolean", is_zero, TEST), x=0) is True
    assert "DIVIDE_BY_ZERO" in fails(connection, op("Or", "boolean", TEST, is_zero), x=0).message


def test_a_null_operand_does_not_stop_and_but_stops_a_filter(connection: Any) -> None:
    both = op("And", "boolean", op("GreaterThan", "boolean", Y, lit(1)), TEST)
    assert "DIVIDE_BY_ZERO" in fails(connection, both, x=0, y=None).message
    assert run(connection, both, render_predicate, x=0, y=None) is False


def test_a_filter_keeps_the_order_of_what_can_fail(connection: Any) -> None:
    after = op("And", "boolean", TEST, op("EqualTo", "boolean", Y, lit(5)))
    assert "DIVIDE_BY_ZERO" in fails(connection, after, render_predicate, x=0, y=1).message


@pytest.mark.parametrize(
    "expr",
    [
        op("CaseWhen", "int", NOT_ZERO, TEN_BY_X, lit(7)),
        op("If", "int", NOT_ZERO, TEN_BY_X, lit(7)),
        op("Coalesce", "int", op("Add", "int", X, lit(7)), TEN_BY_X),
    ],
    ids=lambda e: e.op,
)
def test_choices_look_only_at_what_they_need(connection: Any, expr: Expr) -> None:
    assert run(connection, expr, x=0) == 7


def test_coalesce_stays_lazy_when_a_part_occurs_twice(connection: Any) -> None:
    safe = op("Coalesce", "int", op("Add", "int", X, lit(7)), TEN_BY_X)
    query = f"SELECT {render(safe)} AS a, {render(safe)} + 1 AS b FROM (SELECT CAST(unnest([0, 0]) AS INTEGER) AS x)"
    assert connection.execute(query).fetchall() == [(7, 8), (7, 8)]


def test_an_argument_after_a_null_is_not_evaluated(connection: Any) -> None:
    assert run(connection, op("Add", "int", Y, TEN_BY_X), x=0, y=None) is None
    assert "DIVIDE_BY_ZERO" in fails(connection, op("Add", "int", TEN_BY_X, Y), x=0, y=None).message


def test_divisions_look_at_the_divisor_first(connection: Any) -> None:
    assert run(connection, op("Remainder", "int", TEN_BY_X, Y), x=0, y=None) is None


def test_in_stops_at_the_first_equal_item(connection: Any) -> None:
    listed = op("In", "boolean", Y, lit(1), TEN_BY_X)
    assert run(connection, listed, x=0, y=1) is True
    assert run(connection, listed, x=0, y=None) is None
    assert "DIVIDE_BY_ZERO" in fails(connection, listed, x=0, y=2).message


def test_a_constant_that_fails_fails_only_when_reached(connection: Any) -> None:
    never = op("CaseWhen", "int", op("EqualTo", "boolean", X, lit(5)), op("Remainder", "int", lit(1), lit(0)), lit(2))
    assert run(connection, never, x=0) == 2
    assert "DIVIDE_BY_ZERO" in fails(connection, never, x=5).message


def test_long_arguments_are_evaluated_once_so_text_stays_short(connection: Any) -> None:
    e = column("s", types.STRING)
    for _ in range(12):
        e = op("Upper", "string", op("Lower", "string", e))
    text = render(e)
    assert len(text) < 20_000
    assert connection.execute(f"SELECT {text} FROM (SELECT 'straße' AS s)").fetchone() == ("STRASSE",)


def test_long_chains_do_not_exhaust_the_stack() -> None:
    e = op("EqualTo", "boolean", X, lit(0))
    for i in range(1, 3000):
        e = op("Or", "boolean", e, op("EqualTo", "boolean", X, lit(i)))
    assert render(op("Not", "boolean", e)).count(" OR ") == 2999
    assert not can_raise(e)


# --- What can fail --------------------------------------------------------------------------------------------------


def test_tpch_revenue_cannot_fail() -> None:
    rest = op("Subtract", "decimal(16,2)", lit("1", "decimal(1,0)"), DISCOUNT)
    assert not can_raise(op("Multiply", "decimal(32,4)", PRICE, rest))


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (op("Add", "int", X, lit(1)), True),
        (op("Add", "bigint", op("Cast", "bigint", X), op("Cast", "bigint", Y)), False),
        (op("Multiply", "bigint", op("Cast", "bigint", X), op("Cast", "bigint", Y)), False),
        (op("Add", "int", op("Year", "int", column("d", types.DATE), value=None), lit(1)), False),
        (op("Add", "int", X, lit(1), value=("TRY",)), False),
        (op("Add", "double", column("a", types.DOUBLE), column("b", types.DOUBLE)), False),
        (op("Divide", "double", column("a", types.DOUBLE), lit("2.0", "double")), False),
        (op("Divide", "double", column("a", types.DOUBLE), column("b", types.DOUBLE)), True),
        (op("Divide", "decimal(19,6)", PRICE, lit("3", "decimal(1,0)")), False),
        (op("Multiply", "decimal(38,6)", column("a", types.decimal(38, 6)), column("b", types.decimal(38, 6))), True),
        (op("Cast", "bigint", X), False),
        (op("Cast", "tinyint", X), True),
        (op("Cast", "decimal(10,0)", X), False),
        (op("Cast", "decimal(9,0)", X), True),
        (op("Cast", "int", column("s", types.STRING)), True),
        (op("Cast", "int", column("s", types.STRING), value=("TRY",)), False),
        (op("Cast", "string", PRICE), False),
        (op("Cast", "decimal(14,1)", PRICE), True),
        (op("Cast", "decimal(15,1)", PRICE), False),
        (op("Like", "boolean", column("s", types.STRING), lit("a%", "string"), value=("\\",)), False),
    ],
)
def test_can_raise_is_precise(expr: Expr, expected: bool) -> None:
    assert can_raise(expr) is expected


# --- Errors are named by Spark's condition ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expr", "condition"),
    [
        (op("Add", "int", X, lit(2147483647)), "ARITHMETIC_OVERFLOW"),
        (op("Divide", "double", op("Cast", "double", X), lit("0.0", "double")), "DIVIDE_BY_ZERO"),
        (op("IntegralDivide", "bigint", op("Cast", "bigint", X), lit(0, "bigint")), "DIVIDE_BY_ZERO"),
        (op("Cast", "tinyint", op("Multiply", "int", X, lit(100))), "CAST_OVERFLOW"),
        (op("Cast", "decimal(2,1)", op("Multiply", "int", X, lit(100))), "NUMERIC_VALUE_OUT_OF_RANGE"),
        (op("Cast", "int", lit("abc", "string")), "CAST_INVALID_INPUT"),
        (op("Cast", "date", lit("2024-02-30", "string")), "CAST_INVALID_INPUT"),
        (op("RaiseError", "int", lit("no: stock", "string"), value=None), "USER_RAISED_EXCEPTION: no: stock"),
    ],
)
def test_errors_carry_sparks_condition(connection: Any, expr: Expr, condition: str) -> None:
    error = fails(connection, expr, x=7)
    assert condition in error.message
    assert error.code == "VK401"


def test_an_error_that_is_no_fault_of_the_data_has_no_code(connection: Any) -> None:
    with pytest.raises(duckdb.Error) as caught:
        connection.execute("SELECT nothing FROM nowhere")
    assert translate_error(caught.value) is None


# --- What is refused ------------------------------------------------------------------------------------------------


def test_an_unknown_expression_is_refused_by_name_with_what_is_supported() -> None:
    with pytest.raises(Unsupported, match="sound_ex") as caught:
        check(op("Add", "int", X, op("SoundEx", "int", X)))
    assert "coalesce" in caught.value.hint


@pytest.mark.parametrize(
    "expr",
    [
        op("RLike", "boolean", column("s", types.STRING), lit(r"a\b", "string"), value=None),
        op("RLike", "boolean", column("s", types.STRING), column("t", types.STRING), value=None),
        op("DateFormatClass", "string", column("d", types.TIMESTAMP), lit("VV", "string"), value=None),
        op("TruncDate", "date", column("d", types.DATE), column("s", types.STRING), value=None),
        op("encode", "string", column("s", types.STRING), lit("UTF-8", "string"), value=None),
        op("Like", "boolean", column("s", types.STRING), lit(r"a\b", "string"), value=("\\",)),
        op("SubstringIndex", "string", column("s", types.STRING), lit("aa", "string"), lit(1), value=None),
    ],
    ids=lambda e: e.op,
)
def test_what_cannot_be_exact_is_refused(expr: Expr) -> None:
    with pytest.raises(Unsupported):
        check(expr)


@pytest.mark.parametrize("pattern", [r"(?=a)", r"(a)\1", r"a++", r"\bword", "(?i)a", "[a&&b]", "a$b", r"\p{L}", "[]"])
def test_regular_expressions_that_java_reads_otherwise_are_refused(pattern: str) -> None:
    with pytest.raises(UntranslatablePattern):
        translate(pattern, test=True)


# --- Literals, types, setup -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expr", "type_", "value"),
    [
        (lit(5, "tinyint"), "TINYINT", "5"),
        (lit("1.50", "decimal(5,2)"), "DECIMAL(5,2)", "1.50"),
        (lit("nan", "double"), "DOUBLE", "nan"),
        (lit("-0.0", "float"), "FLOAT", "-0.0"),
        (lit("it's", "string"), "VARCHAR", "it's"),
        (lit("00ff", "binary"), "BLOB", r"\x00\xFF"),
        (lit(-1, "date"), "DATE", "1969-12-31"),
        (lit(-1, "timestamp"), "TIMESTAMP", "1969-12-31 23:59:59.999999"),
        (lit(True, "boolean"), "BOOLEAN", "true"),
        (lit(None, "decimal(38,10)"), "DECIMAL(38,10)", None),
    ],
)
def test_literals_keep_type_and_value(connection: Any, expr: Expr, type_: str, value: str | None) -> None:
    found = connection.execute(f"SELECT typeof(v), CAST(v AS VARCHAR) FROM (SELECT {render(expr)} AS v)").fetchone()
    assert found == (type_, value)


def test_setup_twice_is_harmless_and_cursors_share_it(connection: Any) -> None:
    register_functions(connection)
    cursor = connection.cursor()
    register_functions(cursor)
    assert run(cursor, op("Cast", "string", lit("1.0E10", "double")), x=1) == "1.0E10"


def test_column_names_are_quoted(connection: Any) -> None:
    text = render(column('odd "name', types.INT))
    assert connection.execute(f'SELECT {text} FROM (SELECT 1 AS "odd ""name")').fetchone() == (1,)


def test_every_supported_expression_says_how_it_is_written() -> None:
    assert len({name for name, _, _ in SUPPORTED}) == len(SUPPORTED) > 150
    assert all(sql for _, sql, _ in SUPPORTED)
