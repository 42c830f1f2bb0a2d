"""Definitions of synchronous views (`WITH (sync = true)`): create, suspend, resume and drop.

    1  the view is planned as any other; its operators decide whether it can be maintained in a write
    2  its rows are computed at the published batch while writers continue, and written before the catalog lists it
    3  later writes are applied from the log; the transaction that applies the last of them adds the view to the catalog
    4  from then on every write reads the view from the catalog of its own transaction, and maintains it

No maintainer is needed, and a running one is not disturbed, because batches do not process these views. Other views
that read a synchronous view are compiled to its base tables, as over any view.

A view over a batch-maintained view changes in the commit of a batch, which writes both. That satisfies `sync = true`,
so such a view is maintained by batches too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import cast

from viewkeeper import failpoints
from viewkeeper.capture.snapshot import Progress, table_at_cut
from viewkeeper.commit.deferred_cleanup import DeferredCleanup
from viewkeeper.commit.write_observer import SynchronousViews, plan_synchronous
from viewkeeper.errors import Unsupported
from viewkeeper.maintain.definitions.catalog_changes import refuse_altered, refuse_used
from viewkeeper.maintain.definitions.new_views import reserve_ids
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.catalog.strategies import DEFAULT_STRATEGY, find_strategy, strategy_of
from viewkeeper.model.catalog.synchronous_state import SYNCHRONOUS_OPTION, SynchronousState
from viewkeeper.model.catalog.view import Suspension
from viewkeeper.model.schema import Table
from viewkeeper.resources.memory import one_off_budget
from viewkeeper.state.consolidate import consolidate
from viewkeeper.store.contract.store import Store
from viewkeeper.store.contract.write_observer import write_observer
from viewkeeper.syntax.view_text import drop_current_names, refresh_names

SYNC_OPTION = "sync"
_LOG_HOLD_SECONDS = 3600.0
"""Seconds after which the log retention hold of a load expires, if its process has ended."""


def is_requested(view: View) -> bool:
    return view.options.get(SYNC_OPTION, "false").lower() == "true"


def plan_synchronous_view(store: Store, view: View) -> View:
    """Add synchronous state to a view, unless it has no `sync` or reads batch-maintained views only."""
    if not is_requested(view):
        return view
    name = view.table.name
    if not view.table.is_stored or strategy_of(view) != find_strategy(DEFAULT_STRATEGY) or view.parameter_table_id:
        raise Unsupported(
            f"{name} is to be kept in every write, and has another strategy, or nothing to keep.",
            hint="Leave out sync, or strategy, store and PARAMETERS.",
        )
    catalog = store.catalog()
    inputs = [catalog.find_by_id(number) for number in view.reads]
    batched = [v.table.name for v in inputs if isinstance(v, View) and v.synchronous_state is None]
    if batched and len(batched) == len(inputs):
        return view
    if batched:
        raise Unsupported(
            f"{name} reads tables, which change in writes, and {', '.join(sorted(batched))}, which changes in batches.",
            hint="Leave sync out, or read tables and synchronous views alone.",
        )
    plan = plan_synchronous(catalog, view)
    if not store.capabilities.atomic_batch or not store.capabilities.before_images:
        raise Unsupported(
            f"{store.url} cannot keep {name} in the transaction of a write: it makes each row atomic by itself and does"
            " not say what was there before, and the view's rows are others.",
            hint="Leave sync out: batches keep the view.",
        )
    count = sum(len(tables) for slots in plan.state_tables.values() for tables in slots)
    first_id = reserve_ids(store, count) if count else 0
    options = (*view.table.options, (SYNCHRONOUS_OPTION, "true"))
    state = tuple(range(first_id, first_id + count))
    return replace(
        view, table=replace(view.table, options=options), synchronous_state=SynchronousState(plan.tables, state)
    )


def create(store: Store, view: View, progress: Progress | None = None) -> None:
    """Load a new view and add it to the catalog."""

    def add_view(catalog: Catalog, position: int) -> Catalog:
        refuse_altered(catalog, view)
        return catalog.with_view(replace(drop_current_names(catalog, view), complete_since=position))

    _load_and_list(store, view, add_view, progress)


def resume(store: Store, view: View, progress: Progress | None = None) -> None:
    """Load a suspended view again; its subscribers start again."""

    def resume_view(catalog: Catalog, position: int) -> Catalog:
        return catalog.with_replaced_view(
            replace(refresh_names(catalog, view), suspended=None, complete_since=position)
        )

    _load_and_list(store, view, resume_view, progress)


def suspend(store: Store, view: View, reason: str) -> None:
    """Suspend a view: writes stop maintaining it, and it keeps showing its current rows."""
    batch = store.published_batch()
    suspension = Suspension(reason, 0 if batch is None else batch.number, store.head(), time.time())
    store.change_catalog(
        lambda catalog: catalog.with_replaced_view(replace(refresh_names(catalog, view), suspended=suspension))
    )


def rebuild(store: Store, view: View) -> None:
    """Rebuild a view that is wrong: it is suspended until it is loaded again."""
    suspend(store, view, "it is being made anew")
    resume(store, store.catalog().views_by_id[view.table.id])


def drop(store: Store, view: View) -> None:
    """Drop a view without indexes, which needs no maintainer."""

    def remove_view(catalog: Catalog) -> Catalog:
        refuse_used(catalog, view.table)
        return catalog.without(view.table.id)

    store.change_catalog(remove_view)
    deferred_cleanup = DeferredCleanup(store)
    deferred_cleanup.drop_rows(view.table, "view.dropped")
    drop_state(store, view)


def drop_state(store: Store, view: View) -> None:
    """Delete the tables of a view's keyed state."""
    deferred_cleanup = DeferredCleanup(store)
    for number in view.synchronous_state.state_table_ids if view.synchronous_state is not None else ():
        deferred_cleanup.drop_rows(Table(number, f"state {number} of {view.table.name}", (), ()))


def _load_and_list(
    store: Store, view: View, list_view: Callable[[Catalog, int], Catalog], progress: Progress | None
) -> None:
    hold, memory = f"load:{view.table.id}", one_off_budget(store.state_path)
    batch = store.published_batch()
    cut = store.head() if batch is None else batch.cut
    store.hold(hold, cut, time.time() + _LOG_HOLD_SECONDS)
    try:
        catalog, observer = store.catalog(), cast(SynchronousViews, write_observer())
        consolidator = partial(consolidate, observer.statements)
        tables = {
            number: table_at_cut(
                store,
                catalog.tables_by_id[number].internal,
                observer.columns(catalog, view, number),
                cut,
                consolidator,
                memory,
                progress,
            )
            for number in (view.synchronous_state.table_ids if view.synchronous_state is not None else ())
        }
        failpoints.hit("load.1.after")
        store.load_synchronous_view(view, observer.backfill(catalog, view, tables, memory))
        is_listed = False
        while not is_listed:
            failpoints.hit("load.2.after")
            cut, is_listed = store.catch_up_synchronous_view(view, cut, list_view)
    finally:
        memory.close()
        store.release_hold(hold)
