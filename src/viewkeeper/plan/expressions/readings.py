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

_SPACES = "".join(map(chr, range(0x21)))
_FLOAT = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"


def read(x: str, target: str, bad: str) -> str:
    """`x` read as `target`; the SQL text `bad` where it is not one."""
    attempt = bad == "NULL"
    if target == "boolean":
        return _boolean(x, bad)
    if types.is_integer(target):
        text = f"vk_trim({x})"
        number = f"{'TRY_CAST' if attempt else 'CAST'}({text} AS {duck(target)})"
        return _choose(x, ((text, "[+-]?[0-9]+", number),), bad)
    if types.is_float(target):
        return _float(x, target, bad)
    text = f"vk_trim({x})"
    if types.decimal_digits(target):
        text = f"vk_java_trim({x})"
        digits = _FLOAT.replace("[0-9]", r"\p{Nd}")  # any script's digits, as Java's BigDecimal
        return _choose(x, ((text, digits, decimal(text, target, attempt)),), bad)
    value = {"date": "vk_date({})", "timestamp": "vk_timestamp({}, 1)"}.get(target, "vk_timestamp({}, 0)").format(text)
    return f"(CASE WHEN {value} IS NULL AND {x} IS NOT NULL THEN {bad} ELSE {value} END)"


def decimal(text: str, target: str, attempt: bool) -> str:
    """A number's text as a decimal, HALF_UP. DuckDB reads plain digits exactly, but not all exponents."""
    plain = f"CASE WHEN contains(lower({text}), 'e') OR strlen({text}) > length({text}) THEN vk_plain({text}) ELSE {text} END"
    return f"{'TRY_CAST' if attempt else 'CAST'}({plain} AS {duck(target)})"


def _boolean(x: str, bad: str) -> str:
    text = f"lower(vk_trim({x}))"
    return (
        f"(CASE WHEN {text} IN ('t', 'true', 'y', 'yes', '1') THEN TRUE "
        f"WHEN {text} IN ('f', 'false', 'n', 'no', '0') THEN FALSE WHEN {x} IS NULL THEN NULL ELSE {bad} END)"
    )


def _choose(x: str, choices: tuple[tuple[str, str, str], ...], bad: str) -> str:
    """The value of the first choice whose text matches its pattern."""
    tests = " ".join(f"WHEN regexp_full_match({t}, {quote(pattern)}) THEN {value}" for t, pattern, value in choices)
    return f"(CASE {tests} WHEN {x} IS NULL THEN NULL ELSE {bad} END)"


def _float(x: str, target: str, bad: str) -> str:
    text = f"lower(vk_java_trim({x}))"
    number = f"CAST(rtrim({text}, 'df') AS {duck(target)})"
    return _choose(
        x,
        ((text, _FLOAT + "[df]?", number), (text, "[+-]?inf(inity)?|nan", f"CAST({text} AS {duck(target)})")),
        bad,
    )


_DATE = r"([+-]?[0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T](?s:.)*)?)?)?"
_OFFSET = r"[+-](?:[0-9]{1,2}(?::[0-9]{1,2}|:[0-9]{2}:[0-9]{2})?|[0-9]{4}|[0-9]{6})"
_ZONE = rf" *(?:Z|(?:UTC|GMT|UT)?({_OFFSET})?)"
_TIME = rf"[ T]([0-9]{{1,2}})(?::([0-9]{{1,2}})(?::([0-9]{{1,2}})(?:\.([0-9]*))?(?:{_ZONE})?)?)?"
_TIMESTAMP = rf"([+-]?[0-9]{{4,6}})(?:-([0-9]{{1,2}})(?:-([0-9]{{1,2}})(?:{_TIME})?)?)?"


def _part(pattern: str, group: int, missing: int) -> str:
    found = f"regexp_extract(t, {quote(pattern)}, {group})"
    return f"CAST(coalesce(nullif({found}, ''), '{missing}') AS BIGINT)"


def _day(pattern: str) -> str:
    return f"make_date({_part(pattern, 1, 0)}, {_part(pattern, 2, 1)}, {_part(pattern, 3, 1)})"


def _clock() -> str:
    """Seconds after midnight UTC; NULL when there is no such time or zone."""
    hour, minute, second = (_part(_TIMESTAMP, g, 0) for g in (4, 5, 6))
    offset = f"vk_offset(regexp_extract(t, {quote(_TIMESTAMP)}, 8))"
    valid = f"{hour} < 24 AND {minute} < 60 AND {second} < 60"
    return f"CASE WHEN {valid} THEN ({hour} * 60 + {minute}) * 60 + {second} - {offset} * zoned END"


_FRACTION = f"CAST(rpad(left(regexp_extract(t, {quote(_TIMESTAMP)}, 7), 6), 6, '0') AS BIGINT)"

MACROS = (
    f"vk_java_trim(t) AS trim(t, {quote(_SPACES)})",
    f"vk_trim(t) AS trim(t, {quote(_SPACES + chr(0x7F))})",
    f"vk_date(t) AS CASE WHEN regexp_full_match(t, {quote(_DATE)}) THEN TRY({_day(_DATE)}) END",
    # ±h, ±hh, ±h:mm, ±hhmm, ±hh:mm:ss, ±hhmmss as seconds, at most 18 hours; '' is 0.
    "vk_colons(o) AS CASE WHEN o LIKE '%:%' THEN o WHEN length(o) <= 2 THEN o || ':0' "
    "ELSE left(o, 2) || ':' || substring(o, 3, 2) || ':' || substring(o, 5, 2) END",
    "vk_number(t) AS CAST(CASE t WHEN '' THEN '0' ELSE t END AS BIGINT)",
    "vk_seconds(o) AS CASE WHEN vk_number(split_part(o, ':', 2)) < 60 AND vk_number(split_part(o, ':', 3)) < 60 "
    "THEN (vk_number(split_part(o, ':', 1)) * 60 + vk_number(split_part(o, ':', 2))) * 60 "
    "+ vk_number(split_part(o, ':', 3)) END",
    "vk_within(n) AS CASE WHEN n <= 64800 THEN n END",
    "vk_offset(o) AS CASE WHEN o = '' THEN 0 WHEN o LIKE '-%' THEN -vk_within(vk_seconds(vk_colons(substring(o, 2)))) "
    "ELSE vk_within(vk_seconds(vk_colons(substring(o, 2)))) END",
    f"vk_timestamp(t, zoned) AS CASE WHEN regexp_full_match(t, {quote(_TIMESTAMP)}) THEN TRY(make_timestamp("
    f"epoch_us(CAST({_day(_TIMESTAMP)} AS TIMESTAMP)) + ({_clock()}) * 1000000 + {_FRACTION})) END",
)
"""What text means as a date or a timestamp (`zoned` 0: a zone is checked and left out), NULL if it means none."""
