"""The bits of a run's rows that say which exits can be reached from them (`ahead` has the law).

hear     what has come alive where the rows look next: they get its bits, and tell those before them in turn
bits     of some rows
narrowed the rows of a range that have any
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from viewkeeper.model.arrow_buffers import one_chunk
from viewkeeper.model.int128 import Flags, Words
from viewkeeper.operators.delta_join.plan import bits_of, judged, words_of
from viewkeeper.operators.delta_join.semijoin_graph import Modes, Outlook
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.state.hash_index import Hashes, Places
from viewkeeper.state.key_hash import hashes
from viewkeeper.state.row_ranges import spans
from viewkeeper.state.run import Run

_EXTRA_SHARE = 8
"""Rows that came alive are kept beside the others up to this part of those."""
_FEW = 1024


@dataclass(frozen=True)
class News:
    """Keys that have come alive, ascending and each once, and the bits that they have got: a row for each word."""

    keys: Hashes
    bits: Words

    @staticmethod
    def of(keys: Hashes, bits: Words) -> News:
        if not len(keys):
            return News(keys, bits)
        first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        return News(keys[first], np.bitwise_or.reduceat(bits, first, axis=1))


class Alive:
    """The bits of one run's rows."""

    def __init__(self, duck: Duck, run: Run, outlook: Outlook, modes: Modes) -> None:
        self._run, exits = run, outlook.step.exits
        self.words = words_of(exits)
        self._near, self._far = self._mask(exits & modes.any), self._mask(exits & modes.whole)
        self._always = self._mask(exits & ~modes.any)
        self._own = np.broadcast_to(self._mask(exits), (len(self.words), run.num_rows)).copy()
        if outlook.own is not None:
            self._own &= _judged(duck, outlook, run, self.words) | ~self._mask(outlook.own.exits)
        self._doors = [_Door(duck, run, columns, child, self) for columns, child in outlook.onward]
        self._live = self._own.copy()
        self._is_set = False
        self._spared = 0
        self._places = self._extra = _NONE
        self._before = np.zeros(1, np.int32)
        self._cost, self._heard = run.num_rows, 0
        self.log: list[News] = []

    def _mask(self, exits: int) -> Words:
        return np.array([bits_of(exits, word) for word in self.words], np.uint64)[:, None]

    @property
    def is_worn(self) -> bool:
        """Whether so much has been added since it was worked out that it is worth it to see what has died."""
        return self._heard > self._cost

    def hear(self, further: Sequence[Sequence[Alive]]) -> None:
        """Take in what has come alive where the own rows look next."""
        changed = []
        for door, runs in zip(self._doors, further, strict=True):
            for news in door.news(runs):
                self._heard += len(news.keys)
                changed.append(door.opened(news))
        if self._is_set:
            self._revive(np.unique(np.concatenate(changed)) if changed else _NONE)
            return
        self._is_set = True
        self._cost, self._heard = self._cost + self._heard, 0
        for door in self._doors:
            self._live &= door.met | ~(door.asked & self._near)
        self._settle()
        told = self._told(slice(None))
        some = np.flatnonzero(told.any(axis=0))
        self.log.append(News.of(self._run.hashes[some], told[:, some]))

    def _revive(self, places: Places) -> None:
        """Rows that may have got bits."""
        if not len(places):
            return
        live = self._own[:, places]
        for door in self._doors:
            live &= door.met[:, places] | ~(door.asked & self._near)
        is_more = (live & ~self._live[:, places]).any(axis=0)
        places, live = places[is_more], live[:, is_more]
        if not len(places):
            return
        is_new = ~self._live[:, places].any(axis=0)
        self._live[:, places] = live
        if not self._always.any():
            self._extra = np.union1d(self._extra, places[is_new])
            if len(self._extra) > max(_FEW, len(self._places) // _EXTRA_SHARE):
                self._settle()
        self.log.append(News.of(self._run.hashes[places], self._told(places)))

    def _told(self, places: Places | slice) -> Words:
        """The bits by which others know that a row is there for them."""
        told: Words = (self._live[:, places] & self._far) | (self._own[:, places] & ~self._far)
        return told

    def _settle(self) -> None:
        """List the rows that are alive, and for each place how many of them are before it."""
        is_live: Flags = np.bitwise_or.reduce(self._live | self._always, axis=0) != 0
        self._places = np.flatnonzero(is_live)
        self._before = np.zeros(len(is_live) + 1, np.int32)
        np.cumsum(is_live, out=self._before[1:])
        self._extra = _NONE

    def narrowed(self, start: Places, stop: Places) -> Iterator[tuple[Places, Places, Places]]:
        """The rows in each range that are alive: (first, how many, of what list of places)."""
        first, last = (self._before[places].astype(np.int64) for places in (start, stop))
        yield first, last - first, self._places
        self._spared += int((stop - start).sum() - (last - first).sum())
        if len(self._extra):
            first, last = np.searchsorted(self._extra, start), np.searchsorted(self._extra, stop)
            yield first, last - first, self._extra
            self._spared -= int((last - first).sum())

    def spared(self) -> int:
        """How many rows it has kept from lookups since it was last asked."""
        found, self._spared = self._spared, 0
        return found

    def bits(self, places: Places) -> Mapping[int, Words]:
        """By word: the exits that the rows at these places can reach."""
        found = self._live[:, places] | self._always
        return dict(zip(self.words, found, strict=True))


class _Door:
    """One lookup by a run's rows: their keys, and the bits of what was found alive behind each so far."""

    def __init__(self, duck: Duck, run: Run, columns: tuple[str, ...], child: Outlook, owner: Alive) -> None:
        self.keys, self._has_key = _keys(duck, run.rows, columns)
        self.asked = owner._mask(child.step.exits)
        self.met = np.zeros((len(owner.words), run.num_rows), np.uint64)
        self._lines = [owner.words.index(word) for word in words_of(child.step.exits)]
        self._heard: dict[Alive, int] = {}

    def news(self, runs: Sequence[Alive]) -> Iterator[News]:
        """What was not heard yet of the runs behind it. Those that are gone are forgotten."""
        heard, self._heard = self._heard, {run: len(run.log) for run in runs}
        for run in runs:
            yield from run.log[heard.get(run, 0) :]

    def opened(self, news: News) -> Places:
        """The rows with one of these keys, which get its bits."""
        if not len(news.keys) or not len(self.keys):
            return _NONE
        if len(news.keys) * _FEWER < len(self.keys):
            order, ascending = self._order
            low = np.searchsorted(ascending, news.keys, "left")
            count = np.searchsorted(ascending, news.keys, "right") - low
            places, which = order[spans(low, count)], np.repeat(np.arange(len(count)), count)
        else:
            at = np.minimum(np.searchsorted(news.keys, self.keys), len(news.keys) - 1)
            places = np.flatnonzero(news.keys[at] == self.keys)
            which = at[places]
        if self._has_key is not None:
            there = self._has_key[places]
            places, which = places[there], which[there]
        for line, bits in zip(self._lines, news.bits, strict=True):
            self.met[line][places] |= bits[which]
        return places

    @cached_property
    def _order(self) -> tuple[Places, Hashes]:
        order = np.argsort(self.keys, kind="stable")
        return order, self.keys[order]


_NONE = np.zeros(0, np.int64)
_FEWER = 4
"""Keys are looked up among a run's rows if there are so many times fewer, else the rows among the keys."""


def _keys(duck: Duck, rows: pa.Table, columns: tuple[str, ...]) -> tuple[Hashes, Flags | None]:
    """The hashes of the keys that rows look up, and which rows have one: NULL equals nothing."""
    has_key: Flags | None = None
    for name in columns:
        column = one_chunk(rows.column(name))
        if column.null_count:
            valid = np.asarray(column.is_valid())
            has_key = valid if has_key is None else has_key & valid
    return hashes(duck, rows, columns), has_key


def _judged(duck: Duck, outlook: Outlook, run: Run, words: Sequence[int]) -> Words:
    if outlook.own is None or not run.num_rows:
        return np.zeros((len(words), run.num_rows), np.uint64)
    names = [name for _, name in outlook.own.refs]
    rows = run.rows.select(names).rename_columns([f"{outlook.step.place}.{name}" for name in names])
    told = judged(duck, outlook.own, rows)
    none = np.zeros(run.num_rows, np.uint64)
    return np.stack([told.get(word, none) for word in words])
