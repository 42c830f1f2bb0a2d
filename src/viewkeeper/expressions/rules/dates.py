"""Dates, timestamps and intervals. Both engines use UTC, the proleptic Gregorian calendar, and microseconds.

An interval is a number: months (INTEGER) or microseconds (BIGINT).
"""

from __future__ import annotations

from functools import lru_cache
from zoneinfo import available_timezones

from viewkeeper.expressions.rules.arithmetic import bounds
from viewkeeper.expressions.rules.rule import DuckDBWriter, Texts, constant, fail, parameter, quote
from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.types import Kind

EPOCH = "DATE '1970-01-01'"
_DAY_MICROS = 86_400_000_000
_MICROS = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": _DAY_MICROS,
    "DAYOFYEAR": _DAY_MICROS,
    "WEEK": 7 * _DAY_MICROS,
}
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_UNIT_NAMES = {
    "year": ("YEAR", "YYYY", "YY"),
    "quarter": ("QUARTER",),
    "month": ("MONTH", "MON", "MM"),
    "week": ("WEEK",),
    "day": ("DAY", "DD"),
    "hour": ("HOUR",),
    "minute": ("MINUTE",),
    "second": ("SECOND",),
    "milliseconds": ("MILLISECOND",),
    "microseconds": ("MICROSECOND",),
}
_MAX_CALENDAR_SHIFT = 1_000_000
_WEEKDAYS = ("SU", "MO", "TU", "WE", "TH", "FR", "SA")


def add_days(sign: str) -> DuckDBWriter:
    return lambda _, args: f"({args[0]} {sign} CAST({args[1]} AS INTEGER))"


def add_months(expr: Expr, args: Texts) -> str:
    """Add months to a date or timestamp; the day is limited to the end of the month."""
    return f"({args[0]} + to_months({args[1]}))"


def can_leave_calendar(expr: Expr) -> bool:
    """Return whether a date plus this many days, months or microseconds may be out of range."""
    count, value = expr.args[1], constant(expr.args[1])
    if types.is_integer(count.type):
        return max(map(abs, bounds(count))) > _MAX_CALENDAR_SHIFT
    return value is None or abs(int(value)) > _MAX_CALENDAR_SHIFT * (
        _DAY_MICROS if count.type.kind is Kind.MICROSECONDS else 1
    )


def truncate(expr: Expr, args: Texts) -> str:
    """Write trunc(date, unit) and date_trunc(unit, timestamp); an unknown unit returns NULL."""
    value, unit = (args[0], expr.args[1]) if expr.op == "TruncDate" else (args[1], expr.args[0])
    word = str(constant(unit)).upper()
    coarse = ("year", "quarter", "month", "week")
    for name, words in _UNIT_NAMES.items():
        if word in words and (expr.op == "TruncTimestamp" or name in coarse):
            return f"date_trunc('{name}', {value})"
    return "NULL"


def refuse_truncate(expr: Expr) -> str | None:
    unit = expr.args[1] if expr.op == "TruncDate" else expr.args[0]
    return None if unit.op == "literal" else "trunc to a unit that is not a constant"


def next_day(expr: Expr, args: Texts) -> str:
    weekday = _WEEKDAYS.index(str(constant(expr.args[1])).upper()[:2])
    return f"({args[0]} + CAST(7 - (dayofweek({args[0]}) - {weekday} + 7) % 7 AS INTEGER))"


def refuse_next_day(expr: Expr) -> str | None:
    day = str(constant(expr.args[1])).upper()
    full = ("SUNDAY", "MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY")
    names = {d[:2] for d in full} | {d[:3] for d in full} | set(full)
    return None if day in names else "next_day with a day that is not the constant name of one"


def seconds_with_fraction(expr: Expr, args: Texts) -> str:
    return f"(CAST(microsecond({args[0]}) AS DECIMAL(18,0)) * CAST('0.000001' AS DECIMAL(6,6)))"


def months_between(expr: Expr, args: Texts) -> str:
    """Return whole months if the days are equal or both the last of their months, else a fraction in 31sts of a month
    that includes seconds."""
    a, b, _ = args
    months = f"((year({a}) - year({b})) * 12 + month({a}) - month({b}))"
    last = f"(last_day(CAST({a} AS DATE)) = CAST({a} AS DATE) AND last_day(CAST({b} AS DATE)) = CAST({b} AS DATE))"
    seconds = f"((day({a}) - day({b})) * 86400 + {_second_of_day(a)} - {_second_of_day(b)})"
    fractional = f"(CAST({months} AS DOUBLE) + CAST({seconds} AS DOUBLE) / 2678400.0::DOUBLE)"
    if constant(expr.args[2]):
        fractional = f"(floor({fractional} * 1e8 + 0.5) / 1e8)"
    return f"(CASE WHEN day({a}) = day({b}) OR {last} THEN {months} ELSE {fractional} END)"


