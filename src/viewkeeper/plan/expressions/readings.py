"""Text as values: what Spark accepts after trimming, and nothing more.

DuckDB's own casts accept much that Spark refuses (`1e3` and `1_000` as integers, `2020-1` and `12/31/2020` as dates)
and the other way round. So each target has one regular expression, the language that Spark reads, and text that
matches it is handed to DuckDB in the one form that both understand.

    boolean            t true y yes 1 / f false n no 0, any case
    integer            [+-] digits
    float              [+-] digits [. digits] [e [+-] digits] [d|f], NaN, [+-] inf[inity], any case
    decimal            [+-] digits [. digits] [e [+-] digits], rounded HALF_UP
    date               [+-] year [-month [-day [T or space, anything]]]
    timestamp          the same, then hour[:minute[:second[.fraction]]] and a zone Z, UTC, GMT or ±h[h][:mm]
"""

from __future__ import annotations

from viewkeeper.model import types
from viewkeeper.plan.expressions.rule import duck, quote

_SPACE = r"[\x00-\x20\x7f-\x9f]*"
_FLOAT = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"


def read(x: str, target: str, bad: str) -> str:
    """`x` read as `target`; the SQL text `bad` where it is not one."""
    if target == "boolean":
        return _boolean(x, bad)
    if types.is_integer(target):
        return _matching(x, trimmed(x), "[+-]?[0-9]+", target, bad)
    if types.is_float(target):
        return _float(x, target, bad)
    if types.decimal_digits(target):
        text, attempt = trimmed(x), bad == "NULL"
        number = decimal(text, target, attempt)
        return f"(CASE WHEN regexp_full_match({text}, {quote(_FLOAT)}) THEN {number} WHEN {x} IS NULL THEN NULL ELSE {bad} END)"
    return f"vk_read_{'date' if target == 'date' else 'timestamp'}({x}, {bad})"


def decimal(text: str, target: str, attempt: bool) -> str:
    """A number's text as a decimal, HALF_UP. DuckDB reads plain digits exactly, but not all exponents."""
    plain = f"CASE WHEN contains(lower({text}), 'e') THEN vk_plain({text}) ELSE {text} END"
    return f"{'TRY_CAST' if attempt else 'CAST'}({plain} AS {duck(target)})"


def trimmed(x: str) -> str:
    """Without leading and trailing spaces and control characters."""
    return f"regexp_replace(regexp_replace({x}, {quote('^' + _SPACE)}, ''), {quote(_SPACE + '$')}, '')"


def _boolean(x: str, bad: str) -> str:
    text = f"lower({trimmed(x)})"
    return (
        f"(CASE WHEN {text} IN ('t', 'true', 'y', 'yes', '1') THEN TRUE "
        f"WHEN {text} IN ('f', 'false', 'n', 'no', '0') THEN FALSE WHEN {x} IS NULL THEN NULL ELSE {bad} END)"
    )


def _matching(x: str, text: str, pattern: str, target: str, bad: str) -> str:
    word = "TRY_CAST" if bad == "NULL" else "CAST"
    return (
        f"(CASE WHEN regexp_full_match({text}, {quote(pattern)}) THEN {word}({text} AS {duck(target)}) "
        f"WHEN {x} IS NULL THEN NULL ELSE {bad} END)"
    )


def _float(x: str, target: str, bad: str) -> str:
    text = f"lower({trimmed(x)})"
    special = r"[+-]?inf(inity)?|nan"
    number = f"rtrim({text}, 'df')"
    return (
        f"(CASE WHEN regexp_full_match({text}, {quote(_FLOAT + '[df]?')}) THEN CAST({number} AS {duck(target)}) "
        f"WHEN regexp_full_match({text}, {quote(special)}) THEN CAST({text} AS {duck(target)}) "
        f"WHEN {x} IS NULL THEN NULL ELSE {bad} END)"
    )
