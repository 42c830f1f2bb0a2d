"""Predicate cache: which rows of a run satisfy a set of predicates.

Predicates are evaluated for the requested rows only, until the sum of the requests costs as much as an evaluation of
all rows. Then all rows are evaluated, and the result is kept with the run, which never changes.
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
"""All rows are evaluated when one row in this many has been requested: a whole column is read sequentially, without a
`take`."""
_MAX_CACHED_ROWS = 1 << 24
"""Rows of the longest run whose results are kept; a result takes one byte a row."""


@dataclass
class _PredicateCache:
    """The results of all rows, if they have been computed, and the number of rows requested before that."""

    rows_requested: int = 0
    results: Flags | None = None


def evaluate_predicates(conditions: Sequence[VectorPredicate], run: Run, row_ids: RowIds) -> Flags:
    """Return for each of these rows of the run whether it satisfies all conditions. The conditions compare columns and
    constants."""
    cached = run.cache.setdefault(f"meeting {[predicate_key(c) for c in conditions]}", _PredicateCache())
    columns = sorted(frozenset().union(*map(predicate_columns, conditions)))
    if cached.results is None:
        cached.rows_requested += len(row_ids)
        if run.num_rows > min(cached.rows_requested * _ROWS_PER_REQUEST, _MAX_CACHED_ROWS):
            return evaluate_all(conditions, run.rows.select(columns).take(pa.array(row_ids)))
        cached.results = evaluate_all(conditions, run.rows.select(columns))
        run.evict_oldest_results()
    found: Flags = cached.results[row_ids]
    return found
