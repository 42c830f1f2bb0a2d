"""Literal values in statements, read by a column's type, and Python values as SQL literals.

    value ::= NULL | TRUE | FALSE | [-] number | 'text' | DATE 'text' | TIMESTAMP 'text' | X'hex'

Two quotes within a text mean one, as in Spark; a float may also be 'NaN', 'Infinity' or '-Infinity'. A value that is
stored in a STRING column may be a number or a boolean, which becomes its text, and a value for an integer column may
have zeros after its point. In a comparison neither holds, because Spark would cast the column and not the value.
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
    """Read the next tokens as a value of the column; the intake parses dates, times and decimals from their text.

    `is_stored`: the value is stored in the column, not compared with it.
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
    is_exact = is_stored and token.kind == "number" and _EXACT_NUMBER.fullmatch(cursor.text[token.start : token.end])
    if token.kind == "number" and not is_text:
        whole, _, fraction = text.partition(".")
        if is_exact and types.is_integer(column.type) and not fraction.strip("0"):
            text = whole or "0"
        return parse_value(table, column.name, column.type, sign + text)
    if is_exact:
        return str(Decimal(sign + text)) if "." in text else str(int(sign + text))
    cursor.index -= 1
    raise BadStatement(
        f"{cursor.describe_token()} is no value for {column.name} ({column.type.sql}).",
        hint="Values are NULL, TRUE, FALSE, numbers, 'text', DATE '…', TIMESTAMP '…' and X'…'.",
    )


def _is_special_float(column: Column, text: str) -> bool:
    """Return whether the text is NaN or an infinity of a float column."""
    return types.is_float(column.type) and text.lower().lstrip("+-") in ("nan", "inf", "infinity")


# Values for the open names of a statement: `WHERE k = :k`.
#
#     :name    a colon and a name, wherever a value is allowed; the value becomes a literal of Spark SQL
#
# A text is quoted with all special characters escaped, so no part of it is parsed as SQL.


def bind_parameters(text: str, values: Mapping[str, Any]) -> str:
    """Return the statement with a literal for each open name. Every name needs a value, and every value a name.

    Parameters that the statement declares for a view family stay open.
    """
    tokens = list(lex(text))
    parts: list[str] = []
    end, used = 0, set()
    declared = declared_parameters(tokens)
    for colon, name in find_parameters(tokens):
        if name.value.lower() in declared:
            continue
        if name.value not in values:
            if declared:
                raise BadValue(
                    f":{name.value} is no parameter.", hint=f"Declared in PARAMETERS: {', '.join(sorted(declared))}."
                )
            names = ", ".join(sorted(values)) or "none"
            raise BadValue(f"There is no value for :{name.value}.", hint=f"Give it by name; there is: {names}.")
        used.add(name.value)
        parts += [
            text[end : colon.start],
            " ",
            sql_literal(name.value, values[name.value]),
        ]  # the blank keeps `-` and -1 from becoming a comment
        end = name.end
    if unused := sorted(set(values) - used):
        raise BadValue(f"The statement has no :{unused[0]}.", hint="Write it where the value should stand.")
    return "".join([*parts, text[end:]])


def sql_literal(name: str, value: Any) -> str:
    """Return a Python value as a literal of Spark SQL."""
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
