"""Arrangements: the rows of a relation, indexed by the hash of a key, as a small number of immutable sorted runs.

    Arrangement = sum of its runs, oldest first.      Run = Arrow rows sorted by `¤h` (uint64), one chunk.

A lookup finds the range of each hash in each run and reads the rows. Hashes can collide: the caller of a lookup
compares the keys afterwards, so a collision costs time but never correctness. Runs hold multisets with weights `¤w`
(left out if all are one), or additive state, whose rows are vectors that add up by key. Either way the sum of two runs
is their concatenation, and merging only makes it shorter.

`hash_index` describes how a run finds hashes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from viewkeeper.errors import Contradiction
from viewkeeper.model.arrow_buffers import buffer_view, one_chunk
from viewkeeper.model.delta import rearrange
from viewkeeper.model.names import HASH, quoted
from viewkeeper.model.schema import WEIGHT
from viewkeeper.resources.memory import table_bytes
from viewkeeper.resources.object_store import run_parallel
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.consolidate import consolidation_sql
from viewkeeper.state.hash_index import Hashes, HashIndex, RowIds, radix_argsort
from viewkeeper.state.row_ranges import expand_ranges, split_ranges

_UNLIMITED = np.iinfo(np.int64).max
_MAX_CACHED_RESULTS = 32
_NO_HASHES = np.zeros(0, np.uint64)
_EMPTY_ROWS = pa.schema([(HASH, pa.uint64())]).empty_table()


@dataclass(frozen=True)
class Run:
    """Rows sorted by `¤h`, each column in one chunk. Without a `¤w` column every weight is one."""

    rows: pa.Table

    @cached_property
    def hashes(self) -> Hashes:
        return hashes_of(self.rows)

    @property
    def num_rows(self) -> int:
        return int(self.rows.num_rows)

    @property
    def low(self) -> int:
        """Smallest hash; 0 in an empty run."""
        return int(self.hashes[0]) if self.num_rows else 0

    @property
    def high(self) -> int:
        """Greatest hash; 0 in an empty run."""
        return int(self.hashes[-1]) if self.num_rows else 0

    @cached_property
    def num_bytes(self) -> int:
        return table_bytes(self.rows)

    def width(self, columns: Sequence[str]) -> float:
        """Return the average number of bytes that these columns take in one row."""
        bytes_per_row = self._widths.get(name := tuple(columns))
        if bytes_per_row is None:
            bytes_per_row = self._widths[name] = table_bytes(self.rows.select(columns)) / max(1, self.num_rows)
        return bytes_per_row

    @cached_property
    def _widths(self) -> dict[tuple[str, ...], float]:
        return {}

    def numpy_column(self, name: str) -> npt.NDArray[Any]:
        """Return a column of integers, or of decimals as the words of its Arrow buffer. Raise an error if it has
        NULLs."""
        values = self._numpy_columns.get(name)
        if values is None:
            array = one_chunk(self.rows.column(name))
            values = buffer_view(array) if pa.types.is_decimal(array.type) else array.to_numpy()
            if values is None:
                raise Contradiction(f"A run has a NULL where it must have numbers: {name}.")
            self._numpy_columns[name] = values
        return values

    @cached_property
    def _numpy_columns(self) -> dict[str, npt.NDArray[Any]]:
        return {}

    @property
    def is_open(self) -> bool:
        """Whether the rows are mapped or in memory (see `run_file.LazyRun`)."""
        return True

    def may_contain(self, hashes: Hashes) -> bool:
        """Return whether the run may have rows with some of the hashes."""
        return True

    @property
    def weighted_rows(self) -> pa.Table:
        """The rows with an explicit weight column."""
        return _with_weights(self.rows)

    def take(self, row_ids: RowIds, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows with these row ids, with their weights."""
        rows = self.rows
        if columns is not None:
            rows = rows.select([*columns, WEIGHT] if WEIGHT in rows.column_names else columns)
        if not rows.num_columns:  # a table without columns has no row count
            return pa.table({WEIGHT: np.ones(len(row_ids), np.int64)})
        return _with_weights(rows.take(pa.array(row_ids)))

    def ranges(self, hashes: Hashes) -> tuple[RowIds, RowIds]:
        """Return for each of the ascending hashes the range [start, stop) of its rows, which may be empty."""
        return self._hash_index.ranges(hashes)

    def count_rows(self, hashes: Hashes) -> int:
        """Return the number of rows with these ascending hashes. The index keeps the ranges for the lookup that usually
        follows."""
        return self._hash_index.count_rows(hashes)

    def starts(self, hashes: Hashes) -> RowIds:
        """Return for each hash, in any order, the position of its first row; an arbitrary position if it has no row."""
        return self._hash_index.starts(hashes)

    @cached_property
    def cache(self) -> dict[str, Any]:
        """Results computed from the rows that are worth keeping with the run."""
        return {}

    def evict_oldest_results(self) -> None:
        """Drop all but the newest cached results: a dropped view leaves results that are never read again."""
        for oldest in list(self.cache)[:-_MAX_CACHED_RESULTS]:
            self.cache.pop(oldest, None)

    @cached_property
    def reachability_cache(self) -> dict[str, Any]:
        """Cached results of semijoin reduction: which rows can reach an exit, by plan node."""
        return {}

    @cached_property
    def _hash_index(self) -> HashIndex:
        return HashIndex(self.hashes)


