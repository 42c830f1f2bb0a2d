"""Rows under way: tuples of places, with their weights and the exits that want them, as bits.

find       a lookup by a unique key adds a place to the same rows; of an optional relation it may be none
matches    any other lookup makes new rows, one for each that has the key
judge      conditions take bits away; a row that nobody wants is looked up no further
table      columns are taken at the exit, from the places
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from viewkeeper.model import types
from viewkeeper.model.arrow_buffers import taken
from viewkeeper.model.int128 import Words
from viewkeeper.model.schema import WEIGHT
from viewkeeper.model.types import Type
from viewkeeper.operators.delta_join.plan import DELTA, MET, Check, Optional, PathStep, Ref, bits_of, judged, words_of
from viewkeeper.operators.delta_join.semijoin import Ahead
from viewkeeper.operators.delta_join.semijoin_bitmaps import Alive
from viewkeeper.state.cursor import Lying, Picked, Probe
from viewkeeper.state.hash_index import Places

_ROWS_FOR_BITS = 2
"""All bits of a run are worked out when those of the half of its rows were asked for."""
_STATEMENT = 50_000
"""A statement for a few rows costs as much as one for so many: who asks often for little has the bits soon."""
_MOST_BITS = 1 << 21
"""Rows of a run whose bits are kept at most."""


class Underway:
    """Rows as places, with their weights and, in words of bits, the exits that want them."""

    def __init__(
        self, ahead: Ahead, lying: dict[int, Lying], places: dict[int, Places], weight: Places, bits: list[Words]
    ) -> None:
        self.ahead, self.lying, self.places, self.weight, self.bits = ahead, lying, places, weight, bits
        self.duck = ahead.duck
        self.optional: dict[int, Mapping[str, Type]] = {}
        """The places at which there may be no row, with the types of their columns."""

    def wanted(self, exits: int) -> Places:
        """The rows that one of these exits wants."""
        is_wanted: npt.NDArray[np.bool_] | None = None
        for word in words_of(exits):
            mine = self.bits[word] & bits_of(exits, word) != 0
            is_wanted = mine if is_wanted is None else is_wanted | mine
        return np.flatnonzero(is_wanted) if is_wanted is not None else np.zeros(0, np.int64)

    def judge(self, check: Check, among: int) -> None:
        """Take the bits of exits whose conditions are not met."""
        asked = check.exits & among
        if not len(some := self.wanted(asked)):
            return
        whole = len(some) == len(self.weight)
        places = {place for place, _ in check.refs}
        if len(places) == 1 and DELTA not in places and places.isdisjoint(self.optional):
            told = self._remembered(check, places.pop(), some)
        else:
            told = judged(self.duck, check, self._columns(check.refs, some))
        for word, bits in told.items():
            kept = bits | ~bits_of(asked, word)
            if whole:
                self.bits[word] &= kept
            else:
                self.bits[word][some] &= kept

    def _remembered(self, check: Check, place: int, some: Places) -> Mapping[int, Words]:
        """The bits of rows of an arrangement: those of a run are kept once asking cost as much as all would."""
        parts = self.lying[place].at(self.places[place][some]).parts
        found = {word: np.empty(len(some), np.uint64) for word in words_of(check.exits)}
        for part in parts:
            memory = part.run.kept.setdefault(check.name, _Memory())
            inside: Places | slice = slice(None) if part.inside is None else part.inside
            if memory.bits is None:
                memory.asked += _STATEMENT + (part.run.num_rows if part.inside is None else len(part.inside))
                rows = part.run.rows
                if memory.asked * _ROWS_FOR_BITS < rows.num_rows or rows.num_rows > _MOST_BITS:
                    table = _named(check, place, rows).take(part.within)
                    for word, bits in judged(self.duck, check, table).items():
                        found[word][part.mine] = bits
                    continue
                memory.bits = judged(self.duck, check, _named(check, place, rows))
                part.run.forget_oldest()
            for word, bits in memory.bits.items():
                found[word][part.mine] = bits[inside]
        return found

    def find(self, step: PathStep, lying: Lying) -> None:
        """Add the place of the one row with the key; where there is none, nobody who looked wants the row."""
        some = self.wanted(step.exits)
        places = np.full(len(self.weight), -1, np.int64)
        self.lying[step.place], self.places[step.place] = lying, places
        if step.optional is not None:
            self.optional[step.place] = dict(step.optional.types)
        if not len(some):
            return
        places[some] = found = lying.find(self._probe(step.key, some), step.by)
        if step.optional is not None:
            self._meet(step, step.optional, some)
            return
        self._forget(some[found < 0], step.exits)
        if (alive := self.ahead.of(step)) is not None:
            there = some[found >= 0]
            self._look_ahead(step, alive, there)
            self.ahead.skip(step, len(there) - len(self.wanted(step.exits)))
        for check in step.checks:
            self.judge(check, step.exits)
        if (before := self.ahead.before(step)) is not None:
            self.ahead.wasted(before, len(some) - len(self.wanted(step.exits)))

    def _meet(self, step: PathStep, optional: Optional, some: Places) -> None:
        """Rows that found one with their key have a match if it meets the conditions, else none."""
        places = self.places[step.place]
        if optional.match is not None and len(there := some[places[some] >= 0]):
            told = judged(self.duck, optional.match, self._columns(optional.match.refs, there))
            places[there[told[0] == 0]] = -1
        if optional.how == "anti":
            self._forget(some[places[some] >= 0], step.exits)
        for check in step.checks:
            self.judge(check, step.exits)

    def matches(self, step: PathStep, lying: Lying, most: int) -> Iterator[Underway]:
        """Every row that is wanted with every row that has its key, some at a time."""
        some = self.wanted(step.exits)
        if not len(some) or not lying.runs:
            return
        probe, alive = self._probe(step.key, some), self.ahead.of(step)
        before, in_vain, is_met = self.ahead.before(step), 0, np.zeros(len(some), np.bool_)
        for index, place, weight in lying.matched(probe, step.by, most, alive):
            origin = some[index]
            places = {number: known[origin] for number, known in self.places.items()} | {step.place: place}
            bits = [word[origin] for word in self.bits]
            for word, mine in enumerate(bits):  # what others want of these rows is not followed here
                mine &= bits_of(step.exits, word)
            found = Underway(self.ahead, self.lying | {step.place: lying}, places, self.weight[origin] * weight, bits)
            found.optional = dict(self.optional)
            if alive is not None:
                found._look_ahead(step, alive, np.arange(len(index)))
            for check in step.checks:
                found.judge(check, step.exits)
            if before is not None:
                is_met[index] = True
            if self.ahead.is_open(step.place):
                in_vain += len(index) - len(found.wanted(step.exits))
            yield found
        if alive is not None:
            self.ahead.skip(step, sum(each.spared() for each in alive))
        if before is not None:
            self.ahead.wasted(before, len(some) - int(is_met.sum()))
        if self.ahead.is_open(step.place):
            self.ahead.wasted(step.place, in_vain)

    def _look_ahead(self, step: PathStep, alive: Sequence[Alive], some: Places) -> None:
        """Take the bits of exits that what was found cannot reach."""
        if not len(some):
            return
        lying = self.lying[step.place]
        places = self.places[step.place][some]
        number = np.searchsorted(lying.first, places, "right") - 1
        for run in np.unique(number):
            mine = some[number == run]
            told = alive[run].bits(self.places[step.place][mine] - lying.first[run])
            for word, bits in told.items():
                self.bits[word][mine] &= bits | ~bits_of(step.exits, word)

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
        places = self.places[place]
        places = places if len(some) == len(places) else places[some]
        if place in self.optional and (name == MET or (places < 0).any()):
            return self._or_null(place, name, places)
        if place not in picked:
            picked[place] = self.lying[place].at(places)
        return picked[place].column(name)

    def _or_null(self, place: int, name: str, places: Places) -> pa.Array:
        """A column of an optional relation: NULL where there is no row."""
        is_met = places >= 0
        if name == MET:
            return pa.array(is_met)
        if not is_met.any():
            return pa.nulls(len(places), types.arrow(self.optional[place][name]))
        values = self.lying[place].at(places[is_met]).column(name)
        return taken(values, pa.array(np.cumsum(is_met) - 1, mask=~is_met))

    def _probe(self, key: Sequence[Ref], some: Places) -> Probe:
        picked: dict[int, Picked] = {}
        return Probe(self.duck, [self._column(ref, some, picked) for ref in key])

    def _forget(self, some: Places, exits: int) -> None:
        if len(some):
            for word in words_of(exits):
                self.bits[word][some] &= ~bits_of(exits, word)


@dataclass
class _Memory:
    """The bits of a run's rows for one check, if they were worked out, and in rows what asking cost before."""

    asked: int = 0
    bits: Mapping[int, Words] | None = None


def _named(check: Check, place: int, rows: pa.Table) -> pa.Table:
    names = [name for _, name in check.refs]
    return rows.select(names).rename_columns([f"{place}.{name}" for name in names])
