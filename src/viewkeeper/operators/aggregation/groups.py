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

from viewkeeper.model.arrow_buffers import one_chunk, taken, words
from viewkeeper.model.int128 import Flags, Ints, Wide
from viewkeeper.model.names import HASH, quoted
from viewkeeper.operators.aggregation import exact_float_sum
from viewkeeper.operators.aggregation.spec import Accumulator, AggregateSpec, Layout
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.state.hash_index import Hashes, ascending
from viewkeeper.state.key_hash import NULL_HASH, is_bijective
from viewkeeper.state.run import Arrangement, Run, hashes_of


@dataclass(frozen=True)
class Sides:
    """The old side of all groups, then the new one: accumulators' totals by name; the count `¤n` is that of rows."""

    counts: dict[str, Ints]
    sums: dict[str, Wide]
    buckets: dict[Accumulator, exact_float_sum.Totals]

    @property
    def rows(self) -> Ints:
        return self.counts["¤n"]


@dataclass(frozen=True)
class Groups:
    """`keys` has key columns and `¤h`, one row a group; `seen`: the old state has a row of the group."""

    keys: pa.Table
    seen: Flags
    sides: Sides

    @property
    def count(self) -> int:
        return int(self.keys.num_rows)


def group(duck: Duck, spec: AggregateSpec, plan: Layout, old: Arrangement, delta: pa.Table) -> Groups:
    """The groups that `delta` has vectors of: summed over `old`, and over both."""
    names = [*(k.name for k in spec.keys), HASH]
    hashes, first, number = numbered(hashes_of(delta))
    met = list(old.met(hashes))
    parts = [*(_Part(run, places) for run, places, _ in met), _Part(Run(delta), None)]
    numbers = np.concatenate([*(mine for *_, mine in met), number])
    if is_own(spec, delta, hashes) or _is_one_key_each(spec, delta, first, parts, numbers):
        keys = delta.select(names)
        if first is not number:
            keys = keys.take(pa.array(first))
    else:
        rows = pa.concat_tables([part.table(names) for part in parts]).combine_chunks()
        _, first, numbers = numbered(_representatives(duck, spec, rows))
        keys = rows.take(pa.array(first))
    olds, count = len(numbers) - delta.num_rows, keys.num_rows
    seen = np.zeros(count, np.bool_)
    seen[numbers[:olds]] = True
    both = numbers.copy()
    both[olds:] += count
    sides = _sides(plan, parts, _Sum(both, count))
    if plan.bucketed:
        bucket = _values(parts, "¤b")
        rows = np.flatnonzero(bucket >= 0)
        terms = Wide.of_words(_values(parts, "¤x")[rows])
        _add_buckets(plan, sides, count, numbers[rows], bucket[rows], rows >= olds, terms)
    return Groups(keys, seen, sides)


class _Part:
    """Rows of a run, at these ascending places (None: all)."""

    def __init__(self, run: Run, places: Ints | None) -> None:
        self.run = run
        self.places = None if places is None or len(places) == run.num_rows else places

    def values(self, name: str) -> npt.NDArray[Any]:
        found = self.run.numbers(name)
        return found if self.places is None else found[self.places]

    def column(self, name: str) -> pa.Array:
        array = one_chunk(self.run.rows.column(name))
        return array if self.places is None else taken(array, pa.array(self.places))

    def table(self, names: Sequence[str]) -> pa.Table:
        return pa.table([self.column(name) for name in names], names=names)


def _values(parts: Sequence[_Part], name: str) -> npt.NDArray[Any]:
    return np.concatenate([part.values(name) for part in parts])


@dataclass(frozen=True)
class _Sum:
    """`number` of each row: its group, and of the delta's rows so many groups further."""

    number: Ints
    groups: int

    def of(self, values: Ints) -> Ints:
        """Old totals, then new ones. Sums wrap around and back, so only the results have to fit."""
        total = np.zeros(2 * self.groups, np.int64)
        np.add.at(total, self.number, values)
        total[self.groups :] += total[: self.groups]
        return total

    def of_wide(self, values: Wide) -> Wide:
        if values.sums_are_long:
            return Wide.long(self.of(values.low.view(np.int64)))
        return Wide.sum(*(self.of(digits) for digits in values.addends))


