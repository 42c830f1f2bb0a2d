"""The cache of lazy views' answers: an answer is computed from the published state, and cached.

    1  the requested keys fix the values of their first columns
    2  the base rows that these keys need are looked up, table by table, in the arrangements that batches keep
       (key propagation)
    3  the view's operators run over these rows as in a first load, and keep no state
    4  of the rows that reach the view, those with the requested keys are the answer

An answer is right for the batch whose files were read, and for every later batch that lists the same runs of the same
arrangements; it is cached that long. The cache holds up to the store's `lazy_cache_bytes`; the least recently used
answers are evicted first. Nothing is written, so a process may end at any point.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import CorruptState, SnapshotGone, UnknownName
from viewkeeper.model.catalog.catalog import View
from viewkeeper.model.encoding.key_decoding import shared_key_values
from viewkeeper.model.encoding.keys import encode_keys, successor
from viewkeeper.model.schema import Table
from viewkeeper.read.lazy.evaluate import LazyPlan, build_stored_rows, compute_lazy_rows, plan_lazy_view, refuse_spark
from viewkeeper.read.suspension import virtual_view_error
from viewkeeper.resources.fork_guard import module_lock
from viewkeeper.runtime.error_attribution import BrokenViews
from viewkeeper.runtime.executor import BatchExecutor
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.open_state import OpenState
from viewkeeper.store.contract.commits import Batch, StoreSnapshot
from viewkeeper.store.contract.store import Store

_ANSWER_OVERHEAD_BYTES = 1_000
"""Approximate fixed size of a cached answer in bytes."""

RunLists = tuple[Any, ...]
"""What an answer was computed from: the runs of each arrangement that is kept for the view."""


@dataclass(frozen=True)
class CachedAnswer:
    """Rows as they would be stored, in key order, with their encoded keys."""

    keys: pa.BinaryArray
    rows: pa.Table
    size: int
    """Approximate size in bytes."""
    shown_rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Rows that were read one by one, by row number, as users see them."""

    def get_row(self, table: Table, key: bytes) -> dict[str, Any] | None:
        index = bisect_left(self.keys, key, key=_key_bytes)
        if index == len(self.keys) or _key_bytes(self.keys[index]) != key:
            return None
        if index not in self.shown_rows:
            external = {f.name: f for f in table.external_schema}
            schema = pa.schema([external.get(f.name, f) for f in self.rows.schema])
            [self.shown_rows[index]] = self.rows.slice(index, 1).cast(schema).to_pylist()
        return dict(self.shown_rows[index])

    def read_range(self, start: bytes | None, stop: bytes | None) -> pa.Table:
        low = 0 if start is None else bisect_left(self.keys, start, key=_key_bytes)
        high = len(self.keys) if stop is None else bisect_left(self.keys, stop, key=_key_bytes)
        return self.rows.slice(low, max(0, high - low))


def _key_bytes(key: Any) -> bytes:
    found: bytes = key.as_py()
    return found


