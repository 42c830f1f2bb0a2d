"""The rows that a query is over, all of one state, each by the cheapest way (`read.access`).

One table or view alone is read as `read` reads it. With a view among several, the tables are read as of the cut of the
published batch, so that they agree; tables alone are read as they are now, all in one state.

A suspended view is refused (VK605). With `stale` it gives its old rows, and the answer is marked (`read.suspension`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from viewkeeper.model.schema import Table
from viewkeeper.read.access.choosing import Wanted
from viewkeeper.read.access.fetching import fetch
from viewkeeper.read.access.reading import state_for, table_wanted
from viewkeeper.read.access.sources import Source
from viewkeeper.read.access.terms import Where
from viewkeeper.read.suspension import refuse
from viewkeeper.sql.embedded.block import Input

_AGE = 600.0
"""Seconds in which the rows must have been read."""


def rows_of(db: Any, inputs: Sequence[Input], stale: bool = False) -> list[pa.Table]:
    """The rows of each input: the columns that it names, of the rows that it wants."""
    tables = {one.table.id: one.table for one in inputs}
    catalog = db._catalog()
    for table in tables.values():
        refuse(catalog.of(table.id), stale=stale)
    if len(tables) == 1 and not inputs[0].table.has_rows:
        rows = db.read(inputs[0].table.name)
        return [rows for _ in inputs]
    if len(inputs) == 1:
        return [table_wanted(db._store, wanted_of(inputs[0]))]
    with state_of(db, inputs, stale) as source:
        return [fetch(source, wanted_of(one)) for one in inputs]


@contextmanager
def state_of(db: Any, inputs: Sequence[Input], stale: bool = False) -> Iterator[Source]:
    """One state for all inputs."""
    tables = {one.table.id: one.table for one in inputs}
    views = [table for table in tables.values() if table.is_view]
    if not views or len(tables) == 1:
        with state_for(db._store, view=bool(views)) as source:
            yield source
        return
    with db.snapshot(max_age=_AGE, mixed=stale) as snapshot:
        yield snapshot.source([table.name for table in tables.values()])


def wanted_of(one: Input) -> Wanted:
    return Wanted(one.table, Where(one.terms), tuple(dict.fromkeys(one.columns.values())))


def whole(table: Table) -> Input:
    """All of a table."""
    return Input("", table, {c.name: c.name for c in table.columns})
