"""Touched groups, old and new: the sums of their vectors, by numpy.

Every vector of a touched group, of the state's runs and of the delta, has its group's number, the delta's beyond all
groups, and one pass adds a column up by number. So both sides lie in one array, and all that is read of them is too:

    number   0 2 │ 1 2 │ 3+0 3+1 3+2     two runs' rows and the delta's, of 3 groups
    sums     o o o │ d d d   ─▶   old old old │ new new new

Groups are numbered by hash, which is right when equal hashes mean equal keys. That is checked; where they do not,
DuckDB says which rows belong together, and the sums are the same.
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
    """The old side of all groups, then the new one: accumulators' totals by name; the count `¤n` is that of rows."""

    counts: dict[str, Ints]
    sums: dict[str, Int128Array]
    buckets: dict[Accumulator, exact_float_sum.BucketTotals]

    @property
    def row_counts(self) -> Ints:
        return self.counts["¤n"]


@dataclass(frozen=True)
class TouchedGroups:
    """`keys` has key columns and `¤h`, one row a group; `seen`: the old state has a row of the group."""

    keys: pa.Table
    in_old_state: Flags
    totals: GroupTotals

    @property
    def count(self) -> int:
        return int(self.keys.num_rows)


def sum_touched_groups(
    statements: PreparedStatements, spec: AggregateSpec, layout: AccumulatorLayout, old: Arrangement, delta: pa.Table
) -> TouchedGroups:
    """The groups that `delta` has vectors of: summed over `old`, and over both."""
    names = [*(k.name for k in spec.keys), HASH]
    hashes, first, number = number_distinct(hashes_of(delta))
    met = list(old.slice_row_ids(hashes))
    parts = [*(_RunSelection(run, places) for run, places, _ in met), _RunSelection(Run(delta), None)]
    numbers = np.concatenate([*(mine for *_, mine in met), number])
    if has_unique_hashes(spec, delta, hashes) or _has_one_key_per_number(spec, delta, first, parts, numbers):
        keys = delta.select(names)
        if first is not number:
            keys = keys.take(pa.array(first))
    else:
        rows = pa.concat_tables([part.table(names) for part in parts]).combine_chunks()
        _, first, numbers = number_distinct(_first_rows_by_key(statements, spec, rows))
        keys = rows.take(pa.array(first))
    olds, count = len(numbers) - delta.num_rows, keys.num_rows
    seen = np.zeros(count, np.bool_)
    seen[numbers[:olds]] = True
    both = numbers.copy()
    both[olds:] += count
    sides = _sum_columns(layout, parts, _GroupSummation(both, count))
    if layout.bucketed_accumulators:
        bucket = _concat_values(parts, "¤b")
        rows = np.flatnonzero(bucket >= 0)
        terms = Int128Array.from_bytes(_concat_values(parts, "¤x")[rows])
        _add_buckets(layout, sides, count, numbers[rows], bucket[rows], rows >= olds, terms)
    return TouchedGroups(keys, seen, sides)


class _RunSelection:
    """Rows of a run, at these ascending places (None: all)."""

    def __init__(self, run: Run, row_ids: Ints | None) -> None:
        self.run = run
        self.row_ids = None if row_ids is None or len(row_ids) == run.num_rows else row_ids

    def values(self, name: str) -> npt.NDArray[Any]:
        found = self.run.numpy_column(name)
        return found if self.row_ids is None else found[self.row_ids]

    def column(self, name: str) -> pa.Array:
        array = one_chunk(self.run.rows.column(name))
        return array if self.row_ids is None else take_array(array, pa.array(self.row_ids))

    def table(self, names: Sequence[str]) -> pa.Table:
        return pa.table([self.column(name) for name in names], names=names)


def _concat_values(selections: Sequence[_RunSelection], name: str) -> npt.NDArray[Any]:
    return np.concatenate([part.values(name) for part in selections])


