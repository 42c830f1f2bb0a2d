"""Aggregates as a user would see them change: one row a group, exact sums, Spark's types and errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from viewkeeper.errors import Contradiction, EvaluationError, Unsupported
from viewkeeper.model import types
from viewkeeper.model.int128 import Int128Array
from viewkeeper.model.schema import Column
from viewkeeper.operators.aggregation import extremes, sql
from viewkeeper.operators.aggregation.spec import AggregateSpec, Measure
from viewkeeper.operators.kinds import aggregate
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.run import Arrangement, Run, arrange

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def duck() -> Iterator[PreparedStatements]:
    with PreparedStatements(threads=1) as duck:
        yield duck


class View:
    """An aggregate of one argument `x` by `k`, fed with (k, x, weight)."""

    def __init__(self, duck: PreparedStatements, kind: str, *measures: Measure, keyed: bool = True) -> None:
        self.duck, self.kind = duck, kind
        self.spec = AggregateSpec((Column("k", types.STRING),) if keyed else (), measures)
        self.states = [Arrangement() for _ in range(aggregate.count_ports(self.spec))]

    def change(self, *rows: tuple[str | None, Any, int]) -> list[dict[str, Any]]:
        table = pa.table(
            {
                "k": pa.array([r[0] for r in rows], pa.string()),
                "x": pa.array([r[1] for r in rows], types.arrow(types.parse_type(self.kind))),
                "¤w": pa.array([r[2] for r in rows], pa.int64()),
            }
        )
        return self.apply(aggregate.prepare_deltas(self.duck, self.spec, table))

    def apply(self, deltas: Sequence[pa.Table]) -> list[dict[str, Any]]:
        out, added = aggregate.run_aggregate_step(self.duck, self.spec, self.states, deltas)
        self.states = [s.with_runs(arrange(d)) for s, d in zip(self.states, added, strict=True)]
        assert out.schema.types == [types.arrow(c.type) for c in self.spec.keys] + [
            *(types.arrow(m.type) for m in self.spec.measures),
            pa.int64(),
        ]
        return sorted(out.to_pylist(), key=lambda r: (r["¤w"], str(r)))

    def rows(self) -> list[dict[str, Any]]:
        return aggregate.full_output(self.duck, self.spec, self.states).drop_columns(["¤w"]).to_pylist()

    def values(self, name: str) -> list[Any]:
        return [row[name] for row in self.rows()]


def test_a_group_comes_changes_and_goes(duck: PreparedStatements) -> None:
    view = View(
        duck, "int", Measure("n", "Count", None, None, types.BIGINT), Measure("s", "Sum", "x", types.INT, types.BIGINT)
    )
    assert view.change(("a", 1, 1), ("a", 2, 1)) == [{"k": "a", "n": 2, "s": 3, "¤w": 1}]
    assert view.change(("a", 2, -1)) == [{"k": "a", "n": 2, "s": 3, "¤w": -1}, {"k": "a", "n": 1, "s": 1, "¤w": 1}]
    assert view.change(("a", 1, -1)) == [{"k": "a", "n": 1, "s": 1, "¤w": -1}]
    assert view.rows() == []


def test_a_change_that_changes_no_measure_is_silent(duck: PreparedStatements) -> None:
    view = View(
        duck, "int", Measure("s", "Sum", "x", types.INT, types.BIGINT), Measure("m", "Max", "x", types.INT, types.INT)
    )
    view.change(("a", 3, 1), ("a", 9, 1))
    assert view.change(("a", 0, 1)) == []
    assert view.change(("a", 3, -1), ("a", 1, 1), ("a", 2, 1)) == []


def test_null_is_a_group_of_its_own(duck: PreparedStatements) -> None:
    view = View(duck, "int", Measure("n", "Count", None, None, types.BIGINT))
    assert view.change((None, 1, 1), ("", 1, 1)) == [{"k": "", "n": 1, "¤w": 1}, {"k": None, "n": 1, "¤w": 1}]


def test_without_measures_it_is_distinct(duck: PreparedStatements) -> None:
    view = View(duck, "int")
    assert view.change(("a", 1, 1), ("a", 2, 1)) == [{"k": "a", "¤w": 1}]
    assert view.change(("a", 1, -1)) == []
    assert view.change(("a", 2, -1)) == [{"k": "a", "¤w": -1}]


def test_a_global_aggregate_has_one_row_also_over_nothing(duck: PreparedStatements) -> None:
    measures = Measure("n", "Count", None, None, types.BIGINT), Measure("m", "Min", "x", types.INT, types.INT)
    view = View(duck, "int", *measures, keyed=False)
    assert view.change() == [{"n": 0, "m": None, "¤w": 1}]
    assert view.change() == []
    view.change((None, 5, 1))
    view.change((None, 5, -1))
    assert view.rows() == [{"n": 0, "m": None}]
    view.states = [
        Arrangement((aggregate.merge_state_runs(duck, view.spec, i, s.runs),)) for i, s in enumerate(view.states)
    ]
    assert view.rows() == [{"n": 0, "m": None}]


def test_partial_sums_of_several_tasks_add_up(duck: PreparedStatements) -> None:
    view = View(
        duck,
        "int",
        Measure("s", "Sum", "x", types.INT, types.BIGINT),
        Measure("d", "Count", "x", types.INT, types.BIGINT, True),
    )
    tables = [pa.table({"k": ["a"], "x": pa.array([5], pa.int32()), "¤w": pa.array([1])})] * 3
    prepared = [aggregate.prepare_deltas(duck, view.spec, t) for t in tables]
    assert view.apply([pa.concat_tables(p) for p in zip(*prepared, strict=True)]) == [
        {"k": "a", "s": 15, "d": 1, "¤w": 1}
    ]


def test_all_null_sums_are_null_and_counts_are_zero(duck: PreparedStatements) -> None:
    names = {"Count": "bigint", "Sum": "bigint", "Average": "double", "Min": "int", "Max": "int"}
    view = View(duck, "int", *(Measure(f, f, "x", types.INT, types.parse_type(t)) for f, t in names.items()))
    view.change(("a", None, 1))
    assert view.rows() == [{"k": "a", "Count": 0, "Sum": None, "Average": None, "Min": None, "Max": None}]


class TestSums:
    def test_a_retracted_giant_leaves_the_small_ones_exact(self, duck: PreparedStatements) -> None:
        view = View(duck, "double", Measure("s", "Sum", "x", types.DOUBLE, types.DOUBLE))
        view.change(("a", 1e16, 1), ("a", 1.0, 1), ("a", 1.0, 1))
        view.change(("a", 1e16, -1))
        assert view.values("s") == [2.0]

    @pytest.mark.parametrize(
        ("values", "total"),
        [
            ([0.1] * 10, 1.0),
            ([2.0**53, 1.0], 2.0**53),
            ([2.0**53, 1.0, 5e-324], 2.0**53 + 2),
            ([2.0**53 + 2, 1.0], 2.0**53 + 4),
            ([1.7976931348623157e308, 1.7976931348623157e308, -1.7976931348623157e308], 1.7976931348623157e308),
            ([1.7976931348623157e308, 1.7976931348623157e308], INF),
            ([5e-324, 5e-324], 1e-323),
            ([2.2250738585072014e-308, -5e-324], 2.225073858507201e-308),
            ([INF, 1.0], INF),
            ([-INF, 1e308], -INF),
            ([-0.0], 0.0),
        ],
    )
    def test_doubles_are_rounded_once(self, duck: PreparedStatements, values: list[float], total: float) -> None:
        view = View(duck, "double", Measure("s", "Sum", "x", types.DOUBLE, types.DOUBLE))
        view.change(*(("a", v, 1) for v in values))
        assert view.values("s") == [total]
        for v in values[1:]:
            view.change(("a", v, -1))
        assert view.values("s") == [values[0]]

    def test_nan_and_infinities_leave_when_their_rows_do(self, duck: PreparedStatements) -> None:
        view = View(duck, "double", Measure("s", "Sum", "x", types.DOUBLE, types.DOUBLE))
        view.change(("a", INF, 1), ("a", -INF, 1), ("a", 4.0, 1), ("a", NAN, 1))
        assert np.isnan(view.values("s")[0])
        view.change(("a", NAN, -1))
        assert np.isnan(view.values("s")[0])
        view.change(("a", INF, -1))
        assert view.values("s") == [-INF]
        view.change(("a", -INF, -1))
        assert view.values("s") == [4.0]

    def test_a_bigint_sum_may_pass_its_range_on_the_way_but_not_end_there(self, duck: PreparedStatements) -> None:
        view = View(duck, "bigint", Measure("s", "Sum", "x", types.BIGINT, types.BIGINT))
        view.change(("a", 2**63 - 1, 1), ("a", 2**63 - 1, 1), ("a", -(2**63), 1))
        assert view.values("s") == [2**63 - 2]
        with pytest.raises(EvaluationError, match="ARITHMETIC_OVERFLOW"):
            view.change(("a", 2, 1))
        assert view.values("s") == [2**63 - 2], "nothing was added"

    def test_decimals_of_38_digits_are_exact_and_checked(self, duck: PreparedStatements) -> None:
        most = Decimal(10**38 - 1)
        view = View(duck, "decimal(38,0)", Measure("s", "Sum", "x", types.decimal(38, 0), types.decimal(38, 0)))
        view.change(("a", most, 5), ("a", most.copy_negate(), 4))
        assert view.values("s") == [most]
        with pytest.raises(EvaluationError, match="ARITHMETIC_OVERFLOW"):
            view.change(("a", Decimal(1), 1))

    def test_small_decimals_grow_ten_digits(self, duck: PreparedStatements) -> None:
        view = View(duck, "decimal(4,2)", Measure("s", "Sum", "x", types.decimal(4, 2), types.decimal(14, 2)))
        view.change(("a", Decimal("99.99"), 10**9))
        assert view.values("s") == [Decimal("99990000000.00")]


class TestAverages:
    @pytest.mark.parametrize(
        ("values", "average"),
        [
            (["0.01", "0.02"], "0.015000"),
            (["0.01", "0.00", "0.00"], "0.003333"),
            (["0.02", "0.00", "0.00"], "0.006667"),
            (["-0.02", "0.00", "0.00"], "-0.006667"),
        ],
    )
    def test_decimals_are_exact_half_up(self, duck: PreparedStatements, values: list[str], average: str) -> None:
        view = View(duck, "decimal(12,2)", Measure("a", "Average", "x", types.decimal(12, 2), types.decimal(16, 6)))
        view.change(*(("a", Decimal(v), 1) for v in values))
        assert view.values("a") == [Decimal(average)]

    def test_a_tie_is_rounded_away_from_zero(self, duck: PreparedStatements) -> None:
        view = View(duck, "decimal(38,37)", Measure("a", "Average", "x", types.decimal(38, 37), types.decimal(38, 38)))
        unit = Decimal(1).scaleb(-37)
        view.change(("a", unit, 1), ("a", unit * 0, 19), ("b", -unit, 1), ("b", unit * 0, 19))
        assert sorted(view.values("a")) == [Decimal(-1).scaleb(-38), Decimal(1).scaleb(-38)]

    def test_an_average_that_does_not_fit_is_an_error(self, duck: PreparedStatements) -> None:
        view = View(duck, "decimal(38,0)", Measure("a", "Average", "x", types.decimal(38, 0), types.decimal(38, 4)))
        with pytest.raises(EvaluationError, match="ARITHMETIC_OVERFLOW"):
            view.change(("a", Decimal(10**34), 1))

    def test_integers_sum_exactly_before_the_one_rounding(self, duck: PreparedStatements) -> None:
        view = View(duck, "bigint", Measure("a", "Average", "x", types.BIGINT, types.DOUBLE))
        view.change(("a", 2**62, 1), ("a", 1, 1), ("a", -(2**62), 1))
        assert view.values("a") == [1 / 3]

    def test_bigints_are_doubles_before_they_add_up(self, duck: PreparedStatements) -> None:
        """As Spark casts them: 2^53 + 1 is 2^53."""
        view = View(duck, "bigint", Measure("a", "Average", "x", types.BIGINT, types.DOUBLE))
        view.change(("a", 2**53 + 1, 1), ("a", -(2**53), 1))
        assert view.values("a") == [0.0]


class TestExtremes:
    def test_the_next_value_takes_over_when_the_extreme_goes(self, duck: PreparedStatements) -> None:
        view = View(
            duck,
            "string",
            Measure("lo", "Min", "x", types.STRING, types.STRING),
            Measure("hi", "Max", "x", types.STRING, types.STRING),
        )
        view.change(("a", "b", 2), ("a", "é", 1), ("a", "z", 1))
        assert view.rows() == [{"k": "a", "lo": "b", "hi": "é"}]
        assert view.change(("a", "b", -1)) == []
        view.change(("a", "b", -1), ("a", "é", -1))
        assert view.rows() == [{"k": "a", "lo": "z", "hi": "z"}]

    def test_nan_is_the_greatest_and_both_zeros_are_one_value(self, duck: PreparedStatements) -> None:
        view = View(
            duck,
            "double",
            Measure("lo", "Min", "x", types.DOUBLE, types.DOUBLE),
            Measure("hi", "Max", "x", types.DOUBLE, types.DOUBLE),
        )
        view.change(("a", NAN, 1), ("a", INF, 1), ("b", -0.0, 1))
        assert view.values("lo") == [INF, 0.0] or view.values("lo") == [0.0, INF]
        assert sum(np.isnan(view.values("hi"))) == 1
        assert view.change(("b", 0.0, 1)) == []

    def test_a_nan_that_was_taken_back_is_gone(self, duck: PreparedStatements) -> None:
        view = View(duck, "double", Measure("hi", "Max", "x", types.DOUBLE, types.DOUBLE))
        view.change(("a", NAN, 1), ("a", 1.0, 1))
        view.change(("a", NAN, -1))
        assert view.values("hi") == [1.0]
        halves = [("b", NAN, 1), ("b", NAN, -1), ("b", 2.0, 1)]
        tables = [pa.table({"k": [k], "x": pa.array([x]), "¤w": pa.array([w])}) for k, x, w in halves]
        prepared = [aggregate.prepare_deltas(duck, view.spec, t) for t in tables]
        assert view.apply([pa.concat_tables(p) for p in zip(*prepared, strict=True)]) == [
            {"k": "b", "hi": 2.0, "¤w": 1}
        ]

    def test_another_column_may_change_alone(self, duck: PreparedStatements) -> None:
        """The group is touched but its values are not: its minimum must still be known."""
        spec = AggregateSpec(
            (Column("k", types.STRING),),
            (Measure("s", "Sum", "y", types.INT, types.BIGINT), Measure("m", "Min", "x", types.INT, types.INT)),
        )
        states = [Arrangement() for _ in range(aggregate.count_ports(spec))]

        def rows(*found: tuple[int, int, int]) -> list[pa.Table]:
            x, y, w = (pa.array(c) for c in zip(*found, strict=True))
            table = pa.table({"k": ["a"] * len(found), "x": x.cast(pa.int32()), "y": y.cast(pa.int32()), "¤w": w})
            return aggregate.prepare_deltas(duck, spec, table)

        _, added = aggregate.run_aggregate_step(duck, spec, states, rows((4, 1, 1)))
        states = [s.with_runs(arrange(d)) for s, d in zip(states, added, strict=True)]
        out, _ = aggregate.run_aggregate_step(duck, spec, states, rows((4, 1, -1), (4, 2, 1)))
        assert sorted(out.to_pylist(), key=lambda r: r["¤w"]) == [
            {"k": "a", "s": 1, "m": 4, "¤w": -1},
            {"k": "a", "s": 2, "m": 4, "¤w": 1},
        ]

    def test_a_huge_group_is_read_at_its_ends_only(
        self, duck: PreparedStatements, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        view = View(
            duck,
            "int",
            Measure("lo", "Min", "x", types.INT, types.INT),
            Measure("hi", "Max", "x", types.INT, types.INT),
            keyed=False,
        )
        values = pa.array(np.arange(200_000), pa.int32())
        rows = pa.table({"x": values, "¤w": pa.array(np.ones(200_000, np.int64))})
        view.apply(aggregate.prepare_deltas(duck, view.spec, rows))
        read = 0
        take = Run.take

        def counting(run: Run, places: Any, columns: Any = None) -> pa.Table:
            nonlocal read
            read += len(places)
            return take(run, places, columns)

        monkeypatch.setattr(Run, "take", counting)
        view.change((None, 0, -1), (None, 1, -1), (None, 199_999, -1), (None, 500, 1))
        assert view.rows() == [{"lo": 2, "hi": 199_998}]
        view.change(*((None, v, -1) for v in range(2, 402)))
        assert read < 10_000
        assert view.rows() == [{"lo": 402, "hi": 199_998}]


def test_groups_whose_hashes_collide_stay_apart(duck: PreparedStatements, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key gets one hash: each value of one group stands among those of all others."""
    monkeypatch.setattr(sql, "key_hash_sql", lambda spec: "7::UBIGINT")
    monkeypatch.setattr(extremes, "_FIRST_WINDOW", 1)
    monkeypatch.setattr(extremes, "_GROWTH", 2)
    measures = (
        Measure("collide", "Sum", "x", types.DOUBLE, types.DOUBLE),
        Measure("lo", "Min", "x", types.DOUBLE, types.DOUBLE),
        Measure("hi", "Max", "x", types.DOUBLE, types.DOUBLE),
        Measure("d", "Count", "x", types.DOUBLE, types.BIGINT, True),
    )
    view = View(duck, "double", *measures)
    view.change(*((k, float(v), 1) for v in range(20) for k in ("a", "b", None)), ("b", -1.0, 1))
    view.change(("b", -1.0, -1), *(("a", float(v), -1) for v in range(5)))
    assert view.change(("b", 19.0, -1)) == [
        {"k": "b", "collide": 190.0, "lo": 0.0, "hi": 19.0, "d": 20, "¤w": -1},
        {"k": "b", "collide": 171.0, "lo": 0.0, "hi": 18.0, "d": 19, "¤w": 1},
    ]
    assert sorted(map(str, view.rows())) == [
        "{'k': 'a', 'collide': 180.0, 'lo': 5.0, 'hi': 19.0, 'd': 15}",
        "{'k': 'b', 'collide': 171.0, 'lo': 0.0, 'hi': 18.0, 'd': 19}",
        "{'k': None, 'collide': 190.0, 'lo': 0.0, 'hi': 19.0, 'd': 20}",
    ]


