"""Aggregate and window functions as DuckDB SQL, for what is recomputed from a slice.

Each entry gives the DuckDB text of one call over rendered arguments; the result is cast to Spark's type. Where Spark's
result is not what DuckDB computes (a decimal average), an entry is a small expression over simpler calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from viewkeeper.errors import Unsupported
from viewkeeper.model import types
from viewkeeper.plan.expressions import render
from viewkeeper.plan.expressions.rule import is_months
from viewkeeper.plan.nodes import Call, Expr, Order, column

Write = Callable[[Call, Sequence[str], str], str]
"""(call, rendered arguments, the clause behind the call: FILTER or OVER) → DuckDB text."""


def call_sql(call: Call, clause: str) -> str:
    """The call as DuckDB text of the call's type; `clause` stands behind each function."""
    write = AGGREGATES.get(call.function) or WINDOWED.get(call.function)
    if write is None:
        why = _REFUSED.get(call.function, "")
        raise Unsupported(
            f"The function {call.function} is not supported in a materialized view{why and ': ' + why}.",
            hint=f"Supported: {', '.join(sorted({*AGGREGATES, *WINDOWED}))}.",
        )
    args = [render(a) for a in call.args]
    if call.filter is not None:
        condition = render(call.filter)
        args = [f"CASE WHEN {condition} THEN {a} END" for a in args] or [f"CASE WHEN {condition} THEN 1 END"]
    return f"CAST({write(call, args, clause)} AS {types.duckdb(call.type)})"


def parameter(call: Call, name: str, default: Any = None) -> Any:
    """A parameter of the function, as Catalyst names it."""
    return next((v for k, v in call.value or () if k == name), default)


def _plain(function: str) -> Write:
    def write(call: Call, args: Sequence[str], clause: str) -> str:
        distinct = "DISTINCT " if call.distinct else ""
        return f"{function}({distinct}{', '.join(args)}){clause}"

    return write


def _count(call: Call, args: Sequence[str], clause: str) -> str:
    if len(args) > 1:
        present = " AND ".join(f"{a} IS NOT NULL" for a in args)
        inner = f"ROW({', '.join(args)})" if call.distinct else "1"
        return f"count({'DISTINCT ' if call.distinct else ''}CASE WHEN {present} THEN {inner} END){clause}"
    return f"count({'DISTINCT ' if call.distinct else ''}{args[0] if args else '*'}){clause}"


def _sum(call: Call, args: Sequence[str], clause: str) -> str:
    total = _total(call, args, clause)
    if parameter(call, "evalMode") != "TRY" or types.is_float(call.type):
        return total
    # try_sum: NULL where the sum does not fit. (Spark also gives it up when a sum on the way does not.)
    digits = types.decimal_digits(call.args[0].type)
    if digits is None:
        return f"CASE WHEN {total} BETWEEN {-(2**63)} AND {2**63 - 1} THEN {total} END"
    if digits[0] > _WIDEST_TRIED:
        raise Unsupported(f"try_sum of a DECIMAL of more than {_WIDEST_TRIED} digits is not supported.")
    return f"TRY_CAST({total} AS {types.duckdb(call.type)})"


def _total(call: Call, args: Sequence[str], clause: str) -> str:
    # fsum compensates; a plain float sum depends on the order in which DuckDB happens to add.
    function = "fsum" if types.is_float(call.args[0].type) and not call.distinct else "sum"
    return _plain(function)(call, args, clause)


def _average(call: Call, args: Sequence[str], clause: str) -> str:
    argument = call.args[0]
    digits = types.decimal_digits(argument.type)
    total, count = _total(call, args, clause), _plain("count")(call, args, clause)
    if digits is None:
        return f"CAST({total} AS DOUBLE) / nullif({count}, 0)"
    # Spark divides the exact sum by the count and rounds half up: the renderer's own decimal division.
    sum_type = f"decimal({min(38, digits[0] + 10)},{digits[1]})"
    division = Expr("Divide", call.type, (column("$sum", sum_type), column("$count", "decimal(20,0)")), ("ANSI",))
    text = render(division).replace('"$sum"', f"CAST({total} AS {types.duckdb(sum_type)})")
    text = text.replace('"$count"', f"CAST({count} AS DECIMAL(20,0))")
    return f"CASE WHEN {count} > 0 THEN {text} END"


