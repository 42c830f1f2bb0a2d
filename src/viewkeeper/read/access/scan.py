"""The rows that are wanted, by the way that was chosen.

    the table itself    its ranges, in pieces
    covering index      its entries, called as the table's columns
    thin index          its entries, then the rows of their keys, in pieces

To what an index gives is laid what came since the batch that it shows: entries of keys that were written since do not
count, and the rows that these keys have now do, if they lie in the way's ranges:

    table as it is  =  table at the cut without the keys written since  +  their rows as they are

Terms that are no part of the way are tested as ranges of bytes, any other condition by DuckDB.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import Defect
from viewkeeper.expressions.tree import Expr
from viewkeeper.model.catalog.catalog import View
from viewkeeper.model.encoding.key_order import key_order
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.names import COUNT
from viewkeeper.model.schema import Table
from viewkeeper.read.access.key_ranges import filter_by_terms, mask_in_ranges
from viewkeeper.read.access.path import FETCH_COST, AccessPath, RowRequest, choose_access_path, index_column_names
from viewkeeper.read.position_state import to_external_types
from viewkeeper.read.state import ReadState
from viewkeeper.store.contract.commits import ChangedKeys

if TYPE_CHECKING:
    from viewkeeper.resources.prepared_statements import PreparedStatements

_FIRST_FETCH_ROWS, _MAX_FETCH_ROWS = 256, 65_536
"""Entries of a thin index whose rows are fetched together: few at first, since a limit may end it."""

_END_OF_KEYS = b"\xff" * 64
"""After every key: none begins with so many."""


def fetch(state: ReadState, request: RowRequest) -> pa.Table:
    """All rows that are wanted, as users see them."""
    pieces = list(stream(state, request))
    return pa.concat_tables(pieces) if pieces else to_visible_rows(request, request_schema(request).empty_table())


def stream(state: ReadState, request: RowRequest) -> Iterator[pa.Table]:
    """The rows that are wanted, as users see them, piece by piece where the way gives them in their order."""
    if request.limit != 0:
        yield from scan_path(state, request, choose_access_path(state, request))


def scan_path(state: ReadState, request: RowRequest, path: AccessPath) -> Iterator[pa.Table]:
    """The rows that are wanted and lie in the ranges of a way."""
    later = state.view_overlay(request.table) if path.index is None else state.index_overlay(request.table)
    if later is not None and later.keys is None:  # nobody knows what was written since
        later = None
        pieces = _scan_instead(state, request, path, None)
    else:
        pieces = _read_path(state, request, path, later)
    pieces = _apply_residual(pieces, request, path)
    if path.is_ordered and later is None:
        left = request.limit
        for piece in pieces:
            found = to_visible_rows(request, piece)
            found = found if left is None else found.slice(0, left)
            left = None if left is None else left - found.num_rows
            if found.num_rows:
                yield found
            if left == 0:
                return
        return
    found = list(_take_until_limit(pieces, request) if path.is_grouped and request.limit is not None else pieces)
    if later is not None:
        found += _apply_residual(iter([_filter_ranges(request, path, later.rows)]), request, path)
    rows = pa.concat_tables([request_schema(request).empty_table(), *found]).combine_chunks()
    rows = to_visible_rows(request, sort_rows(request, rows))
    yield rows if request.limit is None else rows.slice(0, request.limit)


def to_visible_rows(request: RowRequest, stored: pa.Table) -> pa.Table:
    """Stored rows as users see them: a bag's repeated, the columns that were asked for, time zones put back."""
    if request.table.is_bag:
        counts = stored[COUNT].to_numpy()
        if (counts != 1).any():
            stored = stored.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
    return to_external_types(request.table, stored.select(list(request.columns)))


def sort_rows(request: RowRequest, rows: pa.Table) -> pa.Table:
    """Rows in the order that is asked for: that of key bytes is that of values."""
    by = replace(request.table, key=request.sort_key)
    order = key_order(encode_keys(by, rows)) if request.sort_key else None
    return rows if order is None else rows.take(pa.array(order))


