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

_SPACE = r"[\x00-\x20\x7f]*"
_JAVA_SPACE = r"[\x00-\x20]*"
_FLOAT = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"


def read(x: str, target: str, bad: str) -> str:
    """`x` read as `target`; the SQL text `bad` where it is not one."""
    attempt = bad == "NULL"
    if target == "boolean":
        return _boolean(x, bad)
    if types.is_integer(target):
        text = trimmed(x, _SPACE)
        number = f"{'TRY_CAST' if attempt else 'CAST'}({text} AS {duck(target)})"
        return _choose(x, ((text, "[+-]?[0-9]+", number),), bad)
    if types.is_float(target):
        return _float(x, target, bad)
    text = trimmed(x, _SPACE)
    if types.decimal_digits(target):
        text = trimmed(x, _JAVA_SPACE)
        return _choose(x, ((text, _FLOAT, decimal(text, target, attempt)),), bad)
    value = f"vk_{'date' if target == 'date' else 'timestamp'}({text})"
    return f"(CASE WHEN {value} IS NULL AND {x} IS NOT NULL THEN {bad} ELSE {value} END)"


def decimal(text: str, target: str, attempt: bool) -> str:
    """A number's text as a decimal, HALF_UP. DuckDB reads plain digits exactly, but not all exponents."""
    plain = f"CASE WHEN contains(lower({text}), 'e') THEN vk_plain({text}) ELSE {text} END"
    return f"{'TRY_CAST' if attempt else 'CAST'}({plain} AS {duck(target)})"


def trimmed(x: str, space: str) -> str:
    """Without leading and trailing white space, as a set of characters."""
    return f"regexp_replace(regexp_replace({x}, {quote('^' + space)}, ''), {quote(space + '$')}, '')"


def _boolean(x: str, bad: str) -> str:
    text = f"lower({trimmed(x, _SPACE)})"
    return (
        f"(CASE WHEN {text} IN ('t', 'true', 'y', 'yes', '1') THEN TRUE "
        f"WHEN {text} IN ('f', 'false', 'n', 'no', '0') THEN FALSE WHEN {x} IS NULL THEN NULL ELSE {bad} END)"
    )


def _choose(x: str, choices: tuple[tuple[str, str, str], ...], bad: str) -> str:
    """The value of the first choice whose text matches its pattern."""
    tests = " ".join(f"WHEN regexp_full_match({t}, {quote(pattern)}) THEN {value}" for t, pattern, value in choices)
    return f"(CASE {tests} WHEN {x} IS NULL THEN NULL ELSE {bad} END)"


def _float(x: str, target: str, bad: str) -> str:
    text = f"lower({trimmed(x, _JAVA_SPACE)})"
    number = f"CAST(rtrim({text}, 'df') AS {duck(target)})"
    return _choose(
        x,
        ((text, _FLOAT + "[df]?", number), (text, "[+-]?inf(inity)?|nan", f"CAST({text} AS {duck(target)})")),
        bad,
    )


_DATE = r"([+-]?[0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T](?s:.)*)?)?)?"
_ZONE = r" *(?:Z|(?:UTC|GMT|UT)?(?:([+-][0-9]{1,2})(?::([0-9]{1,2}))?)?)"
_TIME = rf"[ T]([0-9]{{1,2}})(?::([0-9]{{1,2}})(?::([0-9]{{1,2}})(?:\.([0-9]*))?(?:{_ZONE})?)?)?"
_TIMESTAMP = rf"([+-]?[0-9]{{4,6}})(?:-([0-9]{{1,2}})(?:-([0-9]{{1,2}})(?:{_TIME})?)?)?"


def _part(pattern: str, group: int, missing: int) -> str:
    found = f"regexp_extract(t, {quote(pattern)}, {group})"
    return f"CAST(coalesce(nullif({found}, ''), '{missing}') AS BIGINT)"


def _day(pattern: str) -> str:
    return f"make_date({_part(pattern, 1, 0)}, {_part(pattern, 2, 1)}, {_part(pattern, 3, 1)})"


def _clock() -> str:
    """Microseconds after midnight UTC."""
    hour, minute, second = (_part(_TIMESTAMP, g, 0) for g in (4, 5, 6))
    fraction = f"CAST(rpad(left(regexp_extract(t, {quote(_TIMESTAMP)}, 7), 6), 6, '0') AS BIGINT)"
    zone, zone_minute = _part(_TIMESTAMP, 8, 0), _part(_TIMESTAMP, 9, 0)
    negative = f"regexp_extract(t, {quote(_TIMESTAMP)}, 8) LIKE '-%'"
    offset = f"({zone} * 60 + CASE WHEN {negative} THEN -{zone_minute} ELSE {zone_minute} END)"
    valid = f"{hour} < 24 AND {minute} < 60 AND {second} < 60 AND {zone_minute} < 60 AND abs({offset}) <= 1080"
    micros = f"((({hour} - 0) * 60 + {minute} - {offset}) * 60 + {second}) * 1000000 + {fraction}"
    return f"CASE WHEN {valid} THEN {micros} END"


MACROS = (
    f"vk_date(t) AS CASE WHEN regexp_full_match(t, {quote(_DATE)}) THEN TRY({_day(_DATE)}) END",
    f"vk_timestamp(t) AS CASE WHEN regexp_full_match(t, {quote(_TIMESTAMP)}) "
    f"THEN TRY(make_timestamp(epoch_us(CAST({_day(_TIMESTAMP)} AS TIMESTAMP)) + {_clock()})) END",
)
"""What text means as a date or a timestamp, NULL if it means none."""
