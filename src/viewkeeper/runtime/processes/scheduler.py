"""Other processes that take part in a batch: which part each has, and when they are worth it.

1  batches of a sort come again, and their operators take long enough: partners are started, in the background
2  the flow is divided by what its operators took (`plan.parts`), once for each set of tables that change
3  they rehearse the last batch, in the background: files are mapped, statements prepared
4  from then on it is one of the ways to run such a batch (`hands`)
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TypeVar

from viewkeeper.plan.dataflow.dataflow import Flow
from viewkeeper.plan.dataflow.shared_paths import shared
from viewkeeper.plan.dataflow.sharing_hints import Wishes
from viewkeeper.resources.memory import Memory
from viewkeeper.runtime.inputs import Given, Rows
from viewkeeper.runtime.processes.pool import Heard, Partners, Task
from viewkeeper.runtime.processes.worker import Work
from viewkeeper.state.open_state import State

# A flow in parts by its views: for processes that run one each.
#
#     part = some views, and every operator behind them
#
# What views of several parts need is in each of those, and each works it out for itself: arrangements of base tables,
# and lookups that views share. (Of the 22 TPC-H views in two parts that is a twentieth of all work.) The state of such
# an operator is kept by the first part that has it.


@dataclass(frozen=True)
class Part:
    """A flow of some of the views. `keeps`: the slots whose new runs count."""

    flow: Flow
    keeps: frozenset[str]


def divided(flow: Flow, seconds: Mapping[str, float], count: int) -> tuple[Part, ...]:
    """So many parts that take about as long, by what operators took; fewer if there are fewer views.

    The views that take longest are dealt out first, each to the part that is then done soonest: one that has done most
    of what the view needs is.
    """

    def took(names: Set[str]) -> float:
        return sum(seconds.get(name, 0.0) for name in names)

    behind = {view: flow.behind(made.operators) for view, made in flow.views.items()}
    parts: list[set[str]] = [set() for _ in range(min(count, len(behind)))]
    views: list[list[int]] = [[] for _ in parts]
    each = {view: took(names) for view, names in behind.items()}
    sums = [0.0] * len(parts)
    for view in sorted(behind, key=lambda v: (-each[v], v)):
        after = [done + took(behind[view] - part) for done, part in zip(sums, parts, strict=True)]
        chosen = min(range(len(parts)), key=lambda i: (after[i], len(views[i]), i))
        parts[chosen] |= behind[view]
        views[chosen].append(view)
        sums[chosen] = after[chosen]
    if parts:  # what no view needs is kept for later ones
        parts[0] |= flow.behind(flow.operators.keys() - set().union(*parts))
    found: list[Part] = []
    kept: set[str] = set()
    for names, mine in zip(parts, views, strict=True):
        one = _only(flow, names, frozenset(mine))
        found.append(Part(one, frozenset(one.slots) - kept))
        kept |= one.slots.keys()
    return tuple(found)


def _only(flow: Flow, names: Set[str], views: frozenset[int]) -> Flow:
    mine = {view: made for view, made in flow.views.items() if view in views}
    needed = Counter(name for made in mine.values() for name in made.operators)
    return replace(
        flow,
        operators={name: operator for name, operator in flow.operators.items() if name in names},
        views=mine,
        consumers={
            name: [way for way in ways if way[0] in names] for name, ways in flow.consumers.items() if name in names
        },
        images={table: [i for i in images if i.id in names] for table, images in flow.images.items()},
        slots={slot: name for slot, name in flow.slots.items() if name in names},
        counted=replace(flow.counted, operators=needed),
    )


T = TypeVar("T")

_MOST = 4
"""Processes that run a batch at most, this one among them: each does again what views share."""
_LONG = 0.05
"""Seconds of a batch's operators from which partners are worth their memory."""
_ALIKE = 2
"""Batches alike, after which more of them are expected."""
_CLOCKS = 4
"""Batches whose operators' times are remembered."""
_TOOK = 8
"""Batches whose parts are compared."""
_UNEVEN = 1.4
"""How many times as long as another a part takes that is too large."""
_KINDS = 8
"""Sets of tables that change together, whose divisions are remembered."""


@dataclass(frozen=True)
class Share:
    """A part in the form in which a batch runs it, under the token by which a partner knows it."""

    part: Part
    form: Flow
    token: str


