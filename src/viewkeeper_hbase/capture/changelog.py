"""The change log of a database in HBase. It stores no log of its own: changes are derived from cell times.

Positions are times of HBase's clock, in milliseconds. Changes of a base table are found in time windows or pushed
by HBase (`feed`). What batches did to a view is read from its cells' times, or from delta files (`view_history`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from viewkeeper.errors import Unsupported
from viewkeeper.model.schema import Table
from viewkeeper.store.contract.commits import CaptureMark, ChangedKeys, LogHold, ParallelMap, PendingChanges
from viewkeeper.store.contract.tables import ChangeLog as FeedPart
from viewkeeper.store.contract.tables import column_names
from viewkeeper_hbase.capture.feed import ChangeCapture
from viewkeeper_hbase.capture.view_history import ViewHistory
from viewkeeper_hbase.commits import HBaseCommits
from viewkeeper_hbase.handle import HBaseHandle
from viewkeeper_hbase.push.attachment import PushAttachment, describe_capture


class HBaseChangeLog(FeedPart):
    """Pending changes, changes between two positions, and the deltas of past batches."""

    def __init__(
        self, handle: HBaseHandle, capture: ChangeCapture, push_attachment: PushAttachment, commits: HBaseCommits
    ) -> None:
        self.url = handle.url
        self._handle, self._capture, self._push_attachment, self._commits = handle, capture, push_attachment, commits
        self._history = ViewHistory(
            handle.client, handle.state_cache, handle.layouts, handle.reader, handle.delta_directory
        )

    def head(self) -> int:
        self._handle.require_open()
        return self._capture.head()

    def changes(self, table: Table, columns: Sequence[str], after: int, up_to: int) -> pa.Table:
        self._handle.require_open()
        return self._capture.changes(table, column_names(table, columns), after, up_to)

    def changed_keys(
        self, table: Table, columns: Sequence[str], after: int, up_to: int, capture_mark: CaptureMark | None = None
    ) -> tuple[ChangedKeys, CaptureMark]:
        self._handle.require_open()
        return self._capture.changed_keys(table, column_names(table, columns), after, up_to, capture_mark)

    def set_parallel_map(self, parallel_map: ParallelMap | None) -> None:
        self._capture.parallel_map = parallel_map

    def describe_capture(self) -> str:
        self._handle.require_open()
        return describe_capture(self._handle.meta_table)

    def on_changes(self, notify: Callable[[], None]) -> None:
        self._push_attachment.on_changes = notify

    def pending(self, after: int, tables: Sequence[int], head: int | None = None) -> PendingChanges:
        self._handle.require_open()
        self._push_attachment.attach_agreement()
        return self._capture.pending(after, tables, head)

    def cut_after(self, after: int, tables: Sequence[int], rows: int) -> int:
        self._handle.require_open()
        return self._capture.cut_after(after, tables, rows)

    def entries(
        self, table: Table, columns: Sequence[str], after: int, up_to: int
    ) -> Iterator[tuple[int, float, pa.Table]]:
        self._handle.require_open()
        return self._history.entries(table, column_names(table, columns), after, up_to)

    def settled_position(self, table: Table) -> int:
        self._handle.require_open()
        return self._history.settled_position(table)

    def logged_table(self, table: Table) -> Table:
        self._handle.require_open()
        return self._history.logged_table(table)

    def truncate(self, up_to: int) -> None:
        """Drop pushed changes and delta files up to a position; HBase drops old cell versions itself."""
        self._handle.require_writable()
        self._commits.forget_deltas(up_to)
        self._push_attachment.truncate(up_to)

    def hold(self, name: str, position: int, expiry: float | None = None, *, table: Table | None = None) -> None:
        self._handle.require_writable()
        if table is None:
            raise Unsupported(f"{self.url} keeps no log that could be held.")
        self._handle.log_holds.put(LogHold(name, position, expiry), self._history.logged_table(table))

    def release_hold(self, name: str) -> None:
        self._handle.require_writable()
        self._handle.log_holds.remove(name)

    def holds(self) -> list[LogHold]:
        self._handle.require_open()
        return self._handle.log_holds.active_holds()
