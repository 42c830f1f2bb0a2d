"""The bits of a run's rows that say which exits can be reached from them (`ahead` has the law).

hear     what has come alive where the rows look next: they get its bits, and tell those before them in turn
bits     of some rows
narrowed the rows of a range that have any
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
"""Rows that came alive are kept beside the others up to this part of those."""
_MIN_ADDED_ROWS = 1024


@dataclass(frozen=True)
class ReachableKeys:
    """Keys that have come alive, ascending and each once, and the bits that they have got: a row for each word."""

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
        """Whether so much has been added since it was worked out that it is worth it to see what has died."""
        return self._added_keys > self._build_cost

    def update(self, child_bitmaps: Sequence[Sequence[ReachabilityBitmap]]) -> None:
        """Take in what has come alive where the own rows look next."""
        changed = []
        for door, runs in zip(self._child_lookups, child_bitmaps, strict=True):
            for news in door.unread_keys(runs):
                self._added_keys += len(news.keys)
                changed.append(door.apply_keys(news))
        if self._is_initialised:
            self._add_reachable(np.unique(np.concatenate(changed)) if changed else _NO_ROW_IDS)
            return
        self._is_initialised = True
        self._build_cost, self._added_keys = self._build_cost + self._added_keys, 0
        for door in self._child_lookups:
            self._reachable_masks &= door.matched_masks | ~(door.exit_mask & self._enabled_mask)
        self._list_reachable_rows()
        told = self._masks_for_parents(slice(None))
        some = np.flatnonzero(told.any(axis=0))
        self.reachable_key_log.append(ReachableKeys.deduplicate(self._run.hashes[some], told[:, some]))

    def _add_reachable(self, row_ids: RowIds) -> None:
        """Rows that may have got bits."""
        if not len(row_ids):
            return
        live = self._filter_masks[:, row_ids]
        for door in self._child_lookups:
            live &= door.matched_masks[:, row_ids] | ~(door.exit_mask & self._enabled_mask)
        is_more = (live & ~self._reachable_masks[:, row_ids]).any(axis=0)
        row_ids, live = row_ids[is_more], live[:, is_more]
        if not len(row_ids):
            return
        is_new = ~self._reachable_masks[:, row_ids].any(axis=0)
        self._reachable_masks[:, row_ids] = live
        if not self._unreduced_mask.any():
            self._added_row_ids = np.union1d(self._added_row_ids, row_ids[is_new])
            if len(self._added_row_ids) > max(_MIN_ADDED_ROWS, len(self._reachable_row_ids) // _ADDED_ROWS_SHARE):
                self._list_reachable_rows()
        self.reachable_key_log.append(
            ReachableKeys.deduplicate(self._run.hashes[row_ids], self._masks_for_parents(row_ids))
        )

    def _masks_for_parents(self, row_ids: RowIds | slice) -> Words:
        """The bits by which others know that a row is there for them."""
        told: Words = (self._reachable_masks[:, row_ids] & self._global_mask) | (
            self._filter_masks[:, row_ids] & ~self._global_mask
        )
        return told

    def _list_reachable_rows(self) -> None:
        """List the rows that are alive, and for each place how many of them are before it."""
        is_live: Flags = np.bitwise_or.reduce(self._reachable_masks | self._unreduced_mask, axis=0) != 0
        self._reachable_row_ids = np.flatnonzero(is_live)
        self._reachable_before = np.zeros(len(is_live) + 1, np.int32)
        np.cumsum(is_live, out=self._reachable_before[1:])
        self._added_row_ids = _NO_ROW_IDS

    def filter_ranges(self, start: RowIds, stop: RowIds) -> Iterator[tuple[RowIds, RowIds, RowIds]]:
        """The rows in each range that are alive: (first, how many, of what list of places)."""
        first, last = (self._reachable_before[places].astype(np.int64) for places in (start, stop))
        yield first, last - first, self._reachable_row_ids
        self._skipped_count += int((stop - start).sum() - (last - first).sum())
        if len(self._added_row_ids):
            first, last = np.searchsorted(self._added_row_ids, start), np.searchsorted(self._added_row_ids, stop)
            yield first, last - first, self._added_row_ids
            self._skipped_count -= int((last - first).sum())

    def take_skipped_count(self) -> int:
        """How many rows it has kept from lookups since it was last asked."""
        found, self._skipped_count = self._skipped_count, 0
        return found

    def exit_masks_of(self, row_ids: RowIds) -> Mapping[int, Words]:
        """By word: the exits that the rows at these places can reach."""
        found = self._reachable_masks[:, row_ids] | self._unreduced_mask
        return dict(zip(self.word_indexes, found, strict=True))


class _ChildLookup:
    """One lookup by a run's rows: their keys, and the bits of what was found alive behind each so far."""

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
        """What was not heard yet of the runs behind it. Those that are gone are forgotten."""
        heard, self._log_positions = self._log_positions, {run: len(run.reachable_key_log) for run in bitmaps}
        for run in bitmaps:
            yield from run.reachable_key_log[heard.get(run, 0) :]

    def apply_keys(self, reachable_keys: ReachableKeys) -> RowIds:
        """The rows with one of these keys, which get its bits."""
        if not len(reachable_keys.keys) or not len(self.keys):
            return _NO_ROW_IDS
        if len(reachable_keys.keys) * _KEY_SEARCH_RATIO < len(self.keys):
            order, ascending = self._sorted_keys
            low = np.searchsorted(ascending, reachable_keys.keys, "left")
            count = np.searchsorted(ascending, reachable_keys.keys, "right") - low
            places, which = order[expand_ranges(low, count)], np.repeat(np.arange(len(count)), count)
        else:
            at = np.minimum(np.searchsorted(reachable_keys.keys, self.keys), len(reachable_keys.keys) - 1)
            places = np.flatnonzero(reachable_keys.keys[at] == self.keys)
            which = at[places]
        if self._is_key_present is not None:
            there = self._is_key_present[places]
            places, which = places[there], which[there]
        for line, bits in zip(self._mask_rows, reachable_keys.masks, strict=True):
            self.matched_masks[line][places] |= bits[which]
        return places

    @cached_property
    def _sorted_keys(self) -> tuple[RowIds, Hashes]:
        order = np.argsort(self.keys, kind="stable")
        return order, self.keys[order]


_NO_ROW_IDS = np.zeros(0, np.int64)
_KEY_SEARCH_RATIO = 4
"""Keys are looked up among a run's rows if there are so many times fewer, else the rows among the keys."""


def _hash_lookup_keys(
    statements: PreparedStatements, rows: pa.Table, columns: tuple[str, ...]
) -> tuple[Hashes, Flags | None]:
    """The hashes of the keys that rows look up, and which rows have one: NULL equals nothing."""
    has_key: Flags | None = None
    for name in columns:
        column = one_chunk(rows.column(name))
        if column.null_count:
            valid = np.asarray(column.is_valid())
            has_key = valid if has_key is None else has_key & valid
    return hash_keys(statements, rows, columns), has_key


def _evaluate_filter_masks(
    statements: PreparedStatements, node: SemijoinNode, run: Run, word_indexes: Sequence[int]
) -> Words:
    if node.relation_filter is None or not run.num_rows:
        return np.zeros((len(word_indexes), run.num_rows), np.uint64)
    names = [name for _, name in node.relation_filter.refs]
    rows = run.rows.select(names).rename_columns([f"{node.step.relation}.{name}" for name in names])
    told = evaluate_exit_masks(statements, node.relation_filter, rows)
    none = np.zeros(run.num_rows, np.uint64)
    return np.stack([told.get(word, none) for word in word_indexes])
