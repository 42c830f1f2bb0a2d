"""A database in HBase as one store has it open: what its parts share, in a mode, until it is closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from viewkeeper.errors import BadValue, ReadOnly, StoreError
from viewkeeper.resources.directory import Directory
from viewkeeper.resources.fork_guard import owned
from viewkeeper_hbase.cached_state import CACHE, Known
from viewkeeper_hbase.layout.layout_cache import Layouts
from viewkeeper_hbase.layout.row_reader import Reader
from viewkeeper_hbase.log_holds import Holds
from viewkeeper_hbase.metadata import MetaTable
from viewkeeper_hbase.statistics import Sizes
from viewkeeper_hbase.thrift.client import Client
from viewkeeper_hbase.url import parse, state_home, with_options


class Opened:
    """The gateway, and what is known of the database behind it."""

    def __init__(self, url: str, mode: str, options: dict[str, Any]) -> None:
        self.place = place = parse(url, options)
        if mode not in ("w", "r"):
            raise BadValue(f"There is no mode {mode!r}.", hint="Modes: 'w' and 'r'.")
        self.url = with_options(url, options)
        self.namespace = place.namespace
        self._mode, self._open = mode, True
        self.said = f"The database {self.url} was opened"
        owned(self, self.said)
        self.client = Client(place.gateway, retry=place.retry)
        try:
            self.client.greet()
            self.records = MetaTable(self.client, place.namespace)
            state = self.records.open(mode, place.create)
        except BaseException:
            self.client.close()
            raise
        self.uuid = state.uuid
        self.state_path = place.state or state_home(self.uuid)
        self.redos = Directory(self.state_path).below("redo")
        self.streams = Directory(self.state_path).below("streams")
        self.known = Known(self.records, state, CACHE if place.cache is None else place.cache)
        self.layouts = Layouts(self.client, place.namespace)
        self.reader = Reader(self.client, self.known)
        self.there: set[str] = set()
        """Tables of views that this process has written to: they need not be looked for."""
        self.holds = Holds(self.records, self.known)
        self.sizes = Sizes(self.client, self.layouts, self.known)

    def live(self) -> None:
        if not self._open:
            raise StoreError(f"The database {self.url} is closed.", hint="Open it again.")

    def writable(self) -> None:
        self.live()
        if self._mode == "r":
            raise ReadOnly(f"The database {self.url} was opened with mode='r'.", hint="Open it with mode='w'.")

    def close(self, first: Callable[[], None]) -> None:
        """Refuse all calls from now on, do this, and let the gateway go."""
        if self._open:
            self._open = False
            first()
            self.client.close()
