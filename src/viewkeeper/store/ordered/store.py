"""OrderedStore: the contract over an ordered map, made of its parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from viewkeeper.resources.fork_guard import owned
from viewkeeper.store.contract.commits import Finding
from viewkeeper.store.contract.composite_store import StoreOfParts
from viewkeeper.store.mailbox import FileMailbox
from viewkeeper.store.ordered import metadata
from viewkeeper.store.ordered.changelog import OrderedFeed
from viewkeeper.store.ordered.commits import OrderedPublishing
from viewkeeper.store.ordered.doctor import examine
from viewkeeper.store.ordered.handle import Opened, OrderedRecords
from viewkeeper.store.ordered.lease import FileLeasing
from viewkeeper.store.ordered.maps import Database
from viewkeeper.store.ordered.tables import CAPABILITIES, OrderedRows


class OrderedStore(StoreOfParts):
    """One open database in a directory. Its methods may be called from any thread."""

    one_machine = True
    divides_log = True
    keeps_members = True
    capabilities = CAPABILITIES

    def __init__(self, database: Database, mode: str) -> None:
        self._opened = opened = Opened(database, mode)
        self.url = opened.url
        self.uuid = database.uuid
        self.state_path = str(database.path / "state")
        self.records = known = OrderedRecords(opened)
        self.leasing = leasing = FileLeasing(opened)
        self.rows = OrderedRows(opened, known)
        self.feed = OrderedFeed(opened, known)
        self.publishing = OrderedPublishing(opened, known, leasing)
        self.mailbox = FileMailbox(opened.path)
        owned(self, opened.said)
        if mode == "w":
            database.purge()

    def examine(self) -> Iterator[Finding]:
        return examine(self._opened.live(), Path(self.state_path))

    def copy_to(self, directory: Path) -> None:
        self._opened.live().copy_to(directory)

    def renew_identity(self) -> None:
        database = self._opened.writable()
        with database.write() as state:
            name = metadata.renew_uuid(state.meta)
        database.uuid = self.uuid = name

    def sync(self) -> None:
        """Flush every commit to disk, for durability 'group' and 'none'."""
        self._opened.writable().sync()

    def close(self) -> None:
        self._opened.close()