@dataclass(frozen=True)
class Arrangement:
    """The sum of some runs, oldest first. Its columns are those that all of its runs have."""

    runs: tuple[Run, ...] = ()

    @property
    def num_rows(self) -> int:
        return sum(run.num_rows for run in self.runs)

    @property
    def num_bytes(self) -> int:
        return sum(run.num_bytes for run in self.runs)

    def with_runs(self, *runs: Run) -> Arrangement:
        return Arrangement((*self.runs, *(run for run in runs if run.num_rows)))

    def cache_result(self, name: str, result: Any) -> None:
        """Cache a result computed from all of these runs with the newest run.

        The cache entry refers to the older runs weakly: it must not keep runs in memory that a compaction has replaced.
        """
        *older, newest = self.runs
        for run in older:
            run.cache.pop(name, None)
        newest.cache[name] = tuple(map(weakref.ref, older)), result

    def cached_result(self, name: str) -> Any | None:
        """Return the cached result that was computed from exactly these runs, or None."""
        *older, newest = self.runs or (Run(_EMPTY_ROWS),)
        older_references, found = newest.cache.get(name, (None, None))
        if older_references is None or len(older_references) != len(older):
            return None
        return (
            found if all(reference() is run for reference, run in zip(older_references, older, strict=True)) else None
        )

    def runs_overlapping(self, hashes: Hashes) -> Arrangement:
        """Return the runs that may have rows with these hashes, opened in parallel; at least one run, for its
        columns."""
        if all(run.is_open for run in self.runs):
            return self
        overlapping = tuple(run for run in self.runs if run.is_open or run.may_contain(hashes)) or self.runs[:1]
        run_parallel(lambda run: run.rows, [run for run in overlapping if not run.is_open])
        return Arrangement(overlapping)

    def probe(self, hashes: Hashes, columns: Sequence[str]) -> tuple[RowIds, pa.Table]:
        """Return every (index into `hashes`, row) with that hash. The rows have `columns` and `¤w`."""
        found = list(self.probe_pieces(hashes, columns, _UNLIMITED))
        return found[0] if found else (np.zeros(0, np.int64), self._empty_rows(columns))

    def probe_pieces(
        self, hashes: Hashes, columns: Sequence[str], max_rows: int, row_filter: RunFilter | None = None
    ) -> Iterator[tuple[RowIds, pa.Table]]:
        """Yield the same as `probe`, at most `max_rows` rows at a time.

        The number of rows is known from the ranges, before any row is read. `row_filter` selects among the rows that
        are found in a run.
        """
        _check_type(hashes, np.uint64)
        order = radix_argsort(hashes)
        sorted_hashes = hashes[order]
        ranges = [(run, *run.ranges(sorted_hashes)) for run in self.runs_overlapping(sorted_hashes).runs]
        hits = [(run, start, stop - start) for run, start, stop in ranges if bool((stop > start).any())]
        if not hits:
            return
        if sum(int(count.sum()) for *_, count in hits) <= max_rows:
            found = [
                _filter_rows(run, np.repeat(order, count), expand_ranges(start, count), row_filter)
                for run, start, count in hits
            ]
            tables = [run.take(row_ids, columns) for (run, *_), (_, row_ids) in zip(hits, found, strict=True)]
            yield np.concatenate([probe_index for probe_index, _ in found]), _concat_tables(tables)
            return
        for run, start, count in hits:
            for first, last, begin, length in split_ranges(start, count, max_rows):
                probe_index, row_ids = _filter_rows(
                    run, np.repeat(order[first:last], length), expand_ranges(begin, length), row_filter
                )
                yield probe_index, run.take(row_ids, columns)

    def slice(self, hashes: Hashes, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows whose hash is one of the ascending, distinct `hashes`, with `columns` (None: all, `¤h` too)
        and `¤w`."""
        found = []
        for run, row_ids, _ in self.slice_row_ids(hashes):
            is_whole_run = len(row_ids) == run.num_rows and columns is None
            found.append(run.weighted_rows if is_whole_run else run.take(row_ids, columns))
        return _concat_tables(found) if found else self._empty_rows(columns)

    def slice_row_ids(self, hashes: Hashes) -> Iterator[tuple[Run, RowIds, RowIds]]:
        """Yield each run that has some of the ascending, distinct `hashes`, the row ids of these rows in the run, and
        for each row the index of its hash."""
        _check_type(hashes, np.uint64)
        for run in self.runs_overlapping(hashes).runs:
            # The usual case in a state with a small number of groups.
            if run.num_rows == len(hashes) and bool((run.hashes == hashes).all()):
                row_ids = np.arange(len(hashes))
                yield run, row_ids, row_ids
                continue
            start, stop = run.ranges(hashes)
            count = stop - start
            hit_hashes = np.flatnonzero(count)
            if not len(hit_hashes):
                continue
            start, count = start[hit_hashes], count[hit_hashes]
            row_ids = expand_ranges(start, count)
            yield run, row_ids, hit_hashes if len(row_ids) == len(hit_hashes) else np.repeat(hit_hashes, count)

    def rows(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows, with `columns` (None: all, `¤h` too) and `¤w`."""
        if not self.runs:
            return self._empty_rows(columns)
        return _concat_tables(
            [r.weighted_rows if columns is None else r.weighted_rows.select([*columns, WEIGHT]) for r in self.runs]
        )

    def _empty_rows(self, columns: Sequence[str] | None) -> pa.Table:
        """Return an empty table. An arrangement without runs does not know its columns' types and uses the type
        null."""
        if self.runs:
            open_run = next((run for run in self.runs if run.is_open), self.runs[0])
            return open_run.take(np.zeros(0, np.int64), columns)
        unknown = [(c, pa.null()) for c in columns] if columns is not None else [(HASH, pa.uint64())]
        return pa.schema([*unknown, (WEIGHT, pa.int64())]).empty_table()


RunFilter = Callable[[Run, RowIds], npt.NDArray[np.bool_]]
"""Returns which of the rows with these row ids a lookup returns."""


def _filter_rows(run: Run, probe_index: RowIds, row_ids: RowIds, row_filter: RunFilter | None) -> tuple[RowIds, RowIds]:
    """Return the (probe index, row id) pairs that pass the filter."""
    if row_filter is None:
        return probe_index, row_ids
    is_selected = row_filter(run, row_ids)
    return probe_index[is_selected], row_ids[is_selected]


def arrange(delta: pa.Table) -> Run:
    """Return the rows as a run: sorted by hash, equal hashes in input order, weights left out if all are one."""
    hashes = hashes_of(delta)
    if WEIGHT in delta.column_names and bool((weights_of(delta) == 1).all()):
        delta = delta.drop_columns([WEIGHT])
    is_sorted = not (hashes[1:] < hashes[:-1]).any()
    return Run(rearrange(delta, None if is_sorted else pa.array(radix_argsort(hashes))))


def concat_ordered_runs(runs: Sequence[Run], spill: Callable[[pa.Table], pa.Table]) -> Run:
    """Concatenate runs with ascending, disjoint hash ranges to one run. Each column is spilled as soon as it is
    complete."""
    rows = [run.rows for run in runs]
    if any(WEIGHT in r.column_names for r in rows):
        rows = [run.weighted_rows for run in runs]
    rows = _select_common_columns(rows)
    return Run(rearrange(pa.concat_tables(rows), None, spill))


def merge(
    statements: PreparedStatements,
    runs: Sequence[Run],
    additive: Sequence[str] | None = None,
    *,
    order: Sequence[str] = (),
    keep_zero: bool = False,
) -> Run:
    """Return the sum of the runs as one run.

    Multisets are consolidated. With `additive`, rows that are equal in all other columns are added up in the additive
    columns, and a row of zeros is dropped unless `keep_zero`. `order` sorts the rows of one hash. Only hashes that
    occur outside the longest run are recomputed; the other rows of the longest run are copied unchanged.
    """
    longest = max(range(len(runs)), key=lambda i: runs[i].num_rows)
    shorter = [run.weighted_rows for i, run in enumerate(runs) if i != longest and run.num_rows]
    if not shorter:
        return runs[longest]
    base, *shorter = _select_common_columns([runs[longest].weighted_rows, *shorter])
    start, stop = runs[longest].ranges(distinct_hashes(*shorter))
    touched = expand_ranges(start, stop - start)
    changed = _concat_tables([base.take(pa.array(touched)), *shorter])
    if additive is None:
        sql = consolidation_sql(base.schema)
    else:
        sql = addition_sql(base.schema, additive, keep_zero)
    merged = statements.run(f"{sql} ORDER BY {', '.join(map(quoted, [HASH, *order]))}", delta=changed)
    untouched = np.delete(np.arange(base.num_rows), touched)
    positions = np.concatenate([untouched, np.arange(base.num_rows, base.num_rows + merged.num_rows)])
    sequence = radix_argsort(np.concatenate([runs[longest].hashes[untouched], hashes_of(merged)]))
    return arrange(_concat_tables([base, merged]).take(pa.array(positions[sequence])))


def addition_sql(schema: pa.Schema, additive: Sequence[str], keep_zero: bool) -> str:
    """Return the SQL statement that adds up the vectors of the table `delta`: rows that are equal in all other columns
    become one row."""
    keys = [quoted(f.name) for f in schema if f.name not in additive and f.name != WEIGHT]
    sums = {
        f.name: f"sum({quoted(f.name)})::{_sum_type(f.type)} AS {quoted(f.name)}" for f in schema if f.name in additive
    }
    selected = ", ".join(sums.get(c) or ("1::BIGINT AS ¤w" if c == WEIGHT else quoted(c)) for c in schema.names)
    having = "" if keep_zero else f" HAVING {' OR '.join(f'sum({quoted(c)}) <> 0' for c in sums)}"
    return f"SELECT {selected} FROM delta GROUP BY {', '.join(keys)}{having}"


def _sum_type(arrow_type: pa.DataType) -> str:
    return f"DECIMAL({arrow_type.precision},{arrow_type.scale})" if pa.types.is_decimal(arrow_type) else "BIGINT"


def hashes_of(table: pa.Table) -> Hashes:
    return _to_numpy(table.column(HASH), np.uint64)


def weights_of(table: pa.Table) -> RowIds:
    return _to_numpy(table.column(WEIGHT), np.int64)


def distinct_hashes(*tables: pa.Table) -> Hashes:
    """Return the distinct hashes in ascending order. It sorts, because `np.unique` hashes them, which takes four times
    as long."""
    found = [hashes_of(t) for t in tables if t.num_rows]
    if not found:
        return _NO_HASHES
    ordered = _drop_repeats(found[0] if len(found) == 1 else np.concatenate(found))
    if (ordered[1:] < ordered[:-1]).any():
        ordered = _drop_repeats(ordered[radix_argsort(ordered)])
    return ordered


def _drop_repeats(hashes: Hashes) -> Hashes:
    """Drop hashes that repeat their predecessor, as the lines of one order do."""
    is_first = hashes[1:] != hashes[:-1]
    return hashes if is_first.all() else hashes[np.concatenate([[True], is_first])]


def _to_numpy(column: Any, dtype: type) -> npt.NDArray[Any]:
    if column.num_chunks == 1:
        array: npt.NDArray[Any] = column.chunk(0).to_numpy()
    else:
        array = column.to_numpy()
    _check_type(array, dtype)
    return array


def _check_type(array: npt.NDArray[Any], dtype: type) -> None:
    """Raise an error for another type: numpy would compare such hashes as floats, and the lookup would return wrong
    rows."""
    if array.dtype != dtype:
        raise Contradiction(f"An arrangement has {array.dtype} where {np.dtype(dtype)} belongs.")


def _with_weights(rows: pa.Table) -> pa.Table:
    if WEIGHT in rows.column_names:
        return rows
    return rows.append_column(WEIGHT, pa.array(np.ones(rows.num_rows, np.int64)))


def _concat_tables(tables: list[pa.Table]) -> pa.Table:
    return tables[0] if len(tables) == 1 else pa.concat_tables(_select_common_columns(tables)).combine_chunks()


def _select_common_columns(tables: list[pa.Table]) -> list[pa.Table]:
    """Select the columns that all tables have, in one order: older runs of an image may have columns that newer runs
    lack, for views that have been dropped since."""
    names = tables[0].column_names
    if all(t.column_names == names for t in tables):
        return tables
    names = [n for n in names if all(n in t.column_names for t in tables)]
    return [t.select(names) for t in tables]
