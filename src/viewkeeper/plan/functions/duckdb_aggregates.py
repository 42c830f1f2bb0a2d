"""Writers of DuckDB SQL for aggregates: the text of one call over rendered arguments.

DuckDB's own function is used if it has the semantics of Spark's. Otherwise Spark's formula is written over the list of
the group's values:

    percentile           position (n − 1)·p among the sorted doubles; between two, lower + part · (upper − lower)
    skewness, kurtosis   Σ(x − mean)^k, shifted by the first value: DuckDB's sums of powers cancel, and raise at ∞

A writer receives the clause that follows every call in its text: empty, or OVER. DISTINCT is added to every call as
well, so all calls of one text aggregate the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from viewkeeper.errors import Unsupported
from viewkeeper.expressions import render
from viewkeeper.expressions.rules.structs import sortable
from viewkeeper.model import types
from viewkeeper.model.types import Kind
from viewkeeper.plan.logical.nodes import Call, Expr, Order, column

CallWriter = Callable[[Call, Sequence[str], str], str]
"""(call, rendered arguments, the clause behind the call) → DuckDB text."""


def parameter(call: Call, name: str, default: Any = None) -> Any:
    """Return a parameter of the function by Catalyst's name."""
    return next((v for k, v in call.value or () if k == name), default)


def plain_call(function: str) -> CallWriter:
    """Return the writer of DuckDB's function of this name."""

    def write(call: Call, args: Sequence[str], clause: str) -> str:
        return f"{function}({_distinct(call)}{', '.join(args)}){clause}"

    return write


def count(call: Call, args: Sequence[str], clause: str) -> str:
    if len(args) > 1:
        present = " AND ".join(f"{a} IS NOT NULL" for a in args)
        inner = f"ROW({', '.join(args)})" if call.distinct else "1"
        return f"count({_distinct(call)}CASE WHEN {present} THEN {inner} END){clause}"
    return f"count({_distinct(call)}{args[0] if args else '*'}){clause}"


def total(call: Call, args: Sequence[str], clause: str) -> str:
    """A sum. Not for floats in a group (the aggregate operator sums them) or in a window's frame (`FloatFrameSum`)."""
    text = plain_call("sum")(call, args, clause)
    if parameter(call, "evalMode") != "TRY":
        return text
    # try_sum: NULL if the sum does not fit its type. (Spark also returns NULL if an intermediate sum does not fit.)
    digits = types.decimal_digits(call.args[0].type)
    if digits is None:
        return f"CASE WHEN {text} BETWEEN {-(2**63)} AND {2**63 - 1} THEN {text} END"
    if digits[0] > _MAX_TRY_SUM_DIGITS:
        raise Unsupported(f"try_sum of a DECIMAL of more than {_MAX_TRY_SUM_DIGITS} digits is not supported.")
    return f"TRY_CAST({text} AS {types.duckdb(call.type)})"


def average(call: Call, args: Sequence[str], clause: str) -> str:
    digits = types.decimal_digits(call.args[0].type)
    text, number = (plain_call(f)(call, args, clause) for f in ("sum", "count"))
    if digits is None:
        return f"CAST({text} AS DOUBLE) / nullif({number}, 0)"
    # Spark divides the exact sum by the count and rounds half up, as the renderer's decimal division does.
    sum_type = types.decimal(min(38, digits[0] + 10), digits[1])
    division = Expr("Divide", call.type, (column("$sum", sum_type), column("$count", types.decimal(20, 0))), ("ANSI",))
    quotient = render(division).replace('"$sum"', f"CAST({text} AS {types.duckdb(sum_type)})")
    quotient = quotient.replace('"$count"', f"CAST({number} AS DECIMAL(20,0))")
    return f"CASE WHEN {number} > 0 THEN {quotient} END"


def percentile(call: Call, args: Sequence[str], clause: str) -> str:
    """percentile, median, percentile_cont."""
    position = f"((len(l) - 1) * {_percentage(call, args)})"
    lower, upper = f"l[floor({position})::BIGINT + 1]", f"l[ceil({position})::BIGINT + 1]"
    interpolated = f"{lower} + ({position} - floor({position})) * ({upper} - {lower})"
    return _over_sorted_values(call, args, clause, f"CASE WHEN {lower} = {upper} THEN {lower} ELSE {interpolated} END")


