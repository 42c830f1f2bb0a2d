"""The store contract: five protocols.

    CatalogStore   the catalog, replaced atomically; small notes
    TableStore     put / delete by key, get, scan of a key range; a state that stays readable
    ChangeLog      head, and the changes of a table between two positions, as a delta
    BatchCommits   commit of a batch (steps 3 and 4 of the protocol), the published batch
    LeaseStore     one maintainer at a time

Rows cross this interface as Arrow tables in the table's own schema (`Table.arrow`); their byte layout is private to the
store. A *position* is the number of one write call; a *cut* is a position at which all calls up to it have happened. A
method that is not abstract has a default for stores without that capability.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from viewkeeper.errors import BadValue, CorruptState, MaintainerBusy, UnknownName, Unsupported
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.delta import normalize_chunks
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.schema import Table
from viewkeeper.store.contract.commits import (
    Batch,
    Capabilities,
    CaptureMark,
    ChangedKeys,
    ChangedTable,
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


class CatalogStore(Protocol):
    """The catalog, and notes that the maintainer publishes for other processes."""

    @abstractmethod
    def catalog(self) -> Catalog:
        """Return the current catalog; cheap if it has not changed."""

    @abstractmethod
    def change_catalog(self, change: Callable[[Catalog], Catalog]) -> Catalog:
        """Replace the catalog by `change(current)`, atomically. An error raised by `change` leaves it as it was."""

    def note(self, name: str) -> Mapping[str, Any] | None:
        """Return a note of the maintainer; None if there is none."""
        return None

    def put_note(self, name: str, note: Mapping[str, Any] | None) -> None:
        """Store a note, or delete it if `note` is None. A store without notes ignores the call."""
        return None


class TableStore(Protocol):
    """The rows of tables and views, by key."""

    url: str
    capabilities: Capabilities

    @abstractmethod
    def drop_rows(self, table: Table) -> None:
        """Free the rows of a table that the catalog no longer lists."""

    @abstractmethod
    def write(self, table: Table, puts: pa.Table, deletes: pa.Table) -> WriteResult:
        """Put full rows and delete keys (key columns only) in one call. Keys are unique over both."""

    @abstractmethod
    def write_once(self, table: Table, puts: pa.Table, deletes: pa.Table, writer: str, number: int) -> WriteResult:
        """Do `write`, unless this writer's call with this number or a later one has already happened.

        If the store has no atomic batches, a crash between the write and its note repeats the write.
        """

    @abstractmethod
    def update(self, table: Table, key: pa.Table, columns: pa.Table) -> WriteResult:
        """Change the same columns of existing rows; `key` and `columns` have one row for each. A single row is changed
        atomically, several rows only if the store has atomic batches. An absent key raises RowAbsent."""

    def load_synchronous_view(self, view: View, changes: Sequence[ViewChange]) -> None:
        """Write the initial rows and state of a synchronous view that no catalog lists yet.

        Once the catalog lists the view, every write to its base tables maintains it (`write_observer`).
        """
        raise Unsupported(f"{self.url} keeps no synchronous views.")

    def catch_up_synchronous_view(
        self, view: View, after: int, publish: Callable[[Catalog, int], Catalog] | None = None
    ) -> tuple[int, bool]:
        """Apply the changes in the log after a position to a synchronous view.

        The view is brought to the cut of the published batch; if it is there already, it is brought to the head, and
        `publish` adds it to the catalog. Return the view's position and whether the catalog lists it now.
        """
        raise Unsupported(f"{self.url} keeps no synchronous views.")

    @abstractmethod
    def get(self, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        """Return one row by its whole key, as Python values of the external types, including a bag's `¤count`."""

    @abstractmethod
    def get_rows(self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the stored rows with these keys, in any order; absent keys are left out."""

    @abstractmethod
    def scan(
        self,
        table: Table,
        columns: Sequence[str] | None = None,
        *,
        start: bytes | None = None,
        stop: bytes | None = None,
        limit: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield stored rows in key order with `start` ≤ encoded key < `stop`, all from one state if the store can do
        that."""

    @abstractmethod
    def scan_at(
        self, table: Table, columns: Sequence[str], cut: int, *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a key range exactly as they were at `cut`: the scan minus the changes that the log lists
        after it.

        Batches carry `¤w`; their consolidated sum is the state at the cut (a batch may hold retractions).
        """

    def describe_scan(self, table: Table, columns: Sequence[str]) -> str | None:
        """Describe for EXPLAIN which predicates `scan_at` pushes down to the store's own scanner."""
        return None

    def can_scan_at(self, table: Table) -> bool:
        """Return whether `scan_at` is possible: by a snapshot, by undoing changes with before-images, or by cell
        versions.

        If not, a table is scanned live, and the changes logged since the scan began are merged in
        (`capture.partitions`).
        """
        can = self.capabilities
        return can.snapshot_scan or can.before_images or can.cell_versions

    def capture_mark(self, table: Table, cut: int, expected: CaptureMark | None = None) -> CaptureMark | None:
        """Return the table's capture mark at `cut`; the caller compares the marks taken before and after a scan.

        Return None if the mark differs from `expected`, the one recorded with the batch: a write has become visible
        late, so the scan may have found rows that the batch did not see. The next batch brings such a write to all
        views.
        """
        return expected or CaptureMark()

    def has_moved(self, table: Table, cut: int) -> bool:
        """Return whether rows read of a table for a cut may be newer than the cut. That happens only if the store
        cannot read at a cut and the table was written since. Other views have not seen these rows, so their state
        cannot be shared."""
        return False

    def range_keys(self, table: Table, rows: pa.Table) -> pa.Array:
        """Return for each row the bytes by which `start`, `stop` and `split_points` order rows. `rows` has the key
        columns."""
        return encode_keys(table, rows)

    def is_in_key_order(self, table: Table) -> bool:
        """Return whether rows are stored in the order of their encoded keys (`model.encoding.keys`), so that a range of
        encoded keys is a range of stored rows."""
        return True

    @abstractmethod
    def find_at(self, table: Table, keys: pa.Table, columns: Sequence[str], cut: int) -> pa.Table:
        """Return the rows of these distinct keys as they were at `cut`, in any order; absent keys are left out."""

    @abstractmethod
    def split_points(self, table: Table, range_count: int) -> list[bytes]:
        """Return up to `range_count - 1` encoded keys that split the table into ranges of similar size."""

    @abstractmethod
    def count(self, table: Table) -> int:
        """Return the number of rows in the table now, or an estimate if the store cannot know it."""

    def rejected_rows(self, table: Table) -> list[RejectedRow]:
        """Return the rows that were set aside because they cannot be decoded."""
        return []

    def open_snapshot(self) -> StoreSnapshot:
        """Return a snapshot of the whole database. It needs the capability `snapshot_scan` or `cell_versions`."""
        raise Unsupported(f"{self.url} has no snapshots.")


class ChangeLog(Protocol):
    """The change log: what happened after a position, how much of it is pending, and which holds retain it."""

    url: str

    @abstractmethod
    def head(self) -> int:
        """Return the position of the last write call."""

    @abstractmethod
    def changes(self, table: Table, columns: Sequence[str], after: int, up_to: int) -> pa.Table:
        """Return the changes that write calls in (after, up_to] made to the table: a delta over `columns`, not
        consolidated."""

    def net_changes(self, table: Table, columns: Sequence[str], after: int, up_to: int) -> pa.Table | None:
        """Return the consolidated `changes` over columns that include the key, if the store can compute them cheaply
        from the first before-image and the last after-image of each key. Return None if it cannot."""
        return None

    def changes_partition(
        self, table: Table, columns: Sequence[str], after: int, up_to: int, partition: int, partition_count: int
    ) -> pa.Table:
        """Return part `partition` of the changes in (after, up_to].

        A part is a sequence of consecutive chunks of the log, consolidated separately. All `partition_count` parts
        together are the whole; one key may occur in several parts.
        """
        raise Unsupported(f"{self.url} gives the changes of a table only as a whole.")

    def changed_keys(
        self, table: Table, columns: Sequence[str], after: int, up_to: int, capture_mark: CaptureMark | None = None
    ) -> tuple[ChangedKeys, CaptureMark]:
        """Return the keys that write calls in (after, up_to] touched, and their rows at `up_to`.

        This is for stores whose log has no before-images. The result may include more keys, so that no write that
        became visible late is lost: those that `capture_mark`, taken at `after`, had not covered. The second result is
        the mark at `up_to`, for the next call.
        """
        raise Unsupported(f"{self.url} has before-images; read its changes.")

    def describe_capture(self) -> str | None:
        """Describe how the maintainer currently finds changes, and why; None if the store has only one way."""
        return None

    def on_changes(self, notify: Callable[[], None]) -> None:
        """Register a callback for new pending changes, if the store is notified of them, so that the maintainer need
        not poll."""
        return None

    def set_parallel_map(self, parallel_map: ParallelMap | None) -> None:
        """Run the reads of `pending` and `changed_keys`, and the encoding of a commit's rows, with `parallel_map` if
        the store can divide them and they are large enough. With None, they run in this process."""
        return None

    @abstractmethod
    def pending(self, after: int, tables: Sequence[int], head: int | None = None) -> PendingChanges:
        """Return how much of the log after a position concerns these tables.

        `head`: the head as just read. The store need not look for later changes, if looking is expensive.
        """

    def cut_after(self, after: int, tables: Sequence[int], rows: int) -> int:
        """Return a cut after a position that covers at least one write call to these tables, and about `rows` changed
        rows at most.

        Return the log's head if no more is pending or the store cannot tell.
        """
        return self.head()

    def entries(
        self, table: Table, columns: Sequence[str], after: int, up_to: int
    ) -> Iterator[tuple[int, float, pa.Table]]:
        """Yield the changes call by call: position, time, and the delta of a chunk of the call. Views are allowed,
        too."""
        raise Unsupported(f"{self.url} keeps no log that can be read call by call.")

    def logged_table(self, table: Table) -> Table:
        """Return the table or view whose `entries` hold the changes of a table: the table itself, if the store logs
        write calls."""
        return table

    def settled_position(self, table: Table) -> int:
        """Return the position up to which `entries` of a table or view are final."""
        return self.head()

    def changed_tables(self, after: int, up_to: int) -> Mapping[int, ChangedTable]:
        """Return the tables and views, by id, that calls and commits in (after, up_to] changed."""
        raise Unsupported(f"{self.url} cannot say which tables changed.")

    def log_bytes(self) -> int | None:
        """Return the size of the change log in bytes, if the store knows it."""
        return None

    @abstractmethod
    def truncate(self, up_to: int) -> None:
        """Delete log entries up to and including this position, except those that a hold retains."""

    def hold(self, name: str, position: int, expiry: float | None = None, *, table: Table | None = None) -> None:
        """Retain the log after a position until the hold is released or expires (`expiry`: seconds since 1970).

        Each name has one hold. With `table`, only the changes of this table or view are needed; some stores can retain
        these alone.
        """
        raise Unsupported(f"{self.url} cannot hold its log.")

    def release_hold(self, name: str) -> None:
        """Release a hold; an unknown name is no error."""
        raise Unsupported(f"{self.url} cannot hold its log.")

    def holds(self) -> list[LogHold]:
        """Return the holds that have not expired."""
        return []


class BatchCommits(Protocol):
    """Atomic publication of batches."""

    url: str

    @abstractmethod
    def published_batch(self) -> Batch | None:
        """Return the last published batch."""

    def salvage_batch(self) -> Batch:
        """Return what can be recovered of the published batch if its record is damaged: its number, an unknown cut, no
        record."""
        raise CorruptState(f"The batch record of {self.url} is damaged.", hint="Restore the database from a copy.")

    @abstractmethod
    def commit(
        self,
        batch: Batch,
        changes: Sequence[ViewChange | StreamChange],
        change_catalog: Callable[[Catalog], Catalog] | None = None,
        open_commit: OpenCommit | None = None,
    ) -> None:
        """Commit a batch (steps 3 and 4): the view changes, their log entries and the batch record become visible
        together.

        A commit that changes the catalog uses a log position even if it changes no row. Changes that were applied to
        `open_commit` become visible with the batch. `batch.number` must be one more than the published number, else
        MaintainerBusy is raised: another maintainer has published.
        """

    def begin_commit(self, number: int, tables: Sequence[Table], share_count: int) -> OpenCommit | None:
        """Begin the commit of batch `number` before all of its changes are known (a pipelined commit).

        Changes of these tables are applied in about `share_count` portions, by the thread that will commit. Return None
        if the store accepts changes only all at once.
        """
        return None

    def collect_garbage(self) -> None:
        """Step 5: remove data that only finished commits needed."""
        return None


class LeaseStore(Protocol):
    """One maintainer at a time."""

    @abstractmethod
    def acquire_lease(self) -> Lease:
        """Become the maintainer, or raise MaintainerBusy naming the holder."""

    def lease_holder(self) -> str | None:
        """Describe the current maintainer; None if there is none."""
        try:
            self.acquire_lease().release()
        except MaintainerBusy as busy:
            return busy.message
        return None


# Conversion of rows at the store's interface: Arrow rows to a table's columns and types, and one stored row to Python.


def convert_rows(table: Table, data: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the named columns, cast to the table's types."""
    if data.schema.equals(table.arrow) and len(names) == len(data.schema):
        return data
    present = data.column_names
    if missing := [name for name in names if name not in present]:
        raise BadValue(f"Column {missing[0]} of {table.name} is missing.")
    schema = pa.schema([table.arrow.field(name) for name in names])
    data = data.select(list(names))
    if data.schema.equals(schema):
        return data
    try:
        return normalize_chunks(data).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadValue(f"The rows do not fit the columns of {table.name}: {error}.") from error


def column_names(table: Table, columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        return list(table.arrow.names)
    try:
        return [table.by_name[name.lower()].name for name in columns]
    except KeyError as error:
        raise UnknownName(
            f"{table.name} has no column {error.args[0]!r}.", hint=f"Its columns: {', '.join(table.arrow.names)}."
        ) from None


def first_row(table: Table, rows: pa.Table) -> dict[str, Any] | None:
    """Return the first stored row in the form that `TableStore.get` returns; None if there are no rows."""
    if not rows.num_rows:
        return None
    row: dict[str, Any] = (
        rows.select(table.external_schema.names).slice(0, 1).cast(table.external_schema).to_pylist()[0]
    )
    return row | {name: rows[name][0].as_py() for name in rows.column_names if name not in row}
