"""From sums by (group, cell) to sums by (member, group). Three ways; n distinct members, m sums, C cells, G groups:

    grid     prefix sums over the grid of all buckets, then 2ᵈ corners a member           few cells in the grid
    product  the members of a cell as bits, and an exact matrix product with the sums     any condition, few groups
    pairs    the (cell, member) pairs that meet, each with the groups of the cell         any condition, many groups

Sums are int64 modulo 2⁶⁴: running sums may wrap, a result must fit. The product is one of doubles in limbs of 26 bits,
exact below 2²⁷ cells. `costs` says what each way is expected to take, in nanoseconds, from counts alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from viewkeeper.model.arrow_buffers import one_chunk
from viewkeeper.model.int128 import Ints, Wide
from viewkeeper.operators.family.axes import Axis, Bytes, Range
from viewkeeper.state.row_ranges import spans

Sums = tuple[Ints, Ints, list[Ints]]
"""Members, groups, and the sums of each pair of them."""

_GRID = 1 << 24
"""Entries of a grid at most."""

_LIMB = 26
_BLOCK = 2048
"""Cells whose bits are looked at together."""

_MATRIX = 1 << 22
"""Entries of a matrix of bits that is multiplied at a time."""

_FEW = 64
"""Groups up to which each has a product of its own."""

_PAIRS = 1 << 21
"""Pairs that are made at a time."""


WAYS = ("grid", "product", "pairs")

APART = 2e6
"""Nanoseconds of a batch that a view of its own takes, however little it has to do: its statements."""


@dataclass(frozen=True)
class Costs:
    """Nanoseconds, as measured on one core; infinite where a way cannot be gone."""

    grid: float
    product: float
    pairs: float

    @property
    def cheapest(self) -> str:
        return min(WAYS, key=lambda way: float(getattr(self, way)))


def costs(
    rows: int, groups: int, sizes: Sequence[int], ranges: bool, members: int, sums: int, met: float = 0.05
) -> Costs:
    """Of `rows` sums by (group, cell) with axes of these sizes; `met`: the part of (row, member) that meet, a guess."""
    grid = float(groups) * float(np.prod([s + 1.0 for s in sizes]))
    by_grid = sums * (15.0 * rows + 4.0 * len(sizes) * grid) + 2.0 ** len(sizes) * 5 * sums * members * groups
    by_product = 150.0 * rows + 0.6 * sums * rows * members
    by_pairs = 150.0 * rows + 0.1 * rows * members + 60.0 * sums * met * rows * members
    never = float("inf")
    return Costs(by_grid if ranges and grid <= _GRID else never, by_product if groups <= _FEW else never, by_pairs)


def recompose(group: Ints, groups: int, axes: Sequence[Axis], sums: Sequence[Ints], way: str = "") -> Iterator[Sums]:
    """The sums of every member and group that meet, in pieces; of one pair there may be several, to be added.

    All rows are wanted by some member on every axis by itself. Without axes every member wants every row.
    """
    members = len(axes[0].signature[0]) if axes else 1
    if not len(group) or not members:
        return
    sizes = [axis.size for axis in axes]
    if not way:
        ranges = all(isinstance(axis, Range) for axis in axes)
        way = costs(len(group), groups, sizes, ranges, members, max(1, len(sums))).cheapest
    if way == "grid":
        yield from _by_grid(group, groups, [a for a in axes if isinstance(a, Range)], sums)
        return
    cell, place, group, sums = _added(_cells(axes), group, groups, sums)
    first = np.flatnonzero(np.concatenate([[True], cell[1:] != cell[:-1]]))
    of_cell = np.append(first, len(cell))
    bits = [axis.bits() for axis in axes]
    buckets = [axis.bucket[place[first]] for axis in axes]
    if way == "product":
        yield from _by_product(group, groups, of_cell, bits, buckets, sums, members)
    else:
        yield from _by_pairs(group, groups, of_cell, bits, buckets, sums, members)


# -- grid -------------------------------------------------------------------------------------------------------------


def _by_grid(group: Ints, groups: int, axes: Sequence[Range], sums: Sequence[Ints]) -> Iterator[Sums]:
    """A plane of zeros at the front of each axis spares the border cases."""
    shape = [groups, *(a.size + 1 for a in axes)]
    code = group
    for axis in axes:
        code = code * (axis.size + 1) + axis.bucket + 1
    found = np.zeros((len(sums), groups, len(axes[0].first)), np.int64)
    for i, values in enumerate(sums):
        grid = np.zeros(shape, np.int64)
        np.add.at(grid.reshape(-1), code, values)
        for j in range(1, len(shape) - 1):  # whole planes: five times faster than cumsum along a far axis
            planes = np.moveaxis(grid, j, 0)
            for k in range(1, len(planes)):
                planes[k] += planes[k - 1]
        np.cumsum(grid, axis=-1, out=grid)
        for corner in itertools.product((0, 1), repeat=len(axes)):
            at = [a.last if c else a.first for a, c in zip(axes, corner, strict=True)]
            sign = (-1) ** (len(axes) - sum(corner))
            found[i] += sign * grid.reshape(groups, -1)[:, np.ravel_multi_index(tuple(at), tuple(shape[1:]))]
    yield from _nonzero(found)


def _nonzero(found: Ints) -> Iterator[Sums]:
    """[sum, group, member] where any sum is not zero."""
    where, member = np.nonzero(found.any(axis=0))
    if len(member):
        yield member, where, [f[where, member] for f in found]


# -- bits -------------------------------------------------------------------------------------------------------------


def _cells(axes: Sequence[Axis]) -> Ints:
    """One number for each tuple of buckets."""
    code, span = axes[0].bucket, axes[0].size
    for axis in axes[1:]:
        if span * axis.size >= 1 << 62:
            values, code = np.unique(code, return_inverse=True)
            span = len(values)
        code, span = code * axis.size + axis.bucket, span * axis.size
    return code


def _added(cell: Ints, group: Ints, groups: int, sums: Sequence[Ints]) -> tuple[Ints, Ints, Ints, list[Ints]]:
    """Sorted by cell and group, each pair once: the cells, where each was found, the groups and the sums."""
    order = np.lexsort((group, cell)) if groups > 1 else np.argsort(cell, kind="stable")
    cell, group = cell[order], group[order]
    start = np.flatnonzero(np.concatenate([[True], (cell[1:] != cell[:-1]) | (group[1:] != group[:-1])]))
    return cell[start], order[start], group[start], [np.add.reduceat(s[order], start) for s in sums]


def _wanted(bits: Sequence[Bytes], buckets: Sequence[Ints], low: int, high: int) -> Bytes:
    found = bits[0][buckets[0][low:high]]
    for more, bucket in zip(bits[1:], buckets[1:], strict=True):
        found &= more[bucket[low:high]]
    return found


def _by_product(
    group: Ints,
    groups: int,
    of_cell: Ints,
    bits: Sequence[Bytes],
    buckets: Sequence[Ints],
    sums: Sequence[Ints],
    members: int,
) -> Iterator[Sums]:
    cells = len(of_cell) - 1
    mine = np.repeat(np.arange(cells), np.diff(of_cell))
    values = np.stack(sums) if sums else np.zeros((0, len(group)), np.int64)
    limbs = np.concatenate([values & ((1 << _LIMB) - 1), (values >> _LIMB) & ((1 << _LIMB) - 1), values >> 2 * _LIMB])
    found = np.zeros((3 * len(values), groups, members), np.int64)
    block = max(16, min(_BLOCK, _MATRIX // members))
    for low in range(0, cells, block):
        high = min(low + block, cells)
        wanted = _wanted(bits, buckets, low, high)
        rows = np.arange(of_cell[low], of_cell[high])
        for k in np.unique(group[rows]):
            own = rows[group[rows] == k]
            some = wanted[mine[own] - low]
            matrix = np.unpackbits(some, axis=1, count=members).astype(np.float64)
            found[:, k] += (limbs[:, own].astype(np.float64) @ matrix).astype(np.int64)
    a, b, c = np.split(found, 3)
    yield from _nonzero(a + (b << _LIMB) + (c << 2 * _LIMB))


def _by_pairs(
    group: Ints,
    groups: int,
    of_cell: Ints,
    bits: Sequence[Bytes],
    buckets: Sequence[Ints],
    sums: Sequence[Ints],
    members: int,
) -> Iterator[Sums]:
    """Only where a row meets a member is anything done; a part of the cells at a time, so that the pairs are few."""
    cells, low = len(of_cell) - 1, 0
    count = np.diff(of_cell)
    block = max(1, min(_BLOCK, (1 << 25) // members))
    held: list[tuple[Ints, Ints]] = []
    waiting = 0
    while low < cells:
        high = min(low + block, cells)
        wanted = _wanted(bits, buckets, low, high)
        some = np.flatnonzero(wanted.any(axis=1))
        place, member = np.nonzero(np.unpackbits(wanted[some], axis=1, count=members))
        cell = some[place] + low
        low = high
        edges = np.cumsum(count[cell])
        at = 0
        while at < len(cell):
            end = max(at + 1, int(np.searchsorted(edges, (edges[at - 1] if at else 0) + _PAIRS - waiting, "right")))
            held.append((cell[at:end], member[at:end]))
            waiting += int(count[cell[at:end]].sum())
            at = end
            if waiting >= _PAIRS:
                yield _met(held, of_cell, count, group, groups, sums)
                held, waiting = [], 0
    if waiting:
        yield _met(held, of_cell, count, group, groups, sums)


def _met(
    held: Sequence[tuple[Ints, Ints]], of_cell: Ints, count: Ints, group: Ints, groups: int, sums: Sequence[Ints]
) -> Sums:
    cell, member = (np.concatenate(part) for part in zip(*held, strict=True))
    rows = spans(of_cell[:-1][cell], count[cell])
    code = np.repeat(member, count[cell]) * groups + group[rows]
    order = np.argsort(code, kind="stable")
    code = code[order]
    start = np.flatnonzero(np.concatenate([[True], code[1:] != code[:-1]]))
    who, where = np.divmod(code[start], groups)
    return who, where, [np.add.reduceat(s[rows][order], start) for s in sums]


# The columns of vectors as 64-bit integers that can be added in any order, wrap around, and be put together again.
#
# A column of zeros has no part; one whose sums cannot leave 64 bits has one; any other is 128-bit integers in three
# parts (`Wide.addends`), each summed by itself.


_ROOM = 2.0**62


@dataclass(frozen=True)
class Addends:
    """`parts` of all columns, one after the other; how many each column has; and what type it is."""

    parts: tuple[Ints, ...]
    counts: tuple[int, ...]
    kinds: tuple[pa.DataType, ...]

    def put_together(self, parts: Sequence[Ints], times: Ints) -> list[pa.Array]:
        """Columns from sums of the parts, each row multiplied by its weight."""
        found, at = [], 0
        for count, kind in zip(self.counts, self.kinds, strict=True):
            mine = [part * times for part in parts[at : at + count]]
            at += count
            found.append(_column(mine, kind, len(times)))
        return found


def addends(rows: pa.Table, names: Sequence[str]) -> Addends:
    parts: list[Ints] = []
    counts, kinds = [], []
    for name in names:
        column = one_chunk(rows.column(name))
        mine = _parts(column)
        parts += mine
        counts.append(len(mine))
        kinds.append(column.type)
    return Addends(tuple(parts), tuple(counts), tuple(kinds))


def _parts(column: pa.Array) -> list[Ints]:
    if not pa.types.is_decimal(column.type):
        values: Ints = column.to_numpy()
        return [values] if values.any() else []
    wide = Wide.of(column)
    if not wide.low.any() and not wide.high.any():
        return []
    small = wide.low.view(np.int64)
    if bool(wide.is_long.all()) and float(np.abs(small.astype(np.float64)).sum()) < _ROOM:
        return [np.ascontiguousarray(small)]
    return list(wide.addends)


def _column(parts: Sequence[Ints], kind: pa.DataType, rows: int) -> pa.Array:
    if not parts:
        parts = [np.zeros(rows, np.int64)]
    if not pa.types.is_decimal(kind):
        return pa.array(parts[0], kind)
    wide = Wide.sum(*parts) if len(parts) == 3 else Wide(parts[0].view(np.uint64), parts[0] >> 63)
    return wide.decimals(kind, np.ones(rows, np.bool_))
