"""Evaluation of a lazy view over the requested rows (steps 2 and 3 of `cache`), and of virtual views from state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import CorruptState, Defect, SnapshotGone
from viewkeeper.maintain.load.backfill import LoadPlan, plan_load, regenerate_rows
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.delta import with_weight
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.schema import COUNT, WEIGHT, Table
from viewkeeper.operators.kinds import Input, TableImage
from viewkeeper.operators.operator import Operator
from viewkeeper.plan.compile.compiled_view import compile_view, plan_of, slot_names
from viewkeeper.plan.dataflow import cache
from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.plan.rules.key_propagation import KEY_STEP, KeyPropagation, PropagationStep, propagate_key
from viewkeeper.read.rows import to_visible_rows
from viewkeeper.read.suspension import virtual_view_error
from viewkeeper.runtime.executor import BatchExecutor
from viewkeeper.runtime.inputs import ImageRows, InputSource, MemoryRows
from viewkeeper.state.consolidate import consolidate
from viewkeeper.state.key_hash import hash_keys
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.open_state import OpenState
from viewkeeper.store.contract.store import Store, StoreSnapshot

KeyValues = Sequence[pa.Array | None]
"""Constraints on the first columns of the key: the values that each may have; None: any."""


@dataclass(frozen=True)
class LazyPlan:
    """How the rows of a lazy view are computed."""

    view: Table
    dataflow: Dataflow
    load_plan: LoadPlan
    key_propagation: KeyPropagation
    arrangements: Mapping[int, Operator]
    """For each table an arrangement that batches keep of it."""
    slots: tuple[str, ...]
    """The state slots of all these arrangements."""

    def is_narrowed_by(self, values: KeyValues) -> bool:
        """Whether these key values determine which base rows are needed."""
        needs = self.key_propagation.min_key_columns
        if not needs or len(values) < needs:
            return False
        return all(
            s.source != KEY_STEP or values[int(s.source_columns[0])] is not None
            for s in self.key_propagation.steps
            if s.columns
        )


def plan_lazy_view(catalog: Catalog, view: View) -> LazyPlan:
    number = view.table.id
    tables = {i: t.internal for i, t in catalog.tables_by_id.items()}
    plans = cache.CatalogPlans(catalog)
    compiled = compile_view(number, tables, plans)
    images = [o for o in compiled.operators.values() if o.arranged_table is not None]
    dataflow = cache.lazy_dataflow(catalog, view)
    propagation = propagate_key(number, plan_of(view).lazy_key or (), compiled.tables, plans)
    arrangements = {image.arranged_table: image for image in reversed(images) if image.arranged_table is not None}
    return LazyPlan(
        view.table,
        dataflow,
        _plan_full_load(dataflow, number),
        propagation,
        arrangements,
        tuple(s for i in images for s in slot_names(i)),
    )


def _plan_full_load(dataflow: Dataflow, view: int) -> LoadPlan:
    """The load of all operators behind the view's rows that take part in a load in the driver, as if none had state."""
    needed: set[str] = set()
    pending = [dataflow.sink(view).id]
    while pending:
        name = pending.pop()
        if name not in needed and dataflow.operators[name].takes_part(False):
            needed.add(name)
            pending.extend(dataflow.dependencies(dataflow.operators[name]))
    return plan_load(
        dataflow, {n for n in needed if dataflow.operators[n].stateful or dataflow.operators[n].is_sink}, False
    )


def compute_lazy_rows(executor: BatchExecutor, plan: LazyPlan, values: KeyValues) -> list[pa.Table]:
    """The deltas at the view's sink for keys whose first columns have these values; without values, all of them."""
    inputs: dict[str, InputSource] = {}
    rows = _look_up_rows(executor, plan, values) if values else {}
    for table in plan.arrangements:
        found = rows.get(table)
        inputs[Input(table).id] = _whole_table(executor, plan, table) if found is None else MemoryRows(found)
    names = {plan.view.id: plan.view.name}
    result = executor.run(
        0, "driver", plan.dataflow, plan.load_plan.active, inputs, names, plan.load_plan.new_operators, frozenset()
    )
    return list(result.deltas.get(plan.view.id, ()))


def _look_up_rows(executor: BatchExecutor, plan: LazyPlan, values: KeyValues) -> dict[int, pa.Table]:
    """The needed rows of each table, except tables of which all rows are needed."""
    found: dict[int, pa.Table] = {}
    parts: dict[int, list[pa.Table]] = {}
    for index, step in enumerate(plan.key_propagation.steps):
        if step.columns:
            found[index] = _run_step(executor, plan, step, found.get(step.source), values)
            parts.setdefault(step.table, []).append(found[index])
    narrowed = {t: rows for t, rows in parts.items() if t not in plan.key_propagation.whole_tables}
    return {
        t: rows[0] if len(rows) == 1 else _distinct_rows(executor, pa.concat_tables(rows))
        for t, rows in narrowed.items()
    }