def test_sums_of_groups_whose_hashes_collide_are_those_of_others(duck: PreparedStatements) -> None:
    """Vectors of different groups under one hash, in several runs, some of them twice in one."""
    measures = (
        Measure("s", "Sum", "x", types.INT, types.BIGINT),
        Measure("n", "Count", None, None, types.BIGINT),
    )
    apart, together = View(duck, "int", *measures), View(duck, "int", *measures)
    for changes in (
        [("a", 1, 1), ("b", 2, 1), (None, 3, 1), ("c", 4, 1)],
        [("b", 5, 1), ("a", 6, 1)],
        [("a", 1, -1), ("a", 6, -1), (None, None, 1)],
        [("c", 4, -1), ("c", 9, 1), ("b", 2, -1)],
    ):
        table = pa.Table.from_pylist(
            [{"k": k, "x": x, "¤w": w} for k, x, w in changes],
            pa.schema([("k", pa.string()), ("x", pa.int32()), ("¤w", pa.int64())]),
        )
        halves = [aggregate.prepare_deltas(duck, apart.spec, table.slice(i, 2))[0] for i in (0, 2)]
        vectors = pa.concat_tables(halves).combine_chunks()
        one_hash = vectors.set_column(
            vectors.schema.get_field_index("¤h"), "¤h", pa.array(np.full(vectors.num_rows, 7, np.uint64))
        )
        assert together.apply([one_hash]) == apart.apply([vectors])
    assert sorted(map(str, together.rows())) == sorted(map(str, apart.rows())) != []


