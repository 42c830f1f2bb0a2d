"""Whether one thread or several run a batch's operators: what took less time in batches like it.

Operators of few rows are many short calls, between which Python's lock is held. Who waits for it is woken by each of
them, so a second thread may win a fifth of the time or lose it: that depends on the machine, and on what else it does.
Batches are alike if the same tables changed, by about as many rows, through the same form of the flow. Of each sort the
first does not count (files are opened, statements prepared), the second is run by several threads and the third by one;
then the better way is taken, and the other is tried again now and then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

_NEWEST = 0.3
"""Weight of the newest measurement."""
_AGAIN = 16
"""Batches after which the way that was slower is tried again; if it took half as much again, four times as many."""
_MUCH = 1.5
_MOST_SORTS = 64


@dataclass
class _Sort:
    """Batches that are alike: how many there were, and the seconds for a row by one thread and by several."""

    count: int = 0
    seconds: dict[bool, float] = field(default_factory=dict)


class Hands:
    """What is known of the batches of one stage."""

    def __init__(self) -> None:
        self._sorts: OrderedDict[Hashable, _Sort] = OrderedDict()

    def several(self, sort: Hashable) -> bool:
        """Whether several threads are to run such a batch."""
        known = self._sorts.get(sort, _Sort())
        missing = [several for several in (True, False) if several not in known.seconds]
        if missing:
            return missing[0]
        one, more = known.seconds[False], known.seconds[True]
        better = more <= one
        is_much = max(one, more) > _MUCH * min(one, more)
        return better != (known.count % (_AGAIN * (4 if is_much else 1)) == 0)

    def learn(self, sort: Hashable, several: bool, rows: int, seconds: float) -> None:
        """Such a batch was run so."""
        known = self._sorts.setdefault(sort, _Sort())
        self._sorts.move_to_end(sort)
        known.count += 1
        if known.count > 1:
            now = seconds / max(1, rows)
            before = known.seconds.get(several, now)
            known.seconds[several] = before + _NEWEST * (now - before)
        if len(self._sorts) > _MOST_SORTS:
            self._sorts.popitem(last=False)
