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
from viewkeeper.read.access.key_ranges import KeyBounds, KeyRanges, key_ranges
from viewkeeper.read.access.predicates import RequestPredicate, SargableTerm, describe_terms
from viewkeeper.read.state import ReadState

FETCH_COST = 8
"""A row that is fetched by its key costs as much as so many that are scanned (`benchmarks/access.py`)."""
MAX_COUNTED_ROWS = 1_000
_ROWS_PER_MATCH = 10
"""Of rows that a test is made on, one in so many passes it."""
SORT_COST = 1.4
"""An entry among many that are to be sorted costs as much as so many that are in order."""
ROW_OVERHEAD_BYTES = 380
"""A row costs as much as so many bytes of it, whatever its width."""


@dataclass(frozen=True)
class RowRequest:
    """The rows of a table or view that are asked for, and how."""

    table: Table
    where: RequestPredicate = field(default_factory=RequestPredicate)
    columns: tuple[str, ...] = ()
    """Visible columns that are to be given."""
    order: tuple[KeyPart, ...] = ()
    """In this order; none: in that of the key."""
    limit: int | None = None
    key_bounds: KeyBounds = (None, None)
    """Only rows whose keys lie here."""

    @property
    def sort_key(self) -> tuple[KeyPart, ...]:
        """What the order is, to the last tie: equal rows come in key order."""
        named = {p.column for p in self.order}
        return (*self.order, *(p for p in self.table.key if p.column not in named))

    @property
    def stored_columns(self) -> tuple[str, ...]:
        """The stored columns that have to be read."""
        keys = (p.column for p in self.sort_key)
        count = (COUNT,) if self.table.is_bag else ()
        return tuple(dict.fromkeys([*self.columns, *sorted(self.where.columns), *keys, *count]))


@dataclass(frozen=True)
class AccessPath:
    """One way to the rows. `index`: None for the table itself."""

    ranges: KeyRanges
    residual_terms: tuple[SargableTerm, ...]
    """Terms that are tested on the rows."""
    residual_exprs: tuple[Expr, ...]
    index: View | None = None
    is_covering: bool = True
    is_ordered: bool = False
    is_grouped: bool = False
    """Ordered but for ties: those who ask for an order get rows that are equal in it by key."""
    rows: int = 0
    """That it reads, about."""
    is_counted: bool = True
    cost: float = 0.0
    key_length: int = 0

    @property
    def is_scan(self) -> bool:
        return self.index is None and self.ranges.is_whole

    @property
    def can_exceed_scan(self) -> bool:
        """Whether it may cost more than a scan: its entries have to be sorted."""
        return self.index is not None and self.is_covering and not self.is_ordered

    @property
    def is_key_lookup(self) -> bool:
        return self.index is None and bool(self.ranges.used_terms) and self.ranges.point_columns == self.key_length

    def __str__(self) -> str:
        if self.is_scan:
            return "whole"
        said = describe_terms(self.ranges.used_terms) or "in its order"
        if self.is_key_lookup:
            many = len(self.ranges.pairs)
            return f"one row by its key: {said}" if many == 1 else f"{many} rows by their keys: {said}"
        if self.index is None:
            return f"a range of keys: {said}"
        return f"the {'covering' if self.is_covering else 'thin'} index {self.index.table.name}: {said}"

    @property
    def size_text(self) -> str:
        rows = f"{self.rows:,} row{'s' if self.rows != 1 else ''}"
        return f"{rows if self.is_counted else f'about {rows}'}, cost {self.cost:,.0f}"


def choose_access_path(state: ReadState, request: RowRequest) -> AccessPath:
    """The cheapest way."""
    ways = list(_access_paths(state, request))
    bounded = [way for way in ways if not way.is_scan]
    if len(bounded) == 1 and not bounded[0].ranges.is_whole and not bounded[0].can_exceed_scan:
        return bounded[0]  # it never reads more than a scan, or is left for one
    if not bounded:
        return ways[0]
    return _rank_paths(state, request, ways)[0]


def _rank_paths(state: ReadState, request: RowRequest, paths: Sequence[AccessPath]) -> list[AccessPath]:
    paths = [_estimate_cost(state, request, way) for way in paths]
    # Of ways that cost the same, the one that says more of the condition, and the table itself before an index.
    paths.sort(key=lambda w: (w.cost, -len(w.ranges.used_terms), w.index is not None))
    return paths


def explain_access_path(state: ReadState, request: RowRequest) -> list[str]:
    """The way that is taken and why, and the others, in words."""
    chosen = choose_access_path(state, request)
    ways = _rank_paths(state, request, list(_access_paths(state, request)))
    ways.sort(key=lambda way: str(way) != str(chosen))
    rest = describe_terms(chosen.residual_terms, chosen.residual_exprs)
    then = f"; then tested: {rest}" if rest else ""
    if chosen.is_key_lookup:
        return [f"{chosen}{then}"]
    return [f"{ways[0]}, {ways[0].size_text}{then}", *(f"not {way}, {way.size_text}" for way in ways[1:])]


