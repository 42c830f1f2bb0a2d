"""The answers of lazy views: what is asked for is worked out from the published state, and remembered.

1  the keys that are asked for say what is known of their first columns
2  the rows that these need are looked up, table by table, in the arrangements that batches keep (`plan.narrowing`)
3  the view's operators run over these rows as over a first load, and keep nothing
4  of what reached the view, the asked keys are the answer

It is right for the batch whose files were read, so it stays right for every later one that lists the same runs of the
same arrangements. Answers are remembered that long, up to the store's `lazy_cache` bytes, the last used ones longest.
Nothing is written, so it does not matter where a process ends.
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
from viewkeeper.model.encoding.key_decoding import known_columns
from viewkeeper.model.encoding.keys import encode_keys, successor
from viewkeeper.model.schema import Table
from viewkeeper.read.lazy.evaluate import Asked, asked_of, no_spark, stored_rows, worked_out
from viewkeeper.read.suspension import without_rows
from viewkeeper.resources.fork_guard import module_lock
from viewkeeper.runtime.error_attribution import BrokenViews
from viewkeeper.runtime.executor import Stage
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.open_state import State
from viewkeeper.store.contract.commits import Batch, Pinned
from viewkeeper.store.contract.store import Store

_OVERHEAD = 1_000
"""Bytes of what remembers an answer, whatever it is."""

Runs = tuple[Any, ...]
"""What an answer was made from: the runs of each arrangement that is kept for the view."""


@dataclass(frozen=True)
class Answer:
    """Rows as they would be stored, in key order, with their encoded keys."""

    keys: pa.BinaryArray
    rows: pa.Table
    size: int
    """Bytes, about."""
    shown: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Rows that were asked for one by one, as users see them."""

    def row(self, table: Table, key: bytes) -> dict[str, Any] | None:
        place = bisect_left(self.keys, key, key=_bytes)
        if place == len(self.keys) or _bytes(self.keys[place]) != key:
            return None
        if place not in self.shown:
            seen = {f.name: f for f in table.outside}
            schema = pa.schema([seen.get(f.name, f) for f in self.rows.schema])
            [self.shown[place]] = self.rows.slice(place, 1).cast(schema).to_pylist()
        return dict(self.shown[place])

    def between(self, start: bytes | None, stop: bytes | None) -> pa.Table:
        low = 0 if start is None else bisect_left(self.keys, start, key=_bytes)
        high = len(self.keys) if stop is None else bisect_left(self.keys, stop, key=_bytes)
        return self.rows.slice(low, max(0, high - low))


def _bytes(key: Any) -> bytes:
    found: bytes = key.as_py()
    return found


