"""Views that are made anew at intervals: the batching strategies of the dissertation's chapter 6.

    SN    repeated snapshots: everything is computed from the tables as they were at one cut
    SC    repeated scans: … from the tables as a scan finds them while writers go on. Each row is a version that was
          valid within the scan's span (6.2.2); nothing more is promised
    ISN   incremental snapshots: the keys that changed since the last one (tracking phase, MK tree) are read at the new
          cut, and the difference to what is known of them runs through the view's own state
    ISC   incremental scans: the same, each key as it is found

Such a view has a cut of its own (for SC and ISC a span), published with it. What is written to its table is the
difference to what is there, in one commit, so readers see whole states and subscribers see deltas.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa

from viewkeeper.capture.changed_key_ranges import MKTree
from viewkeeper.capture.snapshot import Progress
from viewkeeper.errors import Defect, SnapshotGone, Unsupported
from viewkeeper.maintain.load.backfill import Live, load, scan_first
from viewkeeper.model.catalog.catalog import View
from viewkeeper.model.catalog.strategies import interval_of, strategy_of
from viewkeeper.model.delta import weighted
from viewkeeper.model.names import WEIGHT, quoted
from viewkeeper.model.schema import Table
from viewkeeper.operators.kinds import Image, Input
from viewkeeper.operators.kinds.table_image import taken_back
from viewkeeper.plan.dataflow.dataflow import Flow, slots
from viewkeeper.resources.memory import Memory
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.runtime.executor import Stage, given_rows
from viewkeeper.runtime.inputs import Given, Rows
from viewkeeper.state.consolidate import consolidate
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.open_state import State
from viewkeeper.state.run_file import wholes
from viewkeeper.store.contract.store import Pinned, Store

FULL_EVERY = 16
"""Incremental snapshots after which a full one is taken, which also makes one run of each arrangement's many."""

_PARTS = 8


@dataclass(frozen=True)
class Remade:
    """A scheduled view's new state: the span of positions in which it was read, its delta or rows, its runs."""

    low: int
    cut: int
    rows: list[pa.Table]
    whole: bool
    """Whether `rows` are all rows, not a delta."""
    manifest: Manifest | None
    """The view's own operators, if they are kept."""
    tracked: int
    """Keys that were read again."""


def remake(
    store: Store,
    flow: Flow,
    view: View,
    cut: int,
    number: int,
    known: Manifest | None,
    spark: Callable[[], Any],
    durable: bool,
    memory: Memory,
    progress: Progress | None = None,
) -> Remade:
    """Run a view's strategy once, from its last cut to this one. `known`: what was kept of its operators."""
    strategy = strategy_of(view)
    state = State(store.state_path, known or Manifest())
    stage = Stage(store, state, spark, durable=durable, threads=1, memory=memory)
    try:
        runs = max((len(wholes(r)) for r in known.runs.values()), default=0) if known is not None else 0
        if strategy.tracks and known is not None and view.at is not None and runs < FULL_EVERY:
            # The log does not reach back, or has no images to compare with, or the store no state to pin: a full one.
            with suppress(SnapshotGone, Unsupported):
                return _some(stage, flow, view, number, live=strategy.live)
        keep = strategy.keeps_state
        return _all(stage, flow, view, cut, number, live=strategy.live, keep=keep, progress=progress)
    finally:
        stage.close()


def _all(
    stage: Stage,
    flow: Flow,
    view: View,
    cut: int,
    number: int,
    *,
    live: bool,
    keep: bool,
    progress: Progress | None = None,
) -> Remade:
    stage.state.adopt(Manifest())
    views = frozenset([view.table.id])
    given: dict[str, Given] = {}
    parts: Live = {} if live else scan_first(stage, flow, views, "driver", progress)
    low = cut = stage.store.head() if parts else cut
    if live:
        low = stage.store.head()
        for table, columns in flow.used.items():
            given[Input(table).id] = Rows(_scanned(stage.store, flow.tables[table], [c.name for c in columns]))
        cut = stage.store.head()
    names = {view.table.id: view.table.name}
    loaded = load(
        stage, flow, views, cut, number, names, "driver", progress, known=given, keep=keep, alone=True, live=parts
    )
    manifest = loaded.beside(flow, Manifest()) if keep else None
    return Remade(low, cut, list(loaded.rows[view.table.id]), True, manifest, 0)


