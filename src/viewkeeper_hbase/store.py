"""HBaseStore: the store contract over HBase's Thrift2 gateway, composed of its parts.

HBase's guarantees shape the parts: a write call is atomic for each row, not as a whole; positions are times of
HBase's clock; a batch is claimed first, then its cells are written, which may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from viewkeeper.resources.fork_guard import owned
from viewkeeper.store.contract.commits import Finding
from viewkeeper.store.contract.composite_store import DelegatingStore
from viewkeeper_hbase.capture.changelog import HBaseChangeLog
from viewkeeper_hbase.capture.feed import ChangeCapture
from viewkeeper_hbase.capture.time_windows import OVERLAP
from viewkeeper_hbase.catalog_store import HBaseCatalogStore
from viewkeeper_hbase.commits import HBaseCommits
from viewkeeper_hbase.doctor import examine_database
from viewkeeper_hbase.handle import HBaseHandle
from viewkeeper_hbase.lease import HBaseLeaseStore
from viewkeeper_hbase.mailbox import RowMailbox
from viewkeeper_hbase.push.attachment import PushAttachment
from viewkeeper_hbase.tables import CAPABILITIES, HBaseTables


class HBaseStore(DelegatingStore):
    """One open database in a namespace. Its methods may be called from any thread."""

    can_store_family_members = True
    can_filter_scans = True
    capabilities = CAPABILITIES

    def __init__(self, url: str, mode: str = "w", **options: Any) -> None:
        self._handle = handle = HBaseHandle(url, mode, options)
        self.url, self.uuid, self.state_path = handle.url, handle.uuid, handle.state_path
        self._client, self._layouts, self._namespace = handle.client, handle.layouts, handle.namespace
        address, shared = handle.address, (handle.meta_table, handle.state_cache, handle.layouts)
        overlap = int(1000 * (OVERLAP if address.overlap is None else address.overlap))
        capture = ChangeCapture(self.url, handle.client, *shared, handle.reader, overlap)
        self._push_attachment = PushAttachment(*shared, self.state_path, address.capture)
        capture.arrivals = self._push_attachment.arrivals
        self.catalog_store = catalog_store = HBaseCatalogStore(handle)
        self.table_store = HBaseTables(handle, catalog_store, capture)
        self.lease_store = lease_store = HBaseLeaseStore(handle, self._push_attachment)
        self.batch_commits = commits = HBaseCommits(handle, lease_store, capture)
        self.changelog = HBaseChangeLog(handle, capture, self._push_attachment, commits)
        self.mailbox = RowMailbox(handle.meta_table)
        owned(self, handle.fork_description)

    @property
    def poll_interval(self) -> float:  # type: ignore[override]
        return self._push_attachment.poll_interval

    @property
    def can_notify(self) -> bool:  # type: ignore[override]
        return self._push_attachment.is_complete

    def examine(self) -> Iterator[Finding]:
        self._handle.require_open()
        return examine_database(self._client, self._handle.meta_table, self._layouts, self._handle.redo_directory)

    def close(self) -> None:
        self._handle.close(self._push_attachment.end)
