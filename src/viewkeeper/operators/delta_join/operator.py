"""Routes: the lookup paths of all views from the changes of one table, followed together.

    delta ──find──▶ +place in orders ──find──▶ +place in customer ──┬─▶ exit to q3's aggregate
      │                                                             └─▶ exit to q10's aggregate
      └──matches──▶ new rows: (delta's place, place in lineitem) ──▶ …

A row on its way (`underway`) is a tuple of places: its place in the delta, in orders, in customer, … A lookup by a
unique key adds a place to the same rows, so it is made once, whoever wants it and in whatever order; any other lookup
makes new rows. For each way out (an *exit*) a row has a bit: whether the exit still wants it. A condition takes the bit
from the rows that do not meet it, one statement for all conditions of all views that can be judged at this point, and a
lookup is made for the rows that somebody wants. Columns are taken at the exit, and only those that are used there.

    −1 row and +1 row of one key, alike in all that an exit uses  ⇒  the exit wants neither

What an exit gives is what the lookups that it stands for would have given, but for rows that cancel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from viewkeeper.errors import Defect
from viewkeeper.model.delta import identical_at
from viewkeeper.model.schema import WEIGHT, Column
from viewkeeper.operators.chunked_execution import stacked
from viewkeeper.operators.delta_join.partial_rows import Underway
from viewkeeper.operators.delta_join.plan import DELTA, Exit, Stretch, bits_of, steps_of, word_count, words_of
from viewkeeper.operators.delta_join.semijoin import Ahead, Look
from viewkeeper.operators.delta_join.semijoin_graph import Modes, Outlook, outlooks
from viewkeeper.operators.operator import Operator, Ports, Site
from viewkeeper.operators.segment import Segment
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.state.cursor import Lying
from viewkeeper.state.hash_index import Places, ascending
from viewkeeper.state.key_hash import hashes
from viewkeeper.state.run import Run, weights_of

_NOTHING = pa.table({WEIGHT: pa.array([], pa.int64())})
_WIDTH = 64
"""Bytes of a row on its way: a few places, the weight, the bits."""


@dataclass(frozen=True)
class Leaf(Segment):
    """The segment after the last lookup of a path, without the conditions that were judged on the way."""

    exit: Exit = field(default=Exit(-1, "", ()))


@dataclass(frozen=True)
class Routes(Operator):
    """All paths from the changes of one table. `alike`: groups of exits with the columns of the delta that they use
    beside the conditions on it alone."""

    delta: Segment
    key: tuple[str, ...]
    stretch: Stretch
    alike: tuple[tuple[tuple[str, ...], int], ...]
    exits: int
    read: tuple[tuple[str, frozenset[str]], ...]
    fresh: tuple[str, ...]
    lookups: tuple[str, ...]
    modes: Modes
    kind: ClassVar[str] = "routes"
    keyed: ClassVar[bool] = False
    together: ClassVar[bool] = True

    @cached_property
    def id(self) -> str:
        return f"routes-{self.delta.source}"

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return ((self.delta,),)

    @property
    def columns(self) -> tuple[Column, ...]:
        raise Defect("Routes have columns at their exits only.")

    @property
    def looked_up(self) -> tuple[str, ...]:
        return self.fresh

    @property
    def reads(self) -> Mapping[str, frozenset[str]]:
        return dict(self.read)

    @property
    def probed(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.read)

    @property
    def stands_for(self) -> tuple[str, ...]:
        return self.lookups

    def run(self, site: Site, ports: Ports) -> Iterator[Found]:
        if not ports[0]:
            return
        lying: dict[tuple[str, bool], Lying] = {}

        def look(arrangement: str, fresh: bool) -> Lying:
            if (arrangement, fresh) not in lying:
                slot = f"{arrangement}/0"
                lying[arrangement, fresh] = Lying((site.fresh(slot) if fresh else site.old(slot)).runs)
            return lying[arrangement, fresh]

        ahead = Ahead(site.duck, self.outlooks, self.modes, self.id, look)
        for piece in site.memory.pieces(stacked(ports[0])):
            yield from followed(ahead, self, piece.combine_chunks(), look, site.memory.rows(_WIDTH))
        for step in steps_of(self.stretch):
            for lookup in step.lookups if step.place in ahead.skipped else ():
                site.skipped[lookup] = ahead.skipped[step.place]

    @cached_property
    def outlooks(self) -> Mapping[int, Outlook]:
        return outlooks(self.stretch)


def routes_among(operators: Iterable[Operator]) -> Iterator[Routes]:
    """Those of a flow's form, for who tells what they share."""
    return (operator for operator in operators if isinstance(operator, Routes))


