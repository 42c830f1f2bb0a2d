"""The layouts of a database's tables, and what HBase says about those that others made."""

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
"""Seconds for which the settings of another's table are believed."""


class Layouts:
    """Layouts by table, made once."""

    def __init__(self, client: HBaseClient, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._layouts: dict[int, tuple[Table, Layout]] = {}
        self._point_readers: dict[int, tuple[Layout, PointReader | None]] = {}
        self._versions: dict[str, tuple[float, int]] = {}

    def layout_of(self, table: Table) -> Layout:
        table = unfiltered_table(table)
        known = self._layouts.get(table.id)
        if known is None or (known[0] is not table and known[0] != table):
            known = self._layouts[table.id] = (table, table_layout(self._namespace, table))
        return known[1]

    def point_reader(self, layout: Layout) -> PointReader | None:
        """How one row of it is read without Arrow, if it can be."""
        known = self._point_readers.get(layout.table.id)
        if known is None or known[0] is not layout:
            known = self._point_readers[layout.table.id] = (layout, point_reader(layout))
        return known[1]

    def forget(self, table: Table) -> None:
        self._layouts.pop(table.id, None)

    def check_new_table(self, table: Table) -> list[str]:
        """Raise if a new table's options do not fit what is there; what it cannot promise, as warnings."""
        layout = table_layout(self._namespace, table)
        return [] if layout.is_owned else mapping.check_mapping(layout, self._client.admin.describe(layout.name))

    def has_past_versions(self, layout: Layout) -> bool:
        """Whether the table can be read as of a time. Those made here can."""
        return self.readable_versions(layout) > 1

    def readable_versions(self, layout: Layout) -> int:
        """How many versions of a row can be read; 1: as it is now only."""
        if layout.is_owned:
            return layout.column_family().max_versions or 1
        known = self._versions.get(layout.name)
        if known is None or time.monotonic() - known[0] > _MAX_SETTINGS_AGE:
            found = mapping.readable_versions(layout, self._client.admin.describe(layout.name))
            known = self._versions[layout.name] = (time.monotonic(), found)
        return known[1]

    # -- tables that are made when they are first needed --------------------------------------------------------------

    def ensure_table(self, layout: Layout) -> None:
        if layout.is_owned and not self._client.admin.exists(layout.name):
            create_table(self._client, layout.name, layout.column_family())

    def write_creating_table(self, layout: Layout, write: Callable[[], None]) -> None:
        """Write to a table, which is made if it is ours and not there."""
        try:
            write()
        except NoSuchTable:
            if not layout.is_owned:
                raise
            self.ensure_table(layout)
            write()


def read_if_exists(layout: Layout, read: Callable[[], T]) -> T | None:
    """Read from a table; one of ours that was never made is empty: None."""
    try:
        return read()
    except NoSuchTable:
        if not layout.is_owned:
            raise
        return None