def _run_step(
    executor: BatchExecutor, plan: LazyPlan, step: PropagationStep, source: pa.Table | None, values: KeyValues
) -> pa.Table:
    """The rows of a step: those with the key's values, or those that join with the rows of its source step."""
    table = plan.dataflow.tables[step.table]
    columns = [c.name for c in plan.dataflow.used_columns[step.table]]
    arrangement = executor.state.arrangement(slot_names(TableImage(step.table, step.columns))[0])
    schema = pa.schema([*(table.arrow.field(c) for c in columns), pa.field(WEIGHT, pa.int64())])
    if not arrangement.runs:
        return schema.empty_table()
    types = pa.schema([table.arrow.field(c) for c in step.columns])
    if source is None:
        keys = pa.Table.from_arrays([values[int(step.source_columns[0])]], names=list(step.columns)).cast(types)
    else:
        names = [str(n) for n in step.source_columns]
        keys = source.select(names).rename_columns(list(step.columns)).drop_null().cast(types)
    probes = np.unique(hash_keys(executor.pool.use_primary(1), keys, step.columns))
    _, rows = arrangement.probe(probes, columns)
    rows = consolidate(executor.pool.use_primary(1), rows.cast(schema).combine_chunks())
    for column, key_index in step.extra_key_columns:
        if key_index < len(values) and (allowed := values[key_index]) is not None:
            rows = rows.filter(pc.is_in(rows[column], value_set=allowed.cast(table.arrow.field(column).type)))
    return rows


def _distinct_rows(executor: BatchExecutor, rows: pa.Table) -> pa.Table:
    """A table's rows, found by several steps, each once."""
    found = consolidate(executor.pool.use_primary(1), rows.combine_chunks())
    return with_weight(found.drop_columns([WEIGHT]), 1)


def _whole_table(executor: BatchExecutor, plan: LazyPlan, table: int) -> InputSource:
    slot = slot_names(plan.arrangements[table])[0]
    columns = tuple(c.name for c in plan.dataflow.used_columns[table])
    return ImageRows(str(executor.state.directory), executor.state.manifest.runs.get(slot, ()), columns)


# Virtual views: a view that is not stored is regenerated from the state of its joins and aggregates.
#
# Any process can do it: the batch record lists the files, which are immutable. A batch that is no longer the newest may
# have lost files to compaction; the caller then repeats the read.


_ATTEMPTS = 5


def regenerate_view(store: Store, snapshot: StoreSnapshot, table: Table) -> pa.Table:
    """The view's rows at the snapshot's batch, in key order, as a user sees them."""
    catalog = snapshot.catalog
    view = catalog.views_by_id[table.id]
    if view.suspended is not None:
        raise virtual_view_error(table.name, view.suspended)
    if view.own_cut is None:
        dataflow, cut = cache.maintained_dataflow(store, catalog), snapshot.batch.cut
        manifest = snapshot.batch.record["manifest"]
    else:  # the view has state of its own
        dataflow, cut = cache.separate_dataflow(catalog, view), view.own_cut.cut
        manifest = snapshot.batch.record["sets"][str(table.id)]
    state = OpenState(store.state_path, Manifest.from_json(manifest))
    executor = BatchExecutor(store, state, refuse_spark, durable=False, threads=1)
    try:
        return to_visible_rows(
            table,
            build_stored_rows(
                executor, table, regenerate_rows(executor, dataflow, table.id, cut, {table.id: table.name})
            ),
        )
    except (FileNotFoundError, CorruptState) as error:
        raise SnapshotGone(f"The state of {table.name} at batch {snapshot.batch.number} is gone: {error}") from error
    finally:
        executor.close()


def build_stored_rows(executor: BatchExecutor, table: Table, sink_deltas: Sequence[pa.Table]) -> pa.Table:
    """The stored rows of a view, in key order, from the deltas of a computation without previous state."""
    names = [*(c.name for c in table.columns), WEIGHT]
    deltas = [delta.rename_columns(names) for delta in sink_deltas if delta.num_rows]
    if not deltas:
        return table.arrow.empty_table()
    consolidated = consolidate(
        executor.statements, pa.concat_tables(deltas, promote_options="permissive").combine_chunks()
    )
    counts = consolidated[WEIGHT]
    rows = consolidated.drop_columns([WEIGHT]).cast(pa.schema([table.arrow.field(c.name) for c in table.columns]))
    if table.is_bag:
        rows = rows.append_column(COUNT, counts)
    rows = rows.cast(table.arrow)
    return rows.take(pc.sort_indices(encode_keys(table, rows)))


def read_virtual_view(store: Store, name: str) -> tuple[pa.Table, int]:
    """The view's rows at the published batch, and the log position after which its deltas follow."""
    for attempt in range(_ATTEMPTS):
        snapshot = store.open_snapshot()
        try:
            return regenerate_view(store, snapshot, snapshot.catalog.table(name)), snapshot.head
        except SnapshotGone:
            if attempt == _ATTEMPTS - 1:
                raise
        finally:
            snapshot.close()
    raise Defect("The last attempt returns or raises")


def refuse_spark() -> object:
    """Raise: a reader outside the maintainer has no Spark session."""
    raise Defect("Views are regenerated in the driver lane")
