"""Namespaces, tables, families and regions of an HBase."""

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
    """A column family. What is None is left to HBase."""

    name: bytes
    max_versions: int | None = None
    min_versions: int | None = None
    keep_deleted_cells: bool | None = None
    time_to_live: int | None = None
    """Seconds; None when cells never expire."""
    attributes: Mapping[bytes, bytes] = field(default_factory=dict)
    """Everything else, by HBase's names (BLOOMFILTER, COMPRESSION, ...)."""


@dataclass(frozen=True)
class HBaseTableDescription:
    """A table as HBase has it."""

    name: str
    families: tuple[ColumnFamily, ...]
    attributes: Mapping[bytes, bytes]

    def family(self, name: bytes) -> ColumnFamily | None:
        return next((family for family in self.families if family.name == name), None)


@dataclass(frozen=True)
class Region:
    """A key range of a table and the server that has it. Empty bytes: from the beginning, to the end."""

    start: bytes
    stop: bytes
    host: str
    port: int


class HBaseAdmin:
    """What a database administrator does. Names are `namespace:table`; without a namespace it is `default`."""

    def __init__(self, pool: GatewayPool) -> None:
        self._pool = pool

    # -- namespaces ---------------------------------------------------------------------------------------------------

    def list_namespaces(self) -> list[str]:
        return sorted(self._pool.call("listNamespaces", repeatable=True))

    def create_namespace(self, name: str) -> None:
        """AlreadyThere if it exists."""
        self._pool.call(
            "createNamespace", repeatable=False, namespaceDesc=thrift_interface().TNamespaceDescriptor(name=name)
        )

    def delete_namespace(self, name: str) -> None:
        """Only an empty one can be."""
        self._pool.call("deleteNamespace", repeatable=False, name=name)

    def require_namespace(self, name: str) -> None:
        if name not in self.list_namespaces():
            raise NoSuchNamespace(
                f"HBase at {self._pool.gateway.address} has no namespace {name}.",
                hint=f"Create it (hbase shell: create_namespace '{name}'), or open it with create=true.",
            )

    # -- tables -------------------------------------------------------------------------------------------------------

    def list_tables(self, namespace: str) -> list[str]:
        """All tables of a namespace, as `namespace:table`."""
        found = self._pool.call("getTableNamesByNamespace", repeatable=True, name=namespace)
        return sorted(f"{namespace}:{table.qualifier.decode()}" for table in found)

    def exists(self, table: str) -> bool:
        return bool(self._call_for_table("tableExists", table))

    def is_enabled(self, table: str) -> bool:
        return bool(self._call_for_table("isTableEnabled", table))

    def describe(self, table: str) -> HBaseTableDescription:
        """NoSuchTable if it does not exist."""
        said = self._descriptor_of(table)
        return HBaseTableDescription(
            table, tuple(_decode_family(one) for one in said.columns or ()), dict(said.attributes or {})
        )

    def list_regions(self, table: str) -> list[Region]:
        """The regions in key order; together they cover all keys. NoSuchTable if there is none.

        While a region splits the gateway may fail with an internal error (seen): asked again, as with gaps.
        """
        failed = 0
        while True:
            try:
                found = self._pool.call(
                    "getAllRegionLocations", repeatable=True, table_name=table, table=table.encode()
                )
            except RequestRefused as error:
                if isinstance(error, NoSuchTable) or failed >= self._pool.retry.max_retries:
                    raise
            else:
                if not found and not self.exists(table):
                    address = self._pool.gateway.address
                    raise NoSuchTable(f"HBase at {address} has no table {table}.", hint="Check the name and namespace.")
                regions = sorted(map(_decode_region, filter(_is_serving, found)), key=lambda region: region.start)
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
        """Create a table, cut into regions at the split keys. AlreadyThere if it exists.

        A gateway that cannot take split keys (see `Connection.send`) makes a table of one region.
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
        """Set attributes of a table (MAX_FILESIZE, ...), keeping its others and its families."""
        said = self._descriptor_of(table)
        said.attributes = {**(said.attributes or {}), **attributes}
        self._change("modifyTable", table, piecewise=True, repeatable=True, desc=said)

    def add_family(self, table: str, family: ColumnFamily) -> None:
        self._change_family("addColumnFamily", table, family)

    def alter_family(self, table: str, family: ColumnFamily) -> None:
        """Replace a family's settings: `replace(describe(table).family(name), ...)` keeps what is not named."""
        self._change_family("modifyColumnFamily", table, family)

    def disable(self, table: str) -> None:
        """Take a table out of service, which also writes what it has in memory to its files."""
        self._change("disableTable", table, tableName=table_name(table))

    def enable(self, table: str) -> None:
        self._change("enableTable", table, tableName=table_name(table))

    def truncate(self, table: str, *, keep_splits: bool = True) -> None:
        """Throw all rows away. The table must be disabled; it is enabled afterwards."""
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
    """The interface's own form of a name."""
    namespace, colon, name = table.rpartition(":")
    if not name or (colon and not namespace):
        raise BadValue(f"{table!r} is not the name of an HBase table.", hint="Write namespace:table or table.")
    return thrift_interface().TTableName(ns=(namespace or "default").encode(), qualifier=name.encode())


def _family_descriptor(family: ColumnFamily) -> Any:
    kept = thrift_interface().TKeepDeletedCells
    return thrift_interface().TColumnFamilyDescriptor(
        name=family.name,
        attributes=dict(family.attributes) or None,
        maxVersions=family.max_versions,
        minVersions=family.min_versions,
        keepDeletedCells=None
        if family.keep_deleted_cells is None
        else kept.TRUE
        if family.keep_deleted_cells
        else kept.FALSE,
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
    """Not a copy, nor one that has been split in two."""
    info = location.regionInfo
    return not (info.replicaId or info.offline or info.split)


def _is_complete_cover(regions: Sequence[Region]) -> bool:
    """Whether each begins where the one before ends, from the first key to the last."""
    stops = [b"", *(region.stop for region in regions)]
    return bool(regions) and [region.start for region in regions] == stops[:-1] and stops[-1] == b""


def _decode_region(location: Any) -> Region:
    info, server = location.regionInfo, location.serverName
    return Region(info.startKey or b"", info.endKey or b"", server.hostName, server.port or 0)