def percentile_disc(call: Call, args: Sequence[str], clause: str) -> str:
    if parameter(call, "legacyCalculation"):
        raise Unsupported(
            "percentile_disc as Spark computed it before 4.0 is not supported.",
            hint="Set spark.sql.legacy.percentileDiscCalculation to false.",
        )
    return _over_sorted_values(call, args, clause, f"l[greatest(ceil(len(l) * {_percentage(call, args)}), 1)::BIGINT]")


def _percentage(call: Call, args: Sequence[str]) -> str:
    if call.args[1].op != "literal":
        raise Unsupported("percentile of an array of percentages is not supported.", hint="Write one call for each.")
    return args[1]


def _over_sorted_values(call: Call, args: Sequence[str], clause: str, text: str) -> str:
    """Return `text` over the values as sorted doubles l."""
    value_type = call.args[0].type
    if any(f.op != "literal" or str(f.value) != "1" for f in call.args[2:]):
        raise Unsupported("percentile with frequencies is not supported in a materialized view.")
    if types.is_interval(value_type):
        raise Unsupported("percentile of an INTERVAL is not supported.", hint="Take that of a number.")
    double = render(Expr("Cast", types.DOUBLE, (column("x", value_type),), ("ANSI",)))
    values = f"list_transform({_value_list(call, args, clause)}, lambda x: {double})"
    sort = "list_reverse_sort" if parameter(call, "reverse") else "list_sort"
    return _let("l", f"{sort}({values})", f"CASE WHEN len(l) > 0 THEN {text} END")


def moment(order: int) -> CallWriter:
    """skewness (3) and kurtosis (4): NULL if the values do not vary, NaN if one of them is not finite."""

    def write(call: Call, args: Sequence[str], clause: str) -> str:
        distances = "list_transform(l, lambda x: x - l[1])"
        mean = "list_sum(d) / len(d)"
        powers = [f"list_sum(list_transform(d, lambda x: {' * '.join([f'(x - {mean})'] * k)}))" for k in (2, order)]
        text = "sqrt(len(d)) * s.b / sqrt(s.a * s.a * s.a)" if order == 3 else "len(d) * s.b / (s.a * s.a) - 3.0"
        sums = _let("s", f"{{'a': {powers[0]}, 'b': {powers[1]}}}", f"CASE WHEN s.a <> 0 THEN {text} END")
        finite = "list_bool_and(list_transform(l, lambda x: isfinite(x)))"
        moments = _let("d", distances, sums)
        moment_sql = f"CASE WHEN coalesce(len(l), 0) = 0 THEN NULL WHEN {finite} THEN {moments} ELSE 'nan'::DOUBLE END"
        return _let("l", _value_list(call, args, clause), moment_sql)

    return write


def variance(function: str) -> CallWriter:
    """Variance and standard deviation: NaN if a value is not finite, also for a single value (DuckDB: 0)."""

    def write(call: Call, args: Sequence[str], clause: str) -> str:
        x, number = args[0], f"count({args[0]}){clause}"
        finite = f"{function}({_distinct(call)}CASE WHEN isfinite({x}) THEN {x} END){clause}"
        enough = 1 if function.endswith("_samp") else 0
        nonfinite = f"CASE WHEN {number} > {enough} THEN 'nan'::DOUBLE END"
        return f"CASE WHEN {_has_nonfinite(x, x, clause)} THEN {nonfinite} ELSE {finite} END"

    return write


def sum_of_squares(call: Call, args: Sequence[str], clause: str) -> str:
    """The sum of squared distances from the mean."""
    return f"{variance('var_pop')(call, args, clause)} * count({_distinct(call)}{args[0]}){clause}"


def covariance(function: str) -> CallWriter:
    """Covariance: NaN if a value is not finite and there are enough rows."""

    def write(call: Call, args: Sequence[str], clause: str) -> str:
        a, b = args
        result = f"{function}({_distinct(call)}{a}, {b}){clause}"
        is_nonfinite = f"{result} IS NOT NULL AND ({_has_nonfinite(a, b, clause)} OR {_has_nonfinite(b, a, clause)})"
        return f"CASE WHEN {is_nonfinite} THEN 'nan'::DOUBLE ELSE {result} END"

    return write


