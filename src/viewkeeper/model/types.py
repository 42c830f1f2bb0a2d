"""Column types as values, with Spark SQL's names. Each type has one Arrow and one DuckDB form.

    Spark              Arrow (internal)   Arrow (external)         DuckDB
    boolean            bool               same                     BOOLEAN
    tinyint … bigint   int8 … int64       same                     TINYINT … BIGINT
    float, double      float32, float64   same                     FLOAT, DOUBLE
    decimal(p,s)       decimal128(p,s)    same                     DECIMAL(p,s)
    string, binary     string, binary     same                     VARCHAR, BLOB
    date               date32             same                     DATE
    timestamp          timestamp[us]      timestamp[us, tz=UTC]    TIMESTAMP
    timestamp_ntz      timestamp[us]      timestamp[us]            TIMESTAMP

Internally a timestamp is a count of microseconds in UTC. The session's time zone is pinned to UTC, so both timestamp
types compute alike; `external_type` restores the zone where data leaves the engine.

The table lists the types of columns. Expressions also have intermediate types: intervals, arrays, maps, structs, and
types that only Spark knows. A type is a text only in stored data, in displays and in statements: `str(type)` writes the
text and `parse_type` reads it. Nullability is not part of a type; the column, the expression or the nested field that
has the type states it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from functools import cache
from typing import Any

import pyarrow as pa

from viewkeeper.errors import Unsupported


class Kind(StrEnum):
    """The kind of a type, without precision and nested fields."""

    BOOLEAN = "boolean"
    TINYINT = "tinyint"
    SMALLINT = "smallint"
    INT = "int"
    BIGINT = "bigint"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMP_NTZ = "timestamp_ntz"
    VOID = "void"
    MONTHS = "months"
    """An interval of years and months."""
    MICROSECONDS = "microseconds"
    """An interval of days down to seconds."""
    ARRAY = "array"
    MAP = "map"
    STRUCT = "struct"
    OTHER = "other"


class Family(Enum):
    """Kinds with the same rules for conversion, reading and comparison."""

    BOOLEAN = auto()
    INTEGER = auto()
    FLOAT = auto()
    DECIMAL = auto()
    TEXT = auto()
    BINARY = auto()
    DATE = auto()
    TIME = auto()
    INTERVAL = auto()
    NESTED = auto()
    VOID = auto()
    OTHER = auto()


_FAMILIES = {
    Kind.BOOLEAN: Family.BOOLEAN,
    Kind.TINYINT: Family.INTEGER,
    Kind.SMALLINT: Family.INTEGER,
    Kind.INT: Family.INTEGER,
    Kind.BIGINT: Family.INTEGER,
    Kind.FLOAT: Family.FLOAT,
    Kind.DOUBLE: Family.FLOAT,
    Kind.DECIMAL: Family.DECIMAL,
    Kind.STRING: Family.TEXT,
    Kind.BINARY: Family.BINARY,
    Kind.DATE: Family.DATE,
    Kind.TIMESTAMP: Family.TIME,
    Kind.TIMESTAMP_NTZ: Family.TIME,
    Kind.MONTHS: Family.INTERVAL,
    Kind.MICROSECONDS: Family.INTERVAL,
    Kind.ARRAY: Family.NESTED,
    Kind.MAP: Family.NESTED,
    Kind.STRUCT: Family.NESTED,
    Kind.VOID: Family.VOID,
    Kind.OTHER: Family.OTHER,
}


@dataclass(frozen=True, slots=True)
class NestedField:
    """A component of a nested type: an array's element, a map's key or value, a struct's field."""

    name: str
    type: Type
    nullable: bool = True