def request_schema(request: RowRequest) -> pa.Schema:
    """Of stored rows with all columns that are needed."""
    return pa.schema([request.table.arrow.field(name) for name in request.stored_columns])


def _take_until_limit(pieces: Iterator[pa.Table], request: RowRequest) -> Iterator[pa.Table]:
    """Pieces until there are as many rows as the limit, and all that are equal in their order to the last of these."""
    by, left, last = replace(request.table, key=request.order or request.sort_key), request.limit or 0, b""
    for piece in pieces:
        yield piece
        rows = piece.num_rows
        if not rows:
            continue
        keys = encode_keys(by, piece)
        if left > 0 and rows >= left:
            last = keys[left - 1].as_py()
        left -= rows
        if left <= 0 and keys[rows - 1].as_py() > last:
            return


# -- pieces ------------------------------------------------------------------------------------------------------------


def _read_path(
    state: ReadState, request: RowRequest, path: AccessPath, overlay: ChangedKeys | None
) -> Iterator[pa.Table]:
    """Rows with all columns that are needed; in the way's order, if it has one."""
    bare = not path.residual_terms and not path.residual_exprs and overlay is None and path.is_ordered
    limit = request.limit if bare else None
    if path.index is None:
        for low, high in path.ranges.pairs:
            for rows in state.scan(request.table, request.stored_columns, low, high, limit):
                yield _exclude_changed(request.table, rows, overlay)
        return
    names = index_column_names(request.table, path.index)
    if path.is_covering:
        for entries in _scan_index(
            state, path.index, [names[n] for n in request.stored_columns if n != COUNT], path, limit
        ):
            yield _exclude_changed(
                request.table, _rename_entries(entries, names).select(list(request.stored_columns)), overlay
            )
        return
    yield from _read_by_index(state, request, path, names, overlay, limit)


def _scan_index(
    state: ReadState, index: View, columns: Sequence[str], path: AccessPath, limit: int | None
) -> Iterator[pa.Table]:
    columns = [*columns, *([COUNT] if index.table.is_bag else [])]
    for low, high in path.ranges.pairs:
        # A range that has an end is read in small pieces first.
        high = _END_OF_KEYS if high is None and path.ranges.is_whole else high
        yield from state.scan(index.table, columns, low, high, limit)


def _read_by_index(
    state: ReadState,
    request: RowRequest,
    path: AccessPath,
    names: dict[str, str],
    overlay: ChangedKeys | None,
    limit: int | None,
) -> Iterator[pa.Table]:
    """The rows of a thin index's entries; all rows of the table if those become too many."""
    table, index = request.table, path.index
    if index is None:
        raise Defect("Rows are fetched by the keys of an index.")
    keys = [c.name for c in table.key_columns]
    ends = path.is_grouped and request.limit is not None
    most = max(1, state.count(table)) // FETCH_COST + _FIRST_FETCH_ROWS
    waiting: list[pa.Table] = []
    count, size = 0, _FIRST_FETCH_ROWS
    for entries in _scan_index(state, index, [names[k] for k in keys], path, limit):
        waiting.append(_exclude_changed(table, _rename_entries(entries, names).select(keys), overlay))
        count += entries.num_rows
        if ends and sum(w.num_rows for w in waiting) >= size:
            yield from _fetch_rows(state, request, waiting)
            waiting, size = [], min(8 * size, _MAX_FETCH_ROWS)
        elif not ends and count > most:  # nothing was handed on so far
            yield from _scan_instead(state, request, path, overlay)
            return
    if waiting:
        yield from _fetch_rows(state, request, waiting)


