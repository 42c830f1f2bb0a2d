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
from viewkeeper.store.contract.tables import LeaseStore
from viewkeeper.store.ordered.lease import BUSY_HINT
from viewkeeper_hbase import commit_steps
from viewkeeper_hbase.handle import HBaseHandle
from viewkeeper_hbase.metadata import MetaTable
from viewkeeper_hbase.push.attachment import PushAttachment
from viewkeeper_hbase.thrift.errors import OutcomeUnknown

LEASE_SECONDS = 10.0
"""Seconds for which a lease holds without being renewed."""

_ROW, _COLUMN = b"lease", b"m:lease"


@dataclass(frozen=True)
class LeaseRecord:
    """The lease as it is stored; `expiry` in milliseconds of HBase's clock. No owner: it is free."""

    owner: str | None
    expiry: int
    ticket: str

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class RowLease:
    """The right to maintain, renewed in the background until released or lost."""

    def __init__(self, meta_table: MetaTable, lease_seconds: float, owner: str, record: bytes) -> None:
        self._meta_table, self._lease_seconds, self._owner, self._record = meta_table, lease_seconds, owner, record
        self._process_id = os.getpid()
        self._released = threading.Event()
        self.is_lost = False
        self.on_release: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._renew_until_released, name="viewkeeper-lease", daemon=True)
        self._thread.start()

    @property
    def is_held(self) -> bool:
        """Whether it has not been released, nor seen to be lost."""
        return not (self.is_lost or self._released.is_set() or os.getpid() != self._process_id)

    def release(self) -> None:
        """Give the lease back; again is no error."""
        if self._released.is_set():
            return
        self._released.set()
        if os.getpid() != self._process_id:
            return
        if self.on_release is not None:
            self.on_release()
        self._thread.join(timeout=self._lease_seconds)
        with suppress(StoreError):  # if it cannot be given back it runs out
            _replace_record(self._meta_table, self._record, LeaseRecord(None, 0, secrets.token_hex(4)))

    def _renew_until_released(self) -> None:
        while not self._released.wait(self._lease_seconds / 3):
            try:
                new = LeaseRecord(
                    self._owner, self._meta_table.read_clock() + int(self._lease_seconds * 1000), secrets.token_hex(4)
                )
                if not _replace_record(self._meta_table, self._record, new):
                    self.is_lost = True
                    return
                self._record = new.to_bytes()
            except StoreError:
                continue  # the server is away; the lease may run out meanwhile, and the next try tells


class HBaseLeaseStore(LeaseStore):
    """One maintainer at a time. With the lease begins and ends what HBase pushes."""

    def __init__(self, handle: HBaseHandle, push_attachment: PushAttachment) -> None:
        self._handle, self._push_attachment = handle, push_attachment
        self._lease_seconds = LEASE_SECONDS if handle.address.lease is None else handle.address.lease
        self._lease: RowLease | None = None

    @property
    def is_lost(self) -> bool:
        """Whether this process held the lease, and another has taken it."""
        return self._lease is not None and self._lease.is_lost

    @property
    def is_holder(self) -> bool:
        """Whether this process holds the lease, as far as it knows."""
        return self._lease is not None and self._lease.is_held

    def acquire_lease(self) -> RowLease:
        opened = self._handle
        opened.require_writable()
        held = acquire_lease(opened.meta_table, self._lease_seconds)
        try:
            claimed = opened.state_cache.state(refresh=True).claim
            if claimed is not None:  # whoever held the lease before could not finish
                commit_steps.finish_claimed_batch(opened.meta_table, opened.redo_directory, claimed)
                opened.state_cache.update(None)
            self._push_attachment.begin()
        except BaseException:
            held.release()
            raise
        held.on_release = self._push_attachment.end
        self._lease = held
        return held

    def lease_holder(self) -> str | None:
        self._handle.require_open()
        return lease_holder(self._handle.meta_table)


def acquire_lease(meta_table: MetaTable, lease_seconds: float) -> RowLease:
    """The lease, or MaintainerBusy with the holder's name."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    owner = f"process {os.getpid()} on {socket.gethostname()} since {since}"
    while True:
        now = meta_table.read_clock()
        raw = _read_record(meta_table)
        held = LeaseRecord(**json.loads(raw)) if raw else None
        if held is not None and held.owner is not None and held.expiry > now:
            raise MaintainerBusy(
                f"The database {meta_table.namespace} is maintained by {held.owner}.",
                hint=f"{BUSY_HINT} If it died, its lease ends in {(held.expiry - now) / 1000:.1f} s.",
            )
        mine = LeaseRecord(owner, now + int(lease_seconds * 1000), secrets.token_hex(4))
        if _replace_record(meta_table, raw, mine):
            return RowLease(meta_table, lease_seconds, owner, mine.to_bytes())


def lease_holder(meta_table: MetaTable) -> str | None:
    """Who maintains the database now; None if nobody does."""
    raw = _read_record(meta_table)
    if raw is None:
        return None
    held = LeaseRecord(**json.loads(raw))
    return held.owner if held.owner is not None and held.expiry > meta_table.read_clock() else None


def _read_record(meta_table: MetaTable) -> bytes | None:
    found = meta_table.client.get(meta_table.table, _ROW, (_COLUMN,))
    return found[_COLUMN].value if found else None


def _replace_record(meta_table: MetaTable, old: bytes | None, new: LeaseRecord) -> bool:
    """Whether the lease is `new` now; a lost answer is settled by reading."""
    try:
        return meta_table.client.put_if(meta_table.table, _ROW, _COLUMN, old, {_COLUMN: new.to_bytes()})
    except OutcomeUnknown:
        return _read_record(meta_table) == new.to_bytes()
