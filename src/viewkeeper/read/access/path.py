"""Choice of the cheapest access path.

    path             reads                                           costs
    key range        the rows of the range                           1 a row
    covering index   the entries of its range, nothing else          1 an entry; for many, by width and sort cost
    thin index       the entries, then each row by its key           `FETCH_COST` an entry
    scan             every row                                       1 a row of the table

If there is a choice, the rows of a range are counted up to `MAX_COUNTED_ROWS`; beyond that the key histogram estimates
them. Many entries of a covering index that are not in the requested order must be sorted, so a range of most of the
table costs more than a scan, unless the entries are much narrower than the rows. The reader does not rely on the
estimate: when a thin index returns too many entries, it switches to a scan (`scan`).

A path is *ordered* if it returns rows in the requested order, and *grouped* if it does so except for ties; with a limit
the read then ends when there are enough rows.
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
"""Cost of fetching a row by its key, in scanned rows (`benchmarks/access.py`)."""
MAX_COUNTED_ROWS = 1_000
_ROWS_PER_MATCH = 10
"""A residual predicate is assumed to keep one row in this many."""
SORT_COST = 1.4
"""Cost of an entry among many that must be sorted, relative to an entry in order."""
ROW_OVERHEAD_BYTES = 380
"""Fixed cost of a row, expressed in bytes of row width."""


@dataclass(frozen=True)
class RowRequest:
    """A request for rows of a table or view."""

    table: Table
    where: RequestPredicate = field(default_factory=RequestPredicate)
    columns: tuple[str, ...] = ()
    """Visible columns to return."""
    order: tuple[KeyPart, ...] = ()
    """Requested order; empty: key order."""
    limit: int | None = None
    key_bounds: KeyBounds = (None, None)
    """Only rows whose keys lie between these."""

    @property
    def sort_key(self) -> tuple[KeyPart, ...]:
        """The order as a full key: ties are in key order."""
        named = {p.column for p in self.order}
        return (*self.order, *(p for p in self.table.key if p.column not in named))

    @property
    def stored_columns(self) -> tuple[str, ...]:
        """The stored columns that the read needs."""
        keys = (p.column for p in self.sort_key)
        count = (COUNT,) if self.table.is_bag else ()
        return tuple(dict.fromkeys([*self.columns, *sorted(self.where.columns), *keys, *count]))


@dataclass(frozen=True)
class AccessPath:
    """One access path. `index`: None for the table itself."""

    ranges: KeyRanges
    residual_terms: tuple[SargableTerm, ...]
    """Terms that are tested on the rows."""
    residual_exprs: tuple[Expr, ...]
    index: View | None = None
    is_covering: bool = True
    is_ordered: bool = False
    is_grouped: bool = False
    """Ordered except for ties, which the reader sorts by key."""
    rows: int = 0
    """The approximate number of rows that the path reads."""
    is_counted: bool = True
    cost: float = 0.0
    key_length: int = 0

    @property
    def is_scan(self) -> bool:
        return self.index is None and self.ranges.is_whole

    @property
    def can_exceed_scan(self) -> bool:
        """Whether the path may cost more than a scan, because its entries must be sorted."""
        return self.index is not None and self.is_covering and not self.is_ordered

    @property
    def is_key_lookup(self) -> bool:
        return self.index is None and bool(self.ranges.used_terms) and self.ranges.point_columns == self.key_length

    def __str__(self) -> str:
        if self.is_scan:
            return "whole"
        terms = describe_terms(self.ranges.used_terms) or "in its order"
        if self.is_key_lookup:
            count = len(self.ranges.pairs)
            return f"one row by its key: {terms}" if count == 1 else f"{count} rows by their keys: {terms}"
        if self.index is None:
            return f"a range of keys: {terms}"
        return f"the {'covering' if self.is_covering else 'thin'} index {self.index.table.name}: {terms}"

    @property
    def size_text(self) -> str:
        rows = f"{self.rows:,} row{'s' if self.rows != 1 else ''}"
        return f"{rows if self.is_counted else f'about {rows}'}, cost {self.cost:,.0f}"


def choose_access_path(state: ReadState, request: RowRequest) -> AccessPath:
    """The cheapest access path."""
    paths = list(_access_paths(state, request))
    bounded = [path for path in paths if not path.is_scan]
    if len(bounded) == 1 and not bounded[0].ranges.is_whole and not bounded[0].can_exceed_scan:
        return bounded[0]  # it never costs more than a scan, or the reader switches to a scan
    if not bounded:
        return paths[0]
    return _rank_paths(state, request, paths)[0]


def _rank_paths(state: ReadState, request: RowRequest, paths: Sequence[AccessPath]) -> list[AccessPath]:
    paths = [_estimate_cost(state, request, path) for path in paths]
    # Of equal costs: the path that uses more terms, and the table itself before an index.
    paths.sort(key=lambda p: (p.cost, -len(p.ranges.used_terms), p.index is not None))
    return paths


def explain_access_path(state: ReadState, request: RowRequest) -> list[str]:
    """The chosen path with the reason, then the other paths, as text."""
    chosen = choose_access_path(state, request)
    paths = _rank_paths(state, request, list(_access_paths(state, request)))
    paths.sort(key=lambda path: str(path) != str(chosen))
    rest = describe_terms(chosen.residual_terms, chosen.residual_exprs)
    then = f"; then tested: {rest}" if rest else ""
    if chosen.is_key_lookup:
        return [f"{chosen}{then}"]
    return [f"{paths[0]}, {paths[0].size_text}{then}", *(f"not {path}, {path.size_text}" for path in paths[1:])]


def find_index_path(state: ReadState, request: RowRequest, name: str) -> AccessPath | None:
    """The path by the named index, or None."""
    paths = (path for path in _access_paths(state, request) if path.index is not None)
    return next((path for path in paths if path.index is not None and path.index.table.name == name), None)


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
        index_terms = [SargableTerm(names[t.column], t.type, t.op, t.values) for t in terms if t.column in names]
        found = key_ranges(index.table, index_terms)
        table_names = {v: k for k, v in names.items()}
        found = KeyRanges(
            found.pairs,
            tuple(SargableTerm(table_names[t.column], t.type, t.op, t.values) for t in found.used_terms),
            found.point_columns,
        )
        key = [KeyPart(table_names[p.column], p.descending, p.nulls_last) for p in index.table.key]
        path = _build_path(request, key, found, index, is_covering=set(request.stored_columns) - {COUNT} <= set(names))
        if not found.is_whole or (path.is_grouped and request.limit is not None):
            yield path


def usable_indexes(state: ReadState, table: Table) -> list[View]:
    """The indexes with the same cut as the table's own rows, or the published batch's."""
    object_ = state.catalog.find_by_id(table.id)
    if isinstance(object_, View) and (object_.suspended is not None or object_.own_cut is not None):
        return []
    return [v for v in state.catalog.indexes.get(table.id, ()) if v.suspended is None and v.own_cut is None]


def index_column_names(table: Table, index: View) -> dict[str, str]:
    """The index's name of each table column that the index has."""
    if index.index is None:
        return {}
    now = {c.internal_name: c.name for c in table.columns}
    pairs = zip(index.index.columns, index.table.columns, strict=True)
    return {now[internal]: index_column.name for internal, index_column in pairs if internal in now}


