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
from viewkeeper.read.access.key_ranges import inside, passing
from viewkeeper.read.access.path import FETCH, Wanted, Way, choose, own_names
from viewkeeper.read.position_state import outside
from viewkeeper.read.state import Source
from viewkeeper.store.contract.commits import Changed

if TYPE_CHECKING:
    from viewkeeper.resources.prepared_statements import Duck

_FIRST, _PIECE = 256, 65_536
"""Entries of a thin index whose rows are fetched together: few at first, since a limit may end it."""

_END = b"\xff" * 64
"""After every key: none begins with so many."""


def fetch(source: Source, wanted: Wanted) -> pa.Table:
    """All rows that are wanted, as users see them."""
    pieces = list(stream(source, wanted))
    return pa.concat_tables(pieces) if pieces else shown(wanted, schema_of(wanted).empty_table())


def stream(source: Source, wanted: Wanted) -> Iterator[pa.Table]:
    """The rows that are wanted, as users see them, piece by piece where the way gives them in their order."""
    if wanted.limit != 0:
        yield from by_way(source, wanted, choose(source, wanted))


def by_way(source: Source, wanted: Wanted, way: Way) -> Iterator[pa.Table]:
    """The rows that are wanted and lie in the ranges of a way."""
    later = source.ahead(wanted.table) if way.index is None else source.later(wanted.table)
    if later is not None and later.keys is None:  # nobody knows what was written since
        later = None
        pieces = _instead(source, wanted, way, None)
    else:
        pieces = _pieces(source, wanted, way, later)
    pieces = _tested(pieces, wanted, way)
    if way.ordered and later is None:
        left = wanted.limit
        for piece in pieces:
            found = shown(wanted, piece)
            found = found if left is None else found.slice(0, left)
            left = None if left is None else left - found.num_rows
            if found.num_rows:
                yield found
            if left == 0:
                return
        return
    found = list(_enough(pieces, wanted) if way.grouped and wanted.limit is not None else pieces)
    if later is not None:
        found += _tested(iter([_in_ranges(wanted, way, later.rows)]), wanted, way)
    rows = pa.concat_tables([schema_of(wanted).empty_table(), *found]).combine_chunks()
    rows = shown(wanted, in_order(wanted, rows))
    yield rows if wanted.limit is None else rows.slice(0, wanted.limit)


def shown(wanted: Wanted, stored: pa.Table) -> pa.Table:
    """Stored rows as users see them: a bag's repeated, the columns that were asked for, time zones put back."""
    if wanted.table.is_bag:
        counts = stored[COUNT].to_numpy()
        if (counts != 1).any():
            stored = stored.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
    return outside(wanted.table, stored.select(list(wanted.columns)))


def in_order(wanted: Wanted, rows: pa.Table) -> pa.Table:
    """Rows in the order that is asked for: that of key bytes is that of values."""
    by = replace(wanted.table, key=wanted.sorted_by)
    order = key_order(encode_keys(by, rows)) if wanted.sorted_by else None
    return rows if order is None else rows.take(pa.array(order))


def schema_of(wanted: Wanted) -> pa.Schema:
    """Of stored rows with all columns that are needed."""
    return pa.schema([wanted.table.arrow.field(name) for name in wanted.needed])


def _enough(pieces: Iterator[pa.Table], wanted: Wanted) -> Iterator[pa.Table]:
    """Pieces until there are as many rows as the limit, and all that are equal in their order to the last of these."""
    by, left, last = replace(wanted.table, key=wanted.order or wanted.sorted_by), wanted.limit or 0, b""
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


def _pieces(source: Source, wanted: Wanted, way: Way, later: Changed | None) -> Iterator[pa.Table]:
    """Rows with all columns that are needed; in the way's order, if it has one."""
    bare = not way.rest and not way.others and later is None and way.ordered
    limit = wanted.limit if bare else None
    if way.index is None:
        for low, high in way.ranges.pairs:
            for rows in source.scan(wanted.table, wanted.needed, low, high, limit):
                yield _without(wanted.table, rows, later)
        return
    names = own_names(wanted.table, way.index)
    if way.covering:
        for entries in _entries(source, way.index, [names[n] for n in wanted.needed if n != COUNT], way, limit):
            yield _without(wanted.table, _called(entries, names).select(list(wanted.needed)), later)
        return
    yield from _by_key(source, wanted, way, names, later, limit)


def _entries(source: Source, index: View, columns: Sequence[str], way: Way, limit: int | None) -> Iterator[pa.Table]:
    columns = [*columns, *([COUNT] if index.table.is_bag else [])]
    for low, high in way.ranges.pairs:
        # A range that has an end is read in small pieces first.
        high = _END if high is None and way.ranges.whole else high
        yield from source.scan(index.table, columns, low, high, limit)


