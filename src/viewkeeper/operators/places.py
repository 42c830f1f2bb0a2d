"""Places: rows of an arrangement told by where they lie, so that a lookup copies nothing.

    place = (rows of the runs before) + index in its run          −1: there is no row

A lookup by a unique key gives one place for each probe. A table with a primary key has at most one row of a key, and a
run is a sum of changes, so the newest run that knows the key decides: it holds −old +new, +new, or −old alone, where
the row is gone. A lookup by any other key gives every row of every run, whose weights add up.

Hashes collide, so the real keys are compared, but for one integer: its hash is a bijection. NULL equals nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model.chunks import one_chunk
from viewkeeper.model.schema import WEIGHT
from viewkeeper.operators.arrangement import Hashes, Places, Run, portions, spans, weights_of
from viewkeeper.operators.duck import Duck
from viewkeeper.operators.hashing import NULL_HASH, hashes, is_bijective

Flags = npt.NDArray[np.bool_]


class Lying:
    """Rows that places point to: the runs of an arrangement one after the other, or the rows of a delta."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = tuple(runs)
        self.first = np.cumsum([0, *(run.num_rows for run in self.runs)])

    def at(self, places: Places) -> Picked:
        return Picked(self, places)

    def find(self, probe: Probe, key: Sequence[str]) -> Places:
        """For each probe the place of the one row with its key, −1 where there is none; the key is unique."""
        found = np.full(len(probe.hashes), -1, np.int64)
        left = probe.present
        exact, odd = probe.is_exact, []
        for run, first in zip(reversed(self.runs), self.first[-2::-1], strict=True):
            if not len(left):
                break
            start, stop = run.ranges(probe.hashes[left])
            is_hit = stop > start
            if not is_hit.any():
                continue
            asked, low, high = left[is_hit], start[is_hit], stop[is_hit] - 1
            left = left[~is_hit]
            place, is_there = low, None
            if WEIGHT in run.rows.column_names:
                weights = weights_of(run.rows)
                place = np.where(weights[low] < 0, high, low)
                is_there = weights[place] > 0
            is_odd = high - low > 1
            if not exact:
                is_odd |= ~(_same(probe, asked, run, low, key) & _same(probe, asked, run, high, key))
            found[asked] = first + place if is_there is None else np.where(is_there, first + place, -1)
            if is_odd.any():
                odd.append(asked[is_odd])
        if odd:
            self._find_among(probe, np.concatenate(odd), key, found)
        return found

    def _find_among(self, probe: Probe, asked: Places, key: Sequence[str], found: Places) -> None:
        """The same where hashes collided: of the rows with the very key the newest run's, and of those the one that
        came."""
        index, place, weight = self.matches(probe.only(asked), key)
        run = np.searchsorted(self.first, place, "right")
        order = np.lexsort((-weight, -run, index))
        is_first = np.concatenate([[True], index[order][1:] != index[order][:-1]])[: len(order)]
        best = order[is_first]
        found[asked] = -1
        came = best[weight[best] > 0]
        found[asked[index[came]]] = place[came]

    def matches(self, probe: Probe, key: Sequence[str]) -> tuple[Places, Places, Places]:
        """(index of the probe, place, weight) of every row with the probe's key, run by run."""
        found = list(self.matched(probe, key, _ALL))
        return found[0] if found else (_NONE, _NONE, _NONE)

    def matched(self, probe: Probe, key: Sequence[str], most: int) -> Iterator[tuple[Places, Places, Places]]:
        """The same, at most so many at a time. How many there are is known before any is looked at."""
        asked = probe.present
        ranges = [(i, *run.ranges(probe.hashes[asked])) for i, run in enumerate(self.runs)]
        met = [(i, start, stop - start) for i, start, stop in ranges if bool((stop > start).any())]
        if sum(int(count.sum()) for *_, count in met) <= most:
            parts = [self._met(probe, key, i, np.repeat(asked, count), spans(start, count)) for i, start, count in met]
            if parts:
                index, place, weight = (np.concatenate(each) for each in zip(*parts, strict=True))
                yield index, place, weight
            return
        for i, start, count in met:
            for first, last, begin, length in portions(start, count, most):
                yield self._met(probe, key, i, np.repeat(asked[first:last], length), spans(begin, length))

    def _met(
        self, probe: Probe, key: Sequence[str], number: int, index: Places, place: Places
    ) -> tuple[Places, Places, Places]:
        run = self.runs[number]
        if not probe.is_exact:
            same = np.flatnonzero(_same(probe, index, run, place, key))
            index, place = index[same], place[same]
        weight = weights_of(run.rows)[place] if WEIGHT in run.rows.column_names else np.ones(len(place), np.int64)
        return index, place + self.first[number], weight


