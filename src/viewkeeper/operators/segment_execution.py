"""Run a segment over rows: its conditions, its columns, and the hash of its key.

A segment is evaluated by Arrow and numpy where they give DuckDB's results, and by a prepared statement otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from viewkeeper.expressions.backends.vector_case import evaluate_vectorised
from viewkeeper.expressions.backends.vector_decimals import evaluate_word_product
from viewkeeper.expressions.backends.vector_predicates import evaluate_all
from viewkeeper.expressions.tree import Named
from viewkeeper.model import types
from viewkeeper.model.arrow_buffers import one_chunk
from viewkeeper.model.names import HASH
from viewkeeper.model.schema import WEIGHT
from viewkeeper.operators.segment import Segment
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.key_hash import has_high_cardinality, hash_keys_vectorised

_GATHER_SHIFT = np.uint64(16)


def run_segment(statements: PreparedStatements, segment: Segment, rows: pa.Table) -> pa.Table:
    """Return the segment's output for these rows."""
    output = run_segment_vectorised(statements, segment, rows)
    return statements.run(segment.sql, input=rows) if output is None else output


def run_segment_vectorised(statements: PreparedStatements, segment: Segment, rows: pa.Table) -> pa.Table | None:
    """Return the segment's output without a statement; None if DuckDB is needed."""
    if not segment.is_vectorised:
        return None
    if segment.vector_conditions:
        passes = evaluate_all(segment.vector_conditions, rows)
        if not passes.all():
            rows = rows.select([*sorted(segment.used_columns()), WEIGHT]).filter(pa.array(passes))
    # Checked before any column is computed, because the hash of such a key needs a statement.
    if any(map(has_high_cardinality, _string_key_columns(segment, rows))):
        return None
    columns = {n.name: _evaluate_column(segment, n, rows) for n in segment.exprs}
    if any(column is None for column in columns.values()):
        return None
    delta = pa.table({**columns, WEIGHT: rows.column(WEIGHT)})
    if segment.key is None:
        return delta
    hashes = hash_keys_vectorised(delta, segment.key, statements)
    if hashes is None:
        return None
    return delta.append_column(HASH, pa.array(hashes >> _GATHER_SHIFT if segment.gather else hashes))


def _string_key_columns(segment: Segment, rows: pa.Table) -> Iterator[pa.Array]:
    """Yield the key's columns that are plain string columns."""
    for named in segment.exprs:
        if named.expr.type == types.STRING and named.expr.op == "column" and named.name in (segment.key or ()):
            yield one_chunk(rows.column(str(named.expr.value)))


def _evaluate_column(segment: Segment, named: Named, rows: pa.Table) -> Any:
    return (
        evaluate_word_product(named.expr, rows)
        if named.name in segment.product_columns
        else evaluate_vectorised(named.expr, rows)
    )
