"""Minimum and maximum of groups, old and new, from the counts of their values.

A run of values is sorted by (`¤h`, value), so the extremes of a group are at the ends of its range in each run, behind
values that later runs delete. So read a window at the ends only, add the delta, and check how far the result holds:

    run 1   │3 4 7 9│ … 200,000 more           bound = 9: every row below 9 has been read
    run 2   │3⁻ 4⁻│                            3 and 4 are deleted, 7 remains and is below the bound: min = 7

A group whose extreme is not strictly inside the bound is read again with a wider window. So the cost follows the delta
and the deletions that are not compacted yet, not the group's size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model.int128 import Flags, Int128Array, Ints
from viewkeeper.model.names import HASH, quoted
from viewkeeper.model.schema import WEIGHT
from viewkeeper.operators.aggregation.groups import align_to_groups, group_ranges
from viewkeeper.operators.aggregation.spec import AggregateSpec
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.hash_index import Hashes
from viewkeeper.state.row_ranges import expand_ranges
from viewkeeper.state.run import Arrangement, distinct_hashes, hashes_of, weights_of

_FIRST_WINDOW = 64
_GROWTH = 16
_MIN_DUCKDB_SORT_ROWS = 1 << 16
_INT64 = np.iinfo(np.int64)
_NO_ROW_IDS = np.zeros(0, np.int64)

Extremes = dict[tuple[str, str], Any]
"""A column for each of ("Min" or "Max", "old" or "new"), with one value for each group."""


def sort_by_value(statements: PreparedStatements, values: pa.Table, argument: str) -> pa.Table:
    """Return values in the order of their runs. DuckDB and Arrow agree on it; NaN is last."""
    if values.num_rows >= _MIN_DUCKDB_SORT_ROWS:
        return statements.run(f"FROM delta ORDER BY {HASH}, {quoted(argument)}", delta=values)
    return values.take(pc.sort_indices(values, sort_keys=[(HASH, "ascending"), (argument, "ascending")]))


def find_extremes(
    statements: PreparedStatements,
    spec: AggregateSpec,
    argument: str,
    state: Arrangement,
    delta: pa.Table,
    groups: pa.Table,
) -> Extremes:
    """Return the extremes of each of `groups` (keys and `¤h`), for the state and for the state plus the delta.

    The delta is sorted by `sort_by_value`.
    """
    columns = [*(k.name for k in spec.keys), argument, WEIGHT, HASH]
    functions = [f for f in ("Min", "Max") if any((m.function, m.argument) == (f, argument) for m in spec.measures)]
    delta = delta.select(columns)
    found = {(f, side): _ExtremeValues([], []) for f in functions for side in ("old", "new")}
    pending = np.arange(groups.num_rows)
    size = _FIRST_WINDOW
    while len(pending):
        pending_groups = groups.take(pa.array(pending)) if len(pending) < groups.num_rows else groups
        window = _read_window(state, delta, argument, distinct_hashes(pending_groups), size, functions)
        group_of_row = align_to_groups(statements, spec, pending_groups, window.rows)
        pending = pending[_evaluate_window(found, pending, window, argument, group_of_row, hashes_of(pending_groups))]
        size *= _GROWTH
    none = delta.column(argument).combine_chunks().slice(0, 0)
    return {key: f.to_column(groups.num_rows, none) for key, f in found.items()}


@dataclass(frozen=True)
class _ExtremeValues:
    """Extremes of the groups for which they are known so far."""

    groups: list[Ints]
    values: list[Any]

    def to_column(self, group_count: int, no_values: Any) -> Any:
        values = pa.concat_arrays([no_values, *self.values])
        row = np.full(group_count, -1, np.int64)
        if self.groups:
            row[np.concatenate(self.groups)] = np.arange(len(values))
        return values.take(pa.array(row, mask=row < 0))


@dataclass(frozen=True)
class _Window:
    """Rows at the ends of the ranges of `hashes`: the first `old_row_count` from the state, then the delta's.

    `bounds` has, by function and for each range that was not read completely, the innermost value that was read, with
    its hash.
    """

    hashes: Hashes
    rows: pa.Table
    old_row_count: int
    bounds: dict[str, pa.Table]


def _read_window(
    state: Arrangement, delta: pa.Table, argument: str, hashes: Hashes, size: int, functions: list[str]
) -> _Window:
    rows: list[pa.Table] = []
    bounds = {f: [delta.select([argument, HASH]).slice(0, 0)] for f in functions}
    for run in state.runs_overlapping(hashes).runs:
        start, stop = run.ranges(hashes)
        length = stop - start
        head = np.minimum(length, size if "Min" in functions else 0)
        tail = np.minimum(length - head, size if "Max" in functions else 0)
        is_partial = head + tail < length
        row_ids = (
            np.concatenate([expand_ranges(start, head), expand_ranges(stop - tail, tail)])
            if "Max" in functions
            else expand_ranges(start, head)
        )
        rows.append(run.take(row_ids).select(delta.column_names))
        for function, inner in (("Min", start + head - 1), ("Max", stop - tail)):
            if function in functions and is_partial.any():
                bounds[function].append(run.rows.select([argument, HASH]).take(pa.array(inner[is_partial])))
    old_row_count = sum(int(t.num_rows) for t in rows)
    all_rows = pa.concat_tables([*rows, delta]).combine_chunks()
    return _Window(hashes, all_rows, old_row_count, {f: pa.concat_tables(tables) for f, tables in bounds.items()})


def _evaluate_window(
    extremes: dict[tuple[str, str], _ExtremeValues],
    pending: Ints,
    window: _Window,
    argument: str,
    group_of_row: Ints,
    hashes: Hashes,
) -> Flags:
    """Record the extremes that the window proves, and return which pending groups have one that it does not prove.

    `group_of_row` is the index of each row's group, or −1; `hashes` are the groups' hashes.
    """
    values = window.rows.column(argument).combine_chunks()
    inner_values = [bounds.column(argument).combine_chunks() for bounds in window.bounds.values()]
    codes, *inner_codes = (
        _encode_values(values, *inner_values)
        if window.old_row_count
        else [_number_ordered_values(values), *(_NO_ROW_IDS for _ in inner_values)]
    )
    order = _sort_order(group_of_row, codes)
    order = order[np.searchsorted(group_of_row[order], 0) :]
    group, code = group_of_row[order], codes[order]
    first = np.concatenate([[True], (group[1:] != group[:-1]) | (code[1:] != code[:-1])])[: len(group)]
    ranges = group_ranges(first, order < window.old_row_count)
    old, new = ranges.sums(weights_of(window.rows)[order])
    group, code, row = group[ranges.start], code[ranges.start], order[ranges.start]
    unproven = np.zeros(len(pending), np.bool_)
    results: list[tuple[tuple[str, str], Ints, Ints]] = []
    for (function, bounds), bound_codes in zip(window.bounds.items(), inner_codes, strict=True):
        bound, has_bound = _read_bounds(function, bounds, bound_codes, window.hashes, hashes)
        comes_before = np.less if function == "Min" else np.greater
        is_inside = comes_before(code, bound[group]) | ~has_bound[group]
        for side, weight in (("old", old), ("new", new)):
            candidates = np.flatnonzero(is_inside & (weight > 0))
            is_next_group = group[candidates][1:] != group[candidates][:-1]
            candidates = candidates[
                np.concatenate([[True], is_next_group] if function == "Min" else [is_next_group, [True]])[
                    : len(candidates)
                ]
            ]
            results.append(((function, side), group[candidates], row[candidates]))
            is_missing = has_bound.copy()
            is_missing[group[candidates]] = False
            unproven |= is_missing
    for key, group_indexes, value_rows in results:
        is_proven = ~unproven[group_indexes]
        extremes[key].groups.append(pending[group_indexes[is_proven]])
        extremes[key].values.append(values.take(pa.array(value_rows[is_proven])))
    return unproven


def _read_bounds(
    function: str, bounds: pa.Table, bound_codes: Ints, range_hashes: Hashes, hashes: Hashes
) -> tuple[Ints, Flags]:
    """Return for each group the value up to which all its rows were read, and whether there is such a bound."""
    limit, has_limit = np.zeros(len(range_hashes), np.int64), np.zeros(len(range_hashes), np.bool_)
    if bounds.num_rows:
        range_indexes = np.searchsorted(range_hashes, hashes_of(bounds))
        has_limit[range_indexes] = True
        tighten, neutral = (np.minimum, _INT64.max) if function == "Min" else (np.maximum, _INT64.min)
        limit[range_indexes] = neutral
        tighten.at(limit, range_indexes, bound_codes)
    range_of_group = np.searchsorted(range_hashes, hashes)
    return limit[range_of_group], has_limit[range_of_group]


def _sort_order(group_of_row: Ints, code: Ints) -> Ints:
    """Return the order by group, value and age. A delta alone is already in this order."""
    is_same_group = group_of_row[1:] == group_of_row[:-1]
    if bool(((group_of_row[1:] > group_of_row[:-1]) | (is_same_group & (code[1:] >= code[:-1]))).all()):
        return np.arange(len(group_of_row))
    return np.lexsort((code, group_of_row))  # stable: old rows stay before the delta's


def _number_ordered_values(values: Any) -> Ints:
    """Return codes of values that are ordered within each group: the code grows wherever the value differs from the one
    before."""
    previous, current = values.slice(0, max(len(values) - 1, 0)), values.slice(1)
    steps = pc.not_equal(previous, current)
    if pa.types.is_floating(values.type):
        steps = pc.and_not(steps, pc.and_(pc.is_nan(previous), pc.is_nan(current)))
    return np.concatenate([_NO_ROW_IDS, [0], np.cumsum(steps.to_numpy(zero_copy_only=False))])[: len(values)]


def _encode_values(*columns: Any) -> list[Ints]:
    """Return integers in the order of the values, for all columns together."""
    values = pa.concat_arrays(columns)
    kind = values.type
    codes: Ints
    if pa.types.is_floating(kind):
        bits = values.cast(pa.float64()).view(pa.int64()).to_numpy()
        codes = np.where(np.isnan(values.to_numpy()), _INT64.max, bits ^ ((bits >> 63) & _INT64.max))
    elif pa.types.is_decimal(kind) and kind.precision <= 18:
        codes = Int128Array.from_decimals(values).low.view(np.int64)
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        codes = values.cast(pa.int64()).to_numpy()
    elif pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        codes = values.view(pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(pa.int64()).to_numpy()
    else:
        codes = pc.rank(values, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    return np.split(codes, np.cumsum([len(c) for c in columns])[:-1])
