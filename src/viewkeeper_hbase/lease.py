"""The maintainer's lease: a row that names its holder and its expiry by HBase's clock.

The holder renews the lease three times in its duration. The lease of a process that died runs out, and the next
process takes it over by check-and-put, so two processes never hold it. A holder that was suspended for longer
than the duration loses the lease and notices at its next renewal or publication. A batch that it had claimed has
the same cells whichever process finishes it (`commit_steps`).
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
"""Seconds for which a lease is valid without renewal."""

_ROW, _COLUMN = b"lease", b"m:lease"


@dataclass(frozen=True)
class LeaseRecord:
    """The stored lease; `expiry` is in milliseconds of HBase's clock. `owner` None means that the lease is free."""

    owner: str | None
    expiry: int
    ticket: str

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class RowLease:
    """A held lease, renewed by a background thread until it is released or lost."""

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
        """Whether the lease is neither released nor known to be lost."""
        return not (self.is_lost or self._released.is_set() or os.getpid() != self._process_id)

    def release(self) -> None:
        """Release the lease; a second call does nothing."""
        if self._released.is_set():
            return
        self._released.set()
        if os.getpid() != self._process_id:
            return
        if self.on_release is not None:
            self.on_release()
        self._thread.join(timeout=self._lease_seconds)
        with suppress(StoreError):  # a lease that cannot be released runs out
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
                continue  # the server cannot be reached; the next renewal finds out whether the lease has run out


class HBaseLeaseStore(LeaseStore):
    """Grants the lease to one maintainer at a time. Push capture begins and ends with the lease."""

    def __init__(self, handle: HBaseHandle, push_attachment: PushAttachment) -> None:
        self._handle, self._push_attachment = handle, push_attachment
        self._lease_seconds = LEASE_SECONDS if handle.address.lease is None else handle.address.lease
        self._lease: RowLease | None = None

    @property
    def is_lost(self) -> bool:
        """Whether this process held the lease and another process has taken it over."""
        return self._lease is not None and self._lease.is_lost

    @property
    def is_holder(self) -> bool:
        """Whether this process holds the lease, as far as it knows."""
        return self._lease is not None and self._lease.is_held

    def acquire_lease(self) -> RowLease:
        handle = self._handle
        handle.require_writable()
        lease = acquire_lease(handle.meta_table, self._lease_seconds)
        try:
            claim = handle.state_cache.state(refresh=True).claim
            if claim is not None:  # the previous holder could not finish its batch
                commit_steps.finish_claimed_batch(handle.meta_table, handle.redo_directory, claim)
                handle.state_cache.update(None)
            self._push_attachment.begin()
        except BaseException:
            lease.release()
            raise
        lease.on_release = self._push_attachment.end
        self._lease = lease
        return lease

    def lease_holder(self) -> str | None:
        self._handle.require_open()
        return lease_holder(self._handle.meta_table)


def acquire_lease(meta_table: MetaTable, lease_seconds: float) -> RowLease:
    """Acquire the lease, or raise MaintainerBusy with the holder's name."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    owner = f"process {os.getpid()} on {socket.gethostname()} since {since}"
    while True:
        now = meta_table.read_clock()
        raw = _read_record(meta_table)
        current = LeaseRecord(**json.loads(raw)) if raw else None
        if current is not None and current.owner is not None and current.expiry > now:
            raise MaintainerBusy(
                f"The database {meta_table.namespace} is maintained by {current.owner}.",
                hint=f"{BUSY_HINT} If it died, its lease ends in {(current.expiry - now) / 1000:.1f} s.",
            )
        new = LeaseRecord(owner, now + int(lease_seconds * 1000), secrets.token_hex(4))
        if _replace_record(meta_table, raw, new):
            return RowLease(meta_table, lease_seconds, owner, new.to_bytes())


def lease_holder(meta_table: MetaTable) -> str | None:
    """Return the process that maintains the database now, or None."""
    raw = _read_record(meta_table)
    if raw is None:
        return None
    current = LeaseRecord(**json.loads(raw))
    return current.owner if current.owner is not None and current.expiry > meta_table.read_clock() else None


def _read_record(meta_table: MetaTable) -> bytes | None:
    found = meta_table.client.get(meta_table.table, _ROW, (_COLUMN,))
    return found[_COLUMN].value if found else None


def _replace_record(meta_table: MetaTable, old: bytes | None, new: LeaseRecord) -> bool:
    """Replace the lease by compare-and-put; return whether it is `new` now. After a lost answer the row is read."""
    try:
        return meta_table.client.put_if(meta_table.table, _ROW, _COLUMN, old, {_COLUMN: new.to_bytes()})
    except OutcomeUnknown:
        return _read_record(meta_table) == new.to_bytes()