def find_index_path(state: ReadState, request: RowRequest, name: str) -> AccessPath | None:
    """The way by this index, if there is one."""
    ways = (way for way in _access_paths(state, request) if way.index is not None)
    return next((way for way in ways if way.index is not None and way.index.table.name == name), None)


def _access_paths(state: ReadState, request: RowRequest) -> Iterator[AccessPath]:
    terms = request.where.terms
    ordered = state.is_in_key_order(request.table)
    keys = key_ranges(request.table, terms if ordered else ())
    if request.key_bounds != (None, None):
        yield _build_path(
            request, request.table.key if ordered else (), keys.intersect(request.key_bounds), None, is_covering=True
        )
        return
    yield _build_path(request, request.table.key if ordered else (), keys, None, is_covering=True)
    if not keys.is_whole and keys.point_columns == len(request.table.key):
        return  # rows by their whole keys: nothing is cheaper
    if not keys.is_whole:
        yield _build_path(
            request, request.table.key if ordered else (), key_ranges(request.table, ()), None, is_covering=True
        )
    for index in usable_indexes(state, request.table):
        names = index_column_names(request.table, index)
        own = [SargableTerm(names[t.column], t.type, t.op, t.values) for t in terms if t.column in names]
        found = key_ranges(index.table, own)
        back = {v: k for k, v in names.items()}
        found = KeyRanges(
            found.pairs,
            tuple(SargableTerm(back[t.column], t.type, t.op, t.values) for t in found.used_terms),
            found.point_columns,
        )
        key = [KeyPart(back[p.column], p.descending, p.nulls_last) for p in index.table.key]
        way = _build_path(request, key, found, index, is_covering=set(request.stored_columns) - {COUNT} <= set(names))
        if not found.is_whole or (way.is_grouped and request.limit is not None):
            yield way


def usable_indexes(state: ReadState, table: Table) -> list[View]:
    """The indexes that stand where the table's own rows stand, or the published batch."""
    of = state.catalog.find_by_id(table.id)
    if isinstance(of, View) and (of.suspended is not None or of.own_cut is not None):
        return []
    return [v for v in state.catalog.indexes.get(table.id, ()) if v.suspended is None and v.own_cut is None]


def index_column_names(table: Table, index: View) -> dict[str, str]:
    """What the table's columns are called in the index, for those that it has."""
    if index.index is None:
        return {}
    now = {c.internal_name: c.name for c in table.columns}
    pairs = zip(index.index.columns, index.table.columns, strict=True)
    return {now[inside]: own.name for inside, own in pairs if inside in now}


def _build_path(
    request: RowRequest, key: Sequence[KeyPart], key_ranges: KeyRanges, index: View | None, *, is_covering: bool
) -> AccessPath:
    rest = tuple(t for t in request.where.terms if t not in key_ranges.used_terms)
    # Several ranges follow each other in the order of the key, whatever their first columns are.
    fixed = {p.column for p in key[: key_ranges.point_columns]} if len(key_ranges.pairs) <= 1 else set()
    ordered = _is_in_order(key, request.sort_key, fixed)
    grouped = bool(request.order) and _is_in_order(key, request.order, fixed)
    way = AccessPath(key_ranges, rest, request.where.residual, index, is_covering, ordered, ordered or grouped)
    return replace(way, key_length=len(request.table.key))


def _is_in_order(key: Sequence[KeyPart], order: Sequence[KeyPart], fixed_columns: set[str]) -> bool:
    """Whether rows in the order of `key` are in this one, too; columns that have one value are in any."""
    left = [p for p in key if p.column not in fixed_columns]
    asked = [p for p in order if p.column not in fixed_columns]
    return left[: len(asked)] == asked


def _estimate_cost(state: ReadState, request: RowRequest, path: AccessPath) -> AccessPath:
    whole = max(1, state.count(request.table))
    table = request.table if path.index is None else path.index.table
    rows, counted = whole, True
    if not path.ranges.is_whole:
        rows = 0
        for low, high in path.ranges.pairs:
            rows += state.estimate_rows(table, low, high, MAX_COUNTED_ROWS + 1 - rows)
            if rows > MAX_COUNTED_ROWS:
                break
        if rows > MAX_COUNTED_ROWS:
            there = state.key_histogram(table)
            rows, counted = max(rows, min(whole, sum(there.estimate_rows(*pair) for pair in path.ranges.pairs))), False
    if path.is_grouped and request.limit is not None:
        few = request.limit * (1 if not path.residual_terms and not path.residual_exprs else _ROWS_PER_MATCH)
        rows, counted = (few, False) if few < rows else (rows, counted)
    each = 1.0 if path.is_covering else float(FETCH_COST)
    if path.can_exceed_scan and rows > MAX_COUNTED_ROWS:
        each = (
            SORT_COST
            * (ROW_OVERHEAD_BYTES + state.key_histogram(table).row_bytes)
            / (ROW_OVERHEAD_BYTES + state.key_histogram(request.table).row_bytes)
        )
    return replace(path, rows=rows, is_counted=counted, cost=rows * each)
