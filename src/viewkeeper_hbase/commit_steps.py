"""The HBase side of committing a batch (`viewkeeper.store.redo`): view cells whose time is the batch's number.

Writing is idempotent: a second write of the same cells with the same time changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.resources.directory import StateDirectory
from viewkeeper.store.contract.store import Batch, ParallelMap, ViewChange
from viewkeeper.store.redo import claim, redo_file
from viewkeeper.store.redo.claim import Claim
from viewkeeper.store.redo.delta_files import DeltaFile, DeltaFiles
from viewkeeper.store.redo.redo_file import Redo, TableRedo
from viewkeeper_hbase.layout.layout import VIEW_VERSIONS, Layout
from viewkeeper_hbase.metadata import DatabaseState, MetaTable, PastBatch, PublishedBatch
from viewkeeper_hbase.thrift.admin import ColumnFamily
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.thrift.errors import AlreadyExists, OutcomeUnknown
from viewkeeper_hbase.thrift.task_clients import worker_client
from viewkeeper_hbase.url import parse_url

_REGION_ROWS = 200_000
_MAX_REGIONS = 16
_KEY = "key"
_STALE_WRITER_SECONDS = 5.0
"""Seconds after the start of the commit from which a writer of cells first checks whether the batch is already
published."""
_PIECE_ROWS = 20_000
"""Rows of one piece of work, when the cells of a table are written by several tasks."""


def encode_table_redo(layout: Layout, change: ViewChange, is_new: bool) -> TableRedo:
    """Return what a view's change writes to its HBase table; `is_new` says that the table must be created first."""
    keys, cells = layout.encode(change.puts)
    family = layout.column_family()
    return TableRedo(
        layout.name,
        {"name": family.name.decode(), "max_versions": family.max_versions},
        is_new,
        _split_points(keys) if is_new else (),
        pa.table([keys, *cells.values()], names=[_KEY, *(c.decode() for c in cells)]),
        pa.table({_KEY: layout.encode_row_keys(change.deletes)}),
    )


def next_published_batch(
    previous: PublishedBatch | None,
    batch: Batch,
    head: int,
    delta_files: Sequence[tuple[int, str]],
    forgotten_position: int,
) -> PublishedBatch:
    """Return the record of `batch`: its position is after the head; it lists the batches at which views remain
    readable, this one last, and the delta files of views that are not stored: those of this batch (table and
    file), and the earlier ones after `forgotten_position`."""
    readable = previous.readable_batches if previous is not None else ()
    position = max(head, readable[-1].position if readable else 0) + 1
    entry = PastBatch(batch.number, position, time.time())
    files = DeltaFiles() if previous is None else previous.delta_files.without_older(forgotten_position)
    files = files.with_files(
        [DeltaFile(batch.number, position, entry.time, table, file) for table, file in delta_files]
    )
    return PublishedBatch(batch, (*readable[1 - VIEW_VERSIONS :], entry), files)


@dataclass(frozen=True)
class RedoPiece:
    """Some rows of one table of a claimed redo. The task that writes them reads the redo file itself."""

    url: str
    directory: str
    file: str
    digest: str
    table: str
    puts: tuple[int, int]
    deletes: tuple[int, int]


def finish_claimed_batch(
    meta_table: MetaTable,
    directory: StateDirectory,
    claimed: Claim,
    url: str = "",
    parallel_map: ParallelMap | None = None,
    redo: Redo | None = None,
) -> DatabaseState:
    """Do steps 3c and 4 for a claimed batch. The caller is the claimant, which passes its redo, or a successor.

    With `parallel_map`, the cells of a large table are written in pieces by its tasks, each over a connection of
    its own. A piece that is written twice, or by two tasks at the same time, leaves the same cells, so any part
    of step 3c may be repeated.
    """

    started = time.time()

    def write(table: TableRedo, number: int) -> None:
        # A process that was suspended may resume long after the batch was published, when HBase has already discarded
        # the delete markers of a later batch; its old cells would reappear.
        if time.time() - started > _STALE_WRITER_SECONDS and meta_table.read_state().published >= number:
            return
        _create_if_new(meta_table.client, table)
        if parallel_map is None or table.puts.num_rows + table.deletes.num_rows < 2 * _PIECE_ROWS:
            write_cells(meta_table.client, table, number)
            return
        redo_fields = (url, str(directory), claimed.file, claimed.digest, table.name)
        pieces = [
            RedoPiece(*redo_fields, (at, at + _PIECE_ROWS), (0, 0)) for at in range(0, table.puts.num_rows, _PIECE_ROWS)
        ]
        pieces += [
            RedoPiece(*redo_fields, (0, 0), (at, at + _PIECE_ROWS))
            for at in range(0, table.deletes.num_rows, _PIECE_ROWS)
        ]
        parallel_map(_write_piece, pieces)

    return claim.finish_batch(meta_table, directory, claimed, write, redo)


def _write_piece(piece: RedoPiece) -> None:
    redo = _read_redo(piece.directory, piece.file, piece.digest)
    if MetaTable(worker_client(piece.url), parse_url(piece.url).namespace).read_state().published >= redo.number:
        return  # a delayed attempt: the batch is published already
    table = next(t for t in redo.tables if t.name == piece.table)
    puts, deletes = ((stop - start, start) for start, stop in (piece.puts, piece.deletes))
    rows = replace(table, puts=table.puts.slice(puts[1], puts[0]), deletes=table.deletes.slice(deletes[1], deletes[0]))
    write_cells(worker_client(piece.url), rows, redo.number)


@lru_cache(maxsize=1)
def _read_redo(directory: str, file: str, digest: str) -> Redo:
    """Read a redo file and check its digest, once per worker and file."""
    return redo_file.read_redo(StateDirectory(directory), file, digest)


def _create_if_new(client: HBaseClient, table: TableRedo) -> None:
    if table.is_new:
        family = ColumnFamily(
            table.family["name"].encode(), max_versions=table.family["max_versions"], keep_deleted_cells=True
        )
        create_table(client, table.name, family, table.splits)


def write_cells(client: HBaseClient, table: TableRedo, number: int) -> None:
    """Do step 3c for rows of a table. A replaced row gets all its cells again; the cells of NULL values are deleted."""
    keys = table.puts[_KEY].combine_chunks()
    cells = {name.encode(): table.puts[name] for name in table.puts.column_names if name != _KEY}
    if len(keys):
        client.put_rows(table.name, keys, cells, time=number)
    for column, values in cells.items():
        if values.null_count and not table.is_new:
            client.delete_rows(table.name, keys.filter(pc.is_null(values).combine_chunks()), [column], time=number)
    if table.deletes.num_rows:
        client.delete_rows(table.name, table.deletes[_KEY].combine_chunks(), time=number)


def create_table(client: HBaseClient, name: str, family: ColumnFamily, splits: Sequence[bytes] = ()) -> None:
    """Create a table, unless another process has created it meanwhile."""
    try:
        client.admin.create(name, [family], splits=splits)
    except (AlreadyExists, OutcomeUnknown):
        if not client.admin.exists(name):
            raise


def _split_points(keys: pa.Array) -> tuple[bytes, ...]:
    """Return row keys that split a first load into regions of similar size."""
    parts = min(_MAX_REGIONS, len(keys) // _REGION_ROWS)
    if parts < 2:
        return ()
    ordered = keys.take(pc.sort_indices(keys))
    return tuple(ordered[int(at)].as_py() for at in np.linspace(0, len(keys), parts + 1)[1:-1])
