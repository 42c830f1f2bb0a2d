"""Touched groups, old and new: the sums of their vectors, computed by numpy.

Every vector of a touched group, from the state's runs and from the delta, gets its group's number; the numbers of the
delta's vectors are offset by the number of groups. One pass adds up each column by number. So the old and the new side
are in one array, and so is every measure that is read from it:

    number   0 2 │ 1 2 │ 3+0 3+1 3+2     two runs' rows and the delta's, of 3 groups
    sums     o o o │ d d d   ─▶   old old old │ new new new

Groups are numbered by hash, which is correct if equal hashes mean equal keys. This is checked; if it does not hold,
DuckDB finds the rows with equal keys, and the sums are computed the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model.arrow_buffers import buffer_view, one_chunk, take_array
from viewkeeper.model.int128 import Flags, Int128Array, Ints
from viewkeeper.model.names import HASH, quoted
from viewkeeper.operators.aggregation import exact_float_sum
from viewkeeper.operators.aggregation.spec import Accumulator, AccumulatorLayout, AggregateSpec
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.hash_index import Hashes, radix_argsort
from viewkeeper.state.key_hash import NULL_HASH, is_bijective
from viewkeeper.state.run import Arrangement, Run, hashes_of


@dataclass(frozen=True)
class GroupTotals:
    """The accumulators' totals by name: the old side of all groups, then the new side. The count `¤n` counts rows."""

    counts: dict[str, Ints]
    sums: dict[str, Int128Array]
    buckets: dict[Accumulator, exact_float_sum.BucketTotals]

    @property
    def row_counts(self) -> Ints:
        return self.counts["¤n"]


@dataclass(frozen=True)
class TouchedGroups:
    """`keys` has the key columns and `¤h`, one row for each group; `in_old_state`: the old state has a vector of the
    group."""

    keys: pa.Table
    in_old_state: Flags
    totals: GroupTotals

    @property
    def count(self) -> int:
        return int(self.keys.num_rows)


def sum_touched_groups(
    statements: PreparedStatements, spec: AggregateSpec, layout: AccumulatorLayout, old: Arrangement, delta: pa.Table
) -> TouchedGroups:
    """Return the groups of the vectors in `delta`: their sums over `old`, and over both."""
    names = [*(k.name for k in spec.keys), HASH]
    hashes, first, number = number_distinct(hashes_of(delta))
    slices = list(old.slice_row_ids(hashes))
    selections = [*(_RunSelection(run, row_ids) for run, row_ids, _ in slices), _RunSelection(Run(delta), None)]
    numbers = np.concatenate([*(run_numbers for *_, run_numbers in slices), number])
    if has_unique_hashes(spec, delta, hashes) or _has_one_key_per_number(spec, delta, first, selections, numbers):
        keys = delta.select(names)
        if first is not number:
            keys = keys.take(pa.array(first))
    else:
        rows = pa.concat_tables([part.table(names) for part in selections]).combine_chunks()
        _, first, numbers = number_distinct(_first_rows_by_key(statements, spec, rows))
        keys = rows.take(pa.array(first))
    old_row_count, count = len(numbers) - delta.num_rows, keys.num_rows
    in_old_state = np.zeros(count, np.bool_)
    in_old_state[numbers[:old_row_count]] = True
    side_numbers = numbers.copy()
    side_numbers[old_row_count:] += count
    totals = _sum_columns(layout, selections, _GroupSummation(side_numbers, count))
    if layout.bucketed_accumulators:
        bucket = _concat_values(selections, "¤b")
        rows = np.flatnonzero(bucket >= 0)
        terms = Int128Array.from_bytes(_concat_values(selections, "¤x")[rows])
        _add_buckets(layout, totals, count, numbers[rows], bucket[rows], rows >= old_row_count, terms)
    return TouchedGroups(keys, in_old_state, totals)


class _RunSelection:
    """Rows of a run, at ascending row ids (None: all rows)."""

    def __init__(self, run: Run, row_ids: Ints | None) -> None:
        self.run = run
        self.row_ids = None if row_ids is None or len(row_ids) == run.num_rows else row_ids

    def values(self, name: str) -> npt.NDArray[Any]:
        column = self.run.numpy_column(name)
        return column if self.row_ids is None else column[self.row_ids]

    def column(self, name: str) -> pa.Array:
        array = one_chunk(self.run.rows.column(name))
        return array if self.row_ids is None else take_array(array, pa.array(self.row_ids))

    def table(self, names: Sequence[str]) -> pa.Table:
        return pa.table([self.column(name) for name in names], names=names)


def _concat_values(selections: Sequence[_RunSelection], name: str) -> npt.NDArray[Any]:
    return np.concatenate([part.values(name) for part in selections])


