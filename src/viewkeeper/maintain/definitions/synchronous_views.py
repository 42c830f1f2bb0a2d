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
from viewkeeper.capture.snapshot import Progress, whole_table
from viewkeeper.commit.deferred_cleanup import Afterwards
from viewkeeper.commit.write_observer import Keeper, made
from viewkeeper.errors import Unsupported
from viewkeeper.maintain.definitions.catalog_changes import refuse_altered, refuse_used
from viewkeeper.maintain.definitions.new_views import fresh_ids
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.catalog.strategies import USUAL, strategy_named, strategy_of
from viewkeeper.model.catalog.synchronous_state import WITH_WRITES, Sync
from viewkeeper.model.catalog.view import Suspension
from viewkeeper.model.schema import Table
from viewkeeper.resources.memory import once
from viewkeeper.state.consolidate import consolidate
from viewkeeper.store.contract.store import Store
from viewkeeper.store.contract.write_observer import keeper
from viewkeeper.syntax.view_text import follow_names, settle_names

SYNC = "sync"
_HELD = 3600.0
"""Seconds for which the log is held for a load that does not come back."""


def is_asked(view: View) -> bool:
    return view.options.get(SYNC, "false").lower() == "true"


def planned(store: Store, view: View) -> View:
    """A view that is to be synchronous: as it is if batches keep what it reads, else with what its writes keep."""
    if not is_asked(view):
        return view
    name = view.table.name
    if not view.table.is_stored or strategy_of(view) != strategy_named(USUAL) or view.parameters:
        raise Unsupported(
            f"{name} is to be kept in every write, and has another strategy, or nothing to keep.",
            hint="Leave out sync, or strategy, store and PARAMETERS.",
        )
    catalog = store.catalog()
    read = [catalog.of(number) for number in view.reads]
    batched = [v.table.name for v in read if isinstance(v, View) and v.sync is None]
    if batched and len(batched) == len(read):
        return view
    if batched:
        raise Unsupported(
            f"{name} reads tables, which change in writes, and {', '.join(sorted(batched))}, which changes in batches.",
            hint="Leave sync out, or read tables and synchronous views alone.",
        )
    plan = made(catalog, view)
    if not store.capabilities.atomic_batch or not store.capabilities.before_images:
        raise Unsupported(
            f"{store.url} cannot keep {name} in the transaction of a write: it makes each row atomic by itself and does"
            " not say what was there before, and the view's rows are others.",
            hint="Leave sync out: batches keep the view.",
        )
    count = sum(len(shelves) for slots in plan.shelved.values() for shelves in slots)
    taken = fresh_ids(store, count) if count else 0
    options = (*view.table.options, (WITH_WRITES, "true"))
    state = tuple(range(taken, taken + count))
    return replace(view, table=replace(view.table, options=options), sync=Sync(plan.tables, state))


def create(store: Store, view: View, progress: Progress | None = None) -> None:
    """Load a new view and list it."""

    def listed(catalog: Catalog, position: int) -> Catalog:
        refuse_altered(catalog, view)
        return catalog.with_view(replace(settle_names(catalog, view), since=position))

    _bring_in(store, view, listed, progress)


def resume(store: Store, view: View, progress: Progress | None = None) -> None:
    """Load a suspended view again; subscribers start over."""

    def listed(catalog: Catalog, position: int) -> Catalog:
        return catalog.replacing(replace(follow_names(catalog, view), suspended=None, since=position))

    _bring_in(store, view, listed, progress)


def suspend(store: Store, view: View, reason: str) -> None:
    """From now on writes do not keep it, and it shows what it does now."""
    batch = store.published()
    stop = Suspension(reason, 0 if batch is None else batch.number, store.head(), time.time())
    store.change_catalog(lambda catalog: catalog.replacing(replace(follow_names(catalog, view), suspended=stop)))


def make_anew(store: Store, view: View) -> None:
    """A view that is wrong: writes leave it alone until it is loaded again."""
    suspend(store, view, "it is being made anew")
    resume(store, store.catalog().views_by_id[view.table.id])


def drop(store: Store, view: View) -> None:
    """Of a view without indexes: nobody maintains anything of it."""

    def change(catalog: Catalog) -> Catalog:
        refuse_used(catalog, view.table)
        return catalog.without(view.table.id)

    store.change_catalog(change)
    afterwards = Afterwards(store)
    afterwards.drop(view.table, "view.dropped")
    drop_state(store, view)


def drop_state(store: Store, view: View) -> None:
    """What only its writes knew."""
    afterwards = Afterwards(store)
    for number in view.sync.state if view.sync is not None else ():
        afterwards.drop(Table(number, f"state {number} of {view.table.name}", (), ()))


def _bring_in(store: Store, view: View, listed: Callable[[Catalog, int], Catalog], progress: Progress | None) -> None:
    hold, memory = f"load:{view.table.id}", once(store.state_path)
    batch = store.published()
    at = store.head() if batch is None else batch.cut
    store.hold(hold, at, time.time() + _HELD)
    try:
        catalog, keeps = store.catalog(), cast(Keeper, keeper())
        together = partial(consolidate, keeps.duck)
        tables = {
            number: whole_table(
                store,
                catalog.tables_by_id[number].inside,
                keeps.columns(catalog, view, number),
                at,
                together,
                memory,
                progress,
            )
            for number in (view.sync.of if view.sync is not None else ())
        }
        failpoints.point("load.1.after")
        store.place(view, keeps.first(catalog, view, tables, memory))
        is_listed = False
        while not is_listed:
            failpoints.point("load.2.after")
            at, is_listed = store.follow(view, at, listed)
    finally:
        memory.leave()
        store.release_hold(hold)
