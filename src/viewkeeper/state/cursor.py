"""Places: rows of an arrangement told by where they lie, so that a lookup copies nothing.

    place = (rows of the runs before) + index in its run          −1: there is no row

A lookup by a unique key gives one place for each probe. A table with a primary key has at most one row of a key, and a
run is a sum of changes, so the newest run that knows the key decides: it holds −old +new, +new, or −old alone, where
the row is gone. A lookup by any other key gives every row of every run, whose weights add up.

Hashes collide, so the real keys are compared, but for one integer: its hash is a bijection. NULL equals nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model.arrow_buffers import one_chunk, taken, words
from viewkeeper.model.int128 import Flags
from viewkeeper.model.schema import WEIGHT
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.state.hash_index import Hashes, Places
from viewkeeper.state.key_hash import NULL_HASH, hashes, is_bijective
from viewkeeper.state.row_ranges import portions, spans
from viewkeeper.state.run import Arrangement, Run, weights_of


class Narrow(Protocol):
    """Some rows of a run."""

    def narrowed(self, start: Places, stop: Places) -> Iterable[tuple[Places, Places, Places]]:
        """Those that lie in each of the ranges: the first, how many, and the list of places in which they are."""


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
        Arrangement(self.runs).near(probe.hashes)
        for run, first in zip(reversed(self.runs), self.first[-2::-1], strict=True):
            if not len(left):
                break
            codes = probe.hashes if len(left) == len(probe.hashes) else probe.hashes[left]
            if not run.meets(codes):
                continue
            low = run.starts(codes)
            is_hit = _is_at(run, low, codes)
            if not is_hit.any():
                continue
            asked, low, codes = left[is_hit], low[is_hit], codes[is_hit]
            left = left[~is_hit]
            is_odd = _NOT_ODD
            if WEIGHT in run.rows.column_names:
                weights = weights_of(run.rows)
                high = low + _is_at(run, low + 1, codes)
                place = np.where(weights[low] < 0, high, low)
                found[asked] = np.where(weights[place] > 0, first + place, -1)
                is_odd = _is_at(run, low + 2, codes)
                if not exact:
                    is_odd |= ~(_same(probe, asked, run, low, key) & _same(probe, asked, run, high, key))
            else:
                found[asked] = first + low
                if not exact:
                    is_odd = ~_same(probe, asked, run, low, key)
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

    def matched(
        self, probe: Probe, key: Sequence[str], most: int, among: Sequence[Narrow] | None = None
    ) -> Iterator[tuple[Places, Places, Places]]:
        """The same, at most so many at a time. How many there are is known before any is looked at. `among`: of each
        run these rows only."""
        asked = probe.present
        met: list[tuple[int, Places, Places, Places | None]] = []
        codes = probe.hashes[asked]
        Arrangement(self.runs).near(codes)
        for i, run in enumerate(self.runs):
            if not run.meets(codes):
                continue
            start, stop = run.ranges(codes)
            parts = [(start, stop - start, None)] if among is None else among[i].narrowed(start, stop)
            met += [(i, first, count, listed) for first, count, listed in parts if bool(count.any())]
        if sum(int(count.sum()) for _, _, count, _ in met) <= most:
            found = [
                self._met(probe, key, i, np.repeat(asked, count), _placed(listed, spans(first, count)))
                for i, first, count, listed in met
            ]
            if found:
                index, place, weight = (np.concatenate(each) for each in zip(*found, strict=True))
                yield index, place, weight
            return
        for i, first, count, listed in met:
            for low, high, begin, length in portions(first, count, most):
                places = _placed(listed, spans(begin, length))
                yield self._met(probe, key, i, np.repeat(asked[low:high], length), places)

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
        parts = self.parts
        arrays = [one_chunk(part.run.rows.column(name)) for part in parts]
        if not parts:
            return one_chunk(self._lying.runs[0].rows.column(name)).slice(0, 0)
        if len(parts) == 1:
            return arrays[0] if parts[0].inside is None else taken(arrays[0], parts[0].within)
        numbers = [n for array in arrays if (n := words(array)) is not None]
        if len(numbers) < len(arrays):
            found = [taken(array, part.within) for array, part in zip(arrays, parts, strict=True)]
            return taken(pa.concat_arrays(found), self._back)
        whole = np.empty(len(self._places), numbers[0].dtype)
        for values, part in zip(numbers, parts, strict=True):
            whole[part.mine] = values if part.inside is None else values[part.inside]
        return pa.Array.from_buffers(arrays[0].type, len(whole), [None, pa.py_buffer(whole)])

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The rows by the run that has them."""
        lying, places = self._lying, self._places
        if len(lying.runs) == 1:
            run = lying.runs[0]
            is_all = len(places) == run.num_rows and bool((places == np.arange(len(places))).all())
            return (Part(run, slice(None), None if is_all else places),) if len(places) else ()
        found, left = [], len(places)
        for run, first, end in zip(lying.runs, lying.first, lying.first[1:], strict=False):
            if not left:
                break
            mine = np.flatnonzero((places >= first) & (places < end))
            left -= len(mine)
            if len(mine) == len(places):
                return (Part(run, slice(None), places - first),)
            if len(mine):
                found.append(Part(run, mine, places[mine] - first))
        return tuple(found)

    @cached_property
    def _back(self) -> pa.Array:
        """From the order of the runs to that of the places."""
        order = np.concatenate([part.mine for part in self.parts])
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pa.array(back)


@dataclass(frozen=True)
class Part:
    """Rows of one run: which of those that were picked, and where they are inside it (None: all of it, in order)."""

    run: Run
    mine: Places | slice
    inside: Places | None

    @cached_property
    def within(self) -> pa.Array:
        return pa.array(np.arange(self.run.num_rows) if self.inside is None else self.inside)


def _placed(listed: Places | None, places: Places) -> Places:
    return places if listed is None else listed[places]


_NONE = np.zeros(0, np.int64)
_ALL = np.iinfo(np.int64).max


_NOT_ODD = np.zeros(1, np.bool_)


def _is_at(run: Run, places: Places, codes: Hashes) -> Flags:
    """Where a run has the very hash at a place, which may lie beyond its end."""
    last = run.num_rows - 1
    found: Flags = (run.hashes[np.minimum(places, last)] == codes) & (places <= last)
    return found


def _same(probe: Probe, asked: Places, run: Run, places: Places, key: Sequence[str]) -> Flags:
    """Whether the rows at these places of a run have the very keys that were asked for."""
    same = np.ones(len(asked), np.bool_)
    for column, name in zip(probe.columns, key, strict=True):
        theirs = one_chunk(run.rows.column(name)).take(pa.array(places))
        same &= np.asarray(pc.fill_null(pc.equal(column.take(pa.array(asked)), theirs), False))
    return same
