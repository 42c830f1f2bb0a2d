"""A lazy view over the rows that were asked for: steps 2 and 3 of `answers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import CorruptState, Defect, SnapshotGone
from viewkeeper.maintain.load.backfill import Load, plan_load, regenerate
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.delta import weighted
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.schema import COUNT, WEIGHT, Table
from viewkeeper.operators.kinds import Image, Input
from viewkeeper.operators.operator import Operator
from viewkeeper.plan.compile.compiled_view import compiled, plan_of, slots
from viewkeeper.plan.dataflow import cache
from viewkeeper.plan.dataflow.dataflow import Flow
from viewkeeper.plan.rules.key_propagation import KEY, Narrowing, Step, narrowing
from viewkeeper.read.rows import outside
from viewkeeper.read.suspension import without_rows
from viewkeeper.runtime.executor import Stage
from viewkeeper.runtime.inputs import Given, ImageRows, Rows
from viewkeeper.state.consolidate import consolidate
from viewkeeper.state.key_hash import hashes
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.open_state import State
from viewkeeper.store.contract.store import Pinned, Store

Values = Sequence[pa.Array | None]
"""What is known of the first columns of the key: the values that each may have, None if that says nothing."""


@dataclass(frozen=True)
class Asked:
    """How a lazy view is worked out."""

    view: Table
    flow: Flow
    load: Load
    narrowing: Narrowing
    kept: Mapping[int, Operator]
    """For each table an arrangement that is kept of it."""
    slots: tuple[str, ...]
    """Of all that are kept."""

    def narrows(self, values: Values) -> bool:
        """Whether these say which rows are needed."""
        needs = self.narrowing.needs
        if not needs or len(values) < needs:
            return False
        return all(s.source != KEY or values[int(s.names[0])] is not None for s in self.narrowing.steps if s.columns)


def asked_of(catalog: Catalog, view: View) -> Asked:
    number = view.table.id
    tables = {i: t.inside for i, t in catalog.tables_by_id.items()}
    plans = cache.Plans(catalog)
    made = compiled(number, tables, plans)
    images = [o for o in made.operators.values() if o.arranges is not None]
    flow = cache.asked(catalog, view)
    found = narrowing(number, plan_of(view).lazy or (), made.tables, plans)
    kept = {image.arranges: image for image in reversed(images) if image.arranges is not None}
    return Asked(view.table, flow, _load(flow, number), found, kept, tuple(s for i in images for s in slots(i)))


def _load(flow: Flow, view: int) -> Load:
    """All operators behind the view's rows that take part in a load in the driver, as if they had never run."""
    needed: set[str] = set()
    waiting = [flow.sink(view).id]
    while waiting:
        name = waiting.pop()
        if name not in needed and flow.operators[name].takes_part(False):
            needed.add(name)
            waiting.extend(flow.sources(flow.operators[name]))
    return plan_load(flow, {n for n in needed if flow.operators[n].stateful or flow.operators[n].is_sink}, False)


def worked_out(stage: Stage, asked: Asked, values: Values) -> list[pa.Table]:
    """What reaches the view, for keys whose first columns have these values; without any, all of it."""
    given: dict[str, Given] = {}
    rows = _looked_up(stage, asked, values) if values else {}
    for table in asked.kept:
        found = rows.get(table)
        given[Input(table).id] = _whole(stage, asked, table) if found is None else Rows(found)
    names = {asked.view.id: asked.view.name}
    outcome = stage.run(0, "driver", asked.flow, asked.load.active, given, names, asked.load.new, frozenset())
    return list(outcome.reached.get(asked.view.id, ()))


def _looked_up(stage: Stage, asked: Asked, values: Values) -> dict[int, pa.Table]:
    """The rows of each table that are needed, but for tables of which all are."""
    found: dict[int, pa.Table] = {}
    parts: dict[int, list[pa.Table]] = {}
    for place, step in enumerate(asked.narrowing.steps):
        if step.columns:
            found[place] = _step(stage, asked, step, found.get(step.source), values)
            parts.setdefault(step.table, []).append(found[place])
    narrowed = {t: rows for t, rows in parts.items() if t not in asked.narrowing.whole}
    return {t: rows[0] if len(rows) == 1 else _once(stage, pa.concat_tables(rows)) for t, rows in narrowed.items()}


def _step(stage: Stage, asked: Asked, step: Step, source: pa.Table | None, values: Values) -> pa.Table:
    """The rows of a step: those with the key's values, or those that meet the rows of its source."""
    table = asked.flow.tables[step.table]
    columns = [c.name for c in asked.flow.used[step.table]]
    arrangement = stage.state.arrangement(slots(Image(step.table, step.columns))[0])
    schema = pa.schema([*(table.arrow.field(c) for c in columns), pa.field(WEIGHT, pa.int64())])
    if not arrangement.runs:
        return schema.empty_table()
    types = pa.schema([table.arrow.field(c) for c in step.columns])
    if source is None:
        wanted = pa.Table.from_arrays([values[int(step.names[0])]], names=list(step.columns)).cast(types)
    else:
        names = [str(n) for n in step.names]
        wanted = source.select(names).rename_columns(list(step.columns)).drop_null().cast(types)
    probes = np.unique(hashes(stage.crew.alone(1), wanted, step.columns))
    _, rows = arrangement.probe(probes, columns)
    rows = consolidate(stage.crew.alone(1), rows.cast(schema).combine_chunks())
    for column, place in step.also:
        if place < len(values) and (one := values[place]) is not None:
            rows = rows.filter(pc.is_in(rows[column], value_set=one.cast(table.arrow.field(column).type)))
    return rows


def _once(stage: Stage, rows: pa.Table) -> pa.Table:
    """A table's rows, found in several ways, each once."""
    found = consolidate(stage.crew.alone(1), rows.combine_chunks())
    return weighted(found.drop_columns([WEIGHT]), 1)


def _whole(stage: Stage, asked: Asked, table: int) -> Given:
    slot = slots(asked.kept[table])[0]
    columns = tuple(c.name for c in asked.flow.used[table])
    return ImageRows(str(stage.state.directory), stage.state.manifest.runs.get(slot, ()), columns)


# The rows of a view that is not stored, worked out from the state behind it: joins and aggregates keep theirs.
#
# Any process can do it: the batch record lists the files, which are immutable. A batch that is no longer the newest may
# have lost files to merging; whoever asked then asks again.


_ATTEMPTS = 5


def regenerated(store: Store, pinned: Pinned, table: Table) -> pa.Table:
    """The view's rows at the pinned batch, in key order, as a user sees them."""
    catalog = pinned.catalog
    view = catalog.views_by_id[table.id]
    if view.suspended is not None:
        raise without_rows(table.name, view.suspended)
    if view.at is None:
        flow, cut = cache.maintained(store, catalog), pinned.batch.cut
        manifest = pinned.batch.record["manifest"]
    else:  # it has state of its own
        flow, cut = cache.alone(catalog, view), view.at.cut
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
