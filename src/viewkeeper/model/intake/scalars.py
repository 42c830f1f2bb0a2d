"""Strict conversion of a single Python value for a column: exactly representable, or BadValue.

A reader returns the *plain value*, with which the encodings work: an int for integers, dates (days since 1970),
timestamps (microseconds since 1970, UTC) and decimals (the unscaled value at the declared scale); bool, float, str and
bytes unchanged.
"""

from __future__ import annotations

import datetime as dt
import operator
import struct
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

from viewkeeper.errors import BadValue
from viewkeeper.model import types
from viewkeeper.model.intake.columns import accepted_values
from viewkeeper.model.types import Type

EPOCH = dt.datetime(1970, 1, 1)
EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
EPOCH_ORDINAL = dt.date(1970, 1, 1).toordinal()
_MICROSECOND = dt.timedelta(microseconds=1)


def scalar_reader(table: str, column: str, type_name: Type) -> Callable[[Any], Any]:
    """Return the function from a Python value (not None) of the column to its plain value."""
    read = _plain_reader(type_name)

    def read_checked(value: Any) -> Any:
        try:
            return read(value)
        except (TypeError, ValueError, OverflowError, InvalidOperation, AttributeError) as error:
            raise BadValue(
                f"{table}.{column}: {_value_text(value)} is no {type_name.sql} value ({error}).",
                hint=f"Give {accepted_values(type_name)}",
            ) from error

    return read_checked


def _value_text(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _plain_reader(type_name: Type) -> Callable[[Any], Any]:
    if types.is_integer(type_name):
        return _integer_reader(types.bit_width(type_name))
    if digits := types.decimal_digits(type_name):
        return _decimal_reader(*digits)
    return _SCALAR_READERS[type_name]


def _integer_reader(bits: int) -> Callable[[Any], int]:
    limit = 1 << (bits - 1)

    def read(value: Any) -> int:
        if type(value) is not int:
            if isinstance(value, bool):
                raise TypeError("a boolean is no number")
            value = operator.index(value)
        if not -limit <= value < limit:
            raise ValueError("out of range")
        return int(value)

    return read


def _decimal_reader(precision: int, scale: int) -> Callable[[Any], int]:
    limit = 10**precision

    def read(value: Any) -> int:
        if isinstance(value, (bool, float)):
            raise TypeError("only int, Decimal and str are exact")
        sign, digits, exponent = Decimal(value).as_tuple()
        if not isinstance(exponent, int):
            raise ValueError("not a finite number")
        shift = exponent + scale
        unscaled = int("".join(map(str, digits)) or "0")
        if unscaled and shift > precision:
            raise ValueError(f"more than {precision} digits")
        if shift >= 0:
            unscaled = unscaled * 10**shift if unscaled else 0
        else:
            dropped = 10 ** min(-shift, len(digits) + 1)
            if unscaled % dropped:
                raise ValueError(f"more than {scale} digits after the point")
            unscaled //= dropped
        if unscaled >= limit:
            raise ValueError(f"more than {precision} digits")
        return -unscaled if sign else unscaled

    return read


def _read_boolean(value: Any) -> bool:
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    raise TypeError("not a boolean")


def _read_float32(value: Any) -> float:
    number = _read_float64(value)
    # Rounded like a value written to a FLOAT column. A finite value that overflows is an error; infinity is a value.
    rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    return rounded


def _read_float64(value: Any) -> float:
    if isinstance(value, (bool, str)):
        raise TypeError("not a number")
    number = float(value)
    if isinstance(value, int) and number != value:
        raise ValueError("not exactly representable")
    return number


def _read_string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    value.encode()
    return value


def _read_binary(value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError("not bytes")


def _read_date(value: Any) -> int:
    if isinstance(value, str):
        value = dt.date.fromisoformat(value)
    if isinstance(value, dt.datetime) or not isinstance(value, dt.date):
        raise TypeError("not a date")
    return value.toordinal() - EPOCH_ORDINAL


def _read_timestamp(value: Any) -> int:
    if isinstance(value, str):
        value = dt.datetime.fromisoformat(value)
    if not isinstance(value, dt.datetime):
        raise TypeError("not a datetime")
    # A value without a zone is in UTC, the zone of all sessions.
    return (value - (EPOCH if value.tzinfo is None else EPOCH_UTC)) // _MICROSECOND


def _read_timestamp_ntz(value: Any) -> int:
    if isinstance(value, str):
        value = dt.datetime.fromisoformat(value)
    if not isinstance(value, dt.datetime):
        raise TypeError("not a datetime")
    if value.tzinfo is not None:
        raise ValueError("it has a time zone, the column has none")
    return (value - EPOCH) // _MICROSECOND


_SCALAR_READERS: dict[Type, Callable[[Any], Any]] = {
    types.BOOLEAN: _read_boolean,
    types.FLOAT: _read_float32,
    types.DOUBLE: _read_float64,
    types.STRING: _read_string,
    types.BINARY: _read_binary,
    types.DATE: _read_date,
    types.TIMESTAMP: _read_timestamp,
    types.TIMESTAMP_NTZ: _read_timestamp_ntz,
}