@dataclass(frozen=True)
class _GroupSummation:
    """`number` of each row: its group, and of the delta's rows so many groups further."""

    group_numbers: Ints
    group_count: int

    def sum_int64(self, values: Ints) -> Ints:
        """Old totals, then new ones. Sums wrap around and back, so only the results have to fit."""
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
    """The totals of the vectors' own columns, in which bucket rows have zeros."""
    sides = GroupTotals({}, {}, {})
    for name in layout.count_columns:
        sides.counts[name] = summation.sum_int64(_concat_values(selections, name))
    for name in layout.sum_columns:
        sides.sums[name] = summation.sum_int128(Int128Array.from_bytes(_concat_values(selections, name)))
    return sides


def number_distinct(hashes: Hashes) -> tuple[Hashes, Ints, Ints]:
    """The values that occur, ascending; the row where each is first met; and for each row the number of its value
    (the same array, where they ascend)."""
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
    """Whether rows of one number have one key: that of the delta's first row of it. Doubles of other bits count as
    different (there are two zeros, and many NaNs): DuckDB knows better."""
    if len(first_rows) == delta.num_rows:
        selections, numbers = selections[:-1], numbers[: len(numbers) - delta.num_rows]
    if not selections:
        return True
    wanted = pa.array(first_rows[numbers])
    for key in spec.keys:
        given = pa.concat_arrays([part.column(key.name) for part in selections])
        if not _doubles_as_bits(given).equals(_doubles_as_bits(take_array(one_chunk(delta.column(key.name)), wanted))):
            return False
    return True


@dataclass(frozen=True)
class GroupRanges:
    """Where each group's rows lie: old ones from `start`, the delta's from `middle`, up to `stop`."""

    start: Ints
    delta_start: Ints
    stop: Ints

    def sums(self, values: Ints) -> tuple[Ints, Ints]:
        """(old, new). Sums wrap around and back, so only the results have to fit."""
        running = np.concatenate([_ZERO, np.cumsum(values)])
        below = running[self.start]
        return running[self.delta_start] - below, running[self.stop] - below


_ZERO = np.zeros(1, np.int64)


def group_ranges(is_first: Flags, is_old: Flags) -> GroupRanges:
    """`first` marks the first row of each stretch; within it old rows stand first."""
    start = np.flatnonzero(is_first)
    stop = np.append(start[1:], len(is_first))[: len(start)]
    counted = np.concatenate([_ZERO, np.cumsum(is_old)])
    return GroupRanges(start, start + counted[stop] - counted[start], stop)


def mark_first(values: npt.NDArray[Any]) -> Flags:
    return np.concatenate([[True], values[1:] != values[:-1]])[: len(values)]


def align_to_groups(statements: PreparedStatements, spec: AggregateSpec, keys: pa.Table, table: pa.Table) -> Ints:
    """For each row of `table` (with keys and `¤h`), the index of its group in `keys`; −1: none of them."""
    wanted, hashes = hashes_of(table), hashes_of(keys)
    order = radix_argsort(hashes)
    ordered = hashes[order]
    if len(hashes) and not bool((ordered[1:] == ordered[:-1]).any()):
        place = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
        group, known = order[place], ordered[place] == wanted
        if _has_equal_keys(spec, table, np.flatnonzero(known), keys, group[known]):
            return np.where(known, group, -1)
    names = [quoted(k.name) for k in spec.keys]
    same = " AND ".join(["t.¤h = g.¤h", *(f"t.{k} IS NOT DISTINCT FROM g.{k}" for k in names)])
    listed = keys.append_column("¤i", pa.array(np.arange(keys.num_rows)))
    asked = table.select([k.name for k in spec.keys] + [HASH]).append_column("¤j", pa.array(np.arange(table.num_rows)))
    sql = f"SELECT ¤j, coalesce(¤i, -1) AS ¤i FROM t LEFT JOIN g ON {same} ORDER BY ¤j"
    found: Ints = statements.run(sql, t=asked, g=listed).column("¤i").to_numpy()
    return found


