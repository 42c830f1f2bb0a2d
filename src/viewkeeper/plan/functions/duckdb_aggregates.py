"""Aggregates as DuckDB SQL: a writer gives the text of one call over rendered arguments.

DuckDB's own function where it means what Spark's does. Else Spark's formula, over the list of the group's values:

    percentile           place (n − 1)·p among the sorted doubles; between two, lower + part · (upper − lower)
    skewness, kurtosis   Σ(x − mean)^k, shifted by the first value: DuckDB's sums of powers cancel, and raise at ∞

A writer gets the clause that stands behind every call of its text: empty, or OVER. DISTINCT goes into every call, too:
all calls of one text then see the same values.
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
    """A parameter of the function, as Catalyst names it."""
    return next((v for k, v in call.value or () if k == name), default)


def plain_call(function: str) -> CallWriter:
    """DuckDB's function of this name."""

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
    """A sum. (Of floats in a group the aggregate operator adds up; in a window's frame, `operators.folds`.)"""
    text = plain_call("sum")(call, args, clause)
    if parameter(call, "evalMode") != "TRY":
        return text
    # try_sum: NULL where the sum does not fit. (Spark also gives it up when a sum on the way does not.)
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
    # Spark divides the exact sum by the count and rounds half up: the renderer's own decimal division.
    sum_type = types.decimal(min(38, digits[0] + 10), digits[1])
    division = Expr("Divide", call.type, (column("$sum", sum_type), column("$count", types.decimal(20, 0))), ("ANSI",))
    quotient = render(division).replace('"$sum"', f"CAST({text} AS {types.duckdb(sum_type)})")
    quotient = quotient.replace('"$count"', f"CAST({number} AS DECIMAL(20,0))")
    return f"CASE WHEN {number} > 0 THEN {quotient} END"


def percentile(call: Call, args: Sequence[str], clause: str) -> str:
    """percentile, median, percentile_cont."""
    place = f"((len(l) - 1) * {_percentage(call, args)})"
    lower, upper = f"l[floor({place})::BIGINT + 1]", f"l[ceil({place})::BIGINT + 1]"
    between = f"{lower} + ({place} - floor({place})) * ({upper} - {lower})"
    return _over_sorted_values(call, args, clause, f"CASE WHEN {lower} = {upper} THEN {lower} ELSE {between} END")


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
    """`text` over the values as sorted doubles l."""
    given = call.args[0].type
    if any(f.op != "literal" or str(f.value) != "1" for f in call.args[2:]):
        raise Unsupported("percentile with frequencies is not supported in a materialized view.")
    if types.is_interval(given):
        raise Unsupported("percentile of an INTERVAL is not supported.", hint="Take that of a number.")
    double = render(Expr("Cast", types.DOUBLE, (column("x", given),), ("ANSI",)))
    values = f"list_transform({_value_list(call, args, clause)}, lambda x: {double})"
    sort = "list_reverse_sort" if parameter(call, "reverse") else "list_sort"
    return _let("l", f"{sort}({values})", f"CASE WHEN len(l) > 0 THEN {text} END")


def moment(order: int) -> CallWriter:
    """skewness (3) and kurtosis (4), of values that vary; NaN where one of them is not finite."""

    def write(call: Call, args: Sequence[str], clause: str) -> str:
        distances = "list_transform(l, lambda x: x - l[1])"
        mean = "list_sum(d) / len(d)"
        powers = [f"list_sum(list_transform(d, lambda x: {' * '.join([f'(x - {mean})'] * k)}))" for k in (2, order)]
        text = "sqrt(len(d)) * s.b / sqrt(s.a * s.a * s.a)" if order == 3 else "len(d) * s.b / (s.a * s.a) - 3.0"
        sums = _let("s", f"{{'a': {powers[0]}, 'b': {powers[1]}}}", f"CASE WHEN s.a <> 0 THEN {text} END")
        finite = "list_bool_and(list_transform(l, lambda x: isfinite(x)))"
        varied = _let("d", distances, sums)
        found = f"CASE WHEN coalesce(len(l), 0) = 0 THEN NULL WHEN {finite} THEN {varied} ELSE 'nan'::DOUBLE END"
        return _let("l", _value_list(call, args, clause), found)

    return write


