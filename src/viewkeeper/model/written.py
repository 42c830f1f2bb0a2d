"""Values as people write them, read by a column's type: the keys of the command line and of URLs, literals of SQL."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from viewkeeper.errors import BadValue
from viewkeeper.model import types
from viewkeeper.model.schema import Table
from viewkeeper.model.types import Kind, Type


def key_values(table: Table, words: Sequence[str], *, whole: bool = True) -> tuple[Any, ...]:
    """The words of a command as the values of a key, or of its first columns, each by its column's type."""
    columns = table.key_columns
    if len(words) > len(columns) or (whole and len(words) < len(columns)):
        names = ", ".join(column.name for column in columns)
        raise BadValue(
            f"The key of {table.name} has {len(columns)} column(s), {len(words)} value(s) were given.",
            hint=f"The key is: {names}." if names else "It has one row: name no key.",
        )
    return tuple(typed(table.name, c.name, c.type, word) for c, word in zip(columns, words, strict=False))


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


_NUMBERS = (int, float, Decimal)
_WRITTEN = re.compile(r"[0-9A-Za-z.+-]+")


def typed(table: str, column: str, type_: Type, word: str) -> Any:
    """A word as a value of the column's type."""
    read = Decimal if type_.kind is Kind.DECIMAL else _READERS.get(type_, int)
    try:
        if read in _NUMBERS and not _WRITTEN.fullmatch(word):
            raise ValueError  # Python reads 1_000 and digits of any script, SQL and JSON do not
        return read(word)
    except (ValueError, KeyError, ArithmeticError):
        from viewkeeper.model.values import accepted

        raise BadValue(f"{table}.{column}: {word!r} is no {type_.sql} value.", hint=f"Give {accepted(type_)}") from None
