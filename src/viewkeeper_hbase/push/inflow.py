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
from viewkeeper_hbase.push.completeness import Asked, Reached
from viewkeeper_hbase.push.protocol import Caller, Refused, Times, Touched, Wire
from viewkeeper_hbase.push.receiver import Receiver
from viewkeeper_hbase.push.settings import Agreed, address
from viewkeeper_hbase.push.spool import Mark, Pushed, Segment, Spool, least

FAR = 2000
"""Milliseconds. A cell that is further ahead of HBase's clock was dated by its writer."""

_AGAIN = 1.0
"""Seconds between two tries to receive at an address that somebody has."""

_MISSED = 10.0
"""Seconds for which a receiver elsewhere that did not answer is not asked for the clock."""

SHIPPING = 2.0
"""Seconds for which a batch waits for what is being shipped; then it looks for itself."""


class Inflow:
    """The push of one database, in the process that maintains it."""

    def __init__(self, agreed: Agreed, spool: Spool, secret: bytes, unwanted: Callable[[], Sequence[str]]) -> None:
        self.agreed, self._spool, self._secret, self._unwanted = agreed, spool, secret, unwanted
        self._cuts: deque[tuple[int, str, Mark]] = deque()
        self._lock, self._calling = threading.Lock(), threading.Lock()
        self._caller: Wire | None = None
        self._reached = True
        self._asked: Asked | None = None
        self._missed, self._why = float("-inf"), ""
        self._tried = time.monotonic()
        self._tls = ssl.create_default_context(cafile=agreed.certificate) if agreed.certificate else None
        self.receivers = listening(agreed, spool, secret)
        self._spool.look()

    def close(self) -> None:
        for receiver in self.receivers:
            receiver.close()
        if self._caller is not None:
            self._caller.close()

    def on_news(self, told: Callable[[], None]) -> None:
        self._spool.on_news(told)

    @property
    def life(self) -> str:
        return self._spool.life

    @property
    def started(self) -> bool:
        """Whether the peer was ever heard of."""
        return self._spool.epoch is not None

    @property
    def segments(self) -> int:
        return self._spool.size

    # -- has all come -------------------------------------------------------------------------------------------------

    def clock(self) -> int | None:
        """What HBase's clock shows now: that of the region server that is furthest ahead. None if that is not known."""
        if not self.receivers and time.monotonic() - self._missed < _MISSED:
            return None  # `reach` goes on trying; nobody need wait for that more than once a batch
        self._asked = asked = self._ask()
        return asked.clock

    def reach(self, now: int) -> Reached:
        """Whether all that HBase had acknowledged when its clock showed `now` is in the spool, and can be read."""
        # Who waited in vain, because nothing is shipped, need not do so every time.
        patience = SHIPPING if self._reached else SHIPPING / 20
        if not self.receivers and time.monotonic() - self._tried > _AGAIN:
            # Whoever received may be gone: its address is taken over.
            self._tried = time.monotonic()
            self.receivers = listening(self.agreed, self._spool, self._secret)
        asked, self._asked = self._asked, None
        # The clock may have been another's, and what was asked by a thread that was faster: both are older than `now`.
        if asked is None or (asked.marks and (asked.clock is None or asked.clock < now)):
            asked = self._ask()
        if self.receivers:
            found = self.receivers[0].reach(asked, patience)
        elif not asked.marks:
            found = Reached(False, self._why)
        else:
            said = self._elsewhere({"marks": asked.marks, "timeout": patience})
            found = Reached(said["complete"], said["reason"], tuple(said.get("lost", ())))
        self._reached = found.complete
        if len(self.receivers) < len(self.agreed.receivers):  # others write to the spool, too
            self._spool.look()
        self._spool.lose(found.lost)
        return found

    def _ask(self) -> Asked:
        if self.receivers:
            return self.receivers[0].ask(self._unwanted())
        said = self._elsewhere({"unwanted": list(self._unwanted())})
        return Asked(said.get("marks", {}), said.get("clock"))

    def _elsewhere(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Of a receiver in another process."""
        with self._calling:
            self._why = "no receiver is there"
            for receiver in self.agreed.receivers:
                try:
                    if self._caller is None:
                        caller = Caller("reach", "maintainer", self.agreed.peer, "")
                        self._caller = protocol.call(
                            address(receiver), self._secret, caller, timeout=5.0, tls=self._tls
                        )
                        self._caller.settimeout(SHIPPING + 5.0)
                    self._caller.send(json.dumps(question).encode())
                    found: Mapping[str, Any] = json.loads(self._caller.receive())
                    self._why = "no region server is connected"
                    return found
                except (OSError, EOFError, Refused) as error:
                    self._why = f"the receiver {receiver} does not answer ({error or type(error).__name__})"
                    if self._caller is not None:
                        self._caller.close()
                    self._caller = None
            self._missed = time.monotonic()
        return {"complete": False, "reason": self._why}

    # -- what has -----------------------------------------------------------------------------------------------------

    def mark(self) -> Mark:
        """All that has come."""
        return self._spool.mark()

    def mark_at(self, cut: int) -> Mark | None:
        """Up to where a batch with at most this cut has everything; None if that is not known any more."""
        with self._lock:
            return next((mark for at, life, mark in reversed(self._cuts) if at <= cut and life == self.life), None)

    def touched(self, table: str, mark: Mark, last: Pushed | None = None) -> Touched:
        """The rows of a table that were touched behind a mark, but for what the `last` batch had read."""
        return protocol.joined([_unread(s, table, last) for s in self._spool.after(mark, table)])

    def take(
        self, table: str, mark: Mark, upto: int | None, now: int, last: Pushed | None = None
    ) -> tuple[Touched, Mark, Mark]:
        """These rows, the mark of a batch with the cut `upto` that has read them, and all that came by now.

        `upto` is None where rows are read as they are.

        A row with a cell of a time after the cut is not read whole by that batch, and not at all if that is so of all
        its cells. Usually the next one does: the mark stays before its file. A time that is far ahead of HBase's own
        clock may never come: that row is kept apart, once its other cells are in a batch.
        """
        known = self._spool.mark()
        found, reached, held = [], dict(known), set[str]()
        for segment in self._spool.after(mark, table):
            rows = _unread(segment, table, last)
            ahead = np.zeros(len(rows), np.bool_) if upto is None else rows.newest > upto
            limit = max(now, upto or 0) + FAR
            far = (rows.newest > limit) & ((rows.oldest <= (upto or 0)) | (rows.oldest > limit))
            waits = segment.later and len(rows) > 0 and bool(ahead.all())
            if not waits:
                found.append(rows if upto is None or not ahead.any() else rows.only(rows.oldest <= upto))
            if segment.writer in held:
                continue
            if waits or bool((ahead & ~far).any()):
                held.add(segment.writer)
                reached[segment.writer] = segment.number - 1
            elif bool((ahead & far).any()):
                self._spool.append(protocol.write({table: rows.only(far)}), later=True)
        return protocol.joined(found), reached, known

    # -- what need not be kept ----------------------------------------------------------------------------------------

    def committed(self, cut: int, seen: Iterable[Pushed]) -> None:
        """A batch with this cut is published, with what it had seen of its tables."""
        marks = [pushed.mark for pushed in seen if pushed.life == self.life]
        with self._lock:
            self._cuts.append((cut, self.life, least(marks) if marks else self.mark()))

    def truncate(self, upto: int) -> None:
        """Nobody will ask for what a batch with at most this cut has."""
        mark = self.mark_at(upto)
        if mark is None:
            return
        with suppress(StoreError):  # it can be done the next time
            self._spool.remove(mark)
        with self._lock:
            while len(self._cuts) > 1 and self._cuts[1][0] <= upto:
                self._cuts.popleft()


def _unread(segment: Segment, table: str, last: Pushed | None) -> Touched:
    """A file whose mark waits for a later row is looked at by every batch: what the last one had of it is left out."""
    rows = segment.tables[table]
    if last is None or last.known is None or last.upto is None or segment.number > last.known.get(segment.writer, 0):
        return rows
    return rows.only(rows.newest > last.upto)


def listening(agreed: Agreed, spool: Spool, secret: bytes) -> list[Receiver]:
    """Receivers at those of the agreed addresses that are this machine's, and free."""
    tls = None
    if agreed.certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(agreed.certificate, agreed.key)
    found = []
    for one in agreed.receivers:
        try:
            found.append(Receiver(address(one), spool, agreed.peer, secret, tls))
        except gaierror:
            continue
        except OSError as error:
            if error.errno not in (EADDRINUSE, EADDRNOTAVAIL):
                raise StoreError(f"Nothing can listen at {one}: {error.strerror}.") from error
    return found


def keys_of(rows: Touched) -> pa.Array:
    """The row keys, each once."""
    return rows.keys.unique() if len(rows) else rows.keys


def firsts(keys: pa.Array, positions: Times) -> Times:
    """The first position of each of the keys."""
    if len(keys) < 2:
        return positions
    which = keys.dictionary_encode()
    found = np.full(len(which.dictionary), np.iinfo(np.int64).max)
    np.minimum.at(found, np.asarray(which.indices), positions)
    return found
