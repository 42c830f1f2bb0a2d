"""Semijoin reduction: skip the rows of an arrangement that cannot reach any exit (option `lookahead`; GraphIVM 7.1).

    reachable(r) = the conditions on r alone  ∧  for each lookup by r's own columns: a row with that key is reachable

    Δ tweet ──▶ follower ──▶ follower ──▶ user WHERE vip
               reachable ◀── reachable ◀── reachable        computed from the end of the path

Beside each row of a run there are words of bits, one bit for each exit. In *local* mode, a row needs a row of the next
lookup that meets the conditions on itself; in *global* mode, one that is reachable.

The bits are maintained incrementally. A new run at the end of a path has keys that are now reachable; rows before it
that look up one of these keys get its bits, and so on backwards, so the cost follows the change. Bits are only added. A
key whose last row was deleted counts as reachable until the keys added since outweigh the cost of computing all bits
again: that costs time, but never loses a row. For a row without a bit no run has a matching row, so its output would be
empty whatever its weight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from viewkeeper.operators.delta_join.plan import PathStep, mask_word_count
from viewkeeper.operators.delta_join.semijoin_bitmaps import ReachabilityBitmap
from viewkeeper.operators.delta_join.semijoin_graph import SemijoinModes, SemijoinNode
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.cursor import LookupCursor
from viewkeeper.state.run import Run

CursorLookup = Callable[[str, bool], LookupCursor]

_WASTED_ROWS_PER_ROW = 4
"""Computing the bits of one row costs as much as this many rows that are produced and then dropped."""
_DECAY_BATCHES = 16
"""The count of wasted rows decays by this fraction with each batch: the bits must pay for themselves within about as
many batches."""
_MAX_MASK_WORDS = 1 << 21
"""Words of bits beside the rows of an arrangement, at most; with the other structures, each costs some tens of
bytes."""


class SemijoinReduction:
    """The semijoin reduction of one table's paths during a batch."""

    def __init__(
        self,
        statements: PreparedStatements,
        nodes: Mapping[int, SemijoinNode],
        modes: SemijoinModes,
        operator_id: str,
        cursor_of: CursorLookup,
    ) -> None:
        self.statements, self._nodes, self._modes, self._cursor_of = statements, nodes, modes, cursor_of
        self._cache_prefix = f"{operator_id} {modes}"
        self._bitmaps_by_relation: dict[int, Sequence[ReachabilityBitmap] | None] = {}
        self._computed_bitmaps: dict[int, Sequence[ReachabilityBitmap]] = {}
        self.skipped: Counter[int] = Counter()
        """Rows that were not produced, or not followed further, by their relation."""

    def bitmaps_of(self, step: PathStep) -> Sequence[ReachabilityBitmap] | None:
        """Return the bitmaps of the runs in which the step looks up; None if the step is not reduced."""
        if step.relation not in self._bitmaps_by_relation:
            node = self._nodes.get(step.relation)
            is_used = (
                node is not None and bool(step.exit_mask & self._modes.enabled_exits) and self._is_worthwhile(node)
            )
            self._bitmaps_by_relation[step.relation] = (
                self._compute_bitmaps(node) if node is not None and is_used else None
            )
        return self._bitmaps_by_relation[step.relation]

    def probing_relation(self, step: PathStep) -> int | None:
        """Return the one relation whose columns form a step's key, if its reduction is undecided."""
        relations = {relation for relation, _ in step.key}
        relation = relations.pop() if len(relations) == 1 else None
        return relation if relation is not None and self.is_undecided(relation) else None

    def is_undecided(self, relation: int) -> bool:
        """Return whether wasted rows must still be counted to decide if reduction pays for a relation."""
        node = self._nodes.get(relation)
        return (
            node is not None
            and self._bitmaps_by_relation.get(relation) is None
            and bool(node.step.exit_mask & self._modes.enabled_exits)
        )

    def record_wasted(self, relation: int, row_count: int) -> None:
        """Count rows of this relation that were produced and then dropped."""
        if row_count:
            self._wasted_rows(self._nodes[relation])[0] += row_count

    def record_skipped(self, step: PathStep, row_count: int) -> None:
        self.skipped[step.relation] += row_count

    def _is_worthwhile(self, node: SemijoinNode) -> bool:
        """Return whether recently wasted rows cost as much as computing the bits; then they are expected to do so
        again."""
        row_counts = [sum(run.num_rows for run in self._runs(descendant)) for descendant in node.walk()]
        if not row_counts[0] or max(row_counts) * mask_word_count(node.step.exit_mask) > _MAX_MASK_WORDS:
            return False
        if node.step.exit_mask & self._modes.forced_exits:
            return True
        wasted = self._wasted_rows(node)
        is_worthwhile = self._is_built(node) or wasted[0] >= _WASTED_ROWS_PER_ROW * self._build_cost(node)
        wasted[0] -= wasted[0] // _DECAY_BATCHES
        return is_worthwhile

    def _build_cost(self, node: SemijoinNode) -> int:
        """Return the number of rows to read before all bits are known."""
        return sum(
            sum(run.num_rows for run in self._runs(descendant))
            for descendant in node.walk()
            if not self._is_built(descendant)
        )

    def _is_built(self, node: SemijoinNode) -> bool:
        runs = self._runs(node)
        return bool(runs) and self._cache_key(node) in max(runs, key=lambda run: run.num_rows).reachability_cache

    def _wasted_rows(self, node: SemijoinNode) -> list[int]:
        """Return the counter of wasted rows. It is kept with the longest run; after that run is compacted, the bits
        must pay for themselves again."""
        runs = self._runs(node)
        if not runs:
            return [0]
        counter: list[int] = max(runs, key=lambda run: run.num_rows).reachability_cache.setdefault(
            f"-{self._cache_key(node)}", [0]
        )
        return counter

    def _cache_key(self, node: SemijoinNode) -> str:
        return f"{self._cache_prefix} {node.cache_key}"

    def _runs(self, node: SemijoinNode) -> Sequence[Run]:
        return self._cursor_of(node.step.arrangement, node.step.new_state).runs

    def _compute_bitmaps(self, node: SemijoinNode) -> Sequence[ReachabilityBitmap]:
        """Return the up-to-date bitmap of each run, after those of the lookups behind it."""
        if node.step.relation in self._computed_bitmaps:
            return self._computed_bitmaps[node.step.relation]
        child_bitmaps = [self._compute_bitmaps(child) for _, child in node.children]
        name = self._cache_key(node)
        bitmaps = []
        for run in self._runs(node):
            # Taken out during the update: a bitmap whose update was interrupted must not be used again.
            bitmap = run.reachability_cache.pop(name, None)
            if bitmap is None or bitmap.is_outdated:
                bitmap = ReachabilityBitmap(self.statements, run, node, self._modes)
            bitmap.update(child_bitmaps)
            run.reachability_cache[name] = bitmap
            bitmaps.append(bitmap)
        self._computed_bitmaps[node.step.relation] = bitmaps
        return bitmaps
