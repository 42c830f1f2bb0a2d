"""Macros and functions that a DuckDB connection needs for rendered expressions.

Macros shorten the rendered text. The functions compute exactly, on whole columns (numpy arrays of Python integers), the
few decimal values that 128 bits cannot hold.
"""

from __future__ import annotations

import decimal
import hashlib
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from viewkeeper.expressions.rules import text_parsing
from viewkeeper.resources.prepared_statements import connect

VERSION = "2"
"""Version of the rendered expressions and of the names of state columns; state of another version is rebuilt."""

_HASH_SAMPLES = "42::BIGINT, 'viewkeeper', 1.5::DOUBLE, 1.25::DECIMAL(10,2), DATE '2000-02-29', NULL::INTEGER, true"

_SCIENTIFIC_TEXT = """CASE
    WHEN a < 1e-42 AND vk_tiny(ltrim(t, '-')) IS NOT NULL THEN left(t, (t LIKE '-%')::INTEGER) || vk_tiny(ltrim(t, '-'))
    WHEN t LIKE '%e%' THEN CASE WHEN t LIKE '%.%' THEN split_part(t, 'e', 1) ELSE split_part(t, 'e', 1) || '.0' END
        || 'E' || CAST(CAST(split_part(t, 'e', 2) AS INTEGER) AS VARCHAR)
    WHEN a >= 1 THEN vk_point(rtrim(replace(ltrim(t, '-'), '.', ''), '0'), t) || 'E'
        || CAST(length(split_part(ltrim(t, '-'), '.', 1)) - 1 AS VARCHAR)
    ELSE vk_point(ltrim(replace(ltrim(t, '-'), '.', ''), '0'), t) || 'E-'
        || CAST(length(t) - length(ltrim(replace(ltrim(t, '-'), '.', ''), '0')) - 1 - (t LIKE '-%')::INTEGER AS VARCHAR)
END"""

# Java's text of a float has at least two digits, and the nearest two. It differs where the shortest text has one digit.
_SUBNORMAL_TEXTS = {
    **{"5e-324": "4.9E-324", "1e-323": "9.9E-324", "5e-323": "4.9E-323", "6e-323": "5.9E-323", "7e-323": "6.9E-323"},
    **{"8e-323": "7.9E-323", "9e-323": "8.9E-323", "1e-322": "9.9E-323", "1e-45": "1.4E-45", "3e-45": "2.8E-45"},
    **{"4e-45": "4.2E-45", "6e-45": "5.6E-45", "8e-45": "8.4E-45", "1e-44": "9.8E-45", "3e-44": "2.9E-44"},
    **{"4e-44": "4.1E-44", "1e-43": "9.9E-44"},
}

MACROS: tuple[str, ...] = (
    "vk_tiny(t) AS CASE t " + " ".join(f"WHEN '{d}' THEN '{j}'" for d, j in _SUBNORMAL_TEXTS.items()) + " END",
    # Java's text of a float: DuckDB's shortest digits t of the value whose magnitude is a, in Java's form.
    "vk_point(d, t) AS left(t, (t LIKE '-%')::INTEGER) || left(d, 1) || '.' || CASE length(d) WHEN 1 THEN '0' "
    "ELSE substring(d, 2) END",
    f"""vk_java_text(t, a) AS CASE
    WHEN a >= 1e-3 AND a < 1e7 OR a = 0 THEN t
    WHEN isnan(a) THEN 'NaN'
    WHEN isinf(a) THEN CASE t WHEN 'inf' THEN 'Infinity' ELSE '-Infinity' END
    ELSE {_SCIENTIFIC_TEXT} END""",
    "vk_java_double(x) AS vk_java_text(CAST(x AS VARCHAR), abs(x))",
    "vk_java_float(x) AS vk_java_text(CAST(x AS VARCHAR), CAST(abs(x) AS DOUBLE))",
)