def variance(function: str) -> CallWriter:
    """Variance and its kin: NaN where a value is not finite, also of one value alone (DuckDB: 0)."""

    def write(call: Call, args: Sequence[str], clause: str) -> str:
        x, number = args[0], f"count({args[0]}){clause}"
        finite = f"{function}({_distinct(call)}CASE WHEN isfinite({x}) THEN {x} END){clause}"
        enough = 1 if function.endswith("_samp") else 0
        odd = f"CASE WHEN {number} > {enough} THEN 'nan'::DOUBLE END"
        return f"CASE WHEN {_has_nonfinite(x, x, clause)} THEN {odd} ELSE {finite} END"

    return write


def sum_of_squares(call: Call, args: Sequence[str], clause: str) -> str:
    """The sum of squared distances from the mean."""
    return f"{variance('var_pop')(call, args, clause)} * count({_distinct(call)}{args[0]}){clause}"


def covariance(function: str) -> CallWriter:
    """NaN where a value is not finite, if there are rows enough."""

    def write(call: Call, args: Sequence[str], clause: str) -> str:
        a, b = args
        found = f"{function}({_distinct(call)}{a}, {b}){clause}"
        odd = f"{found} IS NOT NULL AND ({_has_nonfinite(a, b, clause)} OR {_has_nonfinite(b, a, clause)})"
        return f"CASE WHEN {odd} THEN 'nan'::DOUBLE ELSE {found} END"

    return write


def regression(function: str, flat: str = "") -> CallWriter:
    """Over the rows in which both are there. NULL where x does not vary (Spark), where DuckDB divides by zero; and
    `flat` where y does not. An x that is not finite varies."""

    def write(call: Call, args: Sequence[str], clause: str) -> str:
        y, x = args
        both = f"({_distinct(call)}{y}, {x}){clause}"
        odd_x, odd_y = _has_nonfinite(x, y, clause), _has_nonfinite(y, x, clause)
        steady = f"WHEN regr_syy{both} = 0 AND NOT {odd_y} THEN {flat} " if flat else ""
        still = f"coalesce(regr_sxx{both}, 0) = 0 AND NOT {odd_x}"
        found = f"CASE WHEN {odd_x} OR {odd_y} THEN 'nan'::DOUBLE ELSE {function}{both} END"
        return f"CASE WHEN {still} THEN NULL {steady}ELSE {found} END"

    return write


def correlation(call: Call, args: Sequence[str], clause: str) -> str:
    """NULL where one of them does not vary, and of one row."""
    found = regression("corr", "NULL")(call, args, clause)
    return f"CASE WHEN regr_count({args[0]}, {args[1]}){clause} > 1 THEN {found} END"


def intercept(call: Call, args: Sequence[str], clause: str) -> str:
    """DuckDB's own is NULL where it should be NaN."""
    both = f"({_distinct(call)}{args[0]}, {args[1]}){clause}"
    slope = regression("regr_slope")(call, args, clause)
    return f"regr_avgy{both} - {slope} * regr_avgx{both}"


def _has_nonfinite(x: str, other: str, clause: str) -> str:
    """Whether some x is not finite, in a row in which the other is there."""
    return f"(count(CASE WHEN NOT isfinite({x}) AND {other} IS NOT NULL THEN 1 END){clause} > 0)"


def extreme_by(function: str) -> CallWriter:
    """The value of the row with the extreme; of several such rows Spark takes any, we the extreme value."""

    def write(call: Call, args: Sequence[str], clause: str) -> str:
        value, order = args[:2]
        if len(args) > 2:
            raise Unsupported(f"{function.replace('arg_', '').replace('_null', '')}_by of several rows is an ARRAY.")
        ordered = sortable(order, call.args[1].type)
        return f"{function}({value}, ROW({ordered}, {value})) FILTER ({order} IS NOT NULL){clause}"

    return write


