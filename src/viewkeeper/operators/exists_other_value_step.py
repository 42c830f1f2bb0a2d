"""The step of a per-key recomputation whose statement checks if a group has another value (`exists_other_value`).

    left, right    rows of table images, or of the operator's own state and its delta, not consolidated
    emitted        rows of the operator's emitted state
    Δoutput        the query's result minus the emitted rows, by group and value

The result equals that of the statement over consolidated rows, so each step may use either.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from viewkeeper.expressions.backends.vector_case import evaluate_vectorised
from viewkeeper.expressions.backends.vector_predicates import evaluate_all
from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.delta import empty_delta
from viewkeeper.model.int128 import Ints
from viewkeeper.model.names import HASH, WEIGHT
from viewkeeper.operators.exists_other_value import (
    NO_PAIRS,
    OtherValueQuery,
    WeightedPairs,
    build_weighted_pairs,
    compute_output_delta,
    match_other_value_query,
)
from viewkeeper.operators.table_slices import TableSlices
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.consolidate import consolidate
from viewkeeper.state.hash_index import Hashes
from viewkeeper.state.key_hash import hash_keys
from viewkeeper.state.run import Arrangement, distinct_hashes, weights_of

if TYPE_CHECKING:
    from viewkeeper.operators.kinds.recompute import Recompute


@lru_cache(maxsize=1024)
def find_other_value_query(operator: Recompute) -> OtherValueQuery | None:
    """Return the query of an operator if this step can run it; else None.

    The segments over shared images must be vectorised, which also means that none of them can fail: the step evaluates
    them on rows that a consolidation would cancel.
    """
    if len(operator.inputs) != 2 or operator.max_copies is not None or operator.frame_sums:
        return None
    types_of = [{c.name: c.type for c in port[0].columns} for port in operator.inputs]
    query = match_other_value_query(operator.sql, *map(frozenset, types_of))
    if query is None:
        return None
    output_types = {c.name: c.type for c in operator.output_columns}
    for left, right, output in zip(query.left, query.right, query.output, strict=True):
        if not types_of[0][left] == types_of[1][right] == output_types[output] or not types.is_integer(
            output_types[output]
        ):
            return None
    image_segments = [
        port[0] for port, table in zip(operator.inputs, operator.shared_images, strict=True) if table is not None
    ]
    left_exprs = [{n.name: n.expr for n in segment.exprs} for segment in operator.inputs[0]]
    is_by_group = all(named[k] == named[query.left[0]] for named in left_exprs for k in operator.key)
    is_hashed = not any(s.gather or s.ordered for port in operator.inputs for s in port)
    is_safe = all(s.is_vectorised and not s.product_columns for s in image_segments)
    return query if operator.key and is_by_group and is_hashed and is_safe else None


def run_other_value_step(
    statements: PreparedStatements,
    operator: Recompute,
    query: OtherValueQuery,
    states: Sequence[Arrangement],
    deltas: Sequence[pa.Table | None],
    tables: TableSlices,
    covering_hashes: Hashes | None = None,
) -> tuple[pa.Table, list[pa.Table]] | None:
    """Return the same as `run_recompute_step`, without its statement; None if the statement is needed.

    `covering_hashes`: more hashes than those of the deltas, whose rows are cached. A key without changes has no output.
    """
    affected = (
        distinct_hashes(*(delta for delta in deltas if delta is not None))
        if covering_hashes is None
        else covering_hashes
    )
    *inputs, emitted = states
    own_states, added = iter(inputs), []
    parts = _read_table_pairs(operator, query, affected, tables)
    sides = zip(
        ("left", "right"), (query.left, query.right), operator.inputs, operator.shared_images, deltas, strict=True
    )
    for role, names, port, table, delta in sides:
        if table is None:
            added.append(empty_delta(port[0].columns) if delta is None else consolidate(statements, delta))
            parts += [
                _build_pairs(rows, names, role) for rows in (added[-1], _read_slice(next(own_states), affected, names))
            ]
    parts.append(_build_pairs(_read_slice(emitted, affected, query.output), query.output, "emitted"))
    known_parts = [part for part in parts if part is not None]
    output = compute_output_delta(known_parts, query.must_exist) if len(known_parts) == len(parts) else None
    if output is None:
        return None
    group, value, weight = output
    output_values = dict(zip(query.output, (group, value), strict=True))
    columns = {c.name: pa.array(output_values[c.name], types.arrow(c.type)) for c in operator.output_columns}
    hashed = hash_keys(statements, pa.table(dict.fromkeys(operator.key, columns[query.output[0]])), operator.key)
    difference = pa.table({**columns, HASH: hashed, WEIGHT: weight})
    return difference.drop_columns([HASH]), [*added, difference]


def _read_table_pairs(
    operator: Recompute, query: OtherValueQuery, affected: Hashes, tables: TableSlices
) -> list[WeightedPairs | None]:
    """Read the pairs of shared images. Where both ports read the same columns of one image, its rows are read once and
    have weights for both sides."""
    weights_by_columns: dict[tuple[str, Expr, Expr], dict[str, Ints]] = {}
    slices: dict[str, pa.Table | None] = {}
    sides = zip(("left", "right"), (query.left, query.right), operator.inputs, operator.shared_images, strict=True)
    for role, names, port, table in sides:
        if table is None:
            continue
        if table not in slices:
            slices[table] = tables.read_cached_slice(table, affected)
        rows = slices[table]
        if rows is not None:
            exprs = {n.name: n.expr for n in port[0].exprs}
            passes = evaluate_all(port[0].vector_conditions or (), rows)
            weights = weights_of(rows) if passes.all() else np.where(passes, weights_of(rows), 0)
            weights_by_columns.setdefault((table, exprs[names[0]], exprs[names[1]]), {})[role] = weights
    return [
        build_weighted_pairs([evaluate_vectorised(e, slices[table]) for e in exprs], roles)
        for (table, *exprs), roles in weights_by_columns.items()
    ]


def _read_slice(state: Arrangement, affected: Hashes, names: Sequence[str]) -> pa.Table | None:
    return state.slice(affected, names) if state.runs else None


def _build_pairs(rows: pa.Table | None, names: Sequence[str], role: str) -> WeightedPairs | None:
    if rows is None or not rows.num_rows:
        return NO_PAIRS
    return build_weighted_pairs([rows.column(name) for name in names], {role: weights_of(rows)})
