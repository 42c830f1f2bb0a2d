"""Which way to the rows is the cheapest.

    way              reads                                           costs
    range of keys    the rows of the range                           1 a row
    covering index   the entries of its range, nothing else          1 an entry; of many, by their width and order
    thin index       the entries, then each row by its key           `FETCH` an entry
    scan             every row                                       1 a row of the table

How many rows a range has is counted, up to `COUNTED` of them, if there is a choice; beyond that the keys that cut the
table into equal parts tell (`spread`). Many entries of a covering index that do not come in the order that is asked for
have to be sorted, so a range of most of the table costs more than the table, unless its entries are much narrower. What
is estimated is not relied on: a thin index whose entries turn out too many is left for a scan while it is read
(`fetching`).

A way is *ordered* if its rows come as they were asked for, and *grouped* if all but equal ones do; with a limit it then
ends when there are enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from viewkeeper.expressions.tree import Expr
from viewkeeper.model.catalog.catalog import View
from viewkeeper.model.names import COUNT
from viewkeeper.model.schema import KeyPart, Table
from viewkeeper.read.access.key_ranges import Bounds, Ranges, ranges
from viewkeeper.read.access.predicates import Term, Where, in_words
from viewkeeper.read.state import Source

FETCH = 8
"""A row that is fetched by its key costs as much as so many that are scanned (`benchmarks/access.py`)."""
COUNTED = 1_000
_ASSUMED = 10
"""Of rows that a test is made on, one in so many passes it."""
SORTED = 1.4
"""An entry among many that are to be sorted costs as much as so many that are in order."""
BESIDE = 380
"""A row costs as much as so many bytes of it, whatever its width."""


@dataclass(frozen=True)
class Wanted:
    """The rows of a table or view that are asked for, and how."""

    table: Table
    where: Where = field(default_factory=Where)
    columns: tuple[str, ...] = ()
    """Visible columns that are to be given."""
    order: tuple[KeyPart, ...] = ()
    """In this order; none: in that of the key."""
    limit: int | None = None
    within: Bounds = (None, None)
    """Only rows whose keys lie here."""

    @property
    def sorted_by(self) -> tuple[KeyPart, ...]:
        """What the order is, to the last tie: equal rows come in key order."""
        named = {p.column for p in self.order}
        return (*self.order, *(p for p in self.table.key if p.column not in named))

    @property
    def needed(self) -> tuple[str, ...]:
        """The stored columns that have to be read."""
        keys = (p.column for p in self.sorted_by)
        count = (COUNT,) if self.table.is_bag else ()
        return tuple(dict.fromkeys([*self.columns, *sorted(self.where.columns), *keys, *count]))


@dataclass(frozen=True)
class Way:
    """One way to the rows. `index`: None for the table itself."""

    ranges: Ranges
    rest: tuple[Term, ...]
    """Terms that are tested on the rows."""
    others: tuple[Expr, ...]
    index: View | None = None
    covering: bool = True
    ordered: bool = False
    grouped: bool = False
    """Ordered but for ties: those who ask for an order get rows that are equal in it by key."""
    rows: int = 0
    """That it reads, about."""
    counted: bool = True
    cost: float = 0.0
    key_length: int = 0

    @property
    def is_scan(self) -> bool:
        return self.index is None and self.ranges.whole

    @property
    def may_cost_more(self) -> bool:
        """Whether it may cost more than a scan: its entries have to be sorted."""
        return self.index is not None and self.covering and not self.ordered

    @property
    def by_whole_keys(self) -> bool:
        return self.index is None and bool(self.ranges.used) and self.ranges.points == self.key_length

    def __str__(self) -> str:
        if self.is_scan:
            return "whole"
        said = in_words(self.ranges.used) or "in its order"
        if self.by_whole_keys:
            many = len(self.ranges.pairs)
            return f"one row by its key: {said}" if many == 1 else f"{many} rows by their keys: {said}"
        if self.index is None:
            return f"a range of keys: {said}"
        return f"the {'covering' if self.covering else 'thin'} index {self.index.table.name}: {said}"

    @property
    def size(self) -> str:
        rows = f"{self.rows:,} row{'s' if self.rows != 1 else ''}"
        return f"{rows if self.counted else f'about {rows}'}, cost {self.cost:,.0f}"


def choose(source: Source, wanted: Wanted) -> Way:
    """The cheapest way."""
    ways = list(_ways(source, wanted))
    bounded = [way for way in ways if not way.is_scan]
    if len(bounded) == 1 and not bounded[0].ranges.whole and not bounded[0].may_cost_more:
        return bounded[0]  # it never reads more than a scan, or is left for one
    if not bounded:
        return ways[0]
    return _sorted(source, wanted, ways)[0]


def _sorted(source: Source, wanted: Wanted, ways: Sequence[Way]) -> list[Way]:
    ways = [_weighed(source, wanted, way) for way in ways]
    # Of ways that cost the same, the one that says more of the condition, and the table itself before an index.
    ways.sort(key=lambda w: (w.cost, -len(w.ranges.used), w.index is not None))
    return ways


def explained(source: Source, wanted: Wanted) -> list[str]:
    """The way that is taken and why, and the others, in words."""
    chosen = choose(source, wanted)
    ways = _sorted(source, wanted, list(_ways(source, wanted)))
    ways.sort(key=lambda way: str(way) != str(chosen))
    rest = in_words(chosen.rest, chosen.others)
    then = f"; then tested: {rest}" if rest else ""
    if chosen.by_whole_keys:
        return [f"{chosen}{then}"]
    return [f"{ways[0]}, {ways[0].size}{then}", *(f"not {way}, {way.size}" for way in ways[1:])]


def by_index(source: Source, wanted: Wanted, name: str) -> Way | None:
    """The way by this index, if there is one."""
    ways = (way for way in _ways(source, wanted) if way.index is not None)
    return next((way for way in ways if way.index is not None and way.index.table.name == name), None)


def _ways(source: Source, wanted: Wanted) -> Iterator[Way]:
    terms = wanted.where.terms
    ordered = source.in_key_order(wanted.table)
    keys = ranges(wanted.table, terms if ordered else ())
    if wanted.within != (None, None):
        yield _way(wanted, wanted.table.key if ordered else (), keys.within(wanted.within), None, covering=True)
        return
    yield _way(wanted, wanted.table.key if ordered else (), keys, None, covering=True)
    if not keys.whole and keys.points == len(wanted.table.key):
        return  # rows by their whole keys: nothing is cheaper
    if not keys.whole:
        yield _way(wanted, wanted.table.key if ordered else (), ranges(wanted.table, ()), None, covering=True)
    for index in usable(source, wanted.table):
        names = own_names(wanted.table, index)
        own = [Term(names[t.column], t.type, t.op, t.values) for t in terms if t.column in names]
        found = ranges(index.table, own)
        back = {v: k for k, v in names.items()}
        found = Ranges(
            found.pairs, tuple(Term(back[t.column], t.type, t.op, t.values) for t in found.used), found.points
        )
        key = [KeyPart(back[p.column], p.descending, p.nulls_last) for p in index.table.key]
        way = _way(wanted, key, found, index, covering=set(wanted.needed) - {COUNT} <= set(names))
        if not found.whole or (way.grouped and wanted.limit is not None):
            yield way


def usable(source: Source, table: Table) -> list[View]:
    """The indexes that stand where the table's own rows stand, or the published batch."""
    of = source.catalog.of(table.id)
    if isinstance(of, View) and (of.suspended is not None or of.at is not None):
        return []
    return [v for v in source.catalog.indexes.get(table.id, ()) if v.suspended is None and v.at is None]