def register_functions(connection: Any) -> None:
    """Register the renderer's macros and functions on a connection."""
    if connection.execute("SELECT 1 FROM duckdb_functions() WHERE function_name = 'vk_ready'").fetchall():
        return
    for name, text_function in _TEXT_FUNCTIONS.items():
        connection.create_function(name, text_function, ["VARCHAR"], "VARCHAR", type="arrow", null_handling="default")
    connection.create_function("vk_sha2", _sha2, ["BLOB", "INTEGER"], "VARCHAR", type="arrow", null_handling="default")
    for name, function in _FUNCTIONS.items():
        connection.create_function(
            name, function, ["VARCHAR", "VARCHAR", "INTEGER"], "VARCHAR", type="arrow", null_handling="default"
        )
    for macro in (*MACROS, *text_parsing.MACROS, "vk_ready() AS TRUE"):
        connection.execute(f"CREATE OR REPLACE MACRO {macro}")


def _map_texts(function: Callable[[str], str | None]) -> Callable[[Any], Any]:
    return lambda texts: pa.array([function(t) for t in texts.to_pylist()], pa.string())


def _sha2(values: Any, bits: Any) -> Any:
    """Return SHA-2 of bytes as hexadecimal digits; 0 bits mean 256, as in Spark."""
    pairs = zip(values.to_pylist(), bits.to_pylist(), strict=True)
    return pa.array([hashlib.new(f"sha{n or 256}", value).hexdigest() for value, n in pairs], pa.string())


def _plain_digits(text: str) -> str:
    """Return a number with an exponent in plain digits. Beyond 10^80 or below 10^-80, ±10^80 or 0 stands for it."""
    number = decimal.Decimal(text)
    if number.adjusted() > 80:
        return f"{number.as_tuple().sign * '-'}1" + "0" * 80
    return f"{number:f}" if number.adjusted() > -80 else "0"


def _title_case(word: str) -> str:
    return word[:1].title() + word.lower()[len(word[:1].lower()) :]


_TEXT_FUNCTIONS = {
    "vk_plain": _map_texts(_plain_digits),
    "vk_offset": _map_texts(text_parsing.offset_seconds),
    "vk_upper": _map_texts(str.upper),
    "vk_lower": _map_texts(str.lower),
    "vk_title": _map_texts(lambda text: " ".join(map(_title_case, text.split(" ")))),
    "vk_reverse": _map_texts(lambda text: text[::-1]),
}


def _exact_function(operation: Callable[[Any, Any, int, int, int], Any]) -> Callable[[Any, Any, Any], Any]:
    """Return an Arrow function of two decimal texts and the result's scale."""

    def run(left: Any, right: Any, scale: Any) -> Any:
        if len(left) == 0:
            return pa.array([], pa.string())
        s = scale[0].as_py()
        (a, s1), (b, s2) = _unscaled_integers(left), _unscaled_integers(right)
        return pa.array([_decimal_text(v, s) for v in operation(a, b, s1, s2, s)], pa.string())

    return run


def _unscaled_integers(texts: Any) -> tuple[Any, int]:
    """Return the unscaled values and their common scale (all texts come from one decimal type)."""
    values = texts.to_pylist()
    scale = max((len(v) - v.index(".") - 1 if "." in v else 0) for v in values)
    return np.array([int(v.replace(".", "")) for v in values], dtype=object), scale


def _decimal_text(value: int | None, scale: int) -> str:
    """Return a decimal's text. A missing value becomes a text that no cast to a decimal accepts."""
    if value is None:
        return "a quotient of more than 39 digits"
    sign, digits = ("-" if value < 0 else ""), str(abs(value)).rjust(scale + 1, "0")
    return sign + (f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits)


_MAX_QUOTIENT_DIGITS = 39
"""Precision of the context in which Spark computes remainders."""


