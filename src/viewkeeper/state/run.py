"""Arrangements: the rows of a relation by the hash of a key, as a few immutable sorted runs.

    Arrangement = sum of its runs, oldest first.      Run = Arrow rows sorted by `¤h` (uint64), one chunk.

A lookup finds the range of each hash in each run and takes the rows. Hashes collide: whoever looks up compares the
real key afterwards, so a collision costs time and never correctness. Runs hold multisets with weights `¤w` (left out
when all are one), or additive state, whose rows are vectors that add up by key; either way the sum of two runs is
their concatenation, and merging only makes it shorter.

How hashes are found in a run is told in `finding.py`.
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
        """The smallest hash; 0 in an empty run."""
        return int(self.hashes[0]) if self.num_rows else 0

    @property
    def high(self) -> int:
        """The greatest hash; 0 in an empty run."""
        return int(self.hashes[-1]) if self.num_rows else 0

    @cached_property
    def num_bytes(self) -> int:
        return table_bytes(self.rows)

    def width(self, columns: Sequence[str]) -> float:
        """Bytes that these columns of a row take."""
        known = self._widths.get(name := tuple(columns))
        if known is None:
            known = self._widths[name] = table_bytes(self.rows.select(columns)) / max(1, self.num_rows)
        return known

    @cached_property
    def _widths(self) -> dict[tuple[str, ...], float]:
        return {}

    def numpy_column(self, name: str) -> npt.NDArray[Any]:
        """A column of integers, or of decimals as they lie in memory. It has no NULLs."""
        known = self._numpy_columns.get(name)
        if known is None:
            array = one_chunk(self.rows.column(name))
            known = buffer_view(array) if pa.types.is_decimal(array.type) else array.to_numpy()
            if known is None:
                raise Contradiction(f"A run has a NULL where it must have numbers: {name}.")
            self._numpy_columns[name] = known
        return known

    @cached_property
    def _numpy_columns(self) -> dict[str, npt.NDArray[Any]]:
        return {}

    @property
    def is_open(self) -> bool:
        """Whether its rows are at hand (see `runs.Closed`)."""
        return True

    def may_contain(self, hashes: Hashes) -> bool:
        """Whether it may have rows of some of the hashes."""
        return True

    @property
    def weighted_rows(self) -> pa.Table:
        """The rows with their weights spelt out."""
        return _with_weights(self.rows)

    def take(self, row_ids: RowIds, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows at these places, with their weights."""
        rows = self.rows
        if columns is not None:
            rows = rows.select([*columns, WEIGHT] if WEIGHT in rows.column_names else columns)
        if not rows.num_columns:  # a table without columns forgets how many rows it has
            return pa.table({WEIGHT: np.ones(len(row_ids), np.int64)})
        return _with_weights(rows.take(pa.array(row_ids)))

    def ranges(self, hashes: Hashes) -> tuple[RowIds, RowIds]:
        """For each of the ascending hashes, the range [start, stop) of its rows, which may be empty."""
        return self._hash_index.ranges(hashes)

    def count_rows(self, hashes: Hashes) -> int:
        """How many rows the ascending hashes have, which are about to be asked for."""
        return self._hash_index.count_rows(hashes)

    def starts(self, hashes: Hashes) -> RowIds:
        """For each hash, ascending or not, where its rows begin; anywhere if there are none."""
        return self._hash_index.starts(hashes)

    @cached_property
    def cache(self) -> dict[str, Any]:
        """What was worked out of its rows and is worth keeping with them."""
        return {}

    def evict_oldest_results(self) -> None:
        """Views come and go, and with them what they ask of the rows: the last few answers are kept."""
        for oldest in list(self.cache)[:-_MAX_CACHED_RESULTS]:
            self.cache.pop(oldest, None)

    @cached_property
    def reachability_cache(self) -> dict[str, Any]:
        """Which of its rows lead somewhere (`ahead`), by who asks."""
        return {}

    @cached_property
    def _hash_index(self) -> HashIndex:
        return HashIndex(self.hashes)


