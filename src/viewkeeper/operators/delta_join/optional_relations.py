"""Lookup in an optional relation: left outer and anti joins.

    left     l ⟕ R = { (l, r) : r in R matches l }, or (l, NULL) if there is none
    anti     l ▷ R = l if there is none

Whether a row has a match is decided by the sum of the weights of its matches, after its key and all conditions were
compared: rows with the same hash may have other keys, and a row of one run may be deleted by another run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from viewkeeper.expressions.backends.vector_predicates import VectorPredicate, compile_predicates, evaluate_all
from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.arrow_buffers import one_chunk
from viewkeeper.model.names import ROW_INDEX, WEIGHT
from viewkeeper.model.schema import Column
from viewkeeper.operators.segment import where_sql
from viewkeeper.resources.prepared_statements import PreparedStatements


@dataclass(frozen=True)
class MatchCondition:
    """The conditions under which two rows match, over the columns of both."""

    conditions: tuple[Expr, ...]

    @cached_property
    def _vector_conditions(self) -> tuple[VectorPredicate, ...] | None:
        return compile_predicates(self.conditions)

    @cached_property
    def _sql(self) -> str:
        return f"SELECT coalesce({where_sql(self.conditions)}, FALSE) AS met FROM input"

    def evaluate(self, statements: PreparedStatements, rows: pa.Table) -> npt.NDArray[np.bool_]:
        if self._vector_conditions is not None:
            return evaluate_all(self._vector_conditions, rows)
        return np.asarray(one_chunk(statements.run(self._sql, input=rows).column("met")))


def with_row_numbers(probe: pa.Table) -> pa.Table:
    """Return the rows with their numbers, which identify the probe row of each match."""
    return probe.append_column(ROW_INDEX, pa.array(np.arange(probe.num_rows)))


def filter_matches(
    statements: PreparedStatements,
    match: MatchCondition,
    candidates: Iterator[pa.Table],
    match_weights: npt.NDArray[np.int64],
) -> Iterator[pa.Table]:
    """Yield the matches among numbered probe rows joined with rows of the same hash; add up each probe row's match
    weights in `match_weights`."""
    for rows in candidates:
        is_match = match.evaluate(statements, rows)
        if not is_match.any():
            continue
        matches = rows if is_match.all() else rows.filter(pa.array(is_match))
        np.add.at(
            match_weights, one_chunk(matches.column(ROW_INDEX)).to_numpy(), one_chunk(matches.column(WEIGHT)).to_numpy()
        )
        yield matches


def with_null_columns(rows: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """Return the rows with further columns of NULLs."""
    for c in columns:
        rows = rows.append_column(c.name, pa.nulls(rows.num_rows, types.arrow(c.type)))
    return rows
