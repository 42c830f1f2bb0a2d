"""The inflow of pushed changes in the maintainer's process: completeness, the rows written since a mark, and marks.

A batch publishes with its cut a `PushMark` for each table: the mark of the spool up to which the table's rows
were read. The next batch reads the files after it. No other state is needed, because reading a file twice changes
nothing.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from errno import EADDRINUSE, EADDRNOTAVAIL
from socket import gaierror
from typing import Any

import numpy as np
import pyarrow as pa

from viewkeeper.errors import StoreError
from viewkeeper_hbase.push import protocol
from viewkeeper_hbase.push.completeness import Completeness, WalMarks
from viewkeeper_hbase.push.protocol import Caller, ProtocolError, PushConnection, Times, TouchedRows
from viewkeeper_hbase.push.receiver import Receiver
from viewkeeper_hbase.push.settings import PushAgreement, parse_address
from viewkeeper_hbase.push.spool import PushMark, Segment, Spool, SpoolMark, common_mark

MAX_CLOCK_SKEW = 2000
"""Milliseconds. A cell that is further ahead of HBase's clock got its time from its writer."""

_LISTEN_RETRY_INTERVAL = 1.0
"""Seconds between two attempts to listen at an address that is in use."""

_CLOCK_RETRY_INTERVAL = 10.0
"""Seconds for which a remote receiver that did not answer is not asked for the clock again."""

SHIPPING_TIMEOUT = 2.0
"""Seconds for which a batch waits for WALs that are being shipped; then it scans windows itself."""


