"""The driver lane of a stage: rounds in this process, by one thread or several, or with partners beside it.

A first load and a batch of many rows keep all cores busy inside DuckDB, unless there is a table to sort and to write
beside that. A batch of many operators has many short calls: who runs them is a choice (`hands`, `company`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain

import pyarrow as pa

from viewkeeper.capture.changes import ROWS_FOR_MORE
from viewkeeper.plan.dataflow.dataflow import Flow, slots
from viewkeeper.plan.dataflow.sharing_hints import Wishes
from viewkeeper.resources.duckdb_pool import Crew
from viewkeeper.resources.memory import Memory
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.runtime.context import Fed, Site
from viewkeeper.runtime.cost_model import ONE, PROCESSES, SEVERAL, Hands
from viewkeeper.runtime.inputs import Given, Rows
from viewkeeper.runtime.local.scheduler import OnError, run_in_driver
from viewkeeper.runtime.local.scheduler import divides as operators_divide
from viewkeeper.runtime.processes.pool import Alone
from viewkeeper.runtime.processes.scheduler import Company, Share
from viewkeeper.state.open_state import State
from viewkeeper.state.run import Arrangement, Run
from viewkeeper.state.run_file import RunEntry
from viewkeeper.store.contract.store import StreamChange, ViewChange

_log = logging.getLogger("viewkeeper.batch")

_ROWS_AT_ONCE = 1_000_000
"""A run of so many rows has a file of its own and is written as soon as it is made, beside the work that goes on."""
_MANY_ROWS = 200_000
"""Changes from which several threads run a batch's operators in any case: their calls are long."""
_IN_VAIN = 4
"""How much worse than the time that it took a way is that led nowhere: so it is seldom tried again."""


@dataclass(frozen=True)
class Outcome:
    """What the rounds of a batch left: deltas at the sinks, and the runs they wrote."""

    reached: Mapping[int, list[pa.Table]]
    written: Callable[[], list[RunEntry]]
    """The runs, when they are in their files."""
    changes: Sequence[ViewChange | StreamChange] = ()
    """Of views whose deltas tasks have resolved already."""

    @cached_property
    def entries(self) -> list[RunEntry]:
        return self.written()


@dataclass(frozen=True)
class Rounds:
    """What is to run. `together`: the flow with the paths of different views made together, if they are; `new`
    operators have no state yet; with `only`, runs of other slots than these are not kept."""

    number: int
    flow: Flow
    together: Flow | None
    wishes: Wishes
    active: frozenset[str]
    given: Mapping[str, Given]
    new: frozenset[str]
    only: frozenset[str] | None
    seeds: Iterable[Fed]
    on_error: OnError
    told: Callable[[int, int], None] | None

    @cached_property
    def rows(self) -> int:
        return sum(g.table.num_rows for g in self.given.values() if isinstance(g, Rows))

    @cached_property
    def tables(self) -> frozenset[int]:
        """Those that changed."""
        found = (self.flow.operators[name].changes_of for name, rows in self.given.items() if rows.count != 0)
        return frozenset(table for table in found if table is not None)

    @cached_property
    def hidden(self) -> frozenset[str]:
        return frozenset(s for name in self.new for s in slots(self.flow.operators[name]))

    @property
    def divides(self) -> bool:
        """Whether there is work for several side by side."""
        if self.new:
            return _sorts(self.flow, self.active & self.new)
        return operators_divide(self.active) or (self.rows >= _ROWS_AT_ONCE and self._arranges)

    @property
    def _arranges(self) -> bool:
        """Whether a table that has changes is arranged by one of the operators."""
        return not self.tables.isdisjoint(self.flow.operators[name].arranges for name in self.active)

    @property
    def is_small(self) -> bool:
        return not self.new and self.rows < ROWS_FOR_MORE


@dataclass(frozen=True)
class _Scope:
    """What of the rounds this process runs: a form of the flow or of a part, with the rows for it."""

    form: Flow
    active: frozenset[str]
    given: Mapping[str, Given]
    only: frozenset[str] | None
    memory: Memory


