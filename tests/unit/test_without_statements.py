"""What is worked out without a statement for few rows is what the statement says."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewkeeper import expressions
from viewkeeper.expressions.backends import vector_case
from viewkeeper.expressions.backends.vector_predicates import (
    compile_predicate,
    evaluate_all,
    evaluate_predicate,
    rename_predicate,
)
from viewkeeper.expressions.backends.vector_values import evaluate_value, is_vectorised_value
from viewkeeper.expressions.tree import Expr, Named, column
from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.operators import segment_execution
from viewkeeper.operators.aggregation import preaggregate, sql
from viewkeeper.operators.aggregation.spec import AggregateSpec, Measure, accumulator_layout, with_raw_columns
from viewkeeper.operators.delta_join.plan import PathFilter
from viewkeeper.operators.kinds import top_k
from viewkeeper.operators.kinds.top_k import TopK
from viewkeeper.operators.segment import Segment, where_sql
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state import consolidate as consolidate_
from viewkeeper.state.key_hash import hash_keys
from viewkeeper.state.run import Arrangement, Run, arrange, merge
from viewkeeper.state.run_cache import evaluate_predicates

SHORT, LONG = types.parse_type("decimal(9,2)"), types.parse_type("decimal(38,4)")
ARGUMENTS = {"short": SHORT, "long": LONG, "number": types.BIGINT, "small": types.INT}
KEYS = (Column("k", types.BIGINT), Column("day", types.DATE), Column("text", types.STRING))


@pytest.fixture(scope="module")
def duck() -> Iterator[PreparedStatements]:
    with PreparedStatements(expressions.register_functions, threads=1) as duck:
        yield duck


def decimals(type_: types.Type) -> st.SearchStrategy[Decimal]:
    digits, scale = types.decimal_digits(type_) or (0, 0)
    most = 10**digits - 1
    return st.integers(-most, most).map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -scale)))


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


ROWS_OF: dict[str, st.SearchStrategy[Any]] = {
    "k": st.none() | st.sampled_from([0, 1, -1, 1 << 40]),
    "day": st.none() | st.sampled_from([dt.date(1970, 1, 1), dt.date(1995, 3, 15)]),
    "text": st.none() | st.sampled_from(["", "a", "A", "a much longer one than fits", "ä"]),
    "short": st.none() | decimals(SHORT),
    "long": st.none() | decimals(LONG),
    "number": st.none() | integers(64),
    "small": st.none() | integers(32),
    "¤w": st.sampled_from([1, -1, 2, -7, 30_000]),
}
ROWS = st.lists(st.fixed_dictionaries(ROWS_OF), min_size=1, max_size=12)
SCHEMA = pa.schema(
    [
        *((key.name, types.arrow(key.type)) for key in KEYS),
        *((name, types.arrow(type_)) for name, type_ in ARGUMENTS.items()),
        ("¤w", pa.int64()),
    ]
)


@given(
    rows=ROWS,
    keys=st.sampled_from([KEYS, KEYS[:1], KEYS[:2], KEYS[2:], ()]),
    function=st.sampled_from(["Sum", "Max"]),
)
def test_vectors(duck: PreparedStatements, rows: list[dict[str, Any]], keys: tuple[Column, ...], function: str) -> None:
    measures = [Measure(f"s_{name}", "Sum", name, type_, type_) for name, type_ in ARGUMENTS.items()]
    measures.append(Measure("m", function, "small", types.INT, types.INT))
    spec = AggregateSpec(keys, (*measures, Measure("n", "Count", None, None, types.BIGINT)))
    table = pa.Table.from_pylist(rows, SCHEMA)
    fed = accumulator_layout(spec).accumulators
    told = duck.run(sql.vectors_sql(spec, fed, False), rows=with_raw_columns(table, fed))
    found = preaggregate.preaggregate(duck, spec, table)
    assert found is not None
    assert found.schema.equals(told.schema)
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, told.to_pylist()))


@pytest.mark.parametrize("keys", [("side", "few"), ("few",), ("many",), ("far",), ("many", "far"), ("text",)])
@pytest.mark.parametrize("most", [1 << 10, 1 << 44, 1 << 62])
def test_vectors_of_many_rows(duck: PreparedStatements, keys: tuple[str, ...], most: int) -> None:
    """Keys with few values and many, side by side and scattered; terms whose sums fit one word and do not."""
    rng = np.random.default_rng(most)
    count = 3_000
    numbers = rng.integers(-most, most, count)
    table = pa.table(
        {
            "side": pa.array(np.repeat(np.arange(count // 6), 6)),
            "few": pa.array(rng.integers(0, 9, count), mask=rng.random(count) < 0.01),
            "many": pa.array(rng.integers(0, count // 3, count).astype(np.int32)),
            "far": pa.array(np.repeat(rng.integers(-(2**63), 2**63 - 1, count // 5), 5)),
            "text": pa.array(
                rng.choice(["", "a", "b", "a longer text than that"], count), mask=rng.random(count) < 0.1
            ),
            "number": pa.array(numbers, mask=rng.random(count) < 0.2),
            "long": pa.array([Decimal(int(n) * 3) for n in numbers], pa.decimal128(38, 4)),
            "¤w": pa.array(rng.choice([1, -1, 3], count)),
        }
    )
    kinds = {"many": types.INT, "text": types.STRING}
    measures = [Measure(f"s_{name}", "Sum", name, ARGUMENTS[name], ARGUMENTS[name]) for name in ("number", "long")]
    spec = AggregateSpec(tuple(Column(key, kinds.get(key, types.BIGINT)) for key in keys), tuple(measures))
    fed = accumulator_layout(spec).accumulators
    told = duck.run(sql.vectors_sql(spec, fed, False), rows=with_raw_columns(table, fed))
    found = preaggregate.preaggregate(duck, spec, table)
    assert found is not None
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, told.to_pylist()))
    assert (np.diff(found["¤h"].to_numpy().astype(object)) > 0).all()


def test_vectors_that_take_a_statement(duck: PreparedStatements) -> None:
    """Weights that could overflow, sums of doubles, keys that numpy cannot hash, values that count once."""
    table = pa.table({"k": [1], "d": [0.5], "s": ["a"], "n": pa.array([1], pa.int64()), "¤w": pa.array([1 << 40])})
    one = table.set_column(table.schema.get_field_index("¤w"), "¤w", pa.array([1]))
    total = Measure("t", "Sum", "n", types.BIGINT, types.BIGINT)
    assert preaggregate.preaggregate(duck, AggregateSpec(KEYS[:1], (total,)), table) is None
    assert preaggregate.preaggregate(duck, AggregateSpec(KEYS[:1], (total,)), one) is not None
    assert preaggregate.preaggregate(duck, AggregateSpec((Column("s", types.STRING),), (total,)), one) is not None
    assert preaggregate.preaggregate(duck, AggregateSpec((Column("d", types.DOUBLE),), (total,)), one) is None
    for measure in (
        Measure("t", "Sum", "d", types.DOUBLE, types.DOUBLE),
        Measure("t", "Average", "n", types.BIGINT, types.DOUBLE),
        Measure("t", "Count", "n", types.BIGINT, types.BIGINT, distinct=True),
    ):
        assert preaggregate.preaggregate(duck, AggregateSpec(KEYS[:1], (measure,)), one) is None


# -- conditions -------------------------------------------------------------------------------------------------------

WORD, WIDE = types.parse_type("decimal(18,2)"), types.parse_type("decimal(19,2)")
COMPARED = {
    types.INT: st.integers(-2, 2) | st.sampled_from([-(2**31), 2**31 - 1]),
    types.DATE: st.integers(9_000, 9_003) | st.sampled_from([-(2**31) + 2, 2**31 - 2]),
    SHORT: st.sampled_from(["-1.00", "0.00", "0.01", "1.00"]),
    types.STRING: st.sampled_from(["", "a", "A", "ä", "a\U0001f600", "a\uffff"]),
    types.BIGINT: st.integers(-2, 2) | st.sampled_from([-(2**63), 2**63 - 1]),
    WORD: st.sampled_from(["-1.00", "0.00", "9999999999999999.99", "-9999999999999999.99"]),
    WIDE: st.sampled_from(["-1.00", "0.00", "99999999999999999.99", "-99999999999999999.99"]),
}
OPERATORS = ("EqualTo", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual")


@st.composite
def conditions(draw: st.DrawFn, of: str = "0.") -> Expr:
    number = draw(st.integers(0, len(COMPARED) - 1))
    type_ = list(COMPARED)[number]
    asked = column(f"{of}c{number}", type_)
    if draw(st.booleans()) and draw(st.booleans()):
        return Expr(draw(st.sampled_from(["IsNull", "IsNotNull"])), types.BOOLEAN, (asked,))
    constants = [Expr("literal", type_, value=draw(COMPARED[type_]), nullable=False) for _ in range(5)]
    kinds = ["constant", "constant", "column", "list", "other", *(["within"] if type_ == types.STRING else [])]
    kind, op = draw(st.sampled_from(kinds)), draw(st.sampled_from(OPERATORS))
    if kind == "list":
        found = Expr("In", types.BOOLEAN, (asked, *constants[: draw(st.integers(1, 5))]))
    elif kind == "within":
        op = draw(st.sampled_from(["StartsWith", "EndsWith", "Contains"]))
        found = Expr(op, types.BOOLEAN, (asked, constants[0]))
    else:
        found = Expr(op, types.BOOLEAN, (asked, column(f"{of}d{number}", type_) if kind == "column" else constants[0]))
    if kind == "other" or (kind in ("list", "within") and draw(st.booleans())):
        found = Expr("Not", types.BOOLEAN, (found,))
    joint = draw(st.sampled_from(["And", "Or", None]))
    return found if joint is None else Expr(joint, types.BOOLEAN, (found, draw(conditions(of))))


def _values(type_: types.Type, values: list[Any]) -> pa.Array:
    if types.decimal_digits(type_):
        values = [None if v is None else Decimal(v) for v in values]
    return pa.array(values, types.arrow(type_))


def _rows(nothing: st.SearchStrategy[None]) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    return st.lists(st.tuples(*(nothing | values for _ in range(2) for values in COMPARED.values())), max_size=8)


@given(
    conjuncts=st.lists(conditions(), min_size=1, max_size=2).map(tuple),
    rows=st.booleans().flatmap(lambda nulls: _rows(st.none() if nulls else st.nothing())),
)
def test_comparisons(duck: PreparedStatements, conjuncts: tuple[Expr, ...], rows: list[tuple[Any, ...]]) -> None:
    named = [(f"0.{side}{i}", type_) for side in "cd" for i, type_ in enumerate(COMPARED)]
    table = pa.table({name: _values(type_, [row[i] for row in rows]) for i, (name, type_) in enumerate(named)})
    check = PathFilter(((conjuncts, 1),))
    assert not check.statement_conditions
    for condition, compared in zip(check.conditions, check.vector_conditions, strict=True):
        said = duck.run(f"SELECT coalesce({where_sql((condition,))}, FALSE) AS s FROM input", input=table)["s"]
        assert compared is not None
        assert evaluate_predicate(compared, table).tolist() == said.to_pylist()


@pytest.mark.parametrize("op", ["Or", "Not", "EqualNullSafe", "Like", "StartsWith"])
def test_another_condition_takes_a_statement(op: str) -> None:
    asked, constant = column("0.a", types.INT), Expr("literal", types.INT, value=1)
    simple = Expr("EqualTo", types.BOOLEAN, (asked, constant))
    check = PathFilter((((Expr(op, types.BOOLEAN, (asked, constant)),), 1), ((simple,), 2)))
    assert (check.statement_conditions, check.statement_columns) == ((0,), ["0.a"])


def test_a_constant_of_another_type_or_null_takes_a_statement() -> None:
    asked = column("0.a", types.INT)
    for constant in (
        Expr("literal", types.BIGINT, value=1),
        Expr("literal", types.INT, value=None),
        column("0.b", types.BIGINT),
    ):
        for op in ("EqualTo", "In"):
            assert PathFilter((((Expr(op, types.BOOLEAN, (asked, constant)),), 1),)).statement_conditions == (0,)
    double = column("0.x", types.DOUBLE)  # NaN is greater than all, and equals itself
    assert PathFilter((((Expr("LessThan", types.BOOLEAN, (double, double)),), 1),)).statement_conditions == (0,)


# -- columns ----------------------------------------------------------------------------------------------------------


def operation(op: str, digits: str, *args: Expr) -> Expr:
    return Expr(op, types.parse_type(f"decimal({digits})"), args)


PRICE, RATE = column("price", types.parse_type("decimal(15,2)")), column("rate", types.parse_type("decimal(6,4)"))
ONE = Expr("literal", types.parse_type("decimal(1,0)"), value="1", nullable=False)
EXACT = [
    operation("Subtract", "7,4", ONE, RATE),
    operation("Add", "18,4", PRICE, RATE),
    operation("Multiply", "22,6", PRICE, RATE),
    operation("Multiply", "23,6", PRICE, operation("Subtract", "7,4", ONE, RATE)),
    operation("Subtract", "23,6", operation("Multiply", "22,6", PRICE, RATE), PRICE),
]


@given(
    prices=st.lists(st.none() | decimals(PRICE.type), min_size=1, max_size=6),
    rates=st.lists(st.none() | decimals(RATE.type), min_size=6, max_size=6),
)
def test_columns(duck: PreparedStatements, prices: list[Decimal | None], rates: list[Decimal | None]) -> None:
    """Digit for digit what the statement gives, at the ends of the types too."""
    given_ = (prices, rates[: len(prices)])
    rows = pa.table(
        [pa.array(v, types.arrow(c.type)) for v, c in zip(given_, (PRICE, RATE), strict=True)], ["price", "rate"]
    )
    for expr in EXACT:
        assert is_vectorised_value(expr)
        told = duck.run(f"SELECT {expressions.render(expr)} AS v FROM input", input=rows)["v"]
        found = evaluate_value(expr, rows)
        assert found.type == told.type
        assert found.to_pylist() == told.to_pylist()


CASES = [
    (operation("Cast", "21,7", PRICE), True),
    (operation("Cast", "14,2", PRICE), False),
    (operation("Cast", "18,1", PRICE), False),
    (operation("Cast", "15,3", PRICE), False),
    (operation("Cast", "1,0", ONE), False),
]


def test_cases(duck: PreparedStatements) -> None:
    money, text = PRICE.type, column("text", types.STRING)
    is_a = Expr("EqualTo", types.BOOLEAN, (text, Expr("literal", types.STRING, value="a")))
    begins = Expr("StartsWith", types.BOOLEAN, (text, Expr("literal", types.STRING, value="b")))
    either = Expr("Or", types.BOOLEAN, (is_a, Expr("Not", types.BOOLEAN, (begins,))))
    zero, one = Expr("literal", money, value="0.00"), Expr("literal", types.INT, value=1)
    rows = pa.table(
        {
            "text": pa.array(["a", "b", "bc", "", None]),
            "price": pa.array(
                [Decimal("1.50"), None, Decimal("-2.25"), Decimal("0.01"), Decimal("3.00")], types.arrow(money)
            ),
        }
    )
    for expr in (
        Expr("CaseWhen", money, (is_a, PRICE, zero)),
        Expr("CaseWhen", money, (either, zero, PRICE)),
        Expr("CaseWhen", types.INT, (begins, one, is_a, Expr("literal", types.INT, value=7), one)),
        *(expr for expr, exact in CASES if exact),
    ):
        assert vector_case.is_vectorised(expr)
        told = duck.run(f"SELECT {expressions.render(expr)} AS v FROM input", input=rows)["v"]
        found = vector_case.evaluate_vectorised(expr, rows)
        assert (found.to_pylist(), found.type) == (told.to_pylist(), types.arrow(expr.type))
    like = Expr("Like", types.BOOLEAN, (text, Expr("literal", types.STRING, value="%a")))
    for expr in (
        Expr("CaseWhen", money, (is_a, PRICE)),
        Expr("CaseWhen", money, (like, PRICE, zero)),
        Expr("CaseWhen", types.parse_type("decimal(18,2)"), (is_a, PRICE, zero)),
        Expr("CaseWhen", money, (is_a, PRICE, Expr("literal", money, value=None))),
        *(expr for expr, exact in CASES if not exact),
    ):
        assert not vector_case.is_vectorised(expr)


def test_years(duck: PreparedStatements) -> None:
    year = Expr("Year", types.INT, (column("day", types.DATE),))
    days = [-719_893, -719_528, -719_162, -365, -1, 0, 59, 364, 365, 11_016, 2_932_896, 2_932_897, None]
    days += [-12_687_795, -12_687_794, 11_248_737, 11_248_738, 30_000_000]  # beyond years of 16 bits
    rows = pa.table({"day": pa.array(days, pa.int32()).cast(pa.date32())})
    assert is_vectorised_value(year)
    told = duck.run(f"SELECT {expressions.render(year)} AS v FROM input", input=rows)["v"]
    found = evaluate_value(year, rows)
    assert found.to_pylist() == told.to_pylist()
    assert found.type == types.arrow(types.INT)
    assert not is_vectorised_value(Expr("Year", types.INT, (column("at", types.TIMESTAMP),)))


def test_columns_that_take_a_statement() -> None:
    """Results that are rounded or may not fit, other types, other operations, and constants alone."""
    wide = column("w", types.parse_type("decimal(38,10)"))
    assert is_vectorised_value(PRICE)
    assert is_vectorised_value(column("s", types.STRING))
    for expr in (
        ONE,
        operation("Multiply", "38,6", wide, PRICE),
        operation("Multiply", "22,5", PRICE, RATE),
        operation("Add", "17,4", PRICE, RATE),
        operation("Subtract", "2,0", ONE, ONE),
        operation("Divide", "22,6", PRICE, RATE),
        operation("Multiply", "26,2", PRICE, column("n", types.INT)),
        operation("Add", "16,2", PRICE, Expr("literal", PRICE.type, value=None)),
        Expr("Add", types.INT, (column("a", types.INT), column("b", types.INT))),
    ):
        assert not is_vectorised_value(expr)


# -- consolidation ----------------------------------------------------------------------------------------------------

DELTA = pa.schema(
    [
        ("a", pa.int64()),
        ("b", pa.int32()),
        ("¤w", pa.int64()),
        ("¤h", pa.uint64()),
        ("day", pa.date32()),
        ("text", pa.string()),
        ("money", pa.decimal128(38, 2)),
        ("small", pa.int16()),
        ("flag", pa.bool_()),
        ("x", pa.float64()),
    ]
)


@given(
    rows=st.lists(
        st.tuples(
            st.none() | st.integers(-1, 2),
            st.none() | st.integers(0, 1),
            st.integers(-2, 2),
            st.sampled_from([0, 1, 1 << 63]),
            st.none() | st.integers(0, 1),
            st.none() | st.sampled_from(["", "a", "b"]),
            st.none() | st.sampled_from([Decimal("0.00"), Decimal("-0.01"), Decimal(1 << 64)]),
            st.none() | st.integers(-1, 0),
            st.none() | st.booleans(),
            st.none() | st.sampled_from([0.0, -0.0, float("nan"), 1.5]),
        ),
        min_size=2,
        max_size=14,
    ),
    shown=st.sampled_from(
        [
            DELTA.names,
            [*DELTA.names[:8]],
            ["a", "¤w", "¤h"],
            ["b", "¤w"],
            ["¤h", "¤w"],
            ["text", "¤w"],
            ["money", "¤w", "text"],
            ["flag", "¤w"],
            ["x", "¤w"],
        ]
    ),
)
def test_consolidation(duck: PreparedStatements, rows: list[tuple[Any, ...]], shown: list[str]) -> None:
    sides = zip(DELTA.types, zip(*rows, strict=True), strict=True)
    arrays = [pa.array(v, pa.int32()).cast(t) if t == pa.date32() else pa.array(v, t) for t, v in sides]
    delta = pa.Table.from_arrays(arrays, schema=DELTA).select(shown)
    found = consolidate_.consolidate(duck, delta)
    told = duck.run(consolidate_.consolidation_sql(delta.schema), delta=delta)
    assert found.schema.equals(told.schema)
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, told.to_pylist()))


def test_consolidation_where_hashes_collide(duck: PreparedStatements, monkeypatch: pytest.MonkeyPatch) -> None:
    delta = pa.table({"a": pa.array([1, 2, 1, 3], pa.int64()), "¤w": pa.array([1, 1, 1, -1], pa.int64())})
    monkeypatch.setattr(consolidate_, "_hash_rows", lambda rows: np.zeros(rows.num_rows, np.uint64))
    assert sorted(map(str, consolidate_.consolidate(duck, delta).to_pylist())) == sorted(
        map(str, [{"a": 1, "¤w": 2}, {"a": 2, "¤w": 1}, {"a": 3, "¤w": -1}])
    )


# -- segments ---------------------------------------------------------------------------------------------------------

SEEN = (column("c0", types.INT), column("c3", types.STRING), column("d0", types.INT), column("c2", SHORT))


@given(
    conjuncts=st.lists(conditions(""), max_size=3).map(tuple),
    rows=st.booleans().flatmap(lambda nulls: _rows(st.none() if nulls else st.nothing())),
    key=st.sampled_from([None, ("k0",), ("k1",), ("k1", "k0"), ()]),
    gather=st.booleans(),
)
def test_segments(
    duck: PreparedStatements,
    conjuncts: tuple[Expr, ...],
    rows: list[tuple[Any, ...]],
    key: tuple[str, ...] | None,
    gather: bool,
) -> None:
    """The rows that meet the conditions, in their order, with the very hashes."""
    named = [(f"{side}{i}", type_) for side in "cd" for i, type_ in enumerate(COMPARED)]
    table = pa.table({name: _values(type_, [row[i] for row in rows]) for i, (name, type_) in enumerate(named)})
    table = table.append_column("¤w", pa.array(range(1, 1 + len(rows)), pa.int64()))
    added = operation("Add", "10,2", SEEN[3], SEEN[3])
    shown = tuple(Named(f"k{i}", expr) for i, expr in enumerate((*SEEN, added)))
    there = Expr("IsNotNull", types.BOOLEAN, (added,))
    for where in (conjuncts, (*conjuncts, there)):
        segment = Segment("x", where, shown, key, gather)
        assert segment.is_vectorised
        found = segment_execution.run_segment_vectorised(duck, segment, table)
        told = duck.run(segment.sql, input=table)
        assert found is not None
        assert found.schema.equals(told.schema)
        assert found.to_pylist() == told.to_pylist()


@given(rows=ROWS, asked=st.lists(st.lists(st.integers(0, 11), max_size=4), min_size=1, max_size=5))
def test_rows_of_a_run_that_meet_conditions(rows: list[dict[str, Any]], asked: list[list[int]]) -> None:
    """Whether few were asked for so far or many."""
    run = Run(pa.Table.from_pylist(rows, SCHEMA))
    day, text = column("d", types.DATE), column("t", types.STRING)
    is_day = Expr("EqualTo", types.BOOLEAN, (day, Expr("literal", types.DATE, value=dt.date(1995, 3, 15))))
    is_text = Expr("In", types.BOOLEAN, (text, *(Expr("literal", types.STRING, value=v) for v in ("a", "ä"))))
    not_text = Expr("Not", types.BOOLEAN, (is_text,))
    either = Expr("Or", types.BOOLEAN, (is_day, not_text))
    names = {"d": "day", "t": "text"}
    of_other = Expr("EqualTo", types.BOOLEAN, (column("other", types.DATE), day))
    for exprs in ((is_day, is_text), (not_text,), (either, is_text), (is_text,)):
        found = [rename_predicate(known, names) for e in exprs if (known := compile_predicate(e)) is not None]
        conditions = [condition for condition in found if condition is not None]
        assert len(conditions) == len(exprs)
        for places in asked:
            here = np.array([p for p in places if p < len(rows)], np.int64)
            assert (
                evaluate_predicates(conditions, run, here).tolist()
                == evaluate_all(conditions, run.rows.take(here)).tolist()
            )
    assert all(rename_predicate(c, names) is None for c in map(compile_predicate, (of_other,)) if c is not None)


def test_answers_of_a_run_for_any_date_and_for_the_last_few_conditions() -> None:
    """Dates that were worked out may be later than Python's last, and views come and go."""
    run = Run(pa.table({"day": pa.array([-800_000, 0, 2_932_897, None], pa.int32()).cast(pa.date32())}))
    here = np.arange(4)
    for day in (-719_163, 2_932_897, *range(100)):
        earlier = Expr("LessThan", types.BOOLEAN, (column("day", types.DATE), Expr("literal", types.DATE, value=day)))
        either = Expr("In", types.BOOLEAN, (column("day", types.DATE), Expr("literal", types.DATE, value=day)))
        for expr in (earlier, either):
            conditions = [found for found in [compile_predicate(expr)] if found is not None]
            assert conditions
            assert evaluate_predicates(conditions, run, here).tolist() == evaluate_all(conditions, run.rows).tolist()
    assert len(run.cache) < 50


