"""Values as statements write them, read by a column's type.

    value ::= NULL | TRUE | FALSE | [-] number | 'text' | DATE 'text' | TIMESTAMP 'text' | X'hex'

Two quotes within a text are one, as in Spark; for a float 'NaN', 'Infinity' and '-Infinity' are values too.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from viewkeeper.errors import BadStatement
from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.model.written import typed
from viewkeeper.plan.words import Words


def read_value(words: Words, table: str, column: Column) -> Any:
    """The next words as a value of the column; the intake reads dates, times and decimals from their text."""
    for word, value in (("NULL", None), ("TRUE", True), ("FALSE", False)):
        if words.take(word):
            return value
    for word in ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ"):
        if words.at(word):
            words.take(word)
            break
    sign = "-" if words.take("-") else "+" if words.take("+") else ""
    if words.done():
        raise BadStatement("The text ends where a value should be.", hint="Write it.")
    token = words.tokens[words.next]
    words.next += 1
    text = token.value
    if token.kind == "text" and not sign:
        return typed(table, column.name, column.type, text) if _is_no_number(column, text) else text
    if token.kind == "bytes" and not sign:
        return bytes.fromhex("0" * (len(text) % 2) + text)
    if token.kind == "number" and types.arrow(column.type) != pa.string():
        return typed(table, column.name, column.type, sign + text)
    words.next -= 1
    raise BadStatement(
        f"{words.shown()} is no value for {column.name} ({column.type.sql}).",
        hint="Values are NULL, TRUE, FALSE, numbers, 'text', DATE '…', TIMESTAMP '…' and X'…'.",
    )


def _is_no_number(column: Column, text: str) -> bool:
    """Whether this is one of the floats that have no digits."""
    return types.is_float(column.type) and text.lower().lstrip("+-") in ("nan", "inf", "infinity")
