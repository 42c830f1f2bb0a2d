"""What a database is doing: its views, how far behind they are, and what their state weighs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from viewkeeper.commit.batch_history import MENDED, STAGES
from viewkeeper.commit.deferred_cleanup import NOTE as AFTERWARDS
from viewkeeper.commit.deferred_cleanup import in_words
from viewkeeper.errors import SnapshotGone
from viewkeeper.explain.explain import explain
from viewkeeper.explain.notes import companions, foresight, kin, membership
from viewkeeper.maintain.continuous import NOTE
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.catalog.strategies import strategy_of
from viewkeeper.model.display import cell, counted, html_table
from viewkeeper.model.row_names import matching
from viewkeeper.model.schema import Table
from viewkeeper.operators.description import FanOut
from viewkeeper.operators.kinds import Input
from viewkeeper.operators.operator import slots
from viewkeeper.plan.compile.compiled_view import Compiled, plan_of
from viewkeeper.plan.dataflow import cache
from viewkeeper.plan.dataflow.dataflow import Flow, Sizes
from viewkeeper.plan.dataflow.sharing_hints import wishes
from viewkeeper.plan.rules.preaggregation import told
from viewkeeper.read.audit.report import NOTE as AUDIT
from viewkeeper.read.audit.report import said
from viewkeeper.resources.directory import Directory
from viewkeeper.runtime.cost_model import crossover_text, lanes_text
from viewkeeper.state.compaction import choose_merges
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.run import weights_of
from viewkeeper.state.run_file import open_run
from viewkeeper.store.contract.store import Batch, Store
from viewkeeper.syntax.show_create import create_table, created, indexed

_SAMPLED = 10_000
IN_FULL: Mapping[str, Any] = {"in_full": True}
"""Marks what a listing leaves out and JSON has."""


@dataclass(frozen=True)
class TableStatus:
    """One table. `rejected`: rows that cannot be read and were put aside."""

    name: str
    rows: int
    rejected: int = 0
    sql: str = field(default="", metadata=IN_FULL)


@dataclass(frozen=True)
class ViewStatus:
    """One view. State that several views share is counted for each of them in `state_bytes`: of one that is
    `kept_with` others as a family it is the whole family's.

    A suspended view stays at an older `epoch`; its lag is None when the log no longer reaches back so far.
    """

    name: str
    rows: int | None
    epoch: int
    lag_changes: int | None
    lag_seconds: float | None
    catch_up_seconds: float | None
    state_rows: int
    state_bytes: int
    strategy: str
    suspended: str | None
    sql: str = field(default="", metadata=IN_FULL)
    index_of: str | None = field(default=None, metadata=IN_FULL)
    """Of an index: what it is of."""
    kept_with: int = 0
    """How many other views are kept together with it, as one family: its state is that of all of them."""
    suspended_since: float | None = field(default=None, metadata=IN_FULL)


@dataclass(frozen=True)
class StageStatus:
    """A stage of maintenance: what waits before it, and how its last batches went.

    Batches go one at a time, so the log, before `capture`, is where changed rows wait; before `merge` runs of
    arrangements do. `rows_per_second` is what the stage does while it is at work, `busy_share` how much of the time.
    """

    name: str
    queue: int
    seconds: float | None = None
    rows_per_second: float | None = None
    busy_share: float | None = None


@dataclass(frozen=True)
class Status:
    """A database's state at one moment; `state_bytes` counts shared state once, `memory` is the budget of the process
    that made the last batch.

    `maintainer` names who maintains it, `error` is what a maintainer or the last audit failed on, `audit` says what
    that audit found (None: there was none), `afterwards` what came after a published batch, failed, and is tried again
    (None: nothing did), `rebuilds` how often state was made anew though nobody had asked for it, and `mended` why, the
    last time; `recent` says how its last batches
    went: percentiles of their time, and rates; `stages` where the time goes and what waits. `catch_up_seconds` is a
    prediction from them, None when changes arrive as fast as they are worked off.
    """

    url: str
    epoch: int
    position: int
    lag_changes: int
    lag_seconds: float
    catch_up_seconds: float | None
    state_bytes: int
    memory: int | None
    maintainer: str | None
    capture: str | None
    """How changes are found just now, where there are several ways, and why."""
    error: str | None
    audit: str | None
    afterwards: str | None
    rebuilds: int
    mended: str | None
    recent: Mapping[str, Any]
    stages: tuple[StageStatus, ...]
    tables: tuple[TableStatus, ...]
    views: tuple[ViewStatus, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def _repr_html_(self) -> str:
        shown = [("lag", f"{counted(self.lag_changes, 'change')}, {self.lag_seconds:.1f} s")]
        shown += [("state", f"{self.state_bytes / 1e6:.1f} MB"), ("maintainer", self.maintainer or "nobody")]
        shown += [("error", self.error)] if self.error else []
        views = [[cell(getattr(v, name)) for name in _COLUMNS] for v in self.views]
        tables = [[t.name, cell(t.rows)] for t in self.tables]
        return (
            html_table(["", ""], [[a, b] for a, b in shown], f"{self.url}, batch {self.epoch}")
            + html_table(_COLUMNS, views, counted(len(self.views), "view"))
            + html_table(["name", "rows"], tables, counted(len(self.tables), "table"))
        )


_COLUMNS = ("name", "rows", "epoch", "lag_changes", "lag_seconds", "state_bytes", "strategy", "suspended")


def database_status(store: Store, catalog: Catalog) -> Status:
    flow, sizes = cache.everything(store, catalog), _sizes(store)
    batch = store.published()
    epoch, cut = (batch.number, batch.cut) if batch is not None else (0, 0)
    recent = dict(batch.record.get("recent", {})) if batch is not None else {}
    lags: dict[tuple[int, tuple[int, ...]], tuple[int | None, float | None]] = {}

    def lag_of(cut: int, tables: tuple[int, ...]) -> tuple[int | None, float | None]:
        """Views of the same tables are behind alike; the log is read once for them."""
        if (cut, tables) not in lags:
            lags[cut, tables] = _lag(store, cut, tables)
        return lags[cut, tables]

    lag, seconds = lag_of(cut, tuple(sorted(flow.used)))
    stages = _stages(recent.pop("stages", {}), lag or 0, batch)
    note, audited = store.note(NOTE), store.note(AUDIT)
    error = None if note is None else str(note["error"])
    if error is None and audited is not None and "error" in audited:
        error = f"audit: {audited['error']}"
    mended = store.note(MENDED)
    return Status(
        store.url,
        epoch,
        store.head(),
        lag or 0,
        seconds or 0.0,
        _catch_up(recent, lag),
        sum(b for _, b in sizes.values()),
        batch.record.get("memory") if batch is not None else None,
        store.lease_holder(),
        store.capture_text(),
        error,
        None if audited is None else said(audited)[1],
        in_words(store.note(AFTERWARDS)),
        mended.get("count", 1) if mended else 0,
        "; ".join(mended["damage"]) if mended else None,
        recent,
        stages,
        tuple(
            TableStatus(t.name, store.count(t), len(store.rejects(t)), create_table(t)) for t in catalog.named_tables
        ),
        tuple(
            _view(store, catalog, flow.views[view.table.home], sizes, view, epoch, cut, recent, lag_of)
            for view in catalog.shown_views
        ),
    )


def called(now: Status, pattern: str | None) -> Status:
    """A status of the views with these names only."""
    if pattern is None:
        return now
    wanted = frozenset(matching((v.name for v in now.views), pattern))
    return replace(now, views=tuple(v for v in now.views if v.name in wanted))


def _table(store: Store, table: Table) -> TableStatus:
    return TableStatus(table.name, store.count(table), len(store.rejects(table)), create_table(table))


def _view(
    store: Store,
    catalog: Catalog,
    made: Compiled,
    sizes: Sizes,
    view: View,
    epoch: int,
    cut: int,
    recent: Mapping[str, Any],
    lag_of: Callable[[int, tuple[int, ...]], tuple[int | None, float | None]],
) -> ViewStatus:
    suspended = view.suspended
    state = [] if suspended is not None else [sizes.get(slot, (0, 0)) for slot in made.slots]
    if view.at is not None:
        epoch, cut = view.at.epoch, view.at.cut
    elif view.sync is not None:  # its state lies among the store's rows, which nobody weighs
        cut, state = store.head(), [(store.count(Table(n, "", (), ())), 0) for n in view.sync.state]
    lag, seconds = lag_of(cut if suspended is None else suspended.cut, tuple(sorted(made.tables)))
    return ViewStatus(
        view.table.name,
        store.count(view.table) if view.table.is_stored else None,
        epoch if suspended is None else suspended.epoch,
        lag,
        seconds,
        _catch_up(recent, lag) if suspended is None else None,
        sum(rows for rows, _ in state),
        sum(size for _, size in state),
        strategy_of(view).name if view.sync is None else "sync",
        None if suspended is None else suspended.reason,
        created(catalog, view),
        None if view.index is None else indexed(catalog, view).name,
        len(catalog.members[view.table.family]) - 1 if view.is_member else 0,
        None if suspended is None else suspended.time,
    )


def _stages(recent: Mapping[str, Any], waiting: int, batch: Batch | None) -> tuple[StageStatus, ...]:
    runs = {} if batch is None else Manifest.from_json(batch.record["manifest"]).runs
    unmerged = sum(choose_merges([entry.rows for entry in entries]) for entries in runs.values())
    stages = (StageStatus(name, waiting if name == STAGES[0] else 0, **recent.get(name, {})) for name in STAGES)
    return (*stages, StageStatus("merge", unmerged))


def _lag(store: Store, cut: int, tables: Sequence[int]) -> tuple[int | None, float | None]:
    try:
        waiting = store.pending(cut, tables)
    except SnapshotGone:
        return None, None
    return waiting.rows, max(0.0, time.time() - waiting.oldest) if waiting.oldest is not None else 0.0


def _catch_up(recent: Mapping[str, Any], lag: int | None) -> float | None:
    """Seconds until nothing waits, if batches go on as they did and changes come as they came."""
    if not lag:
        return None if lag is None else 0.0
    spare = recent.get("capacity_per_second", 0.0) - recent.get("changes_per_second", 0.0)
    return round(lag / spare, 3) if spare > 0 else None


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
        return explain(flow, view.table, _sizes(store), names, _fan_out(store, flow), notes)
    if view.table.is_lazy:
        from viewkeeper.explain.notes import both_costs  # with DuckDB, which a status does not need

        sizes, fan_out = _sizes(store), _fan_out(store, flow)
        return explain(flow, view.table, sizes, names, fan_out, both_costs(catalog, view, names, sizes, fan_out))
    if (lanes := lanes_text(Directory(store.state_path))) is not None:
        notes.append(lanes)
    wished = wishes(catalog)
    ahead = foresight(flow, view, wished, names, *_skipped(store))
    summed = told(plan_of(view).query.root, names)
    notes = [*companions(flow, view.table.id, wished, names), *ahead, *summed, *notes, *kin(store, catalog, asked)]
    plan = explain(flow, view.table, _sizes(store), names, _fan_out(store, flow), notes, _members(store, flow, mine))
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


def _sizes(store: Store) -> Sizes:
    batch = store.published()
    if batch is None:
        return {}
    manifest = Manifest.from_json(batch.record["manifest"])
    return {s: (sum(e.rows for e in runs), sum(e.length for e in runs)) for s, runs in manifest.runs.items()}