def _fetch_rows(state: ReadState, request: RowRequest, key_tables: Sequence[pa.Table]) -> Iterator[pa.Table]:
    keys = pa.concat_tables(key_tables).combine_chunks()
    for start in range(0, keys.num_rows, _MAX_FETCH_ROWS):
        yield sort_rows(request, state.find(request.table, keys.slice(start, _MAX_FETCH_ROWS), request.stored_columns))


def _scan_instead(
    state: ReadState, request: RowRequest, path: AccessPath, overlay: ChangedKeys | None
) -> Iterator[pa.Table]:
    """A scan that gives what the way would have given."""
    columns = list(dict.fromkeys([*request.stored_columns, *_index_key_columns(request, path)]))
    pieces = (
        _exclude_changed(request.table, _filter_ranges(request, path, piece), overlay)
        for piece in state.scan(request.table, columns, None, None, None)
    )
    if path.is_ordered:
        yield sort_rows(request, pa.concat_tables([request_schema(request).empty_table(), *pieces]).combine_chunks())
    else:
        yield from pieces


def _filter_ranges(request: RowRequest, path: AccessPath, rows: pa.Table) -> pa.Table:
    """Of the table's rows those whose entries lie in the way's ranges, with the columns that are needed."""
    if path.index is None:
        rows = rows.filter(mask_in_ranges(encode_keys(request.table, rows), path.ranges.pairs))
    else:
        names = index_column_names(request.table, path.index)
        own = {names[name]: rows[name] for name in _index_key_columns(request, path)}
        rows = rows.filter(mask_in_ranges(encode_keys(path.index.table, pa.table(own)), path.ranges.pairs))
    return rows.select(list(request.stored_columns))


def _index_key_columns(request: RowRequest, path: AccessPath) -> list[str]:
    """The table's columns that an index's key is made of."""
    if path.index is None:
        return []
    back = {own: name for name, own in index_column_names(request.table, path.index).items()}
    return [back[part.column] for part in path.index.table.key]


def _rename_entries(entries: pa.Table, names: dict[str, str]) -> pa.Table:
    """An index's entries with the table's names for their columns."""
    back = {own: name for name, own in names.items()}
    return entries.rename_columns([back.get(name, name) for name in entries.column_names])


# -- since the batch ---------------------------------------------------------------------------------------------------


def _exclude_changed(table: Table, rows: pa.Table, overlay: ChangedKeys | None) -> pa.Table:
    """Rows whose keys were not written since."""
    if overlay is None or overlay.keys is None or not rows.num_rows:
        return rows
    if not table.key:  # it has one row at most, and that was written
        return rows.slice(0, 0)
    written = encode_keys(table, overlay.keys)
    return rows.filter(pc.invert(pc.is_in(encode_keys(table, rows), value_set=written)))


# -- conditions --------------------------------------------------------------------------------------------------------


def _apply_residual(pieces: Iterator[pa.Table], request: RowRequest, path: AccessPath) -> Iterator[pa.Table]:
    """The rows of pieces that pass what the way has not seen to."""
    test = _compile_residual(path.residual_exprs) if path.residual_exprs else None
    for piece in pieces:
        found = filter_by_terms(request.table, path.residual_terms, piece)
        yield found if test is None or not found.num_rows else test(found)


def _compile_residual(exprs: Sequence[Expr]) -> Callable[[pa.Table], pa.Table]:
    """A condition, by DuckDB."""
    from viewkeeper import expressions

    condition = " AND ".join(expressions.render_predicate(part) for part in exprs)
    sql = f"SELECT * FROM _rows WHERE {condition}"
    return lambda rows: _statements_of(os.getpid()).run(sql, _rows=rows).cast(rows.schema)


@lru_cache(maxsize=1)
def _statements_of(process_id: int) -> PreparedStatements:
    """One for all conditions: to make one takes longer than most reads. It tests a piece at a time, and keeps none."""
    from viewkeeper import expressions
    from viewkeeper.resources.prepared_statements import PreparedStatements

    return PreparedStatements(expressions.register_functions, threads=1)
