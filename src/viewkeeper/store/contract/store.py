"""`Store`: one open database. It joins the five protocols of `tables.py` and adds the database's identity and life
cycle.

A store delegates each protocol to an object of its own (`composite_store.py`); callers use only `Store`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from viewkeeper.errors import Unsupported
from viewkeeper.store.contract.commits import (
    Batch,
    Capabilities,
    CaptureMark,
    ChangedKeys,
    ChangedTable,
    Finding,
    Lease,
    LogHold,
    OpenCommit,
    ParallelMap,
    PendingChanges,
    RejectedRow,
    StoreSnapshot,
    StreamChange,
    ViewChange,
    WriteResult,
)
from viewkeeper.store.contract.tables import BatchCommits, CatalogStore, ChangeLog, LeaseStore, TableStore
from viewkeeper.store.mailbox import Mailbox

__all__ = [
    "Batch",
    "Capabilities",
    "CaptureMark",
    "ChangedKeys",
    "ChangedTable",
    "Finding",
    "Lease",
    "LogHold",
    "OpenCommit",
    "ParallelMap",
    "PendingChanges",
    "RejectedRow",
    "Store",
    "StoreSnapshot",
    "StreamChange",
    "ViewChange",
    "WriteResult",
]


class Store(CatalogStore, TableStore, ChangeLog, BatchCommits, LeaseStore, ABC):
    """One open database."""

    url: str
    uuid: str
    capabilities: Capabilities
    is_single_machine: bool = False
    """Whether only processes of one machine can open the database."""
    can_partition_changes: bool = False
    """Whether several processes can each read a part of a table's changes (`changes_partition`)."""
    state_path: str
    """Directory for the maintainer's run files."""
    can_store_family_members: bool = False
    """Whether the store can read the rows of a member of a view family: a table that is a part of another table."""
    can_read_lazy_views: bool = False
    """Whether the store passes reads of lazy views on to the lazy reader (`lazy_reads`)."""
    lazy_cache_bytes: int = 64 << 20
    """Bytes of results of lazy views that are cached."""
    can_filter_scans: bool = False
    """Whether a scan applies the comparisons of a `FilteredTable`; all other calls treat it as a plain table."""
    poll_interval: float = 0.0
    """Seconds between two polls for changes, for a store where a poll is not practically free."""
    mailbox: Mailbox | None = None
    """Requests of other processes to the maintainer; None if the store cannot carry them."""
    can_notify: bool = False
    """Whether `on_changes` reports every pending change, so that the maintainer need not poll after a batch."""

    def examine(self) -> Iterator[Finding]:
        """Check all structures of the store, for `vk doctor`, without changing anything."""
        return iter(())

    def copy_to(self, directory: Path) -> None:
        """Copy the state of the whole database at one moment into an empty directory."""
        raise Unsupported(
            f"{self.url} cannot be backed up by copying it.",
            hint="Use the store's own snapshots; views are made again from their tables.",
        )

    def renew_identity(self) -> None:
        """Give the database a new uuid. Freshness tokens issued before belong to another database from now on."""
        raise Unsupported(f"{self.url} keeps its identity.")

    @abstractmethod
    def close(self) -> None: ...
