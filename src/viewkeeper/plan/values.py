"""Values as statements write them, read by a column's type.

    value ::= NULL | TRUE | FALSE | [-] number | 'text' | DATE 'text' | TIMESTAMP 'text' | X'hex'

Two quotes within a text are one, as in Spark; for a float 'NaN', 'Infinity' and '-Infinity' are values too. A value
that is written to a STRING column may be a number or a truth value, which becomes its text, and one of an integer
column may have zeros behind its point; in a comparison the column would be cast, not the value.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from viewkeeper.errors import BadStatement
from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.model.written import typed
from viewkeeper.plan.words import Words

_EXACT = re.compile(r"(?:\d+[lLsSyY]?|(?:\d+\.\d*|\.\d+)(?:[bB][dD])?)")
"""Integers and decimals, which Spark casts to text digit by digit; not floats."""


def read_value(words: Words, table: str, column: Column, *, is_written: bool = False) -> Any:
    """The next words as a value of the column; the intake reads dates, times and decimals from their text.

    `is_written`: the value is stored in the column, not compared with it.
    """
    is_text = column.type == types.STRING
    for word, value in (("NULL", None), ("TRUE", True), ("FALSE", False)):
        if words.take(word):
            return word.lower() if is_text and is_written and value is not None else value
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
    exact = is_written and token.kind == "number" and _EXACT.fullmatch(words.text[token.start : token.end])
    if token.kind == "number" and not is_text:
        whole, _, fraction = text.partition(".")
        if exact and types.is_integer(column.type) and not fraction.strip("0"):
            text = whole or "0"
        return typed(table, column.name, column.type, sign + text)
    if exact:
        return str(Decimal(sign + text)) if "." in text else str(int(sign + text))
    words.next -= 1
    raise BadStatement(
        f"{words.shown()} is no value for {column.name} ({column.type.sql}).",
        hint="Values are NULL, TRUE, FALSE, numbers, 'text', DATE '…', TIMESTAMP '…' and X'…'.",
    )


def _is_no_number(column: Column, text: str) -> bool:
    """Whether this is one of the floats that have no digits."""
    return types.is_float(column.type) and text.lower().lstrip("+-") in ("nan", "inf", "infinity")
