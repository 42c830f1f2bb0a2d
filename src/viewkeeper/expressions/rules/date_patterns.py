"""Java's date patterns as DuckDB text, for formatting and for parsing.

    y yyyy   year, with at least so many digits; yy: its last two     M MM MMM MMMM   month
    d dd     day of the month       D DDD   day of the year       E … EEE, EEEE   day of the week, in English
    H HH     hour 0-23              h hh    hour 1-12             a               AM, PM
    m mm     minute                 s ss    second                S … SSSSSS      fraction, truncated

Quoted text and punctuation are literal. Any other letter makes the expression unsupported. Parsing supports only the
fields of fixed width: yyyy, MM, dd, HH, mm, ss and S … SSSSSS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from viewkeeper.expressions.rules.dates import add_micros
from viewkeeper.expressions.rules.rule import Texts, constant, fail, parameter, quote
from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types

_PIECE = re.compile(r"([A-Za-z])\1*|'((?:[^']|'')*)'|[^A-Za-z']+")
_NUMERIC_FIELDS = {"d": "day", "D": "dayofyear", "H": "hour", "m": "minute", "s": "second"}


def date_format(expr: Expr, args: Texts) -> str:
    return _format_sql(args[0], str(constant(expr.args[1])))


def from_unixtime(expr: Expr, args: Texts) -> str:
    return _format_sql(
        add_micros("make_timestamp(CAST(0 AS BIGINT))", f"{args[0]} * 1000000"), str(constant(expr.args[1]))
    )


def refuse_format(expr: Expr) -> str | None:
    pattern = constant(expr.args[1])
    if pattern is None:
        return "a date pattern that is not a constant"
    try:
        _format_sql("x", pattern)
    except KeyError as unknown:
        return f"The date pattern '{pattern}' ({unknown.args[0]})"
    return None


_FIELDS = {"yyyy": r"(-?[0-9]{4}|[+-][0-9]{5,6})", **dict.fromkeys(("MM", "dd", "HH", "mm", "ss"), "([0-9]{2})")}
_DEFAULT_FIELDS = {"yyyy": "1970", "MM": "1", "dd": "1"}


def parse(expr: Expr, args: Texts) -> str:
    """Parse text by a pattern; the whole text must match and be a date. Fields that the pattern lacks are those of
    1970-01-01 00:00."""
    return _parse_sql(args[0], str(constant(expr.args[1])), strict=parameter(expr) is not False)


def parse_raises(expr: Expr) -> bool:
    return expr.args[0].type == types.STRING and parameter(expr) is not False


def refuse_parse(expr: Expr) -> str | None:
    pattern = constant(expr.args[1])
    if expr.args[0].type != types.STRING or pattern is None:
        return "reading a date by a pattern that is not a constant"
    try:
        _pattern_regex(pattern)
    except KeyError as unknown:
        return f"Reading a date by the pattern '{pattern}' ({unknown.args[0]})"
    return None


def unix_timestamp(expr: Expr, args: Texts) -> str:
    """Return seconds since 1970 of a date or timestamp, truncated, or of text by a pattern."""
    value = args[0] if expr.args[0].type != types.STRING else parse(expr, args)
    return f"(epoch_us(CAST({value} AS TIMESTAMP)) // 1000000)"


def refuse_unix_timestamp(expr: Expr) -> str | None:
    return refuse_parse(expr) if expr.args[0].type == types.STRING else None


def _pattern_regex(pattern: str) -> tuple[str, list[str]]:
    """Return the regular expression of a pattern, and its fields in order."""
    expression, fields = "", []
    for kind, text in _pieces(pattern):
        if kind == "text":
            expression += re.escape(text)
        elif set(text) == {"S"} and len(text) <= 6 and kind == "letters":
            expression += f"([0-9]{{1,{len(text)}}})"
            fields.append("S")
        else:
            expression += _FIELDS[text]
            fields.append(text)
    if len(set(fields)) < len(fields) or not fields:
        raise KeyError("a field twice, or none")
    return expression, fields


def _parse_sql(s: str, pattern: str, strict: bool) -> str:
    expression, fields = _pattern_regex(pattern)

    def number(name: str) -> str:
        if name not in fields:
            return _DEFAULT_FIELDS.get(name, "0")
        return f"CAST(regexp_extract({s}, {quote(f'^{expression}$')}, {fields.index(name) + 1}) AS BIGINT)"

    year, month, day, hour, minute, second = (number(n) for n in ("yyyy", "MM", "dd", "HH", "mm", "ss"))
    micros = "0"
    if "S" in fields:
        fraction = f"regexp_extract({s}, {quote(f'^{expression}$')}, {fields.index('S') + 1})"
        micros = f"CAST(rpad({fraction}, 6, '0') AS BIGINT)"
    clock = f"((({hour} * 60 + {minute}) * 60 + {second}) * 1000000 + {micros})"
    timestamp = f"TRY(make_timestamp(epoch_us(CAST(make_date({year}, {month}, {day}) AS TIMESTAMP)) + {clock}))"
    matches = f"regexp_full_match({s}, {quote(expression)})"
    in_range = f"{hour} < 24 AND {minute} < 60 AND {second} < 60"
    value = f"(CASE WHEN {matches} THEN CASE WHEN {in_range} THEN {timestamp} END END)"
    if not strict:
        return value
    bad = fail("CANNOT_PARSE_TIMESTAMP", f"Text could not be parsed with the pattern {pattern}.")
    return f"(CASE WHEN {value} IS NULL AND {s} IS NOT NULL THEN {bad} ELSE {value} END)"


def _format_sql(x: str, pattern: str) -> str:
    pieces = [quote(t) if kind == "text" else _field_sql(x, t[0], len(t)) for kind, t in _pieces(pattern)]
    whole = " || ".join(pieces) if pieces else "''"
    return f"(CASE WHEN {x} IS NOT NULL THEN {whole} END)"


def _pieces(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield ("letters", a run of one letter) and ("text", literal text). Raise KeyError for anything else."""
    position = 0
    for match in _PIECE.finditer(pattern):
        if match.start() != position:
            raise KeyError(pattern[position])
        position = match.end()
        if match[1]:
            yield "letters", match[0]
        elif match[0].startswith("'"):
            yield "text", match[0][1:-1].replace("''", "'") or "'"
        elif set(match[0]) & set("[]{}#"):
            raise KeyError(match[0])
        else:
            yield "text", match[0]
    if position != len(pattern):
        raise KeyError(pattern[position])


