"""What a store is made of: a few small parts, each with a contract of its own.

    Records      the catalog, replaced atomically; small notes
    Rows         put / delete by key, get, scan of a key range; a state that stays readable
    Feed         head, and the changes of a table between two positions, as a delta
    Publishing   commit of a batch (steps 3 and 4 of the protocol), the published batch
    Leasing      one maintainer at a time

Rows cross this border as Arrow, in a table's own schema (`Table.arrow`); how they are laid out in bytes is the store's
business. A *position* is one number per write call; a *cut* is a position: all calls up to it have happened. What a
part can do without, it says here: a method that is not abstract has the answer of a store which cannot.
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
    """The catalog, and what the maintainer leaves for others to see."""

    @abstractmethod
    def catalog(self) -> Catalog:
        """The current catalog; cheap when it has not changed."""

    @abstractmethod
    def change_catalog(self, change: Callable[[Catalog], Catalog]) -> Catalog:
        """Replace the catalog by `change(current)`, atomically. An error raised by `change` leaves it as it was."""

    def note(self, name: str) -> Mapping[str, Any] | None:
        """A small record that the maintainer left for others to see; None if there is none."""
        return None

    def put_note(self, name: str, note: Mapping[str, Any] | None) -> None:
        """Leave a record for others to see; None takes it away. A store that keeps none forgets it."""
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
        """`write`, unless this writer's call of that number (or a later one) has happened already.

        Where the store has no atomic batches, a crash between the write and its note repeats the write.
        """

    @abstractmethod
    def update(self, table: Table, key: pa.Table, columns: pa.Table) -> WriteResult:
        """Change the same columns of existing rows; `key` and `columns` have a row for each. One row is changed
        atomically, several where the store has atomic batches. An absent key raises RowAbsent."""

    def load_synchronous_view(self, view: View, changes: Sequence[ViewChange]) -> None:
        """Write the first rows of a synchronous view and of its state, which no catalog lists yet.

        From when one does, every write to its tables keeps it (`store.keeping`).
        """
        raise Unsupported(f"{self.url} keeps no synchronous views.")

    def catch_up_synchronous_view(
        self, view: View, after: int, publish: Callable[[Catalog, int], Catalog] | None = None
    ) -> tuple[int, bool]:
        """Bring such a view on from a position, with what the log says: to the published batch's, or, if it is there
        already, to the head, where `publish` lists it. Where it is then, and whether it is listed."""
        raise Unsupported(f"{self.url} keeps no synchronous views.")

    @abstractmethod
    def get(self, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        """One row by its whole key, as Python values of the *outside* types; a bag's `¤count` included."""

    @abstractmethod
    def get_rows(self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """The stored rows found for these keys, in any order; absent keys are left out."""

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
        """Stored rows in key order, `start` ≤ encoded key < `stop`, all from one state where the store can."""

    @abstractmethod
    def scan_at(
        self, table: Table, columns: Sequence[str], cut: int, *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a key range as they were at `cut`, exactly: the scan minus what the log says came after.

        Batches carry `¤w`; their consolidated sum is the state at the cut (a batch may hold retractions).
        """

    def describe_scan(self, table: Table, columns: Sequence[str]) -> str | None:
        """What `scan_at` hands to the store's own scanner, in words, for EXPLAIN."""
        return None

    def can_scan_at(self, table: Table) -> bool:
        """Whether `scan_at` can be kept: by one state, by before-images to undo, or by versions.

        Where not, a table is scanned as it is and what its feed says of the time since is laid over (`capture.parts`).
        """
        can = self.capabilities
        return can.snapshot_scan or can.before_images or can.cell_versions

    def capture_mark(self, table: Table, cut: int, expected: CaptureMark | None = None) -> CaptureMark | None:
        """Called before and after a table is read as of a batch's cut: what can be seen of it now, for who goes on from
        there; None if that is not what the batch had `seen`, if it had seen any.

        Where writes become visible late, a read may find what the batch did not; the next batch brings it to all views.
        """
        return expected or CaptureMark()

    def has_moved(self, table: Table, cut: int) -> bool:
        """Whether what was read of a table for a cut may be newer than it: only where the store cannot keep to a cut,
        and only if something was written since. No other view has seen that, so nothing can be shared with them."""
        return False

    def range_keys(self, table: Table, rows: pa.Table) -> pa.Array:
        """Of rows with the key columns, the bytes by which `start`, `stop` and `split_points` order them."""
        return encode_keys(table, rows)

    def is_in_key_order(self, table: Table) -> bool:
        """Whether rows lie in the order of their keys as `model.keys` writes them, so that a range of these is one."""
        return True

    @abstractmethod
    def find_at(self, table: Table, keys: pa.Table, columns: Sequence[str], cut: int) -> pa.Table:
        """The rows of these keys (unique) as they were at `cut`, in any order; absent keys are left out."""

    @abstractmethod
    def split_points(self, table: Table, range_count: int) -> list[bytes]:
        """Up to `parts - 1` encoded keys that cut the table into ranges of similar size."""

    @abstractmethod
    def count(self, table: Table) -> int:
        """Rows in the table now (an estimate where the store cannot know)."""

    def rejected_rows(self, table: Table) -> list[RejectedRow]:
        """The rows that were put aside because they cannot be read."""
        return []

    def open_snapshot(self) -> StoreSnapshot:
        """The state of the whole database now, to be read again and again: needs `snapshot_scan` or `cell_versions`."""
        raise Unsupported(f"{self.url} has no snapshots.")


class ChangeLog(Protocol):
    """What happened after a position, how much of it waits, and for whom it is kept."""

    url: str

    @abstractmethod
    def head(self) -> int:
        """The position of the last write call."""

    @abstractmethod
    def changes(self, table: Table, columns: Sequence[str], after: int, up_to: int) -> pa.Table:
        """What write calls in (after, upto] did to the table: a delta over `columns`, not consolidated."""

    def net_changes(self, table: Table, columns: Sequence[str], after: int, up_to: int) -> pa.Table | None:
        """`changes` of columns that hold the key, consolidated, by a store that knows a cheap way to it: a key's first
        row before, its last one after. None: it does not."""
        return None

    def changes_partition(
        self, table: Table, columns: Sequence[str], after: int, up_to: int, partition: int, partition_count: int
    ) -> pa.Table:
        """One of `parts` shares of what write calls in (after, upto] did: chunks of the log that follow each other,
        each share consolidated by itself. Together they are what happened; a key may be in several shares."""
        raise Unsupported(f"{self.url} gives the changes of a table only as a whole.")

    def changed_keys(
        self, table: Table, columns: Sequence[str], after: int, up_to: int, capture_mark: CaptureMark | None = None
    ) -> tuple[ChangedKeys, CaptureMark]:
        """The keys that write calls in (after, upto] touched, and their rows at `upto`: for stores whose feed has no
        before-images. May give more keys, so that a write that became visible late is not lost: what had not been
        `seen` when the caller was at `after`. With them, what is seen now, for the call that goes on from `upto`."""
        raise Unsupported(f"{self.url} has before-images; read its changes.")

    def describe_capture(self) -> str | None:
        """How who maintains finds changes just now, and why, in words; None where there is one way only."""
        return None

    def on_changes(self, notify: Callable[[], None]) -> None:
        """Call this when something that waits has come, where the store is told itself: nobody need look for it."""
        return None

    def set_parallel_map(self, parallel_map: ParallelMap | None) -> None:
        """From now on the reads of `pending` and `changed`, and the rows that a commit writes, are the work of `spread`
        (None: of this process), where the store can divide them and they are many enough."""
        return None

    @abstractmethod
    def pending(self, after: int, tables: Sequence[int], head: int | None = None) -> PendingChanges:
        """How much of the log after a position concerns these tables.

        `head`: as it was just asked for. What came after it need not be looked for, where looking is dear.
        """

    def cut_after(self, after: int, tables: Sequence[int], rows: int) -> int:
        """A cut after a position with at least one write call to these tables, and about `rows` changed rows at most.

        The log's head when no more is waiting, or where the store cannot tell.
        """
        return self.head()

    def entries(
        self, table: Table, columns: Sequence[str], after: int, up_to: int
    ) -> Iterator[tuple[int, float, pa.Table]]:
        """Like `changes`, call by call: position, time, and the delta of a chunk of it; views too."""
        raise Unsupported(f"{self.url} keeps no log that can be read call by call.")

    def logged_table(self, table: Table) -> Table:
        """The table or view whose `entries` those of a table are: itself, where the store logs the calls to tables."""
        return table

    def settled_position(self, table: Table) -> int:
        """The position up to which `entries` of a table or view say all that there will be."""
        return self.head()

    def changed_tables(self, after: int, up_to: int) -> Mapping[int, ChangedTable]:
        """The tables and views that calls and commits in (after, upto] changed, by id."""
        raise Unsupported(f"{self.url} cannot say which tables changed.")

    def log_bytes(self) -> int | None:
        """What the change log takes, where the store knows it."""
        return None

    @abstractmethod
    def truncate(self, up_to: int) -> None:
        """Forget log entries up to and including this position, as far as no hold keeps them."""

    def hold(self, name: str, position: int, expiry: float | None = None, *, table: Table | None = None) -> None:
        """Keep the log after a position, until released or (seconds since 1970) expired. A name has one hold.

        `table`: only the changes of this table or view are asked for; some stores can keep these and no others.
        """
        raise Unsupported(f"{self.url} cannot hold its log.")

    def release_hold(self, name: str) -> None:
        """Let go of a hold; an unknown name is no error."""
        raise Unsupported(f"{self.url} cannot hold its log.")

    def holds(self) -> list[LogHold]:
        """The holds that have not expired."""
        return []


class BatchCommits(Protocol):
    """A batch becomes visible, whole or not at all."""

    url: str

    @abstractmethod
    def published_batch(self) -> Batch | None:
        """The last published batch."""

    def salvage_batch(self) -> Batch:
        """What is left of the published batch when its record is damaged: its number, an unknown cut, no record."""
        raise CorruptState(f"The batch record of {self.url} is damaged.", hint="Restore the database from a copy.")

    @abstractmethod
    def commit(
        self,
        batch: Batch,
        changes: Sequence[ViewChange | StreamChange],
        change_catalog: Callable[[Catalog], Catalog] | None = None,
        open_commit: OpenCommit | None = None,
    ) -> None:
        """Steps 3 and 4: the view changes, their log entries and the batch record become visible together.

        A commit that changes the catalog takes a log position even if it changes no row. `begun`: what was applied
        ahead becomes visible with it.
        `batch.number` must be one more than the published one, else MaintainerBusy: somebody else has published.
        """

    def begin_commit(self, number: int, tables: Sequence[Table], share_count: int) -> OpenCommit | None:
        """A commit of batch `number`, to which changes of these tables can be given as they become known, in about so
        many shares, by the thread that will make it. None: the store takes all at once."""
        return None

    def collect_garbage(self) -> None:
        """Step 5: remove what only commits that are finished needed."""
        return None


class LeaseStore(Protocol):
    """One maintainer at a time."""

    @abstractmethod
    def acquire_lease(self) -> Lease:
        """Become the maintainer, or raise MaintainerBusy naming the holder."""

    def lease_holder(self) -> str | None:
        """Who maintains the database now; None if nobody does."""
        try:
            self.acquire_lease().release()
        except MaintainerBusy as busy:
            return busy.message
        return None


# What comes into a store: rows in Arrow, brought into a table's own columns and types; and one row on its way out.


def convert_rows(table: Table, data: pa.Table, names: Sequence[str]) -> pa.Table:
    """The named columns in the table's types."""
    if data.schema.equals(table.arrow) and len(names) == len(data.schema):
        return data
    there = data.column_names
    if missing := [name for name in names if name not in there]:
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
    """The first of stored rows as `Rows.get` gives one; None if there is none."""
    if not rows.num_rows:
        return None
    row: dict[str, Any] = (
        rows.select(table.external_schema.names).slice(0, 1).cast(table.external_schema).to_pylist()[0]
    )
    return row | {name: rows[name][0].as_py() for name in rows.column_names if name not in row}
