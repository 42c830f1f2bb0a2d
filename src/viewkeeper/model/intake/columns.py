"""Conversion of one column of user data to the column's type. A value that does not fit is an error.

Values come as a Python list or as Arrow data; the result has the column's internal type (`types.arrow`). Nothing is
rounded, truncated or wrapped: a value that does not fit raises an error with the number of the first such row.

    column type         Python values                 Arrow types
    BOOLEAN             bool                          bool
    TINYINT … BIGINT    int                           integers, floats without a fraction (pandas keeps ints so)
    FLOAT, DOUBLE       float, int                    floats and integers, if the value stays the same
    DECIMAL(p,s)        Decimal, int, text            decimals, integers, text
    STRING              str                           text, valid UTF-8
    BINARY              bytes                         binary
    DATE                date, ISO text                dates, timestamps at midnight (pandas has no dates), ISO text
    TIMESTAMP           datetime, ISO text            timestamps, ISO text; without a zone they are in UTC
    TIMESTAMP_NTZ       datetime, ISO text, no zone   timestamps without a zone, ISO text

The only exception is a Python number for a FLOAT column, which is rounded, because Python has no 32-bit floats. A float
is never accepted as a decimal: the conversion would add digits that the user did not write.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import BadValue
from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.model.types import Family, Type

Values = Any
"""A Python list or a pyarrow ChunkedArray; both have a length and support slices."""


class _ValueMismatch(Exception):
    """A value does not fit; a search over slices finds the first one."""


class _TypeMismatch(Exception):
    """The Arrow type does not fit, whatever the values are."""


def column_values(table: str, column: Column, values: Values) -> pa.Array:
    """Return the values as one array of the internal type; raise BadValue for the first row that does not fit."""
    try:
        array = _convert(column.type, values)
    except _TypeMismatch:
        raise BadValue(
            f"{table}.{column.name}: Arrow type {values.type} does not fit {column.type.sql}.",
            hint=f"Cast it first: {accepted_values(column.type)}",
        ) from None
    except _CONVERSION_ERRORS:
        row = _find_first_invalid(column.type, values)
        raise BadValue(
            f"{table}.{column.name}, row {row + 1}: {_value_text(values, row)} is no {column.type.sql} value.",
            hint=f"Give {accepted_values(column.type)}",
        ) from None
    if not column.nullable and array.null_count:
        row = pc.index(array.is_null(), True).as_py()
        raise BadValue(
            f"{table}.{column.name}, row {row + 1}: NULL or missing, but the column is NOT NULL.",
            hint="Give every row a value for it.",
        )
    return array


def accepted_values(type_: Type) -> str:
    """Return what a column of this type accepts, as the end of a sentence."""
    if digits := types.decimal_digits(type_):
        precision, scale = digits
        return f"text, an int or a Decimal with at most {precision - scale} digits before and {scale} after the point."
    if types.is_integer(type_):
        bits = types.bit_width(type_)
        return f"an integer from {-(2 ** (bits - 1))} to {2 ** (bits - 1) - 1}."
    return {
        types.BOOLEAN: "True or False.",
        types.FLOAT: "a number in the range of a 32-bit float.",
        types.DOUBLE: "a number that a 64-bit float holds exactly.",
        types.STRING: "text that is valid UTF-8.",
        types.BINARY: "bytes.",
        types.DATE: "a date, or text such as '2024-02-29'.",
        types.TIMESTAMP: "a datetime, or text such as '2024-02-29 12:30:00' (UTC) or '2024-02-29T12:30:00+02:00'.",
        types.TIMESTAMP_NTZ: "a datetime without a zone, or text such as '2024-02-29 12:30:00'.",
    }[type_]


def _convert(type_: Type, values: Values) -> pa.Array:
    target = types.arrow(type_)
    array = _from_python(type_, values) if isinstance(values, list) else _unpack_encodings(values)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), target)
    return _FROM_ARROW[type_.family](array, type_)


_CONVERSION_ERRORS = (_ValueMismatch, pa.ArrowException, OverflowError, ValueError, TypeError)


def _find_first_invalid(type_: Type, values: Values) -> int:
    """Return the index of the first value that does not fit, by bisection (about two more passes, after an error)."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _convert(type_, values[low:middle])
            low = middle
        except _CONVERSION_ERRORS:
            high = middle
    return low


