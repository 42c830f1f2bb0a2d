"""The rows of a view that is not stored, worked out from the state behind it: joins and aggregates keep theirs.

Any process can do it: the batch record lists the files, which are immutable. A batch that is no longer the newest may
have lost files to merging; whoever asked then asks again.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.commit.manifest import Manifest
from viewkeeper.commit.state import State
from viewkeeper.errors import CorruptState, Defect, SnapshotGone
from viewkeeper.maintain.loading import regenerate
from viewkeeper.maintain.stage import Stage
from viewkeeper.model.keys import encode_keys
from viewkeeper.model.schema import COUNT, WEIGHT, Table
from viewkeeper.operators.consolidate import consolidate
from viewkeeper.plan import flows
from viewkeeper.read.reader import outside
from viewkeeper.read.suspension import without_rows
from viewkeeper.store.base import Pinned, Store

_ATTEMPTS = 5


def regenerated(store: Store, pinned: Pinned, table: Table) -> pa.Table:
    """The view's rows at the pinned batch, in key order, as a user sees them."""
    catalog = pinned.catalog
    view = catalog.views_by_id[table.id]
    if view.suspended is not None:
        raise without_rows(table.name, view.suspended)
    if view.at is None:
        flow, cut = flows.maintained(store, catalog), pinned.batch.cut
        manifest = pinned.batch.record["manifest"]
    else:  # it has state of its own
        flow, cut = flows.alone(catalog, view), view.at.cut
        manifest = pinned.batch.record["sets"][str(table.id)]
    state = State(store.state_path, Manifest.from_json(manifest))
    stage = Stage(store, state, no_spark, durable=False, threads=1)
    try:
        return outside(table, stored_rows(stage, table, regenerate(stage, flow, table.id, cut, {table.id: table.name})))
    except (FileNotFoundError, CorruptState) as error:
        raise SnapshotGone(f"The state of {table.name} at batch {pinned.batch.number} is gone: {error}") from error
    finally:
        stage.close()


def stored_rows(stage: Stage, table: Table, reached: Sequence[pa.Table]) -> pa.Table:
    """What reached a view from nothing, as its rows would be stored, in key order."""
    names = [*(c.name for c in table.columns), WEIGHT]
    deltas = [delta.rename_columns(names) for delta in reached if delta.num_rows]
    if not deltas:
        return table.arrow.empty_table()
    net = consolidate(stage.duck, pa.concat_tables(deltas, promote_options="permissive").combine_chunks())
    counts = net[WEIGHT]
    rows = net.drop_columns([WEIGHT]).cast(pa.schema([table.arrow.field(c.name) for c in table.columns]))
    if table.is_bag:
        rows = rows.append_column(COUNT, counts)
    rows = rows.cast(table.arrow)
    return rows.take(pc.sort_indices(encode_keys(table, rows)))


def read_regenerated(store: Store, name: str) -> tuple[pa.Table, int]:
    """The view's rows at the published batch, and the log position from which on its deltas follow."""
    for attempt in range(_ATTEMPTS):
        pinned = store.pin()
        try:
            return regenerated(store, pinned, pinned.catalog.table(name)), pinned.head
        except SnapshotGone:
            if attempt == _ATTEMPTS - 1:
                raise
        finally:
            pinned.close()
    raise Defect("The last attempt returns or raises")


def no_spark() -> object:
    """What reads in place of the maintainer has no session."""
    raise Defect("Views are regenerated in the driver lane")
