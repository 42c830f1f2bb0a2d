"""Lookup cursor: finds the rows of an arrangement that match probe keys, as row ids, so that a lookup copies no rows.

    row id = (rows of the runs before) + index in its run          −1: no row

A lookup by a unique key returns one row id for each probe. A table with a primary key has at most one row per key, and
a run is a sum of changes, so the newest run that contains the key decides: it holds −old +new, +new, or −old alone if
the row was deleted. A lookup by any other key returns every matching row of every run; the caller adds up the weights.

Hashes can collide, so the cursor compares the keys themselves, except for a key of one integer, whose hash is a
bijection. NULL equals nothing.
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
    """Restricts lookups to some rows of a run."""

    def filter_ranges(self, start: RowIds, stop: RowIds) -> Iterable[tuple[RowIds, RowIds, RowIds]]:
        """Return the filtered rows of each range as (start, count, row ids): ranges of positions in a list of row
        ids."""


class LookupCursor:
    """Finds rows by key in a list of runs: the runs of an arrangement, or one run that is a delta. Row ids count
    through all runs in order."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = tuple(runs)
        self.run_offsets = np.cumsum([0, *(run.num_rows for run in self.runs)])

    def select(self, row_ids: RowIds) -> RowSelection:
        return RowSelection(self, row_ids)

    def unique(self, probe: Probe, key: Sequence[str]) -> RowIds:
        """Return for each probe the row id of the row with its key, or −1 if there is none. The key must be unique."""
        found = np.full(len(probe.hashes), -1, np.int64)
        remaining = probe.non_null
        exact, collided = probe.has_exact_hashes, []
        Arrangement(self.runs).runs_overlapping(probe.hashes)
        for run, first in zip(reversed(self.runs), self.run_offsets[-2::-1], strict=True):
            if not len(remaining):
                break
            hashes = probe.hashes if len(remaining) == len(probe.hashes) else probe.hashes[remaining]
            if not run.may_contain(hashes):
                continue
            low = run.starts(hashes)
            is_hit = _has_hash_at(run, low, hashes)
            if not is_hit.any():
                continue
            hit_probes, low, hashes = remaining[is_hit], low[is_hit], hashes[is_hit]
            remaining = remaining[~is_hit]
            is_collision = _NO_COLLISIONS
            if WEIGHT in run.rows.column_names:
                weights = weights_of(run.rows)
                high = low + _has_hash_at(run, low + 1, hashes)
                newest = np.where(weights[low] < 0, high, low)
                found[hit_probes] = np.where(weights[newest] > 0, first + newest, -1)
                is_collision = _has_hash_at(run, low + 2, hashes)
                if not exact:
                    is_collision |= ~(
                        _has_equal_keys(probe, hit_probes, run, low, key)
                        & _has_equal_keys(probe, hit_probes, run, high, key)
                    )
            else:
                found[hit_probes] = first + low
                if not exact:
                    is_collision = ~_has_equal_keys(probe, hit_probes, run, low, key)
            if is_collision.any():
                collided.append(hit_probes[is_collision])
        if collided:
            self._find_newest(probe, np.concatenate(collided), key, found)
        return found

    def _find_newest(self, probe: Probe, probe_index: RowIds, key: Sequence[str], row_ids: RowIds) -> None:
        """Resolve probes whose hashes collided, and write the result into `row_ids`: among the rows with an equal key,
        the newest run decides, and in it the inserted row."""
        index, matched_row_ids, weight = self.matches(probe.subset(probe_index), key)
        run = np.searchsorted(self.run_offsets, matched_row_ids, "right")
        order = np.lexsort((-weight, -run, index))
        is_first = np.concatenate([[True], index[order][1:] != index[order][:-1]])[: len(order)]
        best = order[is_first]
        row_ids[probe_index] = -1
        inserted = best[weight[best] > 0]
        row_ids[probe_index[index[inserted]]] = matched_row_ids[inserted]

    def matches(self, probe: Probe, key: Sequence[str]) -> tuple[RowIds, RowIds, RowIds]:
        """Return (probe index, row id, weight) of every row with a probe's key, run by run."""
        found = list(self.iter_matches(probe, key, _UNLIMITED))
        return found[0] if found else (_NO_ROW_IDS, _NO_ROW_IDS, _NO_ROW_IDS)

    def iter_matches(
        self, probe: Probe, key: Sequence[str], max_rows: int, row_filter: Sequence[RangeFilter] | None = None
    ) -> Iterator[tuple[RowIds, RowIds, RowIds]]:
        """Yield the same as `matches`, at most `max_rows` candidate rows at a time.

        The number of candidates is known from the hash ranges, before any row is read. `row_filter` has one filter for
        each run, which restricts the lookup to some of its rows.
        """
        probe_index = probe.non_null
        candidates: list[tuple[int, RowIds, RowIds, RowIds | None]] = []
        hashes = probe.hashes[probe_index]
        Arrangement(self.runs).runs_overlapping(hashes)
        for i, run in enumerate(self.runs):
            if not run.may_contain(hashes):
                continue
            start, stop = run.ranges(hashes)
            ranges = [(start, stop - start, None)] if row_filter is None else row_filter[i].filter_ranges(start, stop)
            candidates += [
                (i, first, count, listed_row_ids) for first, count, listed_row_ids in ranges if bool(count.any())
            ]
        if sum(int(count.sum()) for _, _, count, _ in candidates) <= max_rows:
            found = [
                self._compare_keys(
                    probe,
                    key,
                    i,
                    np.repeat(probe_index, count),
                    _map_row_ids(listed_row_ids, expand_ranges(first, count)),
                )
                for i, first, count, listed_row_ids in candidates
            ]
            if found:
                index, matched_row_ids, weight = (np.concatenate(each) for each in zip(*found, strict=True))
                yield index, matched_row_ids, weight
            return
        for i, first, count, listed_row_ids in candidates:
            for low, high, begin, length in split_ranges(first, count, max_rows):
                positions = _map_row_ids(listed_row_ids, expand_ranges(begin, length))
                yield self._compare_keys(probe, key, i, np.repeat(probe_index[low:high], length), positions)

    def _compare_keys(
        self, probe: Probe, key: Sequence[str], run_index: int, probe_index: RowIds, row_ids: RowIds
    ) -> tuple[RowIds, RowIds, RowIds]:
        run = self.runs[run_index]
        if not probe.has_exact_hashes:
            equal = np.flatnonzero(_has_equal_keys(probe, probe_index, run, row_ids, key))
            probe_index, row_ids = probe_index[equal], row_ids[equal]
        weight = weights_of(run.rows)[row_ids] if WEIGHT in run.rows.column_names else np.ones(len(row_ids), np.int64)
        return probe_index, row_ids + self.run_offsets[run_index], weight


