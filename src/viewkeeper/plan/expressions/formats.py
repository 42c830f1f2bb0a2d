"""date_format: Java's pattern letters as DuckDB text.

    y yyyy   year, at least so many digits; yy: its last two      M MM MMM MMMM   month
    d dd     day of the month       D DDD   day of the year       E … EEE, EEEE   day of the week, in English
    H HH     hour 0-23              h hh    hour 1-12             a               AM, PM
    m mm     minute                 s ss    second                S … SSSSSS      fraction, cut

Quoted text and punctuation stand for themselves. Any other letter makes the expression unsupported.
"""

from __future__ import annotations

import re

from viewkeeper.plan.expressions.dates import plus_micros
from viewkeeper.plan.expressions.rule import Texts, constant, quote
from viewkeeper.plan.nodes import Expr

_PIECE = re.compile(r"([A-Za-z])\1*|'((?:[^']|'')*)'|[^A-Za-z']+")
_NUMBERS = {"d": "day", "D": "dayofyear", "H": "hour", "m": "minute", "s": "second"}


def date_format(expr: Expr, args: Texts) -> str:
    return _formatted(args[0], str(constant(expr.args[1])))


def from_unixtime(expr: Expr, args: Texts) -> str:
    return _formatted(
        plus_micros("make_timestamp(CAST(0 AS BIGINT))", f"{args[0]} * 1000000"), str(constant(expr.args[1]))
    )


def refuse_format(expr: Expr) -> str | None:
    pattern = constant(expr.args[1])
    if pattern is None:
        return "a date pattern that is not a constant"
    try:
        _formatted("x", pattern)
    except KeyError as unknown:
        return f"The date pattern '{pattern}' ({unknown.args[0]})"
    return None


def _formatted(x: str, pattern: str) -> str:
    pieces = []
    place = 0
    for match in _PIECE.finditer(pattern):
        if match.start() != place:
            raise KeyError(pattern[place])
        place = match.end()
        text = match[0]
        if match[1]:
            pieces.append(_field(x, match[1], len(text)))
        elif text.startswith("'"):
            pieces.append(quote(text[1:-1].replace("''", "'") or "'"))
        elif set(text) & set("[]{}#"):
            raise KeyError(text)
        else:
            pieces.append(quote(text))
    if place != len(pattern):
        raise KeyError(pattern[place])
    whole = " || ".join(pieces) if pieces else "''"
    return f"(CASE WHEN {x} IS NOT NULL THEN {whole} END)"


def _field(x: str, letter: str, width: int) -> str:
    if letter == "y" and width in (1, 2, 4):
        return _year(x, width)
    if letter == "M" and width <= 4:
        return _number(f"month({x})", width) if width < 3 else f"strftime({x}, '{'%b' if width == 3 else '%B'}')"
    if letter == "E" and width <= 4:
        return f"strftime({x}, '{'%A' if width == 4 else '%a'}')"
    if letter == "a" and width == 1:
        return f"strftime({x}, '%p')"
    if letter == "h" and width <= 2:
        return _number(f"((hour({x}) + 11) % 12 + 1)", width)
    if letter == "S" and width <= 6:
        return f"left(lpad(CAST(microsecond({x}) % 1000000 AS VARCHAR), 6, '0'), {width})"
    if letter in _NUMBERS and width <= (3 if letter == "D" else 2) and (letter, width) != ("D", 2):
        return _number(f"{_NUMBERS[letter]}({x})", width)
    raise KeyError(letter * width)


def _number(text: str, width: int) -> str:
    number = f"CAST({text} AS VARCHAR)"
    return number if width == 1 else f"lpad({number}, {width}, '0')"


def _year(x: str, width: int) -> str:
    """yyyy writes a sign before more than four digits; years before 1 are counted back from 1 BC as in Java."""
    era = f"(CASE WHEN year({x}) < 1 THEN 1 - year({x}) ELSE year({x}) END)"
    digits = f"CAST({era} AS VARCHAR)"
    if width == 1:
        return digits
    if width == 2:
        return f"lpad(CAST({era} % 100 AS VARCHAR), 2, '0')"
    return f"(CASE WHEN {era} > 9999 THEN '+' || {digits} ELSE lpad({digits}, 4, '0') END)"
