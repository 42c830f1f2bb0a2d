"""One open database: the parts of `protocols.py` behind one name, and what is left of its life.

A store is made of an object for each of them (`of_parts.py`); whoever uses one need not know which does what.
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
    """Whether only processes of one machine can open it."""
    can_partition_changes: bool = False
    """Whether several processes can read a share each of the changes of a table (`part_of_changes`)."""
    state_path: str
    """Directory for the maintainer's run files."""
    can_store_family_members: bool = False
    """Whether it reads the rows of a member of a family: a table that is a part of another one."""
    can_read_lazy_views: bool = False
    """Whether reads of a lazy view are handed to who works it out (`answering`)."""
    lazy_cache_bytes: int = 64 << 20
    """Bytes of answers of lazy views that are remembered."""
    can_filter_scans: bool = False
    """Whether a scan leaves out rows that are not wanted of a `SelectedTable`; all other calls take it as a table."""
    poll_interval: float = 0.0
    """Seconds between two looks for changes, where looking is not as good as free."""
    mailbox: Mailbox | None = None
    """How other processes reach the one that maintains; None where they cannot."""
    can_notify: bool = False
    """Whether nothing waits that `on_news` has not told of: after a batch nobody need look."""

    def examine(self) -> Iterator[Finding]:
        """Look at everything of the store's own, for `vk doctor`, and change nothing."""
        return iter(())

    def copy_to(self, directory: Path) -> None:
        """Copy all that the store holds, as it is at one moment, into an empty directory."""
        raise Unsupported(
            f"{self.url} cannot be backed up by copying it.",
            hint="Use the store's own snapshots; views are made again from their tables.",
        )

    def renew_identity(self) -> None:
        """Take another uuid: tokens of before are another database's from now on."""
        raise Unsupported(f"{self.url} keeps its identity.")

    @abstractmethod
    def close(self) -> None: ...
