"""Values as text in Spark's form: Java's floats, ISO dates with Spark's years, decoded bytes."""

from __future__ import annotations

from viewkeeper.expressions.rules.decimals import digits_of
from viewkeeper.expressions.rules.rule import fail
from viewkeeper.model.types import Type


def java_float(x: str, type_: Type) -> str:
    """Write Double.toString: plain digits from 10^-3 up to 10^7, else d.dddE±n; NaN, Infinity."""
    return f"vk_java_{type_}({x})"


def decimal(x: str, type_: Type) -> str:
    """Write plain digits; DuckDB omits the zero before the point if the type has no digit there."""
    digits = digits_of(type_)
    text = f"CAST({x} AS VARCHAR)"
    return f"replace({text}, '.', '0.')" if digits[0] == digits[1] else text


def date(x: str) -> str:
    """Write yyyy-MM-dd; years after 9999 with a plus sign, years before 1 as in Java (0, -1, …)."""
    year = f"year({x})"
    extended = (
        f"(CASE WHEN {year} < 0 THEN '-' WHEN {year} > 9999 THEN '+' ELSE '' END"
        f" || lpad(CAST(abs({year}) AS VARCHAR), greatest(4, length(CAST(abs({year}) AS VARCHAR)))::INTEGER, '0')"
        f" || strftime({x}, '-%m-%d'))"
    )
    return f"(CASE WHEN {year} BETWEEN 1 AND 9999 THEN CAST({x} AS VARCHAR) ELSE {extended} END)"


def timestamp(x: str) -> str:
    """Write the date, a space, HH:mm:ss, and the fraction without its trailing zeros."""
    plain = f"CAST({x} AS VARCHAR)"
    clock = f"strftime({x}, '%H:%M:%S.%f')"
    extended = f"({date(f'CAST({x} AS DATE)')} || ' ' || rtrim(rtrim({clock}, '0'), '.'))"
    return f"(CASE WHEN year({x}) BETWEEN 1 AND 9999 THEN {plain} ELSE {extended} END)"


def decode_utf8(x: str, null_on_error: bool) -> str:
    """Decode UTF-8. Spark strings may hold any bytes; a text column here holds only valid UTF-8."""
    bad = "NULL" if null_on_error else fail("CAST_INVALID_INPUT", "Bytes that are not UTF-8 cannot be cast to string.")
    text = f"TRY(decode({x}))"
    return f"(CASE WHEN {text} IS NULL AND {x} IS NOT NULL THEN {bad} ELSE {text} END)"
