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

from viewkeeper.store.contract.commits import CaptureMark
from viewkeeper_hbase.layout.layout import Layout
from viewkeeper_hbase.push.completeness import Completeness
from viewkeeper_hbase.push.inflow import PushInflow, first_positions, unique_keys
from viewkeeper_hbase.push.protocol import NO_ROWS, Times
from viewkeeper_hbase.push.spool import PushMark

NO_TIMES = np.empty(0, np.int64)


@dataclass(frozen=True)
class ArrivedRows:
    """What came of a table for a batch: row keys, and what the batch will have had of it."""

    keys: pa.Array
    push_mark: PushMark | None
    is_complete: bool = False
    has_gap: bool = False


@dataclass(frozen=True)
class PendingArrivals:
    """Positions of what came and is in no batch, and the first one of each row: a batch reads a row once, however often
    it was touched. `complete`: nothing else waits."""

    positions: Times
    first_positions: Times
    is_complete: bool = False


class Arrivals:
    """The push of a database as its feed sees it; without one, nothing comes and nothing is whole."""

    def __init__(self) -> None:
        self.inflow: PushInflow | None = None
        self.on_completeness: Callable[[Completeness], None] | None = None
        """Told of every outcome."""
        self._complete_up_to = -1

    def clock(self) -> int | None:
        """What HBase's clock shows, as its endpoints say; None if they do not."""
        return self.inflow.clock() if self.inflow is not None and self.inflow.has_started else None

    def check_completeness(self, now: int) -> None:
        """Find out whether all has come that was acknowledged up to `now`, HBase's clock as it was just asked for."""
        if self.inflow is not None and now > self._complete_up_to:  # what has come stays
            found = self.inflow.check_completeness(now)
            if found.complete:
                self._complete_up_to = max(self._complete_up_to, now)
            if self.on_completeness is not None:
                self.on_completeness(found)

    def take(
        self,
        layout: Layout,
        capture_mark: CaptureMark | None,
        after: int,
        up_to: int,
        has_past_versions: bool,
        now: int,
    ) -> ArrivedRows:
        """What came for a batch from the cut `after`, of which `told` was seen, up to `upto`."""
        pushed, inflow = _push_mark(capture_mark), self._inflow_of(layout)
        if inflow is None:
            return ArrivedRows(NO_ROWS.keys, pushed)
        complete = up_to <= self._complete_up_to
        cut = up_to if has_past_versions else None
        if capture_mark is not None and (pushed is None or pushed.spool_life != inflow.spool_life):
            _, mark, known = inflow.take(layout.name, {}, cut, now)
            return ArrivedRows(
                NO_ROWS.keys, PushMark(inflow.spool_life, mark, complete, known, cut), complete, has_gap=True
            )
        since = pushed.spool_mark if pushed is not None else inflow.mark_at(after)
        if since is None:
            return ArrivedRows(NO_ROWS.keys, None)
        rows, mark, known = inflow.take(layout.name, since, cut, now, pushed)
        return ArrivedRows(
            unique_keys(rows), PushMark(inflow.spool_life, mark, complete, known, cut), complete, rows.is_bulk_loaded
        )

    def pending(self, layout: Layout, capture_mark: CaptureMark | None, after: int, now: int) -> PendingArrivals:
        """What waits after the cut `after`, of which `told` was seen."""
        pushed, inflow = _push_mark(capture_mark), self._inflow_of(layout)
        if inflow is None:
            return PendingArrivals(NO_TIMES, NO_TIMES)
        complete = now <= self._complete_up_to
        anything = np.array([after + 1])
        if capture_mark is not None and (pushed is None or pushed.spool_life != inflow.spool_life):
            return PendingArrivals(anything, anything, complete)
        mark = pushed.spool_mark if pushed is not None else inflow.mark_at(after)
        if mark is None:
            return PendingArrivals(NO_TIMES, NO_TIMES)
        rows = inflow.touched_rows(layout.name, mark, pushed)
        came = np.maximum(rows.newest, after + 1)  # what was dated back came after the last cut
        # A row with a cell of now and one dated ahead waits for the first.
        came = np.where((came > now) & (rows.oldest > after), rows.oldest, came)
        # Without a whole push a window shows what is newer than the cut; what is older only came.
        which = came <= (now if complete else min(now, after + 1))
        if not which.all():
            rows, came = rows.filter(which), came[which]
        first = first_positions(rows.keys, came)
        if rows.is_bulk_loaded:
            came, first = np.append(came, anything), np.append(first, anything)
        return PendingArrivals(came, first, complete)

    def check_load(
        self, layout: Layout, capture_mark: CaptureMark | None, cut: int, has_past_versions: bool, now: int
    ) -> ArrivedRows:
        """What a load at a cut has had, of which `told` was seen before; `gap`: something of then came after that.

        The rows that a load reads must be those that the cut's batch had. What is on its way could be among them.
        """
        pushed, inflow = _push_mark(capture_mark), self._inflow_of(layout)
        if inflow is None:
            return ArrivedRows(NO_ROWS.keys, pushed)
        complete = now <= self._complete_up_to
        if capture_mark is None:
            _, mark, known = inflow.take(layout.name, {}, cut if has_past_versions else None, now)
            return ArrivedRows(NO_ROWS.keys, PushMark(inflow.spool_life, mark, complete, known), complete)
        if pushed is None or pushed.spool_life != inflow.spool_life:
            return ArrivedRows(NO_ROWS.keys, pushed)  # only a window can tell
        rows = inflow.touched_rows(
            layout.name, pushed.spool_mark if pushed.arrived_mark is None else pushed.arrived_mark
        )
        if (pushed.is_complete and not complete) or rows.is_bulk_loaded or bool((rows.oldest <= cut).any()):
            return ArrivedRows(NO_ROWS.keys, pushed, has_gap=True)
        return ArrivedRows(NO_ROWS.keys, pushed, complete and pushed.is_complete)

    def record_commit(self, cut: int, capture_marks: Iterable[CaptureMark]) -> None:
        """A batch is published with what it had seen of its tables."""
        if self.inflow is not None:
            self.inflow.record_commit(cut, [p for p in map(_push_mark, capture_marks) if p is not None])

    def _inflow_of(self, layout: Layout) -> PushInflow | None:
        inflow = self.inflow
        return (
            inflow if inflow is not None and inflow.has_started and inflow.agreement.is_covered(layout.name) else None
        )


def _push_mark(capture_mark: CaptureMark | None) -> PushMark | None:
    found = getattr(capture_mark, "push", None)
    return found if isinstance(found, PushMark) else None