def regression(function: str, flat: str = "") -> CallWriter:
    """Regression over the rows in which both arguments are not NULL.

    The result is NULL if x does not vary (as in Spark; DuckDB divides by zero), and `flat` if y does not. An x that is
    not finite counts as varying.
    """

    def write(call: Call, args: Sequence[str], clause: str) -> str:
        y, x = args
        both = f"({_distinct(call)}{y}, {x}){clause}"
        nonfinite_x, nonfinite_y = _has_nonfinite(x, y, clause), _has_nonfinite(y, x, clause)
        flat_branch = f"WHEN regr_syy{both} = 0 AND NOT {nonfinite_y} THEN {flat} " if flat else ""
        is_constant_x = f"coalesce(regr_sxx{both}, 0) = 0 AND NOT {nonfinite_x}"
        result = f"CASE WHEN {nonfinite_x} OR {nonfinite_y} THEN 'nan'::DOUBLE ELSE {function}{both} END"
        return f"CASE WHEN {is_constant_x} THEN NULL {flat_branch}ELSE {result} END"

    return write


def correlation(call: Call, args: Sequence[str], clause: str) -> str:
    """Correlation: NULL if an argument does not vary, and for a single row."""
    result = regression("corr", "NULL")(call, args, clause)
    return f"CASE WHEN regr_count({args[0]}, {args[1]}){clause} > 1 THEN {result} END"


def intercept(call: Call, args: Sequence[str], clause: str) -> str:
    """Intercept, written out because DuckDB's own is NULL where it should be NaN."""
    both = f"({_distinct(call)}{args[0]}, {args[1]}){clause}"
    slope = regression("regr_slope")(call, args, clause)
    return f"regr_avgy{both} - {slope} * regr_avgx{both}"


def _has_nonfinite(x: str, other: str, clause: str) -> str:
    """Return whether some x is not finite in a row whose other argument is not NULL."""
    return f"(count(CASE WHEN NOT isfinite({x}) AND {other} IS NOT NULL THEN 1 END){clause} > 0)"


def extreme_by(function: str) -> CallWriter:
    """The value of the row with the extreme; of several such rows Spark returns any, this writer the extreme value."""

    def write(call: Call, args: Sequence[str], clause: str) -> str:
        value, order = args[:2]
        if len(args) > 2:
            raise Unsupported(f"{function.replace('arg_', '').replace('_null', '')}_by of several rows is an ARRAY.")
        ordered = sortable(order, call.args[1].type)
        return f"{function}({value}, ROW({ordered}, {value})) FILTER ({order} IS NOT NULL){clause}"

    return write


def mode(call: Call, args: Sequence[str], clause: str) -> str:
    """The most frequent value; of several the least, or with DESC the greatest. (For plain mode(x) Spark
    returns any.)"""
    if types.is_float(call.args[0].type):
        raise Unsupported("mode of a FLOAT or DOUBLE is not supported.", hint="Cast it to a DECIMAL.")
    counts = f"map_entries(histogram({_distinct(call)}{args[0]}){clause})"
    if parameter(call, "reverseOpt", True):
        return f"list_sort(list_transform({counts}, lambda e: {{'n': -e.value::BIGINT, 'v': e.key}}))[1].v"
    return f"list_reverse_sort(list_transform({counts}, lambda e: {{'n': e.value::BIGINT, 'v': e.key}}))[1].v"


def listagg(call: Call, args: Sequence[str], clause: str) -> str:
    """The values concatenated in the given order; ties are ordered by value, where Spark's order is undefined."""
    directions = parameter(call, "order")
    if directions is None:
        raise Unsupported(
            "listagg without an order depends on the order of rows.", hint="Add WITHIN GROUP (ORDER BY …)."
        )
    if call.type != types.STRING:
        raise Unsupported("listagg of a BINARY is not supported.")
    value, _, *orders = args
    order = [f"{o} {direction}" for o, direction in zip(orders, directions.split(", "), strict=True)]
    order += [] if call.distinct else [value]
    delimiter = f"coalesce({render(call.args[1])}, '')"
    return f"string_agg({_distinct(call)}{value}, {delimiter} ORDER BY {', '.join(order)}){clause}"


_MAX_TRY_SUM_DIGITS = 28
"""Maximum digits of a decimal whose sum DuckDB can compute for any number of rows."""


