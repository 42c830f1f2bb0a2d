"""The aggregate and window functions that a view may use.

Each entry has Spark SQL's name, Catalyst's class after optimisation (several names may share one: `bool_and` is a Min),
its forms in SQL, and the writer of its DuckDB text. Refusals, the reference page and the tests against Spark are
generated from the list: in a form, `{number}` and the like stand for an argument of each type of that group
(`ARGUMENT_TYPES`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from viewkeeper.plan.functions import duckdb_aggregates
from viewkeeper.plan.functions.duckdb_aggregates import CallWriter

ARGUMENT_TYPES: Mapping[str, str] = {
    "any": "any type",
    "number": "TINYINT to BIGINT, FLOAT, DOUBLE, DECIMAL",
    "integer": "TINYINT to BIGINT",
    "exact": "any type but FLOAT and DOUBLE",
    "order": "any type",
    "text": "STRING",
    "boolean": "BOOLEAN",
}


@dataclass(frozen=True)
class Function:
    """One function.

    `needs_over`: it is only valid with OVER; `allows_over`: it may have OVER; `note`: text for the user.
    """

    name: str
    op: str
    forms: tuple[str, ...]
    write: CallWriter
    note: str = ""
    needs_over: bool = False
    allows_over: bool = True


_TIES_NOTE = "Of several rows Spark takes any; here it is the {} value."
_INEXACT_NOTE = "The last digits may differ: in Spark, too, they depend on the order of rows."

_VARIANCES = (
    ("StddevSamp", "stddev_samp", ("stddev", "std", "stddev_samp")),
    ("StddevPop", "stddev_pop", ("stddev_pop",)),
    ("VarianceSamp", "var_samp", ("variance", "var_samp")),
    ("VariancePop", "var_pop", ("var_pop",)),
)
_TWO_COLUMN = (
    ("covar_pop", "CovPopulation", duckdb_aggregates.covariance("covar_pop")),
    ("covar_samp", "CovSample", duckdb_aggregates.covariance("covar_samp")),
    ("corr", "Corr", duckdb_aggregates.correlation),
    ("regr_r2", "RegrR2", duckdb_aggregates.regression("regr_r2", "1.0")),
    ("regr_slope", "RegrSlope", duckdb_aggregates.regression("regr_slope")),
    ("regr_intercept", "RegrIntercept", duckdb_aggregates.intercept),
    ("regr_sxy", "RegrSXY", duckdb_aggregates.covariance("regr_sxy")),
)
_ONE_SIDED = (
    ("regr_sxx", "RegrReplacement", duckdb_aggregates.sum_of_squares, _INEXACT_NOTE),
    ("regr_syy", "RegrReplacement", duckdb_aggregates.sum_of_squares, _INEXACT_NOTE),
    ("regr_count", "Count", duckdb_aggregates.count, ""),
    ("regr_avgx", "Average", duckdb_aggregates.average, ""),
    ("regr_avgy", "Average", duckdb_aggregates.average, ""),
)

AGGREGATES: tuple[Function, ...] = (
    Function("count", "Count", ("count(*)", "count({any})", "count({any}, {integer})"), duckdb_aggregates.count),
    Function("count_if", "Count", ("count_if({boolean})",), duckdb_aggregates.count),
    Function("sum", "Sum", ("sum({number})",), duckdb_aggregates.total),
    Function("avg", "Average", ("avg({number})", "mean({number})"), duckdb_aggregates.average),
    Function("try_sum", "Sum", ("try_sum({number})",), duckdb_aggregates.total, "NULL where the sum does not fit."),
    Function("try_avg", "Average", ("try_avg({number})",), duckdb_aggregates.average),
    Function("min", "Min", ("min({any})",), duckdb_aggregates.plain_call("min")),
    Function("max", "Max", ("max({any})",), duckdb_aggregates.plain_call("max")),
    Function("bool_and", "Min", ("bool_and({boolean})", "every({boolean})"), duckdb_aggregates.plain_call("min")),
    Function(
        "bool_or",
        "Max",
        ("bool_or({boolean})", "some({boolean})", "any({boolean})"),
        duckdb_aggregates.plain_call("max"),
    ),
    Function("bit_and", "BitAndAgg", ("bit_and({integer})",), duckdb_aggregates.plain_call("bit_and")),
    Function("bit_or", "BitOrAgg", ("bit_or({integer})",), duckdb_aggregates.plain_call("bit_or")),
    Function("bit_xor", "BitXorAgg", ("bit_xor({integer})",), duckdb_aggregates.plain_call("bit_xor")),
    *(
        Function(name, op, tuple(f"{n}({{number}})" for n in names), duckdb_aggregates.variance(name), _INEXACT_NOTE)
        for op, name, names in _VARIANCES
    ),
    Function("skewness", "Skewness", ("skewness({number})",), duckdb_aggregates.moment(3), _INEXACT_NOTE),
    Function("kurtosis", "Kurtosis", ("kurtosis({number})",), duckdb_aggregates.moment(4), _INEXACT_NOTE),
    *(
        Function(n, op, (f"{n}({{number}}, {{number}})",), write, _INEXACT_NOTE, allows_over=False)
        for n, op, write in _TWO_COLUMN
    ),
    *(Function(n, op, (f"{n}({{number}}, {{number}})",), write, note) for n, op, write, note in _ONE_SIDED),
    Function(
        "percentile",
        "Percentile",
        ("percentile({number}, 0.3)",),
        duckdb_aggregates.percentile,
        "One constant percentage.",
    ),
    Function("median", "Percentile", ("median({number})",), duckdb_aggregates.percentile),
    Function(
        "percentile_cont",
        "Percentile",
        tuple(f"percentile_cont(0.3) WITHIN GROUP (ORDER BY {{number}}{way})" for way in ("", " DESC")),
        duckdb_aggregates.percentile,
    ),
    Function(
        "percentile_disc",
        "PercentileDisc",
        tuple(f"percentile_disc(0.3) WITHIN GROUP (ORDER BY {{number}}{way})" for way in ("", " DESC")),
        duckdb_aggregates.percentile_disc,
    ),
    Function(
        "mode",
        "Mode",
        (
            "mode({exact}, true)",
            "mode() WITHIN GROUP (ORDER BY {exact})",
            "mode() WITHIN GROUP (ORDER BY {exact} DESC)",
        ),
        duckdb_aggregates.mode,
        "mode(x) leaves open which of several values it is; here it is the least.",
    ),
    Function(
        "max_by",
        "MaxBy",
        ("max_by({any}, {order})",),
        duckdb_aggregates.extreme_by("arg_max_null"),
        _TIES_NOTE.format("greatest"),
    ),
    Function(
        "min_by",
        "MinBy",
        ("min_by({any}, {order})",),
        duckdb_aggregates.extreme_by("arg_min_null"),
        _TIES_NOTE.format("least"),
    ),
    Function(
        "listagg",
        "ListAgg",
        (
            "listagg({text}, '-') WITHIN GROUP (ORDER BY {text})",
            "string_agg({text}) WITHIN GROUP (ORDER BY {text} DESC)",
        ),
        duckdb_aggregates.listagg,
        "Needs an order.",
    ),
)

WINDOW_FUNCTIONS: tuple[Function, ...] = (
    Function("row_number", "RowNumber", ("row_number()",), duckdb_aggregates.ranking("row_number"), needs_over=True),
    Function("rank", "Rank", ("rank()",), duckdb_aggregates.ranking("rank"), needs_over=True),
    Function("dense_rank", "DenseRank", ("dense_rank()",), duckdb_aggregates.ranking("dense_rank"), needs_over=True),
    Function(
        "percent_rank", "PercentRank", ("percent_rank()",), duckdb_aggregates.ranking("percent_rank"), needs_over=True
    ),
    Function("cume_dist", "CumeDist", ("cume_dist()",), duckdb_aggregates.ranking("cume_dist"), needs_over=True),
    Function("ntile", "NTile", ("ntile(3)",), duckdb_aggregates.ranking("ntile"), needs_over=True),
    Function(
        "lag", "Lag", ("lag({any})", "lag({any}, 2) IGNORE NULLS"), duckdb_aggregates.shift("lag"), needs_over=True
    ),
    Function(
        "lead", "Lead", ("lead({any})", "lead({any}, 2) IGNORE NULLS"), duckdb_aggregates.shift("lead"), needs_over=True
    ),
    Function(
        "first_value",
        "First",
        ("first_value({any})", "first({any}) IGNORE NULLS", "any_value({any})"),
        duckdb_aggregates.shift("first_value"),
        needs_over=True,
    ),
    Function(
        "last_value",
        "Last",
        ("last_value({any})", "last({any}) IGNORE NULLS"),
        duckdb_aggregates.shift("last_value"),
        needs_over=True,
    ),
    Function(
        "nth_value",
        "NthValue",
        ("nth_value({any}, 2)", "nth_value({any}, 2) IGNORE NULLS"),
        duckdb_aggregates.shift("nth_value"),
        needs_over=True,
    ),
)

_NO_ARRAYS = "there is no ARRAY type"
_IS_ESTIMATE = "its result is an estimate"
REFUSAL_REASONS: Mapping[str, str] = {
    "approx_count_distinct": f"{_IS_ESTIMATE}; count(DISTINCT …) is exact and maintained",
    "approx_percentile": f"{_IS_ESTIMATE}; percentile is exact",
    "percentile_approx": f"{_IS_ESTIMATE}; percentile is exact",
    "approx_top_k": _IS_ESTIMATE,
    "histogram_numeric": _IS_ESTIMATE,
    "count_min_sketch": _IS_ESTIMATE,
    "array_agg": _NO_ARRAYS,
    "collect_list": _NO_ARRAYS,
    "collect_set": _NO_ARRAYS,
    "first": "it depends on the order of rows; use min_by",
    "last": "it depends on the order of rows; use max_by",
    "any_value": "it depends on the order of rows; use min or max",
}
"""Reasons for refusing some of the other functions, by Spark SQL's name."""
