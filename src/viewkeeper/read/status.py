"""The status of a database: its views, how far behind they are, and the size of their state."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from viewkeeper.commit.batch_history import REPAIR_NOTE, STAGES
from viewkeeper.commit.deferred_cleanup import CLEANUP_NOTE as AFTERWARDS
from viewkeeper.commit.deferred_cleanup import describe_cleanup_note
from viewkeeper.errors import SnapshotGone
from viewkeeper.maintain.continuous import MAINTENANCE_NOTE
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.catalog.strategies import strategy_of
from viewkeeper.model.display import cell_text, count_text, html_table
from viewkeeper.model.row_names import match_names
from viewkeeper.model.schema import Table
from viewkeeper.plan.compile.compiled_view import CompiledView
from viewkeeper.plan.dataflow import cache
from viewkeeper.plan.dataflow.dataflow import SlotSizes
from viewkeeper.read.audit.report import AUDIT_NOTE as AUDIT
from viewkeeper.read.audit.report import describe_audit_note
from viewkeeper.state.compaction import choose_merges
from viewkeeper.state.manifest import Manifest
from viewkeeper.store.contract.store import Batch, Store
from viewkeeper.syntax.show_create import create_table_sql, indexed_table, show_create

ONLY_IN_JSON: Mapping[str, Any] = {"in_full": True}
"""Marks a field that is only in the JSON output, not in listings."""


@dataclass(frozen=True)
class TableStatus:
    """One table. `rejected`: rows that cannot be decoded and were set aside."""

    name: str
    rows: int
    rejected: int = 0
    sql: str = field(default="", metadata=ONLY_IN_JSON)


@dataclass(frozen=True)
class ViewStatus:
    """One view. `state_bytes` counts state that several views share for each of them; for a member of a family
    (`kept_with` others) it is the state of the whole family.

    A suspended view stays at an older `epoch`; its lag is None when the log no longer reaches back to its cut.
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
    sql: str = field(default="", metadata=ONLY_IN_JSON)
    index_of: str | None = field(default=None, metadata=ONLY_IN_JSON)
    """For an index: the name of its table or view."""
    kept_with: int = 0
    """Number of other members of its view family, which share its state."""
    suspended_since: float | None = field(default=None, metadata=ONLY_IN_JSON)


@dataclass(frozen=True)
class StageStatus:
    """A stage of maintenance: its queue, and the figures of its last batches.

    Batches run one at a time, so changed rows are queued only in the log, before `capture`; runs of arrangements are
    queued before `merge`. `rows_per_second` is the stage's rate while it works, `busy_share` the share of time in which
    it works.
    """

    name: str
    queue: int
    seconds: float | None = None
    rows_per_second: float | None = None
    busy_share: float | None = None


