"""Productions of conditions, and of CASE and its kin, which any type has.

A production gives an expression, or None where its operands do not allow it; then another one is tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .typed import Typed, derived, literal, literal_like

if TYPE_CHECKING:
    from .scalars import Scalars

_PATTERNS = ("a%", "%b", "%a%", "_", "a_", "%", "", "a%c", "_b%")
_ODD_PATTERNS = ("100\\\\%", "%\\\\_%", "日%", "%🦉", "it\\'s")


def compare(s: Scalars, depth: int) -> Typed | None:
    left = s.any(depth - 1)
    if left.loose == "near":
        return None
    kind = left.family
    right = s.of(kind, 0) if kind in ("int", "decimal") and s.rng.random() < 0.3 else s.same(left, depth - 1)
    operator = s.rng.choice(("=", "<>", "<", "<=", ">", ">=", "=", "<=>"))
    return derived(f"({left.sql} {operator} {right.sql})", "boolean", left, right, portable=operator != "<=>")


def compare_literal(s: Scalars, depth: int) -> Typed | None:
    left = s.any(0)
    if left.loose == "near":
        return None
    right = literal_like(s.rng, left)
    operator = s.rng.choice(("=", "<>", "<>", "<", "<=", ">", ">="))
    return derived(f"({left.sql} {operator} {right.sql})", "boolean", left, right)


def is_null(s: Scalars, depth: int) -> Typed | None:
    e = s.any(depth - 1)
    return derived(f"({e.sql} IS {s.rng.choice(('', 'NOT ', 'NOT '))}NULL)", "boolean", e)


def is_in(s: Scalars, depth: int) -> Typed | None:
    e = s.any(min(depth - 1, 1))
    if e.loose:
        return None
    options = [literal_like(s.rng, e) for _ in range(s.rng.choice((1, 2, 4, 4, 12)))]
    texts = [o.sql for o in options] + (["NULL"] if s.rng.random() < 0.1 else [])
    negated = s.rng.choice(("", "", "NOT "))
    return derived(f"({e.sql} {negated}IN ({', '.join(texts)}))", "boolean", e, *options)


def between(s: Scalars, depth: int) -> Typed | None:
    e = s.any(min(depth - 1, 1))
    if e.loose == "near":
        return None
    low, high = s.same(e, 0), s.same(e, 0)
    negated = s.rng.choice(("", "", "NOT "))
    return derived(f"({e.sql} {negated}BETWEEN {low.sql} AND {high.sql})", "boolean", e, low, high)


def like(s: Scalars, depth: int) -> Typed | None:
    e = s.of("string", depth - 1)
    negated = s.rng.choice(("", "", "NOT "))
    if e.special and s.rng.random() < 0.4:
        return derived(f"({e.sql} {negated}LIKE '{s.rng.choice(_ODD_PATTERNS)}')", "boolean", e, portable=False)
    return derived(f"({e.sql} {negated}LIKE '{s.rng.choice(_PATTERNS)}')", "boolean", e)


def logic(s: Scalars, depth: int) -> Typed | None:
    left, right = s.predicate(depth - 1), s.predicate(depth - 1)
    return derived(f"({left.sql} {s.rng.choice(('AND', 'OR'))} {right.sql})", "boolean", left, right)


def negation(s: Scalars, depth: int) -> Typed | None:
    e = s.predicate(depth - 1)
    return derived(f"(NOT {e.sql})", "boolean", e)


def string_test(s: Scalars, depth: int) -> Typed | None:
    e, part = s.of("string", depth - 1), literal("string", s.rng.choice(("a", "b", "ab", "")))
    test = s.rng.choice(("startswith", "endswith", "contains"))
    return derived(f"{test}({e.sql}, {part.sql})", "boolean", e, portable=False)


def regex(s: Scalars, depth: int) -> Typed | None:
    e = s.of("string", depth - 1)
    return derived(f"({e.sql} RLIKE '{s.rng.choice(('^a', 'b$', '[ab]{2}', '^$'))}')", "boolean", e, portable=False)


def is_nan(s: Scalars, depth: int) -> Typed | None:
    e = s.of("float", depth - 1)
    return derived(f"isnan({e.sql})", "boolean", e, portable=False)


def case(s: Scalars, kind: str, depth: int) -> Typed | None:
    first = s.of(kind, depth - 1)
    second = s.same(first, depth - 1)
    when, other = s.predicate(depth - 1), s.predicate(0)
    form = s.rng.random()
    parts: tuple[Typed, ...] = (first, second, when)
    if form < 0.5:
        sql = f"CASE WHEN {when.sql} THEN {first.sql} ELSE {second.sql} END"
    elif form < 0.7:
        sql = f"CASE WHEN {when.sql} THEN {first.sql} WHEN {other.sql} THEN {second.sql} END"
        parts = (*parts, other)
    elif form < 0.85:
        sql = f"if({when.sql}, {first.sql}, {second.sql})"
    else:
        subject = s.rng.choice(s.columns)
        if subject.loose:
            return None
        sql = f"CASE {subject.sql} WHEN {literal_like(s.rng, subject).sql} THEN {first.sql} ELSE {second.sql} END"
    return merged(s, sql, first, second, *parts, portable=form < 0.7)


def coalesce(s: Scalars, kind: str, depth: int) -> Typed | None:
    first = s.of(kind, depth - 1)
    second = s.same(first, depth - 1)
    function = s.rng.choice(("coalesce", "coalesce", "nvl", "ifnull"))
    return merged(
        s, f"{function}({first.sql}, {second.sql})", first, second, first, second, portable=function == "coalesce"
    )


def nullif(s: Scalars, kind: str, depth: int) -> Typed | None:
    first = s.of(kind, depth - 1)
    second = s.same(first, 0)
    return merged(s, f"nullif({first.sql}, {second.sql})", first, second, first, second)


def greatest(s: Scalars, kind: str, depth: int) -> Typed | None:
    if kind in ("boolean", "binary", "float"):
        return None
    first = s.of(kind, depth - 1)
    second = s.same(first, depth - 1)
    function = s.rng.choice(("greatest", "least"))
    return merged(s, f"{function}({first.sql}, {second.sql})", first, second, first, second, portable=False)


def merged(s: Scalars, sql: str, a: Typed, b: Typed, *sources: Typed, portable: bool = True) -> Typed:
    bound = None if a.bound is None or b.bound is None else max(a.bound, b.bound)
    grain = None if a.grain is None or b.grain is None else max(a.grain, b.grain)
    return derived(
        sql,
        a.type,
        *sources,
        bound=bound,
        grain=grain,
        special=a.special or b.special,
        portable=portable,
        values=a.values,
    )


CONDITIONS = (
    *(compare_literal, is_null, is_in, between, like, compare),  # these six need no depth
    *(compare, logic, logic, negation, string_test, regex, is_nan),
)