@dataclass(frozen=True)
class Arrangement:
    """The sum of some runs, oldest first. Its columns are those that all runs have."""

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
        """Keep what was worked out of these runs together, with the newest of them. It holds none of the others: they
        may be merged away."""
        *older, newest = self.runs
        for run in older:
            run.cache.pop(name, None)
        newest.cache[name] = tuple(map(weakref.ref, older)), result

    def cached_result(self, name: str) -> Any | None:
        """What was worked out of these very runs."""
        *older, newest = self.runs or (Run(_EMPTY_ROWS),)
        before, found = newest.cache.get(name, (None, None))
        if before is None or len(before) != len(older):
            return None
        return found if all(one() is other for one, other in zip(before, older, strict=True)) else None

    def runs_overlapping(self, hashes: Hashes) -> Arrangement:
        """Those of its runs that may have rows of these hashes, opened side by side; at least one, for the columns."""
        if all(run.is_open for run in self.runs):
            return self
        met = tuple(run for run in self.runs if run.is_open or run.may_contain(hashes)) or self.runs[:1]
        run_parallel(lambda run: run.rows, [run for run in met if not run.is_open])
        return Arrangement(met)

    def probe(self, hashes: Hashes, columns: Sequence[str]) -> tuple[RowIds, pa.Table]:
        """Every (index into `hashes`, row) with the same hash; the rows have `columns` and `¤w`."""
        found = list(self.probe_pieces(hashes, columns, _UNLIMITED))
        return found[0] if found else (np.zeros(0, np.int64), self._empty_rows(columns))

    def probe_pieces(
        self, hashes: Hashes, columns: Sequence[str], max_rows: int, row_filter: RunFilter | None = None
    ) -> Iterator[tuple[RowIds, pa.Table]]:
        """The same, at most so many at a time. How many there are is known before any row is taken. `among`: which
        rows of a run are meant."""
        _check_type(hashes, np.uint64)
        order = radix_argsort(hashes)
        sought = hashes[order]
        ranges = [(run, *run.ranges(sought)) for run in self.runs_overlapping(sought).runs]
        met = [(run, start, stop - start) for run, start, stop in ranges if bool((stop > start).any())]
        if not met:
            return
        if sum(int(count.sum()) for *_, count in met) <= max_rows:
            found = [
                _filter_rows(run, np.repeat(order, count), expand_ranges(start, count), row_filter)
                for run, start, count in met
            ]
            taken = [run.take(places, columns) for (run, *_), (_, places) in zip(met, found, strict=True)]
            yield np.concatenate([asked for asked, _ in found]), _concat_tables(taken)
            return
        for run, start, count in met:
            for first, last, begin, length in split_ranges(start, count, max_rows):
                asked, places = _filter_rows(
                    run, np.repeat(order[first:last], length), expand_ranges(begin, length), row_filter
                )
                yield asked, run.take(places, columns)

    def slice(self, hashes: Hashes, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows whose hash is one of the ascending, distinct `hashes`, with `columns` (None: all, `¤h` too) and
        `¤w`."""
        found = []
        for run, places, _ in self.slice_row_ids(hashes):
            whole = len(places) == run.num_rows and columns is None
            found.append(run.weighted_rows if whole else run.take(places, columns))
        return _concat_tables(found) if found else self._empty_rows(columns)

    def slice_row_ids(self, hashes: Hashes) -> Iterator[tuple[Run, RowIds, RowIds]]:
        """The runs that have some of the ascending, distinct `hashes`: the places of their rows, and the index of each
        one's hash."""
        _check_type(hashes, np.uint64)
        for run in self.runs_overlapping(hashes).runs:
            if run.num_rows == len(hashes) and bool((run.hashes == hashes).all()):  # so it is in a state of few groups
                places = np.arange(len(hashes))
                yield run, places, places
                continue
            start, stop = run.ranges(hashes)
            count = stop - start
            some = np.flatnonzero(count)
            if not len(some):
                continue
            start, count = start[some], count[some]
            places = expand_ranges(start, count)
            yield run, places, some if len(places) == len(some) else np.repeat(some, count)

    def rows(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows, with `columns` (None: all, `¤h` too) and `¤w`."""
        if not self.runs:
            return self._empty_rows(columns)
        return _concat_tables(
            [r.weighted_rows if columns is None else r.weighted_rows.select([*columns, WEIGHT]) for r in self.runs]
        )

    def _empty_rows(self, columns: Sequence[str] | None) -> pa.Table:
        """No rows. An arrangement without runs does not know its columns' types, and says null."""
        if self.runs:
            known = next((run for run in self.runs if run.is_open), self.runs[0])
            return known.take(np.zeros(0, np.int64), columns)
        unknown = [(c, pa.null()) for c in columns] if columns is not None else [(HASH, pa.uint64())]
        return pa.schema([*unknown, (WEIGHT, pa.int64())]).empty_table()


RunFilter = Callable[[Run, RowIds], npt.NDArray[np.bool_]]
"""Which of a run's rows at some places are meant."""


def _filter_rows(run: Run, probe_index: RowIds, row_ids: RowIds, row_filter: RunFilter | None) -> tuple[RowIds, RowIds]:
    """Of who asked, and the rows that were found for them, those that are meant."""
    if row_filter is None:
        return probe_index, row_ids
    is_meant = row_filter(run, row_ids)
    return probe_index[is_meant], row_ids[is_meant]


def arrange(delta: pa.Table) -> Run:
    """The rows as a run: sorted by hash, equal hashes in the order given; weights left out when all are one."""
    hashes = hashes_of(delta)
    if WEIGHT in delta.column_names and bool((weights_of(delta) == 1).all()):
        delta = delta.drop_columns([WEIGHT])
    is_sorted = not (hashes[1:] < hashes[:-1]).any()
    return Run(rearrange(delta, None if is_sorted else pa.array(radix_argsort(hashes))))


def concat_ordered_runs(runs: Sequence[Run], spill: Callable[[pa.Table], pa.Table]) -> Run:
    """Runs whose hashes follow each other as one. Each column goes `aside` as soon as it is whole."""
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
    """The sum of the runs as one run.

    Multisets are consolidated. With `additive`, rows equal in all other columns add up in those columns, and a row of
    zeros goes, unless `keep_zero`. `order` sorts the rows of one hash. Only hashes that occur outside the longest run
    are computed anew; its other rows are as they should be already.
    """
    longest = max(range(len(runs)), key=lambda i: runs[i].num_rows)
    others = [run.weighted_rows for i, run in enumerate(runs) if i != longest and run.num_rows]
    if not others:
        return runs[longest]
    base, *others = _select_common_columns([runs[longest].weighted_rows, *others])
    start, stop = runs[longest].ranges(distinct_hashes(*others))
    touched = expand_ranges(start, stop - start)
    changed = _concat_tables([base.take(pa.array(touched)), *others])
    if additive is None:
        sql = consolidation_sql(base.schema)
    else:
        sql = addition_sql(base.schema, additive, keep_zero)
    anew = statements.run(f"{sql} ORDER BY {', '.join(map(quoted, [HASH, *order]))}", delta=changed)
    kept = np.delete(np.arange(base.num_rows), touched)
    places = np.concatenate([kept, np.arange(base.num_rows, base.num_rows + anew.num_rows)])
    sequence = radix_argsort(np.concatenate([runs[longest].hashes[kept], hashes_of(anew)]))
    return arrange(_concat_tables([base, anew]).take(pa.array(places[sequence])))


def addition_sql(schema: pa.Schema, additive: Sequence[str], keep_zero: bool) -> str:
    """The statement that adds up the vectors of a table `delta`: rows equal in all other columns are one."""
    keys = [quoted(f.name) for f in schema if f.name not in additive and f.name != WEIGHT]
    sums = {
        f.name: f"sum({quoted(f.name)})::{_sum_type(f.type)} AS {quoted(f.name)}" for f in schema if f.name in additive
    }
    shown = ", ".join(sums.get(c) or ("1::BIGINT AS ¤w" if c == WEIGHT else quoted(c)) for c in schema.names)
    kept = "" if keep_zero else f" HAVING {' OR '.join(f'sum({quoted(c)}) <> 0' for c in sums)}"
    return f"SELECT {shown} FROM delta GROUP BY {', '.join(keys)}{kept}"


def _sum_type(arrow_type: pa.DataType) -> str:
    return f"DECIMAL({arrow_type.precision},{arrow_type.scale})" if pa.types.is_decimal(arrow_type) else "BIGINT"


def hashes_of(table: pa.Table) -> Hashes:
    return _to_numpy(table.column(HASH), np.uint64)


def weights_of(table: pa.Table) -> RowIds:
    return _to_numpy(table.column(WEIGHT), np.int64)


def distinct_hashes(*tables: pa.Table) -> Hashes:
    """The hashes that occur, ascending. (A sort: `np.unique` would hash them, which takes four times as long.)"""
    found = [hashes_of(t) for t in tables if t.num_rows]
    if not found:
        return _NO_HASHES
    ordered = _drop_repeats(found[0] if len(found) == 1 else np.concatenate(found))
    if (ordered[1:] < ordered[:-1]).any():
        ordered = _drop_repeats(ordered[radix_argsort(ordered)])
    return ordered


def _drop_repeats(hashes: Hashes) -> Hashes:
    """Without those that are repeated at once, as the lines of an order are."""
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
    """Of another type, hashes would be looked up as floats, and found wrongly."""
    if array.dtype != dtype:
        raise Contradiction(f"An arrangement has {array.dtype} where {np.dtype(dtype)} belongs.")


def _with_weights(rows: pa.Table) -> pa.Table:
    if WEIGHT in rows.column_names:
        return rows
    return rows.append_column(WEIGHT, pa.array(np.ones(rows.num_rows, np.int64)))


def _concat_tables(tables: list[pa.Table]) -> pa.Table:
    return tables[0] if len(tables) == 1 else pa.concat_tables(_select_common_columns(tables)).combine_chunks()


def _select_common_columns(tables: list[pa.Table]) -> list[pa.Table]:
    """The columns that all have, in one order: views come and go, and an image's older runs may hold more columns than
    its newer ones."""
    names = tables[0].column_names
    if all(t.column_names == names for t in tables):
        return tables
    names = [n for n in names if all(n in t.column_names for t in tables)]
    return [t.select(names) for t in tables]
