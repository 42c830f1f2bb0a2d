"""Places: rows of an arrangement told by where they lie, so that a lookup copies nothing.

    place = (rows of the runs before) + index in its run          −1: there is no row

A lookup by a unique key gives one place for each probe. A table with a primary key has at most one row of a key, and a
run is a sum of changes, so the newest run that knows the key decides: it holds −old +new, +new, or −old alone, where
the row is gone. A lookup by any other key gives every row of every run, whose weights add up.

Hashes collide, so the real keys are compared, but for one integer: its hash is a bijection. NULL equals nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model.arrow_buffers import buffer_view, one_chunk, take_array
from viewkeeper.model.int128 import Flags
from viewkeeper.model.schema import WEIGHT
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.hash_index import Hashes, RowIds
from viewkeeper.state.key_hash import NULL_HASH, hash_keys, is_bijective
from viewkeeper.state.row_ranges import expand_ranges, split_ranges
from viewkeeper.state.run import Arrangement, Run, weights_of


class RangeFilter(Protocol):
    """Some rows of a run."""

    def filter_ranges(self, start: RowIds, stop: RowIds) -> Iterable[tuple[RowIds, RowIds, RowIds]]:
        """Those that lie in each of the ranges: the first, how many, and the list of places in which they are."""


class LookupCursor:
    """Rows that places point to: the runs of an arrangement one after the other, or the rows of a delta."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = tuple(runs)
        self.run_offsets = np.cumsum([0, *(run.num_rows for run in self.runs)])

    def select(self, row_ids: RowIds) -> RowSelection:
        return RowSelection(self, row_ids)

    def unique(self, probe: Probe, key: Sequence[str]) -> RowIds:
        """For each probe the place of the one row with its key, −1 where there is none; the key is unique."""
        found = np.full(len(probe.hashes), -1, np.int64)
        left = probe.non_null
        exact, odd = probe.has_exact_hashes, []
        Arrangement(self.runs).runs_overlapping(probe.hashes)
        for run, first in zip(reversed(self.runs), self.run_offsets[-2::-1], strict=True):
            if not len(left):
                break
            codes = probe.hashes if len(left) == len(probe.hashes) else probe.hashes[left]
            if not run.may_contain(codes):
                continue
            low = run.starts(codes)
            is_hit = _has_hash_at(run, low, codes)
            if not is_hit.any():
                continue
            asked, low, codes = left[is_hit], low[is_hit], codes[is_hit]
            left = left[~is_hit]
            is_odd = _NO_COLLISIONS
            if WEIGHT in run.rows.column_names:
                weights = weights_of(run.rows)
                high = low + _has_hash_at(run, low + 1, codes)
                place = np.where(weights[low] < 0, high, low)
                found[asked] = np.where(weights[place] > 0, first + place, -1)
                is_odd = _has_hash_at(run, low + 2, codes)
                if not exact:
                    is_odd |= ~(
                        _has_equal_keys(probe, asked, run, low, key) & _has_equal_keys(probe, asked, run, high, key)
                    )
            else:
                found[asked] = first + low
                if not exact:
                    is_odd = ~_has_equal_keys(probe, asked, run, low, key)
            if is_odd.any():
                odd.append(asked[is_odd])
        if odd:
            self._find_newest(probe, np.concatenate(odd), key, found)
        return found

    def _find_newest(self, probe: Probe, probe_index: RowIds, key: Sequence[str], row_ids: RowIds) -> None:
        """The same where hashes collided: of the rows with the very key the newest run's, and of those the one that
        came."""
        index, place, weight = self.matches(probe.subset(probe_index), key)
        run = np.searchsorted(self.run_offsets, place, "right")
        order = np.lexsort((-weight, -run, index))
        is_first = np.concatenate([[True], index[order][1:] != index[order][:-1]])[: len(order)]
        best = order[is_first]
        row_ids[probe_index] = -1
        came = best[weight[best] > 0]
        row_ids[probe_index[index[came]]] = place[came]

    def matches(self, probe: Probe, key: Sequence[str]) -> tuple[RowIds, RowIds, RowIds]:
        """(index of the probe, place, weight) of every row with the probe's key, run by run."""
        found = list(self.iter_matches(probe, key, _UNLIMITED))
        return found[0] if found else (_NO_ROW_IDS, _NO_ROW_IDS, _NO_ROW_IDS)

    def iter_matches(
        self, probe: Probe, key: Sequence[str], max_rows: int, row_filter: Sequence[RangeFilter] | None = None
    ) -> Iterator[tuple[RowIds, RowIds, RowIds]]:
        """The same, at most so many at a time. How many there are is known before any is looked at. `among`: of each
        run these rows only."""
        asked = probe.non_null
        met: list[tuple[int, RowIds, RowIds, RowIds | None]] = []
        codes = probe.hashes[asked]
        Arrangement(self.runs).runs_overlapping(codes)
        for i, run in enumerate(self.runs):
            if not run.may_contain(codes):
                continue
            start, stop = run.ranges(codes)
            parts = [(start, stop - start, None)] if row_filter is None else row_filter[i].filter_ranges(start, stop)
            met += [(i, first, count, listed) for first, count, listed in parts if bool(count.any())]
        if sum(int(count.sum()) for _, _, count, _ in met) <= max_rows:
            found = [
                self._compare_keys(
                    probe, key, i, np.repeat(asked, count), _map_row_ids(listed, expand_ranges(first, count))
                )
                for i, first, count, listed in met
            ]
            if found:
                index, place, weight = (np.concatenate(each) for each in zip(*found, strict=True))
                yield index, place, weight
            return
        for i, first, count, listed in met:
            for low, high, begin, length in split_ranges(first, count, max_rows):
                places = _map_row_ids(listed, expand_ranges(begin, length))
                yield self._compare_keys(probe, key, i, np.repeat(asked[low:high], length), places)

    def _compare_keys(
        self, probe: Probe, key: Sequence[str], run_index: int, probe_index: RowIds, row_ids: RowIds
    ) -> tuple[RowIds, RowIds, RowIds]:
        run = self.runs[run_index]
        if not probe.has_exact_hashes:
            same = np.flatnonzero(_has_equal_keys(probe, probe_index, run, row_ids, key))
            probe_index, row_ids = probe_index[same], row_ids[same]
        weight = weights_of(run.rows)[row_ids] if WEIGHT in run.rows.column_names else np.ones(len(row_ids), np.int64)
        return probe_index, row_ids + self.run_offsets[run_index], weight


