"""Productions of numbers: integers, decimals and floats kept within what their type holds.

The facts of `typed` go along: a sum's bound is the sum of the bounds, and what might leave its type is not made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .schemas import INTEGER_BITS, decimal_digits
from .typed import Typed, as_decimal, decimal_result, derived, fits, literal, wider

if TYPE_CHECKING:
    from .scalars import Scalars


def integer_arithmetic(s: Scalars, depth: int) -> Typed | None:
    left, right = s.of("int", depth - 1), s.of("int", depth - 1)
    if left.bound is None or right.bound is None:
        return None
    operator = s.rng.choice("+-*+-*%")
    type_ = wider(left.type, right.type)
    if operator == "%":
        modulus = s.rng.choice((2, 3, 7))
        return derived(f"({left.sql} % {modulus})", wider(left.type, "int"), left, bound=modulus)
    bound = left.bound * right.bound if operator == "*" else left.bound + right.bound
    if not fits(type_, bound):
        return integer_widened(s, left)
    portable = {left.type, right.type} <= {"int", "bigint"}
    return derived(f"({left.sql} {operator} {right.sql})", type_, left, right, bound=bound, portable=portable)


def integer_widened(s: Scalars, e: Typed) -> Typed | None:
    assert e.bound is not None
    if fits("bigint", e.bound * 8):
        return derived(f"(CAST({e.sql} AS BIGINT) * 3)", "bigint", e, bound=e.bound * 3)
    return derived(f"({e.sql} div 1000)", "bigint", e, bound=e.bound // 1000 + 1, portable=False)


def integer_function(s: Scalars, depth: int) -> Typed | None:
    e = s.of("int", depth - 1)
    if not fits(e.type, e.bound):
        return None
    form = s.rng.choice(("abs", "negative", "-", "sign", "pmod", "div", "nullif", "round"))
    if form == "sign":
        return derived(f"CAST(sign({e.sql}) AS INT)", "int", e, bound=1, portable=False)
    if form == "pmod":
        return derived(f"pmod({e.sql}, 5)", wider(e.type, "int"), e, bound=5, portable=False)
    if form == "div":
        other = s.of("int", 0)
        if not fits(other.type, other.bound):
            return None
        return derived(f"({e.sql} div nullif({other.sql}, 0))", "bigint", e, other, bound=e.bound, portable=False)
    if form == "nullif":
        return derived(
            f"({e.sql} % nullif({s.rng.choice((0, 3))}, 0))", wider(e.type, "int"), e, bound=3, portable=False
        )
    if form == "round":
        return derived(f"round({e.sql}, {s.rng.choice((0, 1))})", e.type, e, bound=e.bound, portable=False)
    sql = f"(-{e.sql})" if form == "-" else f"{form}({e.sql})"
    return derived(sql, e.type, e, bound=e.bound, portable=form != "negative")


def integer_cast(s: Scalars, depth: int) -> Typed | None:
    kind = s.rng.choice(("int", "decimal", "float", "boolean", "string"))
    e = s.of(kind, depth - 1)
    if kind == "boolean":
        return derived(f"CAST({e.sql} AS INT)", "int", e, bound=1)
    if kind == "string":
        return derived(f"CAST(length({e.sql}) AS BIGINT)", "bigint", e, bound=10000)
    if e.bound is None or (kind == "float" and e.special):
        return None
    types = [t for t in INTEGER_BITS if fits(t, e.bound + 1)]
    if not types:
        return None
    type_ = s.rng.choice(types)
    return derived(f"CAST({e.sql} AS {type_.upper()})", type_, e, bound=e.bound + 1, portable=kind == "int")


def bits(s: Scalars, depth: int) -> Typed | None:
    left, right = s.of("int", depth - 1), s.of("int", depth - 1)
    if left.type != right.type or left.bound is None or right.bound is None:
        return None
    bound = 2 ** (INTEGER_BITS[left.type] - 1)
    return derived(
        f"({left.sql} {s.rng.choice('&|^')} {right.sql})", left.type, left, right, bound=bound, portable=False
    )


def length(s: Scalars, depth: int) -> Typed | None:
    e = s.of("string", depth - 1)
    form = s.rng.choice(("length", "length", "instr", "locate", "ascii", "octet_length", "char_length"))
    if form in ("instr", "locate"):
        args = f"{e.sql}, 'b'" if form == "instr" else f"'b', {e.sql}"
        return derived(f"{form}({args})", "int", e, bound=1000, portable=False)
    return derived(f"{form}({e.sql})", "int", e, bound=2**21, values=(0, 1, 2, 3), portable=form == "length")


def date_part(s: Scalars, depth: int) -> Typed | None:
    kind = s.rng.choice(("date", "date", "timestamp", "timestamp_ntz"))
    e = s.of(kind, depth - 1)
    parts = ["year", "month", "day", "quarter", "dayofweek", "weekday", "dayofyear", "weekofyear"]
    if kind != "date":
        parts += ["hour", "minute", "second"]
    part = s.rng.choice(parts)
    if part in ("year", "month", "day") and s.rng.random() < 0.3:
        return derived(f"extract({part.upper()} FROM {e.sql})", "int", e, bound=10000, portable=kind == "date")
    values = {"year": (2023, 2024, 1969), "hour": (0, 2, 23), "minute": (0, 30)}.get(part, (1, 2, 3, 4))
    return derived(
        f"{part}({e.sql})",
        "int",
        e,
        bound=10000,
        values=values,
        portable=kind == "date" and part in ("year", "month"),
    )


def date_difference(s: Scalars, depth: int) -> Typed | None:
    left, right = s.of("date", depth - 1), s.of("date", depth - 1)
    return derived(f"datediff({left.sql}, {right.sql})", "int", left, right, bound=4_000_000, portable=False)


def decimal_arithmetic(s: Scalars, depth: int) -> Typed | None:
    left = s.of("decimal", depth - 1)
    right = s.of(s.rng.choice(("decimal", "decimal", "int")), depth - 1)
    if s.rng.random() < 0.2:
        left, right = right, left
    if left.bound is None or right.bound is None or "decimal" not in (left.family, right.family):
        return None
    operator = s.rng.choice("+-*+-*/%")
    type_ = decimal_result(operator, left.type, right.type)
    bound = {
        "+": left.bound + right.bound,
        "-": left.bound + right.bound,
        "*": left.bound * right.bound,
        "/": left.bound * 10 ** as_decimal(right.type)[1],
        "%": min(left.bound, right.bound) + 1,
    }[operator]
    precision = decimal_digits(type_)[0]
    if not fits(type_, bound + 1) or (operator == "%" and not fits(decimal_result("+", left.type, right.type), bound)):
        return None
    text = f"nullif({right.sql}, 0)" if operator in "/%" else right.sql
    portable = operator in "+-" and precision < 38 and left.family == right.family == "decimal"
    return derived(f"({left.sql} {operator} {text})", type_, left, right, bound=bound + 1, portable=portable)


def decimal_cast(s: Scalars, depth: int) -> Typed | None:
    kind = s.rng.choice(("int", "decimal", "float"))
    e = s.of(kind, depth - 1)
    if e.bound is None or (kind == "float" and (e.special or e.grain is None or e.grain > 6)):
        return None
    types = [
        t
        for t in ("decimal(6,1)", "decimal(9,2)", "decimal(15,4)", "decimal(20,0)", "decimal(38,6)")
        if fits(t, e.bound + 1)
    ]
    if not types:
        return None
    type_ = s.rng.choice(types)
    return derived(f"CAST({e.sql} AS {type_.upper()})", type_, e, bound=e.bound + 1, portable=False)


def decimal_function(s: Scalars, depth: int) -> Typed | None:
    e = s.of("decimal", depth - 1)
    if not fits(e.type, e.bound):
        return None
    assert e.bound is not None
    form = s.rng.choice(("abs", "-", "round", "floor", "ceil", "bround"))
    if form in ("abs", "-"):
        return derived(f"(-{e.sql})" if form == "-" else f"abs({e.sql})", e.type, e, bound=e.bound, portable=True)
    precision, scale = decimal_digits(e.type)
    if form in ("floor", "ceil"):
        type_ = f"decimal({min(precision - scale + 1, 38) or 1},0)" if scale else e.type
        return None if precision == 38 else derived(f"{form}({e.sql})", type_, e, bound=e.bound + 1, portable=False)
    digits = s.rng.choice((0, 1, 2))
    if digits >= scale or precision == 38:
        return None
    type_ = f"decimal({precision - scale + 1 + digits},{digits})"
    return derived(f"{form}({e.sql}, {digits})", type_, e, bound=e.bound + 1, portable=False)


def float_arithmetic(s: Scalars, depth: int) -> Typed | None:
    left = s.of("float", depth - 1)
    right = s.same(left, depth - 1)
    operator = s.rng.choice("+-*+-*/%")
    text = right.sql
    bound = grain = None
    if operator in "/%":  # a zero divisor raises; NULL does not
        text = f"nullif({right.sql}, {literal(right.type, 0.0).sql})"
    elif left.bound is not None and right.bound is not None:
        bound = left.bound * right.bound if operator == "*" else left.bound + right.bound
        if left.grain is not None and right.grain is not None:
            grain = left.grain + right.grain if operator == "*" else max(left.grain, right.grain)
            if bound << grain >= (2**22 if left.type == "float" else 2**50):
                grain = None
    special = left.special or right.special or operator in "/%"
    type_ = "double" if operator == "/" else left.type
    return derived(
        f"({left.sql} {operator} {text})",
        type_,
        left,
        right,
        bound=bound,
        grain=grain,
        special=special,
        portable=False,
    )


def float_cast(s: Scalars, depth: int) -> Typed | None:
    kind = s.rng.choice(("int", "decimal", "float"))
    e = s.of(kind, depth - 1)
    small = e.bound is not None and e.bound < 2**20
    grain = {"int": 0, "float": e.grain}.get(kind) if small else None
    return derived(
        f"CAST({e.sql} AS DOUBLE)", "double", e, bound=e.bound, grain=grain, special=e.special, portable=False
    )


def float_function(s: Scalars, depth: int) -> Typed | None:
    e = s.of("float", depth - 1)
    form = s.rng.choice(("abs", "-", "sqrt", "floor", "ceil", "round", "divide"))
    if form == "abs":
        return derived(f"abs({e.sql})", e.type, e, bound=e.bound, grain=e.grain, special=e.special, portable=False)
    if form == "-":
        return derived(f"(-{e.sql})", e.type, e, bound=e.bound, grain=e.grain, special=True, portable=False)
    if form == "sqrt":
        return derived(f"sqrt(abs({e.sql}))", "double", e, special=True, portable=False)
    if form == "divide":
        left, right = s.of("int", 0), s.of("int", 0)
        return derived(f"({left.sql} / nullif({right.sql}, 0))", "double", left, right, portable=False)
    if e.special or e.bound is None or e.bound > 10**9:
        return None
    if form == "round":
        return derived(
            f"round({e.sql}, {s.rng.choice((0, 1, 2))})",
            e.type,
            e,
            bound=e.bound + 1,
            special=True,
            portable=False,
        )
    return derived(f"CAST({form}({e.sql}) AS DOUBLE)", "double", e, bound=e.bound + 1, grain=0, portable=False)


def guarded(s: Scalars, depth: int) -> Typed | None:
    """What would raise, behind a guard or in its try_ form, also over extreme values."""
    left, right = s.of("int", depth - 1), s.of("int", depth - 1)
    form = s.rng.randrange(6)
    if form == 0:
        sql = f"CASE WHEN {right.sql} <> 0 THEN CAST({left.sql} AS BIGINT) % {right.sql} END"
        return derived(sql, "bigint", left, right, bound=right.bound, portable=False)
    if form == 1:
        sql = f"CASE WHEN {left.sql} BETWEEN -100 AND 100 THEN CAST({left.sql} AS TINYINT) ELSE 0Y END"
        return derived(sql, "tinyint", left, bound=100, portable=False)
    if form == 2:
        sql = f"if({left.sql} BETWEEN -9 AND 9 AND {right.sql} BETWEEN -9 AND 9, {left.sql} * {right.sql}, NULL)"
        return derived(sql, wider(left.type, right.type), left, right, bound=81, portable=False)
    if form == 3:
        text = s.of("string", depth - 1)
        return derived(f"try_cast({text.sql} AS INT)", "int", text, bound=2**31 - 1, portable=False)
    function = s.rng.choice(("try_add", "try_subtract", "try_multiply"))
    type_ = wider(left.type, right.type)
    if INTEGER_BITS[type_] < 32:
        return None
    bound = 2 ** (INTEGER_BITS[type_] - 1)
    return derived(f"{function}({left.sql}, {right.sql})", type_, left, right, bound=bound, portable=False)


def further_integer(s: Scalars, depth: int) -> Typed | None:
    """Counts of bits, days and parts."""
    form = s.rng.choice(("bit_count", "~", "<<", ">>", "unix_date", "timestampdiff", "size", "bit_length"))
    if form in ("unix_date", "timestampdiff"):
        e = s.of("date", depth - 1)
        if form == "unix_date":
            return derived(f"unix_date({e.sql})", "int", e, bound=4_000_000, portable=False)
        other = s.of("timestamp", depth - 1)
        unit = s.rng.choice(("DAY", "MONTH", "HOUR"))
        sql = f"timestampdiff({unit}, CAST({e.sql} AS TIMESTAMP), {other.sql})"
        return derived(sql, "bigint", e, other, bound=10**8, portable=False)
    if form in ("size", "bit_length"):
        e = s.of("string", depth - 1)
        sql = f"size(split({e.sql}, 'b'))" if form == "size" else f"bit_length({e.sql})"
        return derived(sql, "int", e, bound=10_000, values=(0, 1, 2), portable=False)
    e = s.of("int", depth - 1)
    if form == "bit_count":
        return derived(f"bit_count({e.sql})", "int", e, bound=64, values=(0, 1, 2), portable=False)
    bound = 2 ** (INTEGER_BITS[e.type] - 1)
    if form == "~":
        return derived(f"(~{e.sql})", e.type, e, bound=bound, portable=False)
    if INTEGER_BITS[e.type] < 32:
        return None
    return derived(f"({e.sql} {form} {s.rng.choice((0, 1, 3))})", e.type, e, bound=bound, portable=False)


def guarded_decimal(s: Scalars, depth: int) -> Typed | None:
    left, right = s.of("decimal", depth - 1), s.of("decimal", 0)
    if left.bound is None or right.bound is None:
        return None
    type_ = decimal_result("/", left.type, right.type)
    if not fits(type_, left.bound * 10 ** as_decimal(right.type)[1] + 1):
        return None
    sql = f"CASE WHEN {right.sql} = 0 THEN NULL ELSE {left.sql} / {right.sql} END"
    bound = left.bound * 10 ** as_decimal(right.type)[1] + 1
    return derived(sql, type_, left, right, bound=bound, portable=False)


def further_float(s: Scalars, depth: int) -> Typed | None:
    e = s.of("float", depth - 1)
    other = s.same(e, 0)
    forms = (
        f"nanvl({e.sql}, {other.sql})",
        f"CASE WHEN {other.sql} <> 0 THEN {e.sql} / {other.sql} END",
        f"try_divide({e.sql}, {other.sql})",
        f"rint({e.sql})",
    )
    form = s.rng.randrange(4)
    type_ = e.type if form == 0 else "double"
    return derived(forms[form], type_, e, other, special=True, portable=False)


INTEGERS = (
    *(integer_arithmetic, integer_arithmetic, integer_function, integer_cast),
    *(bits, length, date_part, date_difference, guarded, further_integer),
)
DECIMALS = (decimal_arithmetic, decimal_arithmetic, decimal_arithmetic, decimal_cast, decimal_function, guarded_decimal)
FLOATS = (float_arithmetic, float_arithmetic, float_cast, float_function, further_float)
