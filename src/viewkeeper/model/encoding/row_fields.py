"""Conversion of single fields of an encoded row to Python values: decimals, dates and times are stored as integers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from functools import partial
from typing import Any

from viewkeeper.errors import BadValue
from viewkeeper.model import types
from viewkeeper.model.intake.scalars import EPOCH, EPOCH_ORDINAL, EPOCH_UTC
from viewkeeper.model.types import Kind, Type

_DECIMAL_CONTEXT = Context(prec=40)
_DAY = 86_400_000_000
"""Microseconds of a day."""


def value_reader(table: str, column: str, type_name: Type) -> Callable[[Any], Any] | None:
    """Return the function from a field as `struct` unpacks it to the user's value; None if both are equal."""
    if digits := types.decimal_digits(type_name):
        return partial(_read_decimal if digits[0] <= 18 else _read_wide_decimal, digits[1])
    if type_name in _TIME_READERS:
        return partial(_TIME_READERS[type_name], f"{table}.{column}")
    return None


def value_widener(narrow: Type, type_: Type) -> Callable[[Any], Any] | None:
    """Return the function from a user's value of the narrower type to one of the wider type; None if both are equal."""
    if type_.kind is Kind.DECIMAL and narrow.scale < type_.scale:
        unit = Decimal(1).scaleb(-type_.scale)
        return lambda value: value.quantize(unit, context=_DECIMAL_CONTEXT)
    if narrow == types.DATE and type_ != types.DATE:
        zone = UTC if type_ == types.TIMESTAMP else None
        return lambda value: datetime(value.year, value.month, value.day, tzinfo=zone)
    return None


def plain_value_widener(narrow: Type, type_: Type) -> Callable[[Any], Any] | None:
    """Return the same conversion as `value_widener` for plain values (see `intake.scalars`)."""
    if type_.kind is Kind.DECIMAL and narrow.scale < type_.scale:
        factor = 10 ** (type_.scale - narrow.scale)
        return lambda unscaled: unscaled * factor
    if narrow == types.DATE and type_ != types.DATE:
        return lambda days: days * _DAY
    return None


def read_unscaled(unscaled: bytes) -> int:
    """Return the unscaled value of a 16-byte decimal."""
    return int.from_bytes(unscaled, "little", signed=True)


def to_decimal(unscaled: int, scale: int) -> Decimal:
    """Return the decimal with all of its digits; Python's default context keeps only 28."""
    return Decimal(unscaled).scaleb(-scale, _DECIMAL_CONTEXT)


def _read_decimal(scale: int, unscaled: int) -> Decimal:
    return to_decimal(unscaled, scale)


def _read_wide_decimal(scale: int, unscaled: bytes) -> Decimal:
    return to_decimal(read_unscaled(unscaled), scale)


def _read_date(column: str, days: int) -> date:
    try:
        return date.fromordinal(days + EPOCH_ORDINAL)
    except (ValueError, OverflowError):
        raise _out_of_range(column, "date") from None


def _read_timestamp(column: str, micros: int) -> Any:
    try:
        return EPOCH_UTC + timedelta(microseconds=micros)
    except OverflowError:
        raise _out_of_range(column, "datetime") from None


def _read_timestamp_ntz(column: str, micros: int) -> Any:
    try:
        return EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise _out_of_range(column, "datetime") from None


def _out_of_range(column: str, kind: str) -> BadValue:
    return BadValue(f"A value of {column} is outside the years 1 to 9999 of Python's {kind}.", hint="Read it as Arrow.")


_TIME_READERS: dict[Type, Callable[[str, Any], Any]] = {
    types.DATE: _read_date,
    types.TIMESTAMP: _read_timestamp,
    types.TIMESTAMP_NTZ: _read_timestamp_ntz,
}
