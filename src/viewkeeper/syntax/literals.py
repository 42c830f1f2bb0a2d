"""Values as statements write them, read by a column's type.

    value ::= NULL | TRUE | FALSE | [-] number | 'text' | DATE 'text' | TIMESTAMP 'text' | X'hex'

Two quotes within a text are one, as in Spark; for a float 'NaN', 'Infinity' and '-Infinity' are values too. A value
that is written to a STRING column may be a number or a truth value, which becomes its text, and one of an integer
column may have zeros behind its point; in a comparison the column would be cast, not the value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from viewkeeper.errors import BadStatement, BadValue
from viewkeeper.model import types
from viewkeeper.model.intake.text import parse_value
from viewkeeper.model.schema import Column
from viewkeeper.syntax.cursor import TokenCursor
from viewkeeper.syntax.family_text import declared_parameters
from viewkeeper.syntax.lexer import find_parameters, lex

_EXACT_NUMBER = re.compile(r"(?:\d+[lLsSyY]?|(?:\d+\.\d*|\.\d+)(?:[bB][dD])?)")
"""Integers and decimals, which Spark casts to text digit by digit; not floats."""


def read_value(cursor: TokenCursor, table: str, column: Column, *, is_stored: bool = False) -> Any:
    """The next words as a value of the column; the intake reads dates, times and decimals from their text.

    `is_written`: the value is stored in the column, not compared with it.
    """
    is_text = column.type == types.STRING
    for word, value in (("NULL", None), ("TRUE", True), ("FALSE", False)):
        if cursor.accept(word):
            return word.lower() if is_text and is_stored and value is not None else value
    for word in ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ"):
        if cursor.is_at(word):
            cursor.accept(word)
            break
    sign = "-" if cursor.accept("-") else "+" if cursor.accept("+") else ""
    if cursor.is_at_end():
        raise BadStatement("The text ends where a value should be.", hint="Write it.")
    token = cursor.tokens[cursor.index]
    cursor.index += 1
    text = token.value
    if token.kind == "text" and not sign:
        return parse_value(table, column.name, column.type, text) if _is_special_float(column, text) else text
    if token.kind == "bytes" and not sign:
        return bytes.fromhex("0" * (len(text) % 2) + text)
    exact = is_stored and token.kind == "number" and _EXACT_NUMBER.fullmatch(cursor.text[token.start : token.end])
    if token.kind == "number" and not is_text:
        whole, _, fraction = text.partition(".")
        if exact and types.is_integer(column.type) and not fraction.strip("0"):
            text = whole or "0"
        return parse_value(table, column.name, column.type, sign + text)
    if exact:
        return str(Decimal(sign + text)) if "." in text else str(int(sign + text))
    cursor.index -= 1
    raise BadStatement(
        f"{cursor.describe_token()} is no value for {column.name} ({column.type.sql}).",
        hint="Values are NULL, TRUE, FALSE, numbers, 'text', DATE '…', TIMESTAMP '…' and X'…'.",
    )


def _is_special_float(column: Column, text: str) -> bool:
    """Whether this is one of the floats that have no digits."""
    return types.is_float(column.type) and text.lower().lstrip("+-") in ("nan", "inf", "infinity")


# Values for the names that a statement leaves open: `WHERE k = :k`.
#
#     :name    a colon and a name, anywhere a value may stand; a value becomes a literal of Spark's, whatever it holds
#
# A text is put in quotes with all that is special in it escaped, so nothing in it is ever read as SQL.


def bind_parameters(text: str, values: Mapping[str, Any]) -> str:
    """The statement with a literal for each open name; every name needs a value, and every value a name.

    The parameters that a family of views declares are its own.
    """
    found = list(lex(text))
    parts: list[str] = []
    end, used = 0, set()
    own = declared_parameters(found)
    for colon, name in find_parameters(found):
        if name.value.lower() in own:
            continue
        if name.value not in values:
            if own:
                raise BadValue(
                    f":{name.value} is no parameter.", hint=f"Declared in PARAMETERS: {', '.join(sorted(own))}."
                )
            known = ", ".join(sorted(values)) or "none"
            raise BadValue(f"There is no value for :{name.value}.", hint=f"Give it by name; there is: {known}.")
        used.add(name.value)
        parts += [
            text[end : colon.start],
            " ",
            sql_literal(name.value, values[name.value]),
        ]  # apart: `-` and -1 are no comment
        end = name.end
    if unused := sorted(set(values) - used):
        raise BadValue(f"The statement has no :{unused[0]}.", hint="Write it where the value should stand.")
    return "".join([*parts, text[end:]])


def sql_literal(name: str, value: Any) -> str:
    """A Python value as a literal of Spark SQL."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return (
            f"{value!r}{'' if 'e' in repr(value) else 'e0'}" if math.isfinite(value) else f"'{_NON_FINITE[str(value)]}'"
        )
    if isinstance(value, Decimal) and value.is_finite():
        return f"{value:f}"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"X'{bytes(value).hex()}'"
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return f"TIMESTAMP_NTZ '{value.isoformat(' ')}'"
        return f"TIMESTAMP '{value.astimezone(UTC).replace(tzinfo=None).isoformat(' ')}Z'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    raise BadValue(
        f"The value of :{name} is a {type(value).__name__}, which SQL has no literal for.",
        hint="Give None, a bool, int, float, Decimal, str, bytes, date or datetime.",
    )


_NON_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
