"""Administration through the gateway: namespaces, tables, families and regions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from viewkeeper.errors import BadValue
from viewkeeper_hbase.thrift.connection import thrift_interface
from viewkeeper_hbase.thrift.errors import NoSuchNamespace, NoSuchTable, OutcomeUnknown, RequestRefused, Unavailable
from viewkeeper_hbase.thrift.pool import GatewayPool

NO_TIME_TO_LIVE = 2147483647


@dataclass(frozen=True)
class ColumnFamily:
    """A column family. Settings that are None are left to HBase."""

    name: bytes
    max_versions: int | None = None
    min_versions: int | None = None
    keep_deleted_cells: bool | None = None
    time_to_live: int | None = None
    """Seconds; None if cells never expire."""
    attributes: Mapping[bytes, bytes] = field(default_factory=dict)
    """All other settings, by HBase's names (BLOOMFILTER, COMPRESSION, ...)."""


@dataclass(frozen=True)
class HBaseTableDescription:
    """A table's description in HBase."""

    name: str
    families: tuple[ColumnFamily, ...]
    attributes: Mapping[bytes, bytes]

    def family(self, name: bytes) -> ColumnFamily | None:
        return next((family for family in self.families if family.name == name), None)


@dataclass(frozen=True)
class Region:
    """A key range of a table and the server that serves it. Empty bytes mean the beginning or the end."""

    start: bytes
    stop: bytes
    host: str
    port: int


class HBaseAdmin:
    """Administrative calls. Names are `namespace:table`; without a namespace it is `default`."""

    def __init__(self, pool: GatewayPool) -> None:
        self._pool = pool

    # -- namespaces ---------------------------------------------------------------------------------------------------

    def list_namespaces(self) -> list[str]:
        return sorted(self._pool.call("listNamespaces", repeatable=True))

    def create_namespace(self, name: str) -> None:
        """Create a namespace; raise AlreadyExists if it exists."""
        self._pool.call(
            "createNamespace", repeatable=False, namespaceDesc=thrift_interface().TNamespaceDescriptor(name=name)
        )

    def delete_namespace(self, name: str) -> None:
        """Delete a namespace, which must be empty."""
        self._pool.call("deleteNamespace", repeatable=False, name=name)

    def require_namespace(self, name: str) -> None:
        if name not in self.list_namespaces():
            raise NoSuchNamespace(
                f"HBase at {self._pool.gateway.address} has no namespace {name}.",
                hint=f"Create it (hbase shell: create_namespace '{name}'), or open it with create=true.",
            )

    # -- tables -------------------------------------------------------------------------------------------------------

    def list_tables(self, namespace: str) -> list[str]:
        """Return all tables of a namespace, as `namespace:table`."""
        names = self._pool.call("getTableNamesByNamespace", repeatable=True, name=namespace)
        return sorted(f"{namespace}:{table.qualifier.decode()}" for table in names)

    def exists(self, table: str) -> bool:
        return bool(self._call_for_table("tableExists", table))

    def is_enabled(self, table: str) -> bool:
        return bool(self._call_for_table("isTableEnabled", table))

    def describe(self, table: str) -> HBaseTableDescription:
        """Describe a table; raise NoSuchTable if it does not exist."""
        descriptor = self._descriptor_of(table)
        return HBaseTableDescription(
            table,
            tuple(_decode_family(family) for family in descriptor.columns or ()),
            dict(descriptor.attributes or {}),
        )

    def list_regions(self, table: str) -> list[Region]:
        """Return the regions in key order; together they cover all keys. Raise NoSuchTable if the table does not
        exist.

        While a region splits, the gateway may fail with an internal error (seen), or the regions may have gaps:
        the call is repeated.
        """
        failed = 0
        while True:
            try:
                locations = self._pool.call(
                    "getAllRegionLocations", repeatable=True, table_name=table, table=table.encode()
                )
            except RequestRefused as error:
                if isinstance(error, NoSuchTable) or failed >= self._pool.retry.max_retries:
                    raise
            else:
                if not locations and not self.exists(table):
                    address = self._pool.gateway.address
                    raise NoSuchTable(f"HBase at {address} has no table {table}.", hint="Check the name and namespace.")
                regions = sorted(map(_decode_region, filter(_is_serving, locations)), key=lambda region: region.start)
                if _is_complete_cover(regions):
                    return regions
                if failed >= self._pool.retry.max_retries:
                    raise Unavailable(f"The regions of HBase table {table} do not settle.", hint="Try again later.")
            time.sleep(self._pool.retry.pause(failed))
            failed += 1

    def create(
        self,
        table: str,
        families: Sequence[ColumnFamily],
        *,
        splits: Sequence[bytes] = (),
        attributes: Mapping[bytes, bytes] | None = None,
    ) -> None:
        """Create a table with regions split at the keys `splits`. Raise AlreadyExists if it exists.

        With a gateway that fails on split keys (see `Connection.send`), the table has one region.
        """
        descriptor = thrift_interface().TTableDescriptor(
            tableName=table_name(table),
            columns=[_family_descriptor(family) for family in families],
            attributes=dict(attributes or {}) or None,
        )
        keys = sorted(set(splits))
        has_attributes = bool(attributes) or any(family.attributes for family in families)
        piecewise = bool(keys) or has_attributes
        try:
            self._change("createTable", table, piecewise=piecewise, desc=descriptor, splitKeys=keys or None)
        except OutcomeUnknown:
            if has_attributes or not keys or self.exists(table):
                raise
            self._change("createTable", table, desc=descriptor)

    def alter(self, table: str, attributes: Mapping[bytes, bytes]) -> None:
        """Set attributes of a table (MAX_FILESIZE, ...); its other attributes and its families are kept."""
        descriptor = self._descriptor_of(table)
        descriptor.attributes = {**(descriptor.attributes or {}), **attributes}
        self._change("modifyTable", table, piecewise=True, repeatable=True, desc=descriptor)

    def add_family(self, table: str, family: ColumnFamily) -> None:
        self._change_family("addColumnFamily", table, family)

    def alter_family(self, table: str, family: ColumnFamily) -> None:
        """Replace a family's settings: `replace(describe(table).family(name), ...)` keeps the others."""
        self._change_family("modifyColumnFamily", table, family)

    def disable(self, table: str) -> None:
        """Take a table out of service, which also flushes its memory to files."""
        self._change("disableTable", table, tableName=table_name(table))

    def enable(self, table: str) -> None:
        self._change("enableTable", table, tableName=table_name(table))

    def truncate(self, table: str, *, keep_splits: bool = True) -> None:
        """Delete all rows. The table must be disabled; it is enabled afterwards."""
        self._change("truncateTable", table, tableName=table_name(table), preserveSplits=keep_splits)

    def drop(self, table: str) -> None:
        """Disable and delete a table."""
        if self.is_enabled(table):
            self.disable(table)
        self._change("deleteTable", table, tableName=table_name(table))

    def _call_for_table(self, method: str, table: str) -> Any:
        return self._pool.call(method, repeatable=True, table_name=table, tableName=table_name(table))

    def _descriptor_of(self, table: str) -> Any:
        return self._pool.call("getTableDescriptor", repeatable=True, table_name=table, table=table_name(table))

    def _change(self, method: str, table: str, *, repeatable: bool = False, **arguments: Any) -> None:
        self._pool.call(method, repeatable=repeatable, table_name=table, **arguments)

    def _change_family(self, method: str, table: str, family: ColumnFamily) -> None:
        column = _family_descriptor(family)
        self._change(method, table, piecewise=bool(family.attributes), tableName=table_name(table), column=column)