@dataclass(frozen=True)
class _GroupSummation:
    """`group_numbers` of the rows; those of the delta's rows are offset by `group_count`."""

    group_numbers: Ints
    group_count: int

    def sum_int64(self, values: Ints) -> Ints:
        """Return old totals, then new ones. Intermediate sums may wrap around; only the results have to fit."""
        total = np.zeros(2 * self.group_count, np.int64)
        np.add.at(total, self.group_numbers, values)
        total[self.group_count :] += total[: self.group_count]
        return total

    def sum_int128(self, values: Int128Array) -> Int128Array:
        if values.sums_fit_int64:
            return Int128Array.from_int64(self.sum_int64(values.low.view(np.int64)))
        return Int128Array.sum(*(self.sum_int64(digits) for digits in values.addends))


def _sum_columns(
    layout: AccumulatorLayout, selections: Sequence[_RunSelection], summation: _GroupSummation
) -> GroupTotals:
    """Return the totals of the vectors' own columns; bucket rows have zeros in them."""
    totals = GroupTotals({}, {}, {})
    for name in layout.count_columns:
        totals.counts[name] = summation.sum_int64(_concat_values(selections, name))
    for name in layout.sum_columns:
        totals.sums[name] = summation.sum_int128(Int128Array.from_bytes(_concat_values(selections, name)))
    return totals


def number_distinct(hashes: Hashes) -> tuple[Hashes, Ints, Ints]:
    """Return the distinct hashes, ascending; the first row of each; and for each row the number of its hash (the same
    array if the hashes ascend strictly)."""
    if bool((hashes[1:] > hashes[:-1]).all()):
        rows = np.arange(len(hashes))
        return hashes, rows, rows
    order = radix_argsort(hashes)
    ordered = hashes[order]
    is_first = mark_first(ordered)
    number = np.empty(len(hashes), np.int64)
    number[order] = np.cumsum(is_first) - 1
    return ordered[is_first], order[is_first], number


def _has_one_key_per_number(
    spec: AggregateSpec, delta: pa.Table, first_rows: Ints, selections: Sequence[_RunSelection], numbers: Ints
) -> bool:
    """Return whether all rows of one number have the key of the delta's first row with it.

    Doubles with different bits count as different, although there are two zeros and many NaNs; the caller then compares
    the keys in DuckDB.
    """
    if len(first_rows) == delta.num_rows:
        selections, numbers = selections[:-1], numbers[: len(numbers) - delta.num_rows]
    if not selections:
        return True
    expected_rows = pa.array(first_rows[numbers])
    for key in spec.keys:
        keys = pa.concat_arrays([part.column(key.name) for part in selections])
        if not _doubles_as_bits(keys).equals(
            _doubles_as_bits(take_array(one_chunk(delta.column(key.name)), expected_rows))
        ):
            return False
    return True


@dataclass(frozen=True)
class GroupRanges:
    """The rows of each group: old ones from `start`, the delta's from `delta_start`, up to `stop`."""

    start: Ints
    delta_start: Ints
    stop: Ints

    def sums(self, values: Ints) -> tuple[Ints, Ints]:
        """Return (old, new) sums. Intermediate sums may wrap around; only the results have to fit."""
        running = np.concatenate([_ZERO, np.cumsum(values)])
        before = running[self.start]
        return running[self.delta_start] - before, running[self.stop] - before


_ZERO = np.zeros(1, np.int64)


def group_ranges(is_first: Flags, is_old: Flags) -> GroupRanges:
    """Return the ranges of rows that are ordered by group, old rows first; `is_first` marks the first row of each
    group."""
    start = np.flatnonzero(is_first)
    stop = np.append(start[1:], len(is_first))[: len(start)]
    old_before = np.concatenate([_ZERO, np.cumsum(is_old)])
    return GroupRanges(start, start + old_before[stop] - old_before[start], stop)


def mark_first(values: npt.NDArray[Any]) -> Flags:
    return np.concatenate([[True], values[1:] != values[:-1]])[: len(values)]


def align_to_groups(statements: PreparedStatements, spec: AggregateSpec, keys: pa.Table, table: pa.Table) -> Ints:
    """Return for each row of `table` (with keys and `¤h`) the index of its group in `keys`, or −1 if it is in none."""
    row_hashes, hashes = hashes_of(table), hashes_of(keys)
    order = radix_argsort(hashes)
    ordered = hashes[order]
    if len(hashes) and not bool((ordered[1:] == ordered[:-1]).any()):
        position = np.minimum(np.searchsorted(ordered, row_hashes), len(ordered) - 1)
        group, is_found = order[position], ordered[position] == row_hashes
        if _has_equal_keys(spec, table, np.flatnonzero(is_found), keys, group[is_found]):
            return np.where(is_found, group, -1)
    names = [quoted(k.name) for k in spec.keys]
    condition = " AND ".join(["t.¤h = g.¤h", *(f"t.{k} IS NOT DISTINCT FROM g.{k}" for k in names)])
    numbered_groups = keys.append_column("¤i", pa.array(np.arange(keys.num_rows)))
    numbered_rows = table.select([k.name for k in spec.keys] + [HASH]).append_column(
        "¤j", pa.array(np.arange(table.num_rows))
    )
    sql = f"SELECT ¤j, coalesce(¤i, -1) AS ¤i FROM t LEFT JOIN g ON {condition} ORDER BY ¤j"
    indexes: Ints = statements.run(sql, t=numbered_rows, g=numbered_groups).column("¤i").to_numpy()
    return indexes


