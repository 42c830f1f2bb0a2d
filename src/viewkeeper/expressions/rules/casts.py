"""CAST with Spark's ANSI semantics, between all types that Spark allows.

                 to integer          to float       to decimal     to text         to date, timestamp
    integer      checked             rounded        checked        digits          seconds since 1970
    float        truncated, checked  rounded        of its text    Java's text     microseconds, truncated
    decimal      truncated, checked  of its text    HALF_UP        plain digits    microseconds, truncated
    text         `text_parsing`: trimmed, strict, an error when malformed
    date, time   seconds, floored    seconds        seconds        ISO             date ↔ midnight UTC

"Of its text": Spark uses the shortest decimal text of a float, and the correctly rounded float of a decimal. TRY_CAST
returns NULL instead of an error.
"""

from __future__ import annotations

from viewkeeper.errors import Defect
from viewkeeper.expressions.rules import text_formatting, text_parsing
from viewkeeper.expressions.rules.arithmetic import bounds
from viewkeeper.expressions.rules.decimals import digits_of
from viewkeeper.expressions.rules.rule import Texts, duckdb_type, fail, is_try
from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.types import Family, Type

_MAX_DIGITS = {types.TINYINT: 3, types.SMALLINT: 5, types.INT: 10, types.BIGINT: 19}
_FLOAT_OVERFLOW = "3.4028235677973366e38"  # the least double that rounds to an infinite float


def write(expr: Expr, args: Texts) -> str:
    source, target = expr.args[0].type, expr.type
    return convert(args[0], source, target, null_on_error=is_try(expr))


def refuse(expr: Expr) -> str | None:
    source, target = expr.args[0].type, expr.type
    if _cast_families(source, target) is None:
        return f"CAST from {source.sql} to {target.sql}"
    return None


def raises(expr: Expr) -> bool:
    """Return whether the conversion of some value fails."""
    child, target = expr.args[0], expr.type
    source = child.type
    if is_try(expr) or source == target or source == types.VOID:
        return False
    match _cast_families(source, target):
        case (Family.INTEGER, Family.INTEGER):
            low, high = bounds(child)
            half: int = 2 ** (types.bit_width(target) - 1)
            return low < -half or high >= half
        case (Family.INTEGER, Family.DECIMAL):
            to_digits = digits_of(target)
            limit: int = 10 ** (to_digits[0] - to_digits[1])
            return max(abs(b) for b in bounds(child)) >= limit
        case (Family.DECIMAL, Family.DECIMAL):
            from_digits, to_digits = digits_of(source), digits_of(target)
            integer_digits = to_digits[0] - to_digits[1]
            return integer_digits < from_digits[0] - from_digits[1] + (to_digits[1] < from_digits[1])
        case (Family.BOOLEAN, Family.DECIMAL):
            to_digits = digits_of(target)
            return to_digits[0] == to_digits[1]
        case (Family.DECIMAL, Family.INTEGER):
            from_digits = digits_of(source)
            return from_digits[0] - from_digits[1] >= _MAX_DIGITS[target]
        case (Family.TIME, Family.INTEGER):
            return target != types.BIGINT
        case (Family.TEXT, other):
            return other not in (Family.TEXT, Family.BINARY)
        case (Family.FLOAT, other):
            return other in (Family.INTEGER, Family.DECIMAL, Family.TIME)
        case (_, Family.TIME):
            return source.family not in (Family.TIME, Family.DATE)
        case (Family.TIME, Family.DECIMAL) | (Family.BINARY, Family.TEXT):
            return True
    return False


def convert(x: str, source: Type, target: Type, null_on_error: bool = False) -> str:
    """Convert `x` of type `source` to `target`. A value that does not fit is NULL (`null_on_error`) or an error."""
    if source == target or source == types.VOID:
        return f"CAST({x} AS {duckdb_type(target)})"
    checked = f"{'TRY_CAST' if null_on_error else 'CAST'}({{}} AS {duckdb_type(target)})"
    bad = "NULL" if null_on_error else fail("CAST_INVALID_INPUT", f"A value of {source} cannot be cast to {target}.")
    match _cast_families(source, target):
        case (Family.BOOLEAN, Family.TEXT):
            return f"CAST({x} AS VARCHAR)"
        case (
            (Family.BOOLEAN, _)
            | (Family.INTEGER, Family.INTEGER | Family.FLOAT | Family.DECIMAL | Family.TEXT)
            | (Family.DECIMAL, Family.DECIMAL)
        ):
            return checked.format(x)
        case (_, Family.BOOLEAN) if source != types.STRING:
            return f"({x} <> 0)"
        case (Family.FLOAT, Family.INTEGER):
            return _float_to_integer(x, target, checked)
        case (Family.FLOAT, Family.FLOAT):
            return _float_to_float(x, target)
        case (Family.FLOAT, Family.DECIMAL):
            return _float_to_decimal(f"CAST({x} AS DOUBLE)", target, null_on_error)
        case (Family.DECIMAL, Family.INTEGER):
            return _decimal_to_integer(x, source, target, checked)
        case (Family.DECIMAL, Family.FLOAT):
            return _decimal_to_float(x, source, target)
        case (Family.DECIMAL, Family.TEXT):
            return text_formatting.decimal(x, source)
        case (Family.FLOAT, Family.TEXT):
            return text_formatting.java_float(x, source)
        case (Family.DATE, Family.TEXT):
            return text_formatting.date(x)
        case (Family.TIME, Family.TEXT):
            return text_formatting.timestamp(x)
        case (Family.BINARY, Family.TEXT):
            return text_formatting.decode_utf8(x, null_on_error)
        case (Family.TEXT, Family.BINARY):
            return f"encode({x})"
        case (Family.TEXT, _):
            return text_parsing.parse_text(x, target, bad)
        case (Family.INTEGER, Family.BINARY):
            return f"from_hex(right(lpad(hex({x}), 16, '0'), {types.bit_width(source) // 4}))"
        case (Family.DATE, Family.TIME) | (Family.TIME, Family.DATE) | (Family.TIME, Family.TIME):
            return f"CAST({x} AS {duckdb_type(target)})"
        case (Family.TIME, Family.INTEGER):
            return checked.format(f"(epoch_us({x}) // 1000000 - CAST(epoch_us({x}) % 1000000 < 0 AS INTEGER))")
        case (Family.TIME, Family.FLOAT):
            return f"CAST(CAST(epoch_us({x}) AS DOUBLE) / 1e6 AS {duckdb_type(target)})"
        case (Family.TIME, Family.DECIMAL):
            return checked.format(f"(CAST(epoch_us({x}) AS DECIMAL(19,0)) * CAST('0.000001' AS DECIMAL(6,6)))")
        case (Family.INTEGER, Family.TIME):
            return f"make_timestamp(CAST({x} AS BIGINT) * 1000000)"
    raise Defect(f"There is no cast from {source} to {target}.")


