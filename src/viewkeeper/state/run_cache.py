"""Which rows of a run meet conditions.

Worked out for the rows that are asked for, and kept for all of them once as many were asked for as that would cost: a
run never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from viewkeeper.expressions.backends.vector_predicates import (
    VectorPredicate,
    evaluate_all,
    predicate_columns,
    predicate_key,
)
from viewkeeper.model.int128 import Flags
from viewkeeper.state.hash_index import RowIds
from viewkeeper.state.run import Run

_ROWS_PER_REQUEST = 4
"""What all rows say is worked out when one for so many was asked for: they lie side by side, and nothing is taken."""
_MAX_CACHED_ROWS = 1 << 24
"""Of a run whose answers are kept: a byte each."""


@dataclass
class _PredicateCache:
    """The answers of all rows, if they were worked out, and for how many rows was asked before."""

    rows_requested: int = 0
    results: Flags | None = None


def evaluate_predicates(conditions: Sequence[VectorPredicate], run: Run, row_ids: RowIds) -> Flags:
    """Whether the rows at these places meet all of the conditions, which are of columns and constants."""
    memory = run.cache.setdefault(f"meeting {[predicate_key(c) for c in conditions]}", _PredicateCache())
    columns = sorted(frozenset().union(*map(predicate_columns, conditions)))
    if memory.results is None:
        memory.rows_requested += len(row_ids)
        if run.num_rows > min(memory.rows_requested * _ROWS_PER_REQUEST, _MAX_CACHED_ROWS):
            return evaluate_all(conditions, run.rows.select(columns).take(pa.array(row_ids)))
        memory.results = evaluate_all(conditions, run.rows.select(columns))
        run.evict_oldest_results()
    found: Flags = memory.results[row_ids]
    return found
