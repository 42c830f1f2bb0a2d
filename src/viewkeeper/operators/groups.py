"""Touched groups, old and new: the sums of their vectors, by numpy.

A sort by hash brings a group's vectors together, old ones first, so one running sum of a column gives both sides:

    rows       o o d │ o d │ d              start, middle, stop of each group
    old = run[middle] − run[start]          new = run[stop] − run[start]

That is right when equal hashes mean equal keys, which is checked; where they do not (or a key is NaN), DuckDB says
which rows belong together, and the sums are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model.chunks import one_chunk, words
from viewkeeper.model.names import HASH, quoted
from viewkeeper.model.schema import WEIGHT
from viewkeeper.operators import exact
from viewkeeper.operators.arrangement import hashes_of
from viewkeeper.operators.duck import Duck
from viewkeeper.operators.finding import Hashes
from viewkeeper.operators.measures import Accumulator, Layout
from viewkeeper.operators.spec import AggregateSpec
from viewkeeper.operators.wide import Flags, Ints, Wide


@dataclass(frozen=True)
class Side:
    """One side of all groups: their accumulators' totals by name; the count `_n` is that of rows."""

    counts: dict[str, Ints]
    sums: dict[str, Wide]
    buckets: dict[Accumulator, exact.Totals]

    @property
    def rows(self) -> Ints:
        return self.counts["_n"]


@dataclass(frozen=True)
class Groups:
    """`keys` has key columns and `_h`, one row a group; `seen`: the old state has a row of the group."""

    keys: pa.Table
    seen: Flags
    old: Side
    new: Side

    @property
    def count(self) -> int:
        return int(self.keys.num_rows)


def group(duck: Duck, spec: AggregateSpec, plan: Layout, old: pa.Table, delta: pa.Table) -> Groups:
    """The groups that `old` and `delta` have vectors of: summed over `old`, and over both."""
    names = [c for c in delta.column_names if c != WEIGHT]
    rows = pa.concat_tables([old.select(names), delta.select(names)]).combine_chunks()
    is_old = np.arange(rows.num_rows) < old.num_rows
    identity = hashes_of(rows)
    bucket_rows = None
    if plan.bucketed:
        is_main = rows.column("_b").to_numpy() < 0
        bucket_rows = (rows.filter(pa.array(~is_main)), is_old[~is_main])
        rows, is_old, identity = rows.filter(pa.array(is_main)), is_old[is_main], identity[is_main]
    order = np.argsort(identity, kind="stable")
    if not same_keys(spec, rows, identity, order):
        identity = _representatives(duck, spec, rows)
        order = np.argsort(identity, kind="stable")
    cut = stretches(firsts(identity[order]), is_old[order])
    keys = rows.select([*(k.name for k in spec.keys), HASH]).take(pa.array(order[cut.start]))
    old_side, new_side = Side({}, {}, {}), Side({}, {}, {})
    for name in ("_n", *(a.name for a in plan.plain if a.is_count)):
        old_side.counts[name], new_side.counts[name] = cut.sums(rows.column(name).to_numpy()[order])
    for name in (c for a in plan.plain if not a.is_count for c in a.columns):
        old_side.sums[name], new_side.sums[name] = cut.wide_sums(Wide.of(one_chunk(rows.column(name))).take(order))
    if bucket_rows is not None:
        _add_buckets(duck, spec, plan, keys, *bucket_rows, (old_side, new_side))
    return Groups(keys, cut.middle > cut.start, old_side, new_side)


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

    def wide_sums(self, values: Wide) -> tuple[Wide, Wide]:
        sums = [self.sums(digits) for digits in values.addends]
        return Wide.sum(*(old for old, _ in sums)), Wide.sum(*(new for _, new in sums))


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
    """For each row of `table` (with keys and `_h`), the index of its group in `keys`; −1: none of them."""
    wanted, hashes = hashes_of(table), hashes_of(keys)
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    if len(hashes) and not bool((ordered[1:] == ordered[:-1]).any()):
        place = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
        group, known = order[place], ordered[place] == wanted
        if _equal_keys(spec, table, np.flatnonzero(known), keys, group[known]):
            return np.where(known, group, -1)
    names = [quoted(k.name) for k in spec.keys]
    same = " AND ".join(["t._h = g._h", *(f"t.{k} IS NOT DISTINCT FROM g.{k}" for k in names)])
    numbered = keys.append_column("_i", pa.array(np.arange(keys.num_rows)))
    asked = table.select([k.name for k in spec.keys] + [HASH]).append_column("_j", pa.array(np.arange(table.num_rows)))
    sql = f"SELECT _j, coalesce(_i, -1) AS _i FROM t LEFT JOIN g ON {same} ORDER BY _j"
    found: Ints = duck.run(sql, t=asked, g=numbered).column("_i").to_numpy()
    return found