ORDERS = [
    '"day" DESC NULLS LAST, "k" ASC NULLS FIRST, "text" ASC NULLS FIRST, "day" ASC NULLS LAST, "short" ASC NULLS LAST',
    '"short" ASC NULLS LAST, "text" DESC NULLS FIRST, "k" DESC NULLS LAST, "day" ASC NULLS FIRST',
]
TOP = st.fixed_dictionaries({n: s for n, s in ROWS_OF.items() if n in ("k", "day", "text", "short")})


@given(steps=st.lists(st.lists(TOP, max_size=8), min_size=1, max_size=4), order=st.sampled_from(ORDERS), data=st.data())
def test_first_rows(
    duck: PreparedStatements, steps: list[list[dict[str, Any]]], order: str, data: st.DataObject
) -> None:
    """Rows come, and some of those that are there go; by statements, without them, and with a buffer that is remembered
    until its runs are merged."""
    schema = pa.schema([SCHEMA.field(n) for n in ("k", "day", "text", "short", "¤w")])
    operator = TopK((), order, count=2, offset=data.draw(st.integers(0, 2)))
    there: list[dict[str, Any]] = []
    ways = ("statement", "quick", "remembered")
    states: dict[str, list[Arrangement]] = {way: [Arrangement(), Arrangement()] for way in ways}
    for came in steps:
        gone = [there.pop(data.draw(st.integers(0, len(there) - 1))) for _ in range(min(len(there), len(came) // 2))]
        there += came
        rows = [*({**row, "¤w": 1} for row in came), *({**row, "¤w": -1} for row in gone)]
        delta = pa.Table.from_pylist(rows, schema)
        delta = delta.append_column("¤h", pa.array(hash_keys(duck, delta, ("k", "text"))))
        told = {}
        is_merged = data.draw(st.booleans())
        for way, state in states.items():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(top_k, "BUFFER_MARGIN", 1)
                patch.setattr(top_k, "_MAX_ROWS", top_k._MAX_ROWS if way != "statement" else -1)
                told[way], added, buffer = top_k.run_top_k_step(duck, operator, state, delta)
            states[way] = [s.with_runs(arrange(rows)) for s, rows in zip(state, added, strict=True)]
            if way == "remembered" and added[1].num_rows:
                states[way][1].cache_result(top_k._BUFFER_CACHE_KEY, buffer)
                assert top_k._read_buffer(duck, operator, states[way][1]) is buffer
            elif way == "quick":  # as if opened anew
                states[way] = [Arrangement(tuple(Run(run.rows) for run in s.runs)) for s in states[way]]
            if is_merged:
                states[way] = [Arrangement((merge(duck, s.runs),)) if s.runs else s for s in states[way]]
        kept = {way: state[1].rows() for way, state in states.items() if state[1].runs}
        for found in (told, kept):
            assert len({_multiset(duck, rows) for rows in found.values()}) <= 1


def _multiset(duck: PreparedStatements, rows: pa.Table) -> str:
    rows = consolidate_.consolidate(duck, rows.combine_chunks())
    return str(sorted(map(str, rows.select(sorted(rows.column_names)).to_pylist())))