def _by_key(
    source: Source, wanted: Wanted, way: Way, names: dict[str, str], later: Changed | None, limit: int | None
) -> Iterator[pa.Table]:
    """The rows of a thin index's entries; all rows of the table if those become too many."""
    table, index = wanted.table, way.index
    if index is None:
        raise Defect("Rows are fetched by the keys of an index.")
    keys = [c.name for c in table.key_columns]
    ends = way.grouped and wanted.limit is not None
    most = max(1, source.count(table)) // FETCH + _FIRST
    waiting: list[pa.Table] = []
    count, size = 0, _FIRST
    for entries in _entries(source, index, [names[k] for k in keys], way, limit):
        waiting.append(_without(table, _called(entries, names).select(keys), later))
        count += entries.num_rows
        if ends and sum(w.num_rows for w in waiting) >= size:
            yield from _fetched(source, wanted, waiting)
            waiting, size = [], min(8 * size, _PIECE)
        elif not ends and count > most:  # nothing was handed on so far
            yield from _instead(source, wanted, way, later)
            return
    if waiting:
        yield from _fetched(source, wanted, waiting)


def _fetched(source: Source, wanted: Wanted, found: Sequence[pa.Table]) -> Iterator[pa.Table]:
    keys = pa.concat_tables(found).combine_chunks()
    for start in range(0, keys.num_rows, _PIECE):
        yield in_order(wanted, source.find(wanted.table, keys.slice(start, _PIECE), wanted.needed))


def _instead(source: Source, wanted: Wanted, way: Way, later: Changed | None) -> Iterator[pa.Table]:
    """A scan that gives what the way would have given."""
    columns = list(dict.fromkeys([*wanted.needed, *_key_of(wanted, way)]))
    pieces = (
        _without(wanted.table, _in_ranges(wanted, way, piece), later)
        for piece in source.scan(wanted.table, columns, None, None, None)
    )
    if way.ordered:
        yield in_order(wanted, pa.concat_tables([schema_of(wanted).empty_table(), *pieces]).combine_chunks())
    else:
        yield from pieces


def _in_ranges(wanted: Wanted, way: Way, rows: pa.Table) -> pa.Table:
    """Of the table's rows those whose entries lie in the way's ranges, with the columns that are needed."""
    if way.index is None:
        rows = rows.filter(inside(encode_keys(wanted.table, rows), way.ranges.pairs))
    else:
        names = own_names(wanted.table, way.index)
        own = {names[name]: rows[name] for name in _key_of(wanted, way)}
        rows = rows.filter(inside(encode_keys(way.index.table, pa.table(own)), way.ranges.pairs))
    return rows.select(list(wanted.needed))


def _key_of(wanted: Wanted, way: Way) -> list[str]:
    """The table's columns that an index's key is made of."""
    if way.index is None:
        return []
    back = {own: name for name, own in own_names(wanted.table, way.index).items()}
    return [back[part.column] for part in way.index.table.key]


def _called(entries: pa.Table, names: dict[str, str]) -> pa.Table:
    """An index's entries with the table's names for their columns."""
    back = {own: name for name, own in names.items()}
    return entries.rename_columns([back.get(name, name) for name in entries.column_names])


# -- since the batch ---------------------------------------------------------------------------------------------------


def _without(table: Table, rows: pa.Table, later: Changed | None) -> pa.Table:
    """Rows whose keys were not written since."""
    if later is None or later.keys is None or not rows.num_rows:
        return rows
    if not table.key:  # it has one row at most, and that was written
        return rows.slice(0, 0)
    written = encode_keys(table, later.keys)
    return rows.filter(pc.invert(pc.is_in(encode_keys(table, rows), value_set=written)))


# -- conditions --------------------------------------------------------------------------------------------------------


def _tested(pieces: Iterator[pa.Table], wanted: Wanted, way: Way) -> Iterator[pa.Table]:
    """The rows of pieces that pass what the way has not seen to."""
    test = _test(way.others) if way.others else None
    for piece in pieces:
        found = passing(wanted.table, way.rest, piece)
        yield found if test is None or not found.num_rows else test(found)


def _test(parts: Sequence[Expr]) -> Callable[[pa.Table], pa.Table]:
    """A condition, by DuckDB."""
    from viewkeeper import expressions

    condition = " AND ".join(expressions.predicate(part) for part in parts)
    sql = f"SELECT * FROM _rows WHERE {condition}"
    return lambda rows: _duck(os.getpid()).run(sql, _rows=rows).cast(rows.schema)


@lru_cache(maxsize=1)
def _duck(process: int) -> Duck:
    """One for all conditions: to make one takes longer than most reads. It tests a piece at a time, and keeps none."""
    from viewkeeper import expressions
    from viewkeeper.resources.prepared_statements import Duck

    return Duck(expressions.setup, threads=1)