def _float_to_integer(x: str, target: Type, cast_template: str) -> str:
    text = cast_template.format(f"trunc({x})")
    if target == types.BIGINT:  # Java compares with the double nearest to the greatest long, which is 2^63 itself
        return f"(CASE WHEN {x} = 9223372036854775808 THEN 9223372036854775807 ELSE {text} END)"
    return text


def _float_to_float(x: str, target: Type) -> str:
    if target == types.DOUBLE:
        return f"CAST({x} AS DOUBLE)"
    huge = f"abs({x}) >= CAST('{_FLOAT_OVERFLOW}' AS DOUBLE) AND isfinite({x})"
    return f"(CASE WHEN {huge} THEN CAST(sign({x}) * CAST('Infinity' AS DOUBLE) AS FLOAT) ELSE CAST({x} AS FLOAT) END)"


def _float_to_decimal(x: str, target: Type, null_on_error: bool) -> str:
    """Convert the shortest text, rounded HALF_UP; NaN and the infinities become NULL."""
    return f"(CASE WHEN isfinite({x}) THEN {text_parsing.decimal(f'CAST({x} AS VARCHAR)', target, null_on_error)} END)"


def _decimal_to_integer(x: str, source: Type, target: Type, cast_template: str) -> str:
    """Truncate. For decimals of more than 18 digits Spark truncates the nearest double, except for BIGINT."""
    digits = digits_of(source)
    if digits[0] > 18 and target != types.BIGINT:
        x = _decimal_to_float(x, source, types.DOUBLE)
    return cast_template.format(f"trunc({x})")


def _decimal_to_float(x: str, source: Type, target: Type) -> str:
    digits = digits_of(source)
    # Below 2^53 and 10^22 both operands of DuckDB's division are exact floats, so the quotient is rounded only once.
    if target == types.DOUBLE and digits[0] <= 15:
        return f"CAST({x} AS DOUBLE)"
    return f"CAST(CAST({x} AS VARCHAR) AS {duckdb_type(target)})"


def _cast_families(source: Type, target: Type) -> tuple[Family, Family] | None:
    """Return the two type families if Spark's ANSI mode allows the cast and it is supported here, else None."""
    pair = (source.family, target.family)
    if source == target or source == types.VOID:
        return pair
    return pair if pair[1] in _ALLOWED_CASTS.get(pair[0], ()) else None


_ALLOWED_CASTS: dict[Family, tuple[Family, ...]] = {
    Family.BOOLEAN: (Family.INTEGER, Family.FLOAT, Family.DECIMAL, Family.TEXT),
    Family.INTEGER: (
        Family.BOOLEAN,
        Family.INTEGER,
        Family.FLOAT,
        Family.DECIMAL,
        Family.TEXT,
        Family.TIME,
        Family.BINARY,
    ),
    Family.FLOAT: (Family.BOOLEAN, Family.INTEGER, Family.FLOAT, Family.DECIMAL, Family.TEXT),
    Family.DECIMAL: (Family.BOOLEAN, Family.INTEGER, Family.FLOAT, Family.DECIMAL, Family.TEXT),
    Family.TEXT: (
        Family.BOOLEAN,
        Family.INTEGER,
        Family.FLOAT,
        Family.DECIMAL,
        Family.BINARY,
        Family.DATE,
        Family.TIME,
    ),
    Family.BINARY: (Family.TEXT,),
    Family.DATE: (Family.TEXT, Family.TIME),
    Family.TIME: (Family.TEXT, Family.DATE, Family.TIME, Family.INTEGER, Family.FLOAT, Family.DECIMAL),
}