@dataclass(frozen=True, slots=True, repr=False)
class Type:
    """A type of Spark SQL."""

    kind: Kind
    precision: int = 0
    scale: int = 0
    nested_fields: tuple[NestedField, ...] = ()
    keyword: str = ""
    """Spark's name, where the other fields do not determine it: an interval's units, a type without a kind here."""
    _hash: int = field(init=False, compare=False, default=0)

    def __post_init__(self) -> None:
        identity = (self.kind, self.precision, self.scale, self.nested_fields, self.keyword)
        object.__setattr__(self, "_hash", hash(identity))  # computed once: expressions are looked up by value

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> Any:  # a hash is valid in one process only
        return parse_type, (str(self),)

    def __str__(self) -> str:
        """Return Spark's name of the type, which is stored and displayed."""
        if self.keyword:
            return self.keyword
        match self.kind:
            case Kind.DECIMAL:
                return f"decimal({self.precision},{self.scale})"
            case Kind.ARRAY | Kind.MAP:
                return f"{self.kind}<{','.join(_render_nested_field(p) for p in self.nested_fields)}>"
            case Kind.STRUCT:
                return f"struct<{','.join(f'{p.name}:{_render_nested_field(p)}' for p in self.nested_fields)}>"
        return self.kind.value

    def __repr__(self) -> str:
        return f"<type {self}>"

    @property
    def sql(self) -> str:
        """The type as a statement writes it."""
        return str(self).upper()

    @property
    def family(self) -> Family:
        return _FAMILIES[self.kind]

    @property
    def element(self) -> Type:
        """The type of an array's elements."""
        return self.nested_fields[0].type


BOOLEAN = Type(Kind.BOOLEAN)
TINYINT = Type(Kind.TINYINT)
SMALLINT = Type(Kind.SMALLINT)
INT = Type(Kind.INT)
BIGINT = Type(Kind.BIGINT)
FLOAT = Type(Kind.FLOAT)
DOUBLE = Type(Kind.DOUBLE)
STRING = Type(Kind.STRING)
BINARY = Type(Kind.BINARY)
DATE = Type(Kind.DATE)
TIMESTAMP = Type(Kind.TIMESTAMP)
TIMESTAMP_NTZ = Type(Kind.TIMESTAMP_NTZ)
VOID = Type(Kind.VOID)

INTEGERS = (TINYINT, SMALLINT, INT, BIGINT)
FLOATS = (FLOAT, DOUBLE)
TIMES = (TIMESTAMP, TIMESTAMP_NTZ)
VARIABLE_WIDTH = (STRING, BINARY)
"""Types of variable width."""

_SCALAR_FORMS: dict[Type, tuple[pa.DataType, str]] = {
    BOOLEAN: (pa.bool_(), "BOOLEAN"),
    TINYINT: (pa.int8(), "TINYINT"),
    SMALLINT: (pa.int16(), "SMALLINT"),
    INT: (pa.int32(), "INTEGER"),
    BIGINT: (pa.int64(), "BIGINT"),
    FLOAT: (pa.float32(), "FLOAT"),
    DOUBLE: (pa.float64(), "DOUBLE"),
    STRING: (pa.string(), "VARCHAR"),
    BINARY: (pa.binary(), "BLOB"),
    DATE: (pa.date32(), "DATE"),
    TIMESTAMP: (pa.timestamp("us"), "TIMESTAMP"),
    TIMESTAMP_NTZ: (pa.timestamp("us"), "TIMESTAMP"),
}
SCALAR_TYPES = tuple(_SCALAR_FORMS)
"""The types of columns, without decimals."""
COLUMN_TYPE_NAMES = (*map(str, SCALAR_TYPES), "decimal(p,s)")

_TYPES_BY_NAME = {str(t): t for t in (*SCALAR_TYPES, VOID)}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_NOT_NULL = " not null"


@cache
def decimal(precision: int, scale: int) -> Type:
    return Type(Kind.DECIMAL, precision, scale)


def array(element: Type) -> Type:
    return Type(Kind.ARRAY, nested_fields=(NestedField("element", element),))


