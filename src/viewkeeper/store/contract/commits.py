"""Values that pass between a store and its callers, apart from rows: capabilities, batches, changes, snapshots,
leases."""

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
    """The capabilities of a store. A capability is only claimed if it holds without exception."""

    changelog: bool
    """`changes` returns what was written between two positions."""
    atomic_batch: bool
    """All rows of a write call, and all writes of a commit, become visible together."""
    snapshot_scan: bool
    """A scan reads one state and knows the position of that state."""
    before_images: bool
    """The change log contains the row image before each change."""
    cell_versions: bool
    """Older values of a cell stay readable by version."""


@dataclass(frozen=True)
class WriteResult:
    """The outcome of a write call: its position, the number of rows that really changed, and whether the call was
    atomic."""

    position: int
    changed_rows: int
    atomic: bool


@dataclass(frozen=True)
class CaptureMark:
    """Store-specific value that says what capture had seen of a table up to a cut.

    It matters for stores in which a write can become visible after later writes. This base class is for all other
    stores. The mark belongs to the caller that received it: a batch publishes the marks of its own capture, and a
    caller that only reads changes no mark of another.
    """


@dataclass(frozen=True)
class Batch:
    """A published batch: its number, its cut, the record that the maintainer wrote, and the capture marks of its
    tables, by id, if the store needs them."""

    number: int
    cut: int
    record: Mapping[str, Any]
    capture_marks: Mapping[int, CaptureMark] = field(default_factory=dict)


@dataclass(frozen=True)
class ViewChange:
    """The upserts and tombstones of one view's table in a commit."""

    table: Table
    puts: pa.Table
    """Full stored rows, unique by key."""
    deletes: pa.Table
    """Key columns only; none of them is in `puts`."""


@dataclass(frozen=True)
class StreamChange:
    """The consolidated delta, with `¤w`, of a view that is not stored. It is only appended to the log."""

    table: Table
    delta: pa.Table


@dataclass(frozen=True)
class ChangedKeys:
    """The result of `changed_keys` for a log without before-images: written keys, and the current rows of these
    keys."""

    keys: pa.Table | None
    """Distinct key columns; some of the keys may not have changed. None: any key may have changed, and `rows` is the
    whole table."""
    rows: pa.Table
    """The rows of these keys at the end of the range; a key without a row was deleted."""


@dataclass(frozen=True)
class RejectedRow:
    """A row of an externally written table that cannot be decoded: its key in the store, the reason, and the time of
    failure."""

    key: bytes
    reason: str
    time: float


@dataclass(frozen=True)
class PendingChanges:
    """The pending changes after a position."""

    calls: int
    """Number of write calls. If positions are timestamps, the number of distinct timestamps of each table's rows: a
    call whose rows are in several regions may have several."""
    rows: int
    oldest_time: float | None
    """Time (seconds since 1970) of the oldest pending call."""
    first_position: int | None = None
    """Position of the oldest pending call, if the store knows it."""
    last_position: int | None = None
    """Position of the newest pending call, if the store knows it."""
    size: int = 0
    """Bytes of the pending changes, if the store knows them."""
    rows_by_table: Mapping[int, int] = field(default_factory=dict)
    """Changed rows of each table, if the store knows them."""

    @property
    def is_single_call(self) -> bool:
        """Whether all pending changes are known to come from one write call; a cut never splits a call."""
        return self.calls == 1 and bool(self.rows_by_table)

    def for_table(self, table: int) -> PendingChanges | None:
        """Return the pending changes of one table; None if the store must be queried for them."""
        if not self.is_single_call:
            return None
        rows = self.rows_by_table.get(table)
        return PendingChanges(0, 0, None) if rows is None else replace(self, rows=rows, rows_by_table={table: rows})


@dataclass(frozen=True)
class ChangedTable:
    """The changes of one table or view in a range of the log: the last position, and the number of changed rows."""

    position: int
    changed_rows: int


@dataclass(frozen=True)
class LogHold:
    """A promise to retain the log after `position` until `expiry` (seconds since 1970; None: until released)."""

    name: str
    position: int
    expiry: float | None


@dataclass(frozen=True)
class Finding:
    """One check of an examination: whether it passed, what was found, and what to do."""

    check: str
    ok: bool
    message: str
    advice: str = ""


class StoreSnapshot(ABC):
    """One state of the whole database that stays readable, regardless of later writes, until it is closed.

    Views are those of `batch`. A base table is read as it was at `batch.cut`.
    """

    catalog: Catalog
    batch: Batch
    head: int
    """The log's head in this state; entries after it are not part of it."""

    @abstractmethod
    def get(self, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        """Return one row by its whole key, in the form of `Store.get`."""

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
        """Yield stored rows in key order with `start` ≤ encoded key < `stop`. A base table can be read at the cut or as
        it is in this state."""

    @abstractmethod
    def find(
        self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None, *, at_cut: bool = True
    ) -> pa.Table:
        """Return the stored rows of these keys (key columns), in any order; absent keys are left out."""

    @abstractmethod
    def changed_since_cut(self, table: Table) -> ChangedKeys | None:
        """Return the keys of a base table that write calls changed after the cut, and their rows in this state; None if
        there are none. The rows at the cut without these keys, plus these rows, are the table in this state."""

    def row_images(self, table: Table, after: int) -> list[tuple[bytes, bytes]] | None:
        """Return (before, after) of each changed row in calls after a position, in log order, encoded
        (`model.encoding.rows`); an empty image means no row. Return None if the log does not have the images in this
        form."""
        return None

    def size(self, table: Table, start: bytes | None, stop: bytes | None, limit: int) -> int:
        """Return the number of rows in a key range in this state, counted up to `limit`."""
        keys = [c.name for c in table.key_columns]
        found = 0
        for batch in self.scan(table, columns=keys, start=start, stop=stop, limit=limit, at_cut=False):
            found += batch.num_rows
        return found

    @abstractmethod
    def close(self) -> None:
        """Release the state; closing twice is no error. Reading it afterwards raises SnapshotGone."""


class ParallelMap(Protocol):
    """Runs pieces of work, possibly in other processes, and returns their results in the order of the pieces."""

    def __call__(self, work: Callable[[T], R], pieces: Sequence[T], /) -> list[R]: ...


class OpenCommit(Protocol):
    """A pipelined commit: it begins while the batch is still computed. Nothing is visible until the commit; other
    writers wait from the first applied change on."""

    encode: Callable[[ViewChange], pa.Table]
    """Encodes changes in the form that `apply` accepts; the function can be called in other processes."""

    def apply(self, table: Table, encoded: pa.Table) -> None:
        """Apply encoded changes of a table. After an error, the commit must be aborted."""

    def abort(self) -> None:
        """Discard the applied changes; no error if the batch was committed, or nothing was applied."""


class Lease(Protocol):
    """The exclusive right to maintain, until it is released or the process ends."""

    @property
    def is_lost(self) -> bool:
        """Whether another process may hold the lease by now. The former holder must not write any more."""

    def release(self) -> None: ...
