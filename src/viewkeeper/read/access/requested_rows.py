"""A request read at one state of the store: as Python rows, or as a table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from viewkeeper.errors import SnapshotGone
from viewkeeper.read.access.path import RowRequest
from viewkeeper.read.access.scan import fetch, stream
from viewkeeper.read.rows import python_rows
from viewkeeper.read.state import PositionState, ReadState, SnapshotState
from viewkeeper.store.contract.store import Store

_ATTEMPTS = 3


@contextmanager
def open_read_state(store: Store, *, at_batch: bool) -> Iterator[ReadState]:
    """Open one read state: for views, the published batch; for base tables, the current rows."""
    if not at_batch and not store.capabilities.snapshot_scan:
        batch = store.published_batch()
        yield PositionState(store, store.head(), batch)
        return
    snapshot = store.open_snapshot()
    try:
        yield SnapshotState(store, snapshot, at_cut=at_batch)
    finally:
        snapshot.close()


def stream_python_rows(store: Store, request: RowRequest) -> Iterator[dict[str, Any]]:
    """The rows one by one, as Python values."""
    with open_read_state(store, at_batch=not request.table.is_changed_by_writes) as state:
        yield from python_rows_from(state, request)


def python_rows_from(state: ReadState, request: RowRequest) -> Iterator[dict[str, Any]]:
    for piece in stream(state, request):
        yield from python_rows(request.table, piece)


def read_request(store: Store, request: RowRequest) -> pa.Table:
    """All rows as a table. If the store drops the snapshot during the read, the read is repeated on a new one."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(SnapshotGone):
            return _read_once(store, request)
    return _read_once(store, request)


def _read_once(store: Store, request: RowRequest) -> pa.Table:
    with open_read_state(store, at_batch=not request.table.is_changed_by_writes) as state:
        return fetch(state, request)