def test_equal_doubles_of_other_bits_are_one_group(duck: PreparedStatements) -> None:
    """Two zeros, and two NaNs, in the state and in what arrives."""
    spec = AggregateSpec((Column("k", types.DOUBLE),), (Measure("n", "Count", None, None, types.BIGINT),))
    other_nan = float(np.array([0x7FF8000000000001], np.uint64).view(np.float64)[0])
    state, seen = [Arrangement()], []
    for keys in ([0.0, NAN, 1.0], [-0.0, other_nan, 1.0], [NAN, 0.0, -0.0]):
        rows = pa.table({"k": pa.array(keys, pa.float64()), "¤w": pa.array([1] * len(keys), pa.int64())})
        vectors = aggregate.prepare_deltas(duck, spec, rows)[0]
        out, added = aggregate.run_aggregate_step(duck, spec, state, [vectors])
        state = [state[0].with_runs(arrange(added[0]))]
        seen.append(sorted((str(abs(r["k"])), r["n"]) for r in out.to_pylist() if r["¤w"] == 1))
    assert seen == [
        [("0.0", 1), ("1.0", 1), ("nan", 1)],
        [("0.0", 2), ("1.0", 2), ("nan", 2)],
        [("0.0", 4), ("nan", 3)],
    ]


@pytest.mark.parametrize("values", [[2**62, 2**62, -1], [-(2**63), -1, 5], [1, -2, 3], [2**64 - 1, -(2**64), 7], []])
def test_sums_are_those_of_integers(values: list[int]) -> None:
    """Where one word is enough, and where it is just not."""
    wide = Int128Array.from_decimals(pa.array([Decimal(v) for v in values], pa.decimal128(38, 0)))
    assert not wide.sums_fit_int64 or all(abs(sum(values[:i])) < 2**63 for i in range(len(values) + 1))
    assert wide.sums_fit_int64 == (max(map(abs, values), default=0) * len(values) < 2**63)


