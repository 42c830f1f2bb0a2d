"""EXPLAIN of a view: its plan as text, from its operators, the current sizes of their state, and notes on costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from viewkeeper.explain.explain import render_explain
from viewkeeper.explain.notes import (
    describe_semijoins,
    describe_shared_paths,
    lazy_cost_notes,
    membership_notes,
    similar_view_notes,
)
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.operators.description import FanOut
from viewkeeper.operators.kinds import Input
from viewkeeper.operators.operator import slot_names
from viewkeeper.plan.compile.compiled_view import plan_of
from viewkeeper.plan.dataflow import cache
from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.plan.dataflow.sharing_hints import sharing_hints
from viewkeeper.plan.rules.preaggregation import describe_preaggregation
from viewkeeper.read.status import _slot_sizes
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.runtime.cost_model import lanes_text, rebuild_note
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.run import weights_of
from viewkeeper.state.run_file import open_run
from viewkeeper.store.contract.store import Store

_SAMPLE_ROWS = 10_000
"""Number of hashes of a run that are read to estimate its rows per key."""


def explain_view(store: Store, catalog: Catalog, name: str) -> str:
    requested = catalog.view(name)
    view = catalog.maintained_view(requested)
    names = {t.id: t.name for t in (*catalog.tables, *(v.table for v in catalog.views))}
    dataflow = cache.full_dataflow(store, catalog)
    notes = [rebuild_note(sorted(names[t] for t in dataflow.used_columns))] if store.capabilities.before_images else []
    upstream = dataflow.upstream([dataflow.sink(view.table.id).id])
    for table, columns in dataflow.used_columns.items():
        if Input(table).id in upstream and (
            text := store.describe_scan(dataflow.tables[table], [c.name for c in columns])
        ):
            notes.append(text)
    if view.synchronous_state is not None:
        tables = ", ".join(names[t] for t in view.synchronous_state.table_ids)
        notes = [f"synchronous: kept in the transaction of each write to {tables}, by no batch"]
        return render_explain(dataflow, view.table, _slot_sizes(store), names, _fan_out(store, dataflow), notes)
    if view.table.is_lazy:
        sizes, fan_out = _slot_sizes(store), _fan_out(store, dataflow)
        return render_explain(
            dataflow, view.table, sizes, names, fan_out, lazy_cost_notes(catalog, view, names, sizes, fan_out)
        )
    if (lanes := lanes_text(StateDirectory(store.state_path))) is not None:
        notes.append(lanes)
    hints = sharing_hints(catalog)
    semijoins = describe_semijoins(dataflow, view, hints, names, *_skipped_rows(store))
    preaggregations = describe_preaggregation(plan_of(view).query.root, names)
    notes = [
        *describe_shared_paths(dataflow, view.table.id, hints, names),
        *semijoins,
        *preaggregations,
        *notes,
        *similar_view_notes(store, catalog, requested),
    ]
    plan = render_explain(
        dataflow,
        view.table,
        _slot_sizes(store),
        names,
        _fan_out(store, dataflow),
        notes,
        _member_counts(store, dataflow, upstream),
    )
    return "\n".join([*membership_notes(store, catalog, requested), plan])


def _fan_out(store: Store, dataflow: Dataflow) -> FanOut:
    """Return the average rows per hash by arrangement, estimated from the first rows of its longest run."""
    batch = store.published_batch()
    manifest = Manifest() if batch is None else Manifest.from_json(batch.record["manifest"])
    fan_out = {}
    for operator in dataflow.operators.values():
        runs = manifest.runs.get(f"{operator.id}/0", ()) if operator.is_arrangement else ()
        if runs and StateDirectory(store.state_path).exists():
            run = open_run(store.state_path, max(runs, key=lambda entry: entry.rows), verify=False)
            hashes = run.hashes[:_SAMPLE_ROWS]
            fan_out[operator.id] = len(hashes) / max(1, len(np.unique(hashes)))
    return fan_out


def _member_counts(store: Store, dataflow: Dataflow, names: Iterable[str]) -> Mapping[str, int]:
    """Return the number of family members, by operator that produces members' rows.

    Runs that are not merged yet have a row for each time that a member was added or removed; the sum of the weights is
    the number of members.
    """
    batch = store.published_batch()
    if batch is None or not StateDirectory(store.state_path).exists():
        return {}
    runs = Manifest.from_json(batch.record["manifest"]).runs
    counts = {}
    for operator in map(dataflow.operators.__getitem__, names):
        if operator.members_slot is not None:
            entries = runs.get(slot_names(operator)[operator.members_slot], ())
            member_runs = (open_run(store.state_path, entry, verify=False) for entry in entries)
            counts[operator.id] = sum(int(weights_of(run.weighted_rows).sum()) for run in member_runs)
    return counts


def _skipped_rows(store: Store) -> tuple[Mapping[str, int], int]:
    """Return the rows that lookups skipped, by operator, and the number of batches in which they were counted."""
    batch = store.published_batch()
    skipped = {} if batch is None else batch.record.get("skipped", {})
    return skipped.get("rows", {}), skipped.get("batches", 0)