def _sides(plan: Layout, parts: Sequence[_Part], total: _Sum) -> Sides:
    """The totals of the vectors' own columns, in which bucket rows have zeros."""
    sides = Sides({}, {}, {})
    for name in plan.counts:
        sides.counts[name] = total.of(_values(parts, name))
    for name in plan.sums:
        sides.sums[name] = total.of_wide(Wide.of_words(_values(parts, name)))
    return sides


def numbered(identity: Hashes) -> tuple[Hashes, Ints, Ints]:
    """The values that occur, ascending; the row where each is first met; and for each row the number of its value
    (the same array, where they ascend)."""
    if bool((identity[1:] > identity[:-1]).all()):
        rows = np.arange(len(identity))
        return identity, rows, rows
    order = ascending(identity)
    ordered = identity[order]
    is_first = firsts(ordered)
    number = np.empty(len(identity), np.int64)
    number[order] = np.cumsum(is_first) - 1
    return ordered[is_first], order[is_first], number


def _is_one_key_each(spec: AggregateSpec, delta: pa.Table, first: Ints, parts: Sequence[_Part], numbers: Ints) -> bool:
    """Whether rows of one number have one key: that of the delta's first row of it. Doubles of other bits count as
    different (there are two zeros, and many NaNs): DuckDB knows better."""
    if len(first) == delta.num_rows:
        parts, numbers = parts[:-1], numbers[: len(numbers) - delta.num_rows]
    if not parts:
        return True
    wanted = pa.array(first[numbers])
    for key in spec.keys:
        given = pa.concat_arrays([part.column(key.name) for part in parts])
        if not _plain(given).equals(_plain(taken(one_chunk(delta.column(key.name)), wanted))):
            return False
    return True


@dataclass(frozen=True)
class Stretches:
    """Where each group's rows lie: old ones from `start`, the delta's from `middle`, up to `stop`."""

    start: Ints
    middle: Ints
    stop: Ints

    def sums(self, values: Ints) -> tuple[Ints, Ints]:
        """(old, new). Sums wrap around and back, so only the results have to fit."""
        running = np.concatenate([_ZERO, np.cumsum(values)])
        below = running[self.start]
        return running[self.middle] - below, running[self.stop] - below


_ZERO = np.zeros(1, np.int64)


def stretches(first: Flags, is_old: Flags) -> Stretches:
    """`first` marks the first row of each stretch; within it old rows stand first."""
    start = np.flatnonzero(first)
    stop = np.append(start[1:], len(first))[: len(start)]
    counted = np.concatenate([_ZERO, np.cumsum(is_old)])
    return Stretches(start, start + counted[stop] - counted[start], stop)


def firsts(identity: npt.NDArray[Any]) -> Flags:
    return np.concatenate([[True], identity[1:] != identity[:-1]])[: len(identity)]


def aligned(duck: Duck, spec: AggregateSpec, keys: pa.Table, table: pa.Table) -> Ints:
    """For each row of `table` (with keys and `¤h`), the index of its group in `keys`; −1: none of them."""
    wanted, hashes = hashes_of(table), hashes_of(keys)
    order = ascending(hashes)
    ordered = hashes[order]
    if len(hashes) and not bool((ordered[1:] == ordered[:-1]).any()):
        place = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
        group, known = order[place], ordered[place] == wanted
        if _equal_keys(spec, table, np.flatnonzero(known), keys, group[known]):
            return np.where(known, group, -1)
    names = [quoted(k.name) for k in spec.keys]
    same = " AND ".join(["t.¤h = g.¤h", *(f"t.{k} IS NOT DISTINCT FROM g.{k}" for k in names)])
    listed = keys.append_column("¤i", pa.array(np.arange(keys.num_rows)))
    asked = table.select([k.name for k in spec.keys] + [HASH]).append_column("¤j", pa.array(np.arange(table.num_rows)))
    sql = f"SELECT ¤j, coalesce(¤i, -1) AS ¤i FROM t LEFT JOIN g ON {same} ORDER BY ¤j"
    found: Ints = duck.run(sql, t=asked, g=listed).column("¤i").to_numpy()
    return found


