"""The flow of a catalog, made from that of the catalog before: a thousand views cost what changed of them.

    maintained      the views that batches keep fresh: those that run, and have no cut of their own
    everything      all views, as EXPLAIN and status speak of them
    alone           one view by itself, which has state of its own
    in_writes       one view by itself, which writes keep
    asked           a lazy view, as it is worked out for who reads it

A process sees one catalog after another. Flows are kept with the open store, and each is made from the last.
"""

from __future__ import annotations

import threading
import weakref
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.catalog.strategies import strategy_of
from viewkeeper.plan.compile.compiled_view import plan_of
from viewkeeper.plan.compile.compiler import ViewPlan
from viewkeeper.plan.dataflow.build import build_dataflow, update_dataflow
from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.resources.fork_guard import module_lock
from viewkeeper.store.contract.store import Store

_MAX_CACHED = 3
"""Flows that are kept: of the published catalog, and of one that is tried out."""


def maintained_dataflow(store: Store, catalog: Catalog) -> Dataflow:
    """The flow of the batches. A suspended view is still a definition that others may use."""
    return _cache_of(store).get("maintained", catalog, _is_maintained)


def _is_maintained(view: View) -> bool:
    return view.suspended is None and view.synchronous_state is None and not strategy_of(view).has_own_cut


def full_dataflow(store: Store, catalog: Catalog) -> Dataflow:
    return _cache_of(store).get("everything", catalog, lambda _: True)


def separate_dataflow(catalog: Catalog, view: View) -> Dataflow:
    """The flow of a view that runs by itself: it tracks its tables by key."""
    return build_dataflow(catalog.tables_by_id, CatalogPlans(catalog, view), [view.table.id], True)


def synchronous_dataflow(catalog: Catalog, view: View) -> Dataflow:
    """The flow of a synchronous view: a write knows the rows that were there before."""
    return build_dataflow(catalog.tables_by_id, CatalogPlans(catalog, view), [view.table.id])


def lazy_dataflow(catalog: Catalog, view: View) -> Dataflow:
    """The flow by which a lazy view is worked out for who asks: all of its operators, of which none keeps anything."""
    own = {view.table.id: replace(plan_of(view), lazy_key=None, compiled_cache=[])}
    return build_dataflow(catalog.tables_by_id, ChainMap(own, CatalogPlans(catalog)), [view.table.id])  # type: ignore[arg-type]


class CatalogPlans(Mapping[int, ViewPlan]):
    """The plans of a catalog's views, and of one that may not be there yet; each is read when it is asked for."""

    def __init__(self, catalog: Catalog, view: View | None = None) -> None:
        self._views = catalog.views_by_id if view is None else {**catalog.views_by_id, view.table.id: view}

    def __getitem__(self, view: int) -> ViewPlan:
        return plan_of(self._views[view])

    def __iter__(self) -> Iterator[int]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)


class _DataflowCache:
    """The last flows of one open store, of each kind."""

    def __init__(self, store: Store) -> None:
        self._keyed_images, self._can_filter_scans = not store.capabilities.before_images, store.can_filter_scans
        self._lock = threading.Lock()
        self._recent: dict[str, list[tuple[Catalog, Dataflow]]] = {}

    def get(self, kind: str, catalog: Catalog, includes: Callable[[View], bool]) -> Dataflow:
        with self._lock:
            last = self._recent.setdefault(
                kind, [(Catalog(), Dataflow(keyed_images=self._keyed_images, can_filter_scans=self._can_filter_scans))]
            )
            for known, flow in last:
                changed = catalog.redefined_since(known)
                if not changed:
                    return flow
            known, flow = last[0]
            changed = catalog.redefined_since(known)
            views = (catalog.views_by_id.get(number) for number in changed)
            new = [v.table.id for v in views if v is not None and includes(v)]
            there = [number for number in changed if known.find_by_id(number) is not None]
            made = update_dataflow(flow, catalog.tables_by_id, CatalogPlans(catalog), there, new)
            last.insert(0, (catalog, made))
            del last[_MAX_CACHED:]
            return made


_caches: weakref.WeakKeyDictionary[Store, _DataflowCache] = weakref.WeakKeyDictionary()
_lock = module_lock()


def _cache_of(store: Store) -> _DataflowCache:
    with _lock:
        found = _caches.get(store)
        if found is None:
            found = _caches[store] = _DataflowCache(store)
        return found