@dataclass
class _Kind:
    """Batches of one flow that change the same tables: what its operators took, and how it is divided, if it is."""

    flow: Flow
    clocks: list[Mapping[str, float]] = field(default_factory=list)
    shares: Sequence[Share] = ()
    took: list[tuple[float, ...]] = field(default_factory=list)
    """Seconds of everybody's part in the last batches."""

    @property
    def is_uneven(self) -> bool:
        """Whether one waits for another most of the time."""
        usual = [statistics.median(each) for each in zip(*self.took, strict=True)]
        return len(self.took) >= _TOOK and max(usual) > _UNEVEN * min(usual)


class Company:
    """The partners of one stage, over its state. `close` ends them."""

    def __init__(self, state: State, threads: int, durable: bool, memory: Memory) -> None:
        self._state, self._durable, self._memory = state, durable, memory
        self._partners = Partners(min(threads, _MOST) - 1 if state.directory.is_local else 0)
        self._kinds: OrderedDict[tuple[frozenset[int], Wishes], _Kind] = OrderedDict()

    def close(self) -> None:
        self._partners.close()

    def shares(self, flow: Flow, changed: frozenset[int], wishes: Wishes) -> Sequence[Share]:
        """Everybody's part of such a batch, this process's first, if all are ready for it; else none."""
        known = self._kinds.get((changed, wishes))
        if known is None or known.flow is not flow or len(known.shares) < 2:
            return ()
        return known.shares if self._partners.look() and self._partners.knows(_tokens(known.shares)) else ()

    def run(
        self, number: int, shares: Sequence[Share], given: Mapping[str, Given], mine: Callable[[], T]
    ) -> tuple[T, list[Heard]]:
        """What comes of this process's part, and of the others'. Alone if one of them did not do it."""
        ended = started = time.perf_counter()

        def timed() -> T:
            nonlocal ended
            found = mine()
            ended = time.perf_counter()
            return found

        found, heard = self._partners.run(self._tasks(number, shares, given), timed)
        for known in self._kinds.values():
            if known.shares is shares:
                known.took = [*known.took[1 - _TOOK :], (ended - started, *(h.done.seconds for h in heard))]
        return found, heard

    def note(
        self,
        number: int,
        flow: Flow,
        changed: frozenset[int],
        wishes: Wishes,
        given: Mapping[str, Given],
        clock: Mapping[str, float],
        seen: int,
    ) -> None:
        """A batch was run by this process alone, its operators took so long, and `seen` were like it."""
        if not self._partners.count or seen < _ALIKE or len(flow.views) < 2 or sum(clock.values()) < _LONG:
            return
        self._partners.start()
        known = self._kind(flow, changed, wishes)
        known.clocks = [*known.clocks[1 - _CLOCKS :], clock]
        if len(known.clocks) < _ALIKE or not self._partners.look():
            return
        if not known.shares or known.is_uneven:
            known.took = []
            parts = divided(flow, _least(known.clocks), 1 + self._partners.count)
            if [p.keeps for p in parts] != [share.part.keeps for share in known.shares]:
                known.shares = [Share(p, shared(p.flow, changed, wishes), secrets.token_hex(8)) for p in parts]
        if not self._partners.knows(_tokens(known.shares)):
            self._partners.rehearse(self._tasks(number, known.shares, given))

    def _kind(self, flow: Flow, changed: frozenset[int], wishes: Wishes) -> _Kind:
        known = self._kinds.get((changed, wishes))
        if known is None or known.flow is not flow:
            known = self._kinds[changed, wishes] = _Kind(flow)
        self._kinds.move_to_end((changed, wishes))
        if len(self._kinds) > _KINDS:
            self._kinds.popitem(last=False)
        return known

    def _tasks(self, number: int, shares: Sequence[Share], given: Mapping[str, Given]) -> list[Task]:
        runs = self._state.manifest.runs
        rows = {name: [g.table] for name, g in given.items() if isinstance(g, Rows) and g.count}
        found = []
        for share in shares[1:]:
            work = Work(
                number=number,
                token=share.token,
                active=share.form.in_batches,
                manifest={slot: runs[slot] for slot in share.part.flow.slots if slot in runs},
                keeps=share.part.keeps,
                directory=str(self._state.directory),
                durable=self._durable,
                memory=self._memory.divided(len(shares)).total,
            )
            found.append(Task(work, share.form, {n: tables for n, tables in rows.items() if n in share.form.operators}))
        return found


def _tokens(shares: Sequence[Share]) -> list[str]:
    """Of the partners' shares."""
    return [share.token for share in shares[1:]]


def _least(clocks: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """What each operator took when nothing got in its way."""
    return {name: min(clock[name] for clock in clocks if name in clock) for name in set().union(*clocks)}
