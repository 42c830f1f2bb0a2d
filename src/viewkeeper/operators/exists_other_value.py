"""EXISTS or NOT EXISTS of another value in the row's group, vectorised without a DuckDB statement:

    SELECT g, v FROM left WHERE [NOT] EXISTS (SELECT 1 FROM right WHERE right.g = left.g AND NOT (right.v = left.v))

Let R(g, v) be the number of right rows with group g and value v, and R(g) the number of right rows of the group. Then

    another value exists  ⇔  R(g) > R(g, v)

So three sums by (g, v) are enough: the weights of the left rows, of the right rows, and of the rows emitted before. One
sort computes all three, and the rows need no consolidation first, because opposite weights cancel in the sums. The
columns must be integers without NULLs, and a (group, value) pair must fit 63 bits; otherwise the caller runs the
statement.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from viewkeeper.errors import Contradiction
from viewkeeper.model.arrow_buffers import one_chunk
from viewkeeper.model.int128 import Ints
from viewkeeper.operators.aggregation.groups import mark_first
from viewkeeper.state.hash_index import radix_argsort

_NAME = r'"(\w+)"'
_QUERY_PATTERN = re.compile(
    rf"SELECT {_NAME} AS {_NAME}, {_NAME} AS {_NAME}, input0\.¤h FROM input0 WHERE (NOT )?EXISTS "
    rf"\(SELECT 1 FROM input1 WHERE \(\({_NAME} = {_NAME}\) AND \(NOT \({_NAME} = {_NAME}\)\)\)\)"
)
_MAX_CODE = (1 << 63) - 1

ColumnPair = tuple[str, str]


class OtherValueQuery(NamedTuple):
    """Group and value columns of the left side, the right side and the output. `must_exist`: the query is EXISTS, not
    NOT EXISTS."""

    left: ColumnPair
    right: ColumnPair
    output: ColumnPair
    must_exist: bool


class WeightedPairs(NamedTuple):
    """(group, value) rows with their weights as left rows, right rows and emitted rows; None: the rows do not have that
    role."""

    group: Ints
    value: Ints
    left: Ints | None = None
    right: Ints | None = None
    emitted: Ints | None = None


NO_PAIRS = WeightedPairs(np.zeros(0, np.int64), np.zeros(0, np.int64))


@lru_cache(maxsize=1024)
def match_other_value_query(sql: str, left: frozenset[str], right: frozenset[str]) -> OtherValueQuery | None:
    """Parse a statement over two inputs with these columns; None if it does not have the form above."""
    match = _QUERY_PATTERN.fullmatch(sql)
    if match is None or left & right:  # in the subquery, a name of both sides refers to the right side
        return None
    first, first_output, second, second_output, negation, *compared = match.groups()
    outputs = {first: first_output, second: second_output}
    pairs = [
        (left_name, right_name) if left_name in left else (right_name, left_name)
        for left_name, right_name in zip(compared[::2], compared[1::2], strict=True)
    ]
    if any(
        left_name not in outputs or left_name not in left or right_name not in right for left_name, right_name in pairs
    ):
        return None
    (group, other_group), (value, other_value) = pairs
    if group == value or other_group == other_value:
        return None
    return OtherValueQuery(
        (group, value), (other_group, other_value), (outputs[group], outputs[value]), negation is None
    )


def build_weighted_pairs(columns: Sequence[Any], weights: Mapping[str, Ints]) -> WeightedPairs | None:
    """Build the pairs of two columns with a weight for each role; None if a column is not of integers or has NULLs."""
    group, value = map(one_chunk, columns)
    for array in (group, value):
        if array.null_count or not pa.types.is_signed_integer(array.type):
            return None
    arrays = [array.to_numpy().astype(np.int64, copy=False) for array in (group, value)]
    if len(weights) == 1:
        ((role, role_weights),) = weights.items()
        nonzero = np.flatnonzero(role_weights)
        if len(nonzero) < len(role_weights):
            arrays, weights = [column[nonzero] for column in arrays], {role: role_weights[nonzero]}
    return WeightedPairs(*arrays, **weights)


def compute_output_delta(parts: Sequence[WeightedPairs], must_exist: bool) -> tuple[Ints, Ints, Ints] | None:
    """Return groups, values and weights of the query's result minus the emitted rows; None if a pair does not fit 63
    bits."""
    group, value = (np.concatenate([part[i] for part in parts]) for i in range(2))
    if not len(group):
        return group, value, group
    min_group, min_value = int(group.min()), int(value.min())
    span = int(value.max()) - min_value + 1
    code_count = (int(group.max()) - min_group + 1) * span
    if code_count > _MAX_CODE:
        return None
    code = (group - min_group) * span + (value - min_value)
    order = radix_argsort(code.view(np.uint64) << np.uint64(64 - code_count.bit_length()))
    code = code[order]
    start = _start_rows(code)
    left, right, emitted = (_sum_weights([part[i] for part in parts], parts, order, start) for i in range(2, 5))
    if left.min() < 0 or right.min() < 0:
        raise Contradiction("A slice holds fewer than no copies of a row.")
    code = code[start]
    group_start = _start_rows(code // span)
    group_right = np.repeat(np.add.reduceat(right, group_start), np.diff(group_start, append=len(code)))
    weight = np.where((group_right > right) == must_exist, left, 0) - emitted
    nonzero = np.flatnonzero(weight)
    group, value = np.divmod(code[nonzero], span)
    return group + min_group, value + min_value, weight[nonzero]


def _start_rows(ordered: Ints) -> Ints:
    return np.flatnonzero(mark_first(ordered))


def _sum_weights(weights: Sequence[Ints | None], parts: Sequence[WeightedPairs], order: Ints, start_rows: Ints) -> Ints:
    if all(w is None for w in weights):
        return np.zeros(len(start_rows), np.int64)
    role_weights = [np.zeros(len(p.group), np.int64) if w is None else w for w, p in zip(weights, parts, strict=True)]
    all_weights = np.concatenate(role_weights)
    return np.add.reduceat(all_weights[order], start_rows)