class Found:
    """Underway that have arrived at exits."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.by_source: Counter[str] = Counter()
        """Underway by the lookup that would have given them."""
        self._parts: dict[int, list[tuple[Underway, Places]]] = {}

    def add(self, exit_: Exit, rows: Underway, some: Places) -> None:
        self._parts.setdefault(exit_.number, []).append((rows, some))
        self.num_rows += len(some)
        self.by_source[exit_.source] += len(some)

    def at(self, way: Segment | None) -> pa.Table:
        """What arrived at the exit before this segment."""
        if not isinstance(way, Leaf):
            raise Defect("Underway leave their routes by exits only.")
        parts = self._parts.get(way.exit.number, ())
        if not parts:
            return _NOTHING
        tables = [rows.table(way.exit.taken, some) for rows, some in parts]
        return pa.concat_tables(tables).combine_chunks() if len(tables) > 1 else tables[0]


def arrived(output: pa.Table | Found) -> Mapping[str, int]:
    """How many rows an output has in the place of others', by those."""
    return output.by_source if isinstance(output, Found) else {}


def followed(ahead: Ahead, routes: Routes, delta: pa.Table, look: Look, most: int) -> Iterator[Found]:
    """The rows that arrive at the exits, about so many at a time."""
    count = delta.num_rows
    everyone = [np.full(count, bits_of(routes.exits, w)) for w in range(word_count(routes.exits))]
    lying = {DELTA: Lying([Run(delta)])}
    rows = Underway(ahead, lying, {DELTA: np.arange(count)}, weights_of(delta), everyone)
    for check in routes.stretch.checks:
        rows.judge(check, routes.exits)
    _cancel(ahead.duck, routes, delta, rows)
    found = Found()
    for exit_, mine, some in _exits(routes.stretch, rows, look, most):
        found.add(exit_, mine, some)
        if found.num_rows > most:
            yield found
            found = Found()
    if found.num_rows:
        yield found


def _exits(stretch: Stretch, rows: Underway, look: Look, most: int) -> Iterator[tuple[Exit, Underway, Places]]:
    for step in stretch.steps:
        rows.find(step, look(step.arrangement, step.fresh))
    for exit_ in stretch.exits:
        if len(some := rows.wanted(1 << exit_.number)):
            yield exit_, rows, some
    for step, after in stretch.onward:
        for more in rows.matches(step, look(step.arrangement, step.fresh), most):
            for check in after.checks:
                more.judge(check, step.exits)
            yield from _exits(after, more, look, most)


def _cancel(duck: Duck, routes: Routes, delta: pa.Table, rows: Underway) -> None:
    """A row that was changed only where an exit does not look goes neither way through it."""
    order = ascending(codes := hashes(duck, delta, routes.key))
    together = np.flatnonzero(codes[order[1:]] == codes[order[:-1]])
    one, other = order[together], order[together + 1]
    opposite = rows.weight[one] == -rows.weight[other]
    one, other = one[opposite], other[opposite]
    if not len(one):
        return
    same: dict[str, npt.NDArray[np.bool_]] = {}
    for columns, exits in routes.alike:
        is_same = np.ones(len(one), np.bool_)
        for name in dict.fromkeys([*columns, *routes.key]):  # the key at last: it is the same but for collisions
            if name not in same:
                same[name] = identical_at(delta.select([name]), one, other)
            is_same &= same[name]
            if not is_same.any():
                break
        if not is_same.any():
            continue
        first, second = one[is_same], other[is_same]
        for word in words_of(exits):
            bits = rows.bits[word]
            both = bits[first] & bits[second] & bits_of(exits, word)
            bits[first] &= ~both
            bits[second] &= ~both