def _equal_keys(spec: AggregateSpec, one: pa.Table, rows: Ints, other: pa.Table, others: Ints) -> bool:
    """Whether rows of one table have the keys of rows of the other. Doubles of other bits count as different (there are
    two zeros, and many NaNs): DuckDB knows better."""
    if not len(rows):
        return True
    for key in spec.keys:
        mine, theirs = one_chunk(one.column(key.name)), one_chunk(other.column(key.name))
        if (known := _words_equal(mine, rows, theirs, others)) is not None:
            if not known:
                return False
            continue
        left, right = (_plain(taken(*at)) for at in ((mine, pa.array(rows)), (theirs, pa.array(others))))
        equal = pc.fill_null(pc.equal(left, right), False)
        if left.null_count:
            equal = pc.or_(equal, pc.and_(pc.is_null(left), pc.is_null(right)))
        if not pc.all(equal).as_py():
            return False
    return True


def _words_equal(mine: pa.Array, rows: Ints, theirs: pa.Array, others: Ints) -> bool | None:
    """The same of one column, where values are equal if their bits are; None of others."""
    one, other = words(mine), words(theirs)
    if one is None or other is None or mine.type != theirs.type:
        return None
    left, right = one[rows], other[others]
    return bool((left == right).all()) if left.dtype.itemsize <= 8 else left.tobytes() == right.tobytes()


def _plain(values: pa.Array) -> pa.Array:
    """Doubles as their bits."""
    if not pa.types.is_floating(values.type):
        return values
    return values.view(pa.int64() if values.type.bit_width == 64 else pa.int32())


def is_own(spec: AggregateSpec, rows: pa.Table, hashes: Hashes) -> bool:
    """Whether each of the rows' hashes is that of one key: one integer has a hash of its own, but for NULL's."""
    return is_bijective([rows.schema.field(k.name).type for k in spec.keys]) and not bool((hashes == NULL_HASH).any())


def same_keys(spec: AggregateSpec, rows: pa.Table, others: Ints) -> bool:
    """Whether each row has the key of another."""
    return _equal_keys(spec, rows, np.arange(rows.num_rows), rows, others)


def _representatives(duck: Duck, spec: AggregateSpec, rows: pa.Table) -> Hashes:
    """For each row, the number of the first row with its key."""
    names = ", ".join(quoted(k.name) for k in spec.keys)
    listed = rows.select([k.name for k in spec.keys]).append_column("¤i", pa.array(np.arange(rows.num_rows)))
    sql = f"SELECT min(¤i) OVER (PARTITION BY {names}) AS ¤g FROM rows ORDER BY ¤i"
    found: Hashes = duck.run(sql, rows=listed).column("¤g").to_numpy().astype(np.uint64)
    return found


def _add_buckets(plan: Layout, sides: Sides, groups: int, number: Ints, code: Ints, is_new: Flags, terms: Wide) -> None:
    """The totals of each (group, accumulator, bucket), from the bucket rows."""
    span = exact_float_sum.BUCKETS * len(plan.bucketed)
    pairs, _, place = numbered((number * span + code).view(np.uint64))
    where, code = np.divmod(pairs.view(np.int64), span)
    both = _Sum(place + len(pairs) * is_new, len(pairs)).of_wide(terms)
    for i, accumulator in enumerate(plan.bucketed):
        mine = np.flatnonzero(code // exact_float_sum.BUCKETS == i)
        sides.buckets[accumulator] = exact_float_sum.Totals(
            np.concatenate([where[mine], where[mine] + groups]),
            np.tile(code[mine] % exact_float_sum.BUCKETS, 2),
            both[np.concatenate([mine, mine + len(pairs)])],
        )
