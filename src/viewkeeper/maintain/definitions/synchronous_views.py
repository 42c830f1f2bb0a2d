"""Views that are kept in the transaction of each write (`WITH (sync = true)`): how one comes, stops and goes.

    1  the view is planned as any other; what its operators need of a store decides whether a write can keep it
    2  its rows are worked out at the published batch, beside the writers, and written where nobody looks yet
    3  what was written since follows from the log; the call in which that is all lists the view in the catalog
    4  from then on every write sees it in the catalog of its own transaction, and takes it along

Nobody has to maintain for it, and who does goes on meanwhile: no batch has anything to do with these views. Other views
that read one are made from its tables, as over any view.

A view over one that batches keep changes when that one does: in the commit of a batch, which writes both. That is what
`sync = true` asks for, so batches keep it too, and it is a view like others.
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
"""Seconds for which the log is held for a load that does not come back."""


def is_requested(view: View) -> bool:
    return view.options.get(SYNC_OPTION, "false").lower() == "true"


def plan_synchronous_view(store: Store, view: View) -> View:
    """A view that is to be synchronous: as it is if batches keep what it reads, else with what its writes keep."""
    if not is_requested(view):
        return view
    name = view.table.name
    if not view.table.is_stored or strategy_of(view) != find_strategy(DEFAULT_STRATEGY) or view.parameter_table_id:
        raise Unsupported(
            f"{name} is to be kept in every write, and has another strategy, or nothing to keep.",
            hint="Leave out sync, or strategy, store and PARAMETERS.",
        )
    catalog = store.catalog()
    read = [catalog.find_by_id(number) for number in view.reads]
    batched = [v.table.name for v in read if isinstance(v, View) and v.synchronous_state is None]
    if batched and len(batched) == len(read):
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
    count = sum(len(shelves) for slots in plan.state_tables.values() for shelves in slots)
    taken = reserve_ids(store, count) if count else 0
    options = (*view.table.options, (SYNCHRONOUS_OPTION, "true"))
    state = tuple(range(taken, taken + count))
    return replace(
        view, table=replace(view.table, options=options), synchronous_state=SynchronousState(plan.tables, state)
    )


def create(store: Store, view: View, progress: Progress | None = None) -> None:
    """Load a new view and list it."""

    def listed(catalog: Catalog, position: int) -> Catalog:
        refuse_altered(catalog, view)
        return catalog.with_view(replace(drop_current_names(catalog, view), complete_since=position))

    _load_and_list(store, view, listed, progress)


def resume(store: Store, view: View, progress: Progress | None = None) -> None:
    """Load a suspended view again; subscribers start over."""

    def listed(catalog: Catalog, position: int) -> Catalog:
        return catalog.with_replaced_view(
            replace(refresh_names(catalog, view), suspended=None, complete_since=position)
        )

    _load_and_list(store, view, listed, progress)


def suspend(store: Store, view: View, reason: str) -> None:
    """From now on writes do not keep it, and it shows what it does now."""
    batch = store.published_batch()
    stop = Suspension(reason, 0 if batch is None else batch.number, store.head(), time.time())
    store.change_catalog(
        lambda catalog: catalog.with_replaced_view(replace(refresh_names(catalog, view), suspended=stop))
    )


def rebuild(store: Store, view: View) -> None:
    """A view that is wrong: writes leave it alone until it is loaded again."""
    suspend(store, view, "it is being made anew")
    resume(store, store.catalog().views_by_id[view.table.id])


def drop(store: Store, view: View) -> None:
    """Of a view without indexes: nobody maintains anything of it."""

    def change(catalog: Catalog) -> Catalog:
        refuse_used(catalog, view.table)
        return catalog.without(view.table.id)

    store.change_catalog(change)
    afterwards = DeferredCleanup(store)
    afterwards.drop_rows(view.table, "view.dropped")
    drop_state(store, view)


def drop_state(store: Store, view: View) -> None:
    """What only its writes knew."""
    afterwards = DeferredCleanup(store)
    for number in view.synchronous_state.state_table_ids if view.synchronous_state is not None else ():
        afterwards.drop_rows(Table(number, f"state {number} of {view.table.name}", (), ()))


def _load_and_list(
    store: Store, view: View, list_view: Callable[[Catalog, int], Catalog], progress: Progress | None
) -> None:
    hold, memory = f"load:{view.table.id}", one_off_budget(store.state_path)
    batch = store.published_batch()
    at = store.head() if batch is None else batch.cut
    store.hold(hold, at, time.time() + _LOG_HOLD_SECONDS)
    try:
        catalog, keeps = store.catalog(), cast(SynchronousViews, write_observer())
        together = partial(consolidate, keeps.statements)
        tables = {
            number: table_at_cut(
                store,
                catalog.tables_by_id[number].internal,
                keeps.columns(catalog, view, number),
                at,
                together,
                memory,
                progress,
            )
            for number in (view.synchronous_state.table_ids if view.synchronous_state is not None else ())
        }
        failpoints.hit("load.1.after")
        store.load_synchronous_view(view, keeps.backfill(catalog, view, tables, memory))
        is_listed = False
        while not is_listed:
            failpoints.hit("load.2.after")
            at, is_listed = store.catch_up_synchronous_view(view, at, list_view)
    finally:
        memory.close()
        store.release_hold(hold)
