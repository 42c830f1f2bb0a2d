"""Rows as JSON, without a digit lost in a program that reads every number as a 64-bit float.

    column type              JSON                          with numbers=native
    BIGINT                   "9007199254740993"            9007199254740993
    DECIMAL                  "12.30"                       12.30
    FLOAT, DOUBLE            1.5, or "NaN", "Infinity", "-Infinity"
    other integers           12
    BINARY                   base64
    DATE                     "2024-02-29"
    TIMESTAMP                "2024-02-29T12:30:00.000000Z"
    TIMESTAMP_NTZ            "2024-02-29T12:30:00.000000"
    INTERVAL DAY TO SECOND   "PT93784.5S"
    ARRAY, STRUCT, MAP       […], {…}, [[key, value], …], with the same inside

The type of a column decides, not the value: a count does not turn from a number into a text when it grows. Columns of
the same name are numbered, as an object has a name once.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

Convert = Callable[[Any], Any]
_MICROSECOND = timedelta(microseconds=1)
_PLAIN_SCALE = 6


def dumps(value: Any) -> bytes:
    return orjson.dumps(value, default=str)


# -- one row -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def converters(schema: pa.Schema, native: bool) -> tuple[tuple[str, Convert], ...]:
    """For the columns whose Python values are not JSON's own: what makes them so."""
    found = ((field.name, _convert(field.type, native)) for field in schema)
    return tuple((name, convert) for name, convert in found if convert is not None)


def row_bytes(row: dict[str, Any], convert: Sequence[tuple[str, Convert]]) -> bytes:
    """A row as `Store.get` gives it."""
    for name, made in convert:
        value = row[name]
        if value is not None:
            row[name] = made(value)
    return orjson.dumps(row)


def _convert(kind: pa.DataType, native: bool) -> Convert | None:
    if pa.types.is_int64(kind):
        return None if native else str
    if pa.types.is_decimal(kind):
        return _raw if native else _plain
    if pa.types.is_floating(kind):
        return _finite
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _base64
    if pa.types.is_timestamp(kind):
        return _time
    if pa.types.is_duration(kind):
        return _span
    if pa.types.is_nested(kind):
        return _nested(kind, native)
    return date.isoformat if pa.types.is_date(kind) else None


def _nested(kind: pa.DataType, native: bool) -> Convert:
    """What is inside of a value follows the same rules."""
    if pa.types.is_struct(kind):
        fields = {field.name: _within(field.type, native) for field in kind}
        return lambda value: {name: fields[name](inside) for name, inside in value.items()}
    if pa.types.is_map(kind):
        key, item = _within(kind.key_type, native), _within(kind.item_type, native)
        return lambda value: [[key(k), item(v)] for k, v in value]
    element = _within(kind.value_type, native)
    return lambda value: [element(v) for v in value]


def _within(kind: pa.DataType, native: bool) -> Convert:
    made = _convert(kind, native)
    return (lambda value: value) if made is None else lambda value: None if value is None else made(value)


def _plain(value: Decimal) -> str:
    return format(value, "f")


def _raw(value: Decimal) -> Any:
    return orjson.Fragment(format(value, "f"))


def _finite(value: float) -> Any:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _time(value: datetime) -> str:
    return value.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _span(value: timedelta) -> str:
    return f"PT{format(Decimal(value // _MICROSECOND).scaleb(-6).normalize(), 'f')}S"


# -- many rows ---------------------------------------------------------------------------------------------------------


def rows_of(table: pa.Table, native: bool = False) -> list[dict[str, Any]]:
    """Rows as objects of JSON's own types. Whole columns are converted by Arrow where it can."""
    names = distinct(table.column_names)
    columns = [_column(column, native) for column in table.columns]
    if not columns:
        return [{} for _ in range(table.num_rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def distinct(names: Sequence[str]) -> list[str]:
    """The names, with a number behind those that were there before: a, b, a_2."""
    found: list[str] = []
    taken = set(names)
    for name in names:
        made, number = name, 1
        while made in found or (number > 1 and made in taken):
            number += 1
            made = f"{name}_{number}"
        found.append(made)
    return found


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    texts: list[str | None] = column.cast(pa.string()).to_pylist()
    return texts


def _column(column: pa.ChunkedArray, native: bool) -> list[Any]:
    kind = column.type
    if pa.types.is_int64(kind) and not native:
        column = column.cast(pa.string())
    elif pa.types.is_decimal(kind):
        # Of many places Arrow writes small numbers as 1E-10.
        has_small = kind.scale > _PLAIN_SCALE
        texts = [None if v is None else _plain(v) for v in column.to_pylist()] if has_small else _texts(column)
        return texts if not native else [None if t is None else orjson.Fragment(t) for t in texts]
    elif pa.types.is_date(kind):
        column = column.cast(pa.string())
    elif pa.types.is_timestamp(kind):
        zone = "Z" if kind.tz is not None else ""
        column = pc.strftime(column.cast(pa.timestamp("us")), format=f"%Y-%m-%dT%H:%M:%S{zone}")
    elif pa.types.is_floating(kind):
        values: list[Any] = column.to_pylist()
        if pc.all(pc.is_finite(column)).as_py() is False:
            return [None if v is None else _finite(v) for v in values]
        return values
    elif (made := _convert(kind, native)) is not None:
        return [None if v is None else made(v) for v in column.to_pylist()]
    found: list[Any] = column.to_pylist()
    return found
