"""Who runs a batch's operators: one thread, several, or other processes too. What took less time in batches like it.

Operators of few rows are many short calls, between which Python's lock is held. Who waits for it is woken by each of
them, so a second thread may win a fifth of the time or lose it: that depends on the machine, and on what else it does.
Processes have a lock each, but some work is done by each of them, and rows travel.

Batches are alike if the same tables changed, by about as many rows, through the same form of the flow. Of each sort the
first does not count (files are opened, statements prepared); then each way is tried once, and the best is taken. A way
that was slower is tried once more soon, since chance makes a batch slower and never faster: of the first two times the
shorter counts. Then it is tried again now and then.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

SEVERAL, ONE, PROCESSES = "several threads", "one thread", "several processes"

_NEWEST = 0.3
"""Weight of the newest measurement."""
_AGAIN = 16
"""Batches after which a way that was slower is tried again; if it took half as much again, four times as many."""
_SOON = 2
"""Batches after which a way is tried for the second time."""
_MUCH = 1.5
_MOST_SORTS = 64


@dataclass
class _Sort:
    """Batches that are alike: how many there were, the seconds for a row each way, when and how often it was taken."""

    count: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)


class Hands:
    """What is known of the batches of one stage."""

    def __init__(self) -> None:
        self._sorts: OrderedDict[Hashable, _Sort] = OrderedDict()

    def way(self, sort: Hashable, ways: Sequence[str]) -> str:
        """Which of these ways such a batch is to be run."""
        known = self._sorts.get(sort, _Sort())
        untried = [way for way in ways if way not in known.seconds]
        if untried:
            return untried[0]
        best, *others = sorted(ways, key=known.seconds.__getitem__)
        for way in others:
            is_much = known.seconds[way] > _MUCH * known.seconds[best]
            pause = 4 * _AGAIN if is_much else _AGAIN if known.times[way] > 1 else _SOON
            if known.count - known.last[way] >= pause:
                return way
        return best

    def seen(self, sort: Hashable) -> int:
        """How many such batches there were."""
        return self._sorts.get(sort, _Sort()).count

    def learn(self, sort: Hashable, way: str, rows: int, seconds: float) -> None:
        """Such a batch was run so."""
        known = self._sorts.setdefault(sort, _Sort())
        self._sorts.move_to_end(sort)
        known.count += 1
        if known.count > 1:
            now = seconds / max(1, rows)
            before = known.seconds.get(way, now)
            known.times[way] += 1
            known.seconds[way] = min(before, now) if known.times[way] == 2 else before + _NEWEST * (now - before)
            known.last[way] = known.count
        if len(self._sorts) > _MOST_SORTS:
            self._sorts.popitem(last=False)