@dataclass(frozen=True)
class Status:
    """A database's state at one moment. `state_bytes` counts shared state once; `memory` is the budget of the process
    that ran the last batch.

    `maintainer` names the process that maintains; `error` is the failure of a maintainer or of the last audit; `audit`
    is that audit's result (None: there was none); `afterwards` is work after a published batch that failed and will be
    retried (None: there is none); `rebuilds` counts automatic repairs of the state, and `mended` is the reason of the
    last one; `recent` has percentiles of the last batches' times, and rates; `stages` shows where the time goes and
    what is queued. `catch_up_seconds` is predicted from `recent`; it is None when changes arrive as fast as they are
    processed.
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
    """How changes are captured at the moment, where there are several ways, and why."""
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
        facts = [("lag", f"{count_text(self.lag_changes, 'change')}, {self.lag_seconds:.1f} s")]
        facts += [("state", f"{self.state_bytes / 1e6:.1f} MB"), ("maintainer", self.maintainer or "nobody")]
        facts += [("error", self.error)] if self.error else []
        views = [[cell_text(getattr(v, name)) for name in _COLUMNS] for v in self.views]
        tables = [[t.name, cell_text(t.rows)] for t in self.tables]
        return (
            html_table(["", ""], [[a, b] for a, b in facts], f"{self.url}, batch {self.epoch}")
            + html_table(_COLUMNS, views, count_text(len(self.views), "view"))
            + html_table(["name", "rows"], tables, count_text(len(self.tables), "table"))
        )


_COLUMNS = ("name", "rows", "epoch", "lag_changes", "lag_seconds", "state_bytes", "strategy", "suspended")


def database_status(store: Store, catalog: Catalog) -> Status:
    dataflow, sizes = cache.full_dataflow(store, catalog), _slot_sizes(store)
    batch = store.published_batch()
    epoch, cut = (batch.number, batch.cut) if batch is not None else (0, 0)
    recent = dict(batch.record.get("recent", {})) if batch is not None else {}
    lags: dict[tuple[int, tuple[int, ...]], tuple[int | None, float | None]] = {}

    def lag_of(cut: int, tables: tuple[int, ...]) -> tuple[int | None, float | None]:
        """The lag of views of the same tables, which is the same: the log is read once for them."""
        if (cut, tables) not in lags:
            lags[cut, tables] = _lag(store, cut, tables)
        return lags[cut, tables]

    lag, seconds = lag_of(cut, tuple(sorted(dataflow.used_columns)))
    stages = _stage_statuses(recent.pop("stages", {}), lag or 0, batch)
    note, audit = store.note(MAINTENANCE_NOTE), store.note(AUDIT)
    error = None if note is None else str(note["error"])
    if error is None and audit is not None and "error" in audit:
        error = f"audit: {audit['error']}"
    repair = store.note(REPAIR_NOTE)
    return Status(
        store.url,
        epoch,
        store.head(),
        lag or 0,
        seconds or 0.0,
        _catch_up_seconds(recent, lag),
        sum(b for _, b in sizes.values()),
        batch.record.get("memory") if batch is not None else None,
        store.lease_holder(),
        store.describe_capture(),
        error,
        None if audit is None else describe_audit_note(audit)[1],
        describe_cleanup_note(store.note(AFTERWARDS)),
        repair.get("count", 1) if repair else 0,
        "; ".join(repair["damage"]) if repair else None,
        recent,
        stages,
        tuple(
            TableStatus(t.name, store.count(t), len(store.rejected_rows(t)), create_table_sql(t))
            for t in catalog.user_tables
        ),
        tuple(
            _view_status(store, catalog, dataflow.views[view.table.storage_id], sizes, view, epoch, cut, recent, lag_of)
            for view in catalog.user_views_and_indexes
        ),
    )


def filter_views(status: Status, pattern: str | None) -> Status:
    """The status with only the views whose names match the pattern."""
    if pattern is None:
        return status
    names = frozenset(match_names((v.name for v in status.views), pattern))
    return replace(status, views=tuple(v for v in status.views if v.name in names))


def _table_status(store: Store, table: Table) -> TableStatus:
    return TableStatus(table.name, store.count(table), len(store.rejected_rows(table)), create_table_sql(table))


def _view_status(
    store: Store,
    catalog: Catalog,
    compiled: CompiledView,
    sizes: SlotSizes,
    view: View,
    epoch: int,
    cut: int,
    recent: Mapping[str, Any],
    lag_of: Callable[[int, tuple[int, ...]], tuple[int | None, float | None]],
) -> ViewStatus:
    suspended = view.suspended
    state = [] if suspended is not None else [sizes.get(slot, (0, 0)) for slot in compiled.slots]
    if view.own_cut is not None:
        epoch, cut = view.own_cut.epoch, view.own_cut.cut
    elif view.synchronous_state is not None:  # its state is in the store's tables, whose bytes are not measured
        cut, state = (
            store.head(),
            [(store.count(Table(n, "", (), ())), 0) for n in view.synchronous_state.state_table_ids],
        )
    lag, seconds = lag_of(cut if suspended is None else suspended.cut, tuple(sorted(compiled.tables)))
    return ViewStatus(
        view.table.name,
        store.count(view.table) if view.table.is_stored else None,
        epoch if suspended is None else suspended.epoch,
        lag,
        seconds,
        _catch_up_seconds(recent, lag) if suspended is None else None,
        sum(rows for rows, _ in state),
        sum(size for _, size in state),
        strategy_of(view).name if view.synchronous_state is None else "sync",
        None if suspended is None else suspended.reason,
        show_create(catalog, view),
        None if view.index is None else indexed_table(catalog, view).name,
        len(catalog.members[view.table.family]) - 1 if view.is_member else 0,
        None if suspended is None else suspended.time,
    )


def _stage_statuses(recent: Mapping[str, Any], pending_rows: int, batch: Batch | None) -> tuple[StageStatus, ...]:
    runs = {} if batch is None else Manifest.from_json(batch.record["manifest"]).runs
    unmerged = sum(choose_merges([entry.rows for entry in entries]) for entries in runs.values())
    stages = (StageStatus(name, pending_rows if name == STAGES[0] else 0, **recent.get(name, {})) for name in STAGES)
    return (*stages, StageStatus("merge", unmerged))


def _lag(store: Store, cut: int, tables: Sequence[int]) -> tuple[int | None, float | None]:
    try:
        pending = store.pending(cut, tables)
    except SnapshotGone:
        return None, None
    return pending.rows, max(0.0, time.time() - pending.oldest_time) if pending.oldest_time is not None else 0.0


def _catch_up_seconds(recent: Mapping[str, Any], lag: int | None) -> float | None:
    """Predicted seconds until no change is pending, if batches and changes go on at their recent rates."""
    if not lag:
        return None if lag is None else 0.0
    spare = recent.get("capacity_per_second", 0.0) - recent.get("changes_per_second", 0.0)
    return round(lag / spare, 3) if spare > 0 else None


def _slot_sizes(store: Store) -> SlotSizes:
    """Rows and bytes of each state slot in the published batch."""
    batch = store.published_batch()
    if batch is None:
        return {}
    manifest = Manifest.from_json(batch.record["manifest"])
    return {s: (sum(e.rows for e in runs), sum(e.length for e in runs)) for s, runs in manifest.runs.items()}
