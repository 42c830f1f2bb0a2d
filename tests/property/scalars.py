"""Random scalar expressions and predicates that analyse, are deterministic and do not raise.

One method a production; it returns None where its operands do not allow it (a product that might overflow, a month
added to the year 9999), and another one is tried. `Scalars.of(family, depth)` gives an expression of a family of
types, `same` one of exactly the type of another, `predicate` a condition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from .schemas import INTEGER_BITS, decimal_digits
from .typed import (
    Typed,
    as_decimal,
    decimal_result,
    derived,
    family,
    fits,
    literal,
    literal_like,
    plain_literal,
    wider,
)

FAMILIES = ("int", "decimal", "float", "string", "boolean", "date", "timestamp", "timestamp_ntz", "binary")
_WEIGHTS = (6, 4, 3, 5, 2, 3, 2, 1, 1)
_SAFE_CASTS = {
    "int": ("string", "date", "timestamp", "boolean"),
    "decimal": ("int",),
    "float": ("int",),
    "string": ("int", "date", "decimal"),
    "date": ("timestamp", "timestamp_ntz"),
    "timestamp": ("date",),
    "timestamp_ntz": ("date",),
    "binary": ("string",),
}
_PATTERNS = ("a%", "%b", "%a%", "_", "a_", "%", "", "a%c", "_b%")
_ODD_PATTERNS = ("100\\\\%", "%\\\\_%", "日%", "%🦉", "it\\'s")


class Scalars:
    """Expressions over `columns`; the deeper, the more of them."""

    def __init__(self, rng: Random, columns: Sequence[Typed], features: frozenset[str] = frozenset()) -> None:
        self.rng = rng
        self.columns = list(columns)
        self.features = features

    # The three ways to ask for one.

    def any(self, depth: int) -> Typed:
        if depth <= 0 or self.rng.random() < 0.45:
            return self.rng.choice(self.columns)
        there = {c.family for c in self.columns}
        weights = [w * (4 if f in there else 1) for f, w in zip(FAMILIES, _WEIGHTS, strict=True)]
        return self.of(self.rng.choices(FAMILIES, weights)[0], depth)

    def of(self, kind: str, depth: int) -> Typed:
        if depth > 0:
            for _ in range(4):
                if found := self.rng.choice(_RULES[kind])(self, depth):
                    return found
        here = [c for c in self.columns if c.family == kind]
        if self.rng.random() < 0.9:
            if here:
                return self._settled(self.rng.choice(here))
            if found := self._converted(kind):
                return found
        return plain_literal(self.rng, _some_type(self.rng, kind))

    def _converted(self, kind: str) -> Typed | None:
        """A column of another family, cast."""
        here = [c for c in self.columns if c.family in _SAFE_CASTS.get(kind, ())]
        if not here:
            return None
        e = self.rng.choice(here)
        if kind == "int":
            function = {"string": "length", "boolean": "int"}.get(e.type, "year")
            return derived(f"{function}({e.sql})", "int", e, bound=10_000, values=(0, 1, 2, 2024),
                           portable=e.type != "boolean")
        if kind == "decimal" and not fits("decimal(12,2)", e.bound):
            return None
        type_ = {"decimal": "decimal(12,2)", "float": "double"}.get(kind, kind)
        bound, grain = (e.bound, 0 if e.bound and e.bound < 2**20 else None) if kind in ("decimal", "float") else (None, None)
        return derived(f"CAST({e.sql} AS {type_.upper()})", type_, e, bound=bound, grain=grain, special=e.special,
                       portable=kind == "string" and e.family == "int")

    def same(self, other: Typed, depth: int) -> Typed:
        """An expression of exactly the type of `other`."""
        here = [c for c in self.columns if c.type == other.type and c.sql != other.sql]
        if here and self.rng.random() < 0.6:
            return self._settled(self.rng.choice(here))
        if depth > 0 and self.rng.random() < 0.5:
            found = self.of(other.family, depth - 1)
            if found.type == other.type:
                return found
        return literal_like(self.rng, other)

    def predicate(self, depth: int) -> Typed:
        for _ in range(4):
            rules = _PREDICATES if depth > 0 else _PREDICATES[:6]
            if found := self.rng.choice(rules)(self, depth):
                return found
        return literal("boolean", True)

    def _settled(self, e: Typed) -> Typed:
        """An expression must not show what Spark leaves open: x + 0.0 has one zero."""
        return replace(e, sql=f"({e.sql} + 0.0D)", type="double", loose="") if e.loose == "zero" else e

    # Predicates.

    def _compare(self, depth: int) -> Typed | None:
        left = self.any(depth - 1)
        if left.loose == "near":
            return None
        kind = left.family
        right = self.of(kind, 0) if kind in ("int", "decimal") and self.rng.random() < 0.3 else self.same(left, depth - 1)
        operator = self.rng.choice(("=", "<>", "<", "<=", ">", ">=", "=", "<=>"))
        return derived(f"({left.sql} {operator} {right.sql})", "boolean", left, right, portable=operator != "<=>")

    def _compare_literal(self, depth: int) -> Typed | None:
        left = self.any(0)
        if left.loose == "near":
            return None
        right = literal_like(self.rng, left)
        operator = self.rng.choice(("=", "<>", "<>", "<", "<=", ">", ">="))
        return derived(f"({left.sql} {operator} {right.sql})", "boolean", left, right)

    def _is_null(self, depth: int) -> Typed | None:
        e = self.any(depth - 1)
        return derived(f"({e.sql} IS {self.rng.choice(('', 'NOT ', 'NOT '))}NULL)", "boolean", e)

    def _in(self, depth: int) -> Typed | None:
        e = self.any(min(depth - 1, 1))
        if e.loose:
            return None
        options = [literal_like(self.rng, e) for _ in range(self.rng.choice((1, 2, 4, 4, 12)))]
        texts = [o.sql for o in options] + (["NULL"] if self.rng.random() < 0.1 else [])
        negated = self.rng.choice(("", "", "NOT "))
        return derived(f"({e.sql} {negated}IN ({', '.join(texts)}))", "boolean", e, *options)

    def _between(self, depth: int) -> Typed | None:
        e = self.any(min(depth - 1, 1))
        if e.loose == "near":
            return None
        low, high = self.same(e, 0), self.same(e, 0)
        negated = self.rng.choice(("", "", "NOT "))
        return derived(f"({e.sql} {negated}BETWEEN {low.sql} AND {high.sql})", "boolean", e, low, high)

    def _like(self, depth: int) -> Typed | None:
        e = self.of("string", depth - 1)
        negated = self.rng.choice(("", "", "NOT "))
        if e.special and self.rng.random() < 0.4:
            return derived(f"({e.sql} {negated}LIKE '{self.rng.choice(_ODD_PATTERNS)}')", "boolean", e, portable=False)
        return derived(f"({e.sql} {negated}LIKE '{self.rng.choice(_PATTERNS)}')", "boolean", e)

    def _logic(self, depth: int) -> Typed | None:
        left, right = self.predicate(depth - 1), self.predicate(depth - 1)
        return derived(f"({left.sql} {self.rng.choice(('AND', 'OR'))} {right.sql})", "boolean", left, right)

    def _not(self, depth: int) -> Typed | None:
        e = self.predicate(depth - 1)
        return derived(f"(NOT {e.sql})", "boolean", e)

    def _string_test(self, depth: int) -> Typed | None:
        e, part = self.of("string", depth - 1), literal("string", self.rng.choice(("a", "b", "ab", "")))
        test = self.rng.choice(("startswith", "endswith", "contains"))
        return derived(f"{test}({e.sql}, {part.sql})", "boolean", e, portable=False)

    # Expressions of any type.

    def _case(self, kind: str, depth: int) -> Typed | None:
        first = self.of(kind, depth - 1)
        second = self.same(first, depth - 1)
        when, other = self.predicate(depth - 1), self.predicate(0)
        form = self.rng.random()
        parts = (first, second, when)
        if form < 0.5:
            sql = f"CASE WHEN {when.sql} THEN {first.sql} ELSE {second.sql} END"
        elif form < 0.7:
            sql = f"CASE WHEN {when.sql} THEN {first.sql} WHEN {other.sql} THEN {second.sql} END"
            parts = (*parts, other)
        elif form < 0.85:
            sql = f"if({when.sql}, {first.sql}, {second.sql})"
        else:
            subject = self.rng.choice(self.columns)
            if subject.loose:
                return None
            sql = f"CASE {subject.sql} WHEN {literal_like(self.rng, subject).sql} THEN {first.sql} ELSE {second.sql} END"
        return self._merged(sql, first, second, *parts, portable=form < 0.7)

    def _coalesce(self, kind: str, depth: int) -> Typed | None:
        first = self.of(kind, depth - 1)
        second = self.same(first, depth - 1)
        function = self.rng.choice(("coalesce", "coalesce", "nvl", "ifnull"))
        return self._merged(f"{function}({first.sql}, {second.sql})", first, second, first, second,
                            portable=function == "coalesce")

    def _nullif(self, kind: str, depth: int) -> Typed | None:
        first = self.of(kind, depth - 1)
        second = self.same(first, 0)
        return self._merged(f"nullif({first.sql}, {second.sql})", first, second, first, second)

    def _greatest(self, kind: str, depth: int) -> Typed | None:
        if kind in ("boolean", "binary", "float"):
            return None
        first = self.of(kind, depth - 1)
        second = self.same(first, depth - 1)
        function = self.rng.choice(("greatest", "least"))
        return self._merged(f"{function}({first.sql}, {second.sql})", first, second, first, second, portable=False)

    def _merged(self, sql: str, a: Typed, b: Typed, *sources: Typed, portable: bool = True) -> Typed:
        bound = None if a.bound is None or b.bound is None else max(a.bound, b.bound)
        grain = None if a.grain is None or b.grain is None else max(a.grain, b.grain)
        return derived(sql, a.type, *sources, bound=bound, grain=grain, special=a.special or b.special,
                       portable=portable, values=a.values)

    # Integers.

    def _integer_arithmetic(self, depth: int) -> Typed | None:
        left, right = self.of("int", depth - 1), self.of("int", depth - 1)
        if left.bound is None or right.bound is None:
            return None
        operator = self.rng.choice("+-*+-*%")
        type_ = wider(left.type, right.type)
        if operator == "%":
            modulus = self.rng.choice((2, 3, 7))
            return derived(f"({left.sql} % {modulus})", wider(left.type, "int"), left, bound=modulus)
        bound = left.bound * right.bound if operator == "*" else left.bound + right.bound
        if not fits(type_, bound):
            return self._integer_widened(left)
        portable = {left.type, right.type} <= {"int", "bigint"}
        return derived(f"({left.sql} {operator} {right.sql})", type_, left, right, bound=bound, portable=portable)

    def _integer_widened(self, e: Typed) -> Typed | None:
        assert e.bound is not None
        if fits("bigint", e.bound * 8):
            return derived(f"(CAST({e.sql} AS BIGINT) * 3)", "bigint", e, bound=e.bound * 3)
        return derived(f"({e.sql} div 1000)", "bigint", e, bound=e.bound // 1000 + 1, portable=False)

    def _integer_function(self, depth: int) -> Typed | None:
        e = self.of("int", depth - 1)
        if not fits(e.type, e.bound):
            return None
        form = self.rng.choice(("abs", "negative", "-", "sign", "pmod", "div", "nullif", "round"))
        if form == "sign":
            return derived(f"CAST(sign({e.sql}) AS INT)", "int", e, bound=1, portable=False)
        if form == "pmod":
            return derived(f"pmod({e.sql}, 5)", wider(e.type, "int"), e, bound=5, portable=False)
        if form == "div":
            other = self.of("int", 0)
            if not fits(other.type, other.bound):
                return None
            return derived(f"({e.sql} div nullif({other.sql}, 0))", "bigint", e, other, bound=e.bound, portable=False)
        if form == "nullif":
            return derived(f"({e.sql} % nullif({self.rng.choice((0, 3))}, 0))", wider(e.type, "int"), e, bound=3,
                           portable=False)
        if form == "round":
            return derived(f"round({e.sql}, {self.rng.choice((0, 1))})", e.type, e, bound=e.bound, portable=False)
        sql = f"(-{e.sql})" if form == "-" else f"{form}({e.sql})"
        return derived(sql, e.type, e, bound=e.bound, portable=form != "negative")

    def _integer_cast(self, depth: int) -> Typed | None:
        kind = self.rng.choice(("int", "decimal", "float", "boolean", "string"))
        e = self.of(kind, depth - 1)
        if kind == "boolean":
            return derived(f"CAST({e.sql} AS INT)", "int", e, bound=1)
        if kind == "string":
            return derived(f"CAST(length({e.sql}) AS BIGINT)", "bigint", e, bound=10000)
        if e.bound is None or (kind == "float" and e.special):
            return None
        types = [t for t in INTEGER_BITS if fits(t, e.bound + 1)]
        if not types:
            return None
        type_ = self.rng.choice(types)
        return derived(f"CAST({e.sql} AS {type_.upper()})", type_, e, bound=e.bound + 1, portable=kind == "int")

    def _bits(self, depth: int) -> Typed | None:
        left, right = self.of("int", depth - 1), self.of("int", depth - 1)
        if left.type != right.type or left.bound is None or right.bound is None:
            return None
        bound = 2 ** (INTEGER_BITS[left.type] - 1)
        return derived(f"({left.sql} {self.rng.choice('&|^')} {right.sql})", left.type, left, right, bound=bound,
                       portable=False)

    def _length(self, depth: int) -> Typed | None:
        e = self.of("string", depth - 1)
        form = self.rng.choice(("length", "length", "instr", "locate", "ascii", "octet_length", "char_length"))
        if form in ("instr", "locate"):
            args = f"{e.sql}, 'b'" if form == "instr" else f"'b', {e.sql}"
            return derived(f"{form}({args})", "int", e, bound=1000, portable=False)
        return derived(f"{form}({e.sql})", "int", e, bound=2**21, values=(0, 1, 2, 3), portable=form == "length")

    def _date_part(self, depth: int) -> Typed | None:
        kind = self.rng.choice(("date", "date", "timestamp", "timestamp_ntz"))
        e = self.of(kind, depth - 1)
        parts = ["year", "month", "day", "quarter", "dayofweek", "weekday", "dayofyear", "weekofyear"]
        if kind != "date":
            parts += ["hour", "minute", "second"]
        part = self.rng.choice(parts)
        if part in ("year", "month", "day") and self.rng.random() < 0.3:
            return derived(f"extract({part.upper()} FROM {e.sql})", "int", e, bound=10000, portable=kind == "date")
        values = {"year": (2023, 2024, 1969), "hour": (0, 2, 23), "minute": (0, 30)}.get(part, (1, 2, 3, 4))
        return derived(f"{part}({e.sql})", "int", e, bound=10000, values=values, portable=kind == "date" and part in ("year", "month"))

    def _date_difference(self, depth: int) -> Typed | None:
        left, right = self.of("date", depth - 1), self.of("date", depth - 1)
        return derived(f"datediff({left.sql}, {right.sql})", "int", left, right, bound=4_000_000, portable=False)

    # Decimals.

    def _decimal_arithmetic(self, depth: int) -> Typed | None:
        left = self.of("decimal", depth - 1)
        right = self.of(self.rng.choice(("decimal", "decimal", "int")), depth - 1)
        if self.rng.random() < 0.2:
            left, right = right, left
        if left.bound is None or right.bound is None or "decimal" not in (left.family, right.family):
            return None
        operator = self.rng.choice("+-*+-*/%")
        type_ = decimal_result(operator, left.type, right.type)
        bound = {
            "+": left.bound + right.bound,
            "-": left.bound + right.bound,
            "*": left.bound * right.bound,
            "/": left.bound * 10 ** as_decimal(right.type)[1],
            "%": min(left.bound, right.bound) + 1,
        }[operator]
        precision, scale = decimal_digits(type_)
        if not fits(type_, bound + 1) or (operator == "%" and not fits(decimal_result("+", left.type, right.type), bound)):
            return None
        text = f"nullif({right.sql}, 0)" if operator in "/%" else right.sql
        portable = operator in "+-" and precision < 38 and left.family == right.family == "decimal"
        return derived(f"({left.sql} {operator} {text})", type_, left, right, bound=bound + 1, portable=portable)

    def _decimal_cast(self, depth: int) -> Typed | None:
        kind = self.rng.choice(("int", "decimal", "float"))
        e = self.of(kind, depth - 1)
        if e.bound is None or (kind == "float" and (e.special or e.grain is None or e.grain > 6)):
            return None
        types = [t for t in ("decimal(6,1)", "decimal(9,2)", "decimal(15,4)", "decimal(20,0)", "decimal(38,6)")
                 if fits(t, e.bound + 1)]
        if not types:
            return None
        type_ = self.rng.choice(types)
        return derived(f"CAST({e.sql} AS {type_.upper()})", type_, e, bound=e.bound + 1, portable=False)

    def _decimal_function(self, depth: int) -> Typed | None:
        e = self.of("decimal", depth - 1)
        if not fits(e.type, e.bound):
            return None
        assert e.bound is not None
        form = self.rng.choice(("abs", "-", "round", "floor", "ceil", "bround"))
        if form in ("abs", "-"):
            return derived(f"(-{e.sql})" if form == "-" else f"abs({e.sql})", e.type, e, bound=e.bound, portable=True)
        precision, scale = decimal_digits(e.type)
        if form in ("floor", "ceil"):
            type_ = f"decimal({min(precision - scale + 1, 38) or 1},0)" if scale else e.type
            return None if precision == 38 else derived(f"{form}({e.sql})", type_, e, bound=e.bound + 1, portable=False)
        digits = self.rng.choice((0, 1, 2))
        if digits >= scale or precision == 38:
            return None
        type_ = f"decimal({precision - scale + 1 + digits},{digits})"
        return derived(f"{form}({e.sql}, {digits})", type_, e, bound=e.bound + 1, portable=False)

    # Floats.

    def _float_arithmetic(self, depth: int) -> Typed | None:
        left = self.of("float", depth - 1)
        right = self.same(left, depth - 1)
        operator = self.rng.choice("+-*+-*/%")
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
        return derived(f"({left.sql} {operator} {text})", type_, left, right, bound=bound, grain=grain, special=special,
                       portable=False)

    def _float_cast(self, depth: int) -> Typed | None:
        kind = self.rng.choice(("int", "decimal", "float"))
        e = self.of(kind, depth - 1)
        small = e.bound is not None and e.bound < 2**20
        grain = {"int": 0, "float": e.grain}.get(kind) if small else None
        return derived(f"CAST({e.sql} AS DOUBLE)", "double", e, bound=e.bound, grain=grain, special=e.special,
                       portable=False)

    def _float_function(self, depth: int) -> Typed | None:
        e = self.of("float", depth - 1)
        form = self.rng.choice(("abs", "-", "sqrt", "floor", "ceil", "round", "divide"))
        if form == "abs":
            return derived(f"abs({e.sql})", e.type, e, bound=e.bound, grain=e.grain, special=e.special, portable=False)
        if form == "-":
            return derived(f"(-{e.sql})", e.type, e, bound=e.bound, grain=e.grain, special=True, portable=False)
        if form == "sqrt":
            return derived(f"sqrt(abs({e.sql}))", "double", e, special=True, portable=False)
        if form == "divide":
            left, right = self.of("int", 0), self.of("int", 0)
            return derived(f"({left.sql} / nullif({right.sql}, 0))", "double", left, right, portable=False)
        if e.special or e.bound is None or e.bound > 10**9:
            return None
        if form == "round":
            return derived(f"round({e.sql}, {self.rng.choice((0, 1, 2))})", e.type, e, bound=e.bound + 1, special=True,
                           portable=False)
        return derived(f"CAST({form}({e.sql}) AS DOUBLE)", "double", e, bound=e.bound + 1, grain=0, portable=False)

    # Strings and bytes.

    def _string_function(self, depth: int) -> Typed | None:
        e = self.of("string", depth - 1)
        length = self.rng.choice((0, 1, 2, 5))
        forms = (
            f"upper({e.sql})", f"lower({e.sql})", f"trim({e.sql})", f"ltrim({e.sql})", f"rtrim({e.sql})",
            f"substring({e.sql}, {self.rng.choice((-2, 0, 1, 2))}, {length})", f"substring({e.sql}, 2)",
            f"left({e.sql}, {length})", f"right({e.sql}, {length})", f"replace({e.sql}, 'a', 'xy')",
            f"lpad({e.sql}, {length}, '*')", f"rpad({e.sql}, {length}, 'ab')", f"reverse({e.sql})",
            f"repeat({e.sql}, {self.rng.choice((0, 2))})", f"translate({e.sql}, 'ab', 'x')",
        )  # fmt: skip
        pick = self.rng.randrange(len(forms))
        return derived(forms[pick], "string", e, special=e.special, portable=pick < 2 and not e.special)

    def _concat(self, depth: int) -> Typed | None:
        left, right = self.of("string", depth - 1), self.of("string", depth - 1)
        special = left.special or right.special
        if self.rng.random() < 0.5:
            return derived(f"({left.sql} || {right.sql})", "string", left, right, special=special)
        forms = (f"concat({left.sql}, '-', {right.sql})", f"concat_ws(',', {left.sql}, {right.sql})")
        return derived(self.rng.choice(forms), "string", left, right, special=special, portable=False)

    def _string_cast(self, depth: int) -> Typed | None:
        kind = self.rng.choice(("int", "decimal", "date", "boolean", "timestamp", "timestamp_ntz"))
        e = self.of(kind, depth - 1)
        return derived(f"CAST({e.sql} AS STRING)", "string", e, portable=kind == "int")

    # Dates and times.

    def _date_function(self, depth: int) -> Typed | None:
        e = self.of("date", depth - 1)
        days = self.rng.choice((0, 1, 31, -1, 366))
        forms = [f"last_day({e.sql})", f"trunc({e.sql}, '{self.rng.choice(('MM', 'YEAR', 'QUARTER'))}')"]
        if not e.special:
            forms += [
                f"date_add({e.sql}, {days})", f"date_sub({e.sql}, {days})", f"add_months({e.sql}, {days % 14})",
                f"({e.sql} + INTERVAL '{abs(days)}' DAY)", f"({e.sql} - INTERVAL '1' MONTH)",
                f"({e.sql} + INTERVAL '1' YEAR)",
            ]  # fmt: skip
        return derived(self.rng.choice(forms), "date", e, special=e.special, portable=False)

    def _date_cast(self, depth: int) -> Typed | None:
        e = self.of(self.rng.choice(("timestamp", "timestamp_ntz")), depth - 1)
        return derived(f"CAST({e.sql} AS DATE)", "date", e, special=e.special, portable=False)

    def _timestamp(self, depth: int) -> Typed | None:
        return self._time("timestamp", depth)

    def _timestamp_ntz(self, depth: int) -> Typed | None:
        return self._time("timestamp_ntz", depth)

    def _time(self, type_: str, depth: int) -> Typed | None:
        if self.rng.random() < 0.3:
            e = self.of("date", depth - 1)
            return derived(f"CAST({e.sql} AS {type_.upper()})", type_, e, special=e.special, portable=False)
        e = self.of(type_, depth - 1)
        unit = self.rng.choice(("MONTH", "DAY", "HOUR", "YEAR", "MINUTE"))
        forms = [f"CAST(date_trunc('{unit}', {e.sql}) AS {type_.upper()})"]
        if not e.special:
            forms += [f"({e.sql} + INTERVAL '3' HOUR)", f"({e.sql} - INTERVAL '2' DAY)", f"({e.sql} + INTERVAL '1' MONTH)"]
        return derived(self.rng.choice(forms), type_, e, special=e.special, portable=False)

    def _as_predicate(self, depth: int) -> Typed | None:
        return self.predicate(depth - 1)

    def _binary_cast(self, depth: int) -> Typed | None:
        e = self.of("string", depth - 1)
        return derived(f"CAST({e.sql} AS BINARY)", "binary", e, portable=False)


Rule = Callable[[Scalars, int], Typed | None]

_PREDICATES: tuple[Rule, ...] = (
    Scalars._compare_literal, Scalars._is_null, Scalars._in, Scalars._between, Scalars._like, Scalars._compare,
    Scalars._compare, Scalars._logic, Scalars._logic, Scalars._not, Scalars._string_test,
)  # fmt: skip


def _common(kind: str) -> tuple[Rule, ...]:
    """CASE, COALESCE and their kin, for a family."""
    forms = (Scalars._case, Scalars._coalesce, Scalars._nullif, Scalars._greatest)
    return tuple(lambda s, depth, form=form: form(s, kind, depth) for form in forms)  # type: ignore[misc]


_RULES: dict[str, tuple[Rule, ...]] = {
    "int": (
        Scalars._integer_arithmetic, Scalars._integer_arithmetic, Scalars._integer_function, Scalars._integer_cast,
        Scalars._bits, Scalars._length, Scalars._date_part, Scalars._date_difference, *_common("int"),
    ),
    "decimal": (
        Scalars._decimal_arithmetic, Scalars._decimal_arithmetic, Scalars._decimal_arithmetic, Scalars._decimal_cast,
        Scalars._decimal_function, *_common("decimal"),
    ),
    "float": (Scalars._float_arithmetic, Scalars._float_arithmetic, Scalars._float_cast, Scalars._float_function,
              *_common("float")),
    "string": (Scalars._string_function, Scalars._string_function, Scalars._concat, Scalars._string_cast,
               *_common("string")),
    "boolean": (Scalars._as_predicate, Scalars._as_predicate, *_common("boolean")),
    "date": (Scalars._date_function, Scalars._date_function, Scalars._date_cast, *_common("date")),
    "timestamp": (Scalars._timestamp, *_common("timestamp")),
    "timestamp_ntz": (Scalars._timestamp_ntz, *_common("timestamp_ntz")),
    "binary": (Scalars._binary_cast, *_common("binary")),
}  # fmt: skip


def _some_type(rng: Random, kind: str) -> str:
    if kind == "int":
        return rng.choice(("int", "int", "bigint", "smallint", "tinyint"))
    if kind == "decimal":
        return rng.choice(("decimal(4,1)", "decimal(9,2)", "decimal(18,6)"))
    if kind == "float":
        return rng.choice(("double", "double", "float"))
    assert family(kind) == kind
    return kind
