"""What goes into a store and comes out of it, beside rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.schema import Table

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Capabilities:
    """What a store can do. Never stated stronger than it is."""

    changelog: bool
    """`changes` gives what was written between two positions."""
    atomic_batch: bool
    """All rows of a write call, and all writes of a commit, become visible together."""
    snapshot_scan: bool
    """A scan sees one state and knows that state's position."""
    before_images: bool
    """The feed carries the row that was there before."""
    cell_versions: bool
    """Old values stay readable by version."""


@dataclass(frozen=True)
class WriteResult:
    """The outcome of a write call: its position, rows that really changed, and whether the call was atomic."""

    position: int
    changed_rows: int
    atomic: bool


@dataclass(frozen=True)
class CaptureMark:
    """What was seen of a table up to a cut, where a write can become visible after later ones: a store's own business.

    This one is of a store in which it cannot. It belongs to whoever was given it: a batch publishes what its capture
    saw, and who only looks changes nothing for others.
    """


@dataclass(frozen=True)
class Batch:
    """A published batch: its number, the cut it stands for, the record that the maintainer wrote with it, and what its
    capture had seen of each table, by id, where the store needs to know."""

    number: int
    cut: int
    record: Mapping[str, Any]
    capture_marks: Mapping[int, CaptureMark] = field(default_factory=dict)


@dataclass(frozen=True)
class ViewChange:
    """The rows to put into and the keys to delete from one view's table in a commit."""

    table: Table
    puts: pa.Table
    """Full stored rows, unique by key."""
    deletes: pa.Table
    """Key columns only; none of them is in `puts`."""


@dataclass(frozen=True)
class StreamChange:
    """The delta of a view that is not stored, with `¤w`, consolidated: it is appended to the log and nothing else."""

    table: Table
    delta: pa.Table


@dataclass(frozen=True)
class ChangedKeys:
    """What a feed without before-images knows: keys that were written, and those of their rows that are there."""

    keys: pa.Table | None
    """Key columns, unique; some may not have changed after all. None: any may have, and `rows` is the whole table."""
    rows: pa.Table
    """The rows of these keys at the end of the span; a key without a row was deleted."""


@dataclass(frozen=True)
class RejectedRow:
    """A row of a table that others write which cannot be read: its key in the store, why, and since when."""

    key: bytes
    reason: str
    time: float


@dataclass(frozen=True)
class PendingChanges:
    """What waits in the log after a position."""

    calls: int
    """Write calls; where positions are times, the distinct times of each table's rows: a call whose rows lie in several
    regions may have several."""
    rows: int
    oldest_time: float | None
    """Time (seconds since 1970) of the oldest waiting call."""
    first_position: int | None = None
    """Position of the oldest waiting call, where the store knows it."""
    last_position: int | None = None
    """Position of the newest waiting call, where the store knows it."""
    size: int = 0
    """Bytes of what waits, where the store knows it."""
    rows_by_table: Mapping[int, int] = field(default_factory=dict)
    """The rows of each table, where the store knows them."""

    @property
    def is_single_call(self) -> bool:
        """Whether all of it is known to be of one write call, which is not cut."""
        return self.calls == 1 and bool(self.rows_by_table)

    def for_table(self, table: int) -> PendingChanges | None:
        """What of it waits for one of the tables; None where that must be looked for."""
        if not self.is_single_call:
            return None
        rows = self.rows_by_table.get(table)
        return PendingChanges(0, 0, None) if rows is None else replace(self, rows=rows, rows_by_table={table: rows})


@dataclass(frozen=True)
class ChangedTable:
    """What a span of the log did to one table or view: its last position there, and how many rows it changed."""

    position: int
    changed_rows: int


@dataclass(frozen=True)
class LogHold:
    """Somebody needs the log after `position`, until `expiry` (seconds since 1970; None: until released)."""

    name: str
    position: int
    expiry: float | None


@dataclass(frozen=True)
class Finding:
    """One thing that an examination looked at: whether it is as it should be, what was seen, and what to do."""

    check: str
    ok: bool
    message: str
    advice: str = ""


class StoreSnapshot(ABC):
    """One state of the whole database that stays readable, whatever is written meanwhile, until it is closed.

    Views are those of `batch`. A base table is read as it was at `batch.cut`.
    """

    catalog: Catalog
    batch: Batch
    head: int
    """The log's head in this state; entries after it are not part of it."""

    @abstractmethod
    def get(self, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        """One row by its whole key, as `Store.get` gives it."""

    @abstractmethod
    def scan(
        self,
        table: Table,
        *,
        columns: Sequence[str] | None = None,
        start: bytes | None = None,
        stop: bytes | None = None,
        limit: int | None = None,
        at_cut: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """Stored rows in key order, `start` ≤ encoded key < `stop`; of a base table also as it is, not at the cut."""

    @abstractmethod
    def find(
        self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None, *, at_cut: bool = True
    ) -> pa.Table:
        """The stored rows of these keys (key columns), in any order; absent keys are left out."""

    @abstractmethod
    def changed_since_cut(self, table: Table) -> ChangedKeys | None:
        """What write calls did to a base table after the cut: their keys, and the rows of these as they are, in this
        state; None if nothing. `at_cut` rows without these keys, and with these rows, are the table as it is."""

    def row_images(self, table: Table, after: int) -> list[tuple[bytes, bytes]] | None:
        """Each changed row of a table in calls after a position, in their order, as it was and as it is then (empty:
        none), encoded (`model.codec`); None if the log does not have them so."""
        return None

    def size(self, table: Table, start: bytes | None, stop: bytes | None, limit: int) -> int:
        """How many rows a key range holds, as the table is; counted up to `most`."""
        keys = [c.name for c in table.key_columns]
        found = 0
        for batch in self.scan(table, columns=keys, start=start, stop=stop, limit=limit, at_cut=False):
            found += batch.num_rows
        return found

    @abstractmethod
    def close(self) -> None:
        """Let go of the state; again is no error. Reading it afterwards raises SnapshotGone."""


class ParallelMap(Protocol):
    """Does pieces of work, maybe in other processes, and gives their results in the pieces' order."""

    def __call__(self, work: Callable[[T], R], pieces: Sequence[T], /) -> list[R]: ...


class OpenCommit(Protocol):
    """A commit whose batch is still worked out. Until it is made nothing has happened; writers wait from the first
    change on."""

    encode: Callable[[ViewChange], pa.Table]
    """Changes as the bytes that `apply` takes: a function that other processes can call."""

    def apply(self, table: Table, encoded: pa.Table) -> None:
        """These changes of a table are part of the batch. An error leaves it to be given up."""

    def abort(self) -> None:
        """Nothing of it happens; no error if it was committed, or nothing was applied."""


class Lease(Protocol):
    """The right to maintain, until released or the process ends."""

    @property
    def is_lost(self) -> bool:
        """Whether somebody else may have it by now: whoever held it must not change anything any more."""

    def release(self) -> None: ...
