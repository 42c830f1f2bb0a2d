"""Random schemas: tables, their columns and the few values that each column takes.

A column draws its values from a small *domain*, so that joins meet, groups fill and duplicates occur. Domains of one
type are shared by all tables of a schema. What the grammar must know of a domain is stated with it, because a view
that raises, or whose value depends on the order of rows, proves nothing:

    bound    no value is larger in magnitude (integers, decimals, floats): sums and products can be kept in range
    grain    floats: every finite value is a multiple of 2**-grain, so sums are exact in any order; None if not
    special  floats: NaN, infinities or −0.0 occur; dates and timestamps: years near 1 or 9999 occur;
             strings: more than ASCII occurs
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

Row = dict[str, Any]
Key = tuple[Any, ...]

INTEGER_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
DECIMALS = ("decimal(4,1)", "decimal(9,2)", "decimal(12,2)", "decimal(18,6)", "decimal(38,0)", "decimal(38,10)")
TYPES = (
    *("boolean", "tinyint", "smallint", "int", "int", "bigint", "bigint", "float", "double", "double"),
    *("decimal", "decimal", "string", "string", "string", "binary", "date", "date", "timestamp", "timestamp_ntz"),
)
KEY_TYPES = ("int", "bigint", "bigint", "string", "string", "smallint", "date", "binary", "decimal(9,2)", "timestamp")

DATES = [dt.date(2024, 1, 31), dt.date(2024, 2, 29), dt.date(2023, 12, 31), dt.date(2024, 3, 1), dt.date(1969, 12, 30)]
OLD_DATES = [dt.date(1582, 10, 4), dt.date(1582, 10, 15), dt.date(9999, 12, 31), dt.date(1, 1, 1)]
TIMES = [
    dt.datetime(2024, 2, 29, 23, 59, 59, 999999),
    dt.datetime(2024, 3, 31, 2, 30),
    dt.datetime(1969, 12, 31, 23, 59, 59, 500000),
    dt.datetime(2024, 2, 29),
    dt.datetime(2023, 12, 31, 12, 0, 0, 1),
]
OLD_TIMES = [dt.datetime(1582, 10, 10, 1, 2, 3), dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(1, 1, 1)]
WORDS = ["a", "b", "ab", "ba", "abc", ""]
ODD_WORDS = ["ä", "日本", "A b", "it's", "100%", "x_y", " pad ", "🦉", "Ab\\c", "0", "a\x00b"]


@dataclass(frozen=True)
class Column:
    """A column and its domain; see the module's text for bound, grain and special."""

    name: str
    type: str
    values: tuple[Any, ...]
    nullable: bool = True
    bound: int | None = None
    grain: int | None = None
    special: bool = False