def mode(call: Call, args: Sequence[str], clause: str) -> str:
    """The most frequent value; of several the least, or with DESC the greatest. (Plain mode(x): Spark takes any.)"""
    if types.is_float(call.args[0].type):
        raise Unsupported("mode of a FLOAT or DOUBLE is not supported.", hint="Cast it to a DECIMAL.")
    counts = f"map_entries(histogram({_distinct(call)}{args[0]}){clause})"
    if parameter(call, "reverseOpt", True):
        return f"list_sort(list_transform({counts}, lambda e: {{'n': -e.value::BIGINT, 'v': e.key}}))[1].v"
    return f"list_reverse_sort(list_transform({counts}, lambda e: {{'n': e.value::BIGINT, 'v': e.key}}))[1].v"


def listagg(call: Call, args: Sequence[str], clause: str) -> str:
    """The values one after the other, in the given order; equal ones of that by value, where Spark takes any order."""
    ways = parameter(call, "order")
    if ways is None:
        raise Unsupported(
            "listagg without an order depends on the order of rows.", hint="Add WITHIN GROUP (ORDER BY …)."
        )
    if call.type != types.STRING:
        raise Unsupported("listagg of a BINARY is not supported.")
    value, _, *orders = args
    order = [f"{o} {way}" for o, way in zip(orders, ways.split(", "), strict=True)]
    order += [] if call.distinct else [value]
    between = f"coalesce({render(call.args[1])}, '')"
    return f"string_agg({_distinct(call)}{value}, {between} ORDER BY {', '.join(order)}){clause}"


_MAX_TRY_SUM_DIGITS = 28
"""Digits of a decimal whose sum DuckDB can add up whatever the number of rows."""


def _distinct(call: Call) -> str:
    return "DISTINCT " if call.distinct else ""


def _value_list(call: Call, args: Sequence[str], clause: str) -> str:
    """The values that are not NULL; NULL or an empty list if there are none."""
    return f"list({_distinct(call)}{args[0]}) FILTER ({args[0]} IS NOT NULL){clause}"


def _let(name: str, value: str, text: str) -> str:
    """`text` with a variable for `value`: a lambda over a list of one element."""
    return f"list_transform([{value}], lambda {name}: {text})[1]"


# Window functions of their own, and frames, as DuckDB SQL.


PEER_FUNCTIONS = frozenset({"Rank", "DenseRank", "PercentRank", "CumeDist"})
"""Functions that treat rows with equal order as one; for all others over a ROWS frame ties must fall one way."""

_FRAMELESS = frozenset({*PEER_FUNCTIONS, "RowNumber", "NTile", "Lag", "Lead"})


_FRAME_ORDER = "order within the frame"


def with_order(call: Call, total: str) -> Call:
    """A call that takes its row from the frame in a total order of its own.

    A RANGE frame needs the window's own order, which leaves open how rows with equal values follow each other. Then
    the first, last or nth row would be whichever the state happens to hold first.
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
    """The frame clause of a window call.

    Spark takes every frame whose bounds are not the wrong way round by their numbers. DuckDB's parser refuses
    `1 FOLLOWING AND CURRENT ROW` and `CURRENT ROW AND 1 PRECEDING`, in which there are no rows, and takes a distance of
    zero for what its word says: such a current row is written as a distance of zero on the other bound's side.
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
    """The distance zero, of the kind that another bound has."""
    return "INTERVAL 0 DAY" if bound.startswith("INTERVAL") else "0"


def _bound_sql(bound: Any, is_by_date: bool) -> str:
    """A frame's bound; a number is one of days where the order is by a date, and at a distance of zero is the row."""
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