class LazyViewCache:
    """The cache of one open store. Any thread may call it; one answer is computed at a time."""

    def __init__(self, store: Store) -> None:
        self._store = weakref.ref(store)
        self._max_bytes = store.lazy_cache_bytes
        self._lock, self._compute_lock = threading.Lock(), threading.Lock()
        self._executor: BatchExecutor | None = None
        self._manifest: tuple[int, Manifest] = (-1, Manifest())
        self._answers: OrderedDict[tuple[int, bytes], CachedAnswer] = OrderedDict()
        self._answer_sources: dict[int, tuple[object, RunLists]] = {}
        """For each view with cached answers: its plan, and the run lists that the answers were computed from."""
        self._cached_bytes = 0
        self._plans: dict[int, tuple[int, LazyPlan]] = {}

    def read_range(self, snapshot: StoreSnapshot, table: Table, start: bytes | None, stop: bytes | None) -> pa.Table:
        return self._range_answer(snapshot, _find_view(snapshot, table), start, stop).read_range(start, stop)

    def get_row(self, snapshot: StoreSnapshot, table: Table, key: bytes) -> dict[str, Any] | None:
        view = _find_view(snapshot, table)
        found = self._find_cached(snapshot, view, key)
        return (found or self._range_answer(snapshot, view, key, key + b"\0")).get_row(table, key)

    def find_rows(self, snapshot: StoreSnapshot, table: Table, keys: pa.Table) -> pa.Table:
        view = _find_view(snapshot, table)
        plan = self._plan_of(snapshot, view)
        names = [c.name for c in table.key_columns]
        values = [_exclude_null(pc.unique(keys[name].combine_chunks())) for name in names]
        whole = self._find_cached(snapshot, view, b"")
        if whole is None and plan.is_narrowed_by(values):
            found = self._compute_answer(snapshot, view, plan, values)
        else:
            found = whole or self._get_answer(snapshot, view, plan, b"", ())
        matching = pc.is_in(found.keys, value_set=encode_keys(table, keys.select(names)))
        return found.rows.filter(matching)

    def estimate_rows(self, snapshot: StoreSnapshot, table: Table) -> int:
        whole = self._find_cached(snapshot, view := _find_view(snapshot, table), b"")
        if whole is not None:
            return int(whole.rows.num_rows)
        return max((sum(e.rows for e in runs) for runs in self._run_lists(snapshot, view)), default=0)

    def close(self) -> None:
        with self._compute_lock, self._lock:
            if self._executor is not None:
                self._executor.close()
            self._executor = None
            self._answers.clear()

    def _range_answer(
        self, snapshot: StoreSnapshot, view: View, start: bytes | None, stop: bytes | None
    ) -> CachedAnswer:
        """An answer that contains the rows of a range, and maybe others."""
        prefix, values = shared_key_values(view.table, start, stop)
        plan = self._plan_of(snapshot, view)
        if not plan.is_narrowed_by(values):
            prefix, values = b"", ()
        return self._get_answer(snapshot, view, plan, prefix, values)

    # -- cached answers -----------------------------------------------------------------------------------------------

    def _get_answer(
        self, snapshot: StoreSnapshot, view: View, plan: LazyPlan, prefix: bytes, values: Sequence[pa.Array | None]
    ) -> CachedAnswer:
        found = self._find_cached(snapshot, view, prefix)
        if found is None:
            found = self._compute_answer(snapshot, view, plan, values)
            end = successor(prefix) if prefix else None
            rows = found.read_range(prefix or None, end)
            found = found if rows.num_rows == found.rows.num_rows else _make_answer(view.table, rows)
            self._cache_answer(snapshot, view, prefix, found)
        return found

    def _find_cached(self, snapshot: StoreSnapshot, view: View, prefix: bytes) -> CachedAnswer | None:
        """The cached answer for keys with this prefix, or for all keys, if it is valid for the snapshot's batch."""
        number = view.table.id
        runs = self._run_lists(snapshot, view)
        with self._lock:
            sources = self._answer_sources.get(number)
            if sources is None or sources[0] is not view.stored_plan or sources[1] != runs:
                return None
            for candidate in (prefix, b""):
                if (found := self._answers.get((number, candidate))) is not None:
                    self._answers.move_to_end((number, candidate))
                    return found
        return None

    def _cache_answer(self, snapshot: StoreSnapshot, view: View, prefix: bytes, answer: CachedAnswer) -> None:
        number, sources = view.table.id, (view.stored_plan, self._run_lists(snapshot, view))
        with self._lock:
            cached_sources = self._answer_sources.get(number)
            if cached_sources is None or cached_sources[0] is not sources[0] or cached_sources[1] != sources[1]:
                for name in [n for n in self._answers if n[0] == number]:
                    self._cached_bytes -= self._answers.pop(name).size
                self._answer_sources[number] = sources
            if answer.size <= self._max_bytes and (number, prefix) not in self._answers:
                self._answers[number, prefix] = answer
                self._cached_bytes += answer.size
            while self._cached_bytes > self._max_bytes:
                self._cached_bytes -= self._answers.popitem(last=False)[1].size

    def _run_lists(self, snapshot: StoreSnapshot, view: View) -> RunLists:
        runs = self._manifest_of(snapshot.batch).runs
        return tuple(runs.get(slot, ()) for slot in self._plan_of(snapshot, view).slots)

    def _manifest_of(self, batch: Batch) -> Manifest:
        number, manifest = self._manifest
        if number != batch.number:
            manifest = Manifest.from_json(batch.record["manifest"])
            self._manifest = batch.number, manifest
        return manifest

    # -- computed answers ---------------------------------------------------------------------------------------------

    def _plan_of(self, snapshot: StoreSnapshot, view: View) -> LazyPlan:
        number, version = view.table.id, snapshot.catalog.version
        cached = self._plans.get(number)
        if cached is None or cached[0] != version:
            cached = self._plans[number] = version, plan_lazy_view(snapshot.catalog, view)
        return cached[1]

    def _compute_answer(
        self, snapshot: StoreSnapshot, view: View, plan: LazyPlan, values: Sequence[pa.Array | None]
    ) -> CachedAnswer:
        with self._compute_lock:
            try:
                executor = self._executor_at(self._manifest_of(snapshot.batch))
                try:
                    deltas = compute_lazy_rows(executor, plan, values)
                except BrokenViews:
                    if not values:
                        raise
                    # The error may come from rows beside the requested ones, and not occur when all rows are there.
                    deltas = compute_lazy_rows(executor, plan, ())
                return _make_answer(view.table, build_stored_rows(executor, view.table, deltas))
            except (FileNotFoundError, CorruptState) as error:
                raise SnapshotGone(
                    f"The state of {view.table.name} at batch {snapshot.batch.number} is gone: {error}"
                ) from error

    def _executor_at(self, manifest: Manifest) -> BatchExecutor:
        if self._executor is None:
            store = self._store()
            if store is None:
                raise SnapshotGone("The database is closed.")
            state = OpenState(store.state_path, manifest)
            self._executor = BatchExecutor(weakref.proxy(store), state, refuse_spark, durable=False, threads=1)
        elif self._executor.state.manifest is not manifest:
            self._executor.state.adopt(manifest)
        return self._executor


def _make_answer(table: Table, rows: pa.Table) -> CachedAnswer:
    rows = rows.combine_chunks()
    keys = encode_keys(table, rows)
    return CachedAnswer(keys, rows, int(rows.nbytes + keys.nbytes) + _ANSWER_OVERHEAD_BYTES)


def _find_view(snapshot: StoreSnapshot, table: Table) -> View:
    view = snapshot.catalog.views_by_id.get(table.id)
    if view is None:
        raise UnknownName(f"{table.name} was dropped.")
    if view.suspended is not None:
        raise virtual_view_error(table.name, view.suspended)
    return view


def _exclude_null(values: pa.Array) -> pa.Array | None:
    return None if values.null_count or pa.types.is_floating(values.type) else values


_caches: weakref.WeakKeyDictionary[Store, LazyViewCache] = weakref.WeakKeyDictionary()
_lock = module_lock()


def lazy_view_cache(store: Store) -> LazyViewCache:
    with _lock:
        found = _caches.get(store)
        if found is None:
            found = _caches[store] = LazyViewCache(store)
            weakref.finalize(store, found.close).atexit = False  # a forked child would wait for the parent's threads
        return found