@dataclass(frozen=True)
class Table:
    """A base table. `key` names its primary key's columns, which are never NULL."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    rows: int

    @property
    def ddl(self) -> str:
        columns = ", ".join(f"{c.name} {c.type.upper()}" for c in self.columns)
        return f"CREATE TABLE {self.name} ({columns}, PRIMARY KEY ({', '.join(self.key)}))"

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema([pa.field(c.name, arrow_type(c.type), c.name not in self.key) for c in self.columns])

    def key_of(self, row: Mapping[str, Any]) -> Key:
        return tuple(row[k] for k in self.key)


def random_schema(rng: Random) -> tuple[Table, ...]:
    """One to four tables of two to seven columns."""
    calm = rng.random() < 0.3  # a third of the schemas has no extreme values, so deep arithmetic gets its turn
    return tuple(_random_table(rng, f"tab_{i}", calm) for i in range(rng.choice((1, 2, 2, 3, 3, 4))))


def random_row(rng: Random, table: Table) -> Row:
    return {c.name: None if c.nullable and rng.random() < 0.15 else rng.choice(c.values) for c in table.columns}


def _random_table(rng: Random, name: str, calm: bool) -> Table:
    width = rng.randint(2, 7)
    key_width = min(rng.choice((1, 1, 1, 2, 2, 3)), width)
    columns = [_key_column(rng, f"k{i}", key_width == 1) for i in range(key_width)]
    columns += [_column(rng, f"c{i}", calm) for i in range(key_width, width)]
    if rng.random() < 0.5:
        rng.shuffle(columns)
    key = [c.name for c in columns if not c.nullable]
    rng.shuffle(key)
    return Table(name, tuple(columns), tuple(key), rows=rng.choice((0, 6, 12, 12, 20, 20, 20, 30, 30, 30)))


def _key_column(rng: Random, name: str, alone: bool) -> Column:
    type_ = rng.choice(KEY_TYPES)
    size = 40 if alone else 6
    values: list[Any]
    special, bound = False, None
    if type_ in INTEGER_BITS:
        values = list(range(size))
        bound = size
        if rng.random() < 0.3:
            values += [-1, *_extremes(type_)]
            bound = 2 ** (INTEGER_BITS[type_] - 1)
    elif type_ == "string":
        values = [*WORDS, *ODD_WORDS[: rng.choice((0, 4, 99))], *(f"k{i}" for i in range(size - 6))]
        special = True
    elif type_ == "date":
        values = [*DATES, *(dt.date(2024, 5, 1) + dt.timedelta(days=i) for i in range(size - 5))]
    elif type_ == "binary":
        values = [b"", b"\x00", b"\xff", b"a\x00\xff", *(bytes([i]) for i in range(1, size - 3))]
    elif type_ == "timestamp":
        values = [*TIMES, *(dt.datetime(2024, 5, 1, i % 24, 0, i) for i in range(size - 5))]
    else:
        values = [Decimal(i - 3).scaleb(-2) for i in range(size)]
        bound = size
    if type_ == "timestamp":
        values = [v.replace(tzinfo=dt.UTC) for v in values]
    return Column(name, type_, tuple(dict.fromkeys(values)), nullable=False, bound=bound, special=special)


def _column(rng: Random, name: str, calm: bool) -> Column:
    type_ = rng.choice(TYPES)
    wild = not calm and rng.random() < 0.3
    if type_ == "boolean":
        return Column(name, type_, (False, True))
    if type_ in INTEGER_BITS:
        if wild:
            bits = INTEGER_BITS[type_]
            return Column(name, type_, (0, 1, -1, 3, *_extremes(type_)), bound=2 ** (bits - 1))
        return Column(name, type_, tuple(rng.sample(range(-3, 9), rng.choice((3, 6, 12)))), bound=9)
    if type_ in ("float", "double"):
        return _float_column(rng, name, type_, wild, calm)
    if type_ == "decimal":
        return _decimal_column(rng, name, rng.choice(DECIMALS), wild)
    if type_ == "string":
        return Column(name, type_, (*WORDS[: rng.choice((3, 6))], *(ODD_WORDS if wild else ())), special=wild)
    if type_ == "binary":
        return Column(name, type_, (b"", b"a", b"ab", b"\x00", b"\xff\x00"))
    if type_ == "date":
        return Column(name, type_, (*DATES, *(OLD_DATES if wild else ())), special=wild)
    times = [*TIMES, *(OLD_TIMES if wild else ())]
    if type_ == "timestamp":
        times = [t.replace(tzinfo=dt.UTC) for t in times]
    return Column(name, type_, tuple(times), special=wild)


def _float_column(rng: Random, name: str, type_: str, wild: bool, calm: bool) -> Column:
    eighths = [k / 8 for k in rng.sample(range(-80, 81), 5)] + [0.0, 1.0]
    if wild:
        nasty = [1e38, 1e-38, 0.1, -0.3] if type_ == "float" else [1e308, -1e308, 5e-324, 0.1, 0.2, 1e16]
        values = [float(pa.scalar(v, arrow_type(type_)).as_py()) for v in nasty]
        return Column(name, type_, (*values, math.nan, math.inf, -math.inf, -0.0, 0.0), special=True)
    if not calm and rng.random() < 0.3:
        return Column(name, type_, (*eighths, math.nan, -math.inf, -0.0), bound=10, grain=3, special=True)
    return Column(name, type_, tuple(eighths), bound=10, grain=3)


def _decimal_column(rng: Random, name: str, type_: str, wild: bool) -> Column:
    precision, scale = decimal_digits(type_)
    largest = Decimal((0, (9,) * precision, -scale))
    if wild:
        return Column(
            name,
            type_,
            (largest, largest.copy_negate(), Decimal((0, (1,), -scale)), Decimal(0), Decimal(2)),
            bound=10 ** (precision - scale),
        )
    unit = Decimal((0, (1,), -scale))
    values = [Decimal(v) for v in rng.sample(range(-9, 30), 4)] + [25 * unit, -5 * unit, Decimal(1) + unit]
    return Column(name, type_, tuple(v for v in values if v.copy_abs() <= largest), bound=30)


def _extremes(type_: str) -> tuple[int, int]:
    bits = INTEGER_BITS[type_]
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def decimal_digits(type_: str) -> tuple[int, int]:
    precision, scale = type_.removeprefix("decimal(").removesuffix(")").split(",")
    return int(precision), int(scale)


def arrow_type(type_: str) -> pa.DataType:
    """Spark's own mapping to Arrow."""
    if type_.startswith("decimal("):
        return pa.decimal128(*decimal_digits(type_))
    return {
        "boolean": pa.bool_(),
        "tinyint": pa.int8(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }[type_]
