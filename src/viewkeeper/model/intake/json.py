"""Rows and keys from JSON objects, without loss of precision.

Numbers with a point become decimals; integers have any length. Where JSON has no exact number for a column's value, a
text is accepted: digits for integers, "NaN" and "Infinity" for floats, base64 for BINARY. `intake.rows` does the rest.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

from viewkeeper.errors import BadValue
from viewkeeper.model import types
from viewkeeper.model.intake.columns import accepted_values
from viewkeeper.model.schema import Column, Table

_FLOATS = {"NaN", "Infinity", "-Infinity"}


def parse_json(text: str) -> Any:
    """Parse a JSON text. Raise ValueError, RecursionError or ArithmeticError if it is not valid."""
    return json.loads(text, parse_float=Decimal, parse_constant=_refuse_constant)


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON; write it as text")


def convert_objects(table: Table, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Convert the objects' values for the table's intake."""
    readers = {c.name.lower(): (c, read) for c in table.columns if (read := _value_reader(c)) is not None}
    return [
        {
            name: readers[name.lower()][1](table, readers[name.lower()][0], value) if name.lower() in readers else value
            for name, value in row.items()
        }
        for row in rows
    ]


def convert_value(table: Table, column: Column, value: Any) -> Any:
    """Convert one value for the table's intake."""
    read = _value_reader(column)
    return value if read is None else read(table, column, value)


def _value_reader(column: Column) -> Callable[[Table, Column, Any], Any] | None:
    if column.type == types.BINARY:
        return _read_binary
    if types.is_integer(column.type):
        return _read_integer
    return _read_float if types.is_float(column.type) else None


def _read_binary(table: Table, column: Column, value: Any) -> Any:
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else value
    except (binascii.Error, ValueError):
        raise _mismatch_error(table, column, value, "base64.") from None


def _read_integer(table: Table, column: Column, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    digits = value[1:] if value.startswith("-") else value
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
        raise _mismatch_error(table, column, value, accepted_values(column.type))
    return int(value)


def _read_float(table: Table, column: Column, value: Any) -> Any:
    if isinstance(value, str) and value not in _FLOATS:
        raise _mismatch_error(table, column, value, accepted_values(column.type))
    if isinstance(value, (str, Decimal)):
        try:
            number = float(value)
        except OverflowError:
            raise _mismatch_error(table, column, value, accepted_values(column.type)) from None
        if isinstance(value, Decimal) and math.isinf(number) and value.is_finite():
            raise _mismatch_error(table, column, value, accepted_values(column.type))
        return number
    return value


def _mismatch_error(table: Table, column: Column, value: Any, expected: str) -> BadValue:
    return BadValue(
        f"{table.name}.{column.name}: {str(value)[:60]!r} is no {column.type.sql} value.", hint=f"Give {expected}"
    )
