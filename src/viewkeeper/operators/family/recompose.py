"""Recompose sums by (group, cell) to sums by (member, group).

There are three methods; with n distinct members, m sums, C cells and G groups:

    grid     prefix sums over the grid of all buckets, then 2ᵈ corners a member           few cells in the grid
    product  the members of a cell as bits, and an exact matrix product with the sums     any condition, few groups
    pairs    the matching (cell, member) pairs, each with the groups of the cell          any condition, many groups

Sums are int64 modulo 2⁶⁴: intermediate sums may wrap, a result must fit. The product multiplies doubles in limbs of 26
bits, exact below 2²⁷ cells. `estimate_costs` estimates the time of each method, in nanoseconds, from counts alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from viewkeeper.model.arrow_buffers import one_chunk
from viewkeeper.model.int128 import Int128Array, Ints
from viewkeeper.operators.family.axes import Axis, Bytes, RangeAxis
from viewkeeper.state.row_ranges import expand_ranges

MemberSums = tuple[Ints, Ints, list[Ints]]
"""Members, groups, and the sums of each (member, group) pair."""

_MAX_GRID_ENTRIES = 1 << 24
"""Entries of a grid, at most."""

_LIMB_BITS = 26
_CELLS_PER_BLOCK = 2048
"""Cells whose bits are processed together."""

_MAX_MATRIX_ENTRIES = 1 << 22
"""Entries of a bit matrix that is multiplied at a time."""

_MAX_PRODUCT_GROUPS = 64
"""Groups up to which the product method may be used; each has its own product."""

_MAX_PAIRS = 1 << 21
"""Pairs that are built at a time."""


RECOMPOSE_METHODS = ("grid", "product", "pairs")

SEPARATE_VIEW_COST = 2e6
"""Nanoseconds of a batch that a separate view costs, however small its delta: its statements."""


@dataclass(frozen=True)
class RecomposeCosts:
    """Nanoseconds, as measured on one core; infinite where a method cannot be used."""

    grid: float
    product: float
    pairs: float

    @property
    def cheapest_method(self) -> str:
        return min(RECOMPOSE_METHODS, key=lambda method: float(getattr(self, method)))


def estimate_costs(
    row_count: int,
    group_count: int,
    sizes: Sequence[int],
    has_only_ranges: bool,
    member_count: int,
    sum_count: int,
    match_share: float = 0.05,
) -> RecomposeCosts:
    """Estimate the costs for `row_count` sums by (group, cell) with axes of these sizes.

    `match_share`: the assumed fraction of (row, member) pairs that match.
    """
    grid = float(group_count) * float(np.prod([s + 1.0 for s in sizes]))
    by_grid = (
        sum_count * (15.0 * row_count + 4.0 * len(sizes) * grid)
        + 2.0 ** len(sizes) * 5 * sum_count * member_count * group_count
    )
    by_product = 150.0 * row_count + 0.6 * sum_count * row_count * member_count
    by_pairs = (
        150.0 * row_count + 0.1 * row_count * member_count + 60.0 * sum_count * match_share * row_count * member_count
    )
    never = float("inf")
    return RecomposeCosts(
        by_grid if has_only_ranges and grid <= _MAX_GRID_ENTRIES else never,
        by_product if group_count <= _MAX_PRODUCT_GROUPS else never,
        by_pairs,
    )


def recompose(
    group: Ints, group_count: int, axes: Sequence[Axis], sums: Sequence[Ints], method: str = ""
) -> Iterator[MemberSums]:
    """Yield the sums of every matching member and group, in pieces; the sums of one pair may be in several pieces.

    All rows must be needed by some member on every axis separately. Without axes every member needs every row.
    """
    members = len(axes[0].member_signature[0]) if axes else 1
    if not len(group) or not members:
        return
    sizes = [axis.size for axis in axes]
    if not method:
        has_only_ranges = all(isinstance(axis, RangeAxis) for axis in axes)
        method = estimate_costs(
            len(group), group_count, sizes, has_only_ranges, members, max(1, len(sums))
        ).cheapest_method
    if method == "grid":
        yield from _recompose_by_grid(group, group_count, [a for a in axes if isinstance(a, RangeAxis)], sums)
        return
    cell, rows, group, sums = _sum_by_cell(_number_cells(axes), group, group_count, sums)
    first = np.flatnonzero(np.concatenate([[True], cell[1:] != cell[:-1]]))
    cell_offsets = np.append(first, len(cell))
    bits = [axis.member_bits() for axis in axes]
    buckets = [axis.row_buckets[rows[first]] for axis in axes]
    if method == "product":
        yield from _recompose_by_product(group, group_count, cell_offsets, bits, buckets, sums, members)
    else:
        yield from _recompose_by_pairs(group, group_count, cell_offsets, bits, buckets, sums, members)


# -- grid -------------------------------------------------------------------------------------------------------------


def _recompose_by_grid(
    group: Ints, group_count: int, axes: Sequence[RangeAxis], sums: Sequence[Ints]
) -> Iterator[MemberSums]:
    """Yield the members' sums by the grid method. A plane of zeros at the front of each axis avoids border cases."""
    shape = [group_count, *(a.size + 1 for a in axes)]
    code = group
    for axis in axes:
        code = code * (axis.size + 1) + axis.row_buckets + 1
    totals = np.zeros((len(sums), group_count, len(axes[0].first_buckets)), np.int64)
    for i, values in enumerate(sums):
        grid = np.zeros(shape, np.int64)
        np.add.at(grid.reshape(-1), code, values)
        for j in range(1, len(shape) - 1):  # whole planes: five times faster than cumsum along an outer axis
            planes = np.moveaxis(grid, j, 0)
            for k in range(1, len(planes)):
                planes[k] += planes[k - 1]
        np.cumsum(grid, axis=-1, out=grid)
        for corner in itertools.product((0, 1), repeat=len(axes)):
            corners = [a.end_buckets if c else a.first_buckets for a, c in zip(axes, corner, strict=True)]
            sign = (-1) ** (len(axes) - sum(corner))
            totals[i] += sign * grid.reshape(group_count, -1)[:, np.ravel_multi_index(tuple(corners), tuple(shape[1:]))]
    yield from _nonzero(totals)


