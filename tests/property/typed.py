"""SQL text with what the grammar must know about it: type, range, exactness.

`Typed` is a column, a literal or any expression. The facts are upper bounds, so a rule that cannot keep them says so by
giving up; they follow the domains of `schemas`:

    bound      no value is larger in magnitude; None: not known, so no arithmetic
    grain      floats: finite values are multiples of 2**-grain
    special    see `schemas`
    values     some values it takes, for literals that hit
    portable   DuckDB gives the same text the same meaning
    loose      the value may differ within limits: "zero" (the sign of zero), "near" (the last bits of a float)
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from random import Random
from typing import Any

from .schemas import INTEGER_BITS, Column, decimal_digits

ROWS = 10**5
"""No view of a test has more rows in a group: what a sum's range is checked with."""

_DECIMAL_OF_INTEGER = {"tinyint": (3, 0), "smallint": (5, 0), "int": (10, 0), "bigint": (20, 0)}


@dataclass(frozen=True)
class Typed:
    sql: str
    type: str
    bound: int | None = None
    grain: int | None = None
    special: bool = False
    values: tuple[Any, ...] = ()
    portable: bool = True
    loose: str = ""
    spread: int = 6

    @property
    def family(self) -> str:
        return family(self.type)


def family(type_: str) -> str:
    """The types among which Spark converts without asking."""
    if type_ in INTEGER_BITS:
        return "int"
    if type_.startswith("decimal"):
        return "decimal"
    if type_ in ("float", "double"):
        return "float"
    return type_


def from_column(column: Column, qualifier: str) -> Typed:
    portable = family(column.type) in ("int", "decimal", "boolean", "date") or column.type == "string"
    return Typed(
        f"{qualifier}.{column.name}",
        column.type,
        column.bound,
        column.grain,
        column.special,
        column.values,
        portable and not column.special,
        spread=len(column.values),
    )


def quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def literal(type_: str, value: Any) -> Typed:
    """A literal of exactly this type."""
    if value is None:
        return Typed(f"CAST(NULL AS {type_.upper()})", type_, 0, 0, portable=False)
    kind = family(type_)
    if kind == "int":
        suffix = {"tinyint": "Y", "smallint": "S", "int": "", "bigint": "L"}[type_]
        if value == -(2 ** (INTEGER_BITS[type_] - 1)):  # the digits alone would not fit
            return Typed(f"CAST('{value}' AS {type_.upper()})", type_, abs(value), portable=False)
        return Typed(f"{value}{suffix}" if value >= 0 else f"({value}{suffix})", type_, abs(value), portable=not suffix)
    if kind == "decimal":
        return Typed(f"CAST('{value:f}' AS {type_.upper()})", type_, math.ceil(abs(value)), portable=False)
    if kind == "float":
        small = math.isfinite(value) and abs(value) < 2**20
        text = f"CAST('{value!r}' AS {type_.upper()})"
        grain = 3 if small and value * 8 == int(value * 8) else None
        return Typed(text, type_, math.ceil(abs(value)) if small else None, grain, not small, portable=False)
    if kind == "string":
        return Typed(quoted(value), type_, portable=value.isalnum() and value.isascii())
    if kind == "binary":
        return Typed(f"X'{value.hex()}'", type_, portable=False)
    if kind == "boolean":
        return Typed("TRUE" if value else "FALSE", type_)
    if kind == "date":
        return Typed(f"DATE'{value.isoformat()}'", type_, special=not 1900 < value.year < 2100)
    text = value.replace(tzinfo=None).isoformat(" ", "microseconds")
    zone = "+00:00" if type_ == "timestamp" else ""
    special = not 1900 < value.year < 2100
    return Typed(f"{type_.upper()}'{text}{zone}'", type_, special=special, portable=False)


_PLAIN_VALUES: dict[str, tuple[Any, ...]] = {
    "boolean": (True, False),
    "int": (0, 1, 2, 3, -1, 5),
    "decimal": (Decimal(0), Decimal(1), Decimal("1.5"), Decimal(-2), Decimal("0.1")),
    "float": (0.0, 1.0, -1.5, 2.25, 0.125),
    "string": ("a", "b", "ab", "", "c"),
    "binary": (b"", b"a", b"\x00"),
    "date": (dt.date(2024, 2, 29), dt.date(2024, 1, 31), dt.date(2023, 12, 31)),
    "timestamp": (dt.datetime(2024, 2, 29, tzinfo=dt.UTC), dt.datetime(2024, 3, 31, 2, 30, tzinfo=dt.UTC)),
    "timestamp_ntz": (dt.datetime(2024, 2, 29), dt.datetime(2024, 3, 31, 2, 30)),
}


def plain_literal(rng: Random, type_: str) -> Typed:
    """A small literal of this type."""
    value = rng.choice(_PLAIN_VALUES[family(type_)])
    if type_.startswith("decimal"):
        precision, scale = decimal_digits(type_)
        value = value.quantize(Decimal((0, (1,), -scale)), context=Context(prec=80))
        if abs(value) >= 10 ** (precision - scale):
            value = Decimal(0)
    return literal(type_, value)


def literal_like(rng: Random, other: Typed) -> Typed:
    """A literal to compare `other` with, one of its values if they are known."""
    if other.values and rng.random() < 0.8:
        return literal(other.type, rng.choice(other.values))
    return plain_literal(rng, other.type)


def fits(type_: str, bound: int | None) -> bool:
    """Whether a value of this magnitude can be of this type."""
    if bound is None:
        return False
    if type_ in INTEGER_BITS:
        return bool(bound < 2 ** (INTEGER_BITS[type_] - 1))
    precision, scale = decimal_digits(type_)
    return bool(bound < 10 ** (precision - scale))


def as_decimal(type_: str) -> tuple[int, int]:
    return _DECIMAL_OF_INTEGER[type_] if type_ in INTEGER_BITS else decimal_digits(type_)


def decimal_result(operator: str, left: str, right: str) -> str:
    """Spark's result type of decimal arithmetic, precision loss allowed."""
    (p1, s1), (p2, s2) = as_decimal(left), as_decimal(right)
    if operator in "+-":
        scale = max(s1, s2)
        precision = max(p1 - s1, p2 - s2) + scale + 1
    elif operator == "*":
        precision, scale = p1 + p2 + 1, s1 + s2
    elif operator == "/":
        scale = max(6, s1 + p2 + 1)
        precision = p1 - s1 + s2 + scale
    else:
        scale = max(s1, s2)
        precision = min(p1 - s1, p2 - s2) + scale
    if precision > 38:
        scale = max(38 - (precision - scale), min(scale, 6))
        precision = 38
    return f"decimal({precision},{scale})"


def wider(left: str, right: str) -> str:
    return max(left, right, key=lambda t: INTEGER_BITS[t])


def derived(sql: str, type_: str, *sources: Typed, **facts: Any) -> Typed:
    """An expression over `sources`: portable if they are, with the given facts."""
    portable = all(s.portable for s in sources) and facts.pop("portable", True)
    spread = min(max((s.spread for s in sources), default=1), 40)
    return replace(Typed(sql, type_, portable=portable, spread=spread), **facts)
