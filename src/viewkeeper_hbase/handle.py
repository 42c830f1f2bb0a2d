"""The handle of an open database in HBase: the connection, the mode and the caches that the store's parts share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from viewkeeper.errors import BadValue, ReadOnly, StoreError
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.resources.fork_guard import owned
from viewkeeper_hbase.cached_state import MAX_AGE, StateCache
from viewkeeper_hbase.layout.layout_cache import Layouts
from viewkeeper_hbase.layout.row_reader import HBaseRowReader
from viewkeeper_hbase.log_holds import DeltaFileHolds
from viewkeeper_hbase.metadata import MetaTable
from viewkeeper_hbase.statistics import TableSizes
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.url import default_state_path, parse_url, with_options


class HBaseHandle:
    """The gateway's client, and the caches of the database behind it, until `close`."""

    def __init__(self, url: str, mode: str, options: dict[str, Any]) -> None:
        self.address = address = parse_url(url, options)
        if mode not in ("w", "r"):
            raise BadValue(f"There is no mode {mode!r}.", hint="Modes: 'w' and 'r'.")
        self.url = with_options(url, options)
        self.namespace = address.namespace
        self._mode, self._is_open = mode, True
        self.fork_description = f"The database {self.url} was opened"
        owned(self, self.fork_description)
        self.client = HBaseClient(address.gateway, retry=address.retry)
        try:
            self.client.check_gateway()
            self.meta_table = MetaTable(self.client, address.namespace)
            state = self.meta_table.open(mode, address.create)
        except BaseException:
            self.client.close()
            raise
        self.uuid = state.uuid
        self.state_path = address.state or default_state_path(self.uuid)
        self.redo_directory = StateDirectory(self.state_path).subdirectory("redo")
        self.delta_directory = StateDirectory(self.state_path).subdirectory("streams")
        self.state_cache = StateCache(self.meta_table, state, MAX_AGE if address.cache is None else address.cache)
        self.layouts = Layouts(self.client, address.namespace)
        self.reader = HBaseRowReader(self.client, self.state_cache)
        self.existing_tables: set[str] = set()
        """View tables that this process has written to, so their existence need not be checked."""
        self.log_holds = DeltaFileHolds(self.meta_table, self.state_cache)
        self.table_statistics = TableSizes(self.client, self.layouts, self.state_cache)

    def require_open(self) -> None:
        if not self._is_open:
            raise StoreError(f"The database {self.url} is closed.", hint="Open it again.")

    def require_writable(self) -> None:
        self.require_open()
        if self._mode == "r":
            raise ReadOnly(f"The database {self.url} was opened with mode='r'.", hint="Open it with mode='w'.")

    def close(self, before_close: Callable[[], None]) -> None:
        """Refuse all further calls, call `before_close`, and close the gateway's client."""
        if self._is_open:
            self._is_open = False
            before_close()
            self.client.close()
