"""The rows that a query is over, all of one state.

One table or view alone is read as `read` reads it. With a view among several, the tables are read as of the cut of the
published batch, so that they agree; tables alone are read as they are now, all at one log position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from viewkeeper.model.keys import prefix_range
from viewkeeper.model.schema import Table
from viewkeeper.read.at import Bounds, rows_at
from viewkeeper.read.reader import outside
from viewkeeper.sql.embedded.block import Input

_AGE = 600.0
"""Seconds in which the rows must have been read."""


def rows_of(db: Any, inputs: Sequence[Input]) -> list[pa.Table]:
    """The rows of each input: the columns that it names, of the keys that it wants."""
    tables = {one.table.id: one.table for one in inputs}
    if len(tables) == 1 and not inputs[0].table.is_stored:
        rows = db.read(inputs[0].table.name)
        return [rows for _ in inputs]
    if len(tables) == 1 and inputs[0].table.is_view:
        return [
            _scanned(one.table, db._store.scan(one.table, start=low, stop=high)) for one, low, high in _ranges(inputs)
        ]
    if any(table.is_view for table in tables.values()):
        with db.snapshot(max_age=_AGE) as snapshot:
            return [snapshot.read(one.table.name, keys=(low, high)) for one, low, high in _ranges(inputs)]
    head = db._store.head()
    return [
        rows_at(db._store, one.table, list(one.columns.values()), head, (low, high))
        for one, low, high in _ranges(inputs)
    ]


def whole(table: Table) -> Input:
    """All of a table."""
    return Input("", table, {c.name: c.name for c in table.columns})


def _ranges(inputs: Sequence[Input]) -> list[tuple[Input, bytes | None, bytes | None]]:
    return [(one, *(prefix_range(one.table, one.prefix) if one.prefix else _ALL)) for one in inputs]


_ALL: Bounds = (None, None)


def _scanned(table: Table, batches: Any) -> pa.Table:
    return outside(table, pa.Table.from_batches(list(batches), table.arrow))
