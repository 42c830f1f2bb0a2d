"""Synchronous views: a write call takes its views with it, or is refused with them.

    Δ of the call  ─▶  the view's operators, over the shelves of their state  ─▶  Δ of the view, Δ of the shelves

The law is that of a batch: old is what the state shows before the call, new is old + Δ. Only where the state lies is
another: in the store, by key, in the transaction that writes the rows (`operators.shelves`). So a view is right after
every single call, whoever wrote, and whether or not anybody maintains; and a change that it cannot follow (a sum that
overflows, a division by zero) is an error before anything is written.

What can be kept so are operators that need no other rows than those that arrive and those on their shelves: filters,
projections, and aggregates.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from viewkeeper import expressions
from viewkeeper.errors import EvaluationError, Unsupported
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.encoding.rows import plain_row
from viewkeeper.model.schema import Table
from viewkeeper.operators.aggregation.encoded_sums import Encoded, Sums
from viewkeeper.operators.aggregation.row_groups import Change, Groups, Lying, Placed, Row, linear, placed
from viewkeeper.operators.aggregation.row_sums import AtHand, Rewritten, Tally
from viewkeeper.operators.chunked_execution import joined
from viewkeeper.operators.keyed_state import Fetched, fetched, summed
from viewkeeper.operators.kinds import Input
from viewkeeper.operators.operator import Operator, slots
from viewkeeper.plan.dataflow.cache import in_writes
from viewkeeper.plan.dataflow.dataflow import Flow
from viewkeeper.resources.memory import Memory
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.resources.process_budget import budget
from viewkeeper.runtime.context import Fed, Site
from viewkeeper.runtime.inputs import Given, Rows
from viewkeeper.runtime.local.scheduler import run_in_driver
from viewkeeper.runtime.operator_errors import attributed_to
from viewkeeper.runtime.upserts import resolve
from viewkeeper.state.run import Arrangement
from viewkeeper.store.contract.commits import ViewChange
from viewkeeper.store.contract.write_observer import Reading

_KEPT = 256
"""Flows that a process remembers."""


@dataclass(frozen=True)
class Made:
    """A view's flow by itself: its operators, sources first, and the tables of each one's shelves, by slot."""

    view: Table
    flow: Flow
    active: frozenset[str]
    shelved: Mapping[str, Sequence[tuple[Table, ...]]]

    @property
    def tables(self) -> tuple[int, ...]:
        return tuple(sorted(self.flow.used))

    @cached_property
    def few(self) -> Few | None:
        """How few rows go through it without a statement: the view's end, and one aggregate before it at most."""
        segments = self.flow.sink(self.view.id).source
        source = self.flow.operators[segments[0].source]
        end = placed(self.view, [source.plainly(segment) for segment in segments])
        if end is None or source.changes_of is not None:
            return None if end is None else Few(None, end)
        groups = source.few(self.shelved.get(source.id, ()))
        fed = {self.flow.operators[s.source].changes_of for s in source.segments()}
        return None if groups is None or None in fed else Few(groups, end)


@dataclass(frozen=True)
class Few:
    """The way of few rows through a view."""

    groups: Groups | None
    end: Placed

    def changes(self, before: Sequence[Row], after: Sequence[Row], lying: Lying) -> list[Change] | None:
        if self.groups is None:
            return linear(self.end, before, after)
        found = self.groups.step(before, after, lying, self.end.named_by)
        if found is None:
            return None
        state, was, now = found
        return [*state, *linear(self.end, was, now)]

    @cached_property
    def tally(self) -> Tally | None:
        """The shorter way of few rows through a view of sums."""
        return None if self.groups is None else self.groups.tally(self.end)

    @cached_property
    def sums(self) -> Sums | None:
        """The way of many rows, if there is one beside that of the operators."""
        return None if self.groups is None else self.groups.of_many(self.end)


def made(catalog: Catalog, view: View, numbers: Sequence[int] | None = None) -> Made:
    """The flow of a view, its state under these numbers. Unsupported, with the reason, if no write can keep it."""
    flow = in_writes(catalog, view)
    active = flow.behind([flow.sink(view.table.id).id])
    stateful: dict[str, Sequence[tuple[Table, ...]]] = {}
    left = iter(numbers if numbers is not None else range(1 << 30))
    for name in flow.ordered(active):
        operator = flow.operators[name]
        if not operator.fits_in_writes:
            raise Unsupported(
                f"{view.table.name} cannot be synchronous: it needs rows beside those of the write ({operator.kind}).",
                hint="Synchronous views filter, project and aggregate (count, sum, avg, min, max, DISTINCT); leave"
                " sync out, and batches keep it.",
            )
        if operator.shelves:
            stateful[name] = [tuple(shelf.table(next(left)) for shelf in slot) for slot in operator.shelves]
    return Made(view.table, flow, frozenset(active), stateful)


