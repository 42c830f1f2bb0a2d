"""What happened to a database in HBase, as far as that is known: there is no log of ours.

Positions are times of HBase's clock, in milliseconds. What was written to a base table is found in windows of time or
pushed (`feed`); what batches did to a view is in its cells' times, or in files of deltas (`history`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from viewkeeper.errors import Unsupported
from viewkeeper.model.schema import Table
from viewkeeper.store.contract.commits import Changed, Hold, Pending, Seen, Spread
from viewkeeper.store.contract.tables import Feed as FeedPart
from viewkeeper.store.contract.tables import column_names
from viewkeeper_hbase.capture.feed import Feed
from viewkeeper_hbase.capture.view_history import History
from viewkeeper_hbase.commits import HBasePublishing
from viewkeeper_hbase.handle import Opened
from viewkeeper_hbase.push.attachment import Attached, capture_text


class HBaseFeed(FeedPart):
    """What waits, and what has been."""

    def __init__(self, opened: Opened, feed: Feed, push: Attached, publishing: HBasePublishing) -> None:
        self.url = opened.url
        self._opened, self._feed, self._push, self._publishing = opened, feed, push, publishing
        self._history = History(opened.client, opened.known, opened.layouts, opened.reader, opened.streams)

    def head(self) -> int:
        self._opened.live()
        return self._feed.head()

    def changes(self, table: Table, columns: Sequence[str], after: int, upto: int) -> pa.Table:
        self._opened.live()
        return self._feed.changes(table, column_names(table, columns), after, upto)

    def changed(
        self, table: Table, columns: Sequence[str], after: int, upto: int, seen: Seen | None = None
    ) -> tuple[Changed, Seen]:
        self._opened.live()
        return self._feed.changed(table, column_names(table, columns), after, upto, seen)

    def work_by(self, spread: Spread | None) -> None:
        self._feed.spread = spread

    def capture_text(self) -> str:
        self._opened.live()
        return capture_text(self._opened.records)

    def on_news(self, told: Callable[[], None]) -> None:
        self._push.on_news = told

    def pending(self, after: int, tables: Sequence[int], head: int | None = None) -> Pending:
        self._opened.live()
        self._push.follow()
        return self._feed.pending(after, tables, head)

    def cut_after(self, after: int, tables: Sequence[int], rows: int) -> int:
        self._opened.live()
        return self._feed.cut_after(after, tables, rows)

    def entries(
        self, table: Table, columns: Sequence[str], after: int, upto: int
    ) -> Iterator[tuple[int, float, pa.Table]]:
        self._opened.live()
        return self._history.entries(table, column_names(table, columns), after, upto)

    def settled(self, table: Table) -> int:
        self._opened.live()
        return self._history.settled(table)

    def told_by(self, table: Table) -> Table:
        self._opened.live()
        return self._history.told_by(table)

    def truncate(self, upto: int) -> None:
        """HBase forgets old versions by itself; what it pushed, and files of deltas, are forgotten here."""
        self._opened.writable()
        self._publishing.forget(upto)
        self._push.truncate(upto)

    def hold(self, name: str, position: int, expiry: float | None = None, *, table: Table | None = None) -> None:
        self._opened.writable()
        if table is None:
            raise Unsupported(f"{self.url} keeps no log that could be held.")
        self._opened.holds.put(Hold(name, position, expiry), self._history.told_by(table))

    def release_hold(self, name: str) -> None:
        self._opened.writable()
        self._opened.holds.remove(name)

    def holds(self) -> list[Hold]:
        self._opened.live()
        return self._opened.holds.all()