class TestDistinct:
    def test_a_value_counts_once_until_its_last_copy_goes(self, duck: PreparedStatements) -> None:
        measures = (
            Measure("n", "Count", "x", types.INT, types.BIGINT, True),
            Measure("s", "Sum", "x", types.INT, types.BIGINT, True),
            Measure("a", "Average", "x", types.INT, types.DOUBLE, True),
        )
        view = View(duck, "int", *measures)
        view.change(("a", 5, 3), ("a", 7, 1), ("a", None, 1))
        assert view.rows() == [{"k": "a", "n": 2, "s": 12, "a": 6.0}]
        assert view.change(("a", 5, -2)) == []
        view.change(("a", 5, -1))
        assert view.rows() == [{"k": "a", "n": 1, "s": 7, "a": 7.0}]

    def test_doubles_are_distinct_as_sql_compares_them(self, duck: PreparedStatements) -> None:
        view = View(duck, "double", Measure("n", "Count", "x", types.DOUBLE, types.BIGINT, True))
        view.change(("a", 0.0, 1), ("a", -0.0, 1), ("a", NAN, 1), ("a", -NAN, 1))
        assert view.values("n") == [2]

    def test_only_the_touched_values_of_a_big_group_are_read(self, duck: PreparedStatements) -> None:
        view = View(duck, "int", Measure("n", "Count", "x", types.INT, types.BIGINT, True), keyed=False)
        rows = pa.table({"x": pa.array(np.arange(50_000), pa.int32()), "¤w": pa.array(np.ones(50_000, np.int64))})
        view.apply(aggregate.prepare_deltas(duck, view.spec, rows))
        prepared = aggregate.prepare_deltas(duck, view.spec, rows.slice(0, 3))
        assert view.states[1].slice(np.sort(prepared[1]["¤h"].to_numpy())).num_rows == 3


