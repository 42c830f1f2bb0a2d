"""CAST, with Spark's ANSI meaning, between all types that Spark lets one cast.

                 to integer        to float         to decimal       to text           to date, timestamp
    integer      checked           rounded          checked          digits            seconds since 1970
    float        cut, checked      rounded          of its text      Java's text       microseconds, cut
    decimal      cut, checked      of its text      HALF_UP          plain digits      microseconds, cut
    text         `readings` reads it: trimmed, strict, an error when malformed
    date, time   seconds, floored  seconds          seconds          ISO               date ↔ midnight UTC

"Of its text": Spark goes through the shortest decimal text of a float, and the correctly rounded float of a decimal.
TRY_CAST is the same with NULL for an error.
"""

from __future__ import annotations

from viewkeeper.errors import Defect
from viewkeeper.expressions import readings, spellings
from viewkeeper.expressions.arithmetic import bounds
from viewkeeper.expressions.decimals import digits_of
from viewkeeper.expressions.rule import Texts, duck, fail, is_months, is_try
from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types

_TIMES = ("timestamp", "timestamp_ntz")
_WIDTH = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
_BYTES = {"tinyint": 1, "smallint": 2, "int": 4, "bigint": 8}
_FLOAT_EDGE = "3.4028235677973366e38"  # the least double that rounds to an infinite float


def write(expr: Expr, args: Texts) -> str:
    source, target = expr.args[0].type, expr.type
    return convert(args[0], source, target, attempt=is_try(expr))


def refuse(expr: Expr) -> str | None:
    source, target = expr.args[0].type, expr.type
    if _pair(source, target) is None:
        return f"CAST from {source.upper()} to {target.upper()}"
    return None


def raises(expr: Expr) -> bool:
    """Whether the conversion of some value fails."""
    child, target = expr.args[0], expr.type
    source = child.type
    if is_try(expr) or source == target or source == "void":
        return False
    match _pair(source, target):
        case ("integer", "integer"):
            low, high = bounds(child)
            half: int = 2 ** (8 * _BYTES[target] - 1)
            return low < -half or high >= half
        case ("integer", "decimal"):
            to_digits = digits_of(target)
            limit: int = 10 ** (to_digits[0] - to_digits[1])
            return max(abs(b) for b in bounds(child)) >= limit
        case ("decimal", "decimal"):
            from_digits, to_digits = digits_of(source), digits_of(target)
            whole = to_digits[0] - to_digits[1]
            return whole < from_digits[0] - from_digits[1] + (to_digits[1] < from_digits[1])
        case ("boolean", "decimal"):
            to_digits = digits_of(target)
            return to_digits[0] == to_digits[1]
        case ("decimal", "integer"):
            from_digits = digits_of(source)
            return from_digits[0] - from_digits[1] >= _WIDTH[target]
        case ("time", "integer"):
            return target != "bigint"
        case ("text", other):
            return other not in ("text", "binary")
        case ("float", other):
            return other in ("integer", "decimal", "time")
        case (_, "time"):
            return source not in (*_TIMES, "date")
        case ("time", "decimal") | ("binary", "text"):
            return True
    return False


def convert(x: str, source: str, target: str, attempt: bool = False) -> str:
    """`x` of type `source` as `target`; NULL where `attempt` and it does not fit, else an error."""
    if source == target or source == "void":
        return f"CAST({x} AS {duck(target)})"
    checked = f"{'TRY_CAST' if attempt else 'CAST'}({{}} AS {duck(target)})"
    bad = "NULL" if attempt else fail("CAST_INVALID_INPUT", f"A value of {source} cannot be cast to {target}.")
    match _pair(source, target):
        case ("boolean", "text"):
            return f"CAST({x} AS VARCHAR)"
        case ("boolean", _) | ("integer", "integer" | "float" | "decimal" | "text") | ("decimal", "decimal"):
            return checked.format(x)
        case (_, "boolean") if source != "string":
            return f"({x} <> 0)"
        case ("float", "integer"):
            return _float_to_integer(x, target, checked)
        case ("float", "float"):
            return _float_to_float(x, target)
        case ("float", "decimal"):
            return _float_to_decimal(f"CAST({x} AS DOUBLE)", target, attempt)
        case ("decimal", "integer"):
            return _decimal_to_integer(x, source, target, checked)
        case ("decimal", "float"):
            return _decimal_to_float(x, source, target)
        case ("decimal", "text"):
            return spellings.decimal(x, source)
        case ("float", "text"):
            return spellings.java_float(x, source)
        case ("date", "text"):
            return spellings.date(x)
        case ("time", "text"):
            return spellings.timestamp(x)
        case ("binary", "text"):
            return spellings.decoded(x, attempt)
        case ("text", "binary"):
            return f"encode({x})"
        case ("text", _):
            return readings.read(x, target, bad)
        case ("integer", "binary"):
            return f"from_hex(right(lpad(hex({x}), 16, '0'), {2 * _BYTES[source]}))"
        case ("date", "time") | ("time", "date") | ("time", "time"):
            return f"CAST({x} AS {duck(target)})"
        case ("time", "integer"):
            return checked.format(f"(epoch_us({x}) // 1000000 - CAST(epoch_us({x}) % 1000000 < 0 AS INTEGER))")
        case ("time", "float"):
            return f"CAST(CAST(epoch_us({x}) AS DOUBLE) / 1e6 AS {duck(target)})"
        case ("time", "decimal"):
            return checked.format(f"(CAST(epoch_us({x}) AS DECIMAL(19,0)) * CAST('0.000001' AS DECIMAL(6,6)))")
        case ("integer", "time"):
            return f"make_timestamp(CAST({x} AS BIGINT) * 1000000)"
    raise Defect(f"There is no cast from {source} to {target}.")