@cache
def parse_type(name: str) -> Type:
    """Return the type with this name in Spark's catalog. Every name has a type; `arrow` rejects types that a column
    cannot have."""
    if name in _TYPES_BY_NAME:
        return _TYPES_BY_NAME[name]
    if match := _DECIMAL.fullmatch(name):
        return decimal(int(match[1]), int(match[2]))
    if name.startswith("interval "):
        return Type(Kind.MONTHS if "year" in name or "month" in name else Kind.MICROSECONDS, keyword=name)
    kind, _, inner = name.partition("<")
    if kind not in (Kind.ARRAY, Kind.MAP, Kind.STRUCT) or not inner.endswith(">"):
        return Type(Kind.OTHER, keyword=name)
    texts = list(_split_nested_types(inner[:-1]))
    named = [text.partition(":") for text in texts]
    if kind == Kind.STRUCT:
        result = Type(
            Kind.STRUCT, nested_fields=tuple(_parse_nested_field(name, text) for name, _, text in named if text)
        )
    else:
        names = ("element",) if kind == Kind.ARRAY else ("key", "value")
        result = Type(
            Kind(kind), nested_fields=tuple(_parse_nested_field(*pair) for pair in zip(names, texts, strict=False))
        )
    # A field's name may contain any character; if the text does not round-trip, only the kind and the text are kept.
    return result if str(result) == name else Type(Kind(kind), keyword=name)


def _parse_nested_field(name: str, text: str) -> NestedField:
    return NestedField(name, parse_type(text.removesuffix(_NOT_NULL)), nullable=not text.endswith(_NOT_NULL))


def _render_nested_field(nested_field: NestedField) -> str:
    return str(nested_field.type) + ("" if nested_field.nullable else _NOT_NULL)


def _split_nested_types(text: str) -> Iterator[str]:
    """Split the parts of a nested type at top-level commas."""
    depth, start = 0, 0
    for at, character in enumerate(text):
        depth += (character in "<(") - (character in ">)")
        if character == "," and not depth:
            yield text[start:at]
            start = at + 1
    if text:
        yield text[start:]


@cache
def arrow(type_: Type) -> pa.DataType:
    """Return the internal Arrow type of a column."""
    if type_.kind is Kind.DECIMAL:
        return pa.decimal128(type_.precision, type_.scale)
    if type_ in _SCALAR_FORMS:
        return _SCALAR_FORMS[type_][0]
    raise Unsupported(
        f"Type {type_.sql} is not supported.", hint=f"Supported types: {', '.join(COLUMN_TYPE_NAMES).upper()}."
    )


@cache
def external_type(type_: Type) -> pa.DataType:
    """Return the Arrow type that a user sees, which is Spark's own mapping."""
    return pa.timestamp("us", "UTC") if type_ == TIMESTAMP else arrow(type_)


@cache
def sql_type_name(arrow_type: pa.DataType) -> str:
    """Return the type name of a query result's column: the column type with this Arrow form, else Arrow's name."""
    if pa.types.is_decimal(arrow_type):
        return str(decimal(arrow_type.precision, arrow_type.scale))
    return next((str(type_) for type_ in SCALAR_TYPES if external_type(type_) == arrow_type), str(arrow_type))


def duckdb(type_: Type) -> str:
    """Return the DuckDB type of a column of this type."""
    if type_.kind is Kind.DECIMAL:
        return f"DECIMAL({type_.precision},{type_.scale})"
    arrow(type_)
    return _SCALAR_FORMS[type_][1]


def decimal_digits(type_: Type) -> tuple[int, int] | None:
    """Return (precision, scale) of a decimal type, None for any other type."""
    return (type_.precision, type_.scale) if type_.kind is Kind.DECIMAL else None


def is_widening(narrow: Type, type_: Type) -> bool:
    """Return whether every value of `narrow` is, unchanged, a value of `type_`."""
    if narrow in INTEGERS and type_ in INTEGERS:
        return INTEGERS.index(narrow) < INTEGERS.index(type_)
    if narrow.kind is type_.kind is Kind.DECIMAL:
        at_least = type_.precision - type_.scale >= narrow.precision - narrow.scale and type_.scale >= narrow.scale
        return at_least and type_ != narrow
    return (narrow, type_) in ((FLOAT, DOUBLE), (DATE, TIMESTAMP), (DATE, TIMESTAMP_NTZ))


def is_integer(type_: Type) -> bool:
    return type_.family is Family.INTEGER


def is_float(type_: Type) -> bool:
    return type_.family is Family.FLOAT


def is_interval(type_: Type) -> bool:
    return type_.family is Family.INTERVAL


def bit_width(type_: Type) -> int:
    """Return the width of an integer type in bits."""
    return int(arrow(type_).bit_width)
