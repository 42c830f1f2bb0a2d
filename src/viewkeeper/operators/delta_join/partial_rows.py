"""Rows under way: tuples of places, with their weights and the exits that want them, as bits.

find       a lookup by a unique key adds a place to the same rows; of an optional relation it may be none
matches    any other lookup makes new rows, one for each that has the key
judge      conditions take bits away; a row that nobody wants is looked up no further
table      columns are taken at the exit, from the places
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from viewkeeper.model import types
from viewkeeper.model.arrow_buffers import take_array
from viewkeeper.model.int128 import Words
from viewkeeper.model.schema import WEIGHT
from viewkeeper.model.types import Type
from viewkeeper.operators.delta_join.plan import (
    DELTA,
    MATCH_FLAG,
    ColumnRef,
    OptionalMatch,
    PathFilter,
    PathStep,
    evaluate_exit_masks,
    mask_word,
    mask_word_indexes,
)
from viewkeeper.operators.delta_join.semijoin import SemijoinReduction
from viewkeeper.operators.delta_join.semijoin_bitmaps import ReachabilityBitmap
from viewkeeper.state.cursor import LookupCursor, Probe, RowSelection
from viewkeeper.state.hash_index import RowIds

_CACHE_COST_FACTOR = 2
"""All bits of a run are worked out when those of the half of its rows were asked for."""
_STATEMENT_COST_IN_ROWS = 50_000
"""A statement for a few rows costs as much as one for so many: who asks often for little has the bits soon."""
_MAX_CACHED_ROWS = 1 << 21
"""Rows of a run whose bits are kept at most."""


class PartialRows:
    """Rows as places, with their weights and, in words of bits, the exits that want them."""

    def __init__(
        self,
        semijoin: SemijoinReduction,
        cursors: dict[int, LookupCursor],
        row_ids: dict[int, RowIds],
        weights: RowIds,
        exit_masks: list[Words],
    ) -> None:
        self.semijoin, self.cursors, self.row_ids, self.weights, self.exit_masks = (
            semijoin,
            cursors,
            row_ids,
            weights,
            exit_masks,
        )
        self.statements = semijoin.statements
        self.optional_types: dict[int, Mapping[str, Type]] = {}
        """The places at which there may be no row, with the types of their columns."""

    def rows_with_exits(self, exit_mask: int) -> RowIds:
        """The rows that one of these exits wants."""
        is_wanted: npt.NDArray[np.bool_] | None = None
        for word in mask_word_indexes(exit_mask):
            mine = self.exit_masks[word] & mask_word(exit_mask, word) != 0
            is_wanted = mine if is_wanted is None else is_wanted | mine
        return np.flatnonzero(is_wanted) if is_wanted is not None else np.zeros(0, np.int64)

    def filter(self, path_filter: PathFilter, exit_mask: int) -> None:
        """Take the bits of exits whose conditions are not met."""
        asked = path_filter.exit_mask & exit_mask
        if not len(some := self.rows_with_exits(asked)):
            return
        whole = len(some) == len(self.weights)
        places = {place for place, _ in path_filter.refs}
        if len(places) == 1 and DELTA not in places and places.isdisjoint(self.optional_types):
            told = self._cached_exit_masks(path_filter, places.pop(), some)
        else:
            told = evaluate_exit_masks(self.statements, path_filter, self._materialize_columns(path_filter.refs, some))
        for word, bits in told.items():
            kept = bits | ~mask_word(asked, word)
            if whole:
                self.exit_masks[word] &= kept
            else:
                self.exit_masks[word][some] &= kept

    def _cached_exit_masks(self, path_filter: PathFilter, relation: int, positions: RowIds) -> Mapping[int, Words]:
        """The bits of rows of an arrangement: those of a run are kept once asking cost as much as all would."""
        parts = self.cursors[relation].select(self.row_ids[relation][positions]).rows_by_run
        found = {word: np.empty(len(positions), np.uint64) for word in mask_word_indexes(path_filter.exit_mask)}
        for part in parts:
            memory = part.run.cache.setdefault(path_filter.cache_key, _ExitMaskCache())
            inside: RowIds | slice = slice(None) if part.row_ids is None else part.row_ids
            if memory.exit_masks is None:
                memory.request_cost += _STATEMENT_COST_IN_ROWS + (
                    part.run.num_rows if part.row_ids is None else len(part.row_ids)
                )
                rows = part.run.rows
                if memory.request_cost * _CACHE_COST_FACTOR < rows.num_rows or rows.num_rows > _MAX_CACHED_ROWS:
                    table = _path_columns(path_filter, relation, rows).take(part.row_id_array)
                    for word, bits in evaluate_exit_masks(self.statements, path_filter, table).items():
                        found[word][part.output_positions] = bits
                    continue
                memory.exit_masks = evaluate_exit_masks(
                    self.statements, path_filter, _path_columns(path_filter, relation, rows)
                )
                part.run.evict_oldest_results()
            for word, bits in memory.exit_masks.items():
                found[word][part.output_positions] = bits[inside]
        return found

    def extend_unique(self, step: PathStep, cursor: LookupCursor) -> None:
        """Add the place of the one row with the key; where there is none, nobody who looked wants the row."""
        some = self.rows_with_exits(step.exit_mask)
        places = np.full(len(self.weights), -1, np.int64)
        self.cursors[step.relation], self.row_ids[step.relation] = cursor, places
        if step.optional is not None:
            self.optional_types[step.relation] = dict(step.optional.column_types)
        if not len(some):
            return
        places[some] = found = cursor.unique(self._build_probe(step.key, some), step.arrangement_key)
        if step.optional is not None:
            self._apply_optional_match(step, step.optional, some)
            return
        self._clear_exits(some[found < 0], step.exit_mask)
        if (alive := self.semijoin.bitmaps_of(step)) is not None:
            there = some[found >= 0]
            self._apply_semijoin(step, alive, there)
            self.semijoin.record_skipped(step, len(there) - len(self.rows_with_exits(step.exit_mask)))
        for check in step.filters:
            self.filter(check, step.exit_mask)
        if (before := self.semijoin.probing_relation(step)) is not None:
            self.semijoin.record_wasted(before, len(some) - len(self.rows_with_exits(step.exit_mask)))

    def _apply_optional_match(self, step: PathStep, optional: OptionalMatch, positions: RowIds) -> None:
        """Rows that found one with their key have a match if it meets the conditions, else none."""
        places = self.row_ids[step.relation]
        if optional.match is not None and len(there := positions[places[positions] >= 0]):
            told = evaluate_exit_masks(
                self.statements, optional.match, self._materialize_columns(optional.match.refs, there)
            )
            places[there[told[0] == 0]] = -1
        if optional.join_type == "anti":
            self._clear_exits(positions[places[positions] >= 0], step.exit_mask)
        for check in step.filters:
            self.filter(check, step.exit_mask)

    def expand(self, step: PathStep, cursor: LookupCursor, max_rows: int) -> Iterator[PartialRows]:
        """Every row that is wanted with every row that has its key, some at a time."""
        some = self.rows_with_exits(step.exit_mask)
        if not len(some) or not cursor.runs:
            return
        probe, alive = self._build_probe(step.key, some), self.semijoin.bitmaps_of(step)
        before, in_vain, is_met = self.semijoin.probing_relation(step), 0, np.zeros(len(some), np.bool_)
        for index, place, weight in cursor.iter_matches(probe, step.arrangement_key, max_rows, alive):
            origin = some[index]
            places = {number: known[origin] for number, known in self.row_ids.items()} | {step.relation: place}
            bits = [word[origin] for word in self.exit_masks]
            for word, mine in enumerate(bits):  # what others want of these rows is not followed here
                mine &= mask_word(step.exit_mask, word)
            found = PartialRows(
                self.semijoin, self.cursors | {step.relation: cursor}, places, self.weights[origin] * weight, bits
            )
            found.optional_types = dict(self.optional_types)
            if alive is not None:
                found._apply_semijoin(step, alive, np.arange(len(index)))
            for check in step.filters:
                found.filter(check, step.exit_mask)
            if before is not None:
                is_met[index] = True
            if self.semijoin.is_undecided(step.relation):
                in_vain += len(index) - len(found.rows_with_exits(step.exit_mask))
            yield found
        if alive is not None:
            self.semijoin.record_skipped(step, sum(each.take_skipped_count() for each in alive))
        if before is not None:
            self.semijoin.record_wasted(before, len(some) - int(is_met.sum()))
        if self.semijoin.is_undecided(step.relation):
            self.semijoin.record_wasted(step.relation, in_vain)

    def _apply_semijoin(self, step: PathStep, bitmaps: Sequence[ReachabilityBitmap], positions: RowIds) -> None:
        """Take the bits of exits that what was found cannot reach."""
        if not len(positions):
            return
        lying = self.cursors[step.relation]
        places = self.row_ids[step.relation][positions]
        number = np.searchsorted(lying.run_offsets, places, "right") - 1
        for run in np.unique(number):
            mine = positions[number == run]
            told = bitmaps[run].exit_masks_of(self.row_ids[step.relation][mine] - lying.run_offsets[run])
            for word, bits in told.items():
                self.exit_masks[word][mine] &= bits | ~mask_word(step.exit_mask, word)

    def materialize(self, exit_columns: Sequence[tuple[str, ColumnRef]], positions: RowIds) -> pa.Table:
        """Columns of some rows, as an exit calls them, and their weights."""
        picked: dict[int, RowSelection] = {}
        columns = [self._materialize_column(ref, positions, picked) for _, ref in exit_columns]
        weight = self.weights if len(positions) == len(self.weights) else self.weights[positions]
        return pa.table([*columns, pa.array(weight)], names=[*(name for name, _ in exit_columns), WEIGHT])

    def _materialize_columns(self, refs: Sequence[ColumnRef], positions: RowIds) -> pa.Table:
        picked: dict[int, RowSelection] = {}
        names = [f"{place}.{name}" for place, name in refs]
        if not names:  # a condition without columns still has to know how many rows there are
            return pa.table({WEIGHT: self.weights[positions]})
        return pa.table([self._materialize_column(ref, positions, picked) for ref in refs], names=names)

    def _materialize_column(self, ref: ColumnRef, positions: RowIds, selections: dict[int, RowSelection]) -> pa.Array:
        place, name = ref
        places = self.row_ids[place]
        places = places if len(positions) == len(places) else places[positions]
        if place in self.optional_types and (name == MATCH_FLAG or (places < 0).any()):
            return self._null_padded_column(place, name, places)
        if place not in selections:
            selections[place] = self.cursors[place].select(places)
        return selections[place].column(name)

    def _null_padded_column(self, relation: int, name: str, row_ids: RowIds) -> pa.Array:
        """A column of an optional relation: NULL where there is no row."""
        is_met = row_ids >= 0
        if name == MATCH_FLAG:
            return pa.array(is_met)
        if not is_met.any():
            return pa.nulls(len(row_ids), types.arrow(self.optional_types[relation][name]))
        values = self.cursors[relation].select(row_ids[is_met]).column(name)
        return take_array(values, pa.array(np.cumsum(is_met) - 1, mask=~is_met))

    def _build_probe(self, key: Sequence[ColumnRef], positions: RowIds) -> Probe:
        picked: dict[int, RowSelection] = {}
        return Probe(self.statements, [self._materialize_column(ref, positions, picked) for ref in key])

    def _clear_exits(self, positions: RowIds, exit_mask: int) -> None:
        if len(positions):
            for word in mask_word_indexes(exit_mask):
                self.exit_masks[word][positions] &= ~mask_word(exit_mask, word)


@dataclass
class _ExitMaskCache:
    """The bits of a run's rows for one check, if they were worked out, and in rows what asking cost before."""

    request_cost: int = 0
    exit_masks: Mapping[int, Words] | None = None


def _path_columns(path_filter: PathFilter, relation: int, rows: pa.Table) -> pa.Table:
    names = [name for _, name in path_filter.refs]
    return rows.select(names).rename_columns([f"{relation}.{name}" for name in names])
