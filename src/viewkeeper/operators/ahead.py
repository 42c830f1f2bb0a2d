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

from viewkeeper.operators.alive import Alive
from viewkeeper.operators.arrangement import Run
from viewkeeper.operators.duck import Duck
from viewkeeper.operators.outlooks import Modes, Outlook
from viewkeeper.operators.places import Lying
from viewkeeper.operators.stretches import DELTA, Step

Look = Callable[[str, bool], Lying]

_MOST_ROWS = 1 << 22
"""Rows of an arrangement about which it is known at most: a row takes some tens of bytes."""


class Ahead:
    """The look-ahead of one table's paths while a batch follows them."""

    def __init__(self, duck: Duck, outlooks: Mapping[int, Outlook], modes: Modes, owner: str, look: Look) -> None:
        self.duck, self._outlooks, self._modes, self._owner, self._look = duck, outlooks, modes, owner, look
        self._known: dict[int, Sequence[Alive] | None] = {}
        self.skipped: Counter[int] = Counter()
        """Rows that were not made, or not followed further, by the place that they would have had."""

    def of(self, step: Step) -> Sequence[Alive] | None:
        """What is alive in each run that the step looks up; None where there is no look-ahead."""
        if step.place not in self._known:
            outlook = self._outlooks.get(step.place)
            is_used = outlook is not None and bool(step.exits & self._modes.any) and self._pays(outlook)
            self._known[step.place] = self._alive(outlook) if outlook is not None and is_used else None
        return self._known[step.place]

    def learns_from(self, step: Step) -> bool:
        """Whether it is still to be found out if look-ahead pays for what the step finds, or for what leads to it."""
        return any(map(self._is_open, {step.place, *(place for place, _ in step.key)}))

    def wasted(self, step: Step, probes: int) -> None:
        """So many rows that were made looked up a key by this step for nothing."""
        places = {place for place, _ in step.key}
        if probes and len(places) == 1 and self._is_open(place := places.pop()):
            self._ledger(self._outlooks[place])[0] += probes

    def made_in_vain(self, step: Step, rows: int) -> None:
        if rows and self._is_open(step.place):
            self._ledger(self._outlooks[step.place])[0] += rows

    def skip(self, step: Step, rows: int) -> None:
        self.skipped[step.place] += rows

    def _is_open(self, place: int) -> bool:
        return place != DELTA and place in self._outlooks and self._known.get(place) is None

    def _pays(self, outlook: Outlook) -> bool:
        """Rows that were made for nothing so far have cost what it costs to know which are: then they will again."""
        rows = [sum(run.num_rows for run in self._runs(o)) for o in outlook.all()]
        if not rows[0] or max(rows) > _MOST_ROWS:
            return False
        if outlook.step.exits & self._modes.asked:
            return True
        return self._is_built(outlook) or self._ledger(outlook)[0] >= self._cost(outlook)

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
        return f"{self._owner} {self._modes} {outlook.name}"

    def _runs(self, outlook: Outlook) -> Sequence[Run]:
        return self._look(outlook.step.arrangement, outlook.step.fresh).runs

    def _alive(self, outlook: Outlook) -> Sequence[Alive]:
        """Of each run, with all that the runs further on have brought."""
        further = [self._alive(child) for _, child in outlook.onward]
        name = self._name(outlook)
        found = []
        for run in self._runs(outlook):
            alive = run.ahead.get(name)
            if alive is None or alive.is_worn:
                alive = run.ahead[name] = Alive(self.duck, run, outlook, self._modes)
            alive.hear(further)
            found.append(alive)
        return found
