"""HBaseStore: the store contract over HBase's Thrift2 gateway, made of its parts.

What HBase can and cannot do shapes them: a write call is atomic for each row, not as a whole; positions are times of
HBase's clock; a batch is claimed, then finished cell by cell.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from viewkeeper.resources.fork_guard import owned
from viewkeeper.store.contract.commits import Finding
from viewkeeper.store.contract.composite_store import StoreOfParts
from viewkeeper_hbase.capture.changelog import HBaseFeed
from viewkeeper_hbase.capture.feed import Feed
from viewkeeper_hbase.capture.time_windows import OVERLAP
from viewkeeper_hbase.catalog_store import HBaseRecords
from viewkeeper_hbase.commits import HBasePublishing
from viewkeeper_hbase.doctor import examine
from viewkeeper_hbase.handle import Opened
from viewkeeper_hbase.lease import HBaseLeasing
from viewkeeper_hbase.mailbox import RowMailbox
from viewkeeper_hbase.push.attachment import Attached
from viewkeeper_hbase.tables import CAPABILITIES, HBaseRows


class HBaseStore(StoreOfParts):
    """One open database in a namespace. Its methods may be called from any thread."""

    keeps_members = True
    selects = True
    capabilities = CAPABILITIES

    def __init__(self, url: str, mode: str = "w", **options: Any) -> None:
        self._opened = opened = Opened(url, mode, options)
        self.url, self.uuid, self.state_path = opened.url, opened.uuid, opened.state_path
        self._client, self._layouts, self._namespace = opened.client, opened.layouts, opened.namespace
        place, known = opened.place, (opened.records, opened.known, opened.layouts)
        overlap = int(1000 * (OVERLAP if place.overlap is None else place.overlap))
        feed = Feed(self.url, opened.client, *known, opened.reader, overlap)
        self._push = Attached(*known, self.state_path, place.capture)
        feed.arrivals = self._push.arrivals
        self.records = records = HBaseRecords(opened)
        self.rows = HBaseRows(opened, records, feed)
        self.leasing = leasing = HBaseLeasing(opened, self._push)
        self.publishing = publishing = HBasePublishing(opened, leasing, feed)
        self.feed = HBaseFeed(opened, feed, self._push, publishing)
        self.mailbox = RowMailbox(opened.records)
        owned(self, opened.said)

    @property
    def look_pause(self) -> float:  # type: ignore[override]
        return self._push.pause

    @property
    def tells(self) -> bool:  # type: ignore[override]
        return self._push.whole

    def examine(self) -> Iterator[Finding]:
        self._opened.live()
        return examine(self._client, self._opened.records, self._layouts, self._opened.redos)

    def close(self) -> None:
        self._opened.close(self._push.end)