def _build_path(
    request: RowRequest, key: Sequence[KeyPart], key_ranges: KeyRanges, index: View | None, *, is_covering: bool
) -> AccessPath:
    rest = tuple(t for t in request.where.terms if t not in key_ranges.used_terms)
    # Several ranges follow each other in key order, whatever their leading columns are.
    fixed = {p.column for p in key[: key_ranges.point_columns]} if len(key_ranges.pairs) <= 1 else set()
    ordered = _is_in_order(key, request.sort_key, fixed)
    grouped = bool(request.order) and _is_in_order(key, request.order, fixed)
    path = AccessPath(key_ranges, rest, request.where.residual, index, is_covering, ordered, ordered or grouped)
    return replace(path, key_length=len(request.table.key))


def _is_in_order(key: Sequence[KeyPart], order: Sequence[KeyPart], fixed_columns: set[str]) -> bool:
    """Whether rows in the order of `key` are also in `order`; columns with one value do not matter."""
    key_columns = [p for p in key if p.column not in fixed_columns]
    order_columns = [p for p in order if p.column not in fixed_columns]
    return key_columns[: len(order_columns)] == order_columns


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
            histogram = state.key_histogram(table)
            rows, counted = (
                max(rows, min(whole, sum(histogram.estimate_rows(*pair) for pair in path.ranges.pairs))),
                False,
            )
    if path.is_grouped and request.limit is not None:
        limited_rows = request.limit * (1 if not path.residual_terms and not path.residual_exprs else _ROWS_PER_MATCH)
        rows, counted = (limited_rows, False) if limited_rows < rows else (rows, counted)
    row_cost = 1.0 if path.is_covering else float(FETCH_COST)
    if path.can_exceed_scan and rows > MAX_COUNTED_ROWS:
        row_cost = (
            SORT_COST
            * (ROW_OVERHEAD_BYTES + state.key_histogram(table).row_bytes)
            / (ROW_OVERHEAD_BYTES + state.key_histogram(request.table).row_bytes)
        )
    return replace(path, rows=rows, is_counted=counted, cost=rows * row_cost)