def _nonzero(sums: Ints) -> Iterator[MemberSums]:
    """Yield the pairs of [sum, group, member] where any sum is not zero."""
    group, member = np.nonzero(sums.any(axis=0))
    if len(member):
        yield member, group, [f[group, member] for f in sums]


# -- product and pairs -------------------------------------------------------------------------------------------------


def _number_cells(axes: Sequence[Axis]) -> Ints:
    """Return one number for each tuple of buckets."""
    code, span = axes[0].row_buckets, axes[0].size
    for axis in axes[1:]:
        if span * axis.size >= 1 << 62:
            values, code = np.unique(code, return_inverse=True)
            span = len(values)
        code, span = code * axis.size + axis.row_buckets, span * axis.size
    return code


def _sum_by_cell(
    cell: Ints, group: Ints, group_count: int, sums: Sequence[Ints]
) -> tuple[Ints, Ints, Ints, list[Ints]]:
    """Return distinct (cell, group) pairs in order: the cells, a row of each pair, the groups and the sums."""
    order = np.lexsort((group, cell)) if group_count > 1 else np.argsort(cell, kind="stable")
    cell, group = cell[order], group[order]
    start = np.flatnonzero(np.concatenate([[True], (cell[1:] != cell[:-1]) | (group[1:] != group[:-1])]))
    return cell[start], order[start], group[start], [np.add.reduceat(s[order], start) for s in sums]


def _matching_members(member_bits: Sequence[Bytes], buckets: Sequence[Ints], low: int, high: int) -> Bytes:
    matching = member_bits[0][buckets[0][low:high]]
    for bits, bucket in zip(member_bits[1:], buckets[1:], strict=True):
        matching &= bits[bucket[low:high]]
    return matching