def _sample(function: str) -> Write:
    """Sample variance and its kin: one row gives NULL (Spark 3.1 on), as in DuckDB."""
    return _plain(function)


def _percentile(function: str) -> Write:
    def write(call: Call, args: Sequence[str], clause: str) -> str:
        if len(call.args) < 2 or call.args[1].op != "literal":
            raise Unsupported("percentile needs a constant percentage.")
        if any(f.op != "literal" or str(f.value) != "1" for f in call.args[2:]):
            raise Unsupported("percentile with frequencies is not supported in a materialized view.")
        order = "DESC" if parameter(call, "reverse") else "ASC"
        return f"{function}({args[1]}) WITHIN GROUP (ORDER BY {args[0]} {order}){clause}"

    return write


def _regression(function: str, empty: str = "") -> Write:
    """Over the rows in which both are there. NULL where x does not vary (Spark), where DuckDB divides by zero; and
    `empty` where y does not."""

    def write(call: Call, args: Sequence[str], clause: str) -> str:
        y, x = args
        flat = f"WHEN regr_syy({y}, {x}){clause} = 0 THEN {empty} " if empty else ""
        fit = f"{function}({y}, {x}){clause}"
        return f"CASE WHEN coalesce(regr_sxx({y}, {x}){clause}, 0) = 0 THEN NULL {flat}ELSE {fit} END"

    return write


def _squares(call: Call, args: Sequence[str], clause: str) -> str:
    """The sum of squared distances from the mean."""
    return f"var_pop({args[0]}){clause} * count({args[0]}){clause}"


def _skewness(call: Call, args: Sequence[str], clause: str) -> str:
    # DuckDB corrects for the sample's size and needs three rows; Spark does neither.
    x, n = args[0], f"count({args[0]}){clause}"
    varies = f"var_pop({x}){clause} > 0"
    whole = f"skewness({x}){clause} * ({n} - 2) / sqrt({n}::DOUBLE * ({n} - 1))"
    return f"CASE WHEN {varies} THEN CASE WHEN {n} = 2 THEN 0.0 ELSE {whole} END END"


def _by(function: str) -> Write:
    """The value of the row with the extreme; of several such rows Spark takes any, we the extreme value."""

    def write(call: Call, args: Sequence[str], clause: str) -> str:
        value, order = args
        return f"{function}({value}, ROW({order}, {value})) FILTER ({order} IS NOT NULL){clause}"

    return write


def _mode(call: Call, args: Sequence[str], clause: str) -> str:
    """The most frequent value; of several the least, or with DESC the greatest. (Plain mode(x): Spark takes any.)"""
    if types.is_float(call.args[0].type):
        raise Unsupported("mode of a FLOAT or DOUBLE is not supported.", hint="Cast it to a DECIMAL.")
    counts = f"map_entries(histogram({args[0]}){clause})"
    if parameter(call, "reverseOpt", True):
        return f"list_sort(list_transform({counts}, lambda e: {{'n': -e.value::BIGINT, 'v': e.key}}))[1].v"
    return f"list_reverse_sort(list_transform({counts}, lambda e: {{'n': e.value::BIGINT, 'v': e.key}}))[1].v"


def _listagg(call: Call, args: Sequence[str], clause: str) -> str:
    """The values one after the other, in the given order; equal ones of that by value, where Spark takes any order."""
    ways = parameter(call, "order")
    if ways is None:
        raise Unsupported(
            "listagg without an order depends on the order of rows.", hint="Add WITHIN GROUP (ORDER BY …)."
        )
    if call.type != "string":
        raise Unsupported("listagg of a BINARY is not supported.")
    value, _, *orders = args
    order = [f"{o} {way}" for o, way in zip(orders, ways.split(", "), strict=True)]
    order += [] if call.distinct else [value]
    between = f"coalesce({render(call.args[1])}, '')"
    return f"string_agg({'DISTINCT ' if call.distinct else ''}{value}, {between} ORDER BY {', '.join(order)}){clause}"


