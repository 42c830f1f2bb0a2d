"""What the feed makes of a push, table by table: is it whole, what waits, what was taken, what came late.

    whole       everything that HBase had acknowledged at a time of its clock has come, and the table's last batch was
                in the same life of the spool: what came since is all there is to read
    gap         that life is another one (the peer was removed, the spool lost) or files were bulk-loaded, or the
                table was emptied: it is read whole and compared with its image
    neither     no push, or it cannot be shown that all has come: a window is scanned, and what came is read as well

What came is marked as taken in every case. So nothing that HBase ever pushes is passed over: if it comes when a window
has long gone by, it is read then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from viewkeeper.store.contract.commits import Seen
from viewkeeper_hbase.layout.layout import Layout
from viewkeeper_hbase.push.completeness import Reached
from viewkeeper_hbase.push.inflow import Inflow, firsts, keys_of
from viewkeeper_hbase.push.protocol import NOTHING, Times
from viewkeeper_hbase.push.spool import Pushed

NO_TIMES = np.empty(0, np.int64)


@dataclass(frozen=True)
class Came:
    """What came of a table for a batch: row keys, and what the batch will have had of it."""

    keys: pa.Array
    pushed: Pushed | None
    complete: bool = False
    gap: bool = False


@dataclass(frozen=True)
class Waits:
    """Positions of what came and is in no batch, and the first one of each row: a batch reads a row once, however often
    it was touched. `complete`: nothing else waits."""

    positions: Times
    firsts: Times
    complete: bool = False


class Arrivals:
    """The push of a database as its feed sees it; without one, nothing comes and nothing is whole."""

    def __init__(self) -> None:
        self.inflow: Inflow | None = None
        self.on_reach: Callable[[Reached], None] | None = None
        """Told of every outcome."""
        self._complete = -1

    def clock(self) -> int | None:
        """What HBase's clock shows, as its endpoints say; None if they do not."""
        return self.inflow.clock() if self.inflow is not None and self.inflow.started else None

    def reach(self, now: int) -> None:
        """Find out whether all has come that was acknowledged up to `now`, HBase's clock as it was just asked for."""
        if self.inflow is not None and now > self._complete:  # what has come stays
            found = self.inflow.reach(now)
            if found.complete:
                self._complete = max(self._complete, now)
            if self.on_reach is not None:
                self.on_reach(found)

    def taken(self, layout: Layout, told: Seen | None, after: int, upto: int, exact: bool, now: int) -> Came:
        """What came for a batch from the cut `after`, of which `told` was seen, up to `upto`."""
        pushed, inflow = _pushed(told), self._of(layout)
        if inflow is None:
            return Came(NOTHING.keys, pushed)
        complete = upto <= self._complete
        cut = upto if exact else None
        if told is not None and (pushed is None or pushed.life != inflow.life):
            _, mark, known = inflow.take(layout.name, {}, cut, now)
            return Came(NOTHING.keys, Pushed(inflow.life, mark, complete, known, cut), complete, gap=True)
        since = pushed.mark if pushed is not None else inflow.mark_at(after)
        if since is None:
            return Came(NOTHING.keys, None)
        rows, mark, known = inflow.take(layout.name, since, cut, now, pushed)
        return Came(keys_of(rows), Pushed(inflow.life, mark, complete, known, cut), complete, rows.loaded)

    def waiting(self, layout: Layout, told: Seen | None, after: int, now: int) -> Waits:
        """What waits after the cut `after`, of which `told` was seen."""
        pushed, inflow = _pushed(told), self._of(layout)
        if inflow is None:
            return Waits(NO_TIMES, NO_TIMES)
        complete = now <= self._complete
        anything = np.array([after + 1])
        if told is not None and (pushed is None or pushed.life != inflow.life):
            return Waits(anything, anything, complete)
        mark = pushed.mark if pushed is not None else inflow.mark_at(after)
        if mark is None:
            return Waits(NO_TIMES, NO_TIMES)
        rows = inflow.touched(layout.name, mark, pushed)
        came = np.maximum(rows.newest, after + 1)  # what was dated back came after the last cut
        # A row with a cell of now and one dated ahead waits for the first.
        came = np.where((came > now) & (rows.oldest > after), rows.oldest, came)
        # Without a whole push a window shows what is newer than the cut; what is older only came.
        which = came <= (now if complete else min(now, after + 1))
        if not which.all():
            rows, came = rows.only(which), came[which]
        first = firsts(rows.keys, came)
        if rows.loaded:
            came, first = np.append(came, anything), np.append(first, anything)
        return Waits(came, first, complete)

    def late(self, layout: Layout, told: Seen | None, cut: int, exact: bool, now: int) -> Came:
        """What a load at a cut has had, of which `told` was seen before; `gap`: something of then came after that.

        The rows that a load reads must be those that the cut's batch had. What is on its way could be among them.
        """
        pushed, inflow = _pushed(told), self._of(layout)
        if inflow is None:
            return Came(NOTHING.keys, pushed)
        complete = now <= self._complete
        if told is None:
            _, mark, known = inflow.take(layout.name, {}, cut if exact else None, now)
            return Came(NOTHING.keys, Pushed(inflow.life, mark, complete, known), complete)
        if pushed is None or pushed.life != inflow.life:
            return Came(NOTHING.keys, pushed)  # only a window can tell
        rows = inflow.touched(layout.name, pushed.mark if pushed.known is None else pushed.known)
        if (pushed.complete and not complete) or rows.loaded or bool((rows.oldest <= cut).any()):
            return Came(NOTHING.keys, pushed, gap=True)
        return Came(NOTHING.keys, pushed, complete and pushed.complete)

    def committed(self, cut: int, seen: Iterable[Seen]) -> None:
        """A batch is published with what it had seen of its tables."""
        if self.inflow is not None:
            self.inflow.committed(cut, [p for p in map(_pushed, seen) if p is not None])

    def _of(self, layout: Layout) -> Inflow | None:
        inflow = self.inflow
        return inflow if inflow is not None and inflow.started and inflow.agreed.covers(layout.name) else None


def _pushed(told: Seen | None) -> Pushed | None:
    found = getattr(told, "push", None)
    return found if isinstance(found, Pushed) else None
