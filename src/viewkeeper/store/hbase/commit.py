"""A batch becomes visible, in a store that changes only single rows atomically.

    3a  everything that will be written is a durable file: the redo
    3b  the batch is claimed: check-and-put of {number, owner, digest of the redo} into the database's state. From here
        on nobody writes other cells for this batch
    3c  the cells, whose time is the batch's number. Done twice they are the same
    4   the state says that the batch is published; catalog and batch record change in the same put

Before 3b nothing has happened. After it the batch will happen: whoever maintains next replays the claimed redo, and
nothing else. A maintainer that slept through that writes cells that are there already, and its step 4 fails.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import MaintainerBusy
from viewkeeper.model.catalog import Catalog
from viewkeeper.store.base import ViewChange
from viewkeeper.store.files import Directory
from viewkeeper.store.hbase import redo as redos
from viewkeeper.store.hbase.client import Client
from viewkeeper.store.hbase.failures import AlreadyThere, OutcomeUnknown
from viewkeeper.store.hbase.layout import VIEW_VERSIONS, Layout
from viewkeeper.store.hbase.records import Cells, Claim, Past, Published, Records, State, batch_cell, catalog_cell
from viewkeeper.store.hbase.redo import Redo, TableRedo
from viewkeeper.store.hbase.tables import Family

_REGION_ROWS = 200_000
_MOST_REGIONS = 16
_KEY = "key"


def table_redo(client: Client, layout: Layout, change: ViewChange) -> TableRedo:
    """What a view's change writes to its HBase table."""
    keys, cells = layout.encode(change.puts)
    fresh = not client.tables.exists(layout.name)
    family = layout.family()
    return TableRedo(
        layout.name,
        {"name": family.name.decode(), "max_versions": family.max_versions},
        fresh,
        _splits(keys) if fresh else (),
        pa.table([keys, *cells.values()], names=[_KEY, *(c.decode() for c in cells)]),
        pa.table({_KEY: layout.row_keys(change.deletes)}),
    )


def past(before: Published | None, number: int, head: int) -> tuple[Past, ...]:
    """The batches back to which views can be read, with a new one whose position is after the head."""
    known = before.past if before is not None else ()
    position = max(head, known[-1].position if known else 0) + 1
    return (*known[1 - VIEW_VERSIONS :], Past(number, position, time.time()))


def claim(records: Records, directory: Directory, redo: Redo, owner: str, catalog_version: int) -> Claim | None:
    """Steps 3a and 3b. None if the catalog is not that version any more: the redo must be made anew."""
    name, digest = redos.write(directory, redo)
    mine = Claim(redo.batch.number, owner, name, digest, redo.catalog is not None)

    def change(state: State) -> tuple[State, Cells] | None:
        check_turn(records, state, redo.batch.number)
        if redo.catalog is not None and state.catalog != catalog_version:
            return None
        return replace(state, claim=mine), {}

    state = records.move(change)
    return mine if state.claim == mine else None


def check_turn(records: Records, state: State, number: int) -> None:
    """MaintainerBusy unless this batch is the next, and nobody has claimed it."""
    if number != state.published + 1 or state.claim is not None:
        done = f"batch {state.published}, which is published"
        if state.claim is not None:
            done += f"; batch {state.claim.number} is claimed by {state.claim.owner}"
        raise MaintainerBusy(
            f"Batch {number} cannot follow {done}: another process maintains {records.namespace}.",
            hint="Open the database again.",
        )


def finish(records: Records, directory: Directory, claimed: Claim) -> None:
    """Steps 3c and 4 of a claimed batch, by whoever claimed it or by a successor."""
    redo = redos.read(directory, claimed.file, claimed.digest)
    for table in redo.tables:
        write_cells(records.client, table, redo.batch.number)
    publish(records, redo)


def write_cells(client: Client, table: TableRedo, number: int) -> None:
    """Step 3c for one table. A row that is replaced gets all its cells anew; those of NULLs are deleted."""
    if table.fresh:
        family = Family(
            table.family["name"].encode(), max_versions=table.family["max_versions"], keep_deleted_cells=True
        )
        create(client, table.name, family, table.splits)
    keys = table.puts[_KEY].combine_chunks()
    cells = {name.encode(): table.puts[name] for name in table.puts.column_names if name != _KEY}
    if len(keys):
        client.put_many(table.name, keys, cells, time=number)
    for column, values in cells.items():
        if values.null_count and not table.fresh:
            client.delete_many(table.name, keys.filter(pc.is_null(values).combine_chunks()), [column], time=number)
    if table.deletes.num_rows:
        client.delete_many(table.name, table.deletes[_KEY].combine_chunks(), time=number)


def publish(records: Records, redo: Redo) -> None:
    """Step 4. A batch that is published already is no error: a successor was faster, with the same redo."""
    number = redo.batch.number

    def change(state: State) -> tuple[State, Cells] | None:
        if state.published >= number:
            return None
        cells = batch_cell(redo.published)
        moved = replace(state, published=number, claim=None)
        if redo.catalog is None:
            return moved, cells
        catalog = Catalog.from_json(redo.catalog)
        return replace(moved, catalog=catalog.version), cells | catalog_cell(catalog)

    records.move(change)


def create(client: Client, name: str, family: Family, splits: Sequence[bytes] = ()) -> None:
    """Make a table, unless somebody was faster."""
    try:
        client.tables.create(name, [family], splits=splits)
    except (AlreadyThere, OutcomeUnknown):
        if not client.tables.exists(name):
            raise


def _splits(keys: pa.Array) -> tuple[bytes, ...]:
    """Keys that cut a first load into regions of similar size."""
    parts = min(_MOST_REGIONS, len(keys) // _REGION_ROWS)
    if parts < 2:
        return ()
    ordered = keys.take(pc.sort_indices(keys))
    return tuple(ordered[int(at)].as_py() for at in np.linspace(0, len(keys), parts + 1)[1:-1])
