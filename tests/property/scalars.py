"""Random scalar expressions and predicates that analyse, are deterministic and do not raise.

A production (`conditions`, `numbers`, `texts`) gives None where its operands do not allow it (a product that might
overflow, a month added to the year 9999), and another one is tried. `Scalars.of(family, depth)` gives an expression of
a family of types, `same` one of exactly the type of another, `predicate` a condition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from . import conditions, numbers, texts
from .typed import Typed, derived, family, fits, literal, literal_like, plain_literal

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
            return derived(
                f"{function}({e.sql})", "int", e, bound=10_000, values=(0, 1, 2, 2024), portable=e.type != "boolean"
            )
        if kind == "decimal" and not fits("decimal(12,2)", e.bound):
            return None
        type_ = {"decimal": "decimal(12,2)", "float": "double"}.get(kind, kind)
        bound, grain = (
            (e.bound, 0 if e.bound and e.bound < 2**20 else None) if kind in ("decimal", "float") else (None, None)
        )
        return derived(
            f"CAST({e.sql} AS {type_.upper()})",
            type_,
            e,
            bound=bound,
            grain=grain,
            special=e.special,
            portable=kind == "string" and e.family == "int",
        )

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
            rules = conditions.CONDITIONS if depth > 0 else conditions.CONDITIONS[:6]
            if found := self.rng.choice(rules)(self, depth):
                return found
        return literal("boolean", True)

    def _settled(self, e: Typed) -> Typed:
        """An expression must not show what Spark leaves open: x + 0.0 has one zero."""
        return replace(e, sql=f"({e.sql} + 0.0D)", type="double", loose="") if e.loose == "zero" else e


Rule = Callable[[Scalars, int], Typed | None]


def _common(kind: str) -> tuple[Rule, ...]:
    """CASE, COALESCE and their kin, for a family."""
    forms = (conditions.case, conditions.coalesce, conditions.nullif, conditions.greatest)
    return tuple(lambda s, depth, form=form: form(s, kind, depth) for form in forms)


def _predicate(s: Scalars, depth: int) -> Typed | None:
    return s.predicate(depth - 1)


_RULES: dict[str, tuple[Rule, ...]] = {
    "int": (*numbers.INTEGERS, *_common("int")),
    "decimal": (*numbers.DECIMALS, *_common("decimal")),
    "float": (*numbers.FLOATS, *_common("float")),
    "string": (*texts.STRINGS, *_common("string")),
    "boolean": (_predicate, _predicate, *_common("boolean")),
    "date": (*texts.DATES, *_common("date")),
    "timestamp": (*texts.TIMESTAMPS, *_common("timestamp")),
    "timestamp_ntz": (*texts.TIMESTAMPS_NTZ, *_common("timestamp_ntz")),
    "binary": (*texts.BYTES, *_common("binary")),
}


def _some_type(rng: Random, kind: str) -> str:
    if kind == "int":
        return rng.choice(("int", "int", "bigint", "smallint", "tinyint"))
    if kind == "decimal":
        return rng.choice(("decimal(4,1)", "decimal(9,2)", "decimal(18,6)"))
    if kind == "float":
        return rng.choice(("double", "double", "float"))
    assert family(kind) == kind
    return kind
