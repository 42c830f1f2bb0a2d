"""Productions of strings, bytes, dates and times.

A date that may lie in the year 1 or 9999 (`special`) is not moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .typed import Typed, derived

if TYPE_CHECKING:
    from .scalars import Scalars


def string_function(s: Scalars, depth: int) -> Typed | None:
    e = s.of("string", depth - 1)
    length = s.rng.choice((0, 1, 2, 5))
    forms = (
        f"upper({e.sql})", f"lower({e.sql})", f"trim({e.sql})", f"ltrim({e.sql})", f"rtrim({e.sql})",
        f"substring({e.sql}, {s.rng.choice((-2, 0, 1, 2))}, {length})", f"substring({e.sql}, 2)",
        f"left({e.sql}, {length})", f"right({e.sql}, {length})", f"replace({e.sql}, 'a', 'xy')",
        f"lpad({e.sql}, {length}, '*')", f"rpad({e.sql}, {length}, 'ab')", f"reverse({e.sql})",
        f"initcap({e.sql})",
        f"substring_index({e.sql}, 'b', {s.rng.choice((1, -1, 2))})",
        f"split_part({e.sql}, 'a', {s.rng.choice((1, 2, -1))})",
        f"btrim({e.sql}, 'ab')",
        f"regexp_replace({e.sql}, '[ab]+', '<$0>')",
        f"regexp_extract({e.sql}, '(a?)(b)', 2)",
        f"hex({e.sql})",
        f"repeat({e.sql}, {s.rng.choice((0, 2))})", f"translate({e.sql}, 'ab', 'x')",
    )  # fmt: skip
    pick = s.rng.randrange(len(forms))
    return derived(forms[pick], "string", e, special=e.special, portable=pick < 2 and not e.special)


def concat(s: Scalars, depth: int) -> Typed | None:
    left, right = s.of("string", depth - 1), s.of("string", depth - 1)
    special = left.special or right.special
    if s.rng.random() < 0.5:
        return derived(f"({left.sql} || {right.sql})", "string", left, right, special=special)
    forms = (f"concat({left.sql}, '-', {right.sql})", f"concat_ws(',', {left.sql}, {right.sql})")
    return derived(s.rng.choice(forms), "string", left, right, special=special, portable=False)


def string_cast(s: Scalars, depth: int) -> Typed | None:
    kind = s.rng.choice(("int", "decimal", "date", "boolean", "timestamp", "timestamp_ntz"))
    e = s.of(kind, depth - 1)
    if "time" in kind and not e.special and s.rng.random() < 0.4:
        return derived(f"date_format({e.sql}, 'yyyy-MM-dd HH:mm')", "string", e, portable=False)
    return derived(f"CAST({e.sql} AS STRING)", "string", e, portable=kind == "int")


def date_function(s: Scalars, depth: int) -> Typed | None:
    e = s.of("date", depth - 1)
    days = s.rng.choice((0, 1, 31, -1, 366))
    forms = [f"last_day({e.sql})", f"trunc({e.sql}, '{s.rng.choice(('MM', 'YEAR', 'QUARTER'))}')"]
    if not e.special:
        forms += [
            f"date_add({e.sql}, {days})", f"date_sub({e.sql}, {days})", f"add_months({e.sql}, {days % 14})",
            f"({e.sql} + INTERVAL '{abs(days)}' DAY)", f"({e.sql} - INTERVAL '1' MONTH)",
            f"({e.sql} + INTERVAL '1' YEAR)",
            f"next_day({e.sql}, '{s.rng.choice(('MO', 'FRIDAY'))}')",
            f"date_from_unix_date(unix_date({e.sql}) + 1)",
        ]  # fmt: skip
    return derived(s.rng.choice(forms), "date", e, special=e.special, portable=False)


def date_cast(s: Scalars, depth: int) -> Typed | None:
    e = s.of(s.rng.choice(("timestamp", "timestamp_ntz")), depth - 1)
    return derived(f"CAST({e.sql} AS DATE)", "date", e, special=e.special, portable=False)


def time(s: Scalars, type_: str, depth: int) -> Typed | None:
    if s.rng.random() < 0.3:
        e = s.of("date", depth - 1)
        return derived(f"CAST({e.sql} AS {type_.upper()})", type_, e, special=e.special, portable=False)
    e = s.of(type_, depth - 1)
    unit = s.rng.choice(("MONTH", "DAY", "HOUR", "YEAR", "MINUTE"))
    forms = [f"CAST(date_trunc('{unit}', {e.sql}) AS {type_.upper()})"]
    if not e.special:
        forms += [
            f"({e.sql} + INTERVAL '3' HOUR)",
            f"({e.sql} - INTERVAL '2' DAY)",
            f"({e.sql} + INTERVAL '1' MONTH)",
        ]
    return derived(s.rng.choice(forms), type_, e, special=e.special, portable=False)


def binary_cast(s: Scalars, depth: int) -> Typed | None:
    e = s.of("string", depth - 1)
    return derived(f"CAST({e.sql} AS BINARY)", "binary", e, portable=False)


def _timestamp(s: Scalars, depth: int) -> Typed | None:
    return time(s, "timestamp", depth)


def _timestamp_ntz(s: Scalars, depth: int) -> Typed | None:
    return time(s, "timestamp_ntz", depth)


STRINGS = (string_function, string_function, concat, string_cast)
BYTES = (binary_cast,)
DATES = (date_function, date_function, date_cast)
TIMESTAMPS = (_timestamp,)
TIMESTAMPS_NTZ = (_timestamp_ntz,)
