"""A recompute's step by the sums of `others`, where its statement asks whether a group has another value.

    left, right    of tables' arrangements as they come, or of the operator's own state and the delta
    emitted        of the operator's last state
    Δoutput        what is to be shown minus what was emitted, by group and value

What it gives is what the statement over the consolidated rows gives, so either may do any step.
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
    """What the statement says of groups' other values, if it can be told of rows as they come: their segments must do
    without a statement, which also means that none of them can fail."""
    if len(operator.inputs) != 2 or operator.max_copies is not None or operator.frame_sums:
        return None
    types_of = [{c.name: c.type for c in port[0].columns} for port in operator.inputs]
    form = match_other_value_query(operator.sql, *map(frozenset, types_of))
    if form is None:
        return None
    shown = {c.name: c.type for c in operator.output_columns}
    for left, right, output in zip(form.left, form.right, form.output, strict=True):
        if not types_of[0][left] == types_of[1][right] == shown[output] or not types.is_integer(shown[output]):
            return None
    kept = [port[0] for port, table in zip(operator.inputs, operator.shared_images, strict=True) if table is not None]
    given = [{n.name: n.expr for n in segment.exprs} for segment in operator.inputs[0]]
    is_by_group = all(named[k] == named[form.left[0]] for named in given for k in operator.key)
    is_hashed = not any(s.gather or s.ordered for port in operator.inputs for s in port)
    is_safe = all(s.is_vectorised and not s.product_columns for s in kept)
    return form if operator.key and is_by_group and is_hashed and is_safe else None


def run_other_value_step(
    statements: PreparedStatements,
    operator: Recompute,
    query: OtherValueQuery,
    states: Sequence[Arrangement],
    deltas: Sequence[pa.Table | None],
    tables: TableSlices,
    covering_hashes: Hashes | None = None,
) -> tuple[pa.Table, list[pa.Table]] | None:
    """What `step` gives, without its statement; None if that takes one. `covered`: more hashes than those that arrived,
    whose rows are at hand; where nothing arrived, nothing changes."""
    affected = (
        distinct_hashes(*(delta for delta in deltas if delta is not None))
        if covering_hashes is None
        else covering_hashes
    )
    *inputs, emitted = states
    own, kept = iter(inputs), []
    parts = _read_table_pairs(operator, query, affected, tables)
    sides = zip(
        ("left", "right"), (query.left, query.right), operator.inputs, operator.shared_images, deltas, strict=True
    )
    for role, names, port, table, delta in sides:
        if table is None:
            kept.append(empty_delta(port[0].columns) if delta is None else consolidate(statements, delta))
            parts += [_build_pairs(rows, names, role) for rows in (kept[-1], _read_slice(next(own), affected, names))]
    parts.append(_build_pairs(_read_slice(emitted, affected, query.output), query.output, "emitted"))
    told = [part for part in parts if part is not None]
    found = compute_output_delta(told, query.must_exist) if len(told) == len(parts) else None
    if found is None:
        return None
    group, value, weight = found
    named = dict(zip(query.output, (group, value), strict=True))
    columns = {c.name: pa.array(named[c.name], types.arrow(c.type)) for c in operator.output_columns}
    hashed = hash_keys(statements, pa.table(dict.fromkeys(operator.key, columns[query.output[0]])), operator.key)
    difference = pa.table({**columns, HASH: hashed, WEIGHT: weight})
    return difference.drop_columns([HASH]), [*kept, difference]


def _read_table_pairs(
    operator: Recompute, query: OtherValueQuery, affected: Hashes, tables: TableSlices
) -> list[WeightedPairs | None]:
    """The rows of shared arrangements; where both ports see the same columns of one, its rows are both sides'."""
    found: dict[tuple[str, Expr, Expr], dict[str, Ints]] = {}
    taken: dict[str, pa.Table | None] = {}
    sides = zip(("left", "right"), (query.left, query.right), operator.inputs, operator.shared_images, strict=True)
    for role, names, port, table in sides:
        if table is None:
            continue
        if table not in taken:
            taken[table] = tables.read_cached_slice(table, affected)
        rows = taken[table]
        if rows is not None:
            exprs = {n.name: n.expr for n in port[0].exprs}
            met = evaluate_all(port[0].vector_conditions or (), rows)
            weights = weights_of(rows) if met.all() else np.where(met, weights_of(rows), 0)
            found.setdefault((table, exprs[names[0]], exprs[names[1]]), {})[role] = weights
    return [
        build_weighted_pairs([evaluate_vectorised(e, taken[table]) for e in exprs], roles)
        for (table, *exprs), roles in found.items()
    ]


def _read_slice(state: Arrangement, affected: Hashes, names: Sequence[str]) -> pa.Table | None:
    return state.slice(affected, names) if state.runs else None


def _build_pairs(rows: pa.Table | None, names: Sequence[str], role: str) -> WeightedPairs | None:
    if rows is None or not rows.num_rows:
        return NO_PAIRS
    return build_weighted_pairs([rows.column(name) for name in names], {role: weights_of(rows)})