class Probe:
    """Keys to look up: columns in the order of the arrangement's key, and their hashes."""

    def __init__(
        self, statements: PreparedStatements, columns: Sequence[pa.Array], key_hashes: Hashes | None = None
    ) -> None:
        self.statements, self.columns = statements, tuple(columns)
        if key_hashes is None:
            names = tuple(f"k{i}" for i in range(len(self.columns)))
            key_hashes = hash_keys(statements, pa.table(list(self.columns), names=list(names)), names)
        self.hashes = key_hashes

    @cached_property
    def non_null(self) -> RowIds:
        """The probes without a NULL."""
        known: Flags | None = None
        for column in self.columns:
            if column.null_count:
                valid = np.asarray(column.is_valid())
                known = valid if known is None else known & valid
        return np.arange(len(self.hashes)) if known is None else np.flatnonzero(known)

    @cached_property
    def has_exact_hashes(self) -> bool:
        """Whether equal hashes are equal keys. (NULL's hash is also that of a number.)"""
        kinds = [column.type for column in self.columns]
        return is_bijective(kinds) and not bool((self.hashes[self.non_null] == NULL_HASH).any())

    def subset(self, positions: RowIds) -> Probe:
        return Probe(
            self.statements, [column.take(pa.array(positions)) for column in self.columns], self.hashes[positions]
        )


