"""A cache of table layouts, and of the settings of mapped tables in HBase."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from viewkeeper.model.filtered_table import unfiltered_table
from viewkeeper.model.schema import Table
from viewkeeper_hbase.commit_steps import create_table
from viewkeeper_hbase.layout import mapping
from viewkeeper_hbase.layout.layout import Layout, table_layout
from viewkeeper_hbase.layout.point_read import PointReader, point_reader
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.thrift.errors import NoSuchTable

T = TypeVar("T")

_MAX_SETTINGS_AGE = 60.0
"""Seconds for which the cached settings of a mapped table are used."""


class Layouts:
    """Layouts by table, created on first use."""

    def __init__(self, client: HBaseClient, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._layouts: dict[int, tuple[Table, Layout]] = {}
        self._point_readers: dict[int, tuple[Layout, PointReader | None]] = {}
        self._versions: dict[str, tuple[float, int]] = {}

    def layout_of(self, table: Table) -> Layout:
        table = unfiltered_table(table)
        cached = self._layouts.get(table.id)
        if cached is None or (cached[0] is not table and cached[0] != table):
            cached = self._layouts[table.id] = (table, table_layout(self._namespace, table))
        return cached[1]

    def point_reader(self, layout: Layout) -> PointReader | None:
        """Return the reader that decodes one row without Arrow; None if the layout is not supported."""
        cached = self._point_readers.get(layout.table.id)
        if cached is None or cached[0] is not layout:
            cached = self._point_readers[layout.table.id] = (layout, point_reader(layout))
        return cached[1]

    def forget(self, table: Table) -> None:
        self._layouts.pop(table.id, None)

    def check_new_table(self, table: Table) -> list[str]:
        """Return warnings for a new table's options; raise if they do not fit the existing HBase table."""
        layout = table_layout(self._namespace, table)
        return [] if layout.is_owned else mapping.check_mapping(layout, self._client.admin.describe(layout.name))

    def has_past_versions(self, layout: Layout) -> bool:
        """Return whether the table can be read as of an earlier time. Owned tables can."""
        return self.readable_versions(layout) > 1

    def readable_versions(self, layout: Layout) -> int:
        """Return how many versions of a row can be read; 1 means the current state only."""
        if layout.is_owned:
            return layout.column_family().max_versions or 1
        cached = self._versions.get(layout.name)
        if cached is None or time.monotonic() - cached[0] > _MAX_SETTINGS_AGE:
            versions = mapping.readable_versions(layout, self._client.admin.describe(layout.name))
            cached = self._versions[layout.name] = (time.monotonic(), versions)
        return cached[1]

    # -- tables created on first use ----------------------------------------------------------------------------------

    def ensure_table(self, layout: Layout) -> None:
        if layout.is_owned and not self._client.admin.exists(layout.name):
            create_table(self._client, layout.name, layout.column_family())

    def write_creating_table(self, layout: Layout, write: Callable[[], None]) -> None:
        """Write to a table; an owned table that does not exist is created."""
        try:
            write()
        except NoSuchTable:
            if not layout.is_owned:
                raise
            self.ensure_table(layout)
            write()


def read_if_exists(layout: Layout, read: Callable[[], T]) -> T | None:
    """Read from a table; return None for an owned table that was never created, which is empty."""
    try:
        return read()
    except NoSuchTable:
        if not layout.is_owned:
            raise
        return None
