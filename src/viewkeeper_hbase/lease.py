"""The maintainer's lease: a row that names its holder and when it ends, by HBase's clock.

A holder renews it three times in its span. One that dies leaves it to run out; whoever comes next takes it over by
check-and-put, so two never hold it. A holder that was asleep for longer loses it: it learns so when it renews or
publishes, and a batch that it had claimed is the same whoever finishes it (`commit`).
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from viewkeeper.errors import MaintainerBusy, StoreError
from viewkeeper.store.contract.tables import Leasing
from viewkeeper.store.ordered.lease import BUSY_HINT
from viewkeeper_hbase import commit_steps
from viewkeeper_hbase.handle import Opened
from viewkeeper_hbase.metadata import MetaTable
from viewkeeper_hbase.push.attachment import Attached
from viewkeeper_hbase.thrift.errors import OutcomeUnknown

SPAN = 10.0
"""Seconds for which a lease holds without being renewed."""

_ROW, _COLUMN = b"lease", b"m:lease"


@dataclass(frozen=True)
class Held:
    """The lease as it is stored; `expiry` in milliseconds of HBase's clock. No owner: it is free."""

    owner: str | None
    expiry: int
    ticket: str

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class RowLease:
    """The right to maintain, renewed in the background until released or lost."""

    def __init__(self, records: MetaTable, span: float, owner: str, held: bytes) -> None:
        self._records, self._span, self._owner, self._held = records, span, owner, held
        self._process = os.getpid()
        self._done = threading.Event()
        self.lost = False
        self.on_release: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._renew, name="viewkeeper-lease", daemon=True)
        self._thread.start()

    @property
    def lasts(self) -> bool:
        """Whether it has not been released, nor seen to be lost."""
        return not (self.lost or self._done.is_set() or os.getpid() != self._process)

    def release(self) -> None:
        """Give the lease back; again is no error."""
        if self._done.is_set():
            return
        self._done.set()
        if os.getpid() != self._process:
            return
        if self.on_release is not None:
            self.on_release()
        self._thread.join(timeout=self._span)
        with suppress(StoreError):  # if it cannot be given back it runs out
            _swap(self._records, self._held, Held(None, 0, secrets.token_hex(4)))

    def _renew(self) -> None:
        while not self._done.wait(self._span / 3):
            try:
                new = Held(self._owner, self._records.clock() + int(self._span * 1000), secrets.token_hex(4))
                if not _swap(self._records, self._held, new):
                    self.lost = True
                    return
                self._held = new.to_bytes()
            except StoreError:
                continue  # the server is away; the lease may run out meanwhile, and the next try tells


class HBaseLeasing(Leasing):
    """One maintainer at a time. With the lease begins and ends what HBase pushes."""

    def __init__(self, opened: Opened, push: Attached) -> None:
        self._opened, self._push = opened, push
        self._span = SPAN if opened.place.lease is None else opened.place.lease
        self._held: RowLease | None = None

    @property
    def lost(self) -> bool:
        """Whether this process held the lease, and another has taken it."""
        return self._held is not None and self._held.lost

    @property
    def holds(self) -> bool:
        """Whether this process holds the lease, as far as it knows."""
        return self._held is not None and self._held.lasts

    def acquire_lease(self) -> RowLease:
        opened = self._opened
        opened.writable()
        held = acquire(opened.records, self._span)
        try:
            claimed = opened.known.state(now=True).claim
            if claimed is not None:  # whoever held the lease before could not finish
                commit_steps.finish(opened.records, opened.redos, claimed)
                opened.known.learn(None)
            self._push.begin()
        except BaseException:
            held.release()
            raise
        held.on_release = self._push.end
        self._held = held
        return held

    def lease_holder(self) -> str | None:
        self._opened.live()
        return holder(self._opened.records)


def acquire(records: MetaTable, span: float) -> RowLease:
    """The lease, or MaintainerBusy with the holder's name."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    owner = f"process {os.getpid()} on {socket.gethostname()} since {since}"
    while True:
        now = records.clock()
        raw = _read(records)
        held = Held(**json.loads(raw)) if raw else None
        if held is not None and held.owner is not None and held.expiry > now:
            raise MaintainerBusy(
                f"The database {records.namespace} is maintained by {held.owner}.",
                hint=f"{BUSY_HINT} If it died, its lease ends in {(held.expiry - now) / 1000:.1f} s.",
            )
        mine = Held(owner, now + int(span * 1000), secrets.token_hex(4))
        if _swap(records, raw, mine):
            return RowLease(records, span, owner, mine.to_bytes())


def holder(records: MetaTable) -> str | None:
    """Who maintains the database now; None if nobody does."""
    raw = _read(records)
    if raw is None:
        return None
    held = Held(**json.loads(raw))
    return held.owner if held.owner is not None and held.expiry > records.clock() else None


def _read(records: MetaTable) -> bytes | None:
    found = records.client.get(records.table, _ROW, (_COLUMN,))
    return found[_COLUMN].value if found else None


def _swap(records: MetaTable, old: bytes | None, new: Held) -> bool:
    """Whether the lease is `new` now; a lost answer is settled by reading."""
    try:
        return records.client.put_if(records.table, _ROW, _COLUMN, old, {_COLUMN: new.to_bytes()})
    except OutcomeUnknown:
        return _read(records) == new.to_bytes()