class Probe:
    """Keys to look up: columns in the order of the arrangement's key, and the hashes of the keys."""

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
        """Indices of the probes whose keys have no NULL."""
        non_null: Flags | None = None
        for column in self.columns:
            if column.null_count:
                valid = np.asarray(column.is_valid())
                non_null = valid if non_null is None else non_null & valid
        return np.arange(len(self.hashes)) if non_null is None else np.flatnonzero(non_null)

    @cached_property
    def has_exact_hashes(self) -> bool:
        """Whether equal hashes imply equal keys. NULL's hash is also the hash of some number."""
        kinds = [column.type for column in self.columns]
        return is_bijective(kinds) and not bool((self.hashes[self.non_null] == NULL_HASH).any())

    def subset(self, positions: RowIds) -> Probe:
        return Probe(
            self.statements, [column.take(pa.array(positions)) for column in self.columns], self.hashes[positions]
        )


class RowSelection:
    """Selected rows of a cursor. A column is materialized when it is first read (late materialization)."""

    def __init__(self, cursor: LookupCursor, row_ids: RowIds) -> None:
        self._cursor, self._row_ids = cursor, row_ids
        self._columns: dict[str, pa.Array] = {}

    def column(self, name: str) -> pa.Array:
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = self._materialize(name)
        return found

    def _materialize(self, name: str) -> pa.Array:
        groups = self.rows_by_run
        arrays = [one_chunk(group.run.rows.column(name)) for group in groups]
        if not groups:
            return one_chunk(self._cursor.runs[0].rows.column(name)).slice(0, 0)
        if len(groups) == 1:
            return arrays[0] if groups[0].row_ids is None else take_array(arrays[0], groups[0].row_id_array)
        buffers = [n for array in arrays if (n := buffer_view(array)) is not None]
        if len(buffers) < len(arrays):
            found = [take_array(array, group.row_id_array) for array, group in zip(arrays, groups, strict=True)]
            return take_array(pa.concat_arrays(found), self._output_order)
        merged = np.empty(len(self._row_ids), buffers[0].dtype)
        for values, group in zip(buffers, groups, strict=True):
            merged[group.output_positions] = values if group.row_ids is None else values[group.row_ids]
        return pa.Array.from_buffers(arrays[0].type, len(merged), [None, pa.py_buffer(merged)])

    @cached_property
    def rows_by_run(self) -> tuple[RunRows, ...]:
        """The selected rows, grouped by run."""
        cursor, row_ids = self._cursor, self._row_ids
        if len(cursor.runs) == 1:
            run = cursor.runs[0]
            is_all = len(row_ids) == run.num_rows and bool((row_ids == np.arange(len(row_ids))).all())
            return (RunRows(run, slice(None), None if is_all else row_ids),) if len(row_ids) else ()
        found, remaining = [], len(row_ids)
        for run, first, end in zip(cursor.runs, cursor.run_offsets, cursor.run_offsets[1:], strict=False):
            if not remaining:
                break
            positions = np.flatnonzero((row_ids >= first) & (row_ids < end))
            remaining -= len(positions)
            if len(positions) == len(row_ids):
                return (RunRows(run, slice(None), row_ids - first),)
            if len(positions):
                found.append(RunRows(run, positions, row_ids[positions] - first))
        return tuple(found)

    @cached_property
    def _output_order(self) -> pa.Array:
        """Permutation from run order to the order of the selected row ids."""
        order = np.concatenate([group.output_positions for group in self.rows_by_run])
        inverse = np.empty(len(order), np.int64)
        inverse[order] = np.arange(len(order))
        return pa.array(inverse)


@dataclass(frozen=True)
class RunRows:
    """Selected rows of one run: their positions in the selection, and their indices in the run (None: all rows, in
    order)."""

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
    """Return for each row id whether the run has this hash there. A row id may be past the end of the run."""
    last = run.num_rows - 1
    found: Flags = (run.hashes[np.minimum(row_ids, last)] == hashes) & (row_ids <= last)
    return found


def _has_equal_keys(probe: Probe, probe_index: RowIds, run: Run, row_ids: RowIds, key: Sequence[str]) -> Flags:
    """Return for each pair whether the key of the run's row equals the probe's key."""
    equal = np.ones(len(probe_index), np.bool_)
    for column, name in zip(probe.columns, key, strict=True):
        run_column = one_chunk(run.rows.column(name)).take(pa.array(row_ids))
        equal &= np.asarray(pc.fill_null(pc.equal(column.take(pa.array(probe_index)), run_column), False))
    return equal
