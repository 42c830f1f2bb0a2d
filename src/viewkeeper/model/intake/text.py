"""Values as text, parsed by a column's type: keys on the command line and in URLs, literals of SQL."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from viewkeeper.errors import BadValue
from viewkeeper.model import types
from viewkeeper.model.schema import Table
from viewkeeper.model.types import Kind, Type


def parse_key(table: Table, texts: Sequence[str], *, complete: bool = True) -> tuple[Any, ...]:
    """Parse command words as the values of a key, or of its first columns, each by its column's type."""
    columns = table.key_columns
    if len(texts) > len(columns) or (complete and len(texts) < len(columns)):
        names = ", ".join(column.name for column in columns)
        raise BadValue(
            f"The key of {table.name} has {len(columns)} column(s), {len(texts)} value(s) were given.",
            hint=f"The key is: {names}." if names else "It has one row: name no key.",
        )
    return tuple(parse_value(table.name, c.name, c.type, word) for c, word in zip(columns, texts, strict=False))


_READERS: Mapping[Type, Callable[[str], Any]] = {
    types.BOOLEAN: lambda word: {"true": True, "false": False}[word.lower()],
    types.FLOAT: float,
    types.DOUBLE: float,
    types.STRING: str,
    types.BINARY: bytes.fromhex,
    types.DATE: date.fromisoformat,
    types.TIMESTAMP: datetime.fromisoformat,
    types.TIMESTAMP_NTZ: datetime.fromisoformat,
}


_NUMBER_READERS = (int, float, Decimal)
_NUMBER_TEXT = re.compile(r"[0-9A-Za-z.+-]+")


def parse_value(table: str, column: str, type_: Type, text: str) -> Any:
    """Parse a text as a value of the column's type."""
    read = Decimal if type_.kind is Kind.DECIMAL else _READERS.get(type_, int)
    try:
        if read in _NUMBER_READERS and not _NUMBER_TEXT.fullmatch(text):
            raise ValueError  # Python accepts 1_000 and digits of any script, SQL and JSON do not
        return read(text)
    except (ValueError, KeyError, ArithmeticError):
        from viewkeeper.model.intake.columns import accepted_values

        raise BadValue(
            f"{table}.{column}: {text!r} is no {type_.sql} value.", hint=f"Give {accepted_values(type_)}"
        ) from None


# Names and key values as segments of a URL's path, as the server parses them.
#
#     ~null          NULL
#     ~text          literal text, if it begins with ~ or is "." or "..", which browsers remove from a path
#     base64url      BINARY
#
# Everything is percent-encoded, including slashes.


NULL = "~null"
RESERVED = ("views", "tables", "sql", "status", "events", "openapi.json")
"""Path segments of the server's own: a table with such a name is written with ~."""


def path_segment(value: Any) -> str:
    """Return a key's value as a path segment."""
    if value is None:
        return NULL
    if isinstance(value, bytes):
        text = base64.urlsafe_b64encode(value).decode()
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    if text.startswith("~") or text in (".", ".."):
        text = "~" + text
    return quote(text, safe="")


def name_path_segment(name: str) -> str:
    """Return a table's or view's name as a path segment."""
    reserved = name.startswith("~") or name in (".", "..", *RESERVED)
    return quote("~" + name if reserved else name, safe="")
