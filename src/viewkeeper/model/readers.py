"""One value of a stored row as Python's own: decimals, dates and times, which lie there as integers (`codec`)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from decimal import Context, Decimal
from functools import partial
from typing import Any

from viewkeeper.errors import BadValue
from viewkeeper.model import types
from viewkeeper.model.scalars import EPOCH, EPOCH_ORDINAL, EPOCH_UTC
from viewkeeper.model.types import Type

_WIDE = Context(prec=40)


def reader(table: str, column: str, type_name: Type) -> Callable[[Any], Any] | None:
    """What makes the value that a user gets of a slot; None if that is what `struct` gives."""
    if digits := types.decimal_digits(type_name):
        return partial(_read_decimal if digits[0] <= 18 else _read_wide_decimal, digits[1])
    if type_name in _PLAIN:
        return partial(_PLAIN[type_name], f"{table}.{column}")
    return None


def wide(unscaled: bytes) -> int:
    """The unscaled value of a decimal that takes 16 bytes."""
    return int.from_bytes(unscaled, "little", signed=True)


def decimal_of(unscaled: int, scale: int) -> Decimal:
    """With all of its digits: Python's own context keeps 28."""
    return Decimal(unscaled).scaleb(-scale, _WIDE)


def _read_decimal(scale: int, unscaled: int) -> Decimal:
    return decimal_of(unscaled, scale)


def _read_wide_decimal(scale: int, unscaled: bytes) -> Decimal:
    return decimal_of(wide(unscaled), scale)


def _read_date(place: str, days: int) -> date:
    try:
        return date.fromordinal(days + EPOCH_ORDINAL)
    except (ValueError, OverflowError):
        raise _out_of_range(place, "date") from None


def _read_timestamp(place: str, micros: int) -> Any:
    try:
        return EPOCH_UTC + timedelta(microseconds=micros)
    except OverflowError:
        raise _out_of_range(place, "datetime") from None


def _read_timestamp_ntz(place: str, micros: int) -> Any:
    try:
        return EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise _out_of_range(place, "datetime") from None


def _out_of_range(place: str, kind: str) -> BadValue:
    return BadValue(f"A value of {place} is outside the years 1 to 9999 of Python's {kind}.", hint="Read it as Arrow.")


_PLAIN: dict[Type, Callable[[str, Any], Any]] = {
    types.DATE: _read_date,
    types.TIMESTAMP: _read_timestamp,
    types.TIMESTAMP_NTZ: _read_timestamp_ntz,
}