def own_names(table: Table, index: View) -> dict[str, str]:
    """What the table's columns are called in the index, for those that it has."""
    if index.index is None:
        return {}
    now = {c.inside: c.name for c in table.columns}
    pairs = zip(index.index.columns, index.table.columns, strict=True)
    return {now[inside]: own.name for inside, own in pairs if inside in now}


def _way(wanted: Wanted, key: Sequence[KeyPart], found: Ranges, index: View | None, *, covering: bool) -> Way:
    rest = tuple(t for t in wanted.where.terms if t not in found.used)
    # Several ranges follow each other in the order of the key, whatever their first columns are.
    fixed = {p.column for p in key[: found.points]} if len(found.pairs) <= 1 else set()
    ordered = _follows(key, wanted.sorted_by, fixed)
    grouped = bool(wanted.order) and _follows(key, wanted.order, fixed)
    way = Way(found, rest, wanted.where.others, index, covering, ordered, ordered or grouped)
    return replace(way, key_length=len(wanted.table.key))


def _follows(key: Sequence[KeyPart], order: Sequence[KeyPart], fixed: set[str]) -> bool:
    """Whether rows in the order of `key` are in this one, too; columns that have one value are in any."""
    left = [p for p in key if p.column not in fixed]
    asked = [p for p in order if p.column not in fixed]
    return left[: len(asked)] == asked


def _weighed(source: Source, wanted: Wanted, way: Way) -> Way:
    whole = max(1, source.count(wanted.table))
    table = wanted.table if way.index is None else way.index.table
    rows, counted = whole, True
    if not way.ranges.whole:
        rows = 0
        for low, high in way.ranges.pairs:
            rows += source.size(table, low, high, COUNTED + 1 - rows)
            if rows > COUNTED:
                break
        if rows > COUNTED:
            there = source.spread(table)
            rows, counted = max(rows, min(whole, sum(there.within(*pair) for pair in way.ranges.pairs))), False
    if way.grouped and wanted.limit is not None:
        few = wanted.limit * (1 if not way.rest and not way.others else _ASSUMED)
        rows, counted = (few, False) if few < rows else (rows, counted)
    each = 1.0 if way.covering else float(FETCH)
    if way.may_cost_more and rows > COUNTED:
        each = SORTED * (BESIDE + source.spread(table).width) / (BESIDE + source.spread(wanted.table).width)
    return replace(way, rows=rows, counted=counted, cost=rows * each)