def _has_equal_keys(
    spec: AggregateSpec, left_table: pa.Table, left_rows: Ints, right_table: pa.Table, right_rows: Ints
) -> bool:
    """Return whether the rows of one table have the keys of the rows of the other.

    Doubles with different bits count as different, although there are two zeros and many NaNs; the caller then compares
    the keys in DuckDB.
    """
    if not len(left_rows):
        return True
    for key in spec.keys:
        left_column, right_column = one_chunk(left_table.column(key.name)), one_chunk(right_table.column(key.name))
        if (is_equal := _has_equal_words(left_column, left_rows, right_column, right_rows)) is not None:
            if not is_equal:
                return False
            continue
        left, right = (
            _doubles_as_bits(take_array(*selected))
            for selected in ((left_column, pa.array(left_rows)), (right_column, pa.array(right_rows)))
        )
        matches = pc.fill_null(pc.equal(left, right), False)
        if left.null_count:
            matches = pc.or_(matches, pc.and_(pc.is_null(left), pc.is_null(right)))
        if not pc.all(matches).as_py():
            return False
    return True


def _has_equal_words(left_column: pa.Array, left_rows: Ints, right_column: pa.Array, right_rows: Ints) -> bool | None:
    """Return the same for one column whose values are equal exactly if their bits are; None for other columns."""
    left_words, right_words = buffer_view(left_column), buffer_view(right_column)
    if left_words is None or right_words is None or left_column.type != right_column.type:
        return None
    left, right = left_words[left_rows], right_words[right_rows]
    return bool((left == right).all()) if left.dtype.itemsize <= 8 else left.tobytes() == right.tobytes()


def _doubles_as_bits(values: pa.Array) -> pa.Array:
    """Return floats as integers with the same bits; other columns unchanged."""
    if not pa.types.is_floating(values.type):
        return values
    return values.view(pa.int64() if values.type.bit_width == 64 else pa.int32())


def has_unique_hashes(spec: AggregateSpec, rows: pa.Table, hashes: Hashes) -> bool:
    """Return whether each of the rows' hashes belongs to one key. An integer's hash is unique, except that NULL's hash
    is also that of a number."""
    return is_bijective([rows.schema.field(k.name).type for k in spec.keys]) and not bool((hashes == NULL_HASH).any())


def has_equal_keys(spec: AggregateSpec, rows: pa.Table, other_rows: Ints) -> bool:
    """Return whether each row has the same key as the row at the same position of `other_rows`."""
    return _has_equal_keys(spec, rows, np.arange(rows.num_rows), rows, other_rows)


def _first_rows_by_key(statements: PreparedStatements, spec: AggregateSpec, rows: pa.Table) -> Hashes:
    """Return for each row the number of the first row with its key."""
    names = ", ".join(quoted(k.name) for k in spec.keys)
    numbered_rows = rows.select([k.name for k in spec.keys]).append_column("¤i", pa.array(np.arange(rows.num_rows)))
    sql = f"SELECT min(¤i) OVER (PARTITION BY {names}) AS ¤g FROM rows ORDER BY ¤i"
    first_rows: Hashes = statements.run(sql, rows=numbered_rows).column("¤g").to_numpy().astype(np.uint64)
    return first_rows


def _add_buckets(
    layout: AccumulatorLayout,
    totals: GroupTotals,
    group_count: int,
    group_numbers: Ints,
    bucket_codes: Ints,
    is_new: Flags,
    terms: Int128Array,
) -> None:
    """Add the totals of each (group, accumulator, bucket), from the bucket rows."""
    span = exact_float_sum.BUCKETS * len(layout.bucketed_accumulators)
    pairs, _, pair_of_row = number_distinct((group_numbers * span + bucket_codes).view(np.uint64))
    groups, bucket_codes = np.divmod(pairs.view(np.int64), span)
    sums = _GroupSummation(pair_of_row + len(pairs) * is_new, len(pairs)).sum_int128(terms)
    for i, accumulator in enumerate(layout.bucketed_accumulators):
        selected = np.flatnonzero(bucket_codes // exact_float_sum.BUCKETS == i)
        totals.buckets[accumulator] = exact_float_sum.BucketTotals(
            np.concatenate([groups[selected], groups[selected] + group_count]),
            np.tile(bucket_codes[selected] % exact_float_sum.BUCKETS, 2),
            sums[np.concatenate([selected, selected + len(pairs)])],
        )
