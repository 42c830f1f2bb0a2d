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

from viewkeeper.operators.delta_join.plan import PathStep, word_count
from viewkeeper.operators.delta_join.semijoin_bitmaps import Alive
from viewkeeper.operators.delta_join.semijoin_graph import Modes, Outlook
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.state.cursor import Lying
from viewkeeper.state.run import Run

Look = Callable[[str, bool], Lying]

_WORTH = 4
"""To learn of a row whether it leads anywhere costs as much as so many rows that are made for nothing."""
_BATCHES = 16
"""What was done for nothing fades by this part with each batch: to know more must be worth it in about as many."""
_MOST_WORDS = 1 << 21
"""Words of bits beside the rows of an arrangement, at most: with what else is known, some tens of bytes each."""


class Ahead:
    """The look-ahead of one table's paths while a batch follows them."""

    def __init__(self, duck: Duck, outlooks: Mapping[int, Outlook], modes: Modes, owner: str, look: Look) -> None:
        self.duck, self._outlooks, self._modes, self._look = duck, outlooks, modes, look
        self._owner = f"{owner} {modes}"
        self._known: dict[int, Sequence[Alive] | None] = {}
        self._made: dict[int, Sequence[Alive]] = {}
        self.skipped: Counter[int] = Counter()
        """Rows that were not made, or not followed further, by the place that they would have had."""

    def of(self, step: PathStep) -> Sequence[Alive] | None:
        """What is alive in each run that the step looks up; None where there is no look-ahead."""
        if step.place not in self._known:
            outlook = self._outlooks.get(step.place)
            is_used = outlook is not None and bool(step.exits & self._modes.any) and self._pays(outlook)
            self._known[step.place] = self._alive(outlook) if outlook is not None and is_used else None
        return self._known[step.place]

    def before(self, step: PathStep) -> int | None:
        """The place of whose rows alone a step's key is made, if look-ahead may come to pay there."""
        places = {place for place, _ in step.key}
        place = places.pop() if len(places) == 1 else None
        return place if place is not None and self.is_open(place) else None

    def is_open(self, place: int) -> bool:
        """Whether it is still to be found out if look-ahead pays for the rows at a place."""
        outlook = self._outlooks.get(place)
        return outlook is not None and self._known.get(place) is None and bool(outlook.step.exits & self._modes.any)

    def wasted(self, place: int, rows: int) -> None:
        """So many rows with this place were made for nothing."""
        if rows:
            self._ledger(self._outlooks[place])[0] += rows

    def skip(self, step: PathStep, rows: int) -> None:
        self.skipped[step.place] += rows

    def _pays(self, outlook: Outlook) -> bool:
        """Rows that were lately made for nothing have cost what it costs to know which are: then they will again."""
        rows = [sum(run.num_rows for run in self._runs(o)) for o in outlook.all()]
        if not rows[0] or max(rows) * word_count(outlook.step.exits) > _MOST_WORDS:
            return False
        if outlook.step.exits & self._modes.asked:
            return True
        ledger = self._ledger(outlook)
        pays = self._is_built(outlook) or ledger[0] >= _WORTH * self._cost(outlook)
        ledger[0] -= ledger[0] // _BATCHES
        return pays

    def _cost(self, outlook: Outlook) -> int:
        """Rows to look at before it is known what is alive."""
        return sum(sum(run.num_rows for run in self._runs(o)) for o in outlook.all() if not self._is_built(o))

    def _is_built(self, outlook: Outlook) -> bool:
        runs = self._runs(outlook)
        return bool(runs) and self._name(outlook) in max(runs, key=lambda run: run.num_rows).ahead

    def _ledger(self, outlook: Outlook) -> list[int]:
        """What was done for nothing, kept with the longest run: when that is merged, all of it has to pay again."""
        runs = self._runs(outlook)
        if not runs:
            return [0]
        ledger: list[int] = max(runs, key=lambda run: run.num_rows).ahead.setdefault(f"-{self._name(outlook)}", [0])
        return ledger

    def _name(self, outlook: Outlook) -> str:
        return f"{self._owner} {outlook.name}"

    def _runs(self, outlook: Outlook) -> Sequence[Run]:
        return self._look(outlook.step.arrangement, outlook.step.fresh).runs

    def _alive(self, outlook: Outlook) -> Sequence[Alive]:
        """Of each run, with all that the runs further on have brought."""
        if outlook.step.place in self._made:
            return self._made[outlook.step.place]
        further = [self._alive(child) for _, child in outlook.onward]
        name = self._name(outlook)
        found = []
        for run in self._runs(outlook):
            alive = run.ahead.pop(name, None)  # what is interrupted in the middle has heard half, and is gone
            if alive is None or alive.is_worn:
                alive = Alive(self.duck, run, outlook, self._modes)
            alive.hear(further)
            run.ahead[name] = alive
            found.append(alive)
        self._made[outlook.step.place] = found
        return found