_WIDEST_TRIED = 28
"""Digits of a decimal whose sum DuckDB can add up whatever the number of rows."""

_ARRAYS = "there is no ARRAY type"
_REFUSED = {
    "HyperLogLogPlusPlus": "its result is an estimate; count(DISTINCT …) is exact and maintained",
    "ApproximatePercentile": "its result is an estimate; percentile is exact",
    "CollectList": _ARRAYS,
    "CollectSet": _ARRAYS,
    "Last": "it depends on the order of rows; use max_by",
}

AGGREGATES: Mapping[str, Write] = {
    "Count": _count,
    "Sum": _sum,
    "Average": _average,
    "Min": _plain("min"),
    "Max": _plain("max"),
    "StddevSamp": _sample("stddev_samp"),
    "StddevPop": _plain("stddev_pop"),
    "VarianceSamp": _sample("var_samp"),
    "VariancePop": _plain("var_pop"),
    "CovSample": _sample("covar_samp"),
    "CovPopulation": _plain("covar_pop"),
    "BitAndAgg": _plain("bit_and"),
    "BitOrAgg": _plain("bit_or"),
    "BitXorAgg": _plain("bit_xor"),
    "Percentile": _percentile("percentile_cont"),
    "PercentileDisc": _percentile("percentile_disc"),
    "Corr": _regression("corr", "NULL"),
    "RegrR2": _regression("regr_r2", "1.0"),
    "RegrSlope": _regression("regr_slope"),
    "RegrIntercept": _regression("regr_intercept"),
    "RegrSXY": _plain("regr_sxy"),
    "RegrReplacement": _squares,
    "Skewness": _skewness,
    "Kurtosis": _plain("kurtosis_pop"),
    "MaxBy": _by("arg_max_null"),
    "MinBy": _by("arg_min_null"),
    "Mode": _mode,
    "ListAgg": _listagg,
}


def _rank(function: str) -> Write:
    return lambda call, args, clause: f"{function}({', '.join(args)}){clause}"


def _shift(function: str) -> Write:
    def write(call: Call, args: Sequence[str], clause: str) -> str:
        ignore = " IGNORE NULLS" if parameter(call, "ignoreNulls") else ""
        return f"{function}({', '.join(args)}{ignore}){clause}"

    return write


WINDOWED: Mapping[str, Write] = {
    "RowNumber": _rank("row_number"),
    "Rank": _rank("rank"),
    "DenseRank": _rank("dense_rank"),
    "PercentRank": _rank("percent_rank"),
    "CumeDist": _rank("cume_dist"),
    "NTile": _rank("ntile"),
    "Lag": _shift("lag"),
    "Lead": _shift("lead"),
    "First": _shift("first_value"),
    "Last": _shift("last_value"),
    "NthValue": _shift("nth_value"),
}

PEERS = frozenset({"Rank", "DenseRank", "PercentRank", "CumeDist"})
"""Functions that treat rows with equal order as one; for all others over a ROWS frame ties must fall one way."""


def frame_sql(call: Call, order: Sequence[Order]) -> str:
    """The frame clause of a window call."""
    kind, lower, upper = parameter(call, "frame")
    if call.function in WINDOWED and call.function not in ("First", "Last", "NthValue"):
        return ""
    dated = kind == "range" and bool(order) and order[0].expr.type == "date"
    return f" {kind.upper()} BETWEEN {_bound(lower, dated)} AND {_bound(upper, dated)}"


def _bound(bound: Any, dated: bool) -> str:
    """A frame's bound; a number is one of days where the order is by a date."""
    if isinstance(bound, str):
        return bound.upper()
    negative = bound.op == "UnaryMinus"
    distance = bound.args[0] if negative else bound
    if distance.op != "literal" or distance.value is None:
        raise Unsupported("A window frame's bound must be a constant.")
    text = str(distance.value)
    side = "PRECEDING" if negative != text.startswith("-") else "FOLLOWING"
    text = text.lstrip("-")
    if distance.type.startswith("interval "):
        return f"INTERVAL {text} {'MONTH' if is_months(distance.type) else 'MICROSECOND'} {side}"
    return f"INTERVAL {text} DAY {side}" if dated else f"{text} {side}"