def _value_text(values: Values, row: int) -> str:
    if isinstance(values, list):
        text = repr(values[row])
    else:
        try:
            text = repr(values[row].as_py())
        except ValueError:  # a date past the year 9999, or text that is not UTF-8: Python has no such value
            text = "the value"
        except OverflowError:
            text = "the value"
    return text if len(text) <= 60 else text[:57] + "..."


# -- from Python -------------------------------------------------------------------------------------------------------

_PYTHON_CLASSES: dict[Family, tuple[tuple[type, ...], tuple[type, ...]]] = {
    Family.BOOLEAN: ((bool, np.bool_), ()),
    Family.INTEGER: ((int, np.integer), (bool,)),
    Family.FLOAT: ((float, int, np.floating, np.integer), (bool,)),
    Family.DECIMAL: ((Decimal, int, np.integer, str), (bool,)),
    Family.TEXT: ((str,), ()),
    Family.BINARY: ((bytes, bytearray, memoryview), ()),
    Family.DATE: ((date, str), (datetime,)),
    Family.TIME: ((datetime, str), ()),
}
"""For each family the accepted Python classes, and their subclasses that are rejected."""


def _from_python(type_: Type, values: list[Any]) -> pa.Array:
    """Check the classes of a Python list and return an Arrow array for `_FROM_ARROW`."""
    family = type_.family
    accepted, rejected = _PYTHON_CLASSES[family]
    kinds = set(map(type, values)) - {type(None)}
    if any(not issubclass(kind, accepted) or issubclass(kind, rejected) for kind in kinds):
        raise _ValueMismatch
    if family is Family.DECIMAL:
        return pa.array([v if v is None or type(v) is str else str(v) for v in values], pa.string())
    if family in (Family.DATE, Family.TIME):
        if type_ == types.TIMESTAMP_NTZ and any(v.tzinfo for v in values if isinstance(v, datetime)):
            raise _ValueMismatch
        if str in kinds:
            return pa.array([v.isoformat() if isinstance(v, date) else v for v in values], pa.string())
        return pa.array(values, types.arrow(type_))
    if type_ == types.FLOAT:
        wide = pa.array(values, pa.float64())
        return _require(wide.cast(pa.float32()), lambda narrow: pc.equal(pc.is_inf(narrow), pc.is_inf(wide)))
    natural = {Family.INTEGER: pa.int64(), Family.FLOAT: pa.float64()}
    return pa.array(values, natural.get(family, types.arrow(type_)))


# -- from Arrow --------------------------------------------------------------------------------------------------------


