"""Look-ahead: which rows of an arrangement can still reach an exit, so that a lookup makes no others (GraphIVM 7.1).

    alive(r) = the conditions on r alone  ∧  for each lookup by r's own columns: a row with that key is alive there

    Δ tweet ──▶ follower ──▶ follower ──▶ user WHERE vip
                  alive ◀────── alive ◀────── alive         worked out from the end of the path

A word of bits beside each row of a run, a bit for each exit. *Local* look-ahead asks of the next lookup only whether a
row is there that meets its own conditions, *global* whether one is that is alive.

Bits follow the runs. A new run at the end of a path gives keys that are alive now; the rows before that wait for one of
them get its bits, and so on backwards: the cost follows the change. Bits are only added. A key whose last row went is
taken for alive until what has been added since outweighs working it all out anew: that costs time, and never a row. For
a row without a bit no run has anything to meet, so that what it would have given is nothing, whatever its weight.
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
"""To learn of a row whether it leads anywhere costs as much as so many rows that are made for nothing."""
_DECAY_BATCHES = 16
"""What was done for nothing fades by this part with each batch: to know more must be worth it in about as many."""
_MAX_MASK_WORDS = 1 << 21
"""Words of bits beside the rows of an arrangement, at most: with what else is known, some tens of bytes each."""


class SemijoinReduction:
    """The look-ahead of one table's paths while a batch follows them."""

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
        """Rows that were not made, or not followed further, by the place that they would have had."""

    def bitmaps_of(self, step: PathStep) -> Sequence[ReachabilityBitmap] | None:
        """What is alive in each run that the step looks up; None where there is no look-ahead."""
        if step.relation not in self._bitmaps_by_relation:
            outlook = self._nodes.get(step.relation)
            is_used = (
                outlook is not None
                and bool(step.exit_mask & self._modes.enabled_exits)
                and self._is_worthwhile(outlook)
            )
            self._bitmaps_by_relation[step.relation] = (
                self._compute_bitmaps(outlook) if outlook is not None and is_used else None
            )
        return self._bitmaps_by_relation[step.relation]

    def probing_relation(self, step: PathStep) -> int | None:
        """The place of whose rows alone a step's key is made, if look-ahead may come to pay there."""
        places = {place for place, _ in step.key}
        place = places.pop() if len(places) == 1 else None
        return place if place is not None and self.is_undecided(place) else None

    def is_undecided(self, relation: int) -> bool:
        """Whether it is still to be found out if look-ahead pays for the rows at a place."""
        outlook = self._nodes.get(relation)
        return (
            outlook is not None
            and self._bitmaps_by_relation.get(relation) is None
            and bool(outlook.step.exit_mask & self._modes.enabled_exits)
        )

    def record_wasted(self, relation: int, row_count: int) -> None:
        """So many rows with this place were made for nothing."""
        if row_count:
            self._wasted_rows(self._nodes[relation])[0] += row_count

    def record_skipped(self, step: PathStep, row_count: int) -> None:
        self.skipped[step.relation] += row_count

    def _is_worthwhile(self, node: SemijoinNode) -> bool:
        """Rows that were lately made for nothing have cost what it costs to know which are: then they will again."""
        rows = [sum(run.num_rows for run in self._runs(o)) for o in node.walk()]
        if not rows[0] or max(rows) * mask_word_count(node.step.exit_mask) > _MAX_MASK_WORDS:
            return False
        if node.step.exit_mask & self._modes.forced_exits:
            return True
        ledger = self._wasted_rows(node)
        pays = self._is_built(node) or ledger[0] >= _WASTED_ROWS_PER_ROW * self._build_cost(node)
        ledger[0] -= ledger[0] // _DECAY_BATCHES
        return pays

    def _build_cost(self, node: SemijoinNode) -> int:
        """Rows to look at before it is known what is alive."""
        return sum(sum(run.num_rows for run in self._runs(o)) for o in node.walk() if not self._is_built(o))

    def _is_built(self, node: SemijoinNode) -> bool:
        runs = self._runs(node)
        return bool(runs) and self._cache_key(node) in max(runs, key=lambda run: run.num_rows).reachability_cache

    def _wasted_rows(self, node: SemijoinNode) -> list[int]:
        """What was done for nothing, kept with the longest run: when that is merged, all of it has to pay again."""
        runs = self._runs(node)
        if not runs:
            return [0]
        ledger: list[int] = max(runs, key=lambda run: run.num_rows).reachability_cache.setdefault(
            f"-{self._cache_key(node)}", [0]
        )
        return ledger

    def _cache_key(self, node: SemijoinNode) -> str:
        return f"{self._cache_prefix} {node.cache_key}"

    def _runs(self, node: SemijoinNode) -> Sequence[Run]:
        return self._cursor_of(node.step.arrangement, node.step.new_state).runs

    def _compute_bitmaps(self, node: SemijoinNode) -> Sequence[ReachabilityBitmap]:
        """Of each run, with all that the runs further on have brought."""
        if node.step.relation in self._computed_bitmaps:
            return self._computed_bitmaps[node.step.relation]
        further = [self._compute_bitmaps(child) for _, child in node.children]
        name = self._cache_key(node)
        found = []
        for run in self._runs(node):
            alive = run.reachability_cache.pop(
                name, None
            )  # what is interrupted in the middle has heard half, and is gone
            if alive is None or alive.is_outdated:
                alive = ReachabilityBitmap(self.statements, run, node, self._modes)
            alive.update(further)
            run.reachability_cache[name] = alive
            found.append(alive)
        self._computed_bitmaps[node.step.relation] = found
        return found