def _equal_keys(spec: AggregateSpec, one: pa.Table, rows: Ints, other: pa.Table, others: Ints) -> bool:
    """Whether rows of one table have the keys of rows of the other. NaN counts as different: DuckDB knows better."""
    if not len(rows):
        return True
    for key in spec.keys:
        mine, theirs = one_chunk(one.column(key.name)), one_chunk(other.column(key.name))
        if (known := _words_equal(mine, rows, theirs, others)) is not None:
            if not known:
                return False
            continue
        left, right = mine.take(pa.array(rows)), theirs.take(pa.array(others))
        equal = pc.fill_null(pc.equal(left, right), False)
        if left.null_count:
            equal = pc.or_(equal, pc.and_(pc.is_null(left), pc.is_null(right)))
        if not pc.all(equal).as_py():
            return False
    return True


def _words_equal(mine: pa.Array, rows: Ints, theirs: pa.Array, others: Ints) -> bool | None:
    """The same of one column, where values are equal if their bits are; None of others, and of floats."""
    one, other = words(mine), words(theirs)
    if one is None or other is None or pa.types.is_floating(mine.type) or mine.type != theirs.type:
        return None
    left, right = one[rows], other[others]
    return bool((left == right).all()) if left.dtype.itemsize <= 8 else left.tobytes() == right.tobytes()


def same_keys(spec: AggregateSpec, rows: pa.Table, hashes: Hashes, order: Ints) -> bool:
    """Whether rows of one hash have one key."""
    ordered = hashes[order]
    repeated = np.flatnonzero(ordered[1:] == ordered[:-1])
    return _equal_keys(spec, rows, order[repeated], rows, order[repeated + 1])


def _representatives(duck: Duck, spec: AggregateSpec, rows: pa.Table) -> Hashes:
    """For each row, the number of the first row with its key."""
    names = ", ".join(quoted(k.name) for k in spec.keys)
    numbered = rows.select([k.name for k in spec.keys]).append_column("_i", pa.array(np.arange(rows.num_rows)))
    sql = f"SELECT min(_i) OVER (PARTITION BY {names}) AS _g FROM rows ORDER BY _i"
    found: Hashes = duck.run(sql, rows=numbered).column("_g").to_numpy().astype(np.uint64)
    return found


def _add_buckets(
    duck: Duck, spec: AggregateSpec, plan: Layout, keys: pa.Table, rows: pa.Table, is_old: Flags, sides: Sequence[Side]
) -> None:
    """The totals of each (group, accumulator, bucket)."""
    span = exact.BUCKETS * len(plan.bucketed)
    identity = aligned(duck, spec, keys, rows) * span + rows.column("_b").to_numpy()
    order = np.argsort(identity, kind="stable")
    ordered = identity[order]
    cut = stretches(firsts(ordered), is_old[order])
    where, code = np.divmod(ordered[cut.start], span)
    both = cut.wide_sums(Wide.of(one_chunk(rows.column("_x"))).take(order))
    for i, accumulator in enumerate(plan.bucketed):
        mine = np.flatnonzero(code // exact.BUCKETS == i)
        for side, totals in zip(sides, both, strict=True):
            side.buckets[accumulator] = exact.Totals(where[mine], code[mine] % exact.BUCKETS, totals.take(mine))
