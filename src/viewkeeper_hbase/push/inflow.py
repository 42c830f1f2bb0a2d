"""What the feed asks of a push: has all come, which rows were touched since, and up to where is that known.

A batch publishes with its cut a `Pushed` for each table: up to which mark of which spool its rows were taken. The next
one takes what lies behind it. Nothing else need be remembered: to take a file twice is no change.
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
"""Milliseconds. A cell that is further ahead of HBase's clock was dated by its writer."""

_LISTEN_RETRY_INTERVAL = 1.0
"""Seconds between two tries to receive at an address that somebody has."""

_CLOCK_RETRY_INTERVAL = 10.0
"""Seconds for which a receiver elsewhere that did not answer is not asked for the clock."""

SHIPPING_TIMEOUT = 2.0
"""Seconds for which a batch waits for what is being shipped; then it looks for itself."""


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
        """Whether the peer was ever heard of."""
        return self._spool.epoch is not None

    @property
    def segment_count(self) -> int:
        return self._spool.segment_count

    # -- has all come -------------------------------------------------------------------------------------------------

    def clock(self) -> int | None:
        """What HBase's clock shows now: that of the region server that is furthest ahead. None if that is not known."""
        if not self.receivers and time.monotonic() - self._clock_failed_at < _CLOCK_RETRY_INTERVAL:
            return None  # `reach` goes on trying; nobody need wait for that more than once a batch
        self._last_marks = asked = self._request_marks()
        return asked.clock

    def check_completeness(self, now: int) -> Completeness:
        """Whether all that HBase had acknowledged when its clock showed `now` is in the spool, and can be read."""
        # Who waited in vain, because nothing is shipped, need not do so every time.
        patience = SHIPPING_TIMEOUT if self._was_complete else SHIPPING_TIMEOUT / 20
        if not self.receivers and time.monotonic() - self._listen_tried_at > _LISTEN_RETRY_INTERVAL:
            # Whoever received may be gone: its address is taken over.
            self._listen_tried_at = time.monotonic()
            self.receivers = open_receivers(self.agreement, self._spool, self._secret)
        asked, self._last_marks = self._last_marks, None
        # The clock may have been another's, and what was asked by a thread that was faster: both are older than `now`.
        if asked is None or (asked.marks and (asked.clock is None or asked.clock < now)):
            asked = self._request_marks()
        if self.receivers:
            found = self.receivers[0].check_completeness(asked, patience)
        elif not asked.marks:
            found = Completeness(False, self._failure_reason)
        else:
            said = self._ask_remote_receiver({"marks": asked.marks, "timeout": patience})
            found = Completeness(said["complete"], said["reason"], tuple(said.get("lost", ())))
        self._was_complete = found.complete
        if len(self.receivers) < len(self.agreement.receivers):  # others write to the spool, too
            self._spool.read_new_segments()
        self._spool.record_lost_wals(found.lost)
        return found

    def _request_marks(self) -> WalMarks:
        if self.receivers:
            return self.receivers[0].request_marks(self._unwanted_tables())
        said = self._ask_remote_receiver({"unwanted": list(self._unwanted_tables())})
        return WalMarks(said.get("marks", {}), said.get("clock"))

    def _ask_remote_receiver(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Of a receiver in another process."""
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
                    found: Mapping[str, Any] = json.loads(self._remote_receiver.receive())
                    self._failure_reason = "no region server is connected"
                    return found
                except (OSError, EOFError, ProtocolError) as error:
                    self._failure_reason = f"the receiver {receiver} does not answer ({error or type(error).__name__})"
                    if self._remote_receiver is not None:
                        self._remote_receiver.close()
                    self._remote_receiver = None
            self._clock_failed_at = time.monotonic()
        return {"complete": False, "reason": self._failure_reason}

    # -- what has -----------------------------------------------------------------------------------------------------

    def mark(self) -> SpoolMark:
        """All that has come."""
        return self._spool.current_mark()

    def mark_at(self, cut: int) -> SpoolMark | None:
        """Up to where a batch with at most this cut has everything; None if that is not known any more."""
        with self._lock:
            return next(
                (mark for at, life, mark in reversed(self._cuts) if at <= cut and life == self.spool_life), None
            )

    def touched_rows(self, table: str, mark: SpoolMark, previous: PushMark | None = None) -> TouchedRows:
        """The rows of a table that were touched behind a mark, but for what the `last` batch had read."""
        return protocol.concat_rows([_unread_rows(s, table, previous) for s in self._spool.segments_after(mark, table)])

    def take(
        self, table: str, mark: SpoolMark, up_to: int | None, now: int, previous: PushMark | None = None
    ) -> tuple[TouchedRows, SpoolMark, SpoolMark]:
        """These rows, the mark of a batch with the cut `upto` that has read them, and all that came by now.

        `upto` is None where rows are read as they are.

        A row with a cell of a time after the cut is not read whole by that batch, and not at all if that is so of all
        its cells. Usually the next one does: the mark stays before its file. A time that is far ahead of HBase's own
        clock may never come: that row is kept apart, once its other cells are in a batch.
        """
        known = self._spool.current_mark()
        found, reached, held = [], dict(known), set[str]()
        for segment in self._spool.segments_after(mark, table):
            rows = _unread_rows(segment, table, previous)
            ahead = np.zeros(len(rows), np.bool_) if up_to is None else rows.newest > up_to
            limit = max(now, up_to or 0) + MAX_CLOCK_SKEW
            far = (rows.newest > limit) & ((rows.oldest <= (up_to or 0)) | (rows.oldest > limit))
            waits = segment.is_future and len(rows) > 0 and bool(ahead.all())
            if not waits:
                found.append(rows if up_to is None or not ahead.any() else rows.filter(rows.oldest <= up_to))
            if segment.writer in held:
                continue
            if waits or bool((ahead & ~far).any()):
                held.add(segment.writer)
                reached[segment.writer] = segment.number - 1
            elif bool((ahead & far).any()):
                self._spool.append(protocol.encode_tables({table: rows.filter(far)}), is_future=True)
        return protocol.concat_rows(found), reached, known

    # -- what need not be kept ----------------------------------------------------------------------------------------

    def record_commit(self, cut: int, push_marks: Iterable[PushMark]) -> None:
        """A batch with this cut is published, with what it had seen of its tables."""
        marks = [pushed.spool_mark for pushed in push_marks if pushed.spool_life == self.spool_life]
        with self._lock:
            self._cuts.append((cut, self.spool_life, common_mark(marks) if marks else self.mark()))

    def truncate(self, up_to: int) -> None:
        """Nobody will ask for what a batch with at most this cut has."""
        mark = self.mark_at(up_to)
        if mark is None:
            return
        with suppress(StoreError):  # it can be done the next time
            self._spool.remove(mark)
        with self._lock:
            while len(self._cuts) > 1 and self._cuts[1][0] <= up_to:
                self._cuts.popleft()


def _unread_rows(segment: Segment, table: str, previous: PushMark | None) -> TouchedRows:
    """A file whose mark waits for a later row is looked at by every batch: what the last one had of it is left out."""
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
    """Receivers at those of the agreed addresses that are this machine's, and free."""
    tls = None
    if agreement.certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(agreement.certificate, agreement.key)
    found = []
    for one in agreement.receivers:
        try:
            found.append(Receiver(parse_address(one), spool, agreement.peer, secret, tls))
        except gaierror:
            continue
        except OSError as error:
            if error.errno not in (EADDRINUSE, EADDRNOTAVAIL):
                raise StoreError(f"Nothing can listen at {one}: {error.strerror}.") from error
    return found


def unique_keys(rows: TouchedRows) -> pa.Array:
    """The row keys, each once."""
    return rows.keys.unique() if len(rows) else rows.keys


def first_positions(keys: pa.Array, positions: Times) -> Times:
    """The first position of each of the keys."""
    if len(keys) < 2:
        return positions
    which = keys.dictionary_encode()
    found = np.full(len(which.dictionary), np.iinfo(np.int64).max)
    np.minimum.at(found, np.asarray(which.indices), positions)
    return found