class TestVariance:
    def test_large_values_with_small_differences_do_not_cancel(self, duck: PreparedStatements) -> None:
        view = View(duck, "double", Measure("v", "VarianceSamp", "x", types.DOUBLE, types.DOUBLE))
        view.change(("a", 1e15 + 1, 1), ("a", 1e15 + 2, 1), ("a", 1e15 + 3, 1))
        assert view.values("v") == [1.0]

    def test_one_value_has_no_sample_variance(self, duck: PreparedStatements) -> None:
        names = ("VarianceSamp", "StddevSamp", "VariancePop", "StddevPop")
        view = View(duck, "double", *(Measure(n, n, "x", types.DOUBLE, types.DOUBLE) for n in names))
        view.change(("a", 3.5, 1))
        assert view.rows() == [
            {"k": "a", "VarianceSamp": None, "StddevSamp": None, "VariancePop": 0.0, "StddevPop": 0.0}
        ]


def test_fewer_than_no_rows_is_a_broken_promise(duck: PreparedStatements) -> None:
    view = View(duck, "int", Measure("n", "Count", None, None, types.BIGINT))
    with pytest.raises(Contradiction, match="fewer than no rows"):
        view.change(("a", 1, -1))


def test_an_aggregate_without_a_kernel_is_refused_by_name() -> None:
    with pytest.raises(Unsupported, match="Percentile"):
        aggregate.count_ports(AggregateSpec((), (Measure("m", "Percentile", "x", types.INT, types.DOUBLE),)))