def refuse_months_between(expr: Expr) -> str | None:
    return None if expr.args[2].op == "literal" else "months_between with a flag that is not a constant"


def from_utc(expr: Expr, args: Texts) -> str:
    """Return the local time of a time zone at a moment."""
    return f"timezone({quote(str(constant(expr.args[1])))}, timezone('UTC', {args[0]}))"


def refuse_zone(expr: Expr) -> str | None:
    if constant(expr.args[1]) in _zones():
        return None
    return "from_utc_timestamp with a zone that is not the constant name of one, such as 'Europe/Berlin'"


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    """Return the time zones named after places. Abbreviations and offsets differ between Java and DuckDB."""
    places = (name for name in available_timezones() if "/" in name and not name.startswith(("Etc/", "SystemV/")))
    return frozenset({"UTC", *places})


def _second_of_day(x: str) -> str:
    return f"(hour({x}) * 3600 + minute({x}) * 60 + second({x}))"


def timestamp_add(expr: Expr, args: Texts) -> str:
    unit = str(parameter(expr)).upper()
    count, value = args
    if unit in _MONTHS:
        return f"({value} + to_months(CAST({count} * {_MONTHS[unit]} AS INTEGER)))"
    return add_micros(value, f"CAST({count} AS BIGINT) * {_MICROS[unit]}")


def timestamp_diff(expr: Expr, args: Texts) -> str:
    """Return the number of whole units from the first to the second value."""
    unit = str(parameter(expr)).upper()
    a, b = args
    if unit in _MICROS:
        return f"((epoch_us({b}) - epoch_us({a})) // {_MICROS[unit]})"
    months = f"((year({b}) - year({a})) * 12 + month({b}) - month({a}))"
    month_position = "((day({0}) - 1) * 86400000000 + epoch_us({0}) - epoch_us(date_trunc('day', {0})))"
    left, right = month_position.format(a), month_position.format(b)
    whole_months = (
        f"({months} - CASE WHEN {months} > 0 AND {right} < {left} THEN 1 "
        f"WHEN {months} < 0 AND {right} > {left} THEN -1 ELSE 0 END)"
    )
    return f"({whole_months} // {_MONTHS[unit]})"


def refuse_unit(expr: Expr) -> str | None:
    unit = str(parameter(expr)).upper()
    return None if unit in _MICROS or unit in _MONTHS else f"the unit {unit}"


def add_micros(value: str, micros: str) -> str:
    return f"make_timestamp(epoch_us({value}) + {micros})"


def add_interval(expr: Expr, args: Texts) -> str:
    return add_micros(args[0], args[1])


def refuse_add_interval(expr: Expr) -> str | None:
    kind = expr.args[1].type
    return None if types.is_interval(kind) else "an interval of months and days together"


def make_date(expr: Expr, args: Texts) -> str:
    bad = fail("DATETIME_FIELD_OUT_OF_BOUNDS", "Year, month and day are no date.")
    date = f"TRY(make_date({', '.join(f'CAST({a} AS BIGINT)' for a in args)}))"
    all_present = " AND ".join(f"{a} IS NOT NULL" for a in args)
    return f"(CASE WHEN {all_present} AND {date} IS NULL THEN {bad} ELSE {date} END)"


def from_seconds(expr: Expr, args: Texts) -> str:
    return f"make_timestamp(CAST({args[0]} AS BIGINT) * 1000000)"


def refuse_fraction(expr: Expr) -> str | None:
    return None if types.is_integer(expr.args[0].type) else "timestamp_seconds of a number that is not an integer"


def floor_seconds(expr: Expr, args: Texts) -> str:
    return _floor_div(f"epoch_us({args[0]})", 1_000_000)


def floor_millis(expr: Expr, args: Texts) -> str:
    return _floor_div(f"epoch_us({args[0]})", 1_000)


def _floor_div(text: str, unit: int) -> str:
    return f"({text} // {unit} - CAST({text} % {unit} < 0 AS INTEGER))"
