"""Specification of an aggregate: its keys, its measures, and the accumulators that the measures are read from.

An accumulator is a function of a group's rows that adds up: counts and exact sums. A measure's value is read from
accumulators alone, so the aggregate's law is to add the delta's accumulators to the group's and to read again.

    accumulator   columns      holds
    count         one          rows whose argument is not NULL
    sum           one          Σ of integers, or of a decimal's unscaled integers (up to 18 digits)
    wide          two          the same for longer decimals, as Σ of the lower and Σ of the upper 64 bits
    double        one          Σ of integers cast to DOUBLE, which are integers again
    exact         bucket rows  Σ of doubles (`exact_float_sum`)
    square        bucket rows  Σ of their squares

Counts are 64-bit and sums 128-bit integers; none can overflow below 2^62 rows. Decimals enter as their unscaled
integers and leave with the result's scale restored, without a copy. A distinct accumulator counts each value of a group
once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from viewkeeper.errors import Defect, Unsupported
from viewkeeper.model import types
from viewkeeper.model.arrow_buffers import one_chunk
from viewkeeper.model.names import quoted
from viewkeeper.model.schema import Column
from viewkeeper.model.types import Type
from viewkeeper.operators.aggregation import exact_float_sum


@dataclass(frozen=True)
class Measure:
    """One measure: `function` (a Catalyst class name) of the input column `argument` (None: count(*))."""

    name: str
    function: str
    argument: str | None
    argument_type: Type | None
    type: Type
    distinct: bool = False

    @property
    def column(self) -> Column:
        return Column(self.name, self.type)


@dataclass(frozen=True)
class AggregateSpec:
    keys: tuple[Column, ...]
    measures: tuple[Measure, ...]


VARIANCES = ("VariancePop", "VarianceSamp", "StddevPop", "StddevSamp")
EXTREME_FUNCTIONS = ("Min", "Max")


@dataclass(frozen=True)
class Accumulator:
    """One additive quantity of an argument."""

    kind: str
    argument: str
    distinct: bool = False

    @property
    def name(self) -> str:
        return f"¤{self.kind}_{self.argument}{'_distinct' if self.distinct else ''}"

    @property
    def columns(self) -> tuple[str, ...]:
        """Its state columns; accumulators with bucket rows have none of their own."""
        if self.is_bucketed:
            return ()
        return (f"{self.name}_l", f"{self.name}_u") if self.kind == "wide" else (self.name,)

    @property
    def is_count(self) -> bool:
        return self.kind == "count"

    @property
    def is_bucketed(self) -> bool:
        return self.kind in ("exact", "square")

    def terms_sql(self) -> tuple[str, ...]:
        """Return SQL over the raw argument for the term of each state column, before the weight."""
        a = self.argument
        if self.kind == "count":
            return (f"CASE WHEN {quoted(a)} IS NOT NULL THEN 1 ELSE 0 END",)
        if self.kind == "wide":
            return (f"{quoted(raw_lower_column(a))}::HUGEINT", f"{quoted(raw_upper_column(a))}::HUGEINT")
        if self.kind == "double":
            return (f"{quoted(a)}::DOUBLE::HUGEINT",)
        return (f"{quoted(raw_column(a))}::HUGEINT",)

    @property
    def sql_type(self) -> str:
        """The type in SQL; in Arrow, a HUGEINT is decimal128(38, 0)."""
        return "BIGINT" if self.is_count else "HUGEINT"


@dataclass(frozen=True)
class AccumulatorLayout:
    """The state of an aggregate: its accumulators, and the arguments whose values are counted."""

    accumulators: tuple[Accumulator, ...]
    value_arguments: tuple[str, ...]
    extreme_arguments: tuple[str, ...]
    distinct_arguments: tuple[str, ...]

    @cached_property
    def plain_accumulators(self) -> tuple[Accumulator, ...]:
        return tuple(a for a in self.accumulators if not a.is_bucketed)

    @cached_property
    def bucketed_accumulators(self) -> tuple[Accumulator, ...]:
        return tuple(a for a in self.accumulators if a.is_bucketed)

    @cached_property
    def count_columns(self) -> tuple[str, ...]:
        """The state columns that count; the count of all rows is the first."""
        return ("¤n", *(a.name for a in self.plain_accumulators if a.is_count))

    @cached_property
    def sum_columns(self) -> tuple[str, ...]:
        return tuple(c for a in self.plain_accumulators if not a.is_count for c in a.columns)

    @cached_property
    def additive_columns(self) -> tuple[str, ...]:
        """All state columns that add up."""
        columns = tuple(c for a in self.plain_accumulators for c in a.columns)
        return ("¤n", *columns, "¤x") if self.bucketed_accumulators else ("¤n", *columns)


@lru_cache(maxsize=1024)
def accumulator_layout(spec: AggregateSpec) -> AccumulatorLayout:
    accumulators: dict[Accumulator, None] = {}
    extremes: dict[str, None] = {}
    distincts: dict[str, None] = {}
    values: dict[str, None] = {}
    for measure in spec.measures:
        accumulators.update(dict.fromkeys(accumulators_of(measure)))
        if measure.argument is not None and measure.function in EXTREME_FUNCTIONS:
            extremes[measure.argument] = values[measure.argument] = None
        elif measure.argument is not None and measure.distinct:
            distincts[measure.argument] = values[measure.argument] = None
    return AccumulatorLayout(tuple(accumulators), tuple(values), tuple(extremes), tuple(distincts))


def accumulators_of(measure: Measure) -> tuple[Accumulator, ...]:
    """Return the accumulators that a measure is read from."""
    a, d, function = measure.argument, measure.distinct, measure.function
    if a is None:
        if function == "Count":
            return ()
        raise Unsupported(f"{function} needs an argument.")
    if function in EXTREME_FUNCTIONS:
        return (Accumulator("count", a),)
    count = Accumulator("count", a, d)
    if function == "Count":
        return (count,)
    if function in ("Sum", "Average"):
        return (count, sum_accumulator(measure))
    if function in VARIANCES and measure.argument_type in types.FLOATS:
        return (count, Accumulator("exact", a, d), Accumulator("square", a, d))
    raise Unsupported(f"The aggregate {function} of {measure.argument_type} has no kernel.")


def sum_accumulator(measure: Measure) -> Accumulator:
    """Return the accumulator of Sum and Average, by the argument's type."""
    if measure.argument is None:
        raise Defect(f"{measure.function} has no argument.")
    kind = measure.argument_type or types.VOID
    if digits := types.decimal_digits(kind):
        return Accumulator("sum" if digits[0] <= 18 else "wide", measure.argument, measure.distinct)
    if types.is_float(kind):
        return Accumulator("exact", measure.argument, measure.distinct)
    if types.is_integer(kind):
        # Spark's average casts each value to DOUBLE first; only a BIGINT can lose digits by that.
        lossy = measure.function == "Average" and kind == types.BIGINT
        return Accumulator("double" if lossy else "sum", measure.argument, measure.distinct)
    raise Unsupported(f"{measure.function} of {kind} is not supported.")


