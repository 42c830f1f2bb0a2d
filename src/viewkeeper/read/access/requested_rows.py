"""What is wanted of one table or view, read at one state: as rows, or as a table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from viewkeeper.errors import SnapshotGone
from viewkeeper.read.access.path import Wanted
from viewkeeper.read.access.scan import fetch, stream
from viewkeeper.read.rows import python_rows
from viewkeeper.read.state import Pins, Positions, Source
from viewkeeper.store.contract.store import Store

_ATTEMPTS = 3


@contextmanager
def state_for(store: Store, *, view: bool) -> Iterator[Source]:
    """One state: of views, the published batch; of base tables, as they are now."""
    if not view and not store.capabilities.snapshot_scan:
        batch = store.published()
        yield Positions(store, store.head(), batch)
        return
    pinned = store.pin()
    try:
        yield Pins(store, pinned, at_cut=view)
    finally:
        pinned.close()


def rows_wanted(store: Store, wanted: Wanted) -> Iterator[dict[str, Any]]:
    """Row by row, as Python values."""
    with state_for(store, view=not wanted.table.with_writes) as source:
        yield from rows_from(source, wanted)


def rows_from(source: Source, wanted: Wanted) -> Iterator[dict[str, Any]]:
    for piece in stream(source, wanted):
        yield from python_rows(wanted.table, piece)


def table_wanted(store: Store, wanted: Wanted) -> pa.Table:
    """All at once; where the store cannot keep a state for so long, of the next one."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(SnapshotGone):
            return _table(store, wanted)
    return _table(store, wanted)


def _table(store: Store, wanted: Wanted) -> pa.Table:
    with state_for(store, view=not wanted.table.with_writes) as source:
        return fetch(source, wanted)