class Keeper:
    """Of one process: its DuckDB, and the flows of the views that it has met."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process = 0
        self._own: Duck | None = None
        self._memory = Memory(budget())
        self._known: dict[int, tuple[View, Sequence[Table | None], Made]] = {}

    def columns(self, catalog: Catalog, view: View, table: int) -> Sequence[str]:
        return [c.name for c in self._made(catalog, view).flow.used[table]]

    def changes(
        self, catalog: Catalog, view: View, deltas: Mapping[int, pa.Table], reading: Reading
    ) -> list[ViewChange]:
        given: dict[str, Given] = {Input(table).id: Rows(delta) for table, delta in deltas.items()}
        with self._lock:
            try:
                return self._run(self._made(catalog, view), view, given, reading, self._memory)
            except Exception as error:
                found = expressions.error_code(error)
                if found is None:
                    raise
                raise EvaluationError(
                    f"{view.table.name} is synchronous and cannot follow this write, which is refused: {found.message}",
                    hint="Nothing was written. Correct the rows, or drop the view.",
                ) from error

    def few(
        self, catalog: Catalog, view: View, table: int, images: Sequence[tuple[bytes, bytes]], lying: Lying
    ) -> list[Change] | None:
        few = self._made(catalog, view).few
        if few is None:
            return None
        rows = catalog.tables_by_id[table].inside
        before = [plain_row(rows, was) for was, _ in images if was]
        return few.changes(before, [plain_row(rows, now) for _, now in images if now], lying)

    def sums(
        self, catalog: Catalog, view: View, table: int, before: Sequence[bytes], after: Sequence[bytes], lying: AtHand
    ) -> list[Rewritten] | None:
        few = self._made(catalog, view).few
        tally = None if few is None else few.tally
        return None if tally is None else tally.changes(catalog.tables_by_id[table].inside, before, after, lying)

    def many(
        self, catalog: Catalog, view: View, table: int, delta: Callable[[Sequence[str]], pa.Table], reading: Reading
    ) -> list[Encoded] | None:
        few = self._made(catalog, view).few
        sums = None if few is None else few.sums
        return None if sums is None else sums.changes(delta(self.columns(catalog, view, table)), reading)

    def first(self, catalog: Catalog, view: View, tables: Mapping[int, pa.Table], memory: Memory) -> list[ViewChange]:
        """The rows of a view and of its state, from whole tables as deltas from nothing."""
        given: dict[str, Given] = {Input(table).id: Rows(delta) for table, delta in tables.items()}
        with self._lock:
            try:
                return self._run(self._made(catalog, view), view, given, _NOTHING, memory)
            except Exception as error:
                found = expressions.error_code(error)
                if found is None:
                    raise
                raise EvaluationError(f"{view.table.name}: {found.message}") from error

    def _run(
        self, made: Made, view: View, given: Mapping[str, Given], reading: Reading, memory: Memory
    ) -> list[ViewChange]:
        duck = self.duck
        site = _Call(duck, made.flow, lambda _: Arrangement(), made.active, memory)
        site.shelved, site.reading = made.shelved, reading
        seeds: list[Fed] = []
        for operator in (made.flow.operators[n] for n in made.active) if reading is _NOTHING else ():
            with attributed_to(operator.id):
                seeds += [(operator.id, *fed) for fed in operator.seed(duck)]
        reached = run_in_driver(site, given, seeds).get(view.table.id, [])
        with attributed_to(made.flow.sink(view.table.id).id):
            rows = resolve(duck, _Counted(reading), view.table, reached, memory)
        return [*([rows] if isinstance(rows, ViewChange) else []), *site.stored()]

    def _made(self, catalog: Catalog, view: View) -> Made:
        """Worked out once for a view and its tables as they are."""
        if view.sync is None:
            raise Unsupported(f"{view.table.name} is not synchronous.")
        tables = [catalog.tables_by_id.get(table) for table in view.sync.of]
        known = self._known.get(id(view.plan))
        if known is None or known[0].plan is not view.plan or known[1] != tables:
            if len(self._known) >= _KEPT:
                self._known.clear()
            known = self._known[id(view.plan)] = (view, tables, made(catalog, view, view.sync.state))
        return known[2]

    @property
    def duck(self) -> Duck:
        """A forked child cannot use its parent's."""
        if self._own is None or self._process != os.getpid():
            self._own, self._process = Duck(expressions.setup, threads=1), os.getpid()
        return self._own


@dataclass
class _Call(Site):
    """Operators within a write call: before one runs, what it may need of its state is read from its shelves."""

    shelved: Mapping[str, Sequence[tuple[Table, ...]]] = field(default_factory=dict)
    reading: Reading | None = None
    fetched: dict[str, Fetched] = field(default_factory=dict)

    def run(self, operator: Operator, ports: Sequence[Sequence[pa.Table]]) -> Iterator[pa.Table]:
        if operator.id in self.shelved and self.reading is not None:
            touched = joined(ports[0])
            lying = zip(slots(operator), operator.shelves, self.shelved[operator.id], ports, strict=True)
            for slot, shelves, tables, arrived in lying if touched is not None else ():
                self.fetched[slot] = fetched(self.reading, shelves, tables, arrived, touched)
        yield from super().run(operator, ports)

    def state(self, operator: Operator) -> list[Arrangement]:
        return [self.fetched[slot].state for slot in slots(operator)]

    def stored(self) -> Iterator[ViewChange]:
        """What the operators have added, as changes of their shelves."""
        for name, tables in self.shelved.items():
            operator = self.flow.operators[name]
            for slot, shelves, own in zip(slots(operator), operator.shelves, tables, strict=True):
                if (run := self.added.get(slot)) is not None:
                    for shelf, table in zip(shelves, own, strict=True):
                        yield ViewChange(table, *summed(shelf, table, self.fetched[slot].rows, run))


class _Nothing:
    """A store without rows."""

    def find(self, table: Table, keys: pa.BinaryArray) -> pa.Table:
        return table.arrow.empty_table()

    def range(self, table: Table, start: bytes | None, stop: bytes | None, limit: int | None) -> pa.Table:
        return table.arrow.empty_table()


_NOTHING = _Nothing()


class _Counted:
    """The rows of the store for who counts a bag's."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def get_many(self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        return self._reading.find(table, encode_keys(table, keys))
