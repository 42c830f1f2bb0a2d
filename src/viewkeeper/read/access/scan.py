"""The rows of a request by the chosen access path.

    the table itself    its ranges, in pieces
    covering index      its entries, renamed to the table's columns
    thin index          its entries, then the rows of their keys, in pieces

An index shows the published batch. The changes since then are an overlay on what it returns: entries of keys that were
written since are dropped, and the current rows of these keys are added if they lie in the path's ranges:

    table now  =  table at the cut without the keys written since  +  the current rows of these keys

Terms that the path does not use are tested as ranges of key bytes, any other residual condition by DuckDB.
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
"""Numbers of thin-index entries whose rows are fetched together: few at first, since a limit may end the read."""

_END_OF_KEYS = b"\xff" * 64
"""A key greater than every stored key: no stored key begins with so many 0xff bytes."""


def fetch(state: ReadState, request: RowRequest) -> pa.Table:
    """All requested rows, in visible form."""
    pieces = list(stream(state, request))
    return pa.concat_tables(pieces) if pieces else to_visible_rows(request, request_schema(request).empty_table())


def stream(state: ReadState, request: RowRequest) -> Iterator[pa.Table]:
    """The requested rows in visible form, in pieces where the path returns them in the requested order."""
    if request.limit != 0:
        yield from scan_path(state, request, choose_access_path(state, request))


def scan_path(state: ReadState, request: RowRequest, path: AccessPath) -> Iterator[pa.Table]:
    """The requested rows that lie in the ranges of a path."""
    overlay = state.view_overlay(request.table) if path.index is None else state.index_overlay(request.table)
    if overlay is not None and overlay.keys is None:  # the keys written since are unknown
        overlay = None
        pieces = _scan_instead(state, request, path, None)
    else:
        pieces = _read_path(state, request, path, overlay)
    pieces = _apply_residual(pieces, request, path)
    if path.is_ordered and overlay is None:
        remaining = request.limit
        for piece in pieces:
            visible = to_visible_rows(request, piece)
            visible = visible if remaining is None else visible.slice(0, remaining)
            remaining = None if remaining is None else remaining - visible.num_rows
            if visible.num_rows:
                yield visible
            if remaining == 0:
                return
        return
    visible = list(_take_until_limit(pieces, request) if path.is_grouped and request.limit is not None else pieces)
    if overlay is not None:
        visible += _apply_residual(iter([_filter_ranges(request, path, overlay.rows)]), request, path)
    rows = pa.concat_tables([request_schema(request).empty_table(), *visible]).combine_chunks()
    rows = to_visible_rows(request, sort_rows(request, rows))
    yield rows if request.limit is None else rows.slice(0, request.limit)


def to_visible_rows(request: RowRequest, stored: pa.Table) -> pa.Table:
    """Convert stored rows to visible rows: repeat a bag's rows, select the requested columns, restore time zones."""
    if request.table.is_bag:
        counts = stored[COUNT].to_numpy()
        if (counts != 1).any():
            stored = stored.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
    return to_external_types(request.table, stored.select(list(request.columns)))


def sort_rows(request: RowRequest, rows: pa.Table) -> pa.Table:
    """Sort rows in the requested order: the order of key bytes is the order of values."""
    ordered = replace(request.table, key=request.sort_key)
    order = key_order(encode_keys(ordered, rows)) if request.sort_key else None
    return rows if order is None else rows.take(pa.array(order))


def request_schema(request: RowRequest) -> pa.Schema:
    """The schema of stored rows with all columns that the read needs."""
    return pa.schema([request.table.arrow.field(name) for name in request.stored_columns])


def _take_until_limit(pieces: Iterator[pa.Table], request: RowRequest) -> Iterator[pa.Table]:
    """Yield pieces until there are `limit` rows and all rows that tie with the last of them in the requested order."""
    ordered, remaining, last = replace(request.table, key=request.order or request.sort_key), request.limit or 0, b""
    for piece in pieces:
        yield piece
        rows = piece.num_rows
        if not rows:
            continue
        keys = encode_keys(ordered, piece)
        if remaining > 0 and rows >= remaining:
            last = keys[remaining - 1].as_py()
        remaining -= rows
        if remaining <= 0 and keys[rows - 1].as_py() > last:
            return


# -- pieces ------------------------------------------------------------------------------------------------------------