def _distinct(call: Call) -> str:
    return "DISTINCT " if call.distinct else ""


def _value_list(call: Call, args: Sequence[str], clause: str) -> str:
    """Return the list of values that are not NULL; NULL or an empty list if there are none."""
    return f"list({_distinct(call)}{args[0]}) FILTER ({args[0]} IS NOT NULL){clause}"


def _let(name: str, value: str, text: str) -> str:
    """Return `text` with a variable bound to `value`: a lambda over a list of one element."""
    return f"list_transform([{value}], lambda {name}: {text})[1]"


# Window functions and frames as DuckDB SQL.


PEER_FUNCTIONS = frozenset({"Rank", "DenseRank", "PercentRank", "CumeDist"})
"""Functions that treat rows with equal order as one; for all others over a ROWS frame, ties need a total order."""

_FRAMELESS = frozenset({*PEER_FUNCTIONS, "RowNumber", "NTile", "Lag", "Lead"})


_FRAME_ORDER = "order within the frame"


def with_order(call: Call, total: str) -> Call:
    """Return the call with a total order of its own, if it picks a row of the frame.

    A RANGE frame needs the window's own order, which does not order rows with equal values. Without a total order the
    first, last or nth row would depend on the order of rows in the state.
    """
    if call.function not in ("First", "Last", "NthValue"):
        return call
    return replace(call, value=(*(call.value or ()), (_FRAME_ORDER, total)))


def ranking(function: str) -> CallWriter:
    return lambda call, args, clause: f"{function}({', '.join(args)}){clause}"


def shift(function: str) -> CallWriter:
    def write(call: Call, args: Sequence[str], clause: str) -> str:
        order = f" ORDER BY {within}" if (within := parameter(call, _FRAME_ORDER)) else ""
        ignore = " IGNORE NULLS" if parameter(call, "ignoreNulls") else ""
        return f"{function}({', '.join(args)}{order}{ignore}){clause}"

    return write


def frame_sql(call: Call, order: Sequence[Order]) -> str:
    """Return the frame clause of a window call.

    Spark accepts every frame whose bounds are in ascending order as numbers. DuckDB's parser refuses `1 FOLLOWING AND
    CURRENT ROW` and `CURRENT ROW AND 1 PRECEDING`, which contain no rows, but accepts a distance of zero on either
    side. In such frames the current row is therefore written as a distance of zero on the other bound's side.
    """
    kind, lower, upper = parameter(call, "frame")
    if call.function in _FRAMELESS:
        return ""
    dated = kind == "range" and bool(order) and order[0].expr.type == types.DATE
    first, last = _bound_sql(lower, dated), _bound_sql(upper, dated)
    if first == _CURRENT and last.endswith(f" {_BEFORE}"):
        first = f"{_zero_distance(last)} {_BEFORE}"
    if last == _CURRENT and first.endswith(f" {_AFTER}"):
        last = f"{_zero_distance(first)} {_AFTER}"
    return f" {kind.upper()} BETWEEN {first} AND {last}"


_CURRENT, _BEFORE, _AFTER = "CURRENT ROW", "PRECEDING", "FOLLOWING"


def _zero_distance(bound: str) -> str:
    """Return a distance of zero, of the same type as another bound."""
    return "INTERVAL 0 DAY" if bound.startswith("INTERVAL") else "0"


def _bound_sql(bound: Any, is_by_date: bool) -> str:
    """Return a frame bound; a number means days if the order is by a date, and a distance of zero is the
    current row."""
    if isinstance(bound, str):
        return bound.upper()
    negative = bound.op == "UnaryMinus"
    distance = bound.args[0] if negative else bound
    if distance.op != "literal" or distance.value is None:
        raise Unsupported("A window frame's bound must be a constant.")
    text = str(distance.value)
    side = _BEFORE if negative != text.startswith("-") else _AFTER
    text = text.lstrip("-")
    if float(text) == 0:
        return _CURRENT
    if types.is_interval(distance.type):
        return f"INTERVAL {text} {'MONTH' if distance.type.kind is Kind.MONTHS else 'MICROSECOND'} {side}"
    return f"INTERVAL {text} DAY {side}" if is_by_date else f"{text} {side}"
