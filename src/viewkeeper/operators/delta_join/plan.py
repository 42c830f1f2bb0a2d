"""What a path is made of: conditions, lookups and ways out, in the order in which rows meet them.

    Stretch     what happens to one set of rows, until a lookup makes other rows of them
    Check       conditions of all views that can be judged at one point, each once
    Step        a lookup
    Exit        a way out, to one operator of one view

A set of exits is a number, with a bit for each; rows have theirs in words of 64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.expressions.backends.vector_predicates import Comparison, comparison, holds
from viewkeeper.expressions.tree import Expr, column
from viewkeeper.model.arrow_buffers import one_chunk
from viewkeeper.model.int128 import Flags, Words
from viewkeeper.model.types import Type
from viewkeeper.operators.segment import where_sql
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.state.hash_index import Places

Ref = tuple[int, str]
"""A column of the row at a place: (number of the place, its name there). Place 0 is the delta's."""

MET = "met"
"""As a column of an optional relation's row: whether there is one."""

BITS = 64
DELTA = 0
_COMPARISONS = frozenset({"EqualTo", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"})
"""None of them is met by NULL."""
_JUDGED = 1 << 16
"""Rows that are judged at a time."""
_NO_BITS = np.zeros(0, np.uint64)


def referred(place: int, name: str, type_: Type, nullable: bool) -> Expr:
    return column(f"{place}.{name}", type_, nullable)


def ref_of(expr: Expr) -> Ref:
    place, _, name = str(expr.value).partition(".")
    return int(place), name


def refs_of(exprs: Iterable[Expr]) -> tuple[Ref, ...]:
    return tuple(sorted({ref_of(e) for expr in exprs for e in expr.walk() if e.op == "column"}))


@dataclass(frozen=True)
class Check:
    """Conditions that can be judged at one point: each conjunction with the exits that ask for it, as bits."""

    tests: tuple[tuple[tuple[Expr, ...], int], ...]

    @cached_property
    def refs(self) -> tuple[Ref, ...]:
        return refs_of(e for conjuncts, _ in self.tests for e in conjuncts)

    @cached_property
    def exits(self) -> int:
        found = 0
        for _, exits in self.tests:
            found |= exits
        return found

    @cached_property
    def conditions(self) -> tuple[Expr, ...]:
        """Each condition once, whoever asks for it. None of them can fail, so each is judged by itself."""
        return tuple(dict.fromkeys(part for conjuncts, _ in self.tests for part in _parts(conjuncts)))

    @cached_property
    def compared(self) -> tuple[Comparison | None, ...]:
        """The conditions that are comparisons with constants, as such."""
        return tuple(map(comparison, self.conditions))

    @cached_property
    def others(self) -> tuple[int, ...]:
        """The places of the other conditions, which need a statement."""
        return tuple(i for i, known in enumerate(self.compared) if known is None)

    @cached_property
    def sql(self) -> str:
        """Whether a row meets each of those, or NULL."""
        shown = (f"{where_sql((self.conditions[i],))} AS c{i}" for i in self.others)
        return f"SELECT {', '.join(shown)} FROM input"

    @cached_property
    def asked(self) -> list[str]:
        """The columns that the statement reads."""
        return [f"{place}.{name}" for place, name in refs_of(self.conditions[i] for i in self.others)]

    def left(self, met: Mapping[int, Flags], rows: int) -> Places:
        """The rows for which it matters whether they meet the other conditions: those that meet what else is asked."""
        found = np.zeros(rows, np.bool_)
        for places, _ in self._conjunctions:
            if any(place not in met for place in places):
                known = [met[place] for place in places if place in met]
                found |= np.logical_and.reduce(known) if known else True
        return np.flatnonzero(found)

    @cached_property
    def name(self) -> str:
        """The same for checks that give the same bits."""
        return f"{self.conditions} {self._conjunctions}"

    @cached_property
    def _conjunctions(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """Conditions by their places, and the exits that ask for all of these."""
        place = {condition: i for i, condition in enumerate(self.conditions)}
        return tuple((tuple(place[part] for part in _parts(conjuncts)), exits) for conjuncts, exits in self.tests)

    def bits(self, met: Mapping[int, Flags], rows: int) -> dict[int, Words]:
        """For each word of bits that are asked for, the bits of the exits whose conditions a row meets."""
        found = {word: np.zeros(rows, np.uint64) for word in words_of(self.exits)}
        for (first, *others), exits in self._conjunctions:
            all_met = met[first]
            for other in others:
                all_met = all_met & met[other]
            for word in words_of(exits):
                found[word] |= np.multiply(all_met, bits_of(exits, word), dtype=np.uint64)
        return found


def _parts(conjuncts: Iterable[Expr]) -> list[Expr]:
    """The conditions of a conjunction, but for those that say of something compared in another that it is not NULL."""
    flat = list(_flat(conjuncts))
    compared = {arg for part in flat if part.op in _COMPARISONS for arg in part.args}
    left = [part for part in flat if part.op != "IsNotNull" or part.args[0] not in compared]
    return list(dict.fromkeys(left))


def _flat(conjuncts: Iterable[Expr]) -> Iterator[Expr]:
    for conjunct in conjuncts:
        if conjunct.op == "And":
            yield from _flat(conjunct.args)
        else:
            yield conjunct


def judged(duck: Duck, check: Check, rows: pa.Table) -> Mapping[int, Words]:
    """The bits of rows, some at a time: of a thousand views the conditions are hundreds, each with a column."""
    parts = []
    for start in range(0, rows.num_rows, _JUDGED):
        some = rows.slice(start, _JUDGED)
        parts.append(check.bits(_met(duck, check, some), some.num_rows))
    if len(parts) == 1:
        return parts[0]
    return {word: np.concatenate([_NO_BITS, *(part[word] for part in parts)]) for word in words_of(check.exits)}


def _met(duck: Duck, check: Check, rows: pa.Table) -> Mapping[int, Flags]:
    """Which rows meet each condition. What needs a statement is told of rows for which it matters only."""
    met = {i: holds(known, rows) for i, known in enumerate(check.compared) if known is not None}
    if not check.others:
        return met
    left = check.left(met, rows.num_rows)
    met |= {i: np.zeros(rows.num_rows, np.bool_) for i in check.others}
    if len(left):
        input_ = rows.select(check.asked) if check.asked else rows
        told = duck.run(check.sql, input=input_ if len(left) == rows.num_rows else input_.take(pa.array(left)))
        for i, column in zip(check.others, told.columns, strict=True):
            met[i][left] = np.asarray(pc.fill_null(one_chunk(column), False))
    return met


@dataclass(frozen=True)
class Optional:
    """Of a lookup in an optional relation: `left` or `anti`, the conditions of a match beside the key (for exit 0), and
    the types of the columns that are taken, which are NULL where there is no match."""

    how: str
    match: Check | None
    types: tuple[tuple[str, Type], ...]


@dataclass(frozen=True)
class PathStep:
    """A lookup of `key` in an arrangement; what it finds is the place of this number."""

    place: int
    arrangement: str
    fresh: bool
    key: tuple[Ref, ...]
    by: tuple[str, ...]
    exits: int
    checks: tuple[Check, ...] = ()
    lookups: tuple[str, ...] = ()
    """The operators for which it is made."""
    optional: Optional | None = None


@dataclass(frozen=True)
class Exit:
    """A way out: who gets the rows, and which columns, each with its name there."""

    number: int
    source: str
    """The operator whose output it gives."""
    taken: tuple[tuple[str, Ref], ...]


@dataclass(frozen=True)
class Stretch:
    """What happens to one set of rows: conditions on what they begin with, lookups that add a place, exits, and
    lookups that make other rows of them."""

    checks: tuple[Check, ...]
    steps: tuple[PathStep, ...]
    exits: tuple[Exit, ...]
    onward: tuple[tuple[PathStep, Stretch], ...]


def steps_of(stretch: Stretch) -> Iterator[PathStep]:
    """All lookups."""
    yield from stretch.steps
    for step, after in stretch.onward:
        yield step
        yield from steps_of(after)


def words_of(exits: int) -> list[int]:
    """The words in which any of these bits lies."""
    return [word for word in range(word_count(exits)) if exits >> (BITS * word) & (1 << BITS) - 1]


def word_count(exits: int) -> int:
    return -(-exits.bit_length() // BITS)


def bits_of(exits: int, word: int) -> np.uint64:
    """The bits that lie in one word."""
    return np.uint64(exits >> (BITS * word) & (1 << BITS) - 1)
