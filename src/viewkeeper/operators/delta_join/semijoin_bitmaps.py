"""Reachability bitmaps: for each row of a run, the exits that can be reached from it (`semijoin` has the law).

update         applies the keys that have become reachable in the lookups behind the rows: rows that look them up
               get their bits, and their own keys are logged for the lookups before them
exit_masks_of  the bits of some rows
filter_ranges  the rows of a range that have any bit
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from viewkeeper.model.arrow_buffers import one_chunk
from viewkeeper.model.int128 import Flags, Words
from viewkeeper.operators.delta_join.plan import evaluate_exit_masks, mask_word, mask_word_indexes
from viewkeeper.operators.delta_join.semijoin_graph import SemijoinModes, SemijoinNode
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.hash_index import Hashes, RowIds
from viewkeeper.state.key_hash import hash_keys
from viewkeeper.state.row_ranges import expand_ranges
from viewkeeper.state.run import Run

_ADDED_ROWS_SHARE = 8
"""Rows that became reachable are kept in a separate list up to this fraction of the main list."""
_MIN_ADDED_ROWS = 1024


@dataclass(frozen=True)
class ReachableKeys:
    """Keys that have become reachable, ascending and distinct, and the bits that they got: one row of `masks` for each
    word."""

    keys: Hashes
    masks: Words

    @staticmethod
    def deduplicate(keys: Hashes, masks: Words) -> ReachableKeys:
        if not len(keys):
            return ReachableKeys(keys, masks)
        first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        return ReachableKeys(keys[first], np.bitwise_or.reduceat(masks, first, axis=1))


class ReachabilityBitmap:
    """The bits of one run's rows."""

    def __init__(self, statements: PreparedStatements, run: Run, node: SemijoinNode, modes: SemijoinModes) -> None:
        self._run, exits = run, node.step.exit_mask
        self.word_indexes = mask_word_indexes(exits)
        self._enabled_mask, self._global_mask = (
            self._mask(exits & modes.enabled_exits),
            self._mask(exits & modes.global_exits),
        )
        self._unreduced_mask = self._mask(exits & ~modes.enabled_exits)
        self._filter_masks = np.broadcast_to(self._mask(exits), (len(self.word_indexes), run.num_rows)).copy()
        if node.relation_filter is not None:
            self._filter_masks &= _evaluate_filter_masks(statements, node, run, self.word_indexes) | ~self._mask(
                node.relation_filter.exit_mask
            )
        self._child_lookups = [_ChildLookup(statements, run, columns, child, self) for columns, child in node.children]
        self._reachable_masks = self._filter_masks.copy()
        self._is_initialised = False
        self._skipped_count = 0
        self._reachable_row_ids = self._added_row_ids = _NO_ROW_IDS
        self._reachable_before = np.zeros(1, np.int32)
        self._build_cost, self._added_keys = run.num_rows, 0
        self.reachable_key_log: list[ReachableKeys] = []

    def _mask(self, exit_mask: int) -> Words:
        return np.array([mask_word(exit_mask, word) for word in self.word_indexes], np.uint64)[:, None]

    @property
    def is_outdated(self) -> bool:
        """Whether more keys have been added than rows and keys were read to compute the bitmap. Then it is computed
        again, which drops what deleted rows had made reachable."""
        return self._added_keys > self._build_cost

    def update(self, child_bitmaps: Sequence[Sequence[ReachabilityBitmap]]) -> None:
        """Apply the keys that have become reachable in the lookups of the rows."""
        changed = []
        for lookup, runs in zip(self._child_lookups, child_bitmaps, strict=True):
            for keys in lookup.unread_keys(runs):
                self._added_keys += len(keys.keys)
                changed.append(lookup.apply_keys(keys))
        if self._is_initialised:
            self._add_reachable(np.unique(np.concatenate(changed)) if changed else _NO_ROW_IDS)
            return
        self._is_initialised = True
        self._build_cost, self._added_keys = self._build_cost + self._added_keys, 0
        for lookup in self._child_lookups:
            self._reachable_masks &= lookup.matched_masks | ~(lookup.exit_mask & self._enabled_mask)
        self._list_reachable_rows()
        parent_masks = self._masks_for_parents(slice(None))
        row_ids = np.flatnonzero(parent_masks.any(axis=0))
        self.reachable_key_log.append(ReachableKeys.deduplicate(self._run.hashes[row_ids], parent_masks[:, row_ids]))

    def _add_reachable(self, row_ids: RowIds) -> None:
        """Add the bits that these rows may have got."""
        if not len(row_ids):
            return
        masks = self._filter_masks[:, row_ids]
        for lookup in self._child_lookups:
            masks &= lookup.matched_masks[:, row_ids] | ~(lookup.exit_mask & self._enabled_mask)
        has_new_bits = (masks & ~self._reachable_masks[:, row_ids]).any(axis=0)
        row_ids, masks = row_ids[has_new_bits], masks[:, has_new_bits]
        if not len(row_ids):
            return
        is_new = ~self._reachable_masks[:, row_ids].any(axis=0)
        self._reachable_masks[:, row_ids] = masks
        if not self._unreduced_mask.any():
            self._added_row_ids = np.union1d(self._added_row_ids, row_ids[is_new])
            if len(self._added_row_ids) > max(_MIN_ADDED_ROWS, len(self._reachable_row_ids) // _ADDED_ROWS_SHARE):
                self._list_reachable_rows()
        self.reachable_key_log.append(
            ReachableKeys.deduplicate(self._run.hashes[row_ids], self._masks_for_parents(row_ids))
        )

    def _masks_for_parents(self, row_ids: RowIds | slice) -> Words:
        """Return the bits that lookups before the rows see: in global mode those of reachable exits, in local mode
        those of the conditions on the row alone."""
        masks: Words = (self._reachable_masks[:, row_ids] & self._global_mask) | (
            self._filter_masks[:, row_ids] & ~self._global_mask
        )
        return masks

    def _list_reachable_rows(self) -> None:
        """List the reachable rows, and for each row id the number of reachable rows before it."""
        is_reachable: Flags = np.bitwise_or.reduce(self._reachable_masks | self._unreduced_mask, axis=0) != 0
        self._reachable_row_ids = np.flatnonzero(is_reachable)
        self._reachable_before = np.zeros(len(is_reachable) + 1, np.int32)
        np.cumsum(is_reachable, out=self._reachable_before[1:])
        self._added_row_ids = _NO_ROW_IDS

    def filter_ranges(self, start: RowIds, stop: RowIds) -> Iterator[tuple[RowIds, RowIds, RowIds]]:
        """Yield the reachable rows of each range: (first position, count, list of row ids)."""
        first, last = (self._reachable_before[row_ids].astype(np.int64) for row_ids in (start, stop))
        yield first, last - first, self._reachable_row_ids
        self._skipped_count += int((stop - start).sum() - (last - first).sum())
        if len(self._added_row_ids):
            first, last = np.searchsorted(self._added_row_ids, start), np.searchsorted(self._added_row_ids, stop)
            yield first, last - first, self._added_row_ids
            self._skipped_count -= int((last - first).sum())

    def take_skipped_count(self) -> int:
        """Return the number of rows that `filter_ranges` has skipped since the last call, and reset it."""
        count, self._skipped_count = self._skipped_count, 0
        return count

    def exit_masks_of(self, row_ids: RowIds) -> Mapping[int, Words]:
        """Return, by word, the exits that the rows with these ids can reach."""
        masks = self._reachable_masks[:, row_ids] | self._unreduced_mask
        return dict(zip(self.word_indexes, masks, strict=True))


class _ChildLookup:
    """One lookup by a run's rows: their keys, and the bits of the reachable rows found for each so far."""

    def __init__(
        self,
        statements: PreparedStatements,
        run: Run,
        columns: tuple[str, ...],
        child_node: SemijoinNode,
        bitmap: ReachabilityBitmap,
    ) -> None:
        self.keys, self._is_key_present = _hash_lookup_keys(statements, run.rows, columns)
        self.exit_mask = bitmap._mask(child_node.step.exit_mask)
        self.matched_masks = np.zeros((len(bitmap.word_indexes), run.num_rows), np.uint64)
        self._mask_rows = [bitmap.word_indexes.index(word) for word in mask_word_indexes(child_node.step.exit_mask)]
        self._log_positions: dict[ReachabilityBitmap, int] = {}

    def unread_keys(self, bitmaps: Sequence[ReachabilityBitmap]) -> Iterator[ReachableKeys]:
        """Yield the keys that the runs of the lookup have logged since the last call. Positions of runs that no longer
        exist are dropped."""
        read_positions, self._log_positions = (
            self._log_positions,
            {bitmap: len(bitmap.reachable_key_log) for bitmap in bitmaps},
        )
        for bitmap in bitmaps:
            yield from bitmap.reachable_key_log[read_positions.get(bitmap, 0) :]

    def apply_keys(self, reachable_keys: ReachableKeys) -> RowIds:
        """Give the rows with one of these keys the key's bits; return their row ids."""
        if not len(reachable_keys.keys) or not len(self.keys):
            return _NO_ROW_IDS
        if len(reachable_keys.keys) * _KEY_SEARCH_RATIO < len(self.keys):
            order, ascending = self._sorted_keys
            start = np.searchsorted(ascending, reachable_keys.keys, "left")
            count = np.searchsorted(ascending, reachable_keys.keys, "right") - start
            row_ids, key_index = order[expand_ranges(start, count)], np.repeat(np.arange(len(count)), count)
        else:
            position = np.minimum(np.searchsorted(reachable_keys.keys, self.keys), len(reachable_keys.keys) - 1)
            row_ids = np.flatnonzero(reachable_keys.keys[position] == self.keys)
            key_index = position[row_ids]
        if self._is_key_present is not None:
            is_present = self._is_key_present[row_ids]
            row_ids, key_index = row_ids[is_present], key_index[is_present]
        for mask_row, bits in zip(self._mask_rows, reachable_keys.masks, strict=True):
            self.matched_masks[mask_row][row_ids] |= bits[key_index]
        return row_ids

    @cached_property
    def _sorted_keys(self) -> tuple[RowIds, Hashes]:
        order = np.argsort(self.keys, kind="stable")
        return order, self.keys[order]


_NO_ROW_IDS = np.zeros(0, np.int64)
_KEY_SEARCH_RATIO = 4
"""If the keys are this many times fewer than the run's rows, keys are searched among rows, else rows among keys."""


def _hash_lookup_keys(
    statements: PreparedStatements, rows: pa.Table, columns: tuple[str, ...]
) -> tuple[Hashes, Flags | None]:
    """Return the hashes of the keys that rows look up, and which rows have a key: NULL equals nothing."""
    has_key: Flags | None = None
    for name in columns:
        column = one_chunk(rows.column(name))
        if column.null_count:
            is_valid = np.asarray(column.is_valid())
            has_key = is_valid if has_key is None else has_key & is_valid
    return hash_keys(statements, rows, columns), has_key


def _evaluate_filter_masks(
    statements: PreparedStatements, node: SemijoinNode, run: Run, word_indexes: Sequence[int]
) -> Words:
    if node.relation_filter is None or not run.num_rows:
        return np.zeros((len(word_indexes), run.num_rows), np.uint64)
    names = [name for _, name in node.relation_filter.refs]
    rows = run.rows.select(names).rename_columns([f"{node.step.relation}.{name}" for name in names])
    masks = evaluate_exit_masks(statements, node.relation_filter, rows)
    no_bits = np.zeros(run.num_rows, np.uint64)
    return np.stack([masks.get(word, no_bits) for word in word_indexes])