class Answers:
    """Of one open store. May be used from any thread; what is worked out is worked out by one at a time."""

    def __init__(self, store: Store) -> None:
        self._store = weakref.ref(store)
        self._most = store.lazy_cache
        self._lock, self._working = threading.Lock(), threading.Lock()
        self._stage: Stage | None = None
        self._manifest: tuple[int, Manifest] = (-1, Manifest())
        self._known: OrderedDict[tuple[int, bytes], Answer] = OrderedDict()
        self._made_of: dict[int, tuple[object, Runs]] = {}
        """Of each view whose answers are known: its plan, and what they were made from."""
        self._held = 0
        self._asked: dict[int, tuple[int, Asked]] = {}

    def between(self, pinned: Pinned, table: Table, start: bytes | None, stop: bytes | None) -> pa.Table:
        return self._asked_for(pinned, _view(pinned, table), start, stop).between(start, stop)

    def row(self, pinned: Pinned, table: Table, key: bytes) -> dict[str, Any] | None:
        view = _view(pinned, table)
        found = self._remembered(pinned, view, key)
        return (found or self._asked_for(pinned, view, key, key + b"\0")).row(table, key)

    def of(self, pinned: Pinned, table: Table, keys: pa.Table) -> pa.Table:
        view = _view(pinned, table)
        asked = self._asked_of(pinned, view)
        names = [c.name for c in table.key_columns]
        values = [_without_null(pc.unique(keys[name].combine_chunks())) for name in names]
        whole = self._remembered(pinned, view, b"")
        if whole is None and asked.narrows(values):
            found = self._worked_out(pinned, view, asked, values)
        else:
            found = whole or self._answer(pinned, view, asked, b"", ())
        wanted = pc.is_in(found.keys, value_set=encode_keys(table, keys.select(names)))
        return found.rows.filter(wanted)

    def count(self, pinned: Pinned, table: Table) -> int:
        whole = self._remembered(pinned, view := _view(pinned, table), b"")
        if whole is not None:
            return int(whole.rows.num_rows)
        return max((sum(e.rows for e in runs) for runs in self._runs(pinned, view)), default=0)

    def close(self) -> None:
        with self._working, self._lock:
            if self._stage is not None:
                self._stage.close()
            self._stage = None
            self._known.clear()

    def _asked_for(self, pinned: Pinned, view: View, start: bytes | None, stop: bytes | None) -> Answer:
        """An answer that has the rows of a range, and maybe others."""
        prefix, values = known_columns(view.table, start, stop)
        asked = self._asked_of(pinned, view)
        if not asked.narrows(values):
            prefix, values = b"", ()
        return self._answer(pinned, view, asked, prefix, values)

    # -- what is remembered -------------------------------------------------------------------------------------------

    def _answer(
        self, pinned: Pinned, view: View, asked: Asked, prefix: bytes, values: Sequence[pa.Array | None]
    ) -> Answer:
        found = self._remembered(pinned, view, prefix)
        if found is None:
            found = self._worked_out(pinned, view, asked, values)
            after = successor(prefix) if prefix else None
            rows = found.between(prefix or None, after)
            found = found if rows.num_rows == found.rows.num_rows else _answer(view.table, rows)
            self._remember(pinned, view, prefix, found)
        return found

    def _remembered(self, pinned: Pinned, view: View, prefix: bytes) -> Answer | None:
        """What is known of keys that begin so, or of all, if it holds for the pinned batch."""
        number = view.table.id
        runs = self._runs(pinned, view)
        with self._lock:
            made_of = self._made_of.get(number)
            if made_of is None or made_of[0] is not view.stored or made_of[1] != runs:
                return None
            for known in (prefix, b""):
                if (found := self._known.get((number, known))) is not None:
                    self._known.move_to_end((number, known))
                    return found
        return None

    def _remember(self, pinned: Pinned, view: View, prefix: bytes, answer: Answer) -> None:
        number, made_of = view.table.id, (view.stored, self._runs(pinned, view))
        with self._lock:
            known = self._made_of.get(number)
            if known is None or known[0] is not made_of[0] or known[1] != made_of[1]:
                for name in [n for n in self._known if n[0] == number]:
                    self._held -= self._known.pop(name).size
                self._made_of[number] = made_of
            if answer.size <= self._most and (number, prefix) not in self._known:
                self._known[number, prefix] = answer
                self._held += answer.size
            while self._held > self._most:
                self._held -= self._known.popitem(last=False)[1].size

    def _runs(self, pinned: Pinned, view: View) -> Runs:
        listed = self._listed(pinned.batch).runs
        return tuple(listed.get(slot, ()) for slot in self._asked_of(pinned, view).slots)

    def _listed(self, batch: Batch) -> Manifest:
        number, manifest = self._manifest
        if number != batch.number:
            manifest = Manifest.from_json(batch.record["manifest"])
            self._manifest = batch.number, manifest
        return manifest

    # -- what is worked out -------------------------------------------------------------------------------------------

    def _asked_of(self, pinned: Pinned, view: View) -> Asked:
        number, version = view.table.id, pinned.catalog.version
        known = self._asked.get(number)
        if known is None or known[0] != version:
            known = self._asked[number] = version, asked_of(pinned.catalog, view)
        return known[1]

    def _worked_out(self, pinned: Pinned, view: View, asked: Asked, values: Sequence[pa.Array | None]) -> Answer:
        with self._working:
            try:
                stage = self._at(self._listed(pinned.batch))
                try:
                    reached = worked_out(stage, asked, values)
                except BrokenViews:
                    if not values:
                        raise
                    # Rows beside those that matter may be what failed, in a way that they do not if all are there.
                    reached = worked_out(stage, asked, ())
                return _answer(view.table, stored_rows(stage, view.table, reached))
            except (FileNotFoundError, CorruptState) as error:
                raise SnapshotGone(
                    f"The state of {view.table.name} at batch {pinned.batch.number} is gone: {error}"
                ) from error

    def _at(self, manifest: Manifest) -> Stage:
        if self._stage is None:
            store = self._store()
            if store is None:
                raise SnapshotGone("The database is closed.")
            state = State(store.state_path, manifest)
            self._stage = Stage(weakref.proxy(store), state, no_spark, durable=False, threads=1)
        elif self._stage.state.manifest is not manifest:
            self._stage.state.adopt(manifest)
        return self._stage


def _answer(table: Table, rows: pa.Table) -> Answer:
    rows = rows.combine_chunks()
    keys = encode_keys(table, rows)
    return Answer(keys, rows, int(rows.nbytes + keys.nbytes) + _OVERHEAD)


def _view(pinned: Pinned, table: Table) -> View:
    view = pinned.catalog.views_by_id.get(table.id)
    if view is None:
        raise UnknownName(f"{table.name} was dropped.")
    if view.suspended is not None:
        raise without_rows(table.name, view.suspended)
    return view


def _without_null(values: pa.Array) -> pa.Array | None:
    return None if values.null_count or pa.types.is_floating(values.type) else values


_all: weakref.WeakKeyDictionary[Store, Answers] = weakref.WeakKeyDictionary()
_lock = module_lock()


def answers_of(store: Store) -> Answers:
    with _lock:
        found = _all.get(store)
        if found is None:
            found = _all[store] = Answers(store)
            weakref.finalize(store, found.close).atexit = False  # a forked child would wait for the parent's threads
        return found