class Probe:
    """Keys to look up: columns in the order of the arrangement's key, and their hashes."""

    def __init__(self, duck: Duck, columns: Sequence[pa.Array], hashed: Hashes | None = None) -> None:
        self.duck, self.columns = duck, tuple(columns)
        if hashed is None:
            names = tuple(f"k{i}" for i in range(len(self.columns)))
            hashed = hashes(duck, pa.table(list(self.columns), names=list(names)), names)
        self.hashes = hashed

    @cached_property
    def present(self) -> Places:
        """The probes without a NULL."""
        known: Flags | None = None
        for column in self.columns:
            if column.null_count:
                valid = np.asarray(column.is_valid())
                known = valid if known is None else known & valid
        return np.arange(len(self.hashes)) if known is None else np.flatnonzero(known)

    @cached_property
    def is_exact(self) -> bool:
        """Whether equal hashes are equal keys. (NULL's hash is also that of a number.)"""
        kinds = [column.type for column in self.columns]
        return is_bijective(kinds) and not bool((self.hashes[self.present] == NULL_HASH).any())

    def only(self, places: Places) -> Probe:
        return Probe(self.duck, [column.take(pa.array(places)) for column in self.columns], self.hashes[places])


class Picked:
    """Rows at some places: their columns, each taken when it is asked for."""

    def __init__(self, lying: Lying, places: Places) -> None:
        self._lying, self._places = lying, places
        self._taken: dict[str, pa.Array] = {}

    def column(self, name: str) -> pa.Array:
        found = self._taken.get(name)
        if found is None:
            found = self._taken[name] = self._take(name)
        return found

    def _take(self, name: str) -> pa.Array:
        runs, where = self._lying.runs, self._parts
        if len(where) == 1:
            ((run, _, inside),) = where.values()
            whole = one_chunk(run.rows.column(name))
            return whole if inside is None else whole.take(inside)
        if not where:
            return one_chunk(runs[0].rows.column(name)).slice(0, 0)
        parts = [one_chunk(run.rows.column(name)).take(inside) for run, _, inside in where.values()]
        return pa.concat_arrays(parts).take(self._back)

    @cached_property
    def _parts(self) -> Mapping[int, tuple[Run, Places, pa.Array | None]]:
        """For each run that has some of the rows: which of them, and where they are inside it (None: all of it)."""
        lying, places = self._lying, self._places
        if len(lying.runs) == 1:
            run = lying.runs[0]
            is_all = len(places) == run.num_rows and bool((places == np.arange(len(places))).all())
            return {0: (run, places, None if is_all else pa.array(places))}
        number = np.searchsorted(lying.first, places, "right") - 1
        found: dict[int, tuple[Run, Places, pa.Array | None]] = {}
        for i, run in enumerate(lying.runs):
            mine = np.flatnonzero(number == i)
            if len(mine):
                found[i] = (run, mine, pa.array(places[mine] - lying.first[i]))
        return found

    @cached_property
    def _back(self) -> pa.Array:
        """From the order of the runs to that of the places."""
        order = np.concatenate([mine for _, mine, _ in self._parts.values()])
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pa.array(back)


_NONE = np.zeros(0, np.int64)
_ALL = np.iinfo(np.int64).max


def _same(probe: Probe, asked: Places, run: Run, places: Places, key: Sequence[str]) -> Flags:
    """Whether the rows at these places of a run have the very keys that were asked for."""
    same = np.ones(len(asked), np.bool_)
    for column, name in zip(probe.columns, key, strict=True):
        theirs = one_chunk(run.rows.column(name)).take(pa.array(places))
        same &= np.asarray(pc.fill_null(pc.equal(column.take(pa.array(asked)), theirs), False))
    return same