def _has_equal_keys(
    spec: AggregateSpec, left_table: pa.Table, left_rows: Ints, right_table: pa.Table, right_rows: Ints
) -> bool:
    """Whether rows of one table have the keys of rows of the other. Doubles of other bits count as different (there are
    two zeros, and many NaNs): DuckDB knows better."""
    if not len(left_rows):
        return True
    for key in spec.keys:
        mine, theirs = one_chunk(left_table.column(key.name)), one_chunk(right_table.column(key.name))
        if (known := _has_equal_words(mine, left_rows, theirs, right_rows)) is not None:
            if not known:
                return False
            continue
        left, right = (
            _doubles_as_bits(take_array(*at)) for at in ((mine, pa.array(left_rows)), (theirs, pa.array(right_rows)))
        )
        equal = pc.fill_null(pc.equal(left, right), False)
        if left.null_count:
            equal = pc.or_(equal, pc.and_(pc.is_null(left), pc.is_null(right)))
        if not pc.all(equal).as_py():
            return False
    return True


def _has_equal_words(left_column: pa.Array, left_rows: Ints, right_column: pa.Array, right_rows: Ints) -> bool | None:
    """The same of one column, where values are equal if their bits are; None of others."""
    one, other = buffer_view(left_column), buffer_view(right_column)
    if one is None or other is None or left_column.type != right_column.type:
        return None
    left, right = one[left_rows], other[right_rows]
    return bool((left == right).all()) if left.dtype.itemsize <= 8 else left.tobytes() == right.tobytes()


def _doubles_as_bits(values: pa.Array) -> pa.Array:
    """Doubles as their bits."""
    if not pa.types.is_floating(values.type):
        return values
    return values.view(pa.int64() if values.type.bit_width == 64 else pa.int32())


def has_unique_hashes(spec: AggregateSpec, rows: pa.Table, hashes: Hashes) -> bool:
    """Whether each of the rows' hashes is that of one key: one integer has a hash of its own, but for NULL's."""
    return is_bijective([rows.schema.field(k.name).type for k in spec.keys]) and not bool((hashes == NULL_HASH).any())


def has_equal_keys(spec: AggregateSpec, rows: pa.Table, other_rows: Ints) -> bool:
    """Whether each row has the key of another."""
    return _has_equal_keys(spec, rows, np.arange(rows.num_rows), rows, other_rows)


def _first_rows_by_key(statements: PreparedStatements, spec: AggregateSpec, rows: pa.Table) -> Hashes:
    """For each row, the number of the first row with its key."""
    names = ", ".join(quoted(k.name) for k in spec.keys)
    listed = rows.select([k.name for k in spec.keys]).append_column("¤i", pa.array(np.arange(rows.num_rows)))
    sql = f"SELECT min(¤i) OVER (PARTITION BY {names}) AS ¤g FROM rows ORDER BY ¤i"
    found: Hashes = statements.run(sql, rows=listed).column("¤g").to_numpy().astype(np.uint64)
    return found


def _add_buckets(
    layout: AccumulatorLayout,
    totals: GroupTotals,
    group_count: int,
    group_numbers: Ints,
    bucket_codes: Ints,
    is_new: Flags,
    terms: Int128Array,
) -> None:
    """The totals of each (group, accumulator, bucket), from the bucket rows."""
    span = exact_float_sum.BUCKETS * len(layout.bucketed_accumulators)
    pairs, _, place = number_distinct((group_numbers * span + bucket_codes).view(np.uint64))
    where, bucket_codes = np.divmod(pairs.view(np.int64), span)
    both = _GroupSummation(place + len(pairs) * is_new, len(pairs)).sum_int128(terms)
    for i, accumulator in enumerate(layout.bucketed_accumulators):
        mine = np.flatnonzero(bucket_codes // exact_float_sum.BUCKETS == i)
        totals.buckets[accumulator] = exact_float_sum.BucketTotals(
            np.concatenate([where[mine], where[mine] + group_count]),
            np.tile(bucket_codes[mine] % exact_float_sum.BUCKETS, 2),
            both[np.concatenate([mine, mine + len(pairs)])],
        )