@cache
def fingerprint() -> str:
    """Return what stored state depends on besides its rows: the renderer, DuckDB, and DuckDB's hash function."""
    import duckdb

    with connect(threads=1) as con:
        hashes = con.execute(f"SELECT {', '.join(f'hash({v})' for v in _HASH_SAMPLES.split(', '))}").fetchall()[0]
    return f"renderer {VERSION}, duckdb {duckdb.__version__}, hash {zlib.crc32(repr(hashes).encode()):08x}"


def _round_half_up(n: Any, d: Any) -> Any:
    """Return n / d, rounded half up (away from zero)."""
    quotient = (2 * abs(n) + abs(d)) // (2 * abs(d))
    return np.where((n < 0) != (d < 0), -quotient, quotient)


def _rescale(value: Any, scale: int, target_scale: int) -> Any:
    return (
        value * 10 ** (target_scale - scale)
        if target_scale >= scale
        else _round_half_up(value, np.array(10 ** (scale - target_scale), dtype=object))
    )


def _add(a: Any, b: Any, s1: int, s2: int, s: int) -> Any:
    scale = max(s1, s2)
    return _rescale(a * 10 ** (scale - s1) + b * 10 ** (scale - s2), scale, s)


def _subtract(a: Any, b: Any, s1: int, s2: int, s: int) -> Any:
    return _add(a, -b, s1, s2, s)


def _multiply(a: Any, b: Any, s1: int, s2: int, s: int) -> Any:
    return _rescale(a * b, s1 + s2, s)


def _divide(a: Any, b: Any, s1: int, s2: int, s: int) -> Any:
    return _round_half_up(a * 10 ** (s - s1 + s2), b)


def _remainder(a: Any, b: Any, s1: int, s2: int, s: int) -> Any:
    scale = max(s1, s2)
    a, b = a * 10 ** (scale - s1), b * 10 ** (scale - s2)
    remainder = abs(a) % abs(b)
    return np.where(_has_java_remainder(a, b), _rescale(np.where(a < 0, -remainder, remainder), scale, s), None)


def _pmod(a: Any, b: Any, s1: int, s2: int, s: int) -> Any:
    scale = max(s1, s2)
    a, b = a * 10 ** (scale - s1), b * 10 ** (scale - s2)
    remainder = np.where(a < 0, -(abs(a) % abs(b)), abs(a) % abs(b))
    wrapped = np.where(b < 0, -(abs(remainder + b) % abs(b)), (remainder + b) % abs(b))
    return np.where(_has_java_remainder(a, b), _rescale(np.where(remainder < 0, wrapped, remainder), scale, s), None)


def _has_java_remainder(a: Any, b: Any) -> Any:
    """Return whether Java computes the remainder: the integer quotient must fit 39 digits without trailing zeros."""
    return np.array([len(str(q).rstrip("0")) <= _MAX_QUOTIENT_DIGITS for q in abs(a) // abs(b)], dtype=bool)


def _quotient(a: Any, b: Any, s1: int, s2: int, _: int) -> Any:
    scale = max(s1, s2)
    a, b = a * 10 ** (scale - s1), b * 10 ** (scale - s2)
    quotient = abs(a) // abs(b)
    return np.where((a < 0) != (b < 0), -quotient, quotient)


def _negate(a: Any, _: Any, s1: int, s2: int, s: int) -> Any:
    """Return −a, rounded to the 34 digits of Scala's default MathContext, half to even."""
    java = decimal.Context(prec=34, rounding=decimal.ROUND_HALF_EVEN)
    return [int(java.minus(decimal.Decimal(v))) for v in a]


_FUNCTIONS = {
    "vk_add": _exact_function(_add),
    "vk_subtract": _exact_function(_subtract),
    "vk_multiply": _exact_function(_multiply),
    "vk_divide": _exact_function(_divide),
    "vk_remainder": _exact_function(_remainder),
    "vk_pmod": _exact_function(_pmod),
    "vk_negate": _exact_function(_negate),
    "vk_quotient": _exact_function(_quotient),
}
