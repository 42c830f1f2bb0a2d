"""Rows as JSON, lossless also for a program that reads every number as a 64-bit float.

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
    ARRAY, STRUCT, MAP       […], {…}, [[key, value], …], with the same rules inside

The column's type decides, not the value: a count does not turn from a number into a text when it grows. Columns with
the same name are numbered, because an object has each name once.
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

Converter = Callable[[Any], Any]
_MICROSECOND = timedelta(microseconds=1)
_MAX_PLAIN_SCALE = 6


def encode_json(value: Any) -> bytes:
    return orjson.dumps(value, default=str)


# -- one row -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def column_converters(schema: pa.Schema, native: bool) -> tuple[tuple[str, Converter], ...]:
    """For each column whose Python values are not JSON's own: the function that converts them."""
    found = ((field.name, _converter_of(field.type, native)) for field in schema)
    return tuple((name, convert) for name, convert in found if convert is not None)


def encode_row(row: dict[str, Any], converters: Sequence[tuple[str, Converter]]) -> bytes:
    """Encode a row that `Store.get` returned."""
    for name, convert in converters:
        value = row[name]
        if value is not None:
            row[name] = convert(value)
    return orjson.dumps(row)


def _converter_of(type_: pa.DataType, native: bool) -> Converter | None:
    if pa.types.is_int64(type_):
        return None if native else str
    if pa.types.is_decimal(type_):
        return _decimal_number if native else _decimal_text
    if pa.types.is_floating(type_):
        return _float_json
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return _encode_base64
    if pa.types.is_timestamp(type_):
        return _format_timestamp
    if pa.types.is_duration(type_):
        return _format_interval
    if pa.types.is_nested(type_):
        return _nested_converter(type_, native)
    return date.isoformat if pa.types.is_date(type_) else None


def _nested_converter(type_: pa.DataType, native: bool) -> Converter:
    """The converter of a nested type; the nested values follow the same rules."""
    if pa.types.is_struct(type_):
        fields = {field.name: _nullable_converter(field.type, native) for field in type_}
        return lambda value: {name: fields[name](item_value) for name, item_value in value.items()}
    if pa.types.is_map(type_):
        key, item = _nullable_converter(type_.key_type, native), _nullable_converter(type_.item_type, native)
        return lambda value: [[key(k), item(v)] for k, v in value]
    element = _nullable_converter(type_.value_type, native)
    return lambda value: [element(v) for v in value]


def _nullable_converter(type_: pa.DataType, native: bool) -> Converter:
    convert = _converter_of(type_, native)
    return (lambda value: value) if convert is None else lambda value: None if value is None else convert(value)


def _decimal_text(value: Decimal) -> str:
    return format(value, "f")


def _decimal_number(value: Decimal) -> Any:
    return orjson.Fragment(format(value, "f"))


def _float_json(value: float) -> Any:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _encode_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _format_timestamp(value: datetime) -> str:
    return value.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _format_interval(value: timedelta) -> str:
    return f"PT{format(Decimal(value // _MICROSECOND).scaleb(-6).normalize(), 'f')}S"


# -- many rows ---------------------------------------------------------------------------------------------------------


def json_rows(table: pa.Table, native: bool = False) -> list[dict[str, Any]]:
    """Rows as objects of JSON's own types. Arrow converts whole columns where it can."""
    names = number_duplicate_names(table.column_names)
    columns = [_column_json(column, native) for column in table.columns]
    if not columns:
        return [{} for _ in range(table.num_rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def number_duplicate_names(names: Sequence[str]) -> list[str]:
    """The names, with a number after those that occurred before: a, b, a_2."""
    found: list[str] = []
    used = set(names)
    for name in names:
        candidate, number = name, 1
        while candidate in found or (number > 1 and candidate in used):
            number += 1
            candidate = f"{name}_{number}"
        found.append(candidate)
    return found


def _cast_to_text(column: pa.ChunkedArray) -> list[str | None]:
    texts: list[str | None] = column.cast(pa.string()).to_pylist()
    return texts


def _column_json(column: pa.ChunkedArray, native: bool) -> list[Any]:
    kind = column.type
    if pa.types.is_int64(kind) and not native:
        column = column.cast(pa.string())
    elif pa.types.is_decimal(kind):
        # With a large scale, Arrow writes small numbers in exponent form, such as 1E-10.
        has_small = kind.scale > _MAX_PLAIN_SCALE
        texts = (
            [None if v is None else _decimal_text(v) for v in column.to_pylist()]
            if has_small
            else _cast_to_text(column)
        )
        return texts if not native else [None if t is None else orjson.Fragment(t) for t in texts]
    elif pa.types.is_date(kind):
        column = column.cast(pa.string())
    elif pa.types.is_timestamp(kind):
        zone = "Z" if kind.tz is not None else ""
        column = pc.strftime(column.cast(pa.timestamp("us")), format=f"%Y-%m-%dT%H:%M:%S{zone}")
    elif pa.types.is_floating(kind):
        values: list[Any] = column.to_pylist()
        if pc.all(pc.is_finite(column)).as_py() is False:
            return [None if v is None else _float_json(v) for v in values]
        return values
    elif (convert := _converter_of(kind, native)) is not None:
        return [None if v is None else convert(v) for v in column.to_pylist()]
    found: list[Any] = column.to_pylist()
    return found
