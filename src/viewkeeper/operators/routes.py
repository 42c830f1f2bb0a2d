"""Routes: the lookup paths of all views from the changes of one table, followed together.

    delta ──find──▶ +place in orders ──find──▶ +place in customer ──┬─▶ exit to q3's aggregate
      │                                                             └─▶ exit to q10's aggregate
      └──matches──▶ new rows: (delta's place, place in lineitem) ──▶ …

A row on its way is a tuple of places (`places`): its place in the delta, in orders, in customer, … A lookup by a
unique key adds a place to the same rows, so it is made once, whoever wants it and in whatever order; any other lookup
makes new rows. For each way out (an *exit*) a row has a bit: whether the exit still wants it. A condition takes the bit
from the rows that do not meet it, one statement for all conditions of all views that can be judged at this point, and a
lookup is made for the rows that somebody wants. Columns are taken at the exit, and only those that are used there.

    −1 row and +1 row of one key, alike in all that an exit uses  ⇒  the exit wants neither

What an exit gives is what the lookups that it stands for would have given, but for rows that cancel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from viewkeeper.errors import Defect
from viewkeeper.expressions.tree import Expr, column
from viewkeeper.model.chunks import one_chunk
from viewkeeper.model.delta import identical
from viewkeeper.model.schema import WEIGHT, Column
from viewkeeper.model.types import Type
from viewkeeper.operators.arrangement import Places, Run, weights_of
from viewkeeper.operators.duck import Duck
from viewkeeper.operators.hashing import hashes
from viewkeeper.operators.operator import Operator, Ports, Site
from viewkeeper.operators.places import Lying, Picked, Probe
from viewkeeper.operators.segments import Segment, where_sql
from viewkeeper.operators.steps import stacked

Words = npt.NDArray[np.uint64]
Ref = tuple[int, str]
"""A column of the row at a place: (number of the place, its name there). Place 0 is the delta's."""

BITS = 64
DELTA = 0


def referred(place: int, name: str, type_: Type, nullable: bool) -> Expr:
    return column(f"{place}.{name}", type_, nullable)


def ref_of(expr: Expr) -> Ref:
    place, _, name = str(expr.value).partition(".")
    return int(place), name


def refs_of(exprs: Iterable[Expr]) -> tuple[Ref, ...]:
    return tuple(sorted({ref_of(e) for expr in exprs for e in expr.walk() if e.op == "column"}))


@dataclass(frozen=True)
class Check:
    """Conditions that can be judged at one point: each conjunction with the exits that ask for it, as bits."""

    tests: tuple[tuple[tuple[Expr, ...], int], ...]

    @cached_property
    def refs(self) -> tuple[Ref, ...]:
        return refs_of(e for conjuncts, _ in self.tests for e in conjuncts)

    @cached_property
    def exits(self) -> int:
        found = 0
        for _, exits in self.tests:
            found |= exits
        return found

    @cached_property
    def sql(self) -> str:
        """For each word of bits that are asked for, the bits of the exits whose conditions a row meets."""
        shown = []
        for word in words_of(self.exits):
            parts = [(where_sql(conjuncts), exits >> (BITS * word) & _ALL) for conjuncts, exits in self.tests]
            cases = (f"CASE WHEN {test} THEN {mask}::UBIGINT ELSE 0::UBIGINT END" for test, mask in parts if mask)
            shown.append(f"({' | '.join(cases)})::UBIGINT AS w{word}")
        return f"SELECT {', '.join(shown)} FROM input"


@dataclass(frozen=True)
class Step:
    """A lookup of `key` in an arrangement; what it finds is the place of this number."""

    place: int
    arrangement: str
    fresh: bool
    key: tuple[Ref, ...]
    by: tuple[str, ...]
    exits: int
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True)
class Exit:
    """A way out: who gets the rows, and which columns, each with its name there."""

    number: int
    source: str
    """The operator whose output it gives."""
    taken: tuple[tuple[str, Ref], ...]


@dataclass(frozen=True)
class Stretch:
    """What happens to one set of rows: conditions on what they begin with, lookups that add a place, exits, and
    lookups that make other rows of them."""

    checks: tuple[Check, ...]
    steps: tuple[Step, ...]
    exits: tuple[Exit, ...]
    onward: tuple[tuple[Step, Stretch], ...]


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

        for piece in site.memory.pieces(stacked(ports[0])):
            yield from followed(site.duck, self, piece.combine_chunks(), look, site.memory.rows(_WIDTH))


_ALL = (1 << BITS) - 1
_ROWS_FOR_BITS = 2
"""All bits of a run are worked out when those of the half of its rows were asked for."""
_MOST_BITS = 1 << 21
"""Rows of a run whose bits are kept at most."""
_CHECKS_KEPT = 16
_NOTHING = pa.table({WEIGHT: pa.array([], pa.int64())})
_WIDTH = 64
"""Bytes of a row on its way: a few places, the weight, the bits."""

Look = Callable[[str, bool], Lying]


