"""LATEST without waiting: a view of one table as the batch that is due will publish it.

    view now  =  view at the published batch  +  what its operators make of the log since the batch's cut

The operators and their state are the maintainer's; the state is immutable files; and the log, the batch record and the
view's rows are read in one state of the store. So any process can run them, and what it gets is what the next batch
publishes if it ends there. Nothing is written, and nobody has to maintain. It is done for views of a single table,
whose operators need little beside the changed rows, while not too much waits; other views wait for their batch
(`levels`). What was worked out is kept until the log or the batch goes on.

Of a member of a family the family's operators run, as if it had no other member (`one_member`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import CorruptState, Defect, SnapshotGone
from viewkeeper.maintain.definitions.families import rows_of
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.model.catalog.view import View
from viewkeeper.model.encoding.keys import encode_keys, encode_whole_key
from viewkeeper.model.schema import Table
from viewkeeper.operators.kinds.input import Input
from viewkeeper.operators.operator import slots
from viewkeeper.plan.dataflow import cache
from viewkeeper.plan.dataflow.dataflow import Flow
from viewkeeper.read.access.path import Wanted
from viewkeeper.read.access.scan import fetch
from viewkeeper.read.freshness import LATEST, After, Level, has, position_of
from viewkeeper.read.lazy.evaluate import no_spark
from viewkeeper.read.row_overlay import Followed, Running
from viewkeeper.read.rows import checked_key
from viewkeeper.read.state import Pins
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.runtime.context import Site
from viewkeeper.runtime.executor import Stage, given_rows
from viewkeeper.runtime.local.scheduler import run_in_driver
from viewkeeper.runtime.upserts import resolve
from viewkeeper.state.manifest import Manifest
from viewkeeper.state.open_state import State
from viewkeeper.state.run import Arrangement, Run
from viewkeeper.store.contract.commits import Batch, Changed, Pinned, ViewChange
from viewkeeper.store.contract.store import Store

# A family as if it had one member: what its operators are given, and what comes of it, restricted to that member.
#
#     family(D, P)  =  Σ over members p:  family(D, {p})
#
# The family is linear in its members, so the rows of one are those that the same operators give over its parameters
# alone. It costs what the changed rows cost, however many other members there are.


ArrangementOfSlot = Callable[[str], Arrangement]


@dataclass(frozen=True)
class One:
    """A member: its table, and the parameters it has, as a row of their table."""

    table: Table
    parameters: Table
    row: pa.Table

    @staticmethod
    def of(catalog: Catalog, member: View) -> One:
        parameters = catalog.tables_by_id[catalog.keeper(member).parameters]
        return One(member.table, parameters, rows_of(parameters, [member]))

    def state(self, flow: Flow, active: frozenset[str], state: ArrangementOfSlot) -> ArrangementOfSlot:
        """The state of operators that make members' rows, with this one for all of them."""
        operators = map(flow.operators.__getitem__, active)
        found = {slots(o)[o.members_slot] for o in operators if o.members_slot is not None}

        def restricted(slot: str) -> Arrangement:
            whole = state(slot)
            if slot not in found:
                return whole
            return Arrangement(tuple(Run(self._own(run.rows, [f"p{i}" for i in self._places])) for run in whole.runs))

        return restricted

    def changes(self, given: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """Changes of tables, those of parameters being of this member's only."""
        name, names = Input(self.parameters.id).id, [k.column for k in self.parameters.key]
        return {source: self._own(rows, names) if source == name else rows for source, rows in given.items()}

    def part(self, change: ViewChange) -> ViewChange:
        """What of a family's change is this member's, as its own table has it."""
        parts = []
        for rows, columns in (
            (change.puts, [f.name for f in self.table.arrow]),
            (change.deletes, [k.column for k in self.table.key]),
        ):
            keys = encode_keys(change.table, rows)
            mine = pc.starts_with(keys, self.table.prefix) if len(keys) else pa.array([], pa.bool_())
            parts.append(rows.filter(mine).select(columns))
        return ViewChange(self.table, *parts)

    @property
    def _places(self) -> range:
        return range(self.row.num_columns)

    def _own(self, rows: pa.Table, names: list[str]) -> pa.Table:
        """Rows with these values in these columns; there may be some of members that compare equal."""
        for place, name in zip(self._places, names, strict=True):
            rows = rows.filter(pc.equal(rows.column(name), self.row.column(place)[0]))
        return rows


MOST_ROWS = 100_000
"""Changed rows that may wait; with more, a batch is waited for."""


@dataclass(frozen=True)
class Ahead:
    """What a view has ahead of its published batch: the keys that change, and the rows of those that are there."""

    change: ViewChange | None
    places: Mapping[bytes, int]
    """By encoded key, the place of its row; −1: it goes."""

    def get(self, pinned: Pinned, table: Table, key: tuple[Any, ...]) -> dict[str, Any] | None:
        """One row by its whole key, as `Store.get` gives it."""
        place = self.places.get(encode_whole_key(table, key)) if self.places else None
        if place is None or self.change is None:
            return pinned.get(table, key)
        if place < 0:
            return None
        row = self.change.puts.slice(place, 1)
        found: dict[str, Any] = row.cast(_stored_outside(table)).to_pylist()[0]
        return found

    def changed(self) -> Changed | None:
        """The same, as `Pinned.later` says it of a table."""
        if self.change is None:
            return None
        names = self.change.deletes.column_names
        return Changed(pa.concat_tables([self.change.deletes, self.change.puts.select(names)]), self.change.puts)


def _stored_outside(table: Table) -> pa.Schema:
    outside = {f.name: f for f in table.outside}
    return pa.schema([outside.get(f.name, f) for f in table.arrow])


NOTHING = Ahead(None, {})


class Overlays:
    """Of one open database. May be used from any thread; what is worked out is worked out by one at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._stage: Stage | None = None
        self._known: dict[int, tuple[tuple[int, int, int], Ahead]] = {}
        self._able: dict[str, tuple[int, bool]] = {}
        self._running: dict[int, tuple[tuple[int, int], Running]] = {}

    def can(self, catalog: Catalog, name: str) -> bool:
        """Whether a view is one that need not wait."""
        known = self._able.get(name)
        if known is not None and known[0] == catalog.version:
            return known[1]
        view, can = catalog.find(name), self._store.capabilities
        found = isinstance(view, View) and can.snapshot_scan and can.before_images and view.table.is_stored
        if isinstance(view, View) and found and view.suspended is None and view.at is None:
            kept = catalog.keeper(view)
            found = (
                len(cache.maintained(self._store, catalog).views[kept.table.id].tables.keys() - {kept.parameters}) == 1
            )
        else:
            found = False
        self._able[name] = (catalog.version, found)
        return found

    def running(self, pinned: Pinned, view: View) -> Followed | None:
        """A view as few changes after its batch have left it, for reads by key; None if it is not done so."""
        if "manifest" not in pinned.batch.record:
            return None
        at = (pinned.batch.number, pinned.catalog.version)
        with self._lock:
            known = self._running.get(view.table.id)
            if known is None or known[0] != at:
                if known is not None and known[0] > at:
                    return None  # a state before the one that others have read since
                state = partial(self._published, pinned.batch)
                known = self._running[view.table.id] = (at, Running(pinned.catalog, view, pinned, state))
            try:
                return known[1].follow(pinned)
            except (FileNotFoundError, CorruptState):  # merged since
                return None

    def _published(self, batch: Batch, slot: str) -> tuple[Arrangement, Duck]:
        stage = self._at(Manifest.from_json(batch.record["manifest"]))
        return stage.state.arrangement(slot), stage.crew.alone(1)

    def ahead(self, pinned: Pinned, view: View) -> Ahead | None:
        """What a view has ahead of the batch in a pinned state; None if too much waits, or its state is gone."""
        at = (pinned.batch.number, pinned.head, pinned.catalog.version)
        known = self._known.get(view.table.id)
        if known is not None and known[0] == at:
            return known[1]
        with self._lock:
            try:
                found = self._worked_out(pinned, view)
            except (FileNotFoundError, CorruptState, SnapshotGone):  # merged or truncated since
                return None
            if found is not None:
                self._known[view.table.id] = (at, found)
        return found

    def latest(self, name: str) -> Latest | None:
        """`latest` by key, of a view that could be read so before."""
        return latest(self._store, self, None, name, LATEST, None, by_key=True)

    def close(self) -> None:
        with self._lock:
            if self._stage is not None:
                self._stage.close()
            self._stage, self._known, self._running = None, {}, {}

    def _worked_out(self, pinned: Pinned, view: View) -> Ahead | None:
        if "manifest" not in pinned.batch.record:
            return None
        flow = cache.maintained(self._store, pinned.catalog)
        kept = pinned.catalog.keeper(view)
        cut, tables = pinned.batch.cut, list(flow.views[kept.table.id].tables)
        waiting = self._store.pending(cut, tables)
        if waiting.rows > MOST_ROWS:
            return None
        stage = self._at(Manifest.from_json(pinned.batch.record["manifest"]))
        duck = stage.crew.alone(1)
        given, _ = stage.capture.changes(flow, cut, pinned.head, {}, tables, waiting)
        active = frozenset(flow.in_batches & flow.behind([flow.sink(kept.table.id).id]))
        one = One.of(pinned.catalog, view) if view.is_member else None
        old = stage.state.arrangement if one is None else one.state(flow, active, stage.state.arrangement)
        site = Site(duck, flow, old, active, stage.memory)
        reached = run_in_driver(site, given_rows(given if one is None else one.changes(given))).get(kept.table.id, [])
        change = resolve(duck, _Rows(pinned), kept.table, reached, stage.memory)
        if not isinstance(change, ViewChange):
            return NOTHING
        change = change if one is None else one.part(change)
        places = dict.fromkeys(encode_keys(view.table, change.deletes).to_pylist(), -1)
        places |= {key: place for place, key in enumerate(encode_keys(view.table, change.puts).to_pylist())}
        return Ahead(change, places)

    def _at(self, manifest: Manifest) -> Stage:
        if self._stage is None:
            state = State(self._store.state_path, manifest)
            self._stage = Stage(self._store, state, no_spark, durable=False, threads=1)
        elif self._stage.state.manifest != manifest:
            self._stage.state.adopt(manifest)
        return self._stage


class Latest:
    """One view with what it has ahead, in a pinned state. It can be read once."""

    def __init__(self, store: Store, pinned: Pinned, view: View, ahead: Ahead | Followed) -> None:
        self._store, self._pinned, self._view, self._ahead = store, pinned, view, ahead
        self.table, self.epoch = view.table, pinned.batch.number
        self.position = max(pinned.head, ahead.upto) if isinstance(ahead, Followed) else pinned.head

    def close(self) -> None:
        self._pinned.close()

    def get(self, key: Any) -> dict[str, Any] | None:
        try:
            whole = checked_key(self.table, key)
            if isinstance(self._ahead, Followed):
                return self._ahead.get(self._pinned, whole)
            return self._ahead.get(self._pinned, self._view.table, whole)
        finally:
            self._pinned.close()

    def read(self, wanted: Wanted) -> pa.Table:
        try:
            if isinstance(self._ahead, Followed):
                raise Defect("What was looked up by key is not read as a whole.")
            changed = self._ahead.changed()
            ahead = {} if changed is None else {self._view.table.id: changed}
            source = Pins(self._store, self._pinned, at_cut=True, ahead=ahead)
            return fetch(source, replace(wanted, table=self._view.table))
        finally:
            self._pinned.close()


def latest(
    store: Store,
    overlays: Overlays,
    catalog: Catalog | None,
    name: str,
    level: Level,
    after: After,
    *,
    by_key: bool = False,
) -> Latest | None:
    """A view with every write call that has ended, without waiting; None if the published batch is new enough, or it
    has to be waited for. `catalog`: as it is now; None if the view could be read so before. `by_key`: one row is asked
    for."""
    if catalog is not None and not overlays.can(catalog, name):
        return None
    position = position_of(store, after)
    if level is not LATEST and catalog is not None and position is not None and has(store, catalog, name, position):
        return None
    pinned = store.pin()
    try:
        view = pinned.catalog.find(name)
        if isinstance(view, View) and not view.table.with_writes and overlays.can(pinned.catalog, name):
            runs = by_key and not view.is_member
            ahead = (overlays.running(pinned, view) if runs else None) or overlays.ahead(pinned, view)
            if ahead is not None:
                found, pinned = Latest(store, pinned, view, ahead), None  # type: ignore[assignment]
                return found
        return None
    finally:
        if pinned is not None:
            pinned.close()


class _Rows:
    """A pinned state for who counts a bag's rows."""

    def __init__(self, pinned: Pinned) -> None:
        self._pinned = pinned

    def get_many(self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        return self._pinned.find(table, keys, columns)
