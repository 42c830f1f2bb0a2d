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
from viewkeeper.plan.dataflow.build import assemble, moved
from viewkeeper.plan.dataflow.dataflow import Flow
from viewkeeper.resources.fork_guard import module_lock
from viewkeeper.store.contract.store import Store

_KEPT = 3
"""Flows that are kept: of the published catalog, and of one that is tried out."""


def maintained(store: Store, catalog: Catalog) -> Flow:
    """The flow of the batches. A suspended view is still a definition that others may use."""
    return _flows(store).of("maintained", catalog, _in_batches)


def _in_batches(view: View) -> bool:
    return view.suspended is None and view.sync is None and not strategy_of(view).runs_alone


def everything(store: Store, catalog: Catalog) -> Flow:
    return _flows(store).of("everything", catalog, lambda _: True)


def alone(catalog: Catalog, view: View) -> Flow:
    """The flow of a view that runs by itself: it tracks its tables by key."""
    return assemble(catalog.tables_by_id, Plans(catalog, view), [view.table.id], True)


def in_writes(catalog: Catalog, view: View) -> Flow:
    """The flow of a synchronous view: a write knows the rows that were there before."""
    return assemble(catalog.tables_by_id, Plans(catalog, view), [view.table.id])


def asked(catalog: Catalog, view: View) -> Flow:
    """The flow by which a lazy view is worked out for who asks: all of its operators, of which none keeps anything."""
    own = {view.table.id: replace(plan_of(view), lazy=None, compiled=[])}
    return assemble(catalog.tables_by_id, ChainMap(own, Plans(catalog)), [view.table.id])  # type: ignore[arg-type]


class Plans(Mapping[int, ViewPlan]):
    """The plans of a catalog's views, and of one that may not be there yet; each is read when it is asked for."""

    def __init__(self, catalog: Catalog, view: View | None = None) -> None:
        self._views = catalog.views_by_id if view is None else {**catalog.views_by_id, view.table.id: view}

    def __getitem__(self, view: int) -> ViewPlan:
        return plan_of(self._views[view])

    def __iter__(self) -> Iterator[int]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)


class _Flows:
    """The last flows of one open store, of each kind."""

    def __init__(self, store: Store) -> None:
        self._keyed, self._selects = not store.capabilities.before_images, store.selects
        self._lock = threading.Lock()
        self._last: dict[str, list[tuple[Catalog, Flow]]] = {}

    def of(self, kind: str, catalog: Catalog, includes: Callable[[View], bool]) -> Flow:
        with self._lock:
            last = self._last.setdefault(kind, [(Catalog(), Flow(keyed_images=self._keyed, selects=self._selects))])
            for known, flow in last:
                changed = catalog.redefined_since(known)
                if not changed:
                    return flow
            known, flow = last[0]
            changed = catalog.redefined_since(known)
            views = (catalog.views_by_id.get(number) for number in changed)
            new = [v.table.id for v in views if v is not None and includes(v)]
            there = [number for number in changed if known.of(number) is not None]
            made = moved(flow, catalog.tables_by_id, Plans(catalog), there, new)
            last.insert(0, (catalog, made))
            del last[_KEPT:]
            return made


_known: weakref.WeakKeyDictionary[Store, _Flows] = weakref.WeakKeyDictionary()
_lock = module_lock()


def _flows(store: Store) -> _Flows:
    with _lock:
        found = _known.get(store)
        if found is None:
            found = _known[store] = _Flows(store)
        return found