def raw_column(argument: str) -> str:
    return f"¤r_{argument}"


def raw_lower_column(argument: str) -> str:
    return f"¤rl_{argument}"


def raw_upper_column(argument: str) -> str:
    return f"¤ru_{argument}"


def with_raw_columns(rows: pa.Table, accumulators: Iterable[Accumulator]) -> pa.Table:
    """Return the rows with the raw columns that the accumulators' terms read: integers of decimals, bits of doubles."""
    for accumulator in accumulators:
        a = accumulator.argument
        if accumulator.kind in ("sum", "exact", "square") and raw_column(a) not in rows.column_names:
            column = rows.column(a)
            value = exact_float_sum.double_bits(column) if accumulator.is_bucketed else unscale_decimals(column)
            rows = rows.append_column(raw_column(a), value)
        elif accumulator.kind == "wide" and raw_lower_column(a) not in rows.column_names:
            lower, upper = _split_halves(one_chunk(rows.column(a)))
            rows = rows.append_column(raw_lower_column(a), lower).append_column(raw_upper_column(a), upper)
    return rows


def rescale_decimals(column: Any, arrow_type: pa.DataType) -> Any:
    """Return unscaled integers (decimal128) as decimals of this type: the same bytes under another type."""
    array = one_chunk(column)
    return pa.Array.from_buffers(arrow_type, len(array), array.buffers(), offset=array.offset)


def unscale_decimals(column: Any) -> Any:
    if not pa.types.is_decimal(column.type):
        return column
    return rescale_decimals(column, pa.decimal128(column.type.precision, 0))


def _split_halves(array: Any) -> tuple[Any, Any]:
    """Return the lower and upper 64 bits of decimals, as uint64 and int64 arrays."""
    validity, data = array.buffers()
    words = np.frombuffer(data, np.uint64)[: 2 * (array.offset + len(array))]
    lower, upper = (pa.py_buffer(np.ascontiguousarray(words[i::2])) for i in (0, 1))
    return (
        pa.Array.from_buffers(pa.uint64(), len(array), [validity, lower], offset=array.offset),
        pa.Array.from_buffers(pa.int64(), len(array), [validity, upper], offset=array.offset),
    )
