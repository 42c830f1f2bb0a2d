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

from viewkeeper.expressions.backends.vector_predicates import VectorPredicate, compile_predicate, evaluate_predicate
from viewkeeper.expressions.tree import Expr, column
from viewkeeper.model.arrow_buffers import one_chunk
from viewkeeper.model.int128 import Flags, Words
from viewkeeper.model.types import Type
from viewkeeper.operators.segment import where_sql
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.hash_index import RowIds

ColumnRef = tuple[int, str]
"""A column of the row at a place: (number of the place, its name there). Place 0 is the delta's."""

MATCH_FLAG = "met"
"""As a column of an optional relation's row: whether there is one."""

WORD_BITS = 64
DELTA = 0
_NULL_REJECTING_OPS = frozenset({"EqualTo", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"})
"""None of them is met by NULL."""
_ROWS_PER_EVALUATION = 1 << 16
"""Rows that are judged at a time."""
_EMPTY_MASK = np.zeros(0, np.uint64)


def path_column(relation: int, name: str, type_: Type, nullable: bool) -> Expr:
    return column(f"{relation}.{name}", type_, nullable)


def parse_column_ref(expr: Expr) -> ColumnRef:
    place, _, name = str(expr.value).partition(".")
    return int(place), name


def column_refs(exprs: Iterable[Expr]) -> tuple[ColumnRef, ...]:
    return tuple(sorted({parse_column_ref(e) for expr in exprs for e in expr.walk() if e.op == "column"}))


@dataclass(frozen=True)
class PathFilter:
    """Conditions that can be judged at one point: each conjunction with the exits that ask for it, as bits."""

    tests: tuple[tuple[tuple[Expr, ...], int], ...]

    @cached_property
    def refs(self) -> tuple[ColumnRef, ...]:
        return column_refs(e for conjuncts, _ in self.tests for e in conjuncts)

    @cached_property
    def exit_mask(self) -> int:
        found = 0
        for _, exits in self.tests:
            found |= exits
        return found

    @cached_property
    def conditions(self) -> tuple[Expr, ...]:
        """Each condition once, whoever asks for it. None of them can fail, so each is judged by itself."""
        return tuple(dict.fromkeys(part for conjuncts, _ in self.tests for part in _conjuncts(conjuncts)))

    @cached_property
    def vector_conditions(self) -> tuple[VectorPredicate | None, ...]:
        """The conditions that are comparisons with constants, as such."""
        return tuple(map(compile_predicate, self.conditions))

    @cached_property
    def statement_conditions(self) -> tuple[int, ...]:
        """The places of the other conditions, which need a statement."""
        return tuple(i for i, known in enumerate(self.vector_conditions) if known is None)

    @cached_property
    def sql(self) -> str:
        """Whether a row meets each of those, or NULL."""
        shown = (f"{where_sql((self.conditions[i],))} AS c{i}" for i in self.statement_conditions)
        return f"SELECT {', '.join(shown)} FROM input"

    @cached_property
    def statement_columns(self) -> list[str]:
        """The columns that the statement reads."""
        return [f"{place}.{name}" for place, name in column_refs(self.conditions[i] for i in self.statement_conditions)]

    def undecided_rows(self, results: Mapping[int, Flags], row_count: int) -> RowIds:
        """The rows for which it matters whether they meet the other conditions: those that meet what else is asked."""
        found = np.zeros(row_count, np.bool_)
        for places, _ in self._conjunctions:
            if any(place not in results for place in places):
                known = [results[place] for place in places if place in results]
                found |= np.logical_and.reduce(known) if known else True
        return np.flatnonzero(found)

    @cached_property
    def cache_key(self) -> str:
        """The same for checks that give the same bits."""
        return f"{self.conditions} {self._conjunctions}"

    @cached_property
    def _conjunctions(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """Conditions by their places, and the exits that ask for all of these."""
        place = {condition: i for i, condition in enumerate(self.conditions)}
        return tuple((tuple(place[part] for part in _conjuncts(conjuncts)), exits) for conjuncts, exits in self.tests)

    def exit_masks(self, results: Mapping[int, Flags], row_count: int) -> dict[int, Words]:
        """For each word of bits that are asked for, the bits of the exits whose conditions a row meets."""
        found = {word: np.zeros(row_count, np.uint64) for word in mask_word_indexes(self.exit_mask)}
        for (first, *others), exits in self._conjunctions:
            all_met = results[first]
            for other in others:
                all_met = all_met & results[other]
            for word in mask_word_indexes(exits):
                found[word] |= np.multiply(all_met, mask_word(exits, word), dtype=np.uint64)
        return found


def _conjuncts(conjuncts: Iterable[Expr]) -> list[Expr]:
    """The conditions of a conjunction, but for those that say of something compared in another that it is not NULL."""
    flat = list(_flatten(conjuncts))
    compared = {arg for part in flat if part.op in _NULL_REJECTING_OPS for arg in part.args}
    left = [part for part in flat if part.op != "IsNotNull" or part.args[0] not in compared]
    return list(dict.fromkeys(left))


def _flatten(conjuncts: Iterable[Expr]) -> Iterator[Expr]:
    for conjunct in conjuncts:
        if conjunct.op == "And":
            yield from _flatten(conjunct.args)
        else:
            yield conjunct


def evaluate_exit_masks(statements: PreparedStatements, path_filter: PathFilter, rows: pa.Table) -> Mapping[int, Words]:
    """The bits of rows, some at a time: of a thousand views the conditions are hundreds, each with a column."""
    parts = []
    for start in range(0, rows.num_rows, _ROWS_PER_EVALUATION):
        some = rows.slice(start, _ROWS_PER_EVALUATION)
        parts.append(path_filter.exit_masks(_evaluate_conditions(statements, path_filter, some), some.num_rows))
    if len(parts) == 1:
        return parts[0]
    return {
        word: np.concatenate([_EMPTY_MASK, *(part[word] for part in parts)])
        for word in mask_word_indexes(path_filter.exit_mask)
    }


def _evaluate_conditions(
    statements: PreparedStatements, path_filter: PathFilter, rows: pa.Table
) -> Mapping[int, Flags]:
    """Which rows meet each condition. What needs a statement is told of rows for which it matters only."""
    met = {
        i: evaluate_predicate(known, rows) for i, known in enumerate(path_filter.vector_conditions) if known is not None
    }
    if not path_filter.statement_conditions:
        return met
    left = path_filter.undecided_rows(met, rows.num_rows)
    met |= {i: np.zeros(rows.num_rows, np.bool_) for i in path_filter.statement_conditions}
    if len(left):
        input_ = rows.select(path_filter.statement_columns) if path_filter.statement_columns else rows
        told = statements.run(
            path_filter.sql, input=input_ if len(left) == rows.num_rows else input_.take(pa.array(left))
        )
        for i, column in zip(path_filter.statement_conditions, told.columns, strict=True):
            met[i][left] = np.asarray(pc.fill_null(one_chunk(column), False))
    return met


@dataclass(frozen=True)
class OptionalMatch:
    """Of a lookup in an optional relation: `left` or `anti`, the conditions of a match beside the key (for exit 0), and
    the types of the columns that are taken, which are NULL where there is no match."""

    join_type: str
    match: PathFilter | None
    column_types: tuple[tuple[str, Type], ...]


@dataclass(frozen=True)
class PathStep:
    """A lookup of `key` in an arrangement; what it finds is the place of this number."""

    relation: int
    arrangement: str
    new_state: bool
    key: tuple[ColumnRef, ...]
    arrangement_key: tuple[str, ...]
    exit_mask: int
    filters: tuple[PathFilter, ...] = ()
    lookup_ids: tuple[str, ...] = ()
    """The operators for which it is made."""
    optional: OptionalMatch | None = None


@dataclass(frozen=True)
class Exit:
    """A way out: who gets the rows, and which columns, each with its name there."""

    number: int
    source: str
    """The operator whose output it gives."""
    columns: tuple[tuple[str, ColumnRef], ...]


@dataclass(frozen=True)
class JoinPath:
    """What happens to one set of rows: conditions on what they begin with, lookups that add a place, exits, and
    lookups that make other rows of them."""

    filters: tuple[PathFilter, ...]
    steps: tuple[PathStep, ...]
    exits: tuple[Exit, ...]
    branches: tuple[tuple[PathStep, JoinPath], ...]


def all_steps(path: JoinPath) -> Iterator[PathStep]:
    """All lookups."""
    yield from path.steps
    for step, after in path.branches:
        yield step
        yield from all_steps(after)


def mask_word_indexes(exit_mask: int) -> list[int]:
    """The words in which any of these bits lies."""
    return [
        word for word in range(mask_word_count(exit_mask)) if exit_mask >> (WORD_BITS * word) & (1 << WORD_BITS) - 1
    ]


def mask_word_count(exit_mask: int) -> int:
    return -(-exit_mask.bit_length() // WORD_BITS)


def mask_word(exit_mask: int, word_index: int) -> np.uint64:
    """The bits that lie in one word."""
    return np.uint64(exit_mask >> (WORD_BITS * word_index) & (1 << WORD_BITS) - 1)
