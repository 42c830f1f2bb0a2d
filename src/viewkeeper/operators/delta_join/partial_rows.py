"""Partial join rows: tuples of row ids, with their weights and, as bits, the exits that need them.

extend_unique   a lookup by a unique key adds a row id to the same rows; in an optional relation it may be −1
expand          any other lookup makes new rows, one for each row with the key
filter          conditions clear exit bits; a row that no exit needs is not looked up further
materialize     columns are read at the exit, by row id
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
"""The exit masks of a whole run are computed once the requests have cost as much as evaluating half of its rows."""
_STATEMENT_COST_IN_ROWS = 50_000
"""Fixed cost of a statement, expressed in rows. It is charged to each request, so that a run which is probed often gets
the exit masks of all its rows early."""
_MAX_CACHED_ROWS = 1 << 21
"""Rows of a run up to which its exit masks are cached."""


class PartialRows:
    """Rows as row ids by relation, with their weights and, in 64-bit words, the exits that need them."""

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
        """The optional relations, whose row id may be −1, with the types of their columns."""

    def rows_with_exits(self, exit_mask: int) -> RowIds:
        """Return the positions of the rows that one of these exits needs."""
        is_wanted: npt.NDArray[np.bool_] | None = None
        for word in mask_word_indexes(exit_mask):
            has_bits = self.exit_masks[word] & mask_word(exit_mask, word) != 0
            is_wanted = has_bits if is_wanted is None else is_wanted | has_bits
        return np.flatnonzero(is_wanted) if is_wanted is not None else np.zeros(0, np.int64)

    def filter(self, path_filter: PathFilter, exit_mask: int) -> None:
        """Clear the bits of the exits whose conditions a row does not meet."""
        affected_mask = path_filter.exit_mask & exit_mask
        if not len(positions := self.rows_with_exits(affected_mask)):
            return
        is_whole = len(positions) == len(self.weights)
        relations = {relation for relation, _ in path_filter.refs}
        if len(relations) == 1 and DELTA not in relations and relations.isdisjoint(self.optional_types):
            masks = self._cached_exit_masks(path_filter, relations.pop(), positions)
        else:
            masks = evaluate_exit_masks(
                self.statements, path_filter, self._materialize_columns(path_filter.refs, positions)
            )
        for word, bits in masks.items():
            kept_bits = bits | ~mask_word(affected_mask, word)
            if is_whole:
                self.exit_masks[word] &= kept_bits
            else:
                self.exit_masks[word][positions] &= kept_bits

    def _cached_exit_masks(self, path_filter: PathFilter, relation: int, positions: RowIds) -> Mapping[int, Words]:
        """Return the exit masks of rows of one arrangement. The masks of a whole run are computed and cached once the
        requests have cost as much."""
        rows_by_run = self.cursors[relation].select(self.row_ids[relation][positions]).rows_by_run
        masks = {word: np.empty(len(positions), np.uint64) for word in mask_word_indexes(path_filter.exit_mask)}
        for part in rows_by_run:
            cache = part.run.cache.setdefault(path_filter.cache_key, _ExitMaskCache())
            selected: RowIds | slice = slice(None) if part.row_ids is None else part.row_ids
            if cache.exit_masks is None:
                cache.request_cost += _STATEMENT_COST_IN_ROWS + (
                    part.run.num_rows if part.row_ids is None else len(part.row_ids)
                )
                rows = part.run.rows
                if cache.request_cost * _CACHE_COST_FACTOR < rows.num_rows or rows.num_rows > _MAX_CACHED_ROWS:
                    table = _path_columns(path_filter, relation, rows).take(part.row_id_array)
                    for word, bits in evaluate_exit_masks(self.statements, path_filter, table).items():
                        masks[word][part.output_positions] = bits
                    continue
                cache.exit_masks = evaluate_exit_masks(
                    self.statements, path_filter, _path_columns(path_filter, relation, rows)
                )
                part.run.evict_oldest_results()
            for word, bits in cache.exit_masks.items():
                masks[word][part.output_positions] = bits[selected]
        return masks

    def extend_unique(self, step: PathStep, cursor: LookupCursor) -> None:
        """Add the id of the one row with the key; where there is none, clear the exits of the lookup."""
        positions = self.rows_with_exits(step.exit_mask)
        row_ids = np.full(len(self.weights), -1, np.int64)
        self.cursors[step.relation], self.row_ids[step.relation] = cursor, row_ids
        if step.optional is not None:
            self.optional_types[step.relation] = dict(step.optional.column_types)
        if not len(positions):
            return
        row_ids[positions] = found = cursor.unique(self._build_probe(step.key, positions), step.arrangement_key)
        if step.optional is not None:
            self._apply_optional_match(step, step.optional, positions)
            return
        self._clear_exits(positions[found < 0], step.exit_mask)
        if (bitmaps := self.semijoin.bitmaps_of(step)) is not None:
            matched = positions[found >= 0]
            self._apply_semijoin(step, bitmaps, matched)
            self.semijoin.record_skipped(step, len(matched) - len(self.rows_with_exits(step.exit_mask)))
        for path_filter in step.filters:
            self.filter(path_filter, step.exit_mask)
        if (probing_relation := self.semijoin.probing_relation(step)) is not None:
            self.semijoin.record_wasted(probing_relation, len(positions) - len(self.rows_with_exits(step.exit_mask)))

    def _apply_optional_match(self, step: PathStep, optional: OptionalMatch, positions: RowIds) -> None:
        """Set the row id to −1 where the row that was found does not meet the match conditions; for an anti join, clear
        the exits of rows with a match."""
        row_ids = self.row_ids[step.relation]
        if optional.match is not None and len(found := positions[row_ids[positions] >= 0]):
            masks = evaluate_exit_masks(
                self.statements, optional.match, self._materialize_columns(optional.match.refs, found)
            )
            row_ids[found[masks[0] == 0]] = -1
        if optional.join_type == "anti":
            self._clear_exits(positions[row_ids[positions] >= 0], step.exit_mask)
        for path_filter in step.filters:
            self.filter(path_filter, step.exit_mask)

    def expand(self, step: PathStep, cursor: LookupCursor, max_rows: int) -> Iterator[PartialRows]:
        """Yield every needed row combined with every row that has its key, at most `max_rows` at a time."""
        positions = self.rows_with_exits(step.exit_mask)
        if not len(positions) or not cursor.runs:
            return
        probe, bitmaps = self._build_probe(step.key, positions), self.semijoin.bitmaps_of(step)
        probing_relation, wasted_rows, has_match = (
            self.semijoin.probing_relation(step),
            0,
            np.zeros(len(positions), np.bool_),
        )
        for index, row_id, weight in cursor.iter_matches(probe, step.arrangement_key, max_rows, bitmaps):
            origin = positions[index]
            row_ids = {relation: ids[origin] for relation, ids in self.row_ids.items()} | {step.relation: row_id}
            exit_masks = [word[origin] for word in self.exit_masks]
            for word, bits in enumerate(exit_masks):  # exits of other branches are not followed here
                bits &= mask_word(step.exit_mask, word)
            expanded = PartialRows(
                self.semijoin,
                self.cursors | {step.relation: cursor},
                row_ids,
                self.weights[origin] * weight,
                exit_masks,
            )
            expanded.optional_types = dict(self.optional_types)
            if bitmaps is not None:
                expanded._apply_semijoin(step, bitmaps, np.arange(len(index)))
            for path_filter in step.filters:
                expanded.filter(path_filter, step.exit_mask)
            if probing_relation is not None:
                has_match[index] = True
            if self.semijoin.is_undecided(step.relation):
                wasted_rows += len(index) - len(expanded.rows_with_exits(step.exit_mask))
            yield expanded
        if bitmaps is not None:
            self.semijoin.record_skipped(step, sum(bitmap.take_skipped_count() for bitmap in bitmaps))
        if probing_relation is not None:
            self.semijoin.record_wasted(probing_relation, len(positions) - int(has_match.sum()))
        if self.semijoin.is_undecided(step.relation):
            self.semijoin.record_wasted(step.relation, wasted_rows)

    def _apply_semijoin(self, step: PathStep, bitmaps: Sequence[ReachabilityBitmap], positions: RowIds) -> None:
        """Clear the bits of the exits that the rows found by the step cannot reach."""
        if not len(positions):
            return
        cursor = self.cursors[step.relation]
        row_ids = self.row_ids[step.relation][positions]
        run_indexes = np.searchsorted(cursor.run_offsets, row_ids, "right") - 1
        for run_index in np.unique(run_indexes):
            run_positions = positions[run_indexes == run_index]
            masks = bitmaps[run_index].exit_masks_of(
                self.row_ids[step.relation][run_positions] - cursor.run_offsets[run_index]
            )
            for word, bits in masks.items():
                self.exit_masks[word][run_positions] &= bits | ~mask_word(step.exit_mask, word)

    def materialize(self, exit_columns: Sequence[tuple[str, ColumnRef]], positions: RowIds) -> pa.Table:
        """Return columns of some rows under an exit's names, and the rows' weights."""
        selections: dict[int, RowSelection] = {}
        columns = [self._materialize_column(ref, positions, selections) for _, ref in exit_columns]
        weight = self.weights if len(positions) == len(self.weights) else self.weights[positions]
        return pa.table([*columns, pa.array(weight)], names=[*(name for name, _ in exit_columns), WEIGHT])

    def _materialize_columns(self, refs: Sequence[ColumnRef], positions: RowIds) -> pa.Table:
        selections: dict[int, RowSelection] = {}
        names = [f"{relation}.{name}" for relation, name in refs]
        if not names:  # a condition without columns still needs the number of rows
            return pa.table({WEIGHT: self.weights[positions]})
        return pa.table([self._materialize_column(ref, positions, selections) for ref in refs], names=names)

    def _materialize_column(self, ref: ColumnRef, positions: RowIds, selections: dict[int, RowSelection]) -> pa.Array:
        relation, name = ref
        row_ids = self.row_ids[relation]
        row_ids = row_ids if len(positions) == len(row_ids) else row_ids[positions]
        if relation in self.optional_types and (name == MATCH_FLAG or (row_ids < 0).any()):
            return self._null_padded_column(relation, name, row_ids)
        if relation not in selections:
            selections[relation] = self.cursors[relation].select(row_ids)
        return selections[relation].column(name)

    def _null_padded_column(self, relation: int, name: str, row_ids: RowIds) -> pa.Array:
        """Return a column of an optional relation: NULL where there is no match."""
        has_match = row_ids >= 0
        if name == MATCH_FLAG:
            return pa.array(has_match)
        if not has_match.any():
            return pa.nulls(len(row_ids), types.arrow(self.optional_types[relation][name]))
        values = self.cursors[relation].select(row_ids[has_match]).column(name)
        return take_array(values, pa.array(np.cumsum(has_match) - 1, mask=~has_match))

    def _build_probe(self, key: Sequence[ColumnRef], positions: RowIds) -> Probe:
        selections: dict[int, RowSelection] = {}
        return Probe(self.statements, [self._materialize_column(ref, positions, selections) for ref in key])

    def _clear_exits(self, positions: RowIds, exit_mask: int) -> None:
        if len(positions):
            for word in mask_word_indexes(exit_mask):
                self.exit_masks[word][positions] &= ~mask_word(exit_mask, word)


@dataclass
class _ExitMaskCache:
    """The exit masks of a run's rows for one filter, if computed, and the cost of the requests before that, in rows."""

    request_cost: int = 0
    exit_masks: Mapping[int, Words] | None = None


def _path_columns(path_filter: PathFilter, relation: int, rows: pa.Table) -> pa.Table:
    names = [name for _, name in path_filter.refs]
    return rows.select(names).rename_columns([f"{relation}.{name}" for name in names])
