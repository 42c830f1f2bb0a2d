"""The plan of a delta join: filters, lookups and exits, in the order in which partial rows reach them.

    JoinPath     what happens to one set of partial rows, until a lookup makes other rows of them
    PathFilter   the conditions of all views that can be evaluated at one point, each once
    PathStep     a lookup
    Exit         where rows leave for one operator of one view

A set of exits is an integer with one bit for each exit; partial rows have theirs in 64-bit words.
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
"""A column of a partial row: (number of the relation, column name there). Relation 0 is the delta."""

MATCH_FLAG = "met"
"""Pseudo-column of an optional relation: whether there is a match."""

WORD_BITS = 64
DELTA = 0
_NULL_REJECTING_OPS = frozenset({"EqualTo", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"})
"""Comparisons that never hold for NULL."""
_ROWS_PER_EVALUATION = 1 << 16
"""Rows that are evaluated at a time."""
_EMPTY_MASK = np.zeros(0, np.uint64)


def path_column(relation: int, name: str, type_: Type, nullable: bool) -> Expr:
    return column(f"{relation}.{name}", type_, nullable)


def parse_column_ref(expr: Expr) -> ColumnRef:
    relation, _, name = str(expr.value).partition(".")
    return int(relation), name


def column_refs(exprs: Iterable[Expr]) -> tuple[ColumnRef, ...]:
    return tuple(sorted({parse_column_ref(e) for expr in exprs for e in expr.walk() if e.op == "column"}))


@dataclass(frozen=True)
class PathFilter:
    """Conditions that can be evaluated at one point: conjunctions, each with the exits that require it, as bits."""

    tests: tuple[tuple[tuple[Expr, ...], int], ...]

    @cached_property
    def refs(self) -> tuple[ColumnRef, ...]:
        return column_refs(e for conjuncts, _ in self.tests for e in conjuncts)

    @cached_property
    def exit_mask(self) -> int:
        mask = 0
        for _, exits in self.tests:
            mask |= exits
        return mask

    @cached_property
    def conditions(self) -> tuple[Expr, ...]:
        """The distinct conditions of all conjunctions. None of them can fail, so each is evaluated separately."""
        return tuple(dict.fromkeys(part for conjuncts, _ in self.tests for part in _conjuncts(conjuncts)))

    @cached_property
    def vector_conditions(self) -> tuple[VectorPredicate | None, ...]:
        """The vectorised form of each condition; None for a condition that needs a statement."""
        return tuple(map(compile_predicate, self.conditions))

    @cached_property
    def statement_conditions(self) -> tuple[int, ...]:
        """The indexes of the conditions that need a statement."""
        return tuple(i for i, predicate in enumerate(self.vector_conditions) if predicate is None)

    @cached_property
    def sql(self) -> str:
        """The statement that evaluates those conditions; NULL where one is unknown."""
        selected = (f"{where_sql((self.conditions[i],))} AS c{i}" for i in self.statement_conditions)
        return f"SELECT {', '.join(selected)} FROM input"

    @cached_property
    def statement_columns(self) -> list[str]:
        """The columns that the statement reads."""
        return [
            f"{relation}.{name}"
            for relation, name in column_refs(self.conditions[i] for i in self.statement_conditions)
        ]

    def undecided_rows(self, results: Mapping[int, Flags], row_count: int) -> RowIds:
        """Return the rows for which the remaining conditions matter: those that meet the conditions that were
        evaluated."""
        is_undecided = np.zeros(row_count, np.bool_)
        for indexes, _ in self._conjunctions:
            if any(index not in results for index in indexes):
                known_results = [results[index] for index in indexes if index in results]
                is_undecided |= np.logical_and.reduce(known_results) if known_results else True
        return np.flatnonzero(is_undecided)

    @cached_property
    def cache_key(self) -> str:
        """Equal for filters that give the same exit masks."""
        return f"{self.conditions} {self._conjunctions}"

    @cached_property
    def _conjunctions(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """Conjunctions as indexes of conditions, with the exits that require all of them."""
        index = {condition: i for i, condition in enumerate(self.conditions)}
        return tuple((tuple(index[part] for part in _conjuncts(conjuncts)), exits) for conjuncts, exits in self.tests)

    def exit_masks(self, results: Mapping[int, Flags], row_count: int) -> dict[int, Words]:
        """Return, for each word that the filter affects, the bits of the exits whose conditions each row meets."""
        masks = {word: np.zeros(row_count, np.uint64) for word in mask_word_indexes(self.exit_mask)}
        for (first, *others), exits in self._conjunctions:
            all_met = results[first]
            for other in others:
                all_met = all_met & results[other]
            for word in mask_word_indexes(exits):
                masks[word] |= np.multiply(all_met, mask_word(exits, word), dtype=np.uint64)
        return masks


def _conjuncts(conjuncts: Iterable[Expr]) -> list[Expr]:
    """Return the conditions of a conjunction without IS NOT NULL of an expression that another condition compares."""
    flat = list(_flatten(conjuncts))
    compared = {arg for part in flat if part.op in _NULL_REJECTING_OPS for arg in part.args}
    conditions = [part for part in flat if part.op != "IsNotNull" or part.args[0] not in compared]
    return list(dict.fromkeys(conditions))


def _flatten(conjuncts: Iterable[Expr]) -> Iterator[Expr]:
    for conjunct in conjuncts:
        if conjunct.op == "And":
            yield from _flatten(conjunct.args)
        else:
            yield conjunct


def evaluate_exit_masks(statements: PreparedStatements, path_filter: PathFilter, rows: pa.Table) -> Mapping[int, Words]:
    """Return the exit masks of rows. They are evaluated some rows at a time, because a thousand views have hundreds of
    conditions, each with a result column."""
    parts = []
    for start in range(0, rows.num_rows, _ROWS_PER_EVALUATION):
        chunk = rows.slice(start, _ROWS_PER_EVALUATION)
        parts.append(path_filter.exit_masks(_evaluate_conditions(statements, path_filter, chunk), chunk.num_rows))
    if len(parts) == 1:
        return parts[0]
    return {
        word: np.concatenate([_EMPTY_MASK, *(part[word] for part in parts)])
        for word in mask_word_indexes(path_filter.exit_mask)
    }


def _evaluate_conditions(
    statements: PreparedStatements, path_filter: PathFilter, rows: pa.Table
) -> Mapping[int, Flags]:
    """Return which rows meet each condition. Conditions that need a statement are evaluated only for rows where they
    matter."""
    results = {
        i: evaluate_predicate(predicate, rows)
        for i, predicate in enumerate(path_filter.vector_conditions)
        if predicate is not None
    }
    if not path_filter.statement_conditions:
        return results
    undecided = path_filter.undecided_rows(results, rows.num_rows)
    results |= {i: np.zeros(rows.num_rows, np.bool_) for i in path_filter.statement_conditions}
    if len(undecided):
        input_ = rows.select(path_filter.statement_columns) if path_filter.statement_columns else rows
        evaluated = statements.run(
            path_filter.sql, input=input_ if len(undecided) == rows.num_rows else input_.take(pa.array(undecided))
        )
        for i, column in zip(path_filter.statement_conditions, evaluated.columns, strict=True):
            results[i][undecided] = np.asarray(pc.fill_null(one_chunk(column), False))
    return results


@dataclass(frozen=True)
class OptionalMatch:
    """A lookup in an optional relation: `left` or `anti`; the conditions of a match beside the key (as those of exit
    0); and the types of the fetched columns, which are NULL where there is no match."""

    join_type: str
    match: PathFilter | None
    column_types: tuple[tuple[str, Type], ...]


@dataclass(frozen=True)
class PathStep:
    """A lookup of `key` in an arrangement; the row ids that it finds are those of `relation`."""

    relation: int
    arrangement: str
    new_state: bool
    key: tuple[ColumnRef, ...]
    arrangement_key: tuple[str, ...]
    exit_mask: int
    filters: tuple[PathFilter, ...] = ()
    lookup_ids: tuple[str, ...] = ()
    """The lookup operators that it replaces."""
    optional: OptionalMatch | None = None


@dataclass(frozen=True)
class Exit:
    """Where rows leave a path, and their columns, each with its name in the output."""

    number: int
    source: str
    """The operator whose output it replaces."""
    columns: tuple[tuple[str, ColumnRef], ...]


@dataclass(frozen=True)
class JoinPath:
    """What happens to one set of partial rows: filters on the rows it begins with, lookups that add a row id, exits,
    and lookups that make new partial rows."""

    filters: tuple[PathFilter, ...]
    steps: tuple[PathStep, ...]
    exits: tuple[Exit, ...]
    branches: tuple[tuple[PathStep, JoinPath], ...]


def all_steps(path: JoinPath) -> Iterator[PathStep]:
    """Yield all lookups of a path and its branches."""
    yield from path.steps
    for step, branch in path.branches:
        yield step
        yield from all_steps(branch)


def mask_word_indexes(exit_mask: int) -> list[int]:
    """Return the indexes of the words that have any of these bits."""
    return [
        word for word in range(mask_word_count(exit_mask)) if exit_mask >> (WORD_BITS * word) & (1 << WORD_BITS) - 1
    ]


def mask_word_count(exit_mask: int) -> int:
    return -(-exit_mask.bit_length() // WORD_BITS)


def mask_word(exit_mask: int, word_index: int) -> np.uint64:
    """Return the bits of one word."""
    return np.uint64(exit_mask >> (WORD_BITS * word_index) & (1 << WORD_BITS) - 1)
