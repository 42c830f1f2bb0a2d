"""EXPLAIN of a view: its plan as text, from the operators that run and the sizes that their state has now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from viewkeeper.explain.explain import explain
from viewkeeper.explain.notes import both_costs, companions, foresight, kin, membership
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.operators.description import FanOut
from viewkeeper.operators.kinds import Input
from viewkeeper.operators.operator import slots
from viewkeeper.plan.compile.compiled_view import plan_of
from viewkeeper.plan.dataflow import cache
from viewkeeper.plan.dataflow.dataflow import Flow
from viewkeeper.plan.dataflow.sharing_hints import wishes
from viewkeeper.plan.rules.preaggregation import told
from viewkeeper.read.status import slot_sizes
from viewkeeper.resources.directory import Directory
from viewkeeper.runtime.cost_model import crossover_text, lanes_text
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.run import weights_of
from viewkeeper.state.run_file import open_run
from viewkeeper.store.contract.store import Store

_SAMPLED = 10_000
"""Hashes of a run that are read to estimate its rows per key."""


def explain_view(store: Store, catalog: Catalog, name: str) -> str:
    asked = catalog.view(name)
    view = catalog.keeper(asked)
    names = {t.id: t.name for t in (*catalog.tables, *(v.table for v in catalog.views))}
    flow = cache.everything(store, catalog)
    notes = [crossover_text(sorted(names[t] for t in flow.used))] if store.capabilities.before_images else []
    mine = flow.behind([flow.sink(view.table.id).id])
    for table, columns in flow.used.items():
        if Input(table).id in mine and (text := store.scan_text(flow.tables[table], [c.name for c in columns])):
            notes.append(text)
    if view.sync is not None:
        tables = ", ".join(names[t] for t in view.sync.of)
        notes = [f"synchronous: kept in the transaction of each write to {tables}, by no batch"]
        return explain(flow, view.table, slot_sizes(store), names, _fan_out(store, flow), notes)
    if view.table.is_lazy:
        sizes, fan_out = slot_sizes(store), _fan_out(store, flow)
        return explain(flow, view.table, sizes, names, fan_out, both_costs(catalog, view, names, sizes, fan_out))
    if (lanes := lanes_text(Directory(store.state_path))) is not None:
        notes.append(lanes)
    wished = wishes(catalog)
    ahead = foresight(flow, view, wished, names, *_skipped(store))
    summed = told(plan_of(view).query.root, names)
    notes = [*companions(flow, view.table.id, wished, names), *ahead, *summed, *notes, *kin(store, catalog, asked)]
    plan = explain(
        flow, view.table, slot_sizes(store), names, _fan_out(store, flow), notes, _members(store, flow, mine)
    )
    return "\n".join([*membership(store, catalog, asked), plan])


def _fan_out(store: Store, flow: Flow) -> FanOut:
    """Rows of one hash in each arrangement, from the first rows of its longest run."""
    batch = store.published()
    manifest = Manifest() if batch is None else Manifest.from_json(batch.record["manifest"])
    found = {}
    for operator in flow.operators.values():
        runs = manifest.runs.get(f"{operator.id}/0", ()) if operator.is_arrangement else ()
        if runs and Directory(store.state_path).exists():
            run = open_run(store.state_path, max(runs, key=lambda e: e.rows), verify=False)
            hashes = run.hashes[:_SAMPLED]
            found[operator.id] = len(hashes) / max(1, len(np.unique(hashes)))
    return found


def _members(store: Store, flow: Flow, names: Iterable[str]) -> Mapping[str, int]:
    """How many members those of the named operators have that make members' rows.

    Runs that are not merged yet have a row for each time that a member came or went; the weights tell them apart.
    """
    batch = store.published()
    if batch is None or not Directory(store.state_path).exists():
        return {}
    runs = Manifest.from_json(batch.record["manifest"]).runs
    found = {}
    for operator in map(flow.operators.__getitem__, names):
        if operator.members_slot is not None:
            held = runs.get(slots(operator)[operator.members_slot], ())
            opened = (open_run(store.state_path, entry, verify=False) for entry in held)
            found[operator.id] = sum(int(weights_of(run.weighted).sum()) for run in opened)
    return found


def _skipped(store: Store) -> tuple[Mapping[str, int], int]:
    """Rows that lookups left out, by operator, and in how many of the last batches."""
    batch = store.published()
    told = {} if batch is None else batch.record.get("skipped", {})
    return told.get("rows", {}), told.get("batches", 0)
