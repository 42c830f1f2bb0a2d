"""Cache of dataflows: each is derived from that of the previous catalog, so it costs as much as the views that changed.

    maintained_dataflow     the views that batches maintain: not suspended, and without a cut of their own
    full_dataflow           all views, for EXPLAIN and status
    separate_dataflow       one view alone, which has its own state
    synchronous_dataflow    one synchronous view, which writes maintain
    lazy_dataflow           a lazy view, as it is computed when read

A process sees one catalog after another. The first two kinds are cached with the open store; the others are built when
they are requested.
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
"""Cached dataflows of each kind: that of the published catalog, and of a catalog that is being tried out."""


def maintained_dataflow(store: Store, catalog: Catalog) -> Dataflow:
    """Return the dataflow of the batches. A suspended view is not in it, but other views may still read its
    definition."""
    return _cache_of(store).get("maintained", catalog, _is_maintained)


def _is_maintained(view: View) -> bool:
    return view.suspended is None and view.synchronous_state is None and not strategy_of(view).has_own_cut


def full_dataflow(store: Store, catalog: Catalog) -> Dataflow:
    """Return the dataflow of all views, for EXPLAIN and status."""
    return _cache_of(store).get("everything", catalog, lambda _: True)


def separate_dataflow(catalog: Catalog, view: View) -> Dataflow:
    """Return the dataflow of a view that runs separately, with table images by primary key."""
    return build_dataflow(catalog.tables_by_id, CatalogPlans(catalog, view), [view.table.id], True)


def synchronous_dataflow(catalog: Catalog, view: View) -> Dataflow:
    """Return the dataflow of a synchronous view. It needs no keyed images: a write knows the rows before it."""
    return build_dataflow(catalog.tables_by_id, CatalogPlans(catalog, view), [view.table.id])


def lazy_dataflow(catalog: Catalog, view: View) -> Dataflow:
    """Return the dataflow that computes a lazy view for a reader: all of its operators, none of which keeps state."""
    own = {view.table.id: replace(plan_of(view), lazy_key=None, compiled_cache=[])}
    return build_dataflow(catalog.tables_by_id, ChainMap(own, CatalogPlans(catalog)), [view.table.id])  # type: ignore[arg-type]


class CatalogPlans(Mapping[int, ViewPlan]):
    """The plans of a catalog's views, and of `view`, which may not be in the catalog yet.

    A plan is parsed on first access.
    """

    def __init__(self, catalog: Catalog, view: View | None = None) -> None:
        self._views = catalog.views_by_id if view is None else {**catalog.views_by_id, view.table.id: view}

    def __getitem__(self, view: int) -> ViewPlan:
        return plan_of(self._views[view])

    def __iter__(self) -> Iterator[int]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)


class _DataflowCache:
    """The most recent dataflows of one open store, by kind."""

    def __init__(self, store: Store) -> None:
        self._keyed_images, self._can_filter_scans = not store.capabilities.before_images, store.can_filter_scans
        self._lock = threading.Lock()
        self._recent: dict[str, list[tuple[Catalog, Dataflow]]] = {}

    def get(self, kind: str, catalog: Catalog, includes: Callable[[View], bool]) -> Dataflow:
        with self._lock:
            recent = self._recent.setdefault(
                kind, [(Catalog(), Dataflow(keyed_images=self._keyed_images, can_filter_scans=self._can_filter_scans))]
            )
            for cached_catalog, dataflow in recent:
                changed = catalog.redefined_since(cached_catalog)
                if not changed:
                    return dataflow
            cached_catalog, dataflow = recent[0]
            changed = catalog.redefined_since(cached_catalog)
            views = (catalog.views_by_id.get(number) for number in changed)
            new = [v.table.id for v in views if v is not None and includes(v)]
            existing = [number for number in changed if cached_catalog.find_by_id(number) is not None]
            updated = update_dataflow(dataflow, catalog.tables_by_id, CatalogPlans(catalog), existing, new)
            recent.insert(0, (catalog, updated))
            del recent[_MAX_CACHED:]
            return updated


_caches: weakref.WeakKeyDictionary[Store, _DataflowCache] = weakref.WeakKeyDictionary()
_lock = module_lock()


def _cache_of(store: Store) -> _DataflowCache:
    with _lock:
        cache = _caches.get(store)
        if cache is None:
            cache = _caches[store] = _DataflowCache(store)
        return cache