def _unpack_encodings(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decode dictionaries, run-end encoding and views."""
    source = values.type
    if pa.types.is_run_end_encoded(source):
        return _unpack_encodings(pa.chunked_array([pc.run_end_decode(c) for c in values.chunks], source.value_type))
    if pa.types.is_dictionary(source):
        # Via plain text: pyarrow has no `take` for a dictionary of string views.
        words = pa.chunked_array([c.dictionary for c in values.chunks], source.value_type)
        plain = _unpack_encodings(words).type
        chunks = [
            pa.DictionaryArray.from_arrays(c.indices, c.dictionary.cast(plain)).dictionary_decode()
            for c in values.chunks
        ]
        return pa.chunked_array(chunks, plain)
    if pa.types.is_string_view(source) or pa.types.is_large_string(source):
        return values.cast(pa.string())
    if pa.types.is_binary_view(source) or pa.types.is_large_binary(source) or pa.types.is_fixed_size_binary(source):
        return values.cast(pa.binary())
    return values


def _require(array: pa.Array, predicate: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return the array if `predicate` is true or NULL for all of it, else raise."""
    if not pc.all(predicate(array), skip_nulls=True, min_count=0).as_py():
        raise _ValueMismatch
    return array


def _require_type(array: pa.Array, type_: Type) -> pa.Array:
    if array.type != types.arrow(type_):
        raise _TypeMismatch
    return array


def _to_string(array: pa.Array, type_: Type) -> pa.Array:
    _require_type(array, type_).validate(full=True)
    return array


def _to_integer(array: pa.Array, type_: Type) -> pa.Array:
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        raise _TypeMismatch
    return array.cast(types.arrow(type_))


def _to_floating(array: pa.Array, type_: Type) -> pa.Array:
    target = types.arrow(type_)
    if pa.types.is_integer(array.type) or not pa.types.is_floating(array.type):
        return _to_integer(array, type_)
    narrow = array.cast(target)
    if target.bit_width < array.type.bit_width:
        back = narrow.cast(array.type)
        _require(array, lambda wide: pc.or_(pc.equal(wide, back), pc.is_nan(wide)))
    return narrow


def _to_decimal(array: pa.Array, type_: Type) -> pa.Array:
    source, target = array.type, types.arrow(type_)
    if pa.types.is_integer(source):
        array = array.cast(pa.decimal128(20, 0))
    elif not (pa.types.is_decimal(source) or pa.types.is_string(source)):
        raise _TypeMismatch
    # Arrow rescales without noticing a 128-bit overflow (10^10 as decimal(38,38) becomes 0.1896…). A value that far out
    # of range is detected as a float; Arrow checks the exact limit.
    bound = 10.0 ** (target.precision - target.scale) * (1 + 1e-9)
    _require(array.cast(pa.float64()), lambda size: pc.less(pc.abs(size), bound))
    return array.cast(target)


_DATE_RANGE = (-719_162, 2_932_896)
"""Days of 0001-01-01 and 9999-12-31, the range of dates that both Spark and Python support."""


def _to_date(array: pa.Array, type_: Type) -> pa.Array:
    source = array.type
    if pa.types.is_timestamp(source) and source.tz is None:
        days = array.cast(pa.date32())
        _require(array, lambda time: pc.equal(time, days.cast(source)))
    elif pa.types.is_date(source) or pa.types.is_string(source):
        days = array.cast(pa.date32())
    else:
        raise _TypeMismatch
    return _require(days, lambda d: _in_range(d.view(pa.int32()), *_DATE_RANGE))


def _to_timestamp(array: pa.Array, type_: Type) -> pa.Array:
    source = array.type
    zoned = type_ == types.TIMESTAMP
    if pa.types.is_string(source):
        array = _parse_timestamps(array) if zoned else array.cast(pa.timestamp("us"))
    elif not pa.types.is_timestamp(source) or (source.tz is not None and not zoned):
        raise _TypeMismatch
    elif source.tz is not None:
        array = array.cast(pa.timestamp("us", "UTC"))
    first, last = _DATE_RANGE
    day = 86_400_000_000
    return _require(
        array.cast(pa.timestamp("us")), lambda t: _in_range(t.view(pa.int64()), first * day, (last + 1) * day - 1)
    )


def _parse_timestamps(text: pa.Array) -> pa.Array:
    """Parse ISO text with and without zones separately, because Arrow parses one kind at a time."""
    zoned = pc.match_substring_regex(text, r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$")
    null = pa.scalar(None, pa.string())
    with_zone = pc.if_else(zoned, text, null).cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
    without = pc.if_else(zoned, null, text).cast(pa.timestamp("us"))
    return pc.coalesce(with_zone, without)


def _in_range(array: pa.Array, low: int, high: int) -> pa.Array:
    return pc.and_(pc.greater_equal(array, low), pc.less_equal(array, high))


_FROM_ARROW: dict[Family, Callable[[pa.Array, Type], pa.Array]] = {
    Family.BOOLEAN: _require_type,
    Family.INTEGER: _to_integer,
    Family.FLOAT: _to_floating,
    Family.DECIMAL: _to_decimal,
    Family.TEXT: _to_string,
    Family.BINARY: _require_type,
    Family.DATE: _to_date,
    Family.TIME: _to_timestamp,
}