def _float_to_integer(x: str, target: str, checked: str) -> str:
    text = checked.format(f"trunc({x})")
    if target == "bigint":  # Java compares with the double next to the greatest long, which is 2^63 itself
        return f"(CASE WHEN {x} = 9223372036854775808 THEN 9223372036854775807 ELSE {text} END)"
    return text


def _float_to_float(x: str, target: str) -> str:
    if target == "double":
        return f"CAST({x} AS DOUBLE)"
    edge = f"abs({x}) >= CAST('{_FLOAT_EDGE}' AS DOUBLE) AND isfinite({x})"
    return f"(CASE WHEN {edge} THEN CAST(sign({x}) * CAST('Infinity' AS DOUBLE) AS FLOAT) ELSE CAST({x} AS FLOAT) END)"


def _float_to_decimal(x: str, target: str, attempt: bool) -> str:
    """From the shortest text, rounded HALF_UP; NaN and the infinities are NULL."""
    return f"(CASE WHEN isfinite({x}) THEN {readings.decimal(f'CAST({x} AS VARCHAR)', target, attempt)} END)"


def _decimal_to_integer(x: str, source: str, target: str, checked: str) -> str:
    """Cut. Of decimals of more than 18 digits, Spark cuts the nearest double, but for BIGINT."""
    digits = digits_of(source)
    if digits[0] > 18 and target != "bigint":
        x = _decimal_to_float(x, source, "double")
    return checked.format(f"trunc({x})")


def _decimal_to_float(x: str, source: str, target: str) -> str:
    found = digits_of(source)
    # Below 2^53 and 10^22 both sides of DuckDB's division are exact floats, and so its quotient is rounded once.
    if target == "double" and found[0] <= 15:
        return f"CAST({x} AS DOUBLE)"
    return f"CAST(CAST({x} AS VARCHAR) AS {duck(target)})"


def _pair(source: str, target: str) -> tuple[str, str] | None:
    """The two kinds, if the cast is one that Spark's ANSI mode knows and that is written here."""
    a, b = _kind(source), _kind(target)
    if source == target or source == "void":
        return (a, b)
    return (a, b) if b in _ALLOWED.get(a, ()) else None


def _kind(type_: str) -> str:
    if types.is_integer(type_):
        return "integer"
    if types.is_float(type_):
        return "float"
    if types.decimal_digits(type_):
        return "decimal"
    if type_ in _TIMES:
        return "time"
    if type_ == "string":
        return "text"
    if type_.startswith("interval "):
        return "months" if is_months(type_) else "micros"
    return type_


_ALLOWED: dict[str, tuple[str, ...]] = {
    "boolean": ("integer", "float", "decimal", "text"),
    "integer": ("boolean", "integer", "float", "decimal", "text", "time", "binary"),
    "float": ("boolean", "integer", "float", "decimal", "text"),
    "decimal": ("boolean", "integer", "float", "decimal", "text"),
    "text": ("boolean", "integer", "float", "decimal", "binary", "date", "time"),
    "binary": ("text",),
    "date": ("text", "time"),
    "time": ("text", "date", "time", "integer", "float", "decimal"),
}