class Found:
    """Rows that have arrived at exits."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.by_source: Counter[str] = Counter()
        """Rows by the lookup that would have given them."""
        self._parts: dict[int, list[tuple[_Rows, Places]]] = {}

    def add(self, exit_: Exit, rows: _Rows, some: Places) -> None:
        self._parts.setdefault(exit_.number, []).append((rows, some))
        self.num_rows += len(some)
        self.by_source[exit_.source] += len(some)

    def at(self, way: Segment | None) -> pa.Table:
        """What arrived at the exit before this segment."""
        if not isinstance(way, Leaf):
            raise Defect("Rows leave their routes by exits only.")
        parts = self._parts.get(way.exit.number, ())
        if not parts:
            return _NOTHING
        tables = [rows.table(way.exit.taken, some) for rows, some in parts]
        return pa.concat_tables(tables).combine_chunks() if len(tables) > 1 else tables[0]


def arrived(output: pa.Table | Found) -> Mapping[str, int]:
    """How many rows an output has in the place of others', by those."""
    return output.by_source if isinstance(output, Found) else {}


def followed(duck: Duck, routes: Routes, delta: pa.Table, look: Look, most: int) -> Iterator[Found]:
    """The rows that arrive at the exits, about so many at a time."""
    count = delta.num_rows
    everyone = [np.full(count, routes.exits >> (BITS * w) & _ALL, np.uint64) for w in range(word_count(routes.exits))]
    lying = {DELTA: Lying([Run(delta)])}
    rows = _Rows(duck, lying, {DELTA: np.arange(count)}, weights_of(delta), everyone)
    for check in routes.stretch.checks:
        rows.judge(check, routes.exits)
    _cancel(duck, routes, delta, rows)
    found = Found()
    for exit_, mine, some in _exits(routes.stretch, rows, look, most):
        found.add(exit_, mine, some)
        if found.num_rows > most:
            yield found
            found = Found()
    if found.num_rows:
        yield found


def _exits(stretch: Stretch, rows: _Rows, look: Look, most: int) -> Iterator[tuple[Exit, _Rows, Places]]:
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


class _Rows:
    """Rows as places, with their weights and, in words of bits, the exits that want them."""

    def __init__(
        self, duck: Duck, lying: dict[int, Lying], places: dict[int, Places], weight: Places, bits: list[Words]
    ) -> None:
        self.duck, self.lying, self.places, self.weight, self.bits = duck, lying, places, weight, bits

    def wanted(self, exits: int) -> Places:
        """The rows that one of these exits wants."""
        is_wanted: npt.NDArray[np.bool_] | None = None
        for word in words_of(exits):
            mine = self.bits[word] & np.uint64(exits >> (BITS * word) & _ALL) != 0
            is_wanted = mine if is_wanted is None else is_wanted | mine
        return np.flatnonzero(is_wanted) if is_wanted is not None else np.zeros(0, np.int64)

    def judge(self, check: Check, among: int) -> None:
        """Take the bits of exits whose conditions are not met."""
        asked = check.exits & among
        if not len(some := self.wanted(asked)):
            return
        whole = len(some) == len(self.weight)
        places = {place for place, _ in check.refs}
        if len(places) == 1 and DELTA not in places:
            told = self._remembered(check, places.pop(), some)
        else:
            told = _bits(self.duck, check, self._columns(check.refs, some))
        for word, bits in told.items():
            kept = bits | np.uint64(~(asked >> (BITS * word)) & _ALL)
            if whole:
                self.bits[word] &= kept
            else:
                self.bits[word][some] &= kept

    def _remembered(self, check: Check, place: int, some: Places) -> Mapping[int, Words]:
        """The bits of rows of an arrangement: those of a run are kept once as many were asked for as it has rows."""
        parts = self.lying[place].at(self.places[place][some]).parts
        found = {word: np.empty(len(some), np.uint64) for word in words_of(check.exits)}
        for part in parts:
            memory = part.run.kept.setdefault(check.sql, _Memory())
            inside: Places | slice = slice(None) if part.inside is None else part.inside
            if memory.bits is None:
                memory.asked += part.run.num_rows if part.inside is None else len(part.inside)
                rows = part.run.rows
                if memory.asked * _ROWS_FOR_BITS < rows.num_rows or rows.num_rows > _MOST_BITS:
                    table = _named(check, place, rows).take(part.within)
                    for word, bits in _bits(self.duck, check, table).items():
                        found[word][part.mine] = bits
                    continue
                memory.bits = _bits(self.duck, check, _named(check, place, rows))
                _forget_others(part.run)
            for word, bits in memory.bits.items():
                found[word][part.mine] = bits[inside]
        return found

    def find(self, step: Step, lying: Lying) -> None:
        """Add the place of the one row with the key; where there is none, nobody who looked wants the row."""
        some = self.wanted(step.exits)
        places = np.full(len(self.weight), -1, np.int64)
        self.lying[step.place], self.places[step.place] = lying, places
        if not len(some):
            return
        places[some] = found = lying.find(self._probe(step.key, some), step.by)
        self._forget(some[found < 0], step.exits)
        for check in step.checks:
            self.judge(check, step.exits)

    def matches(self, step: Step, lying: Lying, most: int) -> Iterator[_Rows]:
        """Every row that is wanted with every row that has its key, some at a time."""
        some = self.wanted(step.exits)
        if not len(some) or not lying.runs:
            return
        for index, place, weight in lying.matched(self._probe(step.key, some), step.by, most):
            origin = some[index]
            places = {number: known[origin] for number, known in self.places.items()} | {step.place: place}
            bits = [word[origin] for word in self.bits]
            for word, mine in enumerate(bits):  # what others want of these rows is not followed here
                mine &= np.uint64(step.exits >> (BITS * word) & _ALL)
            found = _Rows(self.duck, self.lying | {step.place: lying}, places, self.weight[origin] * weight, bits)
            for check in step.checks:
                found.judge(check, step.exits)
            yield found

    def table(self, taken: Sequence[tuple[str, Ref]], some: Places) -> pa.Table:
        """Columns of some rows, as an exit calls them, and their weights."""
        picked: dict[int, Picked] = {}
        columns = [self._column(ref, some, picked) for _, ref in taken]
        weight = self.weight if len(some) == len(self.weight) else self.weight[some]
        return pa.table([*columns, pa.array(weight)], names=[*(name for name, _ in taken), WEIGHT])

    def _columns(self, refs: Sequence[Ref], some: Places) -> pa.Table:
        picked: dict[int, Picked] = {}
        names = [f"{place}.{name}" for place, name in refs]
        if not names:  # a condition without columns still has to know how many rows there are
            return pa.table({WEIGHT: self.weight[some]})
        return pa.table([self._column(ref, some, picked) for ref in refs], names=names)

    def _column(self, ref: Ref, some: Places, picked: dict[int, Picked]) -> pa.Array:
        place, name = ref
        if place not in picked:
            places = self.places[place]
            picked[place] = self.lying[place].at(places if len(some) == len(places) else places[some])
        return picked[place].column(name)

    def _probe(self, key: Sequence[Ref], some: Places) -> Probe:
        picked: dict[int, Picked] = {}
        return Probe(self.duck, [self._column(ref, some, picked) for ref in key])

    def _forget(self, some: Places, exits: int) -> None:
        if len(some):
            for word in words_of(exits):
                self.bits[word][some] &= np.uint64(~(exits >> (BITS * word)) & _ALL)


