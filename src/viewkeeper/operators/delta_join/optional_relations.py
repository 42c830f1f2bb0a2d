"""Lookup of an optional relation: rows stay with NULLs where they meet no row, or go where they meet one.

    left     l ⟕ R = { (l, r) : r in R meets l }, or (l, NULL) if there is none
    anti     l ▷ R = l if there is none

Whether a row meets anything is decided by the sum of the weights of what it meets, after its key and all conditions
were compared: rows of one hash may have other keys, and a row of one run may be taken back by another.
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
    """The conditions under which a row meets another, over the columns of both."""

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
    """The rows with their numbers, by which what they meet is told apart."""
    return probe.append_column(ROW_INDEX, pa.array(np.arange(probe.num_rows)))


def filter_matches(
    statements: PreparedStatements,
    match: MatchCondition,
    candidates: Iterator[pa.Table],
    match_weights: npt.NDArray[np.int64],
) -> Iterator[pa.Table]:
    """Of the numbered rows with others of the same hash those that meet them; `net` adds up what each row meets."""
    for rows in candidates:
        is_met = match.evaluate(statements, rows)
        if not is_met.any():
            continue
        met = rows if is_met.all() else rows.filter(pa.array(is_met))
        np.add.at(match_weights, one_chunk(met.column(ROW_INDEX)).to_numpy(), one_chunk(met.column(WEIGHT)).to_numpy())
        yield met


def with_null_columns(rows: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """The rows with NULLs in further columns."""
    for c in columns:
        rows = rows.append_column(c.name, pa.nulls(rows.num_rows, types.arrow(c.type)))
    return rows
