"""Rows of whose group there is another value, or none, without a statement:

    SELECT g, v FROM left WHERE [NOT] EXISTS (SELECT 1 FROM right WHERE right.g = left.g AND NOT (right.v = left.v))

Let R(g, v) be how many rows the right side has of a group with a value, and R(g) of the group with any. Then

    another value exists  ⇔  R(g) > R(g, v)

so three sums by (g, v) tell all: of the left rows, of the right ones, and of what was emitted before. One sort gives
them, of rows as they come: that those of a change cancel others needs no work of its own. Integers without NULLs go
this way, if a group and a value fit into one word; of others a statement tells.
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
    """The names of group and value on both sides and in the output; `wanted`: whether another value must be there."""

    left: ColumnPair
    right: ColumnPair
    output: ColumnPair
    must_exist: bool


class WeightedPairs(NamedTuple):
    """Rows, with the weights that they have as left rows, right rows and emitted ones; None: they are no such."""

    group: Ints
    value: Ints
    left: Ints | None = None
    right: Ints | None = None
    emitted: Ints | None = None


NO_PAIRS = WeightedPairs(np.zeros(0, np.int64), np.zeros(0, np.int64))


@lru_cache(maxsize=1024)
def match_other_value_query(sql: str, left: frozenset[str], right: frozenset[str]) -> OtherValueQuery | None:
    """What a statement over two inputs of these columns says, if it has this form."""
    found = _QUERY_PATTERN.fullmatch(sql)
    if found is None or left & right:  # a name that both have would be the inner one's
        return None
    first, first_shown, second, second_shown, no, *compared = found.groups()
    shown = {first: first_shown, second: second_shown}
    pairs = [
        (one, other) if one in left else (other, one) for one, other in zip(compared[::2], compared[1::2], strict=True)
    ]
    if any(one not in shown or one not in left or other not in right for one, other in pairs):
        return None
    (group, other_group), (value, other_value) = pairs
    if group == value or other_group == other_value:
        return None
    return OtherValueQuery((group, value), (other_group, other_value), (shown[group], shown[value]), no is None)


def build_weighted_pairs(columns: Sequence[Any], weights: Mapping[str, Ints]) -> WeightedPairs | None:
    """Rows of two columns, by what they are; None if they are not integers, or NULLs."""
    group, value = map(one_chunk, columns)
    for array in (group, value):
        if array.null_count or not pa.types.is_signed_integer(array.type):
            return None
    found = [array.to_numpy().astype(np.int64, copy=False) for array in (group, value)]
    if len(weights) == 1:
        ((role, given),) = weights.items()
        some = np.flatnonzero(given)
        if len(some) < len(given):
            found, weights = [column[some] for column in found], {role: given[some]}
    return WeightedPairs(*found, **weights)


def compute_output_delta(parts: Sequence[WeightedPairs], must_exist: bool) -> tuple[Ints, Ints, Ints] | None:
    """Groups, values and weights: what is to be shown minus what was emitted. None if it takes a statement."""
    group, value = (np.concatenate([part[i] for part in parts]) for i in range(2))
    if not len(group):
        return group, value, group
    least, low = int(group.min()), int(value.min())
    span = int(value.max()) - low + 1
    most = (int(group.max()) - least + 1) * span
    if most > _MAX_CODE:
        return None
    code = (group - least) * span + (value - low)
    order = radix_argsort(code.view(np.uint64) << np.uint64(64 - most.bit_length()))
    code = code[order]
    start = _start_rows(code)
    left, right, emitted = (_sum_weights([part[i] for part in parts], parts, order, start) for i in range(2, 5))
    if left.min() < 0 or right.min() < 0:
        raise Contradiction("A slice holds fewer than no copies of a row.")
    code = code[start]
    begin = _start_rows(code // span)
    of_group = np.repeat(np.add.reduceat(right, begin), np.diff(begin, append=len(code)))
    weight = np.where((of_group > right) == must_exist, left, 0) - emitted
    some = np.flatnonzero(weight)
    group, value = np.divmod(code[some], span)
    return group + least, value + low, weight[some]


def _start_rows(ordered: Ints) -> Ints:
    return np.flatnonzero(mark_first(ordered))


def _sum_weights(weights: Sequence[Ints | None], parts: Sequence[WeightedPairs], order: Ints, start_rows: Ints) -> Ints:
    if all(w is None for w in weights):
        return np.zeros(len(start_rows), np.int64)
    spelt = [np.zeros(len(p.group), np.int64) if w is None else w for w, p in zip(weights, parts, strict=True)]
    whole = np.concatenate(spelt)
    return np.add.reduceat(whole[order], start_rows)