def _recompose_by_product(
    group: Ints,
    group_count: int,
    cell_offsets: Ints,
    member_bits: Sequence[Bytes],
    buckets: Sequence[Ints],
    sums: Sequence[Ints],
    member_count: int,
) -> Iterator[MemberSums]:
    cells = len(cell_offsets) - 1
    cell_of_row = np.repeat(np.arange(cells), np.diff(cell_offsets))
    values = np.stack(sums) if sums else np.zeros((0, len(group)), np.int64)
    limbs = np.concatenate(
        [values & ((1 << _LIMB_BITS) - 1), (values >> _LIMB_BITS) & ((1 << _LIMB_BITS) - 1), values >> 2 * _LIMB_BITS]
    )
    totals = np.zeros((3 * len(values), group_count, member_count), np.int64)
    block = max(16, min(_CELLS_PER_BLOCK, _MAX_MATRIX_ENTRIES // member_count))
    for low in range(0, cells, block):
        high = min(low + block, cells)
        matching = _matching_members(member_bits, buckets, low, high)
        rows = np.arange(cell_offsets[low], cell_offsets[high])
        for k in np.unique(group[rows]):
            group_rows = rows[group[rows] == k]
            row_bits = matching[cell_of_row[group_rows] - low]
            matrix = np.unpackbits(row_bits, axis=1, count=member_count).astype(np.float64)
            totals[:, k] += (limbs[:, group_rows].astype(np.float64) @ matrix).astype(np.int64)
    low_sums, middle_sums, high_sums = np.split(totals, 3)
    yield from _nonzero(low_sums + (middle_sums << _LIMB_BITS) + (high_sums << 2 * _LIMB_BITS))


def _recompose_by_pairs(
    group: Ints,
    group_count: int,
    cell_offsets: Ints,
    member_bits: Sequence[Bytes],
    buckets: Sequence[Ints],
    sums: Sequence[Ints],
    member_count: int,
) -> Iterator[MemberSums]:
    """Yield the members' sums by the pairs method: work is done only for matching pairs, at most `_MAX_PAIRS` at a
    time."""
    cells, low = len(cell_offsets) - 1, 0
    count = np.diff(cell_offsets)
    block = max(1, min(_CELLS_PER_BLOCK, (1 << 25) // member_count))
    pairs: list[tuple[Ints, Ints]] = []
    pair_count = 0
    while low < cells:
        high = min(low + block, cells)
        matching = _matching_members(member_bits, buckets, low, high)
        matched_cells = np.flatnonzero(matching.any(axis=1))
        cell_index, member = np.nonzero(np.unpackbits(matching[matched_cells], axis=1, count=member_count))
        cell = matched_cells[cell_index] + low
        low = high
        edges = np.cumsum(count[cell])
        start = 0
        while start < len(cell):
            end = max(
                start + 1,
                int(np.searchsorted(edges, (edges[start - 1] if start else 0) + _MAX_PAIRS - pair_count, "right")),
            )
            pairs.append((cell[start:end], member[start:end]))
            pair_count += int(count[cell[start:end]].sum())
            start = end
            if pair_count >= _MAX_PAIRS:
                yield _sum_pairs(pairs, cell_offsets, count, group, group_count, sums)
                pairs, pair_count = [], 0
    if pair_count:
        yield _sum_pairs(pairs, cell_offsets, count, group, group_count, sums)


def _sum_pairs(
    pairs: Sequence[tuple[Ints, Ints]],
    cell_offsets: Ints,
    cell_sizes: Ints,
    group: Ints,
    group_count: int,
    sums: Sequence[Ints],
) -> MemberSums:
    cell, member = (np.concatenate(part) for part in zip(*pairs, strict=True))
    rows = expand_ranges(cell_offsets[:-1][cell], cell_sizes[cell])
    code = np.repeat(member, cell_sizes[cell]) * group_count + group[rows]
    order = np.argsort(code, kind="stable")
    code = code[order]
    start = np.flatnonzero(np.concatenate([[True], code[1:] != code[:-1]]))
    members, groups = np.divmod(code[start], group_count)
    return members, groups, [np.add.reduceat(s[rows][order], start) for s in sums]


# Columns of vectors as 64-bit integers that can be added in any order, may wrap around, and can be combined again. A
# column of zeros has no part; a column whose sums cannot exceed 64 bits has one; any other column is split into the
# three `Int128Array.addends`, each summed separately.


_MAX_INT64_SUM = 2.0**62


@dataclass(frozen=True)
class Addends:
    """The `parts` of all columns, concatenated; the number of parts of each column; and the columns' types."""

    parts: tuple[Ints, ...]
    counts: tuple[int, ...]
    types: tuple[pa.DataType, ...]

    def combine(self, parts: Sequence[Ints], weights: Ints) -> list[pa.Array]:
        """Return columns from sums of the parts, with each row multiplied by its weight."""
        columns, part_index = [], 0
        for count, kind in zip(self.counts, self.types, strict=True):
            weighted = [part * weights for part in parts[part_index : part_index + count]]
            part_index += count
            columns.append(_combine_column(weighted, kind, len(weights)))
        return columns


def split_addends(rows: pa.Table, names: Sequence[str]) -> Addends:
    parts: list[Ints] = []
    counts, kinds = [], []
    for name in names:
        column = one_chunk(rows.column(name))
        column_parts = _split_column(column)
        parts += column_parts
        counts.append(len(column_parts))
        kinds.append(column.type)
    return Addends(tuple(parts), tuple(counts), tuple(kinds))


def _split_column(column: pa.Array) -> list[Ints]:
    if not pa.types.is_decimal(column.type):
        values: Ints = column.to_numpy()
        return [values] if values.any() else []
    wide = Int128Array.from_decimals(column)
    if not wide.low.any() and not wide.high.any():
        return []
    small = wide.low.view(np.int64)
    if bool(wide.fits_int64.all()) and float(np.abs(small.astype(np.float64)).sum()) < _MAX_INT64_SUM:
        return [np.ascontiguousarray(small)]
    return list(wide.addends)


def _combine_column(parts: Sequence[Ints], arrow_type: pa.DataType, row_count: int) -> pa.Array:
    if not parts:
        parts = [np.zeros(row_count, np.int64)]
    if not pa.types.is_decimal(arrow_type):
        return pa.array(parts[0], arrow_type)
    wide = Int128Array.sum(*parts) if len(parts) == 3 else Int128Array(parts[0].view(np.uint64), parts[0] >> 63)
    return wide.to_decimals(arrow_type, np.ones(row_count, np.bool_))
