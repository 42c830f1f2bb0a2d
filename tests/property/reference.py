"""Slow, obvious twins of the kernels: Python over Counters of rows, exact numbers as Fractions.

A relation is a `Counter` of row tuples. Nothing here is incremental: `aggregate` groups all rows and reads each measure
from the list of its values, as the SQL standard would say it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

from viewkeeper.model.types import VOID, decimal_digits
from viewkeeper.operators.aggregation.spec import AggregateSpec, Measure

Row = tuple[Any, ...]
Rows = Counter[Row]

_WIDE = Context(prec=200)


def same(value: Any) -> Any:
    """A value as a dictionary key under which NaN equals NaN."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def rows_of(table: pa.Table) -> Rows:
    """A delta as a Counter, zeros dropped."""
    names = [c for c in table.column_names if c not in ("¤w", "¤h")]
    weights = table.column("¤w").to_pylist() if "¤w" in table.column_names else [1] * table.num_rows
    counted: Rows = Counter()
    columns = [table.column(c).to_pylist() for c in names]
    for i, weight in enumerate(weights):
        counted[tuple(same(c[i]) for c in columns)] += weight
    return Counter({row: n for row, n in counted.items() if n})


def aggregate(spec: AggregateSpec, columns: Sequence[str], rows: Rows) -> Rows:
    """The aggregate's output over all rows. Raises OverflowError where a result does not fit its type."""
    groups: dict[Row, list[tuple[Row, int]]] = defaultdict(list)
    if not spec.keys:
        groups[()] = []
    for row, n in rows.items():
        groups[tuple(row[columns.index(k.name)] for k in spec.keys)].append((row, n))
    out: Rows = Counter()
    for key, members in groups.items():
        values = []
        for measure in spec.measures:
            place = columns.index(measure.argument) if measure.argument is not None else None
            values.append(_measure(measure, place, members))
        out[(*key, *(same(v) for v in values))] = 1
    return out


def _measure(measure: Measure, place: int | None, members: list[tuple[Row, int]]) -> Any:
    if place is None:
        return sum(n for _, n in members)
    values = [row[place] for row, n in members for _ in range(n) if row[place] is not None]
    values = [math.nan if v == "NaN" else v for v in values]
    if measure.distinct:
        values = list({same(v): v for v in values}.values())
    return _FUNCTIONS[measure.function](measure, values)


def _count(measure: Measure, values: list[Any]) -> int:
    return len(values)


def _sum(measure: Measure, values: list[Any]) -> Any:
    if not values:
        return None
    if isinstance(values[0], float):
        return exact_sum(values)
    total = sum((Fraction(v) for v in values), Fraction(0))
    if digits := decimal_digits(measure.type):
        return _decimal(total, *digits)
    if not -(2**63) <= total < 2**63:
        raise OverflowError(total)
    return int(total)


def _average(measure: Measure, values: list[Any]) -> Any:
    if not values:
        return None
    if digits := decimal_digits(measure.type):
        total = sum((Fraction(v) for v in values), Fraction(0))
        given = decimal_digits(measure.argument_type or VOID)
        assert given is not None
        _decimal(total, min(38, given[0] + 10), given[1])
        return _decimal(total / len(values), *digits)
    total_float = exact_sum([float(v) for v in values])
    return total_float / len(values)


def _decimal(value: Fraction, precision: int, scale: int) -> Decimal:
    """HALF_UP at the scale; an error where it needs more digits."""
    scaled = abs(value) * 10**scale
    unscaled = int(scaled + Fraction(1, 2))
    if unscaled >= 10**precision:
        raise OverflowError(value)
    return _WIDE.scaleb(Decimal(-unscaled if value < 0 else unscaled), -scale)


def exact_sum(values: Sequence[float]) -> float:
    """The double nearest to the exact sum."""
    kinds = {v for v in values if math.isinf(v)}
    if any(math.isnan(v) for v in values) or len(kinds) == 2:
        return math.nan
    if kinds:
        return kinds.pop()
    return nearest(sum((Fraction(v) for v in values), Fraction(0)))


def nearest(value: Fraction) -> float:
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def order(value: Any) -> Any:
    """NaN is the greatest."""
    return (1, 0.0) if isinstance(value, float) and math.isnan(value) else (0, value)


def _min(measure: Measure, values: list[Any]) -> Any:
    return min(values, key=order, default=None)


def _max(measure: Measure, values: list[Any]) -> Any:
    return max(values, key=order, default=None)


def _variance(measure: Measure, values: list[Any]) -> float | None:
    n = len(values)
    below = n - 1 if measure.function.endswith("Samp") else n
    if n == 0 or below == 0:
        return None
    if not all(math.isfinite(v) for v in values):
        return math.nan
    mean = sum((Fraction(v) for v in values), Fraction(0)) / n
    variance = nearest(sum(((Fraction(v) - mean) ** 2 for v in values), Fraction(0)) / below)
    return math.sqrt(variance) if measure.function.startswith("Stddev") else variance


_FUNCTIONS: dict[str, Callable[[Measure, list[Any]], Any]] = {
    "Count": _count,
    "Sum": _sum,
    "Average": _average,
    "Min": _min,
    "Max": _max,
    **dict.fromkeys(("VariancePop", "VarianceSamp", "StddevPop", "StddevSamp"), _variance),
}