class PushInflow:
    """The push of one database, in the process that maintains it."""

    def __init__(
        self, agreement: PushAgreement, spool: Spool, secret: bytes, unwanted_tables: Callable[[], Sequence[str]]
    ) -> None:
        self.agreement, self._spool, self._secret, self._unwanted_tables = agreement, spool, secret, unwanted_tables
        self._cuts: deque[tuple[int, str, SpoolMark]] = deque()
        self._lock, self._call_lock = threading.Lock(), threading.Lock()
        self._remote_receiver: PushConnection | None = None
        self._was_complete = True
        self._last_marks: WalMarks | None = None
        self._clock_failed_at, self._failure_reason = float("-inf"), ""
        self._listen_tried_at = time.monotonic()
        self._tls = ssl.create_default_context(cafile=agreement.certificate) if agreement.certificate else None
        self.receivers = open_receivers(agreement, spool, secret)
        self._spool.read_new_segments()

    def close(self) -> None:
        for receiver in self.receivers:
            receiver.close()
        if self._remote_receiver is not None:
            self._remote_receiver.close()

    def on_changes(self, notify: Callable[[], None]) -> None:
        self._spool.on_changes(notify)

    @property
    def spool_life(self) -> str:
        return self._spool.life

    @property
    def has_started(self) -> bool:
        """Whether any region server has ever pushed for the peer."""
        return self._spool.epoch is not None

    @property
    def segment_count(self) -> int:
        return self._spool.segment_count

    # -- completeness -------------------------------------------------------------------------------------------------

    def clock(self) -> int | None:
        """Return HBase's clock now: the most advanced clock of the region servers. None if it is not known."""
        if not self.receivers and time.monotonic() - self._clock_failed_at < _CLOCK_RETRY_INTERVAL:
            return None  # `check_completeness` goes on trying; waiting once per batch is enough
        self._last_marks = marks = self._request_marks()
        return marks.clock

    def check_completeness(self, now: int) -> Completeness:
        """Check whether everything that HBase had acknowledged when its clock showed `now` is in the spool and
        readable."""
        # After a check that timed out because nothing was shipped, the next one waits only briefly.
        timeout = SHIPPING_TIMEOUT if self._was_complete else SHIPPING_TIMEOUT / 20
        if not self.receivers and time.monotonic() - self._listen_tried_at > _LISTEN_RETRY_INTERVAL:
            # The process that received may have ended: listen at its address.
            self._listen_tried_at = time.monotonic()
            self.receivers = open_receivers(self.agreement, self._spool, self._secret)
        marks, self._last_marks = self._last_marks, None
        # The clock may be from another source, or another thread may have used the marks: such marks are older than
        # `now`.
        if marks is None or (marks.marks and (marks.clock is None or marks.clock < now)):
            marks = self._request_marks()
        if self.receivers:
            completeness = self.receivers[0].check_completeness(marks, timeout)
        elif not marks.marks:
            completeness = Completeness(False, self._failure_reason)
        else:
            answer = self._ask_remote_receiver({"marks": marks.marks, "timeout": timeout})
            completeness = Completeness(answer["complete"], answer["reason"], tuple(answer.get("lost", ())))
        self._was_complete = completeness.complete
        if len(self.receivers) < len(self.agreement.receivers):  # other receivers write to the spool, too
            self._spool.read_new_segments()
        self._spool.record_lost_wals(completeness.lost)
        return completeness

    def _request_marks(self) -> WalMarks:
        if self.receivers:
            return self.receivers[0].request_marks(self._unwanted_tables())
        answer = self._ask_remote_receiver({"unwanted": list(self._unwanted_tables())})
        return WalMarks(answer.get("marks", {}), answer.get("clock"))

    def _ask_remote_receiver(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a question to a receiver in another process."""
        with self._call_lock:
            self._failure_reason = "no receiver is there"
            for receiver in self.agreement.receivers:
                try:
                    if self._remote_receiver is None:
                        caller = Caller("reach", "maintainer", self.agreement.peer, "")
                        self._remote_receiver = protocol.connect_receiver(
                            parse_address(receiver), self._secret, caller, timeout=5.0, tls=self._tls
                        )
                        self._remote_receiver.settimeout(SHIPPING_TIMEOUT + 5.0)
                    self._remote_receiver.send(json.dumps(question).encode())
                    answer: Mapping[str, Any] = json.loads(self._remote_receiver.receive())
                    self._failure_reason = "no region server is connected"
                    return answer
                except (OSError, EOFError, ProtocolError) as error:
                    self._failure_reason = f"the receiver {receiver} does not answer ({error or type(error).__name__})"
                    if self._remote_receiver is not None:
                        self._remote_receiver.close()
                    self._remote_receiver = None
            self._clock_failed_at = time.monotonic()
        return {"complete": False, "reason": self._failure_reason}

    # -- rows ---------------------------------------------------------------------------------------------------------

    def mark(self) -> SpoolMark:
        """Return the mark of everything in the spool."""
        return self._spool.current_mark()

    def mark_at(self, cut: int) -> SpoolMark | None:
        """Return a mark up to which a batch with at most this cut has read everything; None if it is no longer
        known."""
        with self._lock:
            return next(
                (
                    mark
                    for batch_cut, life, mark in reversed(self._cuts)
                    if batch_cut <= cut and life == self.spool_life
                ),
                None,
            )

    def touched_rows(self, table: str, mark: SpoolMark, previous: PushMark | None = None) -> TouchedRows:
        """Return the rows of a table written after a mark, except those that the `previous` batch has read."""
        return protocol.concat_rows([_unread_rows(s, table, previous) for s in self._spool.segments_after(mark, table)])

    def take(
        self, table: str, mark: SpoolMark, up_to: int | None, now: int, previous: PushMark | None = None
    ) -> tuple[TouchedRows, SpoolMark, SpoolMark]:
        """Return these rows, the mark of a batch with the cut `up_to` that reads them, and the mark of everything in
        the spool.

        `up_to` is None for a table that is read in its current state.

        A batch does not see cells with times after its cut, so it reads such a row only in part, or not at all.
        The mark then stays before the row's file, and usually the next batch reads it. A cell whose time is far
        ahead of HBase's clock may never become current: such a row is appended to a file of its own, once its
        other cells are in a batch, so that it does not hold back the mark.
        """
        arrived_mark = self._spool.current_mark()
        parts, read_mark, held_writers = [], dict(arrived_mark), set[str]()
        for segment in self._spool.segments_after(mark, table):
            rows = _unread_rows(segment, table, previous)
            ahead = np.zeros(len(rows), np.bool_) if up_to is None else rows.newest > up_to
            limit = max(now, up_to or 0) + MAX_CLOCK_SKEW
            far_ahead = (rows.newest > limit) & ((rows.oldest <= (up_to or 0)) | (rows.oldest > limit))
            must_wait = segment.is_future and len(rows) > 0 and bool(ahead.all())
            if not must_wait:
                parts.append(rows if up_to is None or not ahead.any() else rows.filter(rows.oldest <= up_to))
            if segment.writer in held_writers:
                continue
            if must_wait or bool((ahead & ~far_ahead).any()):
                held_writers.add(segment.writer)
                read_mark[segment.writer] = segment.number - 1
            elif bool((ahead & far_ahead).any()):
                self._spool.append(protocol.encode_tables({table: rows.filter(far_ahead)}), is_future=True)
        return protocol.concat_rows(parts), read_mark, arrived_mark

    # -- truncation ---------------------------------------------------------------------------------------------------

    def record_commit(self, cut: int, push_marks: Iterable[PushMark]) -> None:
        """Record that a batch with this cut is published, with the push marks of its tables."""
        marks = [push_mark.spool_mark for push_mark in push_marks if push_mark.spool_life == self.spool_life]
        with self._lock:
            self._cuts.append((cut, self.spool_life, common_mark(marks) if marks else self.mark()))

    def truncate(self, up_to: int) -> None:
        """Remove the files that a batch with at most this cut has read."""
        mark = self.mark_at(up_to)
        if mark is None:
            return
        with suppress(StoreError):  # the next truncation removes them
            self._spool.remove(mark)
        with self._lock:
            while len(self._cuts) > 1 and self._cuts[1][0] <= up_to:
                self._cuts.popleft()


def _unread_rows(segment: Segment, table: str, previous: PushMark | None) -> TouchedRows:
    """Return the rows of a file that the previous batch has not read. A file whose mark waits for a later row is
    scanned by every batch."""
    rows = segment.tables[table]
    if (
        previous is None
        or previous.arrived_mark is None
        or previous.cut is None
        or segment.number > previous.arrived_mark.get(segment.writer, 0)
    ):
        return rows
    return rows.filter(rows.newest > previous.cut)


def open_receivers(agreement: PushAgreement, spool: Spool, secret: bytes) -> list[Receiver]:
    """Open receivers at the agreed addresses that belong to this machine and are free."""
    tls = None
    if agreement.certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(agreement.certificate, agreement.key)
    receivers = []
    for address in agreement.receivers:
        try:
            receivers.append(Receiver(parse_address(address), spool, agreement.peer, secret, tls))
        except gaierror:
            continue
        except OSError as error:
            if error.errno not in (EADDRINUSE, EADDRNOTAVAIL):
                raise StoreError(f"Nothing can listen at {address}: {error.strerror}.") from error
    return receivers


def unique_keys(rows: TouchedRows) -> pa.Array:
    """Return the distinct row keys."""
    return rows.keys.unique() if len(rows) else rows.keys


def first_positions(keys: pa.Array, positions: Times) -> Times:
    """Return the first position of each distinct key."""
    if len(keys) < 2:
        return positions
    encoded = keys.dictionary_encode()
    first = np.full(len(encoded.dictionary), np.iinfo(np.int64).max)
    np.minimum.at(first, np.asarray(encoded.indices), positions)
    return first