def _field_sql(x: str, letter: str, width: int) -> str:
    if letter == "y" and width in (1, 2, 4):
        return _year(x, width)
    if letter == "M" and width <= 4:
        return _padded_number(f"month({x})", width) if width < 3 else f"strftime({x}, '{'%b' if width == 3 else '%B'}')"
    if letter == "E" and width <= 4:
        return f"strftime({x}, '{'%A' if width == 4 else '%a'}')"
    if letter == "a" and width == 1:
        return f"strftime({x}, '%p')"
    if letter == "h" and width <= 2:
        return _padded_number(f"((hour({x}) + 11) % 12 + 1)", width)
    if letter == "S" and width <= 6:
        return f"left(lpad(CAST(microsecond({x}) % 1000000 AS VARCHAR), 6, '0'), {width})"
    if letter in _NUMERIC_FIELDS and width <= (3 if letter == "D" else 2) and (letter, width) != ("D", 2):
        return _padded_number(f"{_NUMERIC_FIELDS[letter]}({x})", width)
    raise KeyError(letter * width)


def _padded_number(text: str, width: int) -> str:
    number = f"CAST({text} AS VARCHAR)"
    return number if width == 1 else f"lpad({number}, {width}, '0')"


def _year(x: str, width: int) -> str:
    """Format a year; years before 1 are 0, -1, …, and yyyy writes a sign if there are more than four digits."""
    if width == 1:
        return f"CAST(year({x}) AS VARCHAR)"
    if width == 2:
        return f"lpad(CAST(abs(year({x})) % 100 AS VARCHAR), 2, '0')"
    sign = f"CASE WHEN year({x}) < 0 THEN '-' WHEN year({x}) > 9999 THEN '+' ELSE '' END"
    digits = f"CAST(abs(year({x})) AS VARCHAR)"
    return f"({sign} || CASE WHEN abs(year({x})) > 9999 THEN {digits} ELSE lpad({digits}, 4, '0') END)"
