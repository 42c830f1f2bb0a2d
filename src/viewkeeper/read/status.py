"""What a database is doing: its views, how far behind they are, and what their state weighs."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from viewkeeper.commit.manifest import Manifest
from viewkeeper.model.catalog import Catalog
from viewkeeper.plan.compiler import ViewPlan
from viewkeeper.plan.explain import Sizes, explain
from viewkeeper.plan.flow import Flow, assemble, slots
from viewkeeper.store.base import Store


@dataclass(frozen=True)
class TableStatus:
    name: str
    rows: int


@dataclass(frozen=True)
class ViewStatus:
    """One view. State that several views share is counted for each of them in `state_bytes`."""

    name: str
    rows: int
    epoch: int
    lag_changes: int
    lag_seconds: float
    state_rows: int
    state_bytes: int


@dataclass(frozen=True)
class Status:
    """A database's state at one moment; `state_bytes` counts shared state once."""

    url: str
    epoch: int
    position: int
    lag_changes: int
    lag_seconds: float
    state_bytes: int
    tables: tuple[TableStatus, ...]
    views: tuple[ViewStatus, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def database_status(store: Store, catalog: Catalog) -> Status:
    flow, sizes = _flow(store, catalog), _sizes(store)
    batch = store.published()
    epoch, cut = (batch.number, batch.cut) if batch is not None else (0, 0)
    now = time.time()

    def lag(tables: list[int]) -> tuple[int, float]:
        waiting = store.pending(cut, tables)
        return waiting.rows, max(0.0, now - waiting.oldest) if waiting.oldest is not None else 0.0

    views = []
    for view in catalog.views:
        behind = flow.behind([flow.sinks[view.table.id].id])
        mine = [sizes.get(s, (0, 0)) for n in behind for s in slots(flow.operators[n])]
        tables = [o.table for n in behind if (o := flow.operators[n]).kind == "input"]  # type: ignore[attr-defined]
        views.append(
            ViewStatus(
                view.table.name,
                store.count(view.table),
                epoch,
                *lag(tables),
                sum(r for r, _ in mine),
                sum(b for _, b in mine),
            )
        )
    return Status(
        store.url,
        epoch,
        store.head(),
        *lag(list(flow.used)),
        sum(b for _, b in sizes.values()),
        tuple(TableStatus(t.name, store.count(t)) for t in catalog.tables),
        tuple(views),
    )


def explain_view(store: Store, catalog: Catalog, name: str) -> str:
    view = catalog.view(name)
    names = {t.id: t.name for t in (*catalog.tables, *(v.table for v in catalog.views))}
    return explain(_flow(store, catalog), view.table, _sizes(store), names)


def _flow(store: Store, catalog: Catalog) -> Flow:
    plans = {v.table.id: ViewPlan.from_json(v.plan) for v in catalog.views}
    tables = {t.id: t for t in catalog.tables}
    return assemble(tables, plans, plans, not store.capabilities.before_images)


def _sizes(store: Store) -> Sizes:
    batch = store.published()
    if batch is None:
        return {}
    manifest = Manifest.from_json(batch.record["manifest"])
    return {s: (sum(e.rows for e in runs), sum(e.length for e in runs)) for s, runs in manifest.runs.items()}
