"""The layouts of a database's tables, and what HBase says about those that others made."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from viewkeeper.model.filtered_table import whole
from viewkeeper.model.schema import Table
from viewkeeper_hbase.commit_steps import create
from viewkeeper_hbase.layout import mapping
from viewkeeper_hbase.layout.layout import Layout, layout_of
from viewkeeper_hbase.layout.point_read import PointReader, point_reader
from viewkeeper_hbase.thrift.client import Client
from viewkeeper_hbase.thrift.errors import NoSuchTable

T = TypeVar("T")

_BELIEVED = 60.0
"""Seconds for which the settings of another's table are believed."""


class Layouts:
    """Layouts by table, made once."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._known: dict[int, tuple[Table, Layout]] = {}
        self._points: dict[int, tuple[Layout, PointReader | None]] = {}
        self._kept: dict[str, tuple[float, int]] = {}

    def of(self, table: Table) -> Layout:
        table = whole(table)
        known = self._known.get(table.id)
        if known is None or (known[0] is not table and known[0] != table):
            known = self._known[table.id] = (table, layout_of(self._namespace, table))
        return known[1]

    def point(self, layout: Layout) -> PointReader | None:
        """How one row of it is read without Arrow, if it can be."""
        known = self._points.get(layout.table.id)
        if known is None or known[0] is not layout:
            known = self._points[layout.table.id] = (layout, point_reader(layout))
        return known[1]

    def forget(self, table: Table) -> None:
        self._known.pop(table.id, None)

    def check(self, table: Table) -> list[str]:
        """Raise if a new table's options do not fit what is there; what it cannot promise, as warnings."""
        layout = layout_of(self._namespace, table)
        return [] if layout.owned else mapping.check(layout, self._client.tables.describe(layout.name))

    def is_exact(self, layout: Layout) -> bool:
        """Whether the table can be read as of a time. Those made here can."""
        return self.versions(layout) > 1

    def versions(self, layout: Layout) -> int:
        """How many versions of a row can be read; 1: as it is now only."""
        if layout.owned:
            return layout.family().max_versions or 1
        known = self._kept.get(layout.name)
        if known is None or time.monotonic() - known[0] > _BELIEVED:
            found = mapping.kept_versions(layout, self._client.tables.describe(layout.name))
            known = self._kept[layout.name] = (time.monotonic(), found)
        return known[1]

    # -- tables that are made when they are first needed --------------------------------------------------------------

    def ensure(self, layout: Layout) -> None:
        if layout.owned and not self._client.tables.exists(layout.name):
            create(self._client, layout.name, layout.family())

    def making(self, layout: Layout, work: Callable[[], None]) -> None:
        """Write to a table, which is made if it is ours and not there."""
        try:
            work()
        except NoSuchTable:
            if not layout.owned:
                raise
            self.ensure(layout)
            work()


def if_there(layout: Layout, work: Callable[[], T]) -> T | None:
    """Read from a table; one of ours that was never made is empty: None."""
    try:
        return work()
    except NoSuchTable:
        if not layout.owned:
            raise
        return None