def _some(stage: Stage, flow: Flow, view: View, number: int, *, live: bool) -> Remade:
    if view.at is None:
        raise Defect(f"{view.table.name} has no cut to go on from.")
    store, duck = stage.store, stage.duck
    pinned = store.pin()
    try:
        low = pinned.head if live else pinned.batch.cut
        # What changed from the start of the last span on: a version that was read in it may be older than its end.
        trees = {t: _tracked(store, duck, flow.tables[t], view.at.low, low) for t in flow.used}
        deltas: dict[str, pa.Table] = {}
        for table_id, tree in trees.items():  # of a table that did not change too: others wait for its delta
            columns = [c.name for c in flow.used[table_id]]
            old = _known(stage, flow.tables[table_id], tree, columns)
            new = weighted(_read(store, None if live else pinned, tree, columns), 1)
            both = pa.concat_tables([new, old.cast(new.schema)]).combine_chunks()
            deltas[Input(table_id).id] = consolidate(duck, both)
        cut = store.head() if live else low
    finally:
        pinned.close()
    names = {view.table.id: view.table.name}
    outcome = stage.run(number, "driver", flow, flow.in_batches, given_rows(deltas), names)
    manifest = stage.state.manifest.plus(outcome.entries)
    reached = list(outcome.reached.get(view.table.id, ()))
    return Remade(low, cut, reached, False, manifest, sum(tree.keys for tree in trees.values()))


def _tracked(store: Store, duck: Duck, table: Table, after: int, upto: int) -> MKTree:
    """The tracking phase: the keys that the log names."""
    tree = MKTree.over(table)
    names = [c.name for c in table.key_columns]
    changed = store.changes(table, names, after, upto)
    if changed.num_rows:
        listed = ", ".join(quoted(n) for n in names)
        tree.insert(duck.run(f"SELECT DISTINCT {listed} FROM input", input=changed.drop_columns([WEIGHT])))
    return tree


def _read(store: Store, pinned: Pinned | None, tree: MKTree, columns: list[str]) -> pa.Table:
    """The rows of the tracked keys: all at the pinned batch's cut, or without one each piece as it is found."""
    exact = pinned is not None
    reads: list[Callable[[Pinned], pa.Table]] = [
        partial(_range, tree.table, start, stop, exact) for start, stop in tree.ranges()
    ]
    reads.append(partial(_single, tree.table, tree.singles(), exact))
    return pa.concat_tables([_piece(store, pinned, read) for read in reads]).select(columns).combine_chunks()


def _piece(store: Store, pinned: Pinned | None, read: Callable[[Pinned], pa.Table]) -> pa.Table:
    if pinned is not None:
        return read(pinned)
    state = store.pin()
    try:
        return read(state)
    finally:
        state.close()


def _range(table: Table, start: bytes, stop: bytes, at_cut: bool, state: Pinned) -> pa.Table:
    found = state.scan(table, start=start, stop=stop + b"\0", at_cut=at_cut)
    return pa.Table.from_batches(list(found), table.arrow)


def _single(table: Table, keys: pa.Table, at_cut: bool, state: Pinned) -> pa.Table:
    return state.find(table, keys, at_cut=at_cut)


def _known(stage: Stage, table: Table, tree: MKTree, columns: list[str]) -> pa.Table:
    """What the view's own image knows of the tracked keys, as the delta that takes it away."""
    image = Image(table.id, tuple(k.column for k in table.key))
    return taken_back(stage.duck, stage.state.arrangement(slots(image)[0]), table, columns, tree.all_keys())


def _scanned(store: Store, table: Table, columns: list[str]) -> pa.Table:
    """A table by key ranges, each as it is when its turn comes."""
    edges: list[bytes | None] = [None, *store.split_points(table, _PARTS), None]
    pieces = []
    for start, stop in pairwise(edges):
        batches = list(store.scan(table, columns, start=start, stop=stop))
        pieces.extend(batches)
    schema = pa.schema([table.arrow.field(c) for c in columns])
    return weighted(pa.Table.from_batches(pieces, schema).combine_chunks(), 1)


def due(views: Iterable[View], now: float | None = None) -> list[View]:
    """The scheduled views whose interval is over; a clock that was put back ends it too."""
    moment = time.time() if now is None else now
    return [
        v
        for v in views
        if strategy_of(v).is_scheduled
        and v.suspended is None
        and (v.at is None or not v.at.time <= moment < v.at.time + interval_of(v))
    ]