def table_name(table: str) -> Any:
    """Return a name in the interface's own form."""
    namespace, colon, name = table.rpartition(":")
    if not name or (colon and not namespace):
        raise BadValue(f"{table!r} is not the name of an HBase table.", hint="Write namespace:table or table.")
    return thrift_interface().TTableName(ns=(namespace or "default").encode(), qualifier=name.encode())


def _family_descriptor(family: ColumnFamily) -> Any:
    keep_deleted = thrift_interface().TKeepDeletedCells
    return thrift_interface().TColumnFamilyDescriptor(
        name=family.name,
        attributes=dict(family.attributes) or None,
        maxVersions=family.max_versions,
        minVersions=family.min_versions,
        keepDeletedCells=None
        if family.keep_deleted_cells is None
        else keep_deleted.TRUE
        if family.keep_deleted_cells
        else keep_deleted.FALSE,
        timeToLive=family.time_to_live,
    )


def _decode_family(descriptor: Any) -> ColumnFamily:
    return ColumnFamily(
        name=descriptor.name,
        max_versions=descriptor.maxVersions,
        min_versions=descriptor.minVersions,
        keep_deleted_cells=None
        if descriptor.keepDeletedCells is None
        else descriptor.keepDeletedCells == thrift_interface().TKeepDeletedCells.TRUE,
        time_to_live=None if descriptor.timeToLive in (None, NO_TIME_TO_LIVE) else descriptor.timeToLive,
        attributes=dict(descriptor.attributes or {}),
    )


def _is_serving(location: Any) -> bool:
    """Return whether a region serves reads: it is neither a replica nor offline nor split."""
    info = location.regionInfo
    return not (info.replicaId or info.offline or info.split)


def _is_complete_cover(regions: Sequence[Region]) -> bool:
    """Return whether each region begins where the previous one ends, from the first key to the last."""
    stops = [b"", *(region.stop for region in regions)]
    return bool(regions) and [region.start for region in regions] == stops[:-1] and stops[-1] == b""


def _decode_region(location: Any) -> Region:
    info, server = location.regionInfo, location.serverName
    return Region(info.startKey or b"", info.endKey or b"", server.hostName, server.port or 0)