def _read_path(
    state: ReadState, request: RowRequest, path: AccessPath, overlay: ChangedKeys | None
) -> Iterator[pa.Table]:
    """Rows with all needed columns; in the path's order, if it has one."""
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
        # The store reads a range with an upper end in small pieces first.
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
    """The rows of a thin index's entries; a scan of the table if there are too many entries."""
    table, index = request.table, path.index
    if index is None:
        raise Defect("Rows are fetched by the keys of an index.")
    keys = [c.name for c in table.key_columns]
    ends = path.is_grouped and request.limit is not None
    max_entries = max(1, state.count(table)) // FETCH_COST + _FIRST_FETCH_ROWS
    pending: list[pa.Table] = []
    count, size = 0, _FIRST_FETCH_ROWS
    for entries in _scan_index(state, index, [names[k] for k in keys], path, limit):
        pending.append(_exclude_changed(table, _rename_entries(entries, names).select(keys), overlay))
        count += entries.num_rows
        if ends and sum(w.num_rows for w in pending) >= size:
            yield from _fetch_rows(state, request, pending)
            pending, size = [], min(8 * size, _MAX_FETCH_ROWS)
        elif not ends and count > max_entries:  # no row was yielded so far
            yield from _scan_instead(state, request, path, overlay)
            return
    if pending:
        yield from _fetch_rows(state, request, pending)


def _fetch_rows(state: ReadState, request: RowRequest, key_tables: Sequence[pa.Table]) -> Iterator[pa.Table]:
    keys = pa.concat_tables(key_tables).combine_chunks()
    for start in range(0, keys.num_rows, _MAX_FETCH_ROWS):
        yield sort_rows(request, state.find(request.table, keys.slice(start, _MAX_FETCH_ROWS), request.stored_columns))


def _scan_instead(
    state: ReadState, request: RowRequest, path: AccessPath, overlay: ChangedKeys | None
) -> Iterator[pa.Table]:
    """Scan the table for the rows that the path would have returned."""
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
    """Keep the table's rows whose entries lie in the path's ranges; select the needed columns."""
    if path.index is None:
        rows = rows.filter(mask_in_ranges(encode_keys(request.table, rows), path.ranges.pairs))
    else:
        names = index_column_names(request.table, path.index)
        entry_columns = {names[name]: rows[name] for name in _index_key_columns(request, path)}
        rows = rows.filter(mask_in_ranges(encode_keys(path.index.table, pa.table(entry_columns)), path.ranges.pairs))
    return rows.select(list(request.stored_columns))


def _index_key_columns(request: RowRequest, path: AccessPath) -> list[str]:
    """The table's columns that form the index's key."""
    if path.index is None:
        return []
    table_names = {entry_name: name for name, entry_name in index_column_names(request.table, path.index).items()}
    return [table_names[part.column] for part in path.index.table.key]


def _rename_entries(entries: pa.Table, names: dict[str, str]) -> pa.Table:
    """Rename an index's entries to the table's column names."""
    table_names = {entry_name: name for name, entry_name in names.items()}
    return entries.rename_columns([table_names.get(name, name) for name in entries.column_names])


# -- changes since the batch -------------------------------------------------------------------------------------------


def _exclude_changed(table: Table, rows: pa.Table, overlay: ChangedKeys | None) -> pa.Table:
    """Drop the rows whose keys were written since the batch."""
    if overlay is None or overlay.keys is None or not rows.num_rows:
        return rows
    if not table.key:  # the table has one row at most, and that row was written
        return rows.slice(0, 0)
    written = encode_keys(table, overlay.keys)
    return rows.filter(pc.invert(pc.is_in(encode_keys(table, rows), value_set=written)))


# -- conditions --------------------------------------------------------------------------------------------------------


def _apply_residual(pieces: Iterator[pa.Table], request: RowRequest, path: AccessPath) -> Iterator[pa.Table]:
    """Keep the rows that pass the terms and conditions that the path does not express."""
    test = _compile_residual(path.residual_exprs) if path.residual_exprs else None
    for piece in pieces:
        found = filter_by_terms(request.table, path.residual_terms, piece)
        yield found if test is None or not found.num_rows else test(found)


def _compile_residual(exprs: Sequence[Expr]) -> Callable[[pa.Table], pa.Table]:
    """A filter function for a condition, run by DuckDB."""
    from viewkeeper import expressions

    condition = " AND ".join(expressions.render_predicate(part) for part in exprs)
    sql = f"SELECT * FROM _rows WHERE {condition}"
    return lambda rows: _statements_of(os.getpid()).run(sql, _rows=rows).cast(rows.schema)


@lru_cache(maxsize=1)
def _statements_of(process_id: int) -> PreparedStatements:
    """The prepared statements of all residual conditions: creating them takes longer than most reads. No rows are
    kept."""
    from viewkeeper import expressions
    from viewkeeper.resources.prepared_statements import PreparedStatements

    return PreparedStatements(expressions.register_functions, threads=1)
