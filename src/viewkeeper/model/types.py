"""Column types. Spark SQL's names are ours; each has one Arrow and one DuckDB form.

    Spark              Arrow (inside)     Arrow (outside)          DuckDB
    boolean            bool               same                     BOOLEAN
    tinyint … bigint   int8 … int64       same                     TINYINT … BIGINT
    float, double      float32, float64   same                     FLOAT, DOUBLE
    decimal(p,s)       decimal128(p,s)    same                     DECIMAL(p,s)
    string, binary     string, binary     same                     VARCHAR, BLOB
    date               date32             same                     DATE
    timestamp          timestamp[us]      timestamp[us, tz=UTC]    TIMESTAMP
    timestamp_ntz      timestamp[us]      timestamp[us]            TIMESTAMP

Inside, a timestamp is a plain count of microseconds in UTC: the session's time zone is pinned to UTC, so both kinds
compute alike, and the zone is put back where data leaves (`outside`).
"""

from __future__ import annotations

import re
from functools import cache

import pyarrow as pa

from viewkeeper.errors import Unsupported

_PLAIN: dict[str, tuple[pa.DataType, str]] = {
    "boolean": (pa.bool_(), "BOOLEAN"),
    "tinyint": (pa.int8(), "TINYINT"),
    "smallint": (pa.int16(), "SMALLINT"),
    "int": (pa.int32(), "INTEGER"),
    "bigint": (pa.int64(), "BIGINT"),
    "float": (pa.float32(), "FLOAT"),
    "double": (pa.float64(), "DOUBLE"),
    "string": (pa.string(), "VARCHAR"),
    "binary": (pa.binary(), "BLOB"),
    "date": (pa.date32(), "DATE"),
    "timestamp": (pa.timestamp("us"), "TIMESTAMP"),
    "timestamp_ntz": (pa.timestamp("us"), "TIMESTAMP"),
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")

NAMES = (*_PLAIN, "decimal(p,s)")


@cache
def arrow(name: str) -> pa.DataType:
    """The Arrow type in which a column of Spark type `name` is kept inside."""
    if digits := decimal_digits(name):
        return pa.decimal128(*digits)
    if name in _PLAIN:
        return _PLAIN[name][0]
    raise Unsupported(f"Type {name.upper()} is not supported.", hint=f"Supported types: {', '.join(NAMES).upper()}.")


@cache
def outside(name: str) -> pa.DataType:
    """The Arrow type a user sees: Spark's own mapping."""
    return pa.timestamp("us", "UTC") if name == "timestamp" else arrow(name)


@cache
def written(kind: pa.DataType) -> str:
    """The name of an Arrow type of a query's answer, as a table's columns are written; Arrow's own for others."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return next((name for name in _PLAIN if outside(name) == kind), str(kind))


def duckdb(name: str) -> str:
    """The DuckDB type that computes with a column of Spark type `name`."""
    if digits := decimal_digits(name):
        return "DECIMAL({},{})".format(*digits)
    arrow(name)
    return _PLAIN[name][1]


@cache
def decimal_digits(name: str) -> tuple[int, int] | None:
    """(precision, scale) of a decimal type, None for any other."""
    match = _DECIMAL.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def is_integer(name: str) -> bool:
    return name in ("tinyint", "smallint", "int", "bigint")


def is_float(name: str) -> bool:
    return name in ("float", "double")
