"""OrderedStore: the store contract over an ordered map."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from viewkeeper.resources.fork_guard import owned
from viewkeeper.store.contract.commits import Finding
from viewkeeper.store.contract.composite_store import DelegatingStore
from viewkeeper.store.mailbox import FileMailbox
from viewkeeper.store.ordered import metadata
from viewkeeper.store.ordered.changelog import OrderedChangeLog
from viewkeeper.store.ordered.commits import OrderedCommits
from viewkeeper.store.ordered.doctor import examine_database
from viewkeeper.store.ordered.handle import OrderedCatalogStore, StoreHandle
from viewkeeper.store.ordered.lease import FileLeaseStore
from viewkeeper.store.ordered.maps import Database
from viewkeeper.store.ordered.tables import CAPABILITIES, OrderedTables


class OrderedStore(DelegatingStore):
    """One open database in a directory. Its methods may be called from any thread."""

    is_single_machine = True
    can_partition_changes = True
    can_store_family_members = True
    capabilities = CAPABILITIES

    def __init__(self, database: Database, mode: str) -> None:
        self._handle = handle = StoreHandle(database, mode)
        self.url = handle.url
        self.uuid = database.uuid
        self.state_path = str(database.path / "state")
        self.catalog_store = catalog_store = OrderedCatalogStore(handle)
        self.lease_store = lease_store = FileLeaseStore(handle)
        self.table_store = OrderedTables(handle, catalog_store)
        self.changelog = OrderedChangeLog(handle, catalog_store)
        self.batch_commits = OrderedCommits(handle, catalog_store, lease_store)
        self.mailbox = FileMailbox(handle.path)
        owned(self, handle.fork_description)
        if mode == "w":
            database.free_dropped_tables()

    def examine(self) -> Iterator[Finding]:
        return examine_database(self._handle.require_open(), Path(self.state_path))

    def copy_to(self, directory: Path) -> None:
        self._handle.require_open().copy_to(directory)

    def renew_identity(self) -> None:
        database = self._handle.require_writable()
        with database.write() as state:
            name = metadata.renew_uuid(state.meta)
        database.uuid = self.uuid = name

    def sync(self) -> None:
        """Flush every commit to disk, for durability 'group' and 'none'."""
        self._handle.require_writable().sync()

    def close(self) -> None:
        self._handle.close()
