"""Text as values: exactly the texts that Spark accepts after trimming.

DuckDB's own casts accept much that Spark rejects (`1e3` and `1_000` as integers, `2020-1` and `12/31/2020` as dates)
and vice versa. So each target type has one regular expression for the language that Spark accepts, and matching text is
passed to DuckDB in the form that both engines understand.

    boolean            t true y yes 1 / f false n no 0, any case
    integer            [+-] digits
    float              [+-] digits [. digits] [e [+-] digits] [d|f], NaN, [+-] inf[inity], any case
    decimal            [+-] digits [. digits] [e [+-] digits], rounded HALF_UP
    date               [+-] year [-month [-day [T or space, anything]]]
    timestamp          likewise, then hour[:minute[:second[.fraction]]] and a zone Z, UTC, GMT or ±h[h][:mm]
"""

from __future__ import annotations

from viewkeeper.expressions.rules.rule import duckdb_type, quote
from viewkeeper.model import types
from viewkeeper.model.types import Type

_SPACES = "".join(map(chr, range(0x21)))
_FLOAT = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"


def parse_text(x: str, target: Type, failure: str) -> str:
    """Parse `x` as `target`; the result is the SQL text `failure` where `x` is not valid."""
    attempt = failure == "NULL"
    if target == types.BOOLEAN:
        return _boolean(x, failure)
    if types.is_integer(target):
        text = f"vk_trim({x})"
        number = f"{'TRY_CAST' if attempt else 'CAST'}({text} AS {duckdb_type(target)})"
        return _first_match(x, ((text, "[+-]?[0-9]+", number),), failure)
    if types.is_float(target):
        return _float(x, target, failure)
    text = f"vk_trim({x})"
    if types.decimal_digits(target):
        text = f"vk_java_trim({x})"
        digits = _FLOAT.replace("[0-9]", r"\p{Nd}")  # digits of any script, as in Java's BigDecimal
        return _first_match(x, ((text, digits, decimal(text, target, attempt)),), failure)
    value = {types.DATE: "vk_date({})", types.TIMESTAMP: "vk_timestamp({}, 1)"}.get(
        target, "vk_timestamp({}, 0)"
    ).format(text)
    return f"(CASE WHEN {value} IS NULL AND {x} IS NOT NULL THEN {failure} ELSE {value} END)"


def decimal(text: str, target: Type, null_on_error: bool) -> str:
    """Write the text of a number as a decimal (HALF_UP). DuckDB parses plain digits exactly, but not every exponent."""
    is_unusual = f"(contains(lower({text}), 'e') OR strlen({text}) > length({text}))"
    plain = f"CASE WHEN {is_unusual} THEN vk_plain({text}) ELSE {text} END"
    return f"{'TRY_CAST' if null_on_error else 'CAST'}({plain} AS {duckdb_type(target)})"


def _boolean(x: str, failure: str) -> str:
    text = f"lower(vk_trim({x}))"
    return (
        f"(CASE WHEN {text} IN ('t', 'true', 'y', 'yes', '1') THEN TRUE "
        f"WHEN {text} IN ('f', 'false', 'n', 'no', '0') THEN FALSE WHEN {x} IS NULL THEN NULL ELSE {failure} END)"
    )


def _first_match(x: str, choices: tuple[tuple[str, str, str], ...], failure: str) -> str:
    """Return the value of the first choice whose text matches its pattern."""
    tests = " ".join(f"WHEN regexp_full_match({t}, {quote(pattern)}) THEN {value}" for t, pattern, value in choices)
    return f"(CASE {tests} WHEN {x} IS NULL THEN NULL ELSE {failure} END)"


def _float(x: str, target: Type, failure: str) -> str:
    text = f"lower(vk_java_trim({x}))"
    number = f"CAST(rtrim({text}, 'df') AS {duckdb_type(target)})"
    return _first_match(
        x,
        ((text, _FLOAT + "[df]?", number), (text, "[+-]?inf(inity)?|nan", f"CAST({text} AS {duckdb_type(target)})")),
        failure,
    )


_DATE = r"([+-]?[0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T](?s:.)*)?)?)?"
_OFFSET = r"[+-](?:[0-9]{1,2}(?::[0-9]{1,2}|:[0-9]{2}:[0-9]{2})?|[0-9]{4}|[0-9]{6})"
_ZONE = rf" *(?:Z|(?:UTC|GMT|UT)?({_OFFSET})?)"
_TIME = rf"[ T]([0-9]{{1,2}})(?::([0-9]{{1,2}})(?::([0-9]{{1,2}})(?:\.([0-9]*))?(?:{_ZONE})?)?)?"
_TIMESTAMP = rf"([+-]?[0-9]{{4,6}})(?:-([0-9]{{1,2}})(?:-([0-9]{{1,2}})(?:{_TIME})?)?)?"
_GROUP_NAMES = ["year", "month", "day", "hour", "minute", "second", "fraction", "zone"]

_DAY = "make_date(vk_number(g.year, '0'), vk_number(g.month, '1'), vk_number(g.day, '1'))"
_CLOCK = "((vk_number(g.hour, '0') * 60 + vk_number(g.minute, '0')) * 60 + vk_number(g.second, '0'))"
_VALID = "vk_number(g.hour, '0') < 24 AND vk_number(g.minute, '0') < 60 AND vk_number(g.second, '0') < 60"
_MICROS = (
    f"epoch_us(CAST({_DAY} AS TIMESTAMP)) + {_CLOCK} * 1000000 + CAST(rpad(left(g.fraction, 6), 6, '0') AS BIGINT)"
    " - CASE WHEN g.zone = '' THEN 0 ELSE CAST(vk_offset(g.zone) AS BIGINT) * 1000000 * zoned END"
)
_TIMESTAMP_SQL = f"CASE WHEN {_VALID} THEN TRY(make_timestamp({_MICROS})) END"


def _match_groups(pattern: str, groups: list[str], text: str) -> str:
    """Return `text` over `g`, the groups of the pattern in `t`; NULL where the pattern does not match."""
    value = f"list_transform([regexp_extract(t, {quote(f'^(?:{pattern})$')}, {groups})], lambda g: {text})[1]"
    return f"CASE WHEN regexp_full_match(t, {quote(pattern)}) THEN {value} END"


MACROS = (
    f"vk_java_trim(t) AS trim(t, {quote(_SPACES)})",
    f"vk_trim(t) AS trim(t, {quote(_SPACES + chr(0x7F))})",
    "vk_number(t, missing) AS CAST(CASE t WHEN '' THEN missing ELSE t END AS BIGINT)",
    f"vk_date(t) AS {_match_groups(_DATE, _GROUP_NAMES[:3], f'TRY({_DAY})')}",
    f"vk_timestamp(t, zoned) AS {_match_groups(_TIMESTAMP, _GROUP_NAMES, _TIMESTAMP_SQL)}",
)
"""Macros that parse dates and timestamps (`zoned` 0: a zone is checked and ignored); NULL for text that is not valid.
"""


def offset_seconds(zone: str) -> str | None:
    """Return the seconds of ±h, ±hh, ±h:mm, ±hhmm, ±hh:mm:ss or ±hhmmss as text; None beyond 18 hours."""
    digits = zone[1:]
    parts = digits.split(":") if ":" in digits or len(digits) < 3 else [digits[i : i + 2] for i in (0, 2, 4)]
    hours, minutes, seconds = (int(p or 0) for p in (*parts, "", "")[:3])
    total = (hours * 60 + minutes) * 60 + seconds
    return f"{zone[0]}{total}" if minutes < 60 and seconds < 60 and total <= 64800 else None
