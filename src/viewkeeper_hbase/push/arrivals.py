"""Pushed changes as capture uses them, table by table. Each answer is in one of three states:

    complete    everything that HBase had acknowledged at a time of its clock has been pushed, and the table's last
                batch read from the same life of the spool: the pushed keys are all there is to read
    gap         the spool's life has changed (the peer was removed, the spool lost), files were bulk-loaded, or the
                table was truncated: the whole table is read and compared with its table image
    neither     there is no push, or it is not known to be complete: a window is scanned, and pushed keys are read too

Pushed keys are marked as read in every state. So no pushed change is skipped: a key that is pushed long after its
window was scanned is still read then.
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
    """The pushed row keys of a table for a batch, and the push mark that the batch will publish."""

    keys: pa.Array
    push_mark: PushMark | None
    is_complete: bool = False
    has_gap: bool = False


@dataclass(frozen=True)
class PendingArrivals:
    """Positions of pushed changes that are in no batch, and the first one of each row: a batch reads a row once,
    however often it was written. `is_complete` means that no other change is pending."""

    positions: Times
    first_positions: Times
    is_complete: bool = False


class Arrivals:
    """The push of a database, for its change capture. Without an inflow it returns no rows and is never complete."""

    def __init__(self) -> None:
        self.inflow: PushInflow | None = None
        self.on_completeness: Callable[[Completeness], None] | None = None
        """Called with the result of every completeness check."""
        self._complete_up_to = -1

    def clock(self) -> int | None:
        """Return HBase's clock as its region servers report it; None if they do not."""
        return self.inflow.clock() if self.inflow is not None and self.inflow.has_started else None

    def check_completeness(self, now: int) -> None:
        """Check whether everything acknowledged up to `now`, HBase's clock just read, has been pushed."""
        if self.inflow is not None and now > self._complete_up_to:  # completeness up to a time stays true
            completeness = self.inflow.check_completeness(now)
            if completeness.complete:
                self._complete_up_to = max(self._complete_up_to, now)
            if self.on_completeness is not None:
                self.on_completeness(completeness)

    def take(
        self,
        layout: Layout,
        capture_mark: CaptureMark | None,
        after: int,
        up_to: int,
        has_past_versions: bool,
        now: int,
    ) -> ArrivedRows:
        """Return the pushed changes of a table for a batch from the cut `after`, with its `capture_mark`, up to
        `up_to`."""
        push_mark, inflow = _push_mark(capture_mark), self._inflow_of(layout)
        if inflow is None:
            return ArrivedRows(NO_ROWS.keys, push_mark)
        is_complete = up_to <= self._complete_up_to
        cut = up_to if has_past_versions else None
        if capture_mark is not None and (push_mark is None or push_mark.spool_life != inflow.spool_life):
            _, mark, arrived_mark = inflow.take(layout.name, {}, cut, now)
            return ArrivedRows(
                NO_ROWS.keys,
                PushMark(inflow.spool_life, mark, is_complete, arrived_mark, cut),
                is_complete,
                has_gap=True,
            )
        start_mark = push_mark.spool_mark if push_mark is not None else inflow.mark_at(after)
        if start_mark is None:
            return ArrivedRows(NO_ROWS.keys, None)
        rows, mark, arrived_mark = inflow.take(layout.name, start_mark, cut, now, push_mark)
        return ArrivedRows(
            unique_keys(rows),
            PushMark(inflow.spool_life, mark, is_complete, arrived_mark, cut),
            is_complete,
            rows.is_bulk_loaded,
        )

    def pending(self, layout: Layout, capture_mark: CaptureMark | None, after: int, now: int) -> PendingArrivals:
        """Return the pending changes after the cut `after`, whose batch published `capture_mark`."""
        push_mark, inflow = _push_mark(capture_mark), self._inflow_of(layout)
        if inflow is None:
            return PendingArrivals(NO_TIMES, NO_TIMES)
        is_complete = now <= self._complete_up_to
        unknown_position = np.array([after + 1])
        if capture_mark is not None and (push_mark is None or push_mark.spool_life != inflow.spool_life):
            return PendingArrivals(unknown_position, unknown_position, is_complete)
        mark = push_mark.spool_mark if push_mark is not None else inflow.mark_at(after)
        if mark is None:
            return PendingArrivals(NO_TIMES, NO_TIMES)
        rows = inflow.touched_rows(layout.name, mark, push_mark)
        positions = np.maximum(rows.newest, after + 1)  # cells with backdated times arrived after the last cut
        # A row with a cell up to `now` and one with a future time has the position of the first.
        positions = np.where((positions > now) & (rows.oldest > after), rows.oldest, positions)
        # If push is not complete, a window finds the changes after the cut; only changes with older times are counted
        # here.
        which = positions <= (now if is_complete else min(now, after + 1))
        if not which.all():
            rows, positions = rows.filter(which), positions[which]
        first = first_positions(rows.keys, positions)
        if rows.is_bulk_loaded:
            positions, first = np.append(positions, unknown_position), np.append(first, unknown_position)
        return PendingArrivals(positions, first, is_complete)

    def check_load(
        self, layout: Layout, capture_mark: CaptureMark | None, cut: int, has_past_versions: bool, now: int
    ) -> ArrivedRows:
        """Check that a load at a cut reads the same rows as the batch of this cut, and return its push mark.

        `capture_mark` is the mark recorded with the batch or returned before the scan, if any. `has_gap` means
        that the load may contain rows that the cut's batch did not have: a change from before the cut was pushed
        after that mark, or push is no longer complete, so that such a change may still arrive.
        """
        push_mark, inflow = _push_mark(capture_mark), self._inflow_of(layout)
        if inflow is None:
            return ArrivedRows(NO_ROWS.keys, push_mark)
        is_complete = now <= self._complete_up_to
        if capture_mark is None:
            _, mark, arrived_mark = inflow.take(layout.name, {}, cut if has_past_versions else None, now)
            return ArrivedRows(NO_ROWS.keys, PushMark(inflow.spool_life, mark, is_complete, arrived_mark), is_complete)
        if push_mark is None or push_mark.spool_life != inflow.spool_life:
            return ArrivedRows(NO_ROWS.keys, push_mark)  # only a window scan can decide
        rows = inflow.touched_rows(
            layout.name, push_mark.spool_mark if push_mark.arrived_mark is None else push_mark.arrived_mark
        )
        if (push_mark.is_complete and not is_complete) or rows.is_bulk_loaded or bool((rows.oldest <= cut).any()):
            return ArrivedRows(NO_ROWS.keys, push_mark, has_gap=True)
        return ArrivedRows(NO_ROWS.keys, push_mark, is_complete and push_mark.is_complete)

    def record_commit(self, cut: int, capture_marks: Iterable[CaptureMark]) -> None:
        """Record a published batch's cut and capture marks."""
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