class RowSelection:
    """Rows at some places: their columns, each taken when it is asked for."""

    def __init__(self, cursor: LookupCursor, row_ids: RowIds) -> None:
        self._cursor, self._row_ids = cursor, row_ids
        self._columns: dict[str, pa.Array] = {}

    def column(self, name: str) -> pa.Array:
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = self._materialize(name)
        return found

    def _materialize(self, name: str) -> pa.Array:
        parts = self.rows_by_run
        arrays = [one_chunk(part.run.rows.column(name)) for part in parts]
        if not parts:
            return one_chunk(self._cursor.runs[0].rows.column(name)).slice(0, 0)
        if len(parts) == 1:
            return arrays[0] if parts[0].row_ids is None else take_array(arrays[0], parts[0].row_id_array)
        numbers = [n for array in arrays if (n := buffer_view(array)) is not None]
        if len(numbers) < len(arrays):
            found = [take_array(array, part.row_id_array) for array, part in zip(arrays, parts, strict=True)]
            return take_array(pa.concat_arrays(found), self._output_order)
        whole = np.empty(len(self._row_ids), numbers[0].dtype)
        for values, part in zip(numbers, parts, strict=True):
            whole[part.output_positions] = values if part.row_ids is None else values[part.row_ids]
        return pa.Array.from_buffers(arrays[0].type, len(whole), [None, pa.py_buffer(whole)])

    @cached_property
    def rows_by_run(self) -> tuple[RunRows, ...]:
        """The rows by the run that has them."""
        lying, places = self._cursor, self._row_ids
        if len(lying.runs) == 1:
            run = lying.runs[0]
            is_all = len(places) == run.num_rows and bool((places == np.arange(len(places))).all())
            return (RunRows(run, slice(None), None if is_all else places),) if len(places) else ()
        found, left = [], len(places)
        for run, first, end in zip(lying.runs, lying.run_offsets, lying.run_offsets[1:], strict=False):
            if not left:
                break
            mine = np.flatnonzero((places >= first) & (places < end))
            left -= len(mine)
            if len(mine) == len(places):
                return (RunRows(run, slice(None), places - first),)
            if len(mine):
                found.append(RunRows(run, mine, places[mine] - first))
        return tuple(found)

    @cached_property
    def _output_order(self) -> pa.Array:
        """From the order of the runs to that of the places."""
        order = np.concatenate([part.output_positions for part in self.rows_by_run])
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pa.array(back)


@dataclass(frozen=True)
class RunRows:
    """Rows of one run: which of those that were picked, and where they are inside it (None: all of it, in order)."""

    run: Run
    output_positions: RowIds | slice
    row_ids: RowIds | None

    @cached_property
    def row_id_array(self) -> pa.Array:
        return pa.array(np.arange(self.run.num_rows) if self.row_ids is None else self.row_ids)


def _map_row_ids(listed_row_ids: RowIds | None, positions: RowIds) -> RowIds:
    return positions if listed_row_ids is None else listed_row_ids[positions]


_NO_ROW_IDS = np.zeros(0, np.int64)
_UNLIMITED = np.iinfo(np.int64).max


_NO_COLLISIONS = np.zeros(1, np.bool_)


def _has_hash_at(run: Run, row_ids: RowIds, hashes: Hashes) -> Flags:
    """Where a run has the very hash at a place, which may lie beyond its end."""
    last = run.num_rows - 1
    found: Flags = (run.hashes[np.minimum(row_ids, last)] == hashes) & (row_ids <= last)
    return found


def _has_equal_keys(probe: Probe, probe_index: RowIds, run: Run, row_ids: RowIds, key: Sequence[str]) -> Flags:
    """Whether the rows at these places of a run have the very keys that were asked for."""
    same = np.ones(len(probe_index), np.bool_)
    for column, name in zip(probe.columns, key, strict=True):
        theirs = one_chunk(run.rows.column(name)).take(pa.array(row_ids))
        same &= np.asarray(pc.fill_null(pc.equal(column.take(pa.array(probe_index)), theirs), False))
    return same
