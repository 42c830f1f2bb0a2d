"""Reading measures from accumulators, as SQL: Spark's result types, Spark's rounding, Spark's overflow errors.

Each accumulator's total comes as a HUGEINT `t` (NULL: beyond 38 digits) and, for doubles, as the rounded sum. A measure
gives two expressions: its value, and the condition under which it is out of range. Decimal results are unscaled
integers here. Decimal averages are exact, HALF_UP:

    T / c at scale k  =  q·10^k + (2·r·10^k + c) div 2c     with q, r = |T| divmod c
"""

from __future__ import annotations

from viewkeeper.model import types
from viewkeeper.operators.measures import VALUE_FUNCTIONS, VARIANCES, Accumulator, summing
from viewkeeper.plan.dataflow import Measure

_UPPER_LIMIT = 10**38 >> 64


def total(accumulator: Accumulator, side: str) -> str:
    """The total, from the sums of the state columns on this side (`o`ld or `n`ew)."""
    if accumulator.kind in ("count", "true"):
        return _column(accumulator, side)
    if accumulator.kind != "wide":
        return f"{_column(accumulator, side)}::HUGEINT"
    # A group's rows are never negative in number, so neither is the sum of their lower halves.
    lower, upper = (f'"{c}_{side}"::HUGEINT' for c in accumulator.columns)
    carried = f"({upper} + ({lower} >> 64))"
    kept = f"({carried} * 18446744073709551616 + ({lower} & 18446744073709551615))"
    return f"CASE WHEN {carried} BETWEEN -{_UPPER_LIMIT} - 1 AND {_UPPER_LIMIT} THEN {kept} END"


def value(measure: Measure, side: str) -> tuple[str, str]:
    """(value, out-of-range condition) of a measure, from columns `<accumulator>_<side>`, `_min_<argument>_<side>`."""
    function, a = measure.function, measure.argument
    if a is None:
        return f"_n_{side}", "FALSE"
    count = _column(Accumulator("count", a, measure.distinct), side)
    true = _column(Accumulator("true", a), side)
    if function == "Count":
        return count, "FALSE"
    if function == "CountIf":
        return true, "FALSE"
    if function in VALUE_FUNCTIONS:
        return f'"_{function.lower()}_{a}_{side}"', "FALSE"
    if function in ("BoolAnd", "BoolOr"):
        return f"CASE WHEN {count} > 0 THEN {true} {'= ' + count if function == 'BoolAnd' else '> 0'} END", "FALSE"
    if function == "Sum":
        return _sum(measure, count, side)
    if function == "Average":
        return _average(measure, count, side)
    return f'"_{measure.name}_{side}"', "FALSE"  # a variance, computed beside


def is_computed(measure: Measure) -> bool:
    """Whether its value comes as a column of its own, `_<name>_o` and `_<name>_n`."""
    return measure.function in VARIANCES


def _sum(measure: Measure, count: str, side: str) -> tuple[str, str]:
    accumulator = summing(measure)
    t = _column(accumulator, side)
    if accumulator.is_bucketed:
        return f"CASE WHEN {count} > 0 THEN {t} END", "FALSE"
    digits = types.decimal_digits(measure.type)
    if digits:
        fits = f"abs({t}) < {10 ** digits[0]}::HUGEINT"
        return f"CASE WHEN {count} > 0 AND {fits} THEN {t}::DECIMAL(38,0) END", _beyond(count, fits)
    fits = f"{t} BETWEEN {-(2**63)}::HUGEINT AND {2**63 - 1}::HUGEINT"
    return f"CASE WHEN {count} > 0 AND {fits} THEN {t}::BIGINT END", _beyond(count, fits)


def _average(measure: Measure, count: str, side: str) -> tuple[str, str]:
    accumulator = summing(measure)
    t = _column(accumulator, side)
    if accumulator.is_bucketed:
        return f"CASE WHEN {count} > 0 THEN {t} / {count} END", "FALSE"
    given, result = types.decimal_digits(measure.argument_type or ""), types.decimal_digits(measure.type)
    if not given or not result:
        return f"CASE WHEN {count} > 0 THEN {nearest_double(t)} / {count} END", "FALSE"
    precision, scale = result
    power = 10 ** (scale - given[1])
    c = f"{count}::HUGEINT"
    whole, rest = f"(abs({t}) // {c})", f"(abs({t}) % {c})"
    # The sum has to fit Spark's type for it, and the quotient the result's.
    fits = f"abs({t}) < {10 ** min(38, given[0] + 10)}::HUGEINT AND {whole} < {10**precision // power}::HUGEINT"
    size = f"({whole} * {power} + (2 * {rest} * {power} + {c}) // (2 * {c}))"
    shown = f"(CASE WHEN {t} < 0 THEN -{size} ELSE {size} END)::DECIMAL(38,0)"
    return f"CASE WHEN {count} > 0 AND {fits} THEN {shown} END", _beyond(count, fits)


def nearest_double(integer: str) -> str:
    """The double nearest to a HUGEINT, ties to even.

    Below 2^85 it is the sum of two exact doubles, which the one addition rounds. Above, low bits are first folded
    into one sticky bit, which lies far below the place where rounding looks.
    """
    size = f"abs({integer})"
    pieces = []
    for limit, shift in ((2**85, 0), (2**115, 30), (None, 42)):
        folded = f"(({size} >> {shift}) | CASE WHEN {size} & {2**shift - 1} = 0 THEN 0 ELSE 1 END)" if shift else size
        nearest = f"(({folded} >> 32)::DOUBLE * 4294967296.0::DOUBLE + ({folded} & 4294967295)::DOUBLE)"
        scaled = f"{nearest} * {2**shift}::DOUBLE" if shift else nearest
        pieces.append(f"WHEN {size} < {limit}::HUGEINT THEN {scaled}" if limit else f"ELSE {scaled}")
    return f"(sign({integer})::DOUBLE * CASE {' '.join(pieces)} END)"


def _beyond(count: str, fits: str) -> str:
    return f"({count} > 0 AND coalesce({fits}, FALSE) = FALSE)"


def _column(accumulator: Accumulator, side: str) -> str:
    return f'"{accumulator.name}_{side}"'