@dataclass
class _Memory:
    """The bits of a run's rows for one check, if they were worked out, and how many were asked for before."""

    asked: int = 0
    bits: Mapping[int, Words] | None = None


def _bits(duck: Duck, check: Check, rows: pa.Table) -> Mapping[int, Words]:
    told = duck.run(check.sql, input=rows)
    return {word: told[f"w{word}"].to_numpy() for word in words_of(check.exits)}


def _named(check: Check, place: int, rows: pa.Table) -> pa.Table:
    names = [name for _, name in check.refs]
    return rows.select(names).rename_columns([f"{place}.{name}" for name in names])


def _forget_others(run: Run) -> None:
    """Views come and go, and with them the checks: a run keeps the bits of the last few."""
    for oldest in list(run.kept)[:-_CHECKS_KEPT]:
        run.kept.pop(oldest, None)


def _cancel(duck: Duck, routes: Routes, delta: pa.Table, rows: _Rows) -> None:
    """A row that was changed only where an exit does not look goes neither way through it."""
    order = np.argsort(codes := hashes(duck, delta, routes.key))
    together = np.flatnonzero(codes[order[1:]] == codes[order[:-1]])
    one, other = order[together], order[together + 1]
    opposite = rows.weight[one] == -rows.weight[other]
    one, other = one[opposite], other[opposite]
    if not len(one):
        return
    same: dict[str, npt.NDArray[np.bool_]] = {}
    for columns, exits in routes.alike:
        is_same = np.ones(len(one), np.bool_)
        for name in dict.fromkeys([*routes.key, *columns]):
            if name not in same:
                same[name] = _is_same(one_chunk(delta.column(name)), one, other)
            is_same &= same[name]
        if not is_same.any():
            continue
        first, second = one[is_same], other[is_same]
        for word in words_of(exits):
            bits = rows.bits[word]
            both = bits[first] & bits[second] & np.uint64(exits >> (BITS * word) & _ALL)
            bits[first] &= ~both
            bits[second] &= ~both


def _is_same(values: pa.Array, one: Places, other: Places) -> npt.NDArray[np.bool_]:
    left, right = (pa.table({"v": values.take(pa.array(places))}) for places in (one, other))
    return identical(left, right)


def words_of(exits: int) -> list[int]:
    """The words in which any of these bits lies."""
    return [word for word in range(word_count(exits)) if exits >> (BITS * word) & _ALL]


def word_count(exits: int) -> int:
    return -(-exits.bit_length() // BITS)