class Driving:
    """Runs rounds over a state. `close` ends the processes beside this one."""

    def __init__(self, state: State, crew: Crew, memory: Memory, durable: bool) -> None:
        self._state, self._crew, self._memory, self._durable = state, crew, memory, durable
        self._hands = Hands()
        self._warned: set[str] = set()
        self._company = Company(state, crew.size, durable, memory)
        self.clock: Mapping[str, float] = {}
        """Seconds of the last run, by operator."""
        self.made: Mapping[str, int] = {}
        """Rows that it gave, by operator."""
        self.skipped: Mapping[str, int] = {}
        """Rows that its lookups did not make, since they lead nowhere."""
        self.way = ""
        """Who ran it, if there was a choice."""

    def close(self) -> None:
        self._company.close()

    def run(self, rounds: Rounds) -> Outcome:
        form = rounds.together or rounds.flow
        active = rounds.active if rounds.together is None else form.in_batches
        divides = rounds.divides
        duck = self._crew.together()[0] if divides else self._crew.alone(1 if rounds.is_small else None)
        self.way = ""
        whole = _Scope(form, active, rounds.given, rounds.only, self._memory)
        if rounds.new or rounds.rows >= _MANY_ROWS or not divides or self._crew.size == 1:
            return self._run(rounds, whole, duck, divides)
        sort = (rounds.tables, form.is_form, rounds.rows.bit_length())
        is_shared = rounds.together is not None and rounds.only is None
        kind = (rounds.flow, rounds.tables, rounds.wishes)
        shares = self._company.shares(*kind) if is_shared else ()
        self.way = self._hands.way(sort, (SEVERAL, ONE, *((PROCESSES,) if shares else ())))
        started = time.perf_counter()
        tried = self.way
        if tried == PROCESSES:
            try:
                found = self._with_partners(rounds, shares, duck)
                self._hands.learn(sort, tried, rounds.rows, time.perf_counter() - started)
                return found
            except Alone as failed:
                self.way = ONE
                self._warn(f"A batch was run without its partners: {failed}")
        found = self._run(rounds, whole, duck, self.way == SEVERAL)
        seconds = time.perf_counter() - started
        self._hands.learn(sort, tried, rounds.rows, seconds if tried == self.way else _IN_VAIN * seconds)
        if is_shared:
            try:
                self._company.note(rounds.number, *kind, rounds.given, self.clock, self._hands.seen(sort))
            except Exception as error:  # the batch is right without them
                self._warn(f"Partners could not be made ready: {type(error).__name__}: {error}")
        return found

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("%s", text)

    def _with_partners(self, rounds: Rounds, shares: Sequence[Share], duck: Duck) -> Outcome:
        form, part = shares[0].form, shares[0].part
        given = {name: rows for name, rows in rounds.given.items() if name in form.operators}
        mine = _Scope(form, form.in_batches, given, part.keeps, self._memory.divided(len(shares)))
        run = partial(self._run, rounds, mine, duck, False)
        found, heard = self._company.run(rounds.number, shares, rounds.given, run)
        reached = dict(found.reached)
        clock, made, skipped = Counter(self.clock), dict(self.made), dict(self.skipped)
        for share, (done, rows) in zip(shares[1:], heard, strict=True):
            reached |= rows
            clock.update(_told(share.form, done.clock))
            # What several parts work out, each gives alike.
            made |= {name: max(count, made.get(name, 0)) for name, count in done.made.items()}
            skipped |= {name: max(count, skipped.get(name, 0)) for name, count in done.skipped.items()}
        self.clock, self.made, self.skipped = clock, made, skipped
        entries = [entry for done, _ in heard for entry in done.entries]
        return Outcome(reached, lambda: [*found.entries, *entries])

    def _run(self, rounds: Rounds, scope: _Scope, duck: Duck, several: bool) -> Outcome:
        """What this process runs, by one thread or several."""
        written: dict[str, list[RunEntry]] = {}
        only = scope.only

        def keep(slot: str, run: Run) -> Run:
            if run.num_rows < _ROWS_AT_ONCE or (only is not None and slot not in only):
                return run
            written[slot] = self._state.write(rounds.number, {slot: run}, self._durable)
            # Behind a URL a long run is written in pieces; whoever goes on with it has it as it is.
            return self._state.mapped(written[slot][0]) if len(written[slot]) == 1 else run

        site = Site(duck, scope.form, partial(self._old, rounds.hidden), scope.active, scope.memory, keep)
        if rounds.told is not None:
            site.told = rounds.told
        reached = run_in_driver(site, scope.given, rounds.seeds, rounds.on_error, self._crew if several else None)
        self.clock, self.made, self.skipped = _told(scope.form, site.clock), site.made, site.skipped
        left = {s: run for s, run in site.added.items() if s not in written and (only is None or s in only)}
        write = partial(self._state.write, rounds.number, left, self._durable)
        beside = left and rounds.divides and not rounds.is_small
        rest = self._crew.beside(write) if beside else partial(list, write())
        return Outcome(reached, lambda: [*chain.from_iterable(written.values()), *rest()])

    def _old(self, hidden: frozenset[str], slot: str) -> Arrangement:
        return Arrangement(()) if slot in hidden else self._state.arrangement(slot)


def _told(flow: Flow, clock: Mapping[str, float]) -> Mapping[str, float]:
    """Seconds by operator: those of one that stands for others are theirs, in equal parts."""
    found = {name: seconds for name, seconds in clock.items() if not flow.operators[name].together}
    for name in clock.keys() - found.keys():
        others = flow.operators[name].stands_for
        for other in others:
            found[other] = found.get(other, 0.0) + clock[name] / len(others)
    return found


def _sorts(flow: Flow, names: frozenset[str]) -> bool:
    """Whether a load has tables to arrange, and no join that keeps all cores busy by itself."""
    loaded = [flow.operators[name] for name in names]
    return any(o.arranges is not None for o in loaded) and not any(o.only_loads for o in loaded)
